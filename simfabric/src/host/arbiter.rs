//! Which of a host's flows sends next.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Pull;
use crate::net::queue::ClassMask;
use crate::packet::Packet;
use crate::time::Time;

/// Order in which the flows of a host that may send do so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// First come, first served: a flow keeps its turn as long as it may send.
    Fifo,
    /// One packet each, in turn.
    #[default]
    RoundRobin,
    /// The flow with the fewest remaining bytes (shortest remaining processing time; pFabric §4.1,
    /// SIRD §4.4). Of equals, the one that came first.
    Srpt,
    /// Packets alternate between the choices of [`Srpt`](Self::Srpt) and
    /// [`RoundRobin`](Self::RoundRobin), so that the shortest of n flows has its half and an nth
    /// part of the other (SIRD §4.4: half of the uplink is shared fairly).
    Half,
}

/// Answer of an arbiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The flow in this slot may send one packet. It has left the arbiter.
    Slot(u32),
    /// The first paced flow may send at this time.
    At(Time),
    /// No flow has anything to send.
    Nothing,
}

/// The flows of one host that have something to send, each at most once.
///
/// A flow is *ready*, or it waits for its pacer. Adding and taking cost O(1) for first come and
/// round robin, O(log flows) otherwise.
#[derive(Debug, Default)]
pub struct Arbiter {
    policy: Policy,
    /// Ready flows, in the order in which they came.
    ring: VecDeque<(u32, u64)>,
    /// Ready flows by remaining bytes and arrival; only for policies that ask for it.
    shortest: BTreeSet<(u64, u64, u32)>,
    /// Paced flows, by the time of their next packet and by arrival.
    paced: BinaryHeap<Reverse<(Time, u64, u32, u64)>>,
    /// Number of flows that came so far.
    arrivals: u64,
    /// Flows by slot; only for policies that order them by remaining bytes.
    flows: Vec<Slot>,
    /// By slot, the arrival number of the flow that waits for its pacer there; an entry of `paced`
    /// with another one is gone.
    waiting: Vec<u64>,
    /// The next choice is round robin's.
    fair_turn: bool,
    /// Flows whose class is paused, in the order in which they had their turns: slot, remaining
    /// bytes and class.
    held: Vec<(u32, u64, u8)>,
}

/// A slot and the flow in it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Arrival number of the ready flow, or [`NOT_READY`].
    arrival: u64,
    /// Remaining bytes of the ready flow.
    remaining_bytes: u64,
    /// True if the flow has a place in the ring; only for [`Policy::Half`], under which a flow
    /// keeps its place in one order when the other chooses it.
    in_ring: bool,
}

impl Slot {
    const EMPTY: Self = Self {
        arrival: NOT_READY,
        remaining_bytes: 0,
        in_ring: false,
    };
}

/// Mark of a slot without a ready flow.
const NOT_READY: u64 = u64::MAX;

impl Arbiter {
    /// Makes an arbiter without flows.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Adds a flow with these bytes to go, which may send at once. A flow that is in already is not
    /// to be added again.
    #[inline]
    pub fn ready(&mut self, slot: u32, remaining_bytes: u64) {
        self.arrivals += 1;
        self.insert(slot, remaining_bytes, self.arrivals, false);
    }

    /// Adds a flow that just had its turn and has more to send. First come, first served gives it
    /// the next turn, too.
    #[inline]
    pub fn again(&mut self, slot: u32, remaining_bytes: u64) {
        self.arrivals += 1;
        let front = self.policy == Policy::Fifo;
        self.insert(slot, remaining_bytes, self.arrivals, front);
    }

    /// Adds a flow with these bytes to go, whose pacer lets it send at `at`. A flow that waits for
    /// its pacer already waits until then instead.
    pub fn ready_at(&mut self, slot: u32, remaining_bytes: u64, at: Time) {
        self.arrivals += 1;
        let index = slot as usize;
        if index >= self.waiting.len() {
            self.waiting.resize(index + 1, 0);
        }
        self.waiting[index] = self.arrivals;
        self.paced
            .push(Reverse((at, self.arrivals, slot, remaining_bytes)));
    }

    /// Gives a ready flow that waits for its turn another number of remaining bytes. Orders that do
    /// not go by it change nothing.
    pub fn update(&mut self, slot: u32, remaining_bytes: u64) {
        let flow = self.flows.get_mut(slot as usize);
        let Some(flow) = flow.filter(|flow| flow.arrival != NOT_READY) else {
            return;
        };
        let (arrival, old) = (flow.arrival, flow.remaining_bytes);
        flow.remaining_bytes = remaining_bytes;
        if old != remaining_bytes && self.shortest.remove(&(old, arrival, slot)) {
            self.shortest.insert((remaining_bytes, arrival, slot));
        }
    }

    /// Keeps a flow that had its turn until its class is open again.
    pub fn hold(&mut self, slot: u32, remaining_bytes: u64, class: u8) {
        self.held.push((slot, remaining_bytes, class));
    }

