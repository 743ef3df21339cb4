//! The queue of events, keyed by (time, sequence): events of one moment happen in the order in
//! which they were scheduled, so a run is deterministic.
//!
//! Three parts, by how soon: a short sorted list of what is next, a wheel of buckets for what
//! comes soon, and a heap for what does not. Of what is next, the order is known, so that memory
//! that an event will touch can be fetched some events before: see [`EventQueue::upcoming`]. The
//! width of a bucket follows the density of events. It has no influence on their order.
//!
//! A port has at most one event (see [`net::port`](crate::net::port)), so that the queue holds
//! hundreds of entries where hundreds of thousands of packets are under way.

mod heap;
mod wheel;

use self::heap::{Entry, Heap};
use self::wheel::{BUCKETS, Wheel};
use crate::time::Time;

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A port has a packet to deliver or to begin to send.
    Port(u32),
    /// A timer of the transport.
    Timer(u32),
    /// The next flow begins.
    Arrival,
    /// A flow's application stops (index into the list of stops).
    Stop(u32),
    /// The network changes (index into the list of changes).
    Change(u32),
    /// A port whose departures others depend on begins to send.
    Departure(u32),
    /// Series are sampled.
    Sample,
}

const KIND_BITS: u32 = 3;
const INDEX_BITS: u32 = 25;
const SEQUENCE_SHIFT: u32 = KIND_BITS + INDEX_BITS;

/// The largest index that an event carries.
pub const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

impl Event {
    const fn pack(self) -> u64 {
        let (kind, index) = match self {
            Self::Port(i) => (0, i),
            Self::Timer(i) => (1, i),
            Self::Arrival => (2, 0),
            Self::Stop(i) => (3, i),
            Self::Change(i) => (4, i),
            Self::Departure(i) => (5, i),
            Self::Sample => (6, 0),
        };
        debug_assert!(index <= MAX_INDEX);
        (index as u64) << KIND_BITS | kind
    }

    const fn unpack(packed: u64) -> Self {
        let index = (packed >> KIND_BITS) as u32 & MAX_INDEX;
        match packed & 7 {
            0 => Self::Port(index),
            1 => Self::Timer(index),
            2 => Self::Arrival,
            3 => Self::Stop(index),
            4 => Self::Change(index),
            5 => Self::Departure(index),
            _ => Self::Sample,
        }
    }
}

/// The list of what is next is filled up when it is shorter than this, if buckets close by hold
/// anything.
pub const LOOKAHEAD: usize = 16;

/// Buckets from the present one on that are sorted before their time, to fill that list.
const CLOSE_BUCKETS: u64 = 4;

/// Places in the list of what is next that an entry may be from its end; others go to the heap.
const MAX_SHIFT: usize = 48;

/// Places of the list of what is next that were taken, from which on they are cleared away.
const FORGET_AFTER: usize = 32;

/// Events after which the width of a bucket is thought over, as a power of two.
const REVIEW_EVERY_LOG2: u32 = 13;

/// Events per bucket that are aimed at, as a power of two.
const PER_BUCKET_LOG2: u32 = 3;

/// The narrowest and the widest bucket: 16 ps and 18 minutes.
const SHIFTS: std::ops::RangeInclusive<u32> = 4..=50;

/// The events to come.
///
/// The sequence has 36 bits and begins again after 69 · 10⁹ events. That is still
/// deterministic; only events of one picosecond across that point would swap.
#[derive(Debug)]
pub struct EventQueue {
    /// What is next, in order, from `at` on: all of the wheel up to `bucket`.
    current: Vec<Entry>,
    at: usize,
    /// The last bucket that was sorted, by its number since time 0.
    bucket: u64,
    /// Picoseconds of a bucket, as a power of two.
    shift: u32,
    wheel: Wheel,
    /// What is beyond the wheel, and what would take long to put in order among what is next.
    heap: Heap,
    sequence: u64,
    /// Events until the width of a bucket is thought over, and when it last was.
    review_in: u32,
    reviewed_at: u64,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            current: Vec::new(),
            at: 0,
            bucket: 0,
            shift: 12,
            wheel: Wheel::default(),
            heap: Heap::default(),
            sequence: 0,
            review_in: 1 << REVIEW_EVERY_LOG2,
            reviewed_at: 0,
        }
    }
}

#[inline]
const fn time_of(entry: Entry) -> u64 {
    (entry >> 64) as u64
}

impl EventQueue {
    /// Schedules an event.
    #[inline]
    pub fn push(&mut self, at: Time, event: Event) {
        let low = self.sequence << SEQUENCE_SHIFT | event.pack();
        self.sequence = self.sequence.wrapping_add(1);
        self.place(u128::from(at.0) << 64 | u128::from(low));
    }

    #[inline]
    fn place(&mut self, entry: Entry) {
        let bucket = time_of(entry) >> self.shift;
        if bucket <= self.bucket {
            self.place_in_order(entry);
        } else if bucket - self.bucket < BUCKETS {
            self.wheel.push(bucket, entry);
        } else {
            self.heap.push(entry);
        }
    }

