//! The event queue. Events of one moment are ordered by a key that they are scheduled with, and
//! then by kind.
//!
//! The queue has four parts, by distance in time: a short sorted list, a wheel of narrow buckets, a
//! wheel of wide buckets, and a heap for all beyond. The sorted list shows the next events, so that
//! memory that they touch can be prefetched: see [`EventQueue::upcoming`]. The width of a bucket
//! follows the density of events. It has no influence on their order.
//!
//! A port has at most one event (see [`net::port`](crate::net::port)), so that the queue holds
//! hundreds of entries where hundreds of thousands of packets are in flight.

mod heap;
mod wheel;

use self::heap::{Heap, PackedEvent};
use self::wheel::{BUCKETS, Wheel};
use crate::time::Time;

/// An event. Those of one moment and one order happen in the order of the variants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A port begins to send, on which another one's resumption may depend.
    Departure(u32),
    /// A port has a packet to deliver or to begin to send.
    Port(u32),
    /// A flow begins.
    Start(u32),
    /// A flow's application stops.
    Stop(u32),
    /// A timer of an endpoint.
    Timer(u32),
    /// A host's interface asks its endpoint for the next packet.
    Pull(u32),
    /// A port hears that its far end pauses or resumes a class.
    Pause(u32),
    /// The clock of a switch's queue ticks.
    Tick(u32),
}

// An entry is 128 bits: 64 of time, then order, kind and index. Comparing two entries as integers
// compares time first, then order, and never needs a branch per field.
const KIND_BITS: u32 = 3;
const INDEX_BITS: u32 = 25;
const ORDER_SHIFT: u32 = KIND_BITS + INDEX_BITS;

/// Number of [`Event::Port`] among the kinds.
const PORT: u64 = 1;

/// The largest index of a port or timer that an event carries.
pub const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

/// Bits of an order that count among the events of one moment.
pub const ORDER_BITS: u32 = u64::BITS - ORDER_SHIFT;

/// The lowest bits of an order, which [`Event::Start`] uses for the upper bits of the flow's
/// number.
pub const FLOW_BITS: u32 = u32::BITS - INDEX_BITS;

impl Event {
    /// Packs the event into the lower half of an entry: order, kind, index.
    const fn pack(self, order: u64) -> u64 {
        let (kind, order, index) = match self {
            Self::Departure(i) => (0, order, i),
            Self::Port(i) => (PORT, order, i),
            // A flow's number has 32 bits and the index 25: the upper ones go into the order's
            // lowest bits.
            Self::Start(i) => (2, order | (i >> INDEX_BITS) as u64, i & MAX_INDEX),
            Self::Stop(i) => (3, order | (i >> INDEX_BITS) as u64, i & MAX_INDEX),
            Self::Timer(i) => (4, order, i),
            Self::Pull(i) => (5, order, i),
            Self::Pause(i) => (6, order, i),
            Self::Tick(i) => (7, order, i),
        };
        debug_assert!(index <= MAX_INDEX);
        order << ORDER_SHIFT | kind << INDEX_BITS | index as u64
    }

    #[inline]
    const fn unpack(packed: u64) -> Self {
        // Nine of ten are of this kind: a branch is predicted better than a jump by the kind.
        if packed >> INDEX_BITS & ((1 << KIND_BITS) - 1) == PORT {
            return Self::Port(packed as u32 & MAX_INDEX);
        }
        Self::unpack_other(packed)
    }

    #[inline(never)]
    const fn unpack_other(packed: u64) -> Self {
        let index = packed as u32 & MAX_INDEX;
        let flow = ((packed >> ORDER_SHIFT) as u32) << INDEX_BITS | index;
        match packed >> INDEX_BITS & ((1 << KIND_BITS) - 1) {
            0 => Self::Departure(index),
            PORT => Self::Port(index),
            2 => Self::Start(flow),
            3 => Self::Stop(flow),
            4 => Self::Timer(index),
            5 => Self::Pull(index),
            6 => Self::Pause(index),
            _ => Self::Tick(index),
        }
    }
}

/// Length of the sorted list below which it is refilled from close buckets, where
/// [`upcoming`](EventQueue::upcoming) is used.
pub const LOOKAHEAD: usize = 16;

/// Distance, in buckets, up to which buckets are sorted before their time to fill that list.
const CLOSE_BUCKETS: u64 = 4;

/// Distance from the end of the sorted list at which an entry may be inserted; others go to the
/// heap.
const MAX_SHIFT: usize = 48;

/// Taken places at the head of the sorted list from which on they are cleared away.
const COMPACT_AFTER: usize = 32;

/// Events between two adjustments of the width of a bucket, as a power of two.
const ADJUST_EVERY_LOG2: u32 = 13;

