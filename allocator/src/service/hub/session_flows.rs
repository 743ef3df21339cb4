//! The hub's state of a session's flows.
//!
//! The session's table has it beside the protocol's own, so that a rate finds its flow in one or
//! two cache lines ([`ServerSession::set_state`]). Hosts use their lowest free slot, so lists by
//! slot are dense; the protocol bounds the slots.
//!
//! [`ServerSession::set_state`]: ratewright_proto::server::ServerSession::set_state

use std::collections::VecDeque;
use std::num::NonZeroU32;

use ratewright_proto::records::FlowId;

use crate::engine::{FlowNumber, LinkPath};
use crate::shared_links::FlowKind;

/// State of a flow that its host has started, beside its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct HubFlow {
    pub(super) placement: Placement,
    /// It has had a rate since it started, or since its demand last grew.
    pub(super) has_rate: bool,
    /// Time at which it started, in microseconds that wrap; `None` once it has had its first rate.
    pub(super) started_us: Option<NonZeroU32>,
    /// Number of the engine that has the flow, if it is allocated. With an older one, its own
    /// number is void.
    pub(super) engine_number: u8,
    /// Kind as which the links of its path count it; void with an older engine number.
    pub(super) counted: Option<FlowKind>,
}

/// Bound on the memory of one flow beside the protocol's.
const _: () = assert!(size_of::<HubFlow>() <= 24);

impl HubFlow {
    /// True if it has a rate, or waits for one.
    pub(super) fn is_allocated(&self) -> bool {
        matches!(self.placement, Placement::Allocated(_))
    }

    /// Returns its number if this engine has it, or will once it has taken its events.
    pub(super) fn number_in(&self, engine_number: u8) -> Option<FlowNumber> {
        // Eight bits suffice: the numbers repeat after 256 reloads, and each reload sweeps all
        // flows.
        match self.placement {
            Placement::Allocated(number) if self.engine_number == engine_number => Some(number),
            _ => None,
        }
    }

    /// Returns the kind as which its links count it for this engine.
    pub(super) fn counted_by(&self, engine_number: u8) -> Option<FlowKind> {
        self.counted
            .filter(|_| self.number_in(engine_number).is_some())
    }
}

/// Placement of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The engine allocates a rate to this number.
    Allocated(FlowNumber),
    /// Unmanaged: plain TCP, without a rate.
    Unmanaged(UnmanagedReason),
}

/// Reason for which a flow is unmanaged. The hub counts it and reports to the host that there is no
/// rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmanagedReason {
    /// Its destination is no host of the topology.
    UnknownHost,
    /// Source and destination are the same host, so the flow crosses no link.
    SameHost,
    /// No path is usable, or the reported one is not.
    Unroutable,
    /// Its class is not configured.
    UnknownClass,
    /// The engine holds the most flows that the limits allow.
    TableFull,
    /// All hosts together started more flowlets in a second than the limit.
    StartRate,
}

impl UnmanagedReason {
    /// Label in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownHost => "unknown_host",
            Self::SameHost => "same_host",
            Self::Unroutable => "unroutable",
            Self::UnknownClass => "unknown_class",
            Self::TableFull => "table_full",
            Self::StartRate => "start_rate",
        }
    }
}

/// Flow of a session, to which a number belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowOwner {
    pub(super) session: u32,
    pub(super) flow: FlowId,
}

/// Slots for which the lists have room once there is a flow, as the protocol's table has.
const FIRST_SLOTS: usize = 32;

/// Paths of one session's flows, and those that wait for credit, by slot.
#[derive(Debug, Default)]
pub(super) struct SessionFlows {
    /// Links of allocated flows. Apart from the flows, so that a rate does not touch them.
    paths: Vec<LinkPath>,
    /// Slots that wait for credit, each at most once, oldest first.
    deferred: VecDeque<u32>,
    /// Marks the slots in `deferred`, by slot.
    is_deferred: Vec<bool>,
}

impl SessionFlows {
    /// Returns the links of the flow on a slot; none if it is not allocated.
    pub(super) fn path(&self, slot: u32) -> &[u32] {
        self.paths.get(slot as usize).map_or(&[], |path| path)
    }

    /// Replaces the links of the flow on a slot.
    pub(super) fn set_path(&mut self, slot: u32, path: LinkPath) {
        // Both lists grow together, so a slot of one is a slot of the other.
        let slot = slot as usize;
        if slot >= self.paths.len() {
            if self.paths.is_empty() {
                self.paths.reserve_exact(FIRST_SLOTS);
                self.is_deferred.reserve_exact(FIRST_SLOTS);
            }
            self.paths.resize(slot + 1, LinkPath::new());
            self.is_deferred.resize(slot + 1, false);
        }
        self.paths[slot] = path;
    }

    /// Frees the memory of all flows.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Puts a slot into the queue of those that wait for credit.
    pub(super) fn defer(&mut self, slot: u32) {
        // A flood of changes on one slot keeps one entry, so the queue is never longer than the
        // table.
        if let Some(known) = self.is_deferred.get_mut(slot as usize)
            && !std::mem::replace(known, true)
        {
            self.deferred.push_back(slot);
        }
    }

    /// Takes the slot that has waited longest out of the queue.
    pub(super) fn pop_deferred(&mut self) -> Option<u32> {
        let slot = self.deferred.pop_front()?;
        self.is_deferred[slot as usize] = false;
        Some(slot)
    }

    /// Number of slots that wait for credit.
    pub(super) fn deferred(&self) -> usize {
        self.deferred.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_once_however_often_its_flows_change() {
        let mut table = SessionFlows::default();
        table.defer(5);
        assert_eq!(table.deferred(), 0, "no flow was ever there");
        for _ in 0..100 {
            for slot in 0..3 {
                table.set_path(slot, LinkPath::new());
                table.defer(slot);
            }
        }
        assert_eq!(table.deferred(), 3);
        let order: Vec<u32> = std::iter::from_fn(|| table.pop_deferred()).collect();
        assert_eq!(order, [0, 1, 2], "in the order in which they began to wait");
        table.defer(1);
        assert_eq!(table.pop_deferred(), Some(1));
    }

    #[test]
    fn a_slot_has_the_path_that_was_set_last() {
        let mut table = SessionFlows::default();
        assert_eq!(table.path(3), [0; 0]);
        table.set_path(3, LinkPath::from_iter([1, 2]));
        assert_eq!((table.path(2), table.path(3)), (&[][..], &[1, 2][..]));
        table.set_path(3, LinkPath::from_iter([4]));
        assert_eq!(table.path(3), [4]);
        table.clear();
        assert_eq!(table.path(3), [0; 0]);
    }
}
