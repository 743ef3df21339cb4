//! A switch's memory management unit: the buffer that its ports share, and when it pauses those
//! that send to it.
//!
//! | what | by | source |
//! |---|---|---|
//! | dropping classes | egress: a queue's class may grow to α times what is free | Choudhury and Hahne, *Dynamic Queue Length Thresholds for Shared-Memory Packet Switches*, 1998 |
//! | lossless classes | ingress: what came by a port and waits; from XOFF on the port's far end is paused, and headroom takes what is still under way | IEEE 802.1Qbb; DCQCN §4 |
//!
//! Ports are lazy, so that packets that have left may still be counted. Counters are therefore
//! *upper bounds*, until all ports of the switch have been advanced. An answer that they give
//! without a drop, a pause or a new maximum is right all the same. The caller advances the ports
//! only where that is not so (`Mmu::is_certain`). While an ingress is paused, departures are
//! events, because a resume goes out at the moment of one.
//!
//! The packet that is being sent takes no buffer, as it takes no place in a queue.

use crate::net::occupancy::{ByteDistribution, Occupancy};
use crate::net::queue::{ClassMask, MAX_CLASSES};
use crate::packet::Packet;
use crate::time::{Span, Time};

/// Settings of the buffer of each switch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedBuffer {
    /// Size of a switch's buffer, without headroom.
    pub bytes: u64,
    /// Factor α: a class of a port may hold up to α times the free part; 1 is common.
    pub alpha: f64,
    /// Classes that are never dropped.
    pub lossless: Option<Lossless>,
}

impl SharedBuffer {
    /// A buffer that drops nothing; it measures what switches hold.
    pub const UNLIMITED: Self = Self {
        bytes: u64::MAX / 2,
        alpha: f64::INFINITY,
        lossless: None,
    };
}

/// Settings of lossless classes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lossless {
    /// The classes. Queues of hosts and switches have the same classes.
    pub classes: ClassMask,
    /// Bytes of a port and class from which on its far end is paused.
    pub xoff: Xoff,
    /// Bytes below XOFF at which it is resumed: XON is XOFF less these.
    pub hysteresis_bytes: u64,
    /// Reserve of each port and class for what arrives after XOFF.
    pub headroom_bytes: u64,
    /// Time for which a class of a port may be paused without a resume, after which it is a
    /// [storm](crate::run::PauseStorm). Deadlocks are looked for at its multiples.
    pub watchdog: Span,
}

/// Time after which hardware takes a pause without a resume for a storm (Guo et al., *RDMA over
/// Commodity Ethernet at Scale*, SIGCOMM 2016, §4.3).
pub const USUAL_WATCHDOG: Span = Span::from_ms(100);

/// Threshold from which on an ingress is paused.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Xoff {
    /// Bytes.
    Bytes(u64),
    /// Factor of what is free in the buffer.
    Alpha(f64),
}

/// Port that a packet came by, by its number among the switch's, and the class that it had then: a
/// switch may put it into another class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ingress(u16);

impl Ingress {
    /// Bits of a port's number; a class has the 3 above them.
    const PORT_BITS: u32 = 13;
    /// Most ports of a switch: the last number stands for the switch itself.
    pub(crate) const MAX_PORTS: usize = (1 << Self::PORT_BITS) - 1;

    #[inline]
    pub(crate) const fn new(port: u16, class: u8) -> Self {
        // Classes beyond the last count as the last.
        let class = if class < MAX_CLASSES as u8 {
            class
        } else {
            MAX_CLASSES as u8 - 1
        };
        Self((class as u16) << Self::PORT_BITS | port)
    }

    pub(crate) const fn port(self) -> u16 {
        self.0 & ((1 << Self::PORT_BITS) - 1)
    }

    const fn class(self) -> u8 {
        (self.0 >> Self::PORT_BITS) as u8
    }
}

/// Place of a packet in a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Number of the port that it came by, among the switch's.
    pub(crate) ingress: u16,
    pub(crate) ingress_class: u8,
    /// Number of the port that it leaves by.
    pub(crate) egress: u16,
    pub(crate) class: u8,
    pub(crate) wire_bytes: u16,
}

/// A pause or resume that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signal {
    pub(crate) ingress: u16,
    pub(crate) class: u8,
    /// True for XOFF, false for XON.
    pub(crate) pause: bool,
}