/// Target number of events per bucket, as a power of two.
const PER_BUCKET_LOG2: u32 = 1;

/// Narrow buckets per wide one, as a power of two.
const WIDE_LOG2: u32 = 8;

/// Range of a bucket's width, as powers of two of picoseconds: 16 ps to 18 minutes.
const SHIFTS: std::ops::RangeInclusive<u32> = 4..=50;

/// The pending events.
#[derive(Debug)]
pub struct EventQueue {
    /// The sorted list, from `at` on: all events of the wheel up to `bucket`.
    sorted: Vec<PackedEvent>,
    at: usize,
    /// The last bucket that was sorted, by its number since time 0.
    bucket: u64,
    /// Picoseconds of a bucket, as a power of two.
    shift: u32,
    wheel: Wheel,
    /// Events beyond that wheel, in buckets of 2^[`WIDE_LOG2`] narrow ones.
    coarse: Wheel,
    /// First narrow bucket of the first occupied wide one; the greatest number if there is none.
    coarse_from: u64,
    /// Buffer for entries that move from the wide buckets to the narrow ones.
    cascade_buffer: Vec<PackedEvent>,
    /// Events beyond both wheels, and those that would be inserted far from the sorted list's end.
    heap: Heap,
    /// Events until the next adjustment of the width, and the time of the last one.
    adjust_in: u32,
    adjusted_at: u64,
    /// Length of the sorted list below which it is refilled.
    lookahead: usize,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            sorted: Vec::new(),
            at: 0,
            bucket: 0,
            // 4 ns; the first adjustment comes after 8,192 events.
            shift: 12,
            wheel: Wheel::default(),
            coarse: Wheel::default(),
            coarse_from: u64::MAX,
            cascade_buffer: Vec::new(),
            heap: Heap::default(),
            adjust_in: 1 << ADJUST_EVERY_LOG2,
            adjusted_at: 0,
            lookahead: 1,
        }
    }
}

#[inline]
const fn time_of(entry: PackedEvent) -> u64 {
    (entry >> 64) as u64
}

impl EventQueue {
    /// Switches the long sorted list on, which [`upcoming`](Self::upcoming) reads.
    pub(crate) fn set_lookahead(&mut self, on: bool) {
        self.lookahead = if on { LOOKAHEAD } else { 1 };
    }

    /// Moves every event to the time that `time` returns, which is never before `now`.
    pub(crate) fn reschedule(&mut self, now: Time, time: impl Fn(Time) -> Time) {
        // All events are taken out before any is put back: `insert` decides by `self.bucket`, which
        // changes here.
        let mut entries = self.sorted.split_off(self.at);
        self.sorted.clear();
        self.at = 0;
        self.empty_wheels(&mut entries);
        entries.extend(std::iter::from_fn(|| self.heap.pop()));
        self.adjusted_at = now.0;
        self.bucket = now.0 >> self.shift;
        for entry in entries {
            let at = time(Time(time_of(entry)));
            self.insert(u128::from(at.0) << 64 | u128::from(entry as u64));
        }
    }

    /// Schedules an event. Events of one moment happen by `order`, of which [`ORDER_BITS`] bits
    /// count.
    #[inline(always)]
    pub fn push(&mut self, at: Time, order: u64, event: Event) {
        let low = event.pack(order);
        self.insert(u128::from(at.0) << 64 | u128::from(low));
    }

    #[inline(always)]
    fn insert(&mut self, entry: PackedEvent) {
        let bucket = time_of(entry) >> self.shift;
        // The bucket after the present one is 0, and those that are past are far beyond the others.
        if bucket.wrapping_sub(self.bucket).wrapping_sub(1) < BUCKETS - 1 {
            self.wheel.push(bucket, entry);
        } else {
            self.insert_outside_wheel(bucket, entry);
        }
    }

    #[inline(never)]
    fn insert_outside_wheel(&mut self, bucket: u64, entry: PackedEvent) {
        let wide = bucket >> WIDE_LOG2;
        if bucket <= self.bucket {
            self.insert_sorted(entry);
        } else if wide - (self.bucket >> WIDE_LOG2) < BUCKETS {
            self.coarse.push(wide, entry);
            self.coarse_from = self.coarse_from.min(wide << WIDE_LOG2);
        } else {
            self.heap.push(entry);
        }
    }

    /// Spreads the first wide bucket over the narrow ones. Only sorted entries and those in the
    /// heap may be earlier.
    #[inline(never)]
    fn cascade(&mut self) {
        // Narrow buckets before the wide one are empty, so the present bucket may move up to its
        // edge. Then all of the wide one lies within the narrow wheel.
        self.bucket = self.bucket.max(self.coarse_from - 1);
        let wide = self.coarse_from >> WIDE_LOG2;
        let mut cascade_buffer = std::mem::take(&mut self.cascade_buffer);
        self.coarse.drain(wide, &mut cascade_buffer);
        let next = self.coarse.next(wide + 1);
        self.coarse_from = next.map_or(u64::MAX, |next| next << WIDE_LOG2);
        for entry in cascade_buffer.drain(..) {
            self.insert(entry);
        }
        self.cascade_buffer = cascade_buffer;
    }

