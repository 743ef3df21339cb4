//! The messages of a sender to one receiver that may send.

use std::collections::BTreeSet;

/// A message: remaining bytes, flow, slot.
pub(super) type Key = (u64, u32, u32);

/// Messages in the order of their keys. Most receivers have one at most: the first is at hand, and
/// only the others are in a tree, whose nodes would be two more lines of memory for each packet.
#[derive(Debug, Default)]
pub(super) struct Sendable {
    first: Option<Key>,
    others: BTreeSet<Key>,
}

impl Sendable {
    /// Returns the first message.
    #[inline]
    pub(super) fn first(&self) -> Option<Key> {
        self.first
    }

    /// Adds a message.
    #[inline]
    pub(super) fn insert(&mut self, key: Key) {
        match self.first {
            None => self.first = Some(key),
            Some(first) => {
                self.first = Some(first.min(key));
                self.others.insert(first.max(key));
            }
        }
    }

    /// Removes a message, if it is there.
    #[inline]
    pub(super) fn remove(&mut self, key: Key) {
        if self.first == Some(key) {
            self.first = self.others.pop_first();
        } else {
            self.others.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_that_of_an_ordered_set(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..4, 0_u32..4), 1..60),
        ) {
            let (mut sendable, mut oracle) = (Sendable::default(), BTreeSet::new());
            for (inserts, remaining, flow) in steps {
                let key = (remaining, flow, 7);
                // A message is added once.
                if inserts && oracle.insert(key) {
                    sendable.insert(key);
                } else {
                    oracle.remove(&key);
                    sendable.remove(key);
                }
                prop_assert_eq!(sendable.first(), oracle.first().copied());
            }
        }
    }
}
