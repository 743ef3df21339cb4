//! The flow table turns the kernel's socket events into records for the allocator, and the
//! allocator's rates into actions for the back end.
//!
//! ```text
//!  back end ── Start/Idle/Resume/Close ──► FlowTable ── Start, End ──► session
//!  back end ◄─ SetRate/Renew/Clear/ClearAll ── FlowTable ◄── rate, lease, released ── session
//! ```
//!
//! Sans-IO: events go in with their time. [`FlowAction`]s come out of [`FlowTable::poll_action`] in
//! the order in which they must be done. A socket that pauses for less than the gap stays one
//! flowlet (flowtune §5.1: the module reports when a socket buffer goes from empty to non-empty and
//! back). The gap keeps a chatty socket from costing two messages per write.
//!
//! Bounded: one entry per slot of the back end, at most two timer entries per flowlet.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use ratewright_proto::{FlowId, StartRecord};

use crate::backend::{Conn, FlowEvent, FlowEventKind, FlowFacts, SlotIndex};
use crate::policy::Policy;

pub mod class_use;
pub mod counters;
mod demand;
pub mod network;
mod pacing_state;
mod rates;
mod report_status;
mod usage;

use class_use::BytesByClass;
pub use class_use::ClassUse;
pub use counters::FlowCounters;
use demand::{LastClaim, Meter};
pub use network::{Destinations, NetworkView};
pub use pacing_state::PacingState;
use report_status::ReportStatus;

/// An action for the session or the back end, to be done in order.
#[derive(Debug, Clone, PartialEq)]
pub enum FlowAction {
    /// Report a flowlet to the allocator, or new parameters of a reported one.
    Start(StartRecord),
    /// Report the end of a flowlet to the allocator.
    End(FlowId),
    /// Pace a connection.
    SetRate {
        /// Connection to pace.
        conn: Conn,
        /// Wire rate in bit/s.
        rate_bps: u64,
        /// End of the rate's lease.
        expires_ns: u64,
        /// Time from the flowlet's beginning in the kernel to this, its first rate.
        waited_ns: Option<u64>,
    },
    /// Move the expiry of all connections that have a rate.
    Renew {
        /// New end of the leases.
        expires_ns: u64,
    },
    /// Ask the back end for an event when the connection is next limited by its rate.
    Watch(Conn),
    /// Give one connection back to plain TCP.
    Clear(Conn),
    /// Give all connections back to plain TCP.
    ClearAll,
    /// Turn the back end's observing on or off.
    Observe(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowletPhase {
    /// The socket has something to send.
    Active,
    /// The socket had nothing to send since then; the flowlet ends when the gap has passed.
    Idle { since_ns: u64 },
}

#[derive(Debug, Clone, Copy)]
struct LeasedRate {
    bps: u64,
    expires_ns: u64,
}

/// Rate in whose place another one holds, if there was one.
#[derive(Debug, Clone, Copy)]
struct Displaced(Option<LeasedRate>);

#[derive(Debug)]
struct Flowlet {
    id: FlowId,
    phase: FlowletPhase,
    /// Time at which the kernel saw it begin, until it has its first rate.
    began_ns: Option<u64>,
    report_status: ReportStatus,
    /// Rate and expiry that the back end holds; in observe mode, that it would hold.
    rate: Option<LeasedRate>,
    /// Rate of the allocator that a receiver's share stands in for.
    displaced: Option<Displaced>,
    /// Measured use, while it has a rate.
    meter: Meter,
    /// Reported demand, where measured use is less than the rate allows.
    measured_bps: Option<u64>,
}

impl Flowlet {
    fn is_reported(&self) -> bool {
        matches!(self.report_status, ReportStatus::Reported(_))
    }

    /// Returns the longest pause that does not end the flowlet: `usual_ns`, or more after its
    /// demand was lowered.
    fn gap_ns(&self, usual_ns: u64) -> u64 {
        if self.measured_bps.is_some() {
            usual_ns.max(demand::LOWERED_GAP_NS)
        } else {
            usual_ns
        }
    }
}

/// An open connection.
#[derive(Debug)]
struct OpenConnection {
    conn: Conn,
    facts: FlowFacts,
    flowlet: Option<Flowlet>,
    /// Belief in the last flowlet, if its demand was lowered.
    last_claim: Option<LastClaim>,
}

#[derive(Debug, Default)]
struct SlotEntry {
    /// Generation of the latest flowlet on this slot.
    generation: u32,
    /// Use count of the newest connection, or of the next one after its close; events of older
    /// ones are ignored.
    newest: Option<u32>,
    /// Due time of the slot's valid entry in the timer heap.
    timer_ns: Option<u64>,
    connection: Option<OpenConnection>,
}

impl SlotEntry {
    fn flowlet_mut(&mut self) -> Option<&mut Flowlet> {
        self.connection.as_mut()?.flowlet.as_mut()
    }
}

/// The flows of this host.
#[derive(Debug)]
pub struct FlowTable {
    max_flows: u32,
    idle_gap_ns: u64,
    policy: Policy,
    network: Option<Arc<NetworkView>>,
    entries: Vec<SlotEntry>,
    idle: BinaryHeap<Reverse<(u64, u32)>>,
    actions: VecDeque<FlowAction>,
    counters: FlowCounters,
    state: PacingState,
    /// The back end observes.
    backend_observes: bool,
    bytes_by_class: BytesByClass,
    /// Latest expiry to which the back end's leases were renewed in this session.
    renewed_to_ns: u64,
    /// Flowlets that have a rate, in the back end or observed.
    rated: u32,
    /// Demands are measured; the next measurement is due at `usage_due_ns`.
    measures_demand: bool,
    usage_due_ns: u64,
    /// Demands that may still be lowered in the second that began at `lowerings_since_ns`.
    lowerings_left: u32,
    lowerings_since_ns: u64,
}

impl FlowTable {
    /// Makes an empty table for a back end with slots `0..max_flows`.
    #[must_use]
    pub fn new(max_flows: u32, idle_gap_ns: u64, policy: Policy) -> Self {
        Self {
            max_flows,
            idle_gap_ns,
            policy,
            network: None,
            entries: Vec::new(),
            idle: BinaryHeap::new(),
            actions: VecDeque::new(),
            counters: FlowCounters::default(),
            state: PacingState::Pace,
            backend_observes: false,
            bytes_by_class: BytesByClass::default(),
            renewed_to_ns: 0,
            rated: 0,
            measures_demand: true,
            usage_due_ns: 0,
            lowerings_left: usage::LOWERINGS_PER_S,
            lowerings_since_ns: 0,
        }
    }

    /// Takes the next action.
    pub fn poll_action(&mut self) -> Option<FlowAction> {
        self.actions.pop_front()
    }

    /// Applies an event of the kernel; events of closed or replaced connections are only counted.
    pub fn on_event(&mut self, event: FlowEvent) {
        let FlowEvent { conn, at_ns, kind } = event;
        // The table grows with the largest slot seen: without this bound a wrong event could
        // allocate 2^32 entries.
        if conn.slot.0 >= self.max_flows {
            self.counters.beyond_bound += 1;
            return;
        }
        let index = conn.slot.0 as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, SlotEntry::default);
        }
        if !self.is_current(conn) {
            self.counters.stale_events += 1;
            return;
        }
        match kind {
            FlowEventKind::Start(facts) => self.on_start(conn, at_ns, facts),
            FlowEventKind::Idle => self.on_idle(conn.slot, at_ns),
            FlowEventKind::Resume => self.on_resume(conn.slot, at_ns),
            FlowEventKind::Close => {
                // The kernel drops the rate together with the socket, so there is nothing to clear.
                self.end_flowlet(conn.slot, false);
                let entry = &mut self.entries[index];
                // The ring may deliver events of a connection after its close: they must not open
                // it again.
                entry.newest = Some(conn.use_count.wrapping_add(1));
                entry.connection = None;
                self.counters.closed += 1;
            }
            FlowEventKind::Limited => self.on_limited(conn.slot, at_ns),
            FlowEventKind::OwnMax(bytes_per_s) => self.on_own_max(conn.slot, bytes_per_s),
            FlowEventKind::FirstPaced { .. } => self.counters.first_paced += 1,
        }
    }