    /// Moves all entries of both wheels to the end of a list, in any order.
    fn empty_wheels(&mut self, into: &mut Vec<PackedEvent>) {
        let mut bucket = self.bucket + 1;
        while let Some(next) = self.wheel.next(bucket) {
            self.wheel.drain(next, into);
            bucket = next + 1;
        }
        let mut bucket = self.bucket >> WIDE_LOG2;
        while let Some(next) = self.coarse.next(bucket) {
            self.coarse.drain(next, into);
            bucket = next + 1;
        }
        self.coarse_from = u64::MAX;
    }

    /// Inserts an entry into the sorted list; most often it is one of the last.
    #[inline(never)]
    fn insert_sorted(&mut self, entry: PackedEvent) {
        let earliest = self.at.max(self.sorted.len().saturating_sub(MAX_SHIFT));
        let mut place = self.sorted.len();
        while place > earliest && self.sorted[place - 1] > entry {
            place -= 1;
        }
        // A long shift would make a burst of out-of-order events quadratic. The heap is compared
        // with the list at every pop, so that order holds in both cases.
        if place == earliest && earliest > self.at {
            self.heap.push(entry);
        } else {
            self.sorted.insert(place, entry);
        }
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&mut self) -> Option<Time> {
        if self.sorted.len() < self.at + self.lookahead {
            self.refill();
        }
        let due = [self.sorted.get(self.at).copied(), self.heap.first()];
        due.into_iter()
            .flatten()
            .min()
            .map(|next| Time(time_of(next)))
    }

    /// Takes the next event, unless it is later than `end`.
    #[inline(always)]
    pub fn pop_until(&mut self, end: Time) -> Option<(Time, Event)> {
        if self.sorted.len() < self.at + self.lookahead {
            self.refill();
        }
        let Some(&next) = self.sorted.get(self.at) else {
            return self.pop_heap(end);
        };
        // The heap may hold an event that is earlier than the list: see `insert_sorted`.
        if self.heap.first().is_some_and(|first| first < next) {
            return self.pop_heap(end);
        }
        let at = Time(time_of(next));
        if at > end {
            return None;
        }
        self.at += 1;
        Some((at, Event::unpack(next as u64)))
    }

    #[cold]
    #[inline(never)]
    fn pop_heap(&mut self, end: Time) -> Option<(Time, Event)> {
        let first = self.heap.first()?;
        let at = Time(time_of(first));
        if at > end {
            return None;
        }
        self.heap.pop();
        self.count_taken(1, at.0);
        Some((at, Event::unpack(first as u64)))
    }

    /// Counts `events` taken events, the last one at time `now`.
    fn count_taken(&mut self, events: u32, now: u64) {
        self.adjust_in = self.adjust_in.saturating_sub(events);
        if self.adjust_in == 0 {
            self.adjust_width(now);
        }
    }

    /// Sorts the next buckets into the list, as far as they are close.
    #[inline(never)]
    fn refill(&mut self) {
        // Draining moves the rest of the list, so it is done for 32 events at once.
        if self.at >= COMPACT_AFTER || self.at == self.sorted.len() {
            let (taken, last) = (self.at as u32, self.sorted[..self.at].last());
            let now = last.map(|entry| time_of(*entry));
            self.sorted.drain(..self.at);
            self.at = 0;
            if let Some(now) = now {
                self.count_taken(taken, now);
            }
        }
        while self.sorted.len() - self.at < self.lookahead {
            let narrow = self.wheel.next(self.bucket + 1);
            let next = narrow.unwrap_or(u64::MAX).min(self.coarse_from);
            if next == u64::MAX {
                break;
            }
            let due = [self.sorted.get(self.at).copied(), self.heap.first()];
            let now = due.into_iter().flatten().min().map(time_of);
            // Sorting far buckets early would make later insertions into them shift the list.
            if now.is_some_and(|now| next > (now >> self.shift) + CLOSE_BUCKETS) {
                break;
            }
            if next == self.coarse_from {
                self.cascade();
                continue;
            }
            self.wheel.drain_sorted(next, &mut self.sorted);
            self.bucket = next;
        }
        if self.sorted.len() == self.at
            && let Some(first) = self.heap.first()
        {
            // The wheel goes on from where time does.
            self.bucket = self.bucket.max(time_of(first) >> self.shift);
        }
    }

