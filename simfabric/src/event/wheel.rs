//! A timing wheel: entries of the same 2^shift picoseconds share a bucket, unsorted.

use super::heap::PackedEvent;

/// Buckets of the wheel. A word of 64 bits marks the non-zero words among 64 words, which mark the
/// occupied buckets.
pub(super) const BUCKETS: u64 = 64 * 64;

/// Index that stands for no buffer.
const NONE: u32 = u32::MAX;

/// Entries of a buffer. Seven entries, length and link fill two cache lines.
const BUFFER_ENTRIES: usize = 7;

/// A part of a bucket's entries. Unused places hold the greatest value, so that a sorting network
/// of fixed size puts them last.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Buffer {
    entries: [PackedEvent; BUFFER_ENTRIES],
    len: u32,
    /// The next buffer of the same bucket.
    next: u32,
}

impl Buffer {
    const EMPTY: Self = Self {
        entries: [PackedEvent::MAX; BUFFER_ENTRIES],
        len: 0,
        next: NONE,
    };
}

/// Applies a sorting network. Each exchange is branchless, because its outcome is random and a
/// processor would often predict it wrongly.
#[inline(always)]
fn sort_network<const N: usize>(entries: &mut [PackedEvent; N], pairs: &[(usize, usize)]) {
    for &(i, j) in pairs {
        let (a, b) = (entries[i], entries[j]);
        let swap = b < a;
        entries[i] = if swap { b } else { a };
        entries[j] = if swap { a } else { b };
    }
}

/// Entries by bucket. Emptied buffers are used again, last freed first, so that the wheel occupies
/// cache for its entries and not for its history.
#[derive(Debug)]
pub(super) struct Wheel {
    /// First buffer of each bucket.
    heads: Box<[u32; BUCKETS as usize]>,
    /// One bit per bucket: 1 if it holds entries.
    occupied: Box<[u64; 64]>,
    /// One bit per word of `occupied`: 1 if the word is not 0.
    words: u64,
    buffers: Vec<Buffer>,
    /// Head of the list of free buffers.
    free_head: u32,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            heads: Box::new([NONE; BUCKETS as usize]),
            occupied: Box::new([0; 64]),
            words: 0,
            buffers: Vec::new(),
            free_head: NONE,
        }
    }
}

impl Wheel {
    pub(super) fn len(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len as usize).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Puts an entry into a bucket, given by its number since time 0.
    #[inline(always)]
    pub(super) fn push(&mut self, bucket: u64, entry: PackedEvent) {
        let slot = (bucket % BUCKETS) as usize;
        // `NONE` is out of range, so an empty bucket takes the slow path without a test of its own.
        if let Some(buffer) = self.buffers.get_mut(self.heads[slot] as usize)
            && let Some(place) = buffer.entries.get_mut(buffer.len as usize)
        {
            *place = entry;
            buffer.len += 1;
        } else {
            self.add_buffer(slot, entry);
        }
    }

    /// Chains a further buffer with one entry to a bucket.
    #[inline(never)]
    fn add_buffer(&mut self, slot: usize, entry: PackedEvent) {
        let (first, next) = (self.free_head, self.heads[slot]);
        let buffer = match self.buffers.get_mut(first as usize) {
            Some(buffer) => {
                self.free_head = buffer.next;
                self.heads[slot] = first;
                buffer
            }
            None => {
                self.heads[slot] = self.buffers.len() as u32;
                self.buffers.push_mut(Buffer::EMPTY)
            }
        };
        buffer.entries[0] = entry;
        buffer.len = 1;
        buffer.next = next;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
    }

