//! The daemon's side towards the allocator: session events in, control frames and failures out.

use std::sync::Arc;

use ratewright_proto::client::ClientEvent;
use ratewright_proto::control::{Refusal, RefusalCode, TopologySnapshot, Welcome};

use super::members::KnownMembers;
use super::{Daemon, DaemonError};
use crate::clock;
use crate::config::PacingMode;
use crate::flows::{Destinations, NetworkView, PacingState};
use crate::session_io::ConnectionFailure;

/// Liveness time-out in leases: all rates are void by then, and a fresh session is the quickest
/// recovery.
const LIVENESS_LEASES: u64 = 2;
/// Shortest time between two warnings while the allocator is unreachable.
const WARN_EVERY_NS: u64 = 10_000_000_000;

impl Daemon {
    pub(super) fn on_connected(&mut self) {
        if !self.connection.takes_datagrams() {
            self.note_failure(
                "the peer does not take QUIC datagrams: is it an allocator?".to_owned(),
            );
            self.connection.disconnect("datagrams are needed");
            return;
        }
        let timeout_ns =
            u64::try_from(self.connection.welcome_timeout().as_nanos()).unwrap_or(u64::MAX);
        // An allocator that was slow to shake hands is slow to answer the Hello as well.
        self.session.set_handshake_timeout(timeout_ns);
        self.session.connected(clock::now_ns());
    }

    pub(super) fn on_control(&mut self, frame: &[u8]) {
        let now_ns = clock::now_ns();
        self.health.last_heard_ns = now_ns;
        if let Err(error) = self.session.on_control(now_ns, frame) {
            self.note_failure(format!("the allocator sent a bad control message: {error}"));
            self.drop_session("bad control message");
        }
    }

    pub(super) fn on_datagrams(&mut self) {
        let now_ns = clock::now_ns();
        let (session, health) = (&mut self.session, &mut self.health);
        self.connection.take_datagrams(|datagram| {
            match session.on_datagram(now_ns, datagram) {
                Ok(()) => health.last_heard_ns = now_ns,
                // The session has counted it by its reason.
                Err(error) => tracing::debug!(%error, "a datagram was dropped"),
            }
        });
    }

    /// Returns the end of the liveness time-out.
    pub(super) fn liveness_deadline(&self) -> Option<u64> {
        let health = &self.health;
        self.session.is_established().then(|| {
            health
                .last_heard_ns
                .saturating_add(health.liveness_timeout_ns)
        })
    }

    pub(super) fn on_liveness_timeout(&mut self) {
        let waited_ms = self.health.liveness_timeout_ns / 1_000_000;
        self.note_failure(format!(
            "nothing was heard from the allocator for {waited_ms} ms"
        ));
        self.drop_session("silence");
    }

    /// Handles a failed attempt or a lost connection. Paced sockets stay paced until their lease
    /// ends.
    pub(super) fn on_down(&mut self, error: ConnectionFailure) -> Result<(), DaemonError> {
        self.leave_session();
        self.note_failure(error.to_string());
        self.health.tls_failures = if error.is_tls() {
            self.health.tls_failures + 1
        } else {
            0
        };
        // Before the first session this host's set-up is wrong, and an operator has to know. Later
        // the allocator's has changed: keep trying.
        if !self.health.ever_established
            && self.health.tls_failures >= self.connection.address_count()
        {
            return Err(DaemonError::Certificate(error));
        }
        Ok(())
    }

    /// Applies a session event. Returns a refusal that ends the daemon.
    pub(super) fn on_session_event(&mut self, now_ns: u64, event: ClientEvent) -> Option<Refusal> {
        match event {
            ClientEvent::Rate {
                flow,
                rate_bps,
                expires_ns,
            } => {
                self.flows.on_rate(now_ns, flow, rate_bps, expires_ns);
            }
            ClientEvent::LeaseRenewed { expires_ns } => self.flows.on_renewed(expires_ns),
            ClientEvent::Established(welcome) => self.on_established(now_ns, *welcome),
            ClientEvent::Topology(topology) => {
                tracing::info!(
                    version = topology.version,
                    hosts = topology.hosts.len(),
                    "the topology changed"
                );
                self.health.topology_version = topology.version;
                if let Some(welcome) = &mut self.health.welcome {
                    // The Welcome holds the classes, which a topology update does not repeat.
                    if let Some(access) = topology.access {
                        welcome.access = access;
                        self.sampler.set_access(access);
                    }
                    welcome.topology = topology;
                    self.renew_network();
                    self.sampler.repeat_access_use();
                }
            }
            ClientEvent::Members(change) => {
                if self.health.members.apply(change) {
                    self.renew_network();
                }
            }
            ClientEvent::Released(released) => {
                let observes = self.session.observes();
                tracing::warn!(
                    released,
                    observes,
                    "the allocator changes this host's pacing"
                );
                // Counted before the rates are withdrawn: the confirmation reports them if the
                // kernel refuses.
                let rated = self.flows.rated_count();
                self.flows.set_pacing_state(self.wanted_state());
                self.confirm_release(now_ns, rated);
            }
            ClientEvent::Refused(refusal) if refusal.retry => {
                self.note_failure(format!("refused ({:?}): {}", refusal.code, refusal.reason));
                self.drop_session("refused");
            }
            // A running host was fine before: the allocator's topology or version has changed, and
            // an operator will put that right. Superseded is different: another daemon serves this
            // host.
            ClientEvent::Refused(refusal)
                if self.health.ever_established && refusal.code != RefusalCode::Superseded =>
            {
                self.note_failure(format!("refused ({:?}): {}", refusal.code, refusal.reason));
                self.leave_session();
                self.connection.disconnect_refused();
            }
            ClientEvent::Refused(refusal) => return Some(refusal),
            ClientEvent::SessionLost(reason) => {
                self.note_failure(format!("the allocator went silent ({reason:?})"));
                self.drop_session("silence");
            }
        }
        None
    }

