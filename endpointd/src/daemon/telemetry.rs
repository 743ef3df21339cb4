//! Measurements for the allocator's feeds: the sampler's turns, and its messages to the session.

use std::sync::Arc;

use ratewright_proto::SessionError;
use ratewright_proto::telemetry::Telemetry;

use super::Daemon;
use crate::config::PacingMode;
use crate::flows::NetworkView;
use crate::telemetry::host_faults::TableUse;

impl Daemon {
    /// Begins to measure for a new session.
    pub(super) fn start_telemetry(&mut self, now_ns: u64, network: &Arc<NetworkView>) {
        let Some(welcome) = &self.health.welcome else {
            return;
        };
        let (access, interval_ns) = (welcome.access, welcome.telemetry_interval_ns);
        let terms = welcome.telemetry_sync;
        self.sampler.start(
            now_ns,
            network,
            access,
            interval_ns,
            terms,
            self.second_line.is_some(),
        );
    }

    /// Takes a step of measuring, if it is due, and hands messages to the session.
    pub(super) fn sample_if_due(&mut self, now_ns: u64) {
        self.take_sample(now_ns);
        self.tell_access_use(now_ns);
    }

    /// Tells the allocator who uses this host's own links, and that it only observes, if that has
    /// changed.
    fn tell_access_use(&mut self, now_ns: u64) {
        if self.health.welcome.is_none() {
            return;
        }
        let observes = self.config.pacing.mode == PacingMode::Observe;
        let Some(access_use) = self.sampler.access_use_to_tell(now_ns, observes) else {
            return;
        };
        let message = Telemetry {
            access_use: Some(Box::new(access_use.clone())),
            ..Telemetry::default()
        };
        match self.session.send_telemetry(message) {
            Ok(()) => self.sampler.access_use_told(now_ns, access_use),
            // It is told in the next turn.
            Err(error) => tracing::debug!(%error, "the users of links were not told"),
        }
    }

    fn take_sample(&mut self, now_ns: u64) {
        if self
            .sampler
            .next_timeout()
            .is_none_or(|due_ns| due_ns > now_ns)
        {
            return;
        }
        self.kernel.usages.clear();
        self.kernel.backend.usage(now_ns, &mut self.kernel.usages);
        let table = || {
            let stats = self.kernel.backend.stats();
            TableUse {
                slots: self.config.pacing.max_flows,
                used: stats.connections,
                refused: stats.table_full,
                beyond_session: self.session.flows_beyond_session(),
            }
        };
        let sample = self.sampler.sample(now_ns, &self.kernel.usages, table);
        if sample.passed {
            self.second_line_measured(now_ns);
        }
        let Some(message) = sample.message else {
            return;
        };
        match self.session.send_telemetry(message) {
            Ok(()) => {}
            // The session counts what it drops: a newer measurement follows.
            Err(SessionError::Backlog { .. }) => self.sampler.tell_anew(),
            Err(error) => {
                self.sampler.tell_anew();
                tracing::debug!(%error, "telemetry was not sent");
            }
        }
    }
}