    /// Returns the first occupied bucket from `from` on, all the way round.
    #[inline]
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        let start = (from % BUCKETS) as usize;
        let (word, bit) = (start / 64, start % 64);
        let rest = self.occupied[word] >> bit;
        if rest != 0 {
            return Some(from + u64::from(rest.trailing_zeros()));
        }
        if self.words == 0 {
            return None;
        }
        // The words after this one, round to this one itself, whose bits before the start come
        // last.
        let words = self.words.rotate_right(word as u32);
        let ahead = match words & !1 {
            0 => 64,
            others => others.trailing_zeros() as usize,
        };
        let first = self.occupied[(word + ahead) % 64].trailing_zeros() as usize;
        Some(from + (ahead * 64 + first - bit) as u64)
    }

    /// Detaches a bucket's buffers and returns the first.
    #[inline]
    fn detach(&mut self, bucket: u64) -> u32 {
        let slot = (bucket % BUCKETS) as usize;
        let word = &mut self.occupied[slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.words &= !(1 << (slot / 64));
        }
        std::mem::replace(&mut self.heads[slot], NONE)
    }

    /// Appends a bucket's entries to a list, in any order.
    pub(super) fn drain(&mut self, bucket: u64, into: &mut Vec<PackedEvent>) {
        let first = self.detach(bucket);
        self.drain_from(first, into);
    }

    fn drain_from(&mut self, mut first: u32, into: &mut Vec<PackedEvent>) {
        while let Some(buffer) = self.buffers.get(first as usize) {
            into.extend_from_slice(&buffer.entries[..buffer.len as usize]);
            let next = buffer.next;
            self.free(first);
            first = next;
        }
    }

    /// Appends a bucket's entries to a list, sorted.
    pub(super) fn drain_sorted(&mut self, bucket: u64, into: &mut Vec<PackedEvent>) {
        let first = self.detach(bucket);
        let sorted = into.len();
        if let Some(Buffer {
            entries,
            len,
            next: NONE,
        }) = self.buffers.get(first as usize)
        {
            // Networks of comparisons; D. E. Knuth, The Art of Computer Programming, vol. 3,
            // §5.3.4.
            if *len <= 4 {
                let mut few = [entries[0], entries[1], entries[2], entries[3]];
                sort_network(&mut few, &[(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)]);
                into.extend_from_slice(&few);
            } else {
                let mut more = *entries;
                sort_network(&mut more, &[(0, 6), (2, 3), (4, 5), (0, 2), (1, 4), (3, 6)]);
                sort_network(&mut more, &[(0, 1), (2, 5), (3, 4), (1, 2), (4, 6), (2, 3)]);
                sort_network(&mut more, &[(4, 5), (1, 2), (3, 4), (5, 6)]);
                into.extend_from_slice(&more);
            }
            // Unused places sorted last; they are cut off.
            into.truncate(sorted + *len as usize);
            self.free(first);
            return;
        }
        self.drain_from(first, into);
        into[sorted..].sort_unstable();
    }

    /// Returns a buffer to the free list.
    #[inline]
    fn free(&mut self, index: u32) {
        // Unused places must hold the greatest value for the sorting networks.
        self.buffers[index as usize] = Buffer {
            next: self.free_head,
            ..Buffer::EMPTY
        };
        self.free_head = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Holds for any number of entries in a bucket.
        #[test]
        fn a_buckets_entries_come_in_order(entries in prop::collection::vec(0_u128..40, 1..30)) {
            let mut wheel = Wheel::default();
            for _ in 0..2 {
                entries.iter().for_each(|entry| wheel.push(5, *entry));
                prop_assert_eq!(wheel.len(), entries.len());
                let mut taken = vec![0];
                wheel.drain_sorted(5, &mut taken);
                let mut sorted = entries.clone();
                sorted.sort_unstable();
                prop_assert_eq!(&taken[1..], &sorted);
                prop_assert_eq!((wheel.is_empty(), wheel.len()), (true, 0));
            }
        }
    }

    /// Networks are right if they are for all inputs of two values (Knuth, §5.3.4, the 0-1
    /// principle).
    #[test]
    fn up_to_seven_entries_are_put_in_order() {
        for bits in 2_u32..1 << (BUFFER_ENTRIES + 1) {
            let len = bits.ilog2() as usize;
            let mut wheel = Wheel::default();
            let ones = (0..len).filter(|i| bits >> i & 1 == 1).count();
            (0..len).for_each(|i| wheel.push(5, (bits >> i & 1).into()));
            let mut taken = Vec::new();
            wheel.drain_sorted(5, &mut taken);
            let expected: Vec<PackedEvent> =
                (0..len).map(|i| u128::from(i >= len - ones)).collect();
            assert_eq!(taken, expected);
        }
    }
}
