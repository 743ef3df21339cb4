//! A session's flows by slot.
//!
//! Hosts use their lowest free slot, so a list by slot is dense, and a rate finds its flow in one
//! cache line. The protocol's own table has the same form and bounds the slots.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use ratewright_proto::records::{FlowId, StartRecord};

use crate::engine::{FlowNumber, LinkPath};
use crate::shared_links::FlowKind;

/// Flow that its host has started.
#[derive(Debug, Clone, Copy)]
pub(super) struct HubFlow {
    pub(super) record: StartRecord,
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

    pub(super) fn id(&self) -> FlowId {
        self.record.flow()
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

/// Flows of one session by slot.
#[derive(Debug, Default)]
pub(super) struct SessionFlows {
    slots: Vec<Option<HubFlow>>,
    /// Links of allocated flows. Apart from the flows, so that a rate does not touch them.
    paths: Vec<LinkPath>,
    /// Slots that wait for credit, each at most once, oldest first.
    deferred: VecDeque<u32>,
    /// Marks the slots in `deferred`, by slot.
    is_deferred: Vec<bool>,
    len: usize,
}

impl SessionFlows {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, slot: u32) -> Option<&HubFlow> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut HubFlow> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Returns the links of the flow on a slot; none if it is not allocated.
    pub(super) fn path(&self, slot: u32) -> &[u32] {
        self.paths.get(slot as usize).map_or(&[], |path| path)
    }

    /// Replaces the links of the flow on a slot.
    pub(super) fn set_path(&mut self, slot: u32, path: LinkPath) {
        if let Some(links) = self.paths.get_mut(slot as usize) {
            *links = path;
        }
    }

    /// Puts a flow on a slot and replaces the former one.
    pub(super) fn insert(&mut self, slot: u32, flow: HubFlow, path: LinkPath) {
        // The three lists grow together, so a slot of one is a slot of all. The protocol bounds
        // slots by the session's max_flows, and with them this growth.
        let slot = slot as usize;
        if slot >= self.slots.len() {
            if self.slots.is_empty() {
                self.slots.reserve_exact(FIRST_SLOTS);
                self.paths.reserve_exact(FIRST_SLOTS);
                self.is_deferred.reserve_exact(FIRST_SLOTS);
            }
            self.slots.resize(slot + 1, None);
            self.paths.resize(slot + 1, LinkPath::new());
            self.is_deferred.resize(slot + 1, false);
        }
        self.len += usize::from(self.slots[slot].replace(flow).is_none());
        self.paths[slot] = path;
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<HubFlow> {
        // The path and an entry in `deferred` stay: the next flow on the slot overwrites the path,
        // and `serve_deferred` checks what is on the slot by then.
        let flow = self.slots.get_mut(slot as usize)?.take()?;
        self.len -= 1;
        Some(flow)
    }

    /// Removes all flows and frees the memory.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns one more than the highest slot ever used: all flows have lower slots.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
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
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;
    use ratewright_proto::records::{FlowId, FlowPath, StartRecord};

    fn flow(slot: u32, generation: u32) -> HubFlow {
        HubFlow {
            record: StartRecord::new(FlowId::new(slot, generation), 7, FlowPath::Hash(1)),
            placement: Placement::Allocated(FlowNumber::first(slot)),
            has_rate: false,
            started_us: None,
            engine_number: 0,
            counted: None,
        }
    }

    proptest! {
        #[test]
        fn the_table_holds_what_a_map_holds(
            steps in prop::collection::vec((0..3u8, 0..40u32, 0..100u32), 0..200),
        ) {
            let mut table = SessionFlows::default();
            let mut map = BTreeMap::new();
            for (kind, slot, generation) in steps {
                match kind {
                    0 | 1 => {
                        let path = LinkPath::from_iter([slot, generation]);
                        table.insert(slot, flow(slot, generation), path);
                        map.insert(slot, flow(slot, generation).id());
                    }
                    _ => {
                        let removed = table.remove(slot).map(|flow| flow.id());
                        prop_assert_eq!(removed, map.remove(&slot));
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                prop_assert_eq!(table.get(slot).map(HubFlow::id), map.get(&slot).copied());
                let held: Vec<(u32, FlowId)> = (0..table.slots())
                    .filter_map(|slot| Some((slot, table.get(slot)?.id())))
                    .collect();
                prop_assert_eq!(held, map.clone().into_iter().collect::<Vec<_>>());
                if let Some(flow) = table.get(slot) {
                    let generation = flow.id().generation();
                    prop_assert_eq!(table.path(slot), [slot, generation]);
                }
            }
            table.clear();
            prop_assert_eq!((table.len(), table.slots()), (0, 0));
        }
    }
    #[test]
    fn a_slot_waits_once_however_often_its_flows_change() {
        let mut table = SessionFlows::default();
        table.defer(5);
        assert_eq!(table.deferred(), 0, "no flow was ever there");
        for generation in 0..100 {
            for slot in 0..3 {
                table.insert(slot, flow(slot, generation), LinkPath::new());
                table.defer(slot);
                table.remove(slot);
            }
        }
        assert_eq!(table.deferred(), 3);
        let order: Vec<u32> = std::iter::from_fn(|| table.pop_deferred()).collect();
        assert_eq!(order, [0, 1, 2], "in the order in which they began to wait");
        table.defer(1);
        assert_eq!(table.pop_deferred(), Some(1));
    }
}
