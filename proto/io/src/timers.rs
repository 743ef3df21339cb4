//! Timer wheel for thousands of sessions, in constant time per timer.
//!
//! A busy session moves its next deadline often. In a heap, that reads uncached memory, and
//! obsolete entries stay until they expire. Here, time is cut into ticks of [`TICK_NS`]. Two wheels
//! of [`SLOTS`] slots hold the entries of the next ticks, and of the first wheel's turns after
//! those. Entries expire at the end of their tick and never before their time, so the wheel is late
//! by at most one tick.
//!
//! Entries are not removed. The owner of a timer remembers its deadline, inserts it again if that
//! has become earlier ([`Timers::insert`]), and ignores entries that expire at another time.

use std::mem;

/// Maximum lateness of an entry: 2^17 ns, about an eighth of a millisecond.
pub const TICK_NS: u64 = 1 << TICK_BITS;

/// Number of slots of a wheel. The first wheel covers 33 ms, the second 8.6 s. Later entries wait
/// in the last slot of the second wheel and are inserted again from there.
pub const SLOTS: u64 = 1 << SLOT_BITS;

const TICK_BITS: u32 = 17;
const SLOT_BITS: u32 = 8;
const WORDS: usize = (SLOTS / 64) as usize;

/// Longest time for which timers wait until earlier datagrams are read.
const LATEST_NS: u64 = 100_000_000;

/// Time as of which timers are served if everything that arrived until `read_ns` was read. An
/// answer that waits in the socket counts as arrived, so no timer expires before earlier datagrams
/// are read. Timers for the peers' sake do not wait for ever.
#[must_use]
pub fn served_until(read_ns: u64, now_ns: u64) -> u64 {
    read_ns.max(now_ns.saturating_sub(LATEST_NS))
}

type TimerEntry<K> = (u64, K);

/// Slots of one turn, and a bitmap of the non-empty ones.
#[derive(Debug)]
struct Wheel<K> {
    slots: Vec<Vec<TimerEntry<K>>>,
    used: [u64; WORDS],
}

impl<K> Wheel<K> {
    fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            used: [0; WORDS],
        }
    }

    /// Adds an entry to the slot of a time, in this wheel's unit.
    fn put(&mut self, time: u64, entry: TimerEntry<K>) {
        let slot = (time % SLOTS) as usize;
        // The bitmap lets `next` skip empty slots 64 at a time.
        self.used[slot / 64] |= 1 << (slot % 64);
        self.slots[slot].push(entry);
    }

    /// Swaps the entries of a time's slot with an empty list.
    fn swap(&mut self, time: u64, entries: &mut Vec<TimerEntry<K>>) {
        let slot = (time % SLOTS) as usize;
        self.used[slot / 64] &= !(1 << (slot % 64));
        mem::swap(&mut self.slots[slot], entries);
    }

    /// First time from `from` on, within one turn, whose slot is not empty.
    fn next(&self, from: u64) -> Option<u64> {
        let start = (from % SLOTS) as usize;
        // The word of `from` is checked twice: its upper bits first, its lower ones after a whole
        // turn.
        (0..=WORDS).find_map(|step| {
            let word = (start / 64 + step) % WORDS;
            let mask = match step {
                0 => u64::MAX << (start % 64),
                WORDS => !(u64::MAX << (start % 64)),
                _ => u64::MAX,
            };
            let bits = self.used[word] & mask;
            let slot = (64 * word) as u64 + u64::from(bits.trailing_zeros());
            (bits != 0).then(|| from + (slot + SLOTS - start as u64) % SLOTS)
        })
    }
}

/// Timers with keys. See the [module](self).
#[derive(Debug)]
pub struct Timers<K> {
    /// Entries by the tick at whose beginning they expire.
    near: Wheel<K>,
    /// Entries by the turn of the first wheel in which they expire.
    far: Wheel<K>,
    /// Newest tick that was processed.
    tick: u64,
    /// Expired entries that are not yet taken, in reverse.
    due: Vec<TimerEntry<K>>,
    /// Empty list for the next slot of the second wheel; keeps its capacity.
    spare: Vec<TimerEntry<K>>,
    len: usize,
}

impl<K: Copy> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy> Timers<K> {
    /// Makes an empty timer wheel.
    #[must_use]
    pub fn new() -> Self {
        Self {
            near: Wheel::new(),
            far: Wheel::new(),
            tick: 0,
            due: Vec::new(),
            spare: Vec::new(),
            len: 0,
        }
    }

    /// Number of entries that are not yet taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts `key` to expire at `at_ns`, or with the next tick if that is past.
    pub fn insert(&mut self, now_ns: u64, at_ns: u64, key: K) {
        if self.len == 0 {
            // An empty wheel skips the ticks since its last entry, instead of visiting each.
            self.tick = self.tick.max(now_ns >> TICK_BITS);
        }
        self.len += 1;
        self.put((at_ns, key));
    }

    fn put(&mut self, entry: TimerEntry<K>) {
        // Rounded up, so that no entry expires early; the current tick's slot was emptied already.
        let tick = (entry.0.div_ceil(TICK_NS)).max(self.tick + 1);
        if tick - self.tick < SLOTS {
            self.near.put(tick, entry);
        } else {
            // The second wheel's own turn must not lap: beyond its last slot, entries are inserted
            // again.
            let last = (self.tick >> SLOT_BITS) + SLOTS - 1;
            self.far.put((tick >> SLOT_BITS).min(last), entry);
        }
    }

    /// Time of the next useful [`pop_due`](Self::pop_due): never after the first entry expires, and
    /// before it only if that is far ahead.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        if !self.due.is_empty() {
            return Some(self.tick << TICK_BITS);
        }
        let near = self.near.next(self.tick + 1);
        let far = self.far.next((self.tick >> SLOT_BITS) + 1);
        let far = far.map(|turn| turn << SLOT_BITS);
        let tick = match (near, far) {
            (Some(near), Some(far)) => near.min(far),
            (near, far) => near.or(far)?,
        };
        Some(tick.saturating_mul(TICK_NS))
    }

    /// Takes an expired entry with its deadline, in the order of ticks.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<(u64, K)> {
        while self.due.is_empty() {
            let last = now_ns >> TICK_BITS;
            if self.len == 0 {
                self.tick = self.tick.max(last);
                return None;
            }
            let next = self.next_ns()? >> TICK_BITS;
            if next > last {
                self.tick = self.tick.max(last);
                return None;
            }
            self.advance(next);
        }
        self.len -= 1;
        self.due.pop()
    }

    /// Moves on to `tick`, the next with entries.
    fn advance(&mut self, tick: u64) {
        let before = self.tick >> SLOT_BITS;
        let turn = tick >> SLOT_BITS;
        self.tick = tick;
        // `due` is empty here: it becomes the slot's list.
        self.near.swap(tick, &mut self.due);
        if turn != before {
            // A turn begins: its entries are spread over its ticks. The ticks skipped since then
            // hold none.
            let mut entries = mem::take(&mut self.spare);
            self.far.swap(turn, &mut entries);
            for entry in entries.drain(..) {
                // An entry of this tick would come a tick late if inserted: its slot was emptied
                // above.
                if entry.0.div_ceil(TICK_NS) <= tick {
                    self.due.push(entry);
                } else {
                    self.put(entry);
                }
            }
            self.spare = entries;
        }
        // `pop_due` takes from the back; reversed, that is the order of insertion.
        self.due.reverse();
    }
}

#[cfg(test)]
mod tests;
