//! The queue of events, keyed by (time, sequence): events of one moment happen in the order in
//! which they were scheduled, so a run is deterministic.
//!
//! A heap of four children per node over 16-byte entries: the four children are one cache line.
//! A port has at most one event (see [`net::port`](crate::net::port)), so that the heap holds
//! hundreds of entries where hundreds of thousands of packets are under way.

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

/// Time in the upper half; sequence, index and kind in the lower.
type Entry = u128;

/// The events to come.
///
/// The sequence has 36 bits and begins again after 69 · 10⁹ events. That is still
/// deterministic; only events of one picosecond across that point would swap.
#[derive(Debug, Default)]
pub struct EventQueue {
    heap: Vec<Entry>,
    sequence: u64,
}

impl EventQueue {
    /// Schedules an event.
    pub fn push(&mut self, at: Time, event: Event) {
        let low = self.sequence << SEQUENCE_SHIFT | event.pack();
        self.sequence = self.sequence.wrapping_add(1);
        let entry = u128::from(at.0) << 64 | u128::from(low);
        self.heap.push(entry);
        let mut hole = self.heap.len() - 1;
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if self.heap[parent] <= entry {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = entry;
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.heap.first().map(|e| Time((e >> 64) as u64))
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Time, Event)> {
        let last = self.heap.pop()?;
        let top = match self.heap.first_mut() {
            None => last,
            Some(first) => {
                let top = std::mem::replace(first, last);
                self.sift_down(last);
                top
            }
        };
        Some((Time((top >> 64) as u64), Event::unpack(top as u64)))
    }

    fn sift_down(&mut self, entry: Entry) {
        let heap = &mut self.heap[..];
        let mut hole = 0;
        loop {
            let first = 4 * hole + 1;
            if first >= heap.len() {
                break;
            }
            let end = heap.len().min(first + 4);
            let (mut least, mut at) = (heap[first], first);
            for (child, &value) in heap.iter().enumerate().take(end).skip(first + 1) {
                if value < least {
                    (least, at) = (value, child);
                }
            }
            if entry <= least {
                break;
            }
            heap[hole] = least;
            hole = at;
        }
        heap[hole] = entry;
    }

    /// How many events are to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
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
                        let got = queue.pop().map(|(t, e)| match e {
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
