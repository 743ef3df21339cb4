//! A wheel of buckets: what happens within the same 2^shift picoseconds is in one bucket, unsorted.

use super::heap::Entry;

/// Buckets of the wheel: a word of 64 bits says which of 64 words of 64 bits are not 0, which say
/// which buckets are not empty.
pub(super) const BUCKETS: u64 = 64 * 64;

/// No buffer.
const NONE: u32 = u32::MAX;

/// Entries by bucket. Buffers of emptied buckets are used again, last emptied first, so that the
/// wheel takes up cache for what is in it and not for where it has been.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The buffer of each bucket.
    slots: Box<[u32]>,
    /// A bit for each bucket that has one.
    occupied: Box<[u64; 64]>,
    /// A bit for each word of `occupied` that is not 0.
    words: u64,
    buffers: Vec<Vec<Entry>>,
    spare: Vec<u32>,
    len: usize,
}

impl Default for Wheel {
    fn default() -> Self {
        Self {
            slots: vec![NONE; BUCKETS as usize].into(),
            occupied: Box::new([0; 64]),
            words: 0,
            buffers: Vec::new(),
            spare: Vec::new(),
            len: 0,
        }
    }
}

impl Wheel {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts an entry into a bucket, which is named by its number since time 0.
    #[inline]
    pub(super) fn push(&mut self, bucket: u64, entry: Entry) {
        let slot = (bucket % BUCKETS) as usize;
        let mut buffer = self.slots[slot];
        if buffer == NONE {
            buffer = self.spare.pop().unwrap_or_else(|| {
                self.buffers.push(Vec::new());
                self.buffers.len() as u32 - 1
            });
            self.slots[slot] = buffer;
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.words |= 1 << (slot / 64);
        }
        self.buffers[buffer as usize].push(entry);
        self.len += 1;
    }

    /// The first bucket from this one on, all the way round, that holds anything.
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
        // The words after this one, round to this one itself, whose bits before the start come last.
        let words = self.words.rotate_right(word as u32);
        let ahead = match words & !1 {
            0 => 64,
            others => others.trailing_zeros() as usize,
        };
        let first = self.occupied[(word + ahead) % 64].trailing_zeros() as usize;
        Some(from + (ahead * 64 + first - bit) as u64)
    }

    /// Moves a bucket's entries to the end of a list.
    pub(super) fn take(&mut self, bucket: u64, into: &mut Vec<Entry>) {
        let slot = (bucket % BUCKETS) as usize;
        let buffer = std::mem::replace(&mut self.slots[slot], NONE);
        let word = &mut self.occupied[slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.words &= !(1 << (slot / 64));
        }
        let Some(entries) = self.buffers.get_mut(buffer as usize) else {
            return;
        };
        self.len -= entries.len();
        into.append(entries);
        self.spare.push(buffer);
    }
}
