//! One session as the hub holds it.

use ratewright_proto::control::Hello;
use ratewright_proto::records::StartRecord;
use ratewright_proto::server::ServerSession;
use ratewright_proto::server::registry::Registry;
use ratewright_topology::{HostId, Topology};

use super::flows::demand_bps;
use super::session_flows::{HubFlow, Placement, SessionFlows, UnmanagedReason};
use super::token_bucket::TokenBucket;
use crate::service::config::{PacingOrder, RelayIdentity};
use crate::service::session_table::SessionTable;
use crate::service::tls::PeerCertificate;
use crate::shared_links::{FlowKind, MIN_DEMAND_SHARE};

/// Sessions by number. Boxed: a look-up touches one session's memory only, and growth moves
/// pointers.
pub(super) type Sessions = SessionTable<Box<Session>>;

/// Hosts with a session.
#[derive(Clone, Copy)]
pub(super) struct Hosts<'a> {
    pub(super) registry: &'a Registry,
    pub(super) sessions: &'a Sessions,
}

impl<'a> Hosts<'a> {
    /// Returns the session of a host, if it has one.
    pub(super) fn session(self, host: HostId) -> Option<&'a Session> {
        let id = self.registry.session_of(host.0)?;
        self.sessions.get(id).map(|session| &**session)
    }
}

/// A session, from its transport connection's first byte to its last.
pub(super) struct Session {
    pub(super) id: u32,
    /// The protocol's state machine, with the table of the host's flows.
    pub(super) proto: ServerSession<HubFlow>,
    /// Certificate that the peer presented.
    pub(super) certificate: PeerCertificate,
    /// Relay that carries it, if any.
    pub(super) relay: Option<RelayIdentity>,
    /// Host behind it, once its Hello was accepted.
    pub(super) peer: Option<AcceptedHost>,
    /// Paths of these flows.
    pub(super) flows: SessionFlows,
    /// Flows of these to which the engine allocates.
    pub(super) allocated: u32,
    /// Flows of these without a path.
    pub(super) unroutable: u32,
    /// Flows of these that wait for credit of the allocator's budget.
    pub(super) awaiting_credit: u32,
    /// Flows of these that wait for room in the allocator's table.
    pub(super) awaiting_room: u32,
    /// Time of the next attempt for flows that wait for credit; `None` if none waits.
    pub(super) deferred_ns: Option<u64>,
    /// Budget of demand changes.
    pub(super) demands: TokenBucket,
    pub(super) release: Release,
    /// Number of the newest frame of members that it was sent; `None` before the first.
    pub(super) members_version: Option<u64>,
    /// Conduct of its host, as that was told.
    pub(super) order: PacingOrder,
    /// Its host is configured to observe, whatever its order.
    pub(super) observes: bool,
    pub(super) starts: TokenBucket,
    pub(super) datagrams: TokenBucket,
    /// Budget of the control stream, in bytes.
    pub(super) control: TokenBucket,
    /// It stands in the list of ready sessions.
    pub(super) is_ready: bool,
    /// Reason for which the transport closes once the queued frames have left.
    pub(super) closing: Option<&'static str>,
}

impl Session {
    /// Returns the flow on a slot.
    pub(super) fn flow(&self, slot: u32) -> Option<(StartRecord, HubFlow)> {
        let (record, flow) = self.proto.flow_on(slot)?;
        Some((*record, *flow))
    }

    /// Returns the conduct of its host: the more careful of what it was told and configured.
    pub(super) fn conduct(&self) -> PacingOrder {
        match self.order {
            PacingOrder::Pace if self.observes => PacingOrder::Observe,
            order => order,
        }
    }

    /// True if flows of it wait for room or for credit: the check of links names such hosts.
    pub(super) fn has_beyond(&self) -> bool {
        self.awaiting_room > 0 || self.awaiting_credit > 0
    }

    /// True if its host paces its flows.
    pub(super) fn paces(&self) -> bool {
        self.conduct() == PacingOrder::Pace
    }

    /// Takes its host's acknowledgement of the kill switch. One that still counts paced flows
    /// proves nothing: the host then counts as released when a lease has passed.
    pub(super) fn acknowledge_release(&mut self, released: bool, paced_flows: u32) {
        if released && paced_flows == 0 && matches!(self.release, Release::Waiting { .. }) {
            self.release = Release::Acknowledged;
        }
    }

    /// Returns the kind as which a flow with a rate counts; `None` for one that is too small to
    /// matter.
    pub(super) fn kind_of(&self, topology: &Topology, record: &StartRecord) -> Option<FlowKind> {
        if self.paces() {
            return Some(FlowKind::Paced);
        }
        let host = self.peer.as_ref()?.host;
        let uplink = topology.host_uplink(host);
        let least_bps = topology.effective_capacity_bps(uplink) / MIN_DEMAND_SHARE;
        #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
        let counts = demand_bps(record) >= least_bps as f64;
        counts.then_some(FlowKind::Unpaced)
    }
}

/// Host whose Hello was accepted.
pub(super) struct AcceptedHost {
    pub(super) host: HostId,
    pub(super) hello: Hello,
}

/// Flows by placement over all sessions. Each session counts its own.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// All flows in the sessions' tables.
    pub(super) known: u64,
    /// Flows to which the engine allocates.
    pub(super) allocated: u32,
    /// Flows without a path.
    pub(super) unroutable: u32,
    /// Flows that wait for room in the allocator's table.
    pub(super) awaiting_room: u32,
}

impl Tallies {
    /// Counts a flow that begins, ends or changes its placement.
    pub(super) fn change(
        &mut self,
        session: &mut Session,
        before: Option<Placement>,
        after: Option<Placement>,
    ) {
        for (placement, plus) in [(before, false), (after, true)] {
            let Some(placement) = placement else { continue };
            let add = |count: &mut u32| if plus { *count += 1 } else { *count -= 1 };
            if plus {
                self.known += 1;
            } else {
                self.known -= 1;
            }
            match placement {
                Placement::Allocated(_) => [&mut self.allocated, &mut session.allocated].map(add),
                Placement::Unmanaged(UnmanagedReason::Unroutable) => {
                    [&mut self.unroutable, &mut session.unroutable].map(add)
                }
                Placement::Unmanaged(UnmanagedReason::TableFull) => {
                    [&mut self.awaiting_room, &mut session.awaiting_room].map(add)
                }
                Placement::Unmanaged(UnmanagedReason::StartRate) => {
                    add(&mut session.awaiting_credit);
                    continue;
                }
                // Unmanaged flows are `known - allocated`; only missing paths are reported by
                // number.
                Placement::Unmanaged(_) => continue,
            };
        }
    }

    /// Removes all flows of a session, so many.
    pub(super) fn forget(&mut self, session: &mut Session, flows: u64) {
        let allocated = std::mem::take(&mut session.allocated);
        session.awaiting_credit = 0;
        self.known -= flows;
        self.allocated -= allocated;
        self.unroutable -= std::mem::take(&mut session.unroutable);
        self.awaiting_room -= std::mem::take(&mut session.awaiting_room);
    }
}

/// State of the kill switch at one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Rates are handed out.
    No,
    /// The host was sent the kill switch at this time and has not acknowledged.
    Waiting { since_ns: u64 },
    /// The host has confirmed that it paces no flow.
    Acknowledged,
}
