//! State of the flows that are active, by flow.

use crate::flow::FlowId;

/// No state.
const NONE: u32 = u32::MAX;

/// State of the flows that are active. A flow that is over costs four bytes, and its place is used
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
    /// Gives a flow its state, instead of one that it may have.
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
            self.place.resize(flow.index() + 1, NONE);
        }
        self.place[flow.index()] = place;
    }

    /// A flow's state.
    #[inline]
    pub fn get_mut(&mut self, flow: FlowId) -> Option<&mut T> {
        let place = *self.place.get(flow.index())?;
        self.items.get_mut(place as usize)?.as_mut()
    }

    /// A flow's state.
    #[must_use]
    pub fn get(&self, flow: FlowId) -> Option<&T> {
        let place = *self.place.get(flow.index())?;
        self.items.get(place as usize)?.as_ref()
    }

    /// Takes a flow's state away.
    pub fn remove(&mut self, flow: FlowId) -> Option<T> {
        let place = std::mem::replace(self.place.get_mut(flow.index())?, NONE);
        let item = self.items.get_mut(place as usize)?.take();
        if item.is_some() {
            self.free.push(place);
        }
        item
    }

    /// Flows with state.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Whether no flow has state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