/// Packets of one class that came by one port.
#[derive(Clone, Copy, Debug, Default)]
struct IngressBytes {
    bytes: u64,
    /// Part of them that is in the headroom.
    headroom_bytes: u64,
    paused: bool,
}

/// The memory management unit of one switch.
#[derive(Debug)]
pub struct Mmu {
    config: SharedBuffer,
    lossless: ClassMask,
    /// Number that stands in for the port of packets that the switch itself originates.
    own: u16,
    /// Classes that the queues have.
    classes: usize,
    /// Bytes that wait, without those in headroom.
    shared_bytes: u64,
    headroom_bytes: u64,
    /// Largest sum of both, exact.
    max_bytes: u64,
    /// By port and class.
    ingress: Box<[IngressBytes]>,
    egress: Box<[u64]>,
    /// Number of ingresses that are paused.
    paused: u32,
    signals: Vec<Signal>,
    /// Packets of lossless classes that were dropped.
    lossless_drops: u64,
    pauses: u64,
    occupancy: Option<Box<Occupancy>>,
}

impl Mmu {
    /// Makes an empty buffer for a switch with so many ports, whose queues have so many classes.
    #[must_use]
    pub fn new(config: SharedBuffer, ports: usize, classes: usize) -> Self {
        // The switch's own packets come by no port.
        let places = (ports + 1) * MAX_CLASSES;
        Self {
            own: ports as u16,
            lossless: config.lossless.map_or(ClassMask::NONE, |l| l.classes),
            config,
            classes: classes.clamp(1, MAX_CLASSES),
            shared_bytes: 0,
            headroom_bytes: 0,
            max_bytes: 0,
            ingress: vec![IngressBytes::default(); places].into(),
            egress: vec![0; places].into(),
            paused: 0,
            signals: Vec::new(),
            lossless_drops: 0,
            pauses: 0,
            occupancy: None,
        }
    }

    /// Returns the place of a packet that leaves, or would leave, by a port.
    #[inline]
    pub(crate) fn place(&self, packet: &Packet, egress: u16) -> Place {
        // The last class takes all beyond it, as in the queues.
        let last = self.classes as u8 - 1;
        Place {
            ingress: packet.ingress.port(),
            ingress_class: packet.ingress.class().min(last),
            egress,
            class: packet.class.min(last),
            wire_bytes: packet.wire_bytes,
        }
    }

    /// Returns the number that stands in for the port of packets that the switch itself originates.
    pub(crate) fn own_ingress(&self) -> u16 {
        self.own
    }

    #[inline]
    fn is_lossless(&self, place: Place) -> bool {
        // Nobody could be paused for what the switch itself originates.
        self.lossless.contains(place.ingress_class.into()) && place.ingress != self.own
    }

    #[inline]
    fn free_bytes(&self) -> u64 {
        self.config.bytes.saturating_sub(self.shared_bytes)
    }

    /// Returns the bytes from which on an ingress is paused.
    #[inline]
    fn xoff_bytes(&self) -> u64 {
        self.xoff_at(self.free_bytes())
    }

    /// Returns the bytes from which on an ingress is paused while so much is free.
    #[inline]
    fn xoff_at(&self, free_bytes: u64) -> u64 {
        match self.config.lossless.map(|l| l.xoff) {
            None => u64::MAX,
            Some(Xoff::Bytes(bytes)) => bytes,
            Some(Xoff::Alpha(alpha)) => (alpha * free_bytes as f64) as u64,
        }
    }

    /// Returns true if the shared part takes a packet.
    #[inline]
    fn fits(&self, place: Place) -> bool {
        let free = self.free_bytes();
        let bytes = if self.is_lossless(place) {
            let ingress = &self.ingress[index(place.ingress, place.ingress_class)];
            // What is in headroom leaves first: packets of one ingress do not go round it.
            if ingress.headroom_bytes > 0 || ingress.bytes >= self.xoff_bytes() {
                return false;
            }
            0
        } else {
            self.egress[index(place.egress, place.class)]
        };
        // The threshold α (B − ΣQ) changes with every packet in the switch, so it is not kept.
        u64::from(place.wire_bytes) <= free && (bytes as f64) < self.config.alpha * free as f64
    }

