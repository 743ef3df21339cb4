//! Timers of thousands of sessions, in constant time each.
//!
//! A session that speaks often moves its next deadline often. In a heap that costs a walk over lines of memory
//! that are in no cache, and entries that have been overtaken stay until they come up. Here time is cut into
//! ticks of [`TICK_NS`]; two wheels of [`SLOTS`] slots hold the entries of the ticks that come next, and of the
//! turns of the first wheel after those. Entries come up at the end of their tick and never before their
//! time, so the wheel is late by a tick at most.
//!
//! Entries are not taken out: who owns a timer remembers when it is due ([`Timers::insert`] it again where
//! that has become sooner), and passes over what comes up at another time than that.

use std::mem;

/// Entries are this late at most: 2^17 ns, about an eighth of a millisecond.
pub const TICK_NS: u64 = 1 << TICK_BITS;

/// Slots of a wheel. The first one covers 33 ms, the second one 8.6 s; what is later than that waits in the last
/// slot of the second and is put in anew when that comes up.
pub const SLOTS: u64 = 1 << SLOT_BITS;

const TICK_BITS: u32 = 17;
const SLOT_BITS: u32 = 8;
const WORDS: usize = (SLOTS / 64) as usize;

/// Timers wait for what came before them to be read, but no longer than this.
const LATEST_NS: u64 = 100_000_000;

/// The time as of which timers are served where all that came until `read_ns` was read. An answer that waits in
/// the socket is there: nothing runs out before what came by then was read. Only what is owed to peers does
/// not wait for ever.
#[must_use]
pub fn served_until(read_ns: u64, now_ns: u64) -> u64 {
    read_ns.max(now_ns.saturating_sub(LATEST_NS))
}

type TimerEntry<K> = (u64, K);

/// One turn's slots, and which of them are not empty.
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

    /// Puts an entry into the slot of a time, in this wheel's unit.
    fn put(&mut self, time: u64, entry: TimerEntry<K>) {
        let slot = (time % SLOTS) as usize;
        self.used[slot / 64] |= 1 << (slot % 64);
        self.slots[slot].push(entry);
    }

    /// Exchanges the entries of a time's slot for an empty list.
    fn swap(&mut self, time: u64, entries: &mut Vec<TimerEntry<K>>) {
        let slot = (time % SLOTS) as usize;
        self.used[slot / 64] &= !(1 << (slot % 64));
        mem::swap(&mut self.slots[slot], entries);
    }

    /// The first time from `from` on, of one turn, whose slot is not empty.
    fn next(&self, from: u64) -> Option<u64> {
        let start = (from % SLOTS) as usize;
        // The word of `from` twice: its upper bits first, its lower ones last.
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
    /// Entries by the tick at whose beginning they come up.
    near: Wheel<K>,
    /// Entries by the turn of the first wheel in which they will.
    far: Wheel<K>,
    /// All ticks up to this one, and no later one, have come up.
    tick: u64,
    /// What has come up and is yet to be taken, in reverse.
    due: Vec<TimerEntry<K>>,
    /// For the next slot that comes up; keeps its room.
    spare: Vec<TimerEntry<K>>,
    len: usize,
}

impl<K: Copy> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy> Timers<K> {
    /// No timers.
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

    /// Entries that have not been taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has `key` come up at `at_ns`, or with the next tick if that is over.
    pub fn insert(&mut self, now_ns: u64, at_ns: u64, key: K) {
        if self.len == 0 {
            self.tick = self.tick.max(now_ns >> TICK_BITS);
        }
        self.len += 1;
        self.put((at_ns, key));
    }

    fn put(&mut self, entry: TimerEntry<K>) {
        let tick = (entry.0.div_ceil(TICK_NS)).max(self.tick + 1);
        if tick - self.tick < SLOTS {
            self.near.put(tick, entry);
        } else {
            let last = (self.tick >> SLOT_BITS) + SLOTS - 1;
            self.far.put((tick >> SLOT_BITS).min(last), entry);
        }
    }

    /// When [`pop_due`](Self::pop_due) is worth a call: not after the first entry comes up, and before it only where
    /// that is far off.
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

    /// Takes an entry that is due, of a tick before those of later ones; with what it was inserted for.
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

    /// To the tick that comes up next.
    fn advance(&mut self, tick: u64) {
        let before = self.tick >> SLOT_BITS;
        let turn = tick >> SLOT_BITS;
        self.tick = tick;
        // `due` is empty here: it becomes the slot's list.
        self.near.swap(tick, &mut self.due);
        if turn != before {
            // What was put into the turn that begins is spread over its ticks. Into those between nothing was.
            let mut entries = mem::take(&mut self.spare);
            self.far.swap(turn, &mut entries);
            for entry in entries.drain(..) {
                if entry.0.div_ceil(TICK_NS) <= tick {
                    self.due.push(entry);
                } else {
                    self.put(entry);
                }
            }
            self.spare = entries;
        }
        self.due.reverse();
    }
}

#[cfg(test)]
mod tests;
