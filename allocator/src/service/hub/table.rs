//! A session's flows, by the slots that its host gives them.
//!
//! Hosts use their lowest free slot, so a list by slot is dense, and a rate finds its flow in one line of
//! memory. The protocol's own table is made the same way and bounds the slots.

use super::session::Flow;

/// Flows by slot.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    slots: Vec<Option<Flow>>,
    len: usize,
}

impl FlowTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Flow> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Flow> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Puts a flow on a slot, in the place of another if there is one.
    pub(super) fn insert(&mut self, slot: u32, flow: Flow) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, None);
        }
        self.len += usize::from(self.slots[slot].replace(flow).is_none());
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Flow> {
        let flow = self.slots.get_mut(slot as usize)?.take()?;
        self.len -= 1;
        Some(flow)
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Flow> {
        self.slots.iter().flatten()
    }

    /// The first slot from `from` on with a flow.
    pub(super) fn next_slot(&self, from: u32) -> Option<u32> {
        let rest = self.slots.get(from as usize..)?;
        let step = rest.iter().position(Option::is_some)?;
        u32::try_from(step).ok()?.checked_add(from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::service::hub::session::Place;
    use proptest::prelude::*;
    use ratewright_proto::records::{FlowId, FlowPath, StartRecord};

    fn flow(slot: u32, generation: u32) -> Flow {
        Flow {
            record: StartRecord::new(FlowId::new(slot, generation), 7, FlowPath::Hash(1)),
            place: Place::Engine,
            answered: false,
        }
    }

    proptest! {
        #[test]
        fn the_table_holds_what_a_map_holds(
            steps in prop::collection::vec((0..3u8, 0..40u32, 0..100u32), 0..200),
        ) {
            let mut table = FlowTable::default();
            let mut map = BTreeMap::new();
            for (kind, slot, generation) in steps {
                match kind {
                    0 | 1 => {
                        table.insert(slot, flow(slot, generation));
                        map.insert(slot, flow(slot, generation).id());
                    }
                    _ => {
                        let removed = table.remove(slot).map(|flow| flow.id());
                        prop_assert_eq!(removed, map.remove(&slot));
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                prop_assert_eq!(table.get(slot).map(Flow::id), map.get(&slot).copied());
                let mut slots = Vec::new();
                while let Some(slot) = table.next_slot(slots.last().map_or(0, |last| last + 1)) {
                    slots.push(slot);
                }
                prop_assert_eq!(&slots, &map.keys().copied().collect::<Vec<_>>());
                let held: Vec<FlowId> = table.values().map(Flow::id).collect();
                prop_assert_eq!(held, map.values().copied().collect::<Vec<_>>());
            }
            table.clear();
            prop_assert_eq!((table.len(), table.next_slot(0)), (0, None));
        }
    }
}
