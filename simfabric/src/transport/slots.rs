//! State of an endpoint's flows, by slot.

/// State by slot. Slots of flows that ended are used again.
#[derive(Debug)]
pub(super) struct Slots<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub(super) fn insert(&mut self, item: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.items[slot as usize] = Some(item);
            return slot;
        }
        self.items.push(Some(item));
        (self.items.len() - 1) as u32
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.items.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.items.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.take(slot);
    }

    /// Frees a slot, and returns what was in it.
    pub(super) fn take(&mut self, slot: u32) -> Option<T> {
        let item = self.items.get_mut(slot as usize)?.take();
        if item.is_some() {
            self.free.push(slot);
        }
        item
    }

    /// Returns the number of slots, in use and free.
    pub(super) fn places(&self) -> u32 {
        self.items.len() as u32
    }

    /// Returns the number of slots that are in use.
    pub(super) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Iterates over what is in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }
}