    /// Returns true unless `conn` has closed or was replaced. Closes a predecessor whose close got
    /// lost.
    fn is_current(&mut self, conn: Conn) -> bool {
        let entry = &mut self.entries[conn.slot.0 as usize];
        // Use counts wrap. The signed distance still orders two of them, as with TCP's sequence
        // numbers.
        let age = entry.newest.map_or(1, |newest| {
            conn.use_count.wrapping_sub(newest).cast_signed()
        });
        if age <= 0 {
            return age == 0;
        }
        entry.newest = Some(conn.use_count);
        if entry.connection.is_some() {
            self.end_flowlet(conn.slot, true);
            self.entries[conn.slot.0 as usize].connection = None;
            self.counters.closed += 1;
        }
        true
    }

    fn on_start(&mut self, conn: Conn, at_ns: u64, facts: FlowFacts) {
        let entry = &mut self.entries[conn.slot.0 as usize];
        match &mut entry.connection {
            // DSCP, mark or cgroup may have changed since the connection's flowlet before.
            Some(connection) => connection.facts = facts,
            None => {
                entry.connection = Some(OpenConnection {
                    conn,
                    facts,
                    flowlet: None,
                    last_claim: None,
                });
            }
        }
        self.on_resume(conn.slot, at_ns);
    }