    /// Fits the width of a bucket to the density of events since the last call. The width stays
    /// while it is within a factor of two of the target.
    #[cold]
    #[inline(never)]
    fn adjust_width(&mut self, now: u64) {
        self.adjust_in = 1 << ADJUST_EVERY_LOG2;
        let span = now.saturating_sub(std::mem::replace(&mut self.adjusted_at, now));
        let per_bucket = span >> (ADJUST_EVERY_LOG2 - PER_BUCKET_LOG2);
        let shift = (u64::BITS - per_bucket.leading_zeros()).clamp(*SHIFTS.start(), *SHIFTS.end());
        // Hysteresis: every change of width empties and refills both wheels.
        if shift.abs_diff(self.shift) < 2 {
            return;
        }
        let mut entries = Vec::with_capacity(self.wheel.len() + self.coarse.len());
        self.empty_wheels(&mut entries);
        // The last moment of what was sorted is the last one, or within, a bucket of the new width.
        let last = self.bucket << self.shift | ((1 << self.shift) - 1);
        self.shift = shift;
        self.bucket = last >> shift;
        for entry in entries {
            self.insert(entry);
        }
    }

    /// Returns the event that follows `ahead` events after the next, if the sorted list is that
    /// long. An event of the heap may still come between.
    #[inline]
    #[must_use]
    pub fn upcoming(&self, ahead: usize) -> Option<Event> {
        self.sorted
            .get(self.at + ahead)
            .map(|entry| Event::unpack(*entry as u64))
    }

    /// Number of pending events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len() - self.at + self.wheel.len() + self.coarse.len() + self.heap.len()
    }

    /// Returns true if no event is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let wheels = self.wheel.is_empty() && self.coarse.is_empty();
        wheels && self.at == self.sorted.len() && self.heap.len() == 0
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
            Event::Start(u32::MAX),
            Event::Stop(u32::MAX),
            Event::Pull(MAX_INDEX),
            Event::Departure(9),
            Event::Pause(11),
            Event::Tick(MAX_INDEX),
        ] {
            for order in [0, 1 << FLOW_BITS, 1 << (ORDER_BITS - 1)] {
                assert_eq!(Event::unpack(event.pack(order)), event);
            }
        }
    }

    /// The key that an event is scheduled with decides, and not the time of scheduling.
    #[test]
    fn events_of_one_moment_have_an_order_of_their_own() {
        let mut queue = EventQueue::default();
        let expected = [
            (0, Event::Departure(8)),
            (1, Event::Timer(9)),
            (2, Event::Port(7)),
            (3, Event::Port(3)),
            (3, Event::Timer(2)),
            (1 << FLOW_BITS, Event::Start(4)),
            (1 << FLOW_BITS, Event::Start(1 << 30)),
        ];
        for (order, event) in expected.into_iter().rev() {
            queue.push(Time(5), order, event);
        }
        for (_, event) in expected {
            assert_eq!(queue.pop_until(Time::MAX), Some((Time(5), event)));
        }
    }

    proptest! {
        /// A mapping of times that keeps their order keeps the order of events.
        #[test]
        fn rescheduled_events_come_in_order(times in prop::collection::vec(0_u64..1 << 20, 0..300), popped in 0_usize..300) {
            let mut queue = EventQueue::default();
            for (i, at) in times.iter().enumerate() {
                queue.push(Time(*at), i as u64, Event::Timer(i as u32));
            }
            let mut model: Vec<(u64, u32)> = times.iter().copied().zip(0..).collect();
            model.sort_unstable();
            let mut now = 0;
            for (at, _) in model.drain(..popped.min(times.len())) {
                prop_assert_eq!(queue.pop_until(Time::MAX).map(|e| e.0.0), Some(at));
                now = at;
            }
            queue.reschedule(Time(now / 2), |at| Time(now / 2 + (at.0 - now) * 3));
            for (at, i) in model {
                let expected = (Time(now / 2 + (at - now) * 3), Event::Timer(i));
                prop_assert_eq!(queue.pop_until(Time::MAX), Some(expected));
            }
            prop_assert!(queue.is_empty());
        }

        /// A sorted list is the oracle: by time, and within a time in the order of scheduling, for
        /// all parts of the queue.
        #[test]
        fn events_come_in_order(
            steps in prop::collection::vec(
                prop::option::weighted(0.6, prop_oneof![0_u64..20, 0_u64..1 << 18, 0_u64..1 << 30, 0_u64..1 << 38]),
                0..300,
            ),
            look_ahead in any::<bool>(),
        ) {
            let mut queue = EventQueue::default();
            queue.set_lookahead(look_ahead);
            let mut model: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            for (i, step) in steps.into_iter().enumerate() {
                match step {
                    Some(ahead) => {
                        queue.push(Time(now + ahead), i as u64, Event::Timer(i as u32));
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
