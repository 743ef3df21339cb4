//! The daemon's side towards the kernel: events in, actions out.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Daemon;
use crate::backend::{BackendError, FlowEvent, FlowEventKind, PacingBackend, Usage};
use crate::clock;
use crate::flows::FlowAction;
use crate::policy::cgroup::CgroupTree;

/// Shortest time between two walks over the cgroup tree.
const CGROUP_REFRESH_NS: u64 = 1_000_000_000;
/// Most cgroups that are remembered; beyond, all are read again.
const MAX_SEEN_CGROUPS: usize = 65_536;
/// Shortest time between two log lines about the back end's errors; all errors are counted.
const LOG_EVERY_NS: u64 = 1_000_000_000;

/// The back end, its buffers, and the cgroups that policy rules name.
pub(super) struct KernelSide {
    pub(super) backend: Box<dyn PacingBackend>,
    pub(super) errors: u64,
    next_log_ns: u64,
    events: Vec<FlowEvent>,
    pub(super) usages: Vec<Usage>,
    cgroups: CgroupTree,
    seen_cgroups: BTreeSet<u64>,
    refreshed_ns: u64,
    refresh_due_ns: Option<u64>,
}

impl std::fmt::Debug for KernelSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelSide")
            .field("backend", &self.backend.kind())
            .finish_non_exhaustive()
    }
}

impl KernelSide {
    pub(super) fn new(backend: Box<dyn PacingBackend>) -> Self {
        Self {
            backend,
            errors: 0,
            next_log_ns: 0,
            events: Vec::new(),
            usages: Vec::new(),
            cgroups: CgroupTree::system(),
            seen_cgroups: BTreeSet::new(),
            refreshed_ns: clock::now_ns(),
            refresh_due_ns: None,
        }
    }

    pub(super) fn cgroups(&self) -> &CgroupTree {
        &self.cgroups
    }

    pub(super) fn warn_of_missing(&self, paths: &[PathBuf]) {
        for path in paths {
            tracing::warn!(
                cgroup = %path.display(),
                mount = %self.cgroups.mount().display(),
                "the policy names a cgroup that does not exist yet"
            );
        }
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        [self.backend.next_poll_ns(), self.refresh_due_ns]
            .into_iter()
            .flatten()
            .min()
    }

    /// Counts and logs a failure. Returns true if there was none.
    fn note(&mut self, now_ns: u64, what: &str, result: Result<(), BackendError>) -> bool {
        let Err(error) = result else { return true };
        self.errors += 1;
        if now_ns >= self.next_log_ns {
            self.next_log_ns = now_ns + LOG_EVERY_NS;
            tracing::warn!(%error, errors = self.errors, "the back end failed to {what}");
        }
        false
    }

    /// Carries out the changes that the back end has put off.
    pub(super) fn flush(&mut self, now_ns: u64) {
        let flushed = self.backend.flush();
        self.note(now_ns, "change rates", flushed);
    }
}

impl Daemon {
    /// Takes all waiting events from the kernel.
    pub(super) fn on_kernel_events(&mut self) {
        let now_ns = clock::now_ns();
        // The buffer leaves `self` while its events change other parts of it; its memory is reused.
        let mut events = std::mem::take(&mut self.kernel.events);
        let polled = self.kernel.backend.poll_events(now_ns, &mut events);
        self.kernel.note(now_ns, "read its events", polled);
        for event in events.drain(..) {
            match &event.kind {
                FlowEventKind::FirstPaced { latency_ns } => {
                    self.first_paced.record(*latency_ns);
                    self.metrics.first_paced(*latency_ns);
                }
                FlowEventKind::Start(facts) => self.meet_cgroup(now_ns, facts.cgroup_id),
                _ => {}
            }
            self.flows.on_event(event);
        }
        self.kernel.events = events;
    }

    /// Measures the use of flows for the flow table, if it is due.
    pub(super) fn look_at_usage(&mut self, now_ns: u64) {
        if self
            .flows
            .next_usage_ns()
            .is_none_or(|due_ns| due_ns > now_ns)
        {
            return;
        }
        self.kernel.usages.clear();
        self.kernel.backend.usage(now_ns, &mut self.kernel.usages);
        self.flows.on_usage(now_ns, &self.kernel.usages);
    }

    /// Carries out one action of the flow table. Returns true if the kernel did it.
    pub(super) fn act(&mut self, now_ns: u64, action: &FlowAction) -> bool {
        let (what, result) = match *action {
            FlowAction::Start(start) => {
                self.on_flow_to(now_ns, start.flow(), start.dst_host());
                if let Err(error) = self.session.start(now_ns, start) {
                    tracing::debug!(%error, "a flowlet stays unreported");
                    self.flows.start_refused(start.flow());
                }
                return true;
            }
            FlowAction::End(flow) => {
                self.on_flow_ended();
                // A flow that the full session refused is not in its table.
                if let Err(error) = self.session.end(now_ns, flow) {
                    tracing::debug!(%error, "an end was not needed");
                }
                return true;
            }
            FlowAction::SetRate {
                conn,
                rate_bps,
                expires_ns,
                waited_ns,
            } => {
                if let Some(waited_ns) = waited_ns {
                    self.first_rate.record(waited_ns);
                    self.metrics.first_rate(waited_ns);
                }
                (
                    "set a rate",
                    self.kernel.backend.set_rate(conn, rate_bps, expires_ns),
                )
            }
            FlowAction::Watch(conn) => {
                self.kernel.backend.watch(conn);
                return true;
            }
            FlowAction::Renew { expires_ns } => {
                ("renew its leases", self.kernel.backend.renew(expires_ns))
            }
            FlowAction::Clear(conn) => ("give a connection back", self.kernel.backend.clear(conn)),
            FlowAction::ClearAll => ("give all connections back", self.kernel.backend.clear_all()),
            FlowAction::Observe(on) => ("observe or pace", self.kernel.backend.observe(on)),
        };
        self.kernel.note(now_ns, what, result)
    }

    /// Handles the cgroup of a new flow: an unknown one may be one that the policy names.
    fn meet_cgroup(&mut self, now_ns: u64, id: u64) {
        if !self.flows.policy().uses_cgroups() || self.kernel.seen_cgroups.contains(&id) {
            return;
        }
        if self.kernel.seen_cgroups.len() >= MAX_SEEN_CGROUPS {
            // Forgetting all of them costs some walks over the tree; a list of every cgroup of a
            // long life would only grow.
            self.kernel.seen_cgroups.clear();
        }
        self.kernel.seen_cgroups.insert(id);
        self.kernel
            .refresh_due_ns
            // Many new cgroups at once, as a batch system makes them, share one walk.
            .get_or_insert(self.kernel.refreshed_ns + CGROUP_REFRESH_NS);
        self.refresh_cgroups_if_due(now_ns);
    }

    pub(super) fn refresh_cgroups_if_due(&mut self, now_ns: u64) {
        if self
            .kernel
            .refresh_due_ns
            .is_some_and(|due_ns| due_ns <= now_ns)
        {
            self.kernel.refresh_due_ns = None;
            self.kernel.refreshed_ns = now_ns;
            self.flows.refresh_cgroups(&self.kernel.cgroups);
        }
    }
}