    /// Takes the hosts of the present session's topology and members.
    fn renew_network(&mut self) {
        if let Some(welcome) = &self.health.welcome {
            let network = Arc::new(network(welcome, &self.health.members));
            self.sampler.set_network(&network);
            self.second_line_directory();
            self.flows.set_network(network);
        }
    }

    fn on_established(&mut self, now_ns: u64, welcome: Welcome) {
        self.connection.confirm();
        self.connection.carry(now_ns, &welcome);
        tracing::info!(
            allocator = self.connection.address(),
            epoch = welcome.epoch,
            session = welcome.session,
            host_id = welcome.host_id,
            hosts = welcome.topology.hosts.len(),
            lease_ms = welcome.lease_ns / 1_000_000,
            flows = self.flows.flow_count(),
            "a session is established"
        );
        self.health.members.begin_session(welcome.epoch);
        let network = network(&welcome, &self.health.members);
        for name in self.flows.policy().class_names() {
            if network.class_id(name).is_none() {
                tracing::warn!(
                    class = name,
                    "the policy names a class that the allocator does not have; class 0 is used"
                );
            }
        }
        let rated = self.flows.rated_count();
        let network = Arc::new(network);
        self.flows
            .on_established(network.clone(), self.wanted_state());
        let health = &mut self.health;
        health.topology_version = welcome.topology.version;
        health.last_heard_ns = now_ns;
        health.liveness_timeout_ns = welcome.lease_ns.saturating_mul(LIVENESS_LEASES);
        health.ever_established = true;
        health.tls_failures = 0;
        health.last_error = None;
        health.next_warning_ns = 0;
        let released = welcome.released;
        health.welcome = Some(welcome);
        self.start_telemetry(now_ns, &network);
        self.second_line_on_session(now_ns);
        if released {
            self.confirm_release(now_ns, rated);
        }
    }

    /// Returns the state of pacing that configuration and allocator want.
    pub(super) fn wanted_state(&self) -> PacingState {
        let configured = self.config.pacing.mode == PacingMode::Observe;
        PacingState::of(
            configured,
            self.session.is_released(),
            self.session.observes(),
        )
    }

    /// Carries out the kill switch and confirms it. If the kernel refuses, up to `rated` flows, or
    /// some unknown ones, stay paced until their leases run out.
    fn confirm_release(&mut self, now_ns: u64, rated: u32) {
        let mut done = true;
        while let Some(action) = self.flows.poll_action() {
            done &= self.act(now_ns, &action);
        }
        let paced = if done {
            self.flows.rated_count()
        } else {
            rated.max(1)
        };
        if let Err(error) = self.session.confirm_release(paced) {
            tracing::debug!(%error, "the kill switch was not confirmed");
        }
    }

    /// Drops the connection; the next attempt follows.
    fn drop_session(&mut self, reason: &str) {
        self.leave_session();
        self.connection.disconnect(reason);
    }

    fn leave_session(&mut self) {
        self.session.disconnected(clock::now_ns());
        self.sampler.stop_reports(self.second_line.is_some());
        // Without a Welcome it was an attempt, not a session.
        if self.health.welcome.take().is_some() {
            self.connection.counters_mut().sessions_lost += 1;
        }
    }

    /// Remembers the reason for the missing session, and logs it, but not at every attempt.
    fn note_failure(&mut self, problem: String) {
        let now_ns = clock::now_ns();
        if now_ns >= self.health.next_warning_ns {
            self.health.next_warning_ns = now_ns + WARN_EVERY_NS;
            tracing::warn!("{problem}; sockets go on as plain TCP, trying again");
        } else {
            tracing::debug!("{problem}");
        }
        self.health.last_error = Some(problem);
    }
}

/// Extracts the flow table's part of a Welcome.
fn network(welcome: &Welcome, members: &KnownMembers) -> NetworkView {
    let topology: &TopologySnapshot = &welcome.topology;
    let hosts = topology.hosts.iter().chain(members.iter());
    let prefixes = hosts.flat_map(|host| host.prefixes.iter().map(move |prefix| (host.id, prefix)));
    NetworkView {
        own_host: welcome.host_id,
        destinations: Destinations::new(prefixes),
        ecmp_seed: topology.ecmp_seed,
        ecmp_symmetric: topology.ecmp_symmetric,
        classes: welcome
            .classes
            .iter()
            .map(|class| (class.id, class.name.clone()))
            .collect(),
    }
}
