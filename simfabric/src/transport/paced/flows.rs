//! Map from active flows to their state.

use crate::flow::FlowId;

/// Mark of a flow without state.
const NONE: u32 = u32::MAX;

/// Map from active flows to their state. A finished flow costs four bytes, and its slot is used
/// again.
#[derive(Debug)]
pub struct FlowMap<T> {
    place: Vec<u32>,
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for FlowMap<T> {
    fn default() -> Self {
        Self {
            place: Vec::new(),
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> FlowMap<T> {
    /// Sets a flow's state and drops the one that it has.
    pub fn insert(&mut self, flow: FlowId, item: T) {
        self.remove(flow);
        let place = if let Some(place) = self.free.pop() {
            self.items[place as usize] = Some(item);
            place
        } else {
            self.items.push(Some(item));
            (self.items.len() - 1) as u32
        };
        if self.place.len() <= flow.index() {
            // Four bytes per flow that ever began; numbers ascend, so this appends.
            self.place.resize(flow.index() + 1, NONE);
        }
        self.place[flow.index()] = place;
    }

    /// Returns a flow's state for changes.
    #[inline]
    pub fn get_mut(&mut self, flow: FlowId) -> Option<&mut T> {
        let place = *self.place.get(flow.index())?;
        self.items.get_mut(place as usize)?.as_mut()
    }

    /// Returns a flow's state.
    #[must_use]
    pub fn get(&self, flow: FlowId) -> Option<&T> {
        let place = *self.place.get(flow.index())?;
        self.items.get(place as usize)?.as_ref()
    }

    /// Removes a flow's state and returns it.
    pub fn remove(&mut self, flow: FlowId) -> Option<T> {
        let place = std::mem::replace(self.place.get_mut(flow.index())?, NONE);
        let item = self.items.get_mut(place as usize)?.take();
        if item.is_some() {
            self.free.push(place);
        }
        item
    }

    /// Returns the number of flows with state.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Returns true if no flow has state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
