//! Shared links at the hub: which flows count as paced, and what the engine is told.

use ratewright_proto::records::StartRecord;
use ratewright_proto::telemetry::AccessUse;
use ratewright_topology::{HostId, LinkId, Topology};

use super::session::Session;
use super::{Hub, PacingOrder, flows};
use crate::service::status::SharedStatus;
use crate::shared_links::{Cause, FlowKind, MIN_DEMAND_SHARE, SharedChanges};

impl Hub {
    /// Counts the flow on a slot anew, after its host's conduct or its demand has changed.
    pub(super) fn recount(&mut self, now_ns: u64, position: usize, slot: u32) {
        let engine_number = self.flows.engine_number;
        let session = &mut self.sessions[position];
        let (Some((record, flow)), Some(peer)) = (session.flow(slot), &session.peer) else {
            return;
        };
        if flow.number_in(engine_number).is_none() {
            return;
        }
        let kind = kind_of(&self.network.topology, session, &record);
        if kind == flow.counted {
            return;
        }
        let path = session.flows.path(slot);
        if let Some(before) = flow.counted {
            self.network.shared.remove(now_ns, path, before);
        }
        if let Some(kind) = kind {
            self.network.shared.add(now_ns, path, kind, peer.host);
        }
        if let Some(flow) = session.proto.state_mut(record.flow()) {
            flow.counted = kind;
        }
        self.push_shared();
    }

    /// Takes what a host tells of its own links and of its own conduct.
    pub(super) fn on_access_use(&mut self, now_ns: u64, id: u32, access_use: &AccessUse) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(host) = session.peer.as_ref().map(|peer| peer.host) else {
            return;
        };
        if std::mem::replace(&mut session.observes, access_use.observes) != access_use.observes {
            self.pacing_changed(now_ns, [id]);
        }
        self.network
            .shared
            .tell(now_ns, host, access_use.clone(), &self.network.topology);
        self.tell_link_check(now_ns, id, host, access_use);
        self.push_shared();
    }

    /// Notes that hosts begin or cease to pace. Their flows are counted anew in slices, by the
    /// sweep.
    pub(super) fn pacing_changed(&mut self, now_ns: u64, ids: impl IntoIterator<Item = u32>) {
        let mut changed = Vec::new();
        for id in ids {
            if let Some(session) = self.sessions.get(id)
                && let Some(peer) = &session.peer
            {
                self.network
                    .shared
                    .set_paces(now_ns, peer.host, session.paces());
                changed.push(id);
            }
        }
        self.sweep_sessions(changed);
        self.push_shared();
    }

    /// Ends links that have been shared for long enough.
    pub(super) fn end_shared(&mut self, now_ns: u64) {
        self.network.shared.end_due(now_ns);
        self.push_shared();
    }

    /// Sends the engine the capacities of links whose headroom began or ended, and notes the links
    /// that began or ended to be shared.
    pub(super) fn push_shared(&mut self) {
        if !self.network.shared.has_changed() {
            return;
        }
        let SharedChanges { shared, relaxed } = self.network.shared.take_changes();
        for link in relaxed {
            self.push_capacity(link);
        }
        for link in shared {
            self.network
                .link_check
                .set_others(link, self.network.shared.is_shared(link));
            if let Some(cause) = self.network.shared.cause(link) {
                self.counts.links_shared.count(cause.label());
            }
        }
    }

    /// Returns the state of a shared link for operators; `None` if it is not shared.
    pub(super) fn shared_status(&self, link: LinkId) -> Option<SharedStatus> {
        let cause = self.network.shared.cause(link)?;
        Some(SharedStatus {
            cause: self.cause_in_words(cause),
            headroom: self.network.headroom_of(link),
        })
    }

    fn cause_in_words(&self, cause: Cause) -> String {
        let name = |host: HostId| {
            let host = self.network.topology.hosts().get(host.index());
            host.map_or("", |host| host.name.as_str())
        };
        match cause {
            Cause::Unpaced(host) | Cause::Host(host) => {
                let name = name(host);
                let session = self.admission.registry.session_of(host.0);
                let session = session.and_then(|id| self.sessions.get(id));
                match session.map(|session| session.conduct()) {
                    None => format!("host {name} without a session"),
                    Some(PacingOrder::Pace) => format!("host {name}, which paces by now"),
                    Some(PacingOrder::Observe) => format!("observing host {name}"),
                    Some(PacingOrder::Release) => format!("released host {name}"),
                }
            }
            Cause::Stranger(Some(address)) => format!("unknown address {address}"),
            Cause::Stranger(None) => "unknown addresses".to_owned(),
            Cause::Udp => "UDP".to_owned(),
        }
    }
}

/// Returns the kind as which a flow with a rate counts; `None` for one that is too small to matter.
pub(super) fn kind_of(
    topology: &Topology,
    session: &Session,
    record: &StartRecord,
) -> Option<FlowKind> {
    if session.paces() {
        return Some(FlowKind::Paced);
    }
    let host = session.peer.as_ref()?.host;
    let uplink = topology.host_uplink(host);
    let least_bps = topology.effective_capacity_bps(uplink) / MIN_DEMAND_SHARE;
    #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
    let counts = flows::demand_bps(record) >= least_bps as f64;
    counts.then_some(FlowKind::Unpaced)
}
