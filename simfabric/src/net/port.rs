//! An egress port: a queue, a serialiser, and the wire behind it.
//!
//! A port costs one event per packet. It is advanced lazily: what its serialiser does between
//! two events depends on nothing but the port, so that departures that lie behind are
//! caught up with, at the moments at which they happened, whenever something touches the
//! port: a packet that arrives, or a packet that reaches the far end. The one pending event
//! of a port is the next packet's arrival at the far end or, if the wire is empty
//! and packets wait, the next departure. A packet that arrives in the picosecond in which another
//! departs finds it gone.
//!
//! Where regions (`net/regions.rs`) take turns, a port's two ends may be at different times: its queue
//! belongs to the region that the wire begins in, its wire to the one that it ends in. A packet that
//! arrives lets depart only what departs until the time to which all regions have come; nothing that
//! departs later arrives within the present window.
//!
//! Ports that share a buffer do depend on one another; they are eager: they get an event
//! for every departure.

use std::num::NonZeroU32;

use crate::net::buffer::Pool;
use crate::net::queue::{Discipline, DropReason, Queue, QueueContext, Shared};
use crate::net::stats::PortStats;
use crate::packet::{PacketId, PacketSlab};
use crate::prefetch::fetch;
use crate::time::{Span, Time};

/// Where a wire ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    /// At a switch.
    Switch(u32),
    /// At a host, or at the allocator.
    Host(u32),
}

/// Fractional bits of the time that a byte takes.
const RATE_SHIFT: u32 = 20;

/// The lowest rate that a link may have, so that no serialisation time overflows.
pub const MIN_RATE_BPS: u64 = 1_000_000;

/// How long bytes take on a link, rounded to the nearest picosecond. Exact where the time of a
/// byte is a whole number of picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteTime(u64);

impl ByteTime {
    /// For a rate of at least [`MIN_RATE_BPS`].
    #[must_use]
    pub const fn of_rate(rate_bps: u64) -> Self {
        let scaled = 8_000_000_000_000_u64 << RATE_SHIFT;
        Self((scaled + rate_bps / 2) / rate_bps)
    }

    /// For so many bytes.
    #[inline]
    #[must_use]
    pub const fn of(self, wire_bytes: u16) -> Span {
        Span((wire_bytes as u64 * self.0 + (1 << (RATE_SHIFT - 1))) >> RATE_SHIFT)
    }
}

/// A directed link with the queue before it.
///
/// The fields are in the order in which a packet needs them: those of every event are in the first
/// cache line, then come the queue and the counters, most used first.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Port {
    /// When the serialiser is done with the packet that it sends.
    free_at: Time,
    byte_time: ByteTime,
    /// From the last bit sent to the packet's arrival.
    delay: Span,
    /// When the first packet of the wire arrives. A packet on the wire knows when the one behind it
    /// does, so that the next event is known without a look at that one.
    head_at: Time,
    wire_head: PacketId,
    wire_tail: PacketId,
    /// Where the wire ends.
    pub far: Far,
    /// The shared buffer that the queue draws on: one more than its index. Departures of such a port
    /// have events of their own, because other ports depend on them.
    pool: Option<NonZeroU32>,
    /// Packets in the queue, so that it need not be asked.
    waiting: u32,
    /// Whether the port's event is pending.
    pub(crate) scheduled: bool,
    /// Whether the departure event is pending.
    pub(crate) departure_scheduled: bool,
    up: bool,
    /// Priority flow control: nothing leaves while the far end holds the port.
    paused: bool,
    /// Whether the wire ends in another region than it begins in.
    pub(crate) crosses: bool,
    /// The region in which the wire ends.
    pub(crate) region: u16,
    /// The port's rate, in bit/s.
    pub rate_bps: u64,
    /// The queue.
    pub queue: Queue,
    /// The counters.
    pub stats: PortStats,
}

const _: () = assert!(
    std::mem::offset_of!(Port, rate_bps) == 64 && std::mem::offset_of!(Port, stats) == 128,
    "what every event touches is one cache line, and the queue is another"
);

// Lines that are at the same place in every port would meet in half of the sets of a cache, or
// fewer, if the number of lines from port to port were even.
const _: () = assert!(
    size_of::<Port>() / 64 % 2 == 1,
    "the same lines of all ports spread over all sets of a cache"
);

impl Port {
    /// An idle port.
    #[must_use]
    pub fn new(rate_bps: u64, delay: Span, far: Far, queue: Queue) -> Self {
        Self {
            free_at: Time::ZERO,
            byte_time: ByteTime::of_rate(rate_bps),
            delay,
            head_at: Time::MAX,
            wire_head: PacketId::NONE,
            wire_tail: PacketId::NONE,
            far,
            pool: None,
            waiting: 0,
            scheduled: false,
            departure_scheduled: false,
            up: true,
            paused: false,
            crosses: false,
            region: 0,
            rate_bps,
            queue,
            stats: PortStats::default(),
        }
    }

