//! Responses to requests of the admin interface.

use std::collections::BTreeMap;

use super::Daemon;
use crate::admin::AdminRequest;
use crate::clock;
use crate::status::{SessionState, SessionStatus, Status};

impl Daemon {
    pub(super) fn answer(&self, request: AdminRequest) {
        // A handler whose client has gone does not wait any more.
        match request {
            AdminRequest::Status(answer) => drop(answer.send(Box::new(self.status()))),
            AdminRequest::Metrics(answer) => drop(answer.send(self.metrics.render(&self.status()))),
            AdminRequest::FirstPaced(answer) => drop(answer.send(self.first_paced.recent_us())),
        }
    }

    fn session_state(&self) -> SessionState {
        if self.session.is_established() {
            SessionState::Established
        } else if self.connection.is_up() {
            SessionState::Registering
        } else if self.connection.address().is_some() {
            SessionState::Connecting
        } else {
            SessionState::Disconnected
        }
    }

    /// Collects the status that operators see.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // times, shown in seconds
    pub fn status(&self) -> Status {
        let now_ns = clock::now_ns();
        let welcome = self.health.welcome.as_ref();
        let mut protocol = BTreeMap::new();
        self.session.counters().for_each(|name, value| {
            protocol.insert(name, value);
        });
        let epoch = welcome.map_or(0, |welcome| welcome.epoch);
        let topology_epoch = self.health.topology_version;
        Status {
            host: self.config.host.clone(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: now_ns.saturating_sub(self.started_ns) as f64 / 1e9,
            backend: self.kernel.backend.kind(),
            session: SessionStatus {
                state: self.session_state(),
                allocator: self.connection.address().map(str::to_owned),
                epoch,
                topology_epoch,
                session: welcome.map_or(0, |welcome| welcome.session),
                host_id: welcome.map_or(0, |welcome| welcome.host_id),
                lease_s: welcome.map_or(0.0, |welcome| welcome.lease_ns as f64 / 1e9),
                rtt_s: self.connection.rtt().map_or(0.0, |rtt| rtt.as_secs_f64()),
                hot: self.connection.hot(),
                last_error: self.health.last_error.clone(),
            },
            epoch,
            topology_epoch,
            released: self.session.is_released() && !self.session.observes(),
            mode: self.flows.pacing_state(),
            flows: self.flows.flow_count(),
            reported_flows: self.flows.reported_count(),
            paced_flows: self.flows.paced_count(now_ns),
            first_paced_us: self.first_paced.summary(),
            first_rate_us: self.first_rate.summary(),
            classes: self.flows.class_use(now_ns),
            policy_matches: self.flows.policy().matches(),
            counters: *self.flows.counters(),
            link: self.connection.counters(),
            protocol,
            backend_stats: self.kernel.backend.stats(),
            backend_errors: self.kernel.errors,
            left_overs: self.left_overs.clone(),
            telemetry: self.sampler.status(),
            second_line: self.second_line_status(now_ns),
        }
    }
}