    /// Returns true if the packet is taken, pauses nothing and makes no new maximum, even if
    /// packets that have left are still counted.
    #[inline]
    pub(crate) fn is_certain(&self, place: Place) -> bool {
        let bytes = u64::from(place.wire_bytes);
        let pauses = || {
            let ingress = &self.ingress[index(place.ingress, place.ingress_class)];
            // With the packet less is free, and the threshold lower; the bound is on the safe side.
            let xoff = self.xoff_at(self.free_bytes().saturating_sub(bytes));
            ingress.bytes + bytes >= xoff
        };
        self.used_bytes() + bytes <= self.max_bytes
            && self.fits(place)
            && !(self.is_lossless(place) && pauses())
    }

    /// Takes a packet, or refuses it; counters are exact, or the answer [is
    /// certain](Self::is_certain). Pauses its ingress where that is due.
    pub(crate) fn admit(&mut self, now: Time, place: Place) -> bool {
        let bytes = u64::from(place.wire_bytes);
        let fits = self.fits(place);
        let lossless = self.is_lossless(place);
        let at = index(place.ingress, place.ingress_class);
        if !fits {
            let headroom = self.config.lossless.map_or(0, |l| l.headroom_bytes);
            if !lossless || self.ingress[at].headroom_bytes + bytes > headroom {
                self.lossless_drops += u64::from(lossless);
                return false;
            }
            self.ingress[at].headroom_bytes += bytes;
            self.headroom_bytes += bytes;
        } else {
            self.shared_bytes += bytes;
        }
        self.egress[index(place.egress, place.class)] += bytes;
        self.ingress[at].bytes += bytes;
        if let Some(occupancy) = &mut self.occupancy {
            occupancy.note(now, place.wire_bytes.into());
        }
        if lossless && !self.ingress[at].paused {
            // A full buffer pauses as the threshold does, which protects the headroom.
            let ingress = &self.ingress[at];
            if ingress.headroom_bytes > 0 || ingress.bytes >= self.xoff_bytes() {
                self.signal(place, true);
            }
        }
        true
    }

    fn signal(&mut self, place: Place, pause: bool) {
        self.ingress[index(place.ingress, place.ingress_class)].paused = pause;
        if pause {
            self.paused += 1;
            self.pauses += 1;
        } else {
            self.paused -= 1;
        }
        self.signals.push(Signal {
            ingress: place.ingress,
            class: place.ingress_class,
            pause,
        });
    }

    /// Gives up the place of a packet that leaves. Resumes its ingress where that is due.
    #[inline]
    pub(crate) fn release(&mut self, now: Time, place: Place) {
        let bytes = u64::from(place.wire_bytes);
        if let Some(occupancy) = &mut self.occupancy {
            occupancy.note(now, -i32::from(place.wire_bytes));
        }
        self.egress[index(place.egress, place.class)] -= bytes;
        let at = index(place.ingress, place.ingress_class);
        let ingress = &mut self.ingress[at];
        ingress.bytes -= bytes;
        // The headroom is free again first: it must be, for the next pause.
        let from_headroom = ingress.headroom_bytes.min(bytes);
        ingress.headroom_bytes -= from_headroom;
        self.headroom_bytes -= from_headroom;
        self.shared_bytes -= bytes - from_headroom;
        if ingress.paused {
            let IngressBytes {
                bytes,
                headroom_bytes,
                ..
            } = *ingress;
            if self.resumes_at(bytes, headroom_bytes, self.free_bytes()) {
                self.signal(place, false);
            }
        }
    }

    /// Counts a packet that a queue dropped, after its [release](Self::release).
    pub(crate) fn count_drop(&mut self, place: Place) {
        self.lossless_drops += u64::from(self.is_lossless(place));
    }

    /// Returns true if the counters exceed the maximum; it is one if they are exact.
    #[inline]
    pub(crate) fn exceeds_max(&self) -> bool {
        self.used_bytes() > self.max_bytes
    }

    /// Notes the maximum; counters are exact.
    #[inline]
    pub(crate) fn note_max(&mut self) {
        self.max_bytes = self.max_bytes.max(self.used_bytes());
    }

    /// Begins a new maximum at the end of a warm-up; counters are exact.
    pub(crate) fn reset_max(&mut self) {
        self.max_bytes = self.used_bytes();
        self.pauses = 0;
        if let Some(occupancy) = &mut self.occupancy {
            occupancy.reset();
        }
    }

    /// Keeps the distribution of what the switch holds from now on.
    pub(crate) fn keep_occupancy(&mut self) {
        self.occupancy = Some(Box::default());
    }

