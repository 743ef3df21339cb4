//! Replay window over the newest sequence numbers.
//!
//! A ring of bits as in RFC 6479: moving on clears whole words, so no bits are shifted.

/// Number of sequence numbers behind the newest that are distinguished from replays. A datagram
/// that arrives after more than this many later ones is dropped, and the protocol repeats its
/// state.
pub const REPLAY_WINDOW: u64 = 2_048;

const WORD_BITS: u64 = 64;
/// One word more than the window needs: the newest word is only partly in use.
const WORDS: u64 = (REPLAY_WINDOW / WORD_BITS + 1).next_power_of_two();

/// Record of the newest numbers that were opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayWindow {
    /// One above the newest number inserted.
    next: u64,
    bits: [u64; WORDS as usize],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self {
            next: 0,
            bits: [0; WORDS as usize],
        }
    }
}

fn place(seq: u64) -> (usize, u64) {
    ((seq / WORD_BITS % WORDS) as usize, 1 << (seq % WORD_BITS))
}

impl ReplayWindow {
    /// Returns true if a number is neither inserted nor older than the window.
    pub fn is_new(&self, seq: u64) -> bool {
        if seq >= self.next {
            return true;
        }
        let (word, bit) = place(seq);
        // Outside of the window, the ring's bits may belong to newer numbers.
        seq + REPLAY_WINDOW >= self.next && self.bits[word] & bit == 0
    }

    /// Returns true if a number is above all that were inserted.
    pub fn is_newest(&self, seq: u64) -> bool {
        seq >= self.next
    }

    /// Inserts a number for which [`is_new`](Self::is_new) holds.
    pub fn insert(&mut self, seq: u64) {
        if seq >= self.next {
            // The words between the newest so far and the new one begin empty.
            let from = self.next.div_ceil(WORD_BITS);
            let to = seq / WORD_BITS;
            // A jump beyond the ring clears each word once.
            for word in from.max((to + 1).saturating_sub(WORDS))..=to {
                self.bits[(word % WORDS) as usize] = 0;
            }
            self.next = seq + 1;
        }
        let (word, bit) = place(seq);
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_lies_a_window_back_is_still_told_apart() {
        let mut window = ReplayWindow::default();
        window.insert(0);
        window.insert(REPLAY_WINDOW);
        assert!(!window.is_new(0));
        assert!(window.is_new(1));
        window.insert(REPLAY_WINDOW + 1);
        assert!(!window.is_new(1), "never seen, but too old to tell");
        assert!(window.is_new(2));
    }

    proptest! {
        /// Against a set of everything that was inserted.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0u64..5_000, any::<bool>()), 1..400)) {
            let mut window = ReplayWindow::default();
            let mut seen = BTreeSet::new();
            let mut newest: u64 = 0;
            for (step, forward) in steps {
                let seq = if forward { newest + step } else { newest.saturating_sub(step) };
                let expected = !seen.contains(&seq) && (seen.is_empty() || seq + REPLAY_WINDOW > newest);
                prop_assert_eq!(window.is_new(seq), expected, "{} with newest {}", seq, newest);
                if expected {
                    window.insert(seq);
                    seen.insert(seq);
                    newest = newest.max(seq);
                }
            }
        }
    }
}
