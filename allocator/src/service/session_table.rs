//! Tables by session number, and the numbers themselves.
//!
//! The low bits of a session's number are its position in every table, so a look-up is an index.
//! The high bits tell sessions of one position apart.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

/// Bits of a number that are its position.
const POSITION_BITS: u32 = 20;
/// Free positions that are kept back, so that a number comes again only after many sessions.
const MIN_FREE: usize = 1_024;

const fn position_of(session: u32) -> usize {
    (session & ((1 << POSITION_BITS) - 1)) as usize
}

/// Numbers of sessions that are handed out.
#[derive(Debug, Default)]
pub(super) struct SessionNumbers {
    /// Next numbers of positions that were in use, in the order in which they became free.
    free: VecDeque<u32>,
    /// Positions that were ever in use, without the first: zero is an absent field on the wire.
    positions: u32,
}

impl SessionNumbers {
    /// Hands out a number; `None` if a million sessions are open.
    pub(super) fn take(&mut self) -> Option<u32> {
        let has_fresh = self.positions + 1 < 1 << POSITION_BITS;
        if self.free.len() < MIN_FREE && has_fresh {
            self.positions += 1;
            return Some(self.positions);
        }
        self.free.pop_front()
    }

    /// Takes a number back.
    pub(super) fn give_back(&mut self, session: u32) {
        self.free
            .push_back(session.wrapping_add(1 << POSITION_BITS));
    }
}

/// Values by session number.
#[derive(Debug)]
pub(super) struct SessionTable<T> {
    slots: Vec<Option<(u32, T)>>,
    len: usize,
}

impl<T> Default for SessionTable<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            len: 0,
        }
    }
}

impl<T> SessionTable<T> {
    /// Returns the position of a session; `None` if the table does not have it.
    pub(super) fn position(&self, session: u32) -> Option<usize> {
        let position = position_of(session);
        let (number, _) = self.slots.get(position)?.as_ref()?;
        (*number == session).then_some(position)
    }

    /// Returns a session's value.
    pub(super) fn get(&self, session: u32) -> Option<&T> {
        let (number, value) = self.slots.get(position_of(session))?.as_ref()?;
        (*number == session).then_some(value)
    }

    /// Returns a session's value.
    pub(super) fn get_mut(&mut self, session: u32) -> Option<&mut T> {
        let (number, value) = self.slots.get_mut(position_of(session))?.as_mut()?;
        (*number == session).then_some(value)
    }

    /// Adds a session. A former one at its position leaves.
    pub(super) fn insert(&mut self, session: u32, value: T) {
        let position = position_of(session);
        if position >= self.slots.len() {
            self.slots.resize_with(position + 1, || None);
        }
        let before = self.slots[position].replace((session, value));
        self.len += usize::from(before.is_none());
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, session: u32) -> Option<T> {
        let position = self.position(session)?;
        self.len -= 1;
        self.slots[position].take().map(|(_, value)| value)
    }

    /// Number of sessions.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns one more than the highest position ever used.
    pub(super) fn positions(&self) -> usize {
        self.slots.len()
    }

    /// Returns the session at a position.
    pub(super) fn at(&self, position: usize) -> Option<&T> {
        self.slots.get(position)?.as_ref().map(|(_, value)| value)
    }

    /// Returns all numbers, by position.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().flatten().map(|&(number, _)| number)
    }

    /// Returns all sessions, by position.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let slots = self.slots.iter_mut().flatten();
        slots.map(|(number, value)| (*number, value))
    }

    /// Returns all values, by position.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|(_, value)| value)
    }

    /// Returns all values, by position.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }
}

/// A session that is known to be there, by its position.
impl<T> Index<usize> for SessionTable<T> {
    type Output = T;

    fn index(&self, position: usize) -> &T {
        self.at(position).expect("a position in use")
    }
}

impl<T> IndexMut<usize> for SessionTable<T> {
    fn index_mut(&mut self, position: usize) -> &mut T {
        let (_, value) = self.slots[position].as_mut().expect("a position in use");
        value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_holds_what_a_map_holds(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..300),
        ) {
            let (mut numbers, mut table) = (SessionNumbers::default(), SessionTable::default());
            let (mut map, mut gone) = (BTreeMap::new(), Vec::new());
            for (value, (adds, at)) in steps.into_iter().enumerate() {
                if adds || map.is_empty() {
                    let number = numbers.take().expect("there are enough");
                    prop_assert!(number != 0 && !map.contains_key(&number));
                    table.insert(number, value);
                    map.insert(number, value);
                } else {
                    let number = *map.keys().nth(at.index(map.len())).expect("in range");
                    prop_assert_eq!(table.remove(number), map.remove(&number));
                    numbers.give_back(number);
                    gone.push(number);
                }
                prop_assert_eq!(table.len(), map.len());
                for (&number, value) in &map {
                    prop_assert_eq!(table.get(number), Some(value));
                    let position = table.position(number).expect("it is there");
                    prop_assert_eq!((&table[position], table.at(position)), (value, Some(value)));
                }
                for &number in gone.iter().filter(|number| !map.contains_key(number)) {
                    prop_assert_eq!(table.get(number), None);
                    prop_assert_eq!(table.remove(number), None);
                }
                let mut all: Vec<u32> = table.numbers().collect();
                all.sort_unstable();
                prop_assert!(all.iter().eq(map.keys()));
                prop_assert_eq!(table.values().count(), map.len());
            }
        }
    }

    #[test]
    fn a_number_comes_again_after_four_million_sessions() {
        let mut numbers = SessionNumbers::default();
        let first = numbers.take().expect("there are enough");
        let mut sessions = 0_u64;
        let mut number = first;
        loop {
            numbers.give_back(number);
            number = numbers.take().expect("there are enough");
            sessions += 1;
            if number == first {
                break;
            }
        }
        assert!(sessions > 4_000_000, "{sessions}");
    }
}