    /// Handles a backlog: the running flowlet continues, or a new one begins.
    fn on_resume(&mut self, slot: SlotIndex, at_ns: u64) {
        let entry = &mut self.entries[slot.0 as usize];
        // A resume of a connection that never started was preceded by lost events: without facts
        // there is no policy, and the next start brings them.
        let Some(connection) = &mut entry.connection else {
            self.counters.stale_events += 1;
            return;
        };
        if let Some(flowlet) = &mut connection.flowlet {
            if flowlet.phase != FlowletPhase::Active {
                flowlet.phase = FlowletPhase::Active;
                self.counters.gaps_bridged += 1;
            }
            return;
        }
        // Rates in flight to the slot's flowlet before carry its generation, and are stale.
        entry.generation = entry.generation.wrapping_add(1);
        let id = FlowId::new(slot.0, entry.generation);
        let is_recent = |last: &LastClaim| {
            at_ns.saturating_sub(last.at_ns) < demand::DOUBTED_GAP_NS && self.measures_demand
        };
        let last_claim = connection.last_claim.filter(is_recent);
        connection.flowlet = Some(Flowlet {
            id,
            phase: FlowletPhase::Active,
            began_ns: Some(at_ns),
            report_status: ReportStatus::Unresolved,
            rate: None,
            displaced: None,
            meter: Meter::after(last_claim),
            measured_bps: last_claim.and_then(|last| last.demand_bps()),
        });
        self.counters.flowlets_started += 1;
        self.resolve(slot);
    }

    fn on_idle(&mut self, slot: SlotIndex, at_ns: u64) {
        let entry = &mut self.entries[slot.0 as usize];
        let Some(flowlet) = entry.flowlet_mut() else {
            return;
        };
        flowlet.phase = FlowletPhase::Idle { since_ns: at_ns };
        let gap_ns = flowlet.gap_ns(self.idle_gap_ns);
        let due_ns = at_ns.saturating_add(gap_ns);
        // A lowered demand may have set a later timer, for a longer pause.
        if entry.timer_ns.is_none_or(|timer_ns| timer_ns > due_ns) {
            entry.timer_ns = Some(due_ns);
            self.idle.push(Reverse((due_ns, slot.0)));
        }
    }

    /// Returns the time at which [`FlowTable::on_timeout`] has work to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        self.idle.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Ends the flowlets whose gap has passed.
    pub fn on_timeout(&mut self, now_ns: u64) {
        while let Some(&Reverse((at_ns, slot))) = self.idle.peek() {
            if at_ns > now_ns {
                return;
            }
            self.idle.pop();
            let entry = &mut self.entries[slot as usize];
            // An earlier timer has replaced this one: a binary heap cannot remove from its middle.
            if entry.timer_ns != Some(at_ns) {
                continue;
            }
            entry.timer_ns = None;
            let idle = entry
                .flowlet_mut()
                .map(|flowlet| (flowlet.phase, flowlet.gap_ns(self.idle_gap_ns)));
            let Some((FlowletPhase::Idle { since_ns }, gap_ns)) = idle else {
                continue;
            };
            let due_ns = since_ns.saturating_add(gap_ns);
            // The socket resumed and paused again meanwhile. Timers are moved only when they fire,
            // so that a chatty socket does not fill the heap.
            if due_ns > now_ns {
                entry.timer_ns = Some(due_ns);
                self.idle.push(Reverse((due_ns, slot)));
            } else {
                self.end_flowlet(SlotIndex(slot), true);
            }
        }
    }

    /// Ends a slot's flowlet, if it has one; `open` says that its connection still exists.
    fn end_flowlet(&mut self, slot: SlotIndex, open: bool) {
        let Some(connection) = &mut self.entries[slot.0 as usize].connection else {
            return;
        };
        let Some(flowlet) = connection.flowlet.take() else {
            return;
        };
        self.counters.flowlets_ended += 1;
        let idle_ns = match flowlet.phase {
            FlowletPhase::Active => None,
            FlowletPhase::Idle { since_ns } => Some(since_ns),
        };
        connection.last_claim = flowlet.meter.last_claim(idle_ns);
        if flowlet.is_reported() {
            self.actions.push_back(FlowAction::End(flowlet.id));
        }
        self.rated -= u32::from(flowlet.rate.is_some());
        // The back end reports the next backlog as a start only once the flowlet was cleared, with
        // or without a rate.
        if open {
            self.actions.push_back(FlowAction::Clear(connection.conn));
        }
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Sets the gap for flowlets that go idle from now on.
    pub fn set_idle_gap_ns(&mut self, idle_gap_ns: u64) {
        self.idle_gap_ns = idle_gap_ns;
    }

    /// Ends every flowlet, because the daemon stops.
    pub fn end_all(&mut self) {
        for slot in 0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX) {
            // The back end's shut-down gives all connections back at once: single `Clear`s would be
            // wasted.
            self.end_flowlet(SlotIndex(slot), false);
        }
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn counters(&self) -> &FlowCounters {
        &self.counters
    }

    fn flowlet_mut(&mut self, flow: FlowId) -> Option<&mut Flowlet> {
        let entry = self.entries.get_mut(flow.slot() as usize)?;
        entry.flowlet_mut().filter(|flowlet| flowlet.id == flow)
    }

    fn flowlets(&self) -> impl Iterator<Item = &Flowlet> {
        self.entries
            .iter()
            .filter_map(|entry| entry.connection.as_ref()?.flowlet.as_ref())
    }
}

#[cfg(test)]
mod tests;