    /// Returns true if the switch's ports are to catch up, for [`settle`](Self::settle).
    #[inline]
    pub(crate) fn wants_settling(&self) -> bool {
        self.occupancy.as_ref().is_some_and(|o| o.has_many())
    }

    /// Accounts for the time until now; counters are exact.
    pub(crate) fn settle(&mut self, now: Time) {
        if let Some(occupancy) = &mut self.occupancy {
            occupancy.settle(now);
        }
    }

    /// Returns the distribution of what the switch holds, over time, if the run keeps it.
    #[must_use]
    pub fn occupancy(&self) -> Option<&ByteDistribution> {
        self.occupancy.as_ref().map(|o| o.distribution())
    }

    /// Returns true while an ingress is paused.
    #[inline]
    pub(crate) fn is_pausing(&self) -> bool {
        self.paused > 0
    }

    /// Takes the next pause or resume that is to be sent.
    #[inline]
    pub(crate) fn take_signal(&mut self) -> Option<Signal> {
        if self.signals.is_empty() {
            None
        } else {
            Some(self.signals.remove(0))
        }
    }

    /// Returns true if an ingress is paused, of class `class` or, beyond the last one, of that.
    pub(crate) fn is_paused(&self, ingress: u16, class: u8) -> bool {
        let last = self.classes as u8 - 1;
        self.ingress[index(ingress, class.min(last))].paused
    }

    /// Returns true if an ingress stays paused once all packets have left but `stuck` bytes of each
    /// [place](index); counters are exact.
    pub(crate) fn stays_paused(&self, ingress: u16, class: u8, stuck: &[u64]) -> bool {
        // What leaves frees headroom first.
        let headroom = |at: usize| {
            let ingress = &self.ingress[at];
            let left = ingress.bytes.saturating_sub(stuck[at]);
            ingress.headroom_bytes.saturating_sub(left)
        };
        let shared = |at: usize| stuck[at].saturating_sub(headroom(at));
        let free = self.config.bytes;
        let free = free.saturating_sub((0..self.ingress.len()).map(shared).sum());
        let at = index(ingress, class);
        !self.resumes_at(stuck[at], headroom(at), free)
    }

    /// Returns the number of places of a port and class.
    pub(crate) fn places(&self) -> usize {
        self.ingress.len()
    }

    /// Returns true if an ingress is resumed that has so many bytes and such a part of them in
    /// headroom, while so much of the shared part is free.
    #[inline]
    fn resumes_at(&self, bytes: u64, headroom_bytes: u64, free_bytes: u64) -> bool {
        let hysteresis = self.config.lossless.map_or(0, |l| l.hysteresis_bytes);
        headroom_bytes == 0 && (bytes == 0 || bytes + hysteresis < self.xoff_at(free_bytes))
    }

    /// Returns the bytes that wait in all queues of the switch; an upper bound unless its ports
    /// have been advanced.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shared_bytes + self.headroom_bytes
    }

    /// Returns the largest number of bytes that waited in all queues at once.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Returns the number of pauses that were sent.
    #[must_use]
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    /// Returns the packets of lossless classes that were dropped, of which there should be none.
    #[must_use]
    pub fn lossless_drops(&self) -> u64 {
        self.lossless_drops
    }
}

