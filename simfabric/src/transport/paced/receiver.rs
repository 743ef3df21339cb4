//! The receiving end of one flow.

use std::collections::VecDeque;

/// The receiving end of one flow: the segments that have come.
#[derive(Debug, Default)]
pub struct PacedReceiver {
    /// Next byte expected.
    expected: u64,
    /// First bytes and ends of ranges that came early, in order, apart from each other.
    early: VecDeque<(u64, u64)>,
}

impl PacedReceiver {
    /// Takes the bytes `[seq, end)` and returns the number of bytes that came in order.
    pub fn on_data(&mut self, seq: u64, end: u64) -> u64 {
        let before = self.expected;
        if seq <= self.expected {
            self.expected = self.expected.max(end);
            while let Some(&(first, last)) = self.early.front() {
                if first > self.expected {
                    break;
                }
                self.expected = self.expected.max(last);
                self.early.pop_front();
            }
        } else {
            self.insert(seq, end);
        }
        self.expected - before
    }

    fn insert(&mut self, seq: u64, end: u64) {
        // The ranges are few: one hole per loss that is being repaired.
        let at = self.early.partition_point(|&(_, last)| last < seq);
        let (mut seq, mut end) = (seq, end);
        while let Some(&(first, last)) = self.early.get(at) {
            if first > end {
                break;
            }
            seq = seq.min(first);
            end = end.max(last);
            self.early.remove(at);
        }
        self.early.insert(at, (seq, end));
    }

    /// Returns the next byte expected.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }
}