    /// Adds the flows again whose classes are open. To be called before [`next`](Self::next) by
    /// those that [`hold`](Self::hold) flows.
    #[inline]
    pub fn release(&mut self, open: ClassMask) {
        if !self.held.is_empty() {
            self.release_held(open);
        }
    }

    #[cold]
    fn release_held(&mut self, open: ClassMask) {
        let mut held = std::mem::take(&mut self.held);
        let front = self.policy == Policy::Fifo;
        if front {
            // Each goes before the others, so that the first is the last to be put there.
            held.reverse();
        }
        held.retain(|&(slot, remaining_bytes, class)| {
            let is_open = open.contains(class.into());
            if is_open {
                self.arrivals += 1;
                self.insert(slot, remaining_bytes, self.arrivals, front);
            }
            !is_open
        });
        if front {
            held.reverse();
        }
        self.held = held;
    }

    fn insert(&mut self, slot: u32, remaining_bytes: u64, arrival: u64, front: bool) {
        match self.policy {
            Policy::Fifo if front => self.ring.push_front((slot, arrival)),
            Policy::Fifo | Policy::RoundRobin => self.ring.push_back((slot, arrival)),
            Policy::Srpt | Policy::Half => {
                let index = slot as usize;
                if index >= self.flows.len() {
                    self.flows.resize(index + 1, Slot::EMPTY);
                }
                let flow = &mut self.flows[index];
                flow.arrival = arrival;
                flow.remaining_bytes = remaining_bytes;
                if self.policy == Policy::Half && !std::mem::replace(&mut flow.in_ring, true) {
                    self.ring.push_back((slot, arrival));
                }
                self.shortest.insert((remaining_bytes, arrival, slot));
            }
        }
    }

    /// Takes the flow whose turn it is.
    #[inline]
    pub fn next(&mut self, now: Time) -> Turn {
        while let Some(&Reverse((at, arrival, slot, remaining_bytes))) = self.paced.peek() {
            let is_gone = self.waiting[slot as usize] != arrival;
            if at > now && !is_gone {
                break;
            }
            self.paced.pop();
            if !is_gone {
                self.insert(slot, remaining_bytes, arrival, false);
            }
        }
        let slot = match self.policy {
            Policy::Fifo | Policy::RoundRobin => self.ring.pop_front().map(|entry| entry.0),
            Policy::Srpt => self.shortest.pop_first().map(|(.., slot)| {
                self.flows[slot as usize].arrival = NOT_READY;
                slot
            }),
            Policy::Half => self.next_of_half(),
        };
        match (slot, self.paced.peek()) {
            (Some(slot), _) => Turn::Slot(slot),
            (None, Some(Reverse((at, ..)))) => Turn::At(*at),
            (None, None) => Turn::Nothing,
        }
    }

    fn next_of_half(&mut self) -> Option<u32> {
        if self.shortest.is_empty() {
            return None;
        }
        self.fair_turn = !self.fair_turn;
        let slot = if self.fair_turn {
            self.shortest.pop_first()?.2
        } else {
            loop {
                let slot = self.ring.pop_front()?.0;
                let flow = &mut self.flows[slot as usize];
                flow.in_ring = false;
                // What the other order took last may still be in the ring.
                if flow.arrival != NOT_READY {
                    let entry = (flow.remaining_bytes, flow.arrival, slot);
                    self.shortest.remove(&entry);
                    break slot;
                }
            }
        };
        self.flows[slot as usize].arrival = NOT_READY;
        Some(slot)
    }