    /// Lets the queue draw on a shared buffer.
    pub(crate) fn share(&mut self, pool: u32) {
        self.pool = NonZeroU32::new(pool + 1);
    }

    #[inline]
    fn pool(&self) -> Option<usize> {
        self.pool.map(|p| p.get() as usize - 1)
    }

    /// Whether departures have events of their own.
    #[inline]
    pub(crate) fn is_eager(&self) -> bool {
        self.pool.is_some()
    }

    /// Lets everything depart that departs until now.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, shared: &mut Shared, pools: &mut [Pool]) {
        if self.free_at <= now && self.waiting > 0 && !self.paused {
            self.depart_until(now, shared, pools);
        }
    }

    fn depart_until(&mut self, now: Time, shared: &mut Shared, pools: &mut [Pool]) {
        while self.free_at <= now && self.waiting > 0 {
            self.depart(self.free_at, shared, pools);
        }
    }

    /// Bytes in the queue.
    #[inline]
    fn waiting_bytes(&self) -> u64 {
        if self.waiting > 0 {
            self.queue.bytes()
        } else {
            0
        }
    }

    /// Takes a packet; the port has been [advanced](Self::advance).
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        now: Time,
        id: PacketId,
        shared: &mut Shared,
        pools: &mut [Pool],
    ) {
        let packet = &mut shared.packets[id];
        packet.at = now;
        let wire_bytes = packet.wire_bytes;
        self.stats.offered.add(wire_bytes);
        let bytes = self.waiting_bytes();
        // What passes through an empty queue changes none of its means: that queue was and stays empty.
        let at_once = self.waiting == 0 && self.free_at <= now && !self.paused;
        if !at_once {
            self.stats.account(now, self.waiting, bytes);
        }
        let pool = self.pool().map(|p| &mut pools[p]);
        let mut q = QueueContext {
            now,
            shared,
            stats: &mut self.stats,
        };
        if !self.up {
            q.drop(id, DropReason::LinkDown);
            return;
        }
        if pool.as_ref().is_some_and(|p| !p.admits(bytes, wire_bytes)) {
            q.drop(id, DropReason::Full);
            return;
        }
        self.queue.enqueue(&mut q, id);
        self.waiting = self.queue.packets();
        if let Some(pool) = pool {
            pool.changed(bytes, self.queue.bytes());
        }
        if at_once {
            self.free_at = now;
            if self.waiting > 0 {
                self.send_next(now, shared, pools);
            }
        } else if self.waiting > 0 {
            self.stats.note_length(self.waiting, self.queue.bytes());
        }
    }

    /// Begins to send the next packet.
    #[inline]
    fn depart(&mut self, at: Time, shared: &mut Shared, pools: &mut [Pool]) {
        self.stats.account(at, self.waiting, self.queue.bytes());
        self.send_next(at, shared, pools);
    }

    /// The same without telling how long the queue was.
    #[inline]
    fn send_next(&mut self, at: Time, shared: &mut Shared, pools: &mut [Pool]) {
        let bytes = self.queue.bytes();
        let mut q = QueueContext {
            now: at,
            shared,
            stats: &mut self.stats,
        };
        let next = self.queue.dequeue(&mut q);
        self.waiting = self.queue.packets();
        if let Some(pool) = self.pool() {
            pools[pool].changed(bytes, self.queue.bytes());
        }
        let Some(id) = next else { return };
        let packet = &mut shared.packets[id];
        self.free_at = at + self.byte_time.of(packet.wire_bytes);
        packet.hops = packet.hops.saturating_add(1);
        packet.next = PacketId::NONE;
        self.stats.sent.add(packet.wire_bytes);
        let arrives_at = self.free_at + self.delay;
        if self.wire_tail.is_some() {
            let tail = &mut shared.packets[self.wire_tail];
            tail.next = id;
            tail.at = arrives_at;
        } else {
            self.wire_head = id;
            self.head_at = arrives_at;
        }
        self.wire_tail = id;
    }

    /// Takes the packet that reaches the far end now.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Time, shared: &Shared) -> Option<PacketId> {
        let id = self.wire_head;
        if !id.is_some() || self.head_at > now {
            return None;
        }
        let packet = &shared.packets[id];
        self.wire_head = packet.next;
        self.head_at = packet.at;
        shared.packets.prefetch(self.wire_head);
        if !self.wire_head.is_some() {
            self.wire_tail = PacketId::NONE;
        }
        self.stats.arrived.add(packet.wire_bytes);
        Some(id)
    }

    /// When the port must be looked at again.
    #[inline]
    pub(crate) fn next_event(&self) -> Option<Time> {
        if self.wire_head.is_some() {
            Some(self.head_at)
        } else {
            self.next_departure()
        }
    }

    /// When the next packet departs.
    pub(crate) fn next_departure(&self) -> Option<Time> {
        (!self.paused && self.waiting > 0).then_some(self.free_at)
    }

    /// Fetches what every packet touches of the port, into the cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        fetch::<Self, 2>(self);
        fetch::<_, 1>(&self.stats.sent);
    }

    /// Fetches all of the port.
    #[inline]
    pub(crate) fn prefetch_all(&self) {
        fetch::<Self, { size_of::<Self>() / 64 }>(self);
    }

    /// Fetches the packets that the port's next event touches, into the cache, and what it touches of the
    /// port besides.
    #[inline]
    pub(crate) fn prefetch_packets(&self, packets: &PacketSlab) {
        packets.prefetch(self.wire_head);
        self.prefetch_departure(packets);
    }

    /// Fetches the packets that are touched when another one comes to the port.
    #[inline]
    pub(crate) fn prefetch_neighbours(&self, packets: &PacketSlab) {
        self.prefetch_departure(packets);
        if self.waiting > 0 {
            packets.prefetch(self.queue.back());
        }
    }

    #[inline]
    fn prefetch_departure(&self, packets: &PacketSlab) {
        packets.prefetch(self.wire_tail);
        if self.waiting > 0 {
            fetch::<_, 1>(&self.stats);
            packets.prefetch(self.queue.front());
        }
    }

    /// The packet that arrives first of those on the wire.
    #[inline]
    pub(crate) fn first_on_wire(&self) -> PacketId {
        self.wire_head
    }

    /// Holds the port back, or lets it go on (priority flow control, IEEE 802.1Qbb); the port
    /// has been [advanced](Self::advance).
    pub(crate) fn set_paused(&mut self, now: Time, paused: bool) {
        self.paused = paused;
        self.free_at = self.free_at.max(now);
    }

    /// Whether the far end holds the port.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Gives the link another rate from the next packet on; the port has been
    /// [advanced](Self::advance).
    pub(crate) fn set_rate(&mut self, rate_bps: u64) {
        self.rate_bps = rate_bps;
        self.byte_time = ByteTime::of_rate(rate_bps);
    }

    /// Fails or repairs the link; the port has been [advanced](Self::advance). What waits or is on
    /// the wire of a link that fails is lost.
    pub(crate) fn set_up(&mut self, now: Time, up: bool, shared: &mut Shared, pools: &mut [Pool]) {
        let failed = self.up && !up;
        self.up = up;
        if !failed {
            return;
        }
        let bytes = self.queue.bytes();
        self.stats.account(now, self.waiting, bytes);
        while self.queue.packets() > 0 {
            let mut q = QueueContext {
                now,
                shared,
                stats: &mut self.stats,
            };
            if let Some(id) = self.queue.dequeue(&mut q) {
                q.drop(id, DropReason::LinkDown);
            }
        }
        self.waiting = 0;
        if let Some(pool) = self.pool() {
            pools[pool].changed(bytes, 0);
        }
        while self.wire_head.is_some() {
            let id = self.wire_head;
            self.wire_head = shared.packets[id].next;
            let packet = shared.discard(id);
            self.stats.count_loss(packet.wire_bytes);
        }
        self.wire_tail = PacketId::NONE;
        self.free_at = now;
    }

    /// The link is down from the beginning.
    pub(crate) fn start_down(&mut self) {
        self.up = false;
    }

    /// The packets on the wire, first to arrive first.
    pub(crate) fn wire<'a>(&self, shared: &'a Shared) -> impl Iterator<Item = PacketId> + use<'a> {
        let some = |id: PacketId| id.is_some().then_some(id);
        std::iter::successors(some(self.wire_head), move |id| {
            some(shared.packets[*id].next)
        })
    }

    /// How long so many bytes take to be sent.
    #[must_use]
    pub fn serialisation(&self, wire_bytes: u16) -> Span {
        self.byte_time.of(wire_bytes)
    }

    /// From the last bit sent to the packet's arrival, host processing included.
    #[must_use]
    pub fn delay(&self) -> Span {
        self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialisation_is_exact_at_usual_rates_and_nearest_at_others() {
        const G: u64 = 1_000_000_000;
        for rate in [1, 10, 25, 40, 50, 100, 200, 400, 800].map(|g| g * G) {
            for bytes in [1, 64, 84, 1_538, 9_000, u16::MAX] {
                let exact = u128::from(bytes) * 8_000_000_000_000 / u128::from(rate);
                assert_eq!(
                    u128::from(ByteTime::of_rate(rate).of(bytes).0),
                    exact,
                    "{rate} {bytes}"
                );
            }
        }
        assert_eq!(ByteTime::of_rate(3 * G).of(1_500), Span(4_000_000));
        assert_eq!(ByteTime::of_rate(7 * G).of(1_000), Span(1_142_857));
        assert_eq!(
            ByteTime::of_rate(MIN_RATE_BPS).of(u16::MAX),
            Span(65_535 * 8_000_000)
        );
    }
}
