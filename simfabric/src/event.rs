//! The queue of events. Those of one moment come by an order that they are scheduled with, and then by kind.
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

/// What happens. Of one moment, what stands first here happens first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// The next flows are fetched from the workload.
    Arrivals,
    /// A port whose departures others depend on begins to send.
    Departure(u32),
    /// A port has a packet to deliver or to begin to send.
    Port(u32),
    /// A flow begins.
    Start(u32),
    /// A timer of the transport.
    Timer(u32),
}

const KIND_BITS: u32 = 3;
const INDEX_BITS: u32 = 25;
const ORDER_SHIFT: u32 = KIND_BITS + INDEX_BITS;

/// The largest index of a port or timer that an event carries.
pub const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

/// Bits of an order that an event says among others of its moment.
pub const ORDER_BITS: u32 = u64::BITS - ORDER_SHIFT;

/// The lowest bits of an order, which those of [`Event::Start`] leave to the flow's number.
pub const FLOW_BITS: u32 = u32::BITS - INDEX_BITS;

impl Event {
    /// The lower half of an entry: order, kind, index.
    const fn pack(self, order: u64) -> u64 {
        let (kind, order, index) = match self {
            Self::Arrivals => (0, order, 0),
            Self::Departure(i) => (1, order, i),
            Self::Port(i) => (2, order, i),
            Self::Start(i) => (3, order | (i >> INDEX_BITS) as u64, i & MAX_INDEX),
            Self::Timer(i) => (4, order, i),
        };
        debug_assert!(index <= MAX_INDEX);
        order << ORDER_SHIFT | kind << INDEX_BITS | index as u64
    }

    const fn unpack(packed: u64) -> Self {
        let index = packed as u32 & MAX_INDEX;
        match packed >> INDEX_BITS & 7 {
            0 => Self::Arrivals,
            1 => Self::Departure(index),
            2 => Self::Port(index),
            3 => Self::Start(((packed >> ORDER_SHIFT) as u32) << INDEX_BITS | index),
            _ => Self::Timer(index),
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

/// The same where an event is scheduled as many events before it happens as there are in a window of
/// the whole fabric, and shall be in the wheel meanwhile.
const PER_WIDE_BUCKET_LOG2: u32 = 5;

/// The narrowest and the widest bucket: 16 ps and 18 minutes.
const SHIFTS: std::ops::RangeInclusive<u32> = 4..=50;

/// The events to come.
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
    /// Events until the width of a bucket is thought over, and when it last was.
    review_in: u32,
    reviewed_at: u64,
    per_bucket_log2: u32,
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
            review_in: 1 << REVIEW_EVERY_LOG2,
            reviewed_at: 0,
            per_bucket_log2: PER_BUCKET_LOG2,
        }
    }
}

#[inline]
const fn time_of(entry: Entry) -> u64 {
    (entry >> 64) as u64
}

impl EventQueue {
    /// A queue whose events are scheduled long before they happen, counted in events.
    #[must_use]
    pub fn wide() -> Self {
        Self {
            per_bucket_log2: PER_WIDE_BUCKET_LOG2,
            ..Self::default()
        }
    }

    /// Gives every event another time. None of the new ones is before `now`.
    pub(crate) fn reschedule(&mut self, now: Time, time: impl Fn(Event, Time) -> Time) {
        let mut entries = self.current.split_off(self.at);
        self.current.clear();
        self.at = 0;
        let mut bucket = self.bucket + 1;
        while let Some(next) = self.wheel.next(bucket) {
            self.wheel.take(next, &mut entries);
            bucket = next + 1;
        }
        entries.extend(std::iter::from_fn(|| self.heap.pop()));
        self.reviewed_at = now.0;
        self.bucket = now.0 >> self.shift;
        for entry in entries {
            let at = time(Event::unpack(entry as u64), Time(time_of(entry)));
            self.place(u128::from(at.0) << 64 | u128::from(entry as u64));
        }
    }

    /// Schedules an event. Those of one moment come by their `order`, of which [`ORDER_BITS`] count.
    #[inline]
    pub fn push(&mut self, at: Time, order: u64, event: Event) {
        let low = event.pack(order);
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
        let per_bucket = span >> (REVIEW_EVERY_LOG2 - self.per_bucket_log2);
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
            Event::Arrivals,
            Event::Start(u32::MAX),
            Event::Departure(9),
        ] {
            for order in [0, 1 << FLOW_BITS, 1 << (ORDER_BITS - 1)] {
                assert_eq!(Event::unpack(event.pack(order)), event);
            }
        }
    }

    /// Of one moment: by the order that was asked for, whatever that of scheduling.
    #[test]
    fn events_of_one_moment_have_an_order_of_their_own() {
        let mut queue = EventQueue::default();
        let expected = [
            (0, Event::Arrivals),
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
        /// Other times that keep the order keep the events.
        #[test]
        fn rescheduled_events_come_in_order(times in prop::collection::vec(0_u64..1 << 20, 0..300), popped in 0_usize..300) {
            let mut queue = EventQueue::wide();
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
            queue.reschedule(Time(now / 2), |_, at| Time(now / 2 + (at.0 - now) * 3));
            for (at, i) in model {
                let expected = (Time(now / 2 + (at - now) * 3), Event::Timer(i));
                prop_assert_eq!(queue.pop_until(Time::MAX), Some(expected));
            }
            prop_assert!(queue.is_empty());
        }

        /// Against a sorted list: by time, and within a time in the order of scheduling.
        #[test]
        fn events_come_in_order(steps in prop::collection::vec(prop::option::weighted(0.6, 0_u64..20), 0..300)) {
            let mut queue = EventQueue::default();
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