    /// Returns true if no flow is ready and none waits for its pacer. Flows that are held do not
    /// count.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Under `Half` the ring keeps places of flows that are not ready.
        let none_in_ring = self.policy == Policy::Half || self.ring.is_empty();
        none_in_ring && self.shortest.is_empty() && self.paced.is_empty()
    }

    /// Answers the interface with a packet, and whether it is to ask for another one.
    #[inline]
    #[must_use]
    pub fn pulled(&self, packet: Packet) -> Pull {
        if self.is_empty() {
            Pull::Last(packet)
        } else {
            Pull::Packet(packet)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets flows with these packets send until all are done; returns the order.
    fn order(policy: Policy, packets: &[u64]) -> Vec<u32> {
        let mut arbiter = Arbiter::new(policy);
        let mut left = packets.to_vec();
        for (slot, &packets) in packets.iter().enumerate() {
            arbiter.ready(slot as u32, packets);
        }
        let mut order = Vec::new();
        while let Turn::Slot(slot) = arbiter.next(Time::ZERO) {
            order.push(slot);
            let left = &mut left[slot as usize];
            *left -= 1;
            if *left > 0 {
                arbiter.again(slot, *left);
            }
        }
        assert!(arbiter.is_empty());
        order
    }

    #[test]
    fn policies_order_flows_as_their_names_say() {
        let packets = [3, 1, 2];
        assert_eq!(order(Policy::Fifo, &packets), [0, 0, 0, 1, 2, 2]);
        assert_eq!(order(Policy::RoundRobin, &packets), [0, 1, 2, 0, 2, 0]);
        assert_eq!(order(Policy::Srpt, &packets), [1, 2, 2, 0, 0, 0]);
        // Shortest, first in the ring, shortest, first in the ring, and so on.
        assert_eq!(order(Policy::Half, &packets), [1, 0, 2, 2, 0, 0]);
    }

    /// A flow that gets a shorter message goes before those that were shorter.
    #[test]
    fn an_update_changes_the_place_of_a_flow_that_waits() {
        for policy in [Policy::Srpt, Policy::Half] {
            let mut arbiter = Arbiter::new(policy);
            for (slot, remaining) in [(0, 10), (1, 20), (2, 30)] {
                arbiter.ready(slot, remaining);
            }
            arbiter.update(2, 5);
            // Not in the arbiter: without effect.
            arbiter.update(7, 1);
            assert_eq!(arbiter.next(Time::ZERO), Turn::Slot(2), "{policy:?}");
            arbiter.update(2, 1);
            assert_eq!(arbiter.next(Time::ZERO), Turn::Slot(0), "{policy:?}");
            assert_eq!(arbiter.next(Time::ZERO), Turn::Slot(1), "{policy:?}");
            assert!(arbiter.is_empty());
        }
    }

    #[test]
    fn half_gives_each_order_every_second_packet() {
        // One short flow that never ends beside three long ones: the short one has its own half,
        // and a quarter of the other.
        let mut arbiter = Arbiter::new(Policy::Half);
        let remaining = [10, 1_000, 1_000, 1_000];
        for (slot, &bytes) in remaining.iter().enumerate() {
            arbiter.ready(slot as u32, bytes);
        }
        let mut turns = [0; 4];
        for _ in 0..8_000 {
            let Turn::Slot(slot) = arbiter.next(Time::ZERO) else {
                panic!("all have more");
            };
            turns[slot as usize] += 1;
            arbiter.again(slot, remaining[slot as usize]);
        }
        assert!((4_999..=5_001).contains(&turns[0]), "{turns:?}");
        let others = &turns[1..];
        let (least, most) = (others.iter().min(), others.iter().max());
        assert!(
            most.zip(least).is_some_and(|(m, l)| m - l <= 1),
            "{turns:?}"
        );
    }

    /// A pause stops the flows of its class, and the others go on in their order.
    #[test]
    fn held_flows_come_back_in_their_order_when_their_class_opens() {
        for (policy, expected) in [
            (Policy::Fifo, [0, 2, 1, 3]),
            (Policy::RoundRobin, [1, 3, 0, 2]),
            (Policy::Srpt, [0, 1, 2, 3]),
        ] {
            let mut arbiter = Arbiter::new(policy);
            for slot in 0..4 {
                arbiter.ready(slot, u64::from(slot));
            }
            // Class 1, that of flows 0 and 2, is paused.
            for _ in 0..4 {
                if let Turn::Slot(slot @ (0 | 2)) = arbiter.next(Time::ZERO) {
                    arbiter.hold(slot, slot.into(), 1);
                }
            }
            arbiter.release(ClassMask::of(0));
            assert_eq!(arbiter.next(Time::ZERO), Turn::Nothing);
            arbiter.ready(1, 1);
            arbiter.ready(3, 3);
            arbiter.release(ClassMask::ALL);
            let turns = [(); 4].map(|()| match arbiter.next(Time::ZERO) {
                Turn::Slot(slot) => slot,
                other => panic!("{other:?}"),
            });
            assert_eq!(turns, expected, "{policy:?}");
        }
    }

    #[test]
    fn paced_flows_come_when_their_time_does() {
        let mut arbiter = Arbiter::new(Policy::RoundRobin);
        arbiter.ready_at(7, 1, Time(20));
        arbiter.ready_at(8, 1, Time(10));
        assert_eq!(arbiter.next(Time(5)), Turn::At(Time(10)));
        assert_eq!(arbiter.next(Time(25)), Turn::Slot(8));
        assert_eq!(arbiter.next(Time(25)), Turn::Slot(7));
        assert_eq!(arbiter.next(Time(25)), Turn::Nothing);
    }

    #[test]
    fn a_pacer_that_changes_its_mind_gives_one_turn() {
        let mut arbiter = Arbiter::new(Policy::RoundRobin);
        arbiter.ready_at(3, 1, Time(20));
        arbiter.ready_at(3, 1, Time(10));
        assert_eq!(arbiter.next(Time(0)), Turn::At(Time(10)));
        assert_eq!(arbiter.next(Time(30)), Turn::Slot(3));
        assert_eq!(arbiter.next(Time(30)), Turn::Nothing);
        arbiter.ready_at(3, 1, Time(40));
        arbiter.ready_at(3, 1, Time(50));
        assert_eq!(arbiter.next(Time(45)), Turn::At(Time(50)));
    }
}