/// Index of a port and class.
#[inline]
pub(crate) fn index(port: u16, class: u8) -> usize {
    usize::from(port) * MAX_CLASSES + usize::from(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: u8 = 3;

    fn place(ingress: u16, egress: u16, class: u8, wire_bytes: u16) -> Place {
        Place {
            ingress,
            ingress_class: class,
            egress,
            class,
            wire_bytes,
        }
    }

    fn lossless(xoff: Xoff, hysteresis_bytes: u64, headroom_bytes: u64) -> Mmu {
        let config = SharedBuffer {
            bytes: 100_000,
            alpha: 1.0,
            lossless: Some(Lossless {
                classes: ClassMask::of(CLASS.into()),
                xoff,
                hysteresis_bytes,
                headroom_bytes,
                watchdog: USUAL_WATCHDOG,
            }),
        };
        Mmu::new(config, 4, MAX_CLASSES)
    }

    /// Each of n backlogged queues holds α/(1 + nα) of the buffer (Choudhury and Hahne §III).
    #[test]
    fn backlogged_queues_get_equal_parts_and_leave_one() {
        for (alpha, n) in [(1.0, 1), (1.0, 3), (2.0, 4), (0.5, 2)] {
            let config = SharedBuffer {
                bytes: 1_000_000,
                alpha,
                lossless: None,
            };
            let mut mmu = Mmu::new(config, n, 1);
            let mut queues = vec![0_u64; n];
            for round in 0..20_000 {
                let egress = round % n;
                if mmu.admit(Time::ZERO, place(0, egress as u16, 0, 100)) {
                    queues[egress] += 100;
                }
            }
            let fair = 1e6 * alpha / (1.0 + n as f64 * alpha);
            for queue in queues {
                assert!(
                    (queue as f64 - fair).abs() <= 200.0,
                    "α {alpha}, {n}: {queue} for {fair}"
                );
            }
        }
    }

    #[test]
    fn an_ingress_is_paused_at_the_very_byte_of_xoff_and_resumed_below_xon() {
        let mut mmu = lossless(Xoff::Bytes(3_000), 1_000, 10_000);
        assert!(
            mmu.admit(Time::ZERO, place(1, 0, CLASS, 1_500))
                && mmu.admit(Time::ZERO, place(1, 2, CLASS, 1_499))
        );
        assert_eq!(mmu.take_signal(), None, "2,999 bytes");
        assert!(mmu.admit(Time::ZERO, place(1, 0, CLASS, 1)));
        let signal = |pause| {
            Some(Signal {
                ingress: 1,
                class: CLASS,
                pause,
            })
        };
        assert_eq!(mmu.take_signal(), signal(true));
        assert!(
            mmu.admit(Time::ZERO, place(1, 0, CLASS, 100)),
            "headroom takes it"
        );
        assert_eq!(mmu.take_signal(), None, "once");
        mmu.release(Time::ZERO, place(1, 0, CLASS, 1_100));
        assert_eq!(mmu.take_signal(), None, "2,000 bytes are not below XON");
        mmu.release(Time::ZERO, place(1, 0, CLASS, 1));
        assert_eq!(mmu.take_signal(), signal(false));
        assert!(!mmu.is_pausing());
    }

    #[test]
    fn headroom_takes_its_bytes_and_not_one_more() {
        let mut mmu = lossless(Xoff::Bytes(1_000), 0, 3_000);
        assert!(mmu.admit(Time::ZERO, place(0, 1, CLASS, 1_000)));
        assert!(
            mmu.admit(Time::ZERO, place(0, 1, CLASS, 1_500))
                && mmu.admit(Time::ZERO, place(0, 1, CLASS, 1_499))
        );
        assert!(!mmu.admit(Time::ZERO, place(0, 1, CLASS, 2)));
        assert_eq!(mmu.lossless_drops(), 1);
        assert!(mmu.admit(Time::ZERO, place(0, 1, CLASS, 1)));
        // Each ingress and class has its own.
        assert!(
            mmu.admit(Time::ZERO, place(2, 1, CLASS, 1_000))
                && mmu.admit(Time::ZERO, place(2, 1, CLASS, 3_000))
        );
        assert_eq!((mmu.used_bytes(), mmu.lossless_drops()), (8_000, 1));
    }

    #[test]
    fn classes_that_drop_leave_lossless_ones_their_headroom() {
        let mut mmu = lossless(Xoff::Alpha(0.5), 0, 2_000);
        while mmu.admit(Time::ZERO, place(0, 1, 0, 1_000)) {}
        while mmu.admit(Time::ZERO, place(0, 2, 0, 1_000)) {}
        let full = mmu.used_bytes();
        while mmu.admit(Time::ZERO, place(3, 1, CLASS, 1_000)) {}
        // XOFF is half of what is free, after which come the two packets of headroom.
        assert!(mmu.used_bytes() >= full + 2_000 && mmu.used_bytes() < 102_000);
        assert!(mmu.is_pausing());
    }

    #[test]
    fn a_packet_that_leaves_frees_what_it_took() {
        let mut mmu = lossless(Xoff::Bytes(2_000), 500, 5_000);
        for _ in 0..4 {
            assert!(mmu.admit(Time::ZERO, place(0, 1, CLASS, 1_000)));
        }
        mmu.note_max();
        for _ in 0..4 {
            mmu.release(Time::ZERO, place(0, 1, CLASS, 1_000));
        }
        assert_eq!((mmu.used_bytes(), mmu.max_bytes()), (0, 4_000));
        assert_eq!((mmu.pauses(), mmu.is_pausing()), (1, false));
    }
}