    /// Puts an entry among what is next. Most often it is one of the last.
    fn place_in_order(&mut self, entry: Entry) {
        let earliest = self.at.max(self.current.len().saturating_sub(MAX_SHIFT));
        let mut place = self.current.len();
        while place > earliest && self.current[place - 1] > entry {
            place -= 1;
        }
        if place == earliest && earliest > self.at {
            self.heap.push(entry);
        } else {
            self.current.insert(place, entry);
        }
    }

    /// Takes the next event, if there is one until `end`.
    #[inline]
    pub fn pop_until(&mut self, end: Time) -> Option<(Time, Event)> {
        if self.current.len() - self.at < LOOKAHEAD {
            self.refill();
        }
        let next = self.current.get(self.at).copied();
        let entry = match (next, self.heap.first()) {
            (Some(next), Some(first)) if first < next => first,
            (Some(next), _) => {
                let at = Time(time_of(next));
                if at > end {
                    return None;
                }
                self.at += 1;
                self.count(at);
                return Some((at, Event::unpack(next as u64)));
            }
            (None, Some(first)) => first,
            (None, None) => return None,
        };
        self.pop_heap(entry, end)
    }

    #[cold]
    #[inline(never)]
    fn pop_heap(&mut self, first: Entry, end: Time) -> Option<(Time, Event)> {
        let at = Time(time_of(first));
        if at > end {
            return None;
        }
        self.heap.pop();
        self.count(at);
        Some((at, Event::unpack(first as u64)))
    }

    #[inline]
    fn count(&mut self, now: Time) {
        self.review_in -= 1;
        if self.review_in == 0 {
            self.review(now.0);
        }
    }

    /// Sorts the next buckets if they are close.
    #[inline(never)]
    fn refill(&mut self) {
        if self.at >= FORGET_AFTER || self.at == self.current.len() {
            self.current.drain(..self.at);
            self.at = 0;
        }
        while self.current.len() - self.at < LOOKAHEAD {
            let Some(next) = self.wheel.next(self.bucket + 1) else {
                break;
            };
            let due = [self.current.get(self.at).copied(), self.heap.first()];
            let now = due.into_iter().flatten().min().map(time_of);
            if now.is_some_and(|now| next > (now >> self.shift) + CLOSE_BUCKETS) {
                break;
            }
            let sorted = self.current.len();
            self.wheel.take(next, &mut self.current);
            self.current[sorted..].sort_unstable();
            self.bucket = next;
        }
        if self.current.len() == self.at
            && let Some(first) = self.heap.first()
        {
            // The wheel goes on from where time does.
            self.bucket = self.bucket.max(time_of(first) >> self.shift);
        }
    }

    /// Fits the width of a bucket to how dense events have been. It stays while it is within a
    /// factor of two of what it should be.
    #[cold]
    #[inline(never)]
    fn review(&mut self, now: u64) {
        self.review_in = 1 << REVIEW_EVERY_LOG2;
        let span = now - std::mem::replace(&mut self.reviewed_at, now);
        let per_bucket = span >> (REVIEW_EVERY_LOG2 - PER_BUCKET_LOG2);
        let shift = (u64::BITS - per_bucket.leading_zeros()).clamp(*SHIFTS.start(), *SHIFTS.end());
        if shift.abs_diff(self.shift) < 2 {
            return;
        }
        let mut entries = Vec::with_capacity(self.wheel.len());
        let mut bucket = self.bucket + 1;
        while let Some(next) = self.wheel.next(bucket) {
            self.wheel.take(next, &mut entries);
            bucket = next + 1;
        }
        // The last moment of what was sorted is the last one, or within, a bucket of the new width.
        let last = self.bucket << self.shift | ((1 << self.shift) - 1);
        self.shift = shift;
        self.bucket = last >> shift;
        for entry in entries {
            self.place(entry);
        }
    }

    /// What happens `ahead` events after the next, if that is known and nothing comes between.
    #[inline]
    #[must_use]
    pub fn upcoming(&self, ahead: usize) -> Option<Event> {
        self.current
            .get(self.at + ahead)
            .map(|entry| Event::unpack(*entry as u64))
    }

    /// How many events are to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.current.len() - self.at + self.wheel.len() + self.heap.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_survive_packing() {
        for event in [
            Event::Port(MAX_INDEX),
            Event::Timer(7),
            Event::Arrival,
            Event::Stop(0),
            Event::Change(3),
            Event::Departure(9),
            Event::Sample,
        ] {
            assert_eq!(Event::unpack(event.pack()), event);
        }
    }

    proptest! {
        /// Against a sorted list: by time, and within a time in the order of scheduling.
        #[test]
        fn events_come_in_order(steps in prop::collection::vec(prop::option::weighted(0.6, 0_u64..20), 0..300)) {
            let mut queue = EventQueue::default();
            let mut model: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            for (i, step) in steps.into_iter().enumerate() {
                match step {
                    Some(ahead) => {
                        queue.push(Time(now + ahead), Event::Timer(i as u32));
                        model.push((now + ahead, i as u32));
                    }
                    None => {
                        model.sort_by_key(|e| e.0);
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        let got = queue.pop_until(Time::MAX).map(|(t, e)| match e {
                            Event::Timer(i) => (t.0, i),
                            other => panic!("{other:?} was never scheduled"),
                        });
                        prop_assert_eq!(got, expected);
                        now = got.map_or(now, |g| g.0);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }
}
