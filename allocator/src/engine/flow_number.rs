//! Numbers of flows: one for each flow in the whole allocator, and the index of its arrays.

use std::fmt;

/// Number of a flow: an index, and a generation that tells a flow from the ones before it with the
/// same index.
///
/// An update in flight for a flow that has ended therefore matches no flow. Dummy flows of external
/// traffic (flowtune §6) have the index of their link, and a generation of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowNumber {
    index: u32,
    generation: u32,
}

/// Generation of indexes without a flow.
pub(super) const NO_GENERATION: u32 = 0;
const FIRST_GENERATION: u32 = 1;
const OF_DUMMIES: u32 = u32::MAX;

impl FlowNumber {
    /// Number of the first flow with this index.
    #[must_use]
    pub const fn first(index: u32) -> Self {
        Self::new(index, FIRST_GENERATION)
    }

    pub(super) const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Number of a link's dummy flow.
    #[must_use]
    pub const fn of_dummy(link: u32) -> Self {
        Self::new(link, OF_DUMMIES)
    }

    /// Index of the flow in every array of flows.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    pub(super) const fn generation(self) -> u32 {
        self.generation
    }

    /// Link whose dummy flow it is; `None` for a session's flow.
    #[must_use]
    pub const fn dummy_link(self) -> Option<u32> {
        match self.generation {
            OF_DUMMIES => Some(self.index),
            _ => None,
        }
    }
}

impl fmt::Display for FlowNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.index, self.generation)
    }
}

/// Numbers that are handed out, each with its owner. A freed number is the next one handed out, so
/// indexes stay below the most flows that there were at once. Both ways are O(1).
#[derive(Clone, Debug)]
pub struct FlowNumbers<T> {
    /// Indexes before those of sessions' flows.
    reserved: u32,
    /// Generation of indexes that were not in use yet.
    first_generation: u32,
    entries: Vec<Entry<T>>,
    /// Places in `entries` that are free.
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    generation: u32,
    owner: Option<T>,
}

impl<T> FlowNumbers<T> {
    /// Makes the numbers of a network of so many links, whose dummy flows have the first indexes.
    #[must_use]
    pub const fn new(links: u32) -> Self {
        Self {
            reserved: links,
            first_generation: FIRST_GENERATION,
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Takes all numbers back for a network of so many links. None of them is valid any more.
    /// O(numbers).
    pub fn restart(&mut self, links: u32) {
        self.reserved = links;
        let generations = self.entries.iter().map(|entry| entry.generation);
        let newest = generations.max().unwrap_or(self.first_generation);
        self.first_generation = next_generation(newest);
        self.entries.clear();
        self.free.clear();
    }

    /// Hands out a number.
    pub fn take(&mut self, owner: T) -> FlowNumber {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: self.first_generation,
                owner: None,
            });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[place as usize];
        entry.owner = Some(owner);
        FlowNumber::new(self.reserved + place, entry.generation)
    }

    fn entry(&self, number: FlowNumber) -> Option<usize> {
        let place = number.index.checked_sub(self.reserved)? as usize;
        let entry = self.entries.get(place)?;
        (entry.generation == number.generation).then_some(place)
    }

    /// Owner of a number; `None` if it is not in use.
    #[must_use]
    pub fn owner(&self, number: FlowNumber) -> Option<&T> {
        self.entries[self.entry(number)?].owner.as_ref()
    }

    /// Takes a number back. Returns its owner; `None` if it is not in use.
    pub fn give_back(&mut self, number: FlowNumber) -> Option<T> {
        let place = self.entry(number)?;
        let entry = &mut self.entries[place];
        let owner = entry.owner.take()?;
        entry.generation = next_generation(entry.generation);
        self.free.push(place as u32);
        Some(owner)
    }
}

const fn next_generation(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        OF_DUMMIES => FIRST_GENERATION,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take,
        GiveBack(prop::sample::Index),
        Restart(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Take),
            5 => any::<prop::sample::Index>().prop_map(Step::GiveBack),
            1 => (0..4_u32).prop_map(Step::Restart),
        ]
    }

    proptest! {
        #[test]
        fn a_number_is_one_flows_at_most_and_never_names_a_later_one(
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let (mut numbers, mut links) = (FlowNumbers::new(3), 3);
            let (mut held, mut void) = (BTreeMap::new(), Vec::new());
            let (mut next, mut most) = (0, 0);
            for step in steps {
                match step {
                    Step::Take => {
                        let number = numbers.take(next);
                        prop_assert!(!void.contains(&number));
                        prop_assert_eq!(number.dummy_link(), None);
                        let same_index = |other: &FlowNumber| other.index() == number.index();
                        prop_assert!(!held.keys().any(same_index));
                        prop_assert!(number.index() >= links);
                        held.insert(number, next);
                        next += 1;
                        most = most.max(held.len() as u32);
                        prop_assert!(number.index() < links + most);
                    }
                    Step::GiveBack(at) => {
                        let all: Vec<_> = held.iter().map(|(&number, &owner)| (number, owner)).collect();
                        if all.is_empty() {
                            continue;
                        }
                        let (number, owner) = all[at.index(all.len())];
                        prop_assert_eq!(numbers.give_back(number), Some(owner));
                        held.remove(&number);
                        void.push(number);
                    }
                    Step::Restart(other) => {
                        numbers.restart(other);
                        links = other;
                        void.extend(std::mem::take(&mut held).into_keys());
                        most = 0;
                    }
                }
                for (&number, owner) in &held {
                    prop_assert_eq!(numbers.owner(number), Some(owner));
                }
                for &number in &void {
                    prop_assert_eq!(numbers.owner(number), None);
                    prop_assert_eq!(numbers.give_back(number), None);
                }
            }
        }
    }
}
