//! An egress port: a queue, a serialiser, and the wire behind it.
//!
//! A port costs one event per packet. It is advanced lazily: its serialiser depends on nothing but
//! the port. Past departures are therefore simulated late, at the times at which they happened:
//! when a packet comes to the queue, or when the wire has run empty. The one pending event of a
//! port is the arrival of the next packet at the far end. Only if the wire is empty and packets
//! wait, for a shaper or behind a pause that goes out, the next departure is one. A packet that
//! arrives in the picosecond in which another departs finds it gone.
//!
//! The two ends of a port may be at different times if regions (`net/regions.rs`) take turns.
//! Its queue belongs to the region where the wire begins, its wire to the one where it ends. An
//! arriving packet triggers only departures before the time that all regions have reached. Nothing
//! that departs later arrives within the present window.
//!
//! If they are simulated by two threads, each has the port, and uses one end of it. At the end of a
//! window packets move from the wire of the one to that of the other: see `run/partition.rs`.
//!
//! Ports that share a buffer depend on one another, which the buffer allows for: see
//! [`mmu`](super::mmu). While it pauses someone, its ports are eager: every departure is an event,
//! in the region where the wire begins, because a resume may have to leave with it.

mod sending;

use std::num::NonZeroU32;

pub(crate) use self::sending::IntTable;
use self::sending::{
    Chance, Jitter, Loss, PortTelemetry, SendingEnd, Serialiser, Watch, telemetry,
};
use crate::cache::prefetch;
use crate::ext::IntHop;
use crate::flow::PacketCount;
use crate::net::queue::{BufferView, ClassMask, Discipline, Queue, QueueContext, SharedState};
use crate::net::stats::{DropReason, PortStats};
use crate::net::switch::Switch;
use crate::net::{Notice, Tap};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::rng::Stream;
use crate::time::{Span, Time};

/// Far end of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarEnd {
    /// A switch.
    Switch(u32),
    /// A host or the allocator.
    Host(u32),
}

/// Fractional bits of the time that a byte takes.
const RATE_SHIFT: u32 = 20;

/// The lowest rate that a link may have, so that no serialisation time overflows.
pub const MIN_RATE_BPS: u64 = 1_000_000;

/// Bit of a [`ByteTime`] whose packets take whole nanoseconds.
const WHOLE_NS: u64 = 1 << 63;

/// Time per byte on a link, rounded to the nearest picosecond. It is exact where the time of a byte
/// is a whole number of picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteTime(u64);

impl ByteTime {
    /// Computes the time per byte of a rate of at least [`MIN_RATE_BPS`].
    #[must_use]
    pub const fn of_rate(rate_bps: u64) -> Self {
        // Picoseconds of 8 bits at 1 bit/s; with the fraction they are below 2⁶³ = `WHOLE_NS`.
        let scaled = 8_000_000_000_000_u64 << RATE_SHIFT;
        Self((scaled + rate_bps / 2) / rate_bps)
    }

    /// Makes times of packets whole nanoseconds, rounded down.
    const fn in_whole_ns(self) -> Self {
        Self(self.0 | WHOLE_NS)
    }

    /// Returns the time that a number of bytes takes, at most [`Span`]'s maximum.
    #[must_use]
    pub const fn of_bytes(self, bytes: u64) -> Span {
        let scaled = self.0 & !WHOLE_NS;
        let ps = (bytes as u128 * scaled as u128 + (1 << (RATE_SHIFT - 1))) >> RATE_SHIFT;
        Span(if ps > u64::MAX as u128 {
            u64::MAX
        } else {
            ps as u64
        })
    }

    /// Returns the time that `wire_bytes` bytes take.
    #[inline]
    #[must_use]
    pub const fn of(self, wire_bytes: u16) -> Span {
        if self.0 >= WHOLE_NS {
            let exact = Self(self.0 & !WHOLE_NS).of(wire_bytes);
            return Span::from_ns(exact.as_ns());
        }
        // `MIN_RATE_BPS` keeps the product within 64 bits.
        Span((wire_bytes as u64 * self.0 + (1 << (RATE_SHIFT - 1))) >> RATE_SHIFT)
    }
}

/// Number of no port: the node at the far end has no shared buffer.
const NOT_SHARED: u16 = u16::MAX;

/// Parts of the fabric in which a wire begins and ends, seen from one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WireSpan {
    /// It begins and ends in one region.
    Within,
    /// It begins and ends in two regions of the partition.
    Regions,
    /// It begins in this partition and ends in another.
    Leaves,
    /// It begins in another partition and ends in this one.
    Enters,
}

/// The wire as its far end sees it: all of a port that an arriving packet touches.
#[derive(Debug)]
#[repr(C, align(64))]
struct Wire {
    /// Arrival time of the wire's first packet. Each packet on the wire holds the arrival time of
    /// the one behind it, so that the next event is known without reading that one.
    head_at: Time,
    /// Packets that reached the far end.
    arrived: PacketCount,
    rate_bps: u64,
    /// Chance on the link, if there is any.
    chance: Option<Box<Chance>>,
    /// Far end of the wire.
    far: FarEnd,
    head: PacketId,
    /// Index, plus 1, of the switch at its near end, if that has a shared buffer.
    switch: Option<NonZeroU32>,
    /// Region where the wire ends.
    region: u16,
    /// Number of the port that the wire ends at, within a switch with a shared buffer;
    /// [`NOT_SHARED`] elsewhere.
    ingress: u16,
    /// Number of the port within the switch at its near end.
    egress: u16,
    span: WireSpan,
    /// Tap of the switch at the far end, which is shown to acknowledgements that come by this wire.
    tap: Tap,
}

/// A directed link with the queue before it.
///
/// An arrival touches the first cache line of the port that the packet comes from. Of the port that
/// it goes on to, it touches the second, and the others if it waits there.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Port {
    wire: Wire,
    serialiser: Serialiser,
    /// Packets that wait.
    pub queue: Queue,
    stats: PortStats,
    /// Two cache lines more in unit tests, where the golden table is the same.
    #[cfg(test)]
    padding: [u64; 16],
}

const _: () = assert!(
    size_of::<Wire>() == 64 && size_of::<Serialiser>() == 64,
    "each end is one cache line"
);

// Lines that are at the same place in every port would meet in half of the sets of a cache, or
// fewer, if the number of lines from port to port were even.
const _: () = assert!(
    size_of::<Port>() / 64 % 2 == 1,
    "the same lines of all ports spread over all sets of a cache"
);

/// Runs code on the sending end of a port, compiled for the most common discipline, for classes and
/// for any.
macro_rules! with_sending {
    ($port:expr, $shared:expr, $switches:expr, |$sending:ident| $body:expr) => {{
        let Port {
            wire,
            serialiser,
            queue,
            stats,
            ..
        } = $port;
        let egress = wire.egress;
        let buffer = match wire.switch {
            None => None,
            Some(switch) => $switches[switch.get() as usize - 1]
                .mmu
                .as_deref_mut()
                .map(|mmu| BufferView { mmu, egress }),
        };
        let q = QueueContext {
            now: Time::ZERO,
            shared: $shared,
            stats,
            buffer,
            marks: None,
        };
        match queue {
            Queue::DropTail(queue) => {
                let mut $sending = SendingEnd {
                    serialiser,
                    wire,
                    queue,
                    q,
                };
                $body
            }
            Queue::Classes(queue) => {
                let mut $sending = SendingEnd {
                    serialiser,
                    wire,
                    queue: &mut **queue,
                    q,
                };
                $body
            }
            queue => {
                let mut $sending = SendingEnd {
                    serialiser,
                    wire,
                    queue,
                    q,
                };
                $body
            }
        }
    }};
}

impl Port {
    /// Makes an idle port.
    #[must_use]
    pub fn new(rate_bps: u64, delay: Span, far: FarEnd, queue: Queue) -> Self {
        Self {
            wire: Wire {
                head_at: Time::MAX,
                head: PacketId::NONE,
                region: 0,
                span: WireSpan::Within,
                far,
                tap: Tap::None,
                arrived: PacketCount::default(),
                ingress: NOT_SHARED,
                egress: 0,
                switch: None,
                rate_bps,
                chance: None,
            },
            serialiser: Serialiser {
                due_at: Time::MAX,
                free_at: Time::ZERO,
                byte_time: ByteTime::of_rate(rate_bps),
                delay,
                wire_tail: PacketId::NONE,
                waiting: 0,
                bypassed: PacketCount::default(),
                bypass_allowed: queue.is_transparent(),
                scheduled: false,
                departure_scheduled: false,
                watch: Watch::NONE,
                up: true,
                paused: ClassMask::NONE,
                jitters: false,
                telemetry: PortTelemetry::OfNow,
            },
            queue,
            stats: PortStats::default(),
            #[cfg(test)]
            padding: [0; 16],
        }
    }

    /// Updates whether packets may bypass an empty queue.
    fn update_bypass(&mut self) {
        // Where classes share a buffer, what comes always takes its place there first.
        let has_place = self.wire.switch.is_some() && matches!(self.queue, Queue::Classes(_));
        let is_open = self.serialiser.up && self.serialiser.paused.is_empty();
        self.serialiser.bypass_allowed = self.queue.is_transparent() && is_open && !has_place;
    }

    /// Makes the port number `egress` of a switch with a shared buffer.
    pub(crate) fn share_buffer(&mut self, switch: u32, egress: u16) {
        self.wire.switch = NonZeroU32::new(switch + 1);
        self.wire.egress = egress;
        self.update_bypass();
    }

    /// Makes the port the one that sends to port number `ingress` of a switch with a shared buffer.
    pub(crate) fn end_at(&mut self, ingress: u16) {
        self.wire.ingress = ingress;
    }

    /// Returns the number of the port that this wire ends at, if the switch there has a shared
    /// buffer.
    #[inline]
    pub(crate) fn far_ingress(&self) -> Option<u16> {
        Some(self.wire.ingress).filter(|ingress| *ingress != NOT_SHARED)
    }

    /// Returns the switch at the near end, if it has a shared buffer, and the port's number there.
    #[inline]
    pub(crate) fn near_switch(&self) -> Option<(u32, u16)> {
        let switch = self.wire.switch?;
        Some((switch.get() - 1, self.wire.egress))
    }

    /// Lets packets take whole nanoseconds on the link, rounded down.
    pub(crate) fn truncate_to_ns(&mut self) {
        let byte_time = &mut self.serialiser.byte_time;
        *byte_time = byte_time.in_whole_ns();
    }

    /// Stamps packets that ask for it with telemetry as they leave.
    pub(crate) fn stamp_packets(&mut self) {
        self.serialiser.telemetry = PortTelemetry::Stamps;
    }

    /// Gives the telemetry of multiples of a period from now on.
    pub(crate) fn refresh_every(&mut self, period: Span) {
        self.serialiser.telemetry = PortTelemetry::Table;
        self.stats.int_table = Some(Box::new(IntTable::new(period)));
    }

    /// Returns the port's telemetry now, or of its last refresh; the port has been
    /// [advanced](Self::advance).
    pub(crate) fn telemetry(&mut self, now: Time) -> IntHop {
        let bytes = self.queue.bytes();
        let of = |stats: &PortStats, at| telemetry(at, &self.wire, &self.serialiser, stats, bytes);
        match self.stats.int_table.take() {
            None => of(&self.stats, now),
            Some(mut table) => {
                table.bring_to(now, |at| of(&self.stats, at));
                let entry = table.entry();
                self.stats.int_table = Some(table);
                entry
            }
        }
    }

    /// Sets what the switch at the far end shows to acknowledgements.
    pub(crate) fn set_tap(&mut self, tap: Tap) {
        self.wire.tap = tap;
    }

    /// Returns what the switch at the far end shows to acknowledgements.
    #[inline]
    pub(crate) fn tap(&self) -> Tap {
        self.wire.tap
    }

    /// Lets each packet take up to `most` longer from now on.
    pub(crate) fn jitter(&mut self, most: Span, rng: Stream) {
        self.wire.chance.get_or_insert_default().jitter = Some(Jitter::new(most, rng));
        self.serialiser.jitters = true;
    }

    /// Lets the link lose this share of all packets.
    pub(crate) fn lose(&mut self, share: f64, rng: Stream) {
        self.wire.chance.get_or_insert_default().loss = Some(Loss { share, rng });
    }

    /// Returns true if the link loses the packet that has reached its far end.
    #[inline]
    pub(crate) fn loses(&mut self) -> bool {
        self.wire.chance.as_deref_mut().is_some_and(Chance::loses)
    }

    /// Counts a packet that has reached the far end as lost.
    #[cold]
    pub(crate) fn count_loss(&mut self, wire_bytes: u16) {
        self.wire.arrived.packets -= 1;
        self.wire.arrived.bytes -= u64::from(wire_bytes);
        self.stats.count_loss(wire_bytes, DropReason::Lost);
    }

    /// Keeps a histogram of the queue's length from now on.
    pub(crate) fn keep_histogram(&mut self) {
        self.stats.histogram = Some(Box::default());
    }

    /// Returns the far end of the wire.
    #[inline]
    #[must_use]
    pub fn far(&self) -> FarEnd {
        self.wire.far
    }

    /// Returns the port's rate, in bit/s.
    #[must_use]
    pub fn rate_bps(&self) -> u64 {
        self.wire.rate_bps
    }

    /// Returns the bytes that it has sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.stats.sent.bytes + self.serialiser.bypassed.bytes
    }

    /// Returns the region where the wire ends.
    #[inline]
    pub(crate) fn region(&self) -> u32 {
        self.wire.region.into()
    }

    /// Returns the parts of the fabric in which the wire begins and ends.
    #[inline]
    pub(crate) fn span(&self) -> WireSpan {
        self.wire.span
    }

    /// Sets the region where the wire ends, and the parts of the fabric that it connects.
    pub(crate) fn set_region(&mut self, region: u16, span: WireSpan) {
        self.wire.region = region;
        self.wire.span = span;
    }

    /// Returns true if departures are events.
    #[inline]
    pub(crate) fn is_eager(&self) -> bool {
        self.serialiser.watch.contains(Watch::EAGER)
    }

    /// Makes departures events, or not.
    pub(crate) fn set_eager(&mut self, eager: bool) {
        self.serialiser.watch.set(Watch::EAGER, eager);
    }

    /// Flag of the port's pending event.
    #[inline]
    pub(crate) fn scheduled(&mut self) -> &mut bool {
        &mut self.serialiser.scheduled
    }

    /// Lets the queue's clock tick, if it has one.
    pub(crate) fn enable_clock(&mut self) {
        let stands = self.queue.next_tick().is_some();
        self.serialiser.watch.set(Watch::CLOCK_STANDS, stands);
    }

    /// Stops the queue's clock for good: another partition has the end with the queue.
    pub(crate) fn disable_clock(&mut self) {
        self.serialiser.watch.set(Watch::CLOCK_STANDS, false);
    }

    /// Returns the time of the next tick of the queue's clock, if that is to be scheduled, and
    /// takes it for scheduled.
    #[inline]
    pub(crate) fn start_clock(&mut self) -> Option<Time> {
        if !self.serialiser.watch.contains(Watch::CLOCK_STANDS) {
            return None;
        }
        let at = self.queue.next_tick().filter(|at| *at < Time::MAX)?;
        self.serialiser.watch.set(Watch::CLOCK_STANDS, false);
        Some(at)
    }

    /// Lets the queue's clock tick, after all departures until now. It stands then, until the next
    /// tick is scheduled.
    pub(crate) fn tick(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        switches: &mut [Switch],
        notices: &mut Vec<Notice>,
    ) {
        self.serialiser.watch.set(Watch::CLOCK_STANDS, true);
        self.advance(now, shared, switches);
        with_sending!(self, shared, switches, |sending| {
            sending.q.now = now;
            sending.queue.on_tick(&mut sending.q, notices);
        });
    }

    /// Returns true if an event of the port, of a departure or of a tick may be missing.
    #[inline]
    pub(crate) fn needs_scheduling(&self) -> bool {
        !self.serialiser.scheduled | (self.serialiser.watch != Watch::NONE)
    }

    /// Flag of the pending event of the [next departure](Self::next_departure).
    #[inline]
    pub(crate) fn departure_scheduled(&mut self) -> &mut bool {
        &mut self.serialiser.departure_scheduled
    }

    /// Simulates all departures until now.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, shared: &mut SharedState, switches: &mut [Switch]) {
        if self.serialiser.is_due(now) {
            self.depart_until(now, shared, switches);
        }
    }

    #[inline(never)]
    fn depart_until(&mut self, now: Time, shared: &mut SharedState, switches: &mut [Switch]) {
        with_sending!(self, shared, switches, |sending| sending.depart_until(now));
    }

    /// Takes a packet, after all departures until now.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        now: Time,
        id: PacketId,
        shared: &mut SharedState,
        switches: &mut [Switch],
    ) {
        let of_now = self.serialiser.telemetry == PortTelemetry::OfNow;
        if self.serialiser.can_bypass(now) & of_now {
            let packets = &mut shared.packets;
            self.serialiser.bypass(&mut self.wire, now, id, packets);
        } else {
            with_sending!(self, shared, switches, |sending| sending.accept(now, id));
        }
    }

    /// Returns true if a packet that comes now takes no buffer: it passes the queue, or the link is
    /// down. The port has been [advanced](Self::advance).
    #[inline]
    pub(crate) fn takes_no_buffer(&self, now: Time) -> bool {
        self.serialiser.can_bypass(now) || !self.serialiser.up
    }

    /// Drops a packet that the switch's buffer refused; the port has been
    /// [advanced](Self::advance).
    #[cold]
    pub(crate) fn refuse(&mut self, id: PacketId, shared: &mut SharedState) {
        let packet = shared.discard(id);
        self.stats.offered.add(packet.wire_bytes);
        self.stats.count_drop(packet.wire_bytes, DropReason::Full);
    }

    /// Takes `wire_bytes` bytes of the link's time behind the packet that is being sent, ahead of
    /// all that wait. Returns the time of the last bit. The port has been
    /// [advanced](Self::advance).
    pub(crate) fn occupy(&mut self, now: Time, wire_bytes: u16) -> Time {
        let serialiser = &mut self.serialiser;
        serialiser.free_at = serialiser.free_at.max(now) + serialiser.byte_time.of(wire_bytes);
        if serialiser.due_at < Time::MAX {
            serialiser.set_due(serialiser.due_at.max(serialiser.free_at));
        }
        serialiser.free_at
    }

    /// Takes the packet that reaches the far end now.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Time, packets: &PacketSlab) -> Option<PacketId> {
        let id = self.wire.head;
        // The event may have been a departure, or the packet of a link that failed since.
        if !id.is_some() || self.wire.head_at > now {
            return None;
        }
        let packet = &packets[id];
        // The next packet is read at its own arrival, at least one event from now.
        packets.prefetch(packet.next);
        self.unchain(packet);
        self.wire.arrived.add(packet.wire_bytes);
        Some(id)
    }

    /// Takes the first packet off the wire, with its arrival time, for the partition where the wire
    /// ends.
    #[inline]
    pub(crate) fn export(&mut self, packets: &PacketSlab) -> Option<(Time, PacketId)> {
        let at = self.next_arrival()?;
        let id = self.wire.head;
        self.unchain(&packets[id]);
        Some((at, id))
    }

    /// Puts a packet onto the end of the wire that was sent in the partition where it begins.
    #[inline]
    pub(crate) fn import(&mut self, at: Time, id: PacketId, packets: &mut PacketSlab) {
        self.serialiser.append(&mut self.wire, at, id, packets);
    }

    /// Takes the first packet out of the wire's chain.
    #[inline]
    fn unchain(&mut self, first: &Packet) {
        self.wire.head = first.next;
        self.wire.head_at = first.at;
        if !first.next.is_some() {
            self.serialiser.wire_tail = PacketId::NONE;
        }
    }

    /// Returns the arrival time of the wire's first packet.
    #[inline]
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.wire.head.is_some().then_some(self.wire.head_at)
    }

    /// Returns the time at which the link is free. After an advance, packets that wait beyond it
    /// are of paused classes or such as a shaper holds back.
    #[inline]
    pub(crate) fn free_at(&self) -> Time {
        self.serialiser.free_at
    }

    /// Returns the classes of packets that are not paused.
    #[inline]
    pub(crate) fn open_classes(&self) -> ClassMask {
        let mut paused = self.serialiser.paused;
        if !paused.is_empty() {
            // Packets of classes beyond the queue's last one are of that.
            let last = self.queue.classes() - 1;
            if paused.contains(last) {
                paused = paused.or(ClassMask(u8::MAX << last));
            }
        }
        paused.complement()
    }

    /// Returns the time of the next departure.
    pub(crate) fn next_departure(&self) -> Option<Time> {
        // A port whose classes are all paused has no event of its own until one is resumed.
        let due_at = self.serialiser.due_at;
        (due_at < Time::MAX).then_some(due_at)
    }

    /// Prefetches the lines that a packet touches of the port that it goes on to.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::<_, 1>(&self.serialiser);
        prefetch::<_, 1>(&self.queue);
        prefetch::<_, 2>(&self.stats);
    }

    /// Prefetches the line that a packet touches of the port that it arrives from.
    #[inline]
    pub(crate) fn prefetch_wire(&self) {
        prefetch::<_, 1>(&self.wire);
    }

    /// Prefetches all lines of the port.
    #[inline]
    pub(crate) fn prefetch_all(&self) {
        prefetch::<Self, { size_of::<Self>() / 64 }>(self);
    }

    /// Prefetches the packet that the port's next event touches.
    #[inline]
    pub(crate) fn prefetch_packets(&self, packets: &PacketSlab) {
        packets.prefetch(self.wire.head);
    }

    /// Prefetches the packets that another packet's arrival at the port touches.
    #[inline]
    pub(crate) fn prefetch_neighbours(&self, packets: &PacketSlab) {
        packets.prefetch(self.serialiser.wire_tail);
        if self.serialiser.waiting > 0 {
            packets.prefetch(self.queue.front());
            packets.prefetch(self.queue.back());
        }
    }

    /// Returns the first packet of the wire.
    #[inline]
    pub(crate) fn first_on_wire(&self) -> PacketId {
        self.wire.head
    }

    /// Pauses or resumes a class, as the far end asks (priority flow control, IEEE 802.1Qbb); the
    /// port has been [advanced](Self::advance).
    pub(crate) fn set_paused(&mut self, now: Time, class: u8, pause: bool) {
        let bit = ClassMask::of(class.into());
        let paused = &mut self.serialiser.paused;
        *paused = if pause {
            paused.or(bit)
        } else {
            paused.without(bit)
        };
        let any_paused = !paused.is_empty();
        self.stats.count_pause(now, class, pause, any_paused);
        // A resumed class sends from now on and not in its past.
        self.serialiser.ask_again(now);
        self.update_bypass();
    }

    /// Returns true if a class has been paused since a time or longer.
    pub(crate) fn is_paused_since(&self, time: Time) -> bool {
        self.stats.is_paused_since(time)
    }

    /// Returns the classes that the far end pauses.
    #[must_use]
    pub fn paused(&self) -> ClassMask {
        self.serialiser.paused
    }

    /// Changes the link's rate from the next packet on; the port has been
    /// [advanced](Self::advance).
    pub(crate) fn set_rate(&mut self, rate_bps: u64) {
        self.wire.rate_bps = rate_bps;
        // The packet that is being sent keeps its old end, which `free_at` holds.
        let truncates = self.serialiser.byte_time.0 >= WHOLE_NS;
        self.serialiser.byte_time = ByteTime::of_rate(rate_bps);
        if truncates {
            self.truncate_to_ns();
        }
    }

    /// Fails or repairs the link; the port has been [advanced](Self::advance). Packets in the queue
    /// or on the wire of a link that fails are lost.
    pub(crate) fn set_up(
        &mut self,
        now: Time,
        up: bool,
        shared: &mut SharedState,
        switches: &mut [Switch],
    ) {
        let failed = self.serialiser.up && !up;
        self.serialiser.up = up;
        self.update_bypass();
        if !failed {
            return;
        }
        with_sending!(&mut *self, &mut *shared, switches, |sending| sending
            .drop_all(now));
        while self.wire.head.is_some() {
            let id = self.wire.head;
            self.wire.head = shared.packets[id].next;
            let packet = shared.discard(id);
            self.stats
                .count_loss(packet.wire_bytes, DropReason::LinkDown);
        }
        self.serialiser.wire_tail = PacketId::NONE;
        // The packet that was being sent is lost with the wire.
        self.serialiser.free_at = now;
        self.serialiser.set_due(Time::MAX);
    }

    /// Marks the link as down from the beginning.
    pub(crate) fn start_down(&mut self) {
        self.serialiser.up = false;
        self.update_bypass();
    }

    /// Iterates over the packets on the wire, first to arrive first.
    pub(crate) fn wire<'a>(
        &self,
        shared: &'a SharedState,
    ) -> impl Iterator<Item = PacketId> + use<'a> {
        let some = |id: PacketId| id.is_some().then_some(id);
        std::iter::successors(some(self.wire.head), move |id| {
            some(shared.packets[*id].next)
        })
    }

    /// Accounts for the time at the present queue length; the port has been
    /// [advanced](Self::advance).
    pub(crate) fn account(&mut self, now: Time) {
        self.stats
            .account(now, self.queue.packets(), self.queue.bytes());
    }

    /// Resets means, maxima and the histogram at the end of a warm-up.
    pub(crate) fn reset_averages(&mut self, now: Time) {
        self.stats.reset_averages(now);
    }

    /// Returns the counters of the sending end.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        // Bypassing packets touch only the serialiser's line; they were offered and sent at once.
        let mut stats = self.stats.clone();
        stats.offered = stats.offered + self.serialiser.bypassed;
        stats.sent = stats.sent + self.serialiser.bypassed;
        stats
    }

    /// Returns true unless the link is down.
    pub(crate) fn is_up(&self) -> bool {
        self.serialiser.up
    }

    /// Returns the packets that reached the far end.
    #[must_use]
    pub fn arrived(&self) -> PacketCount {
        self.wire.arrived
    }

    /// Returns the serialisation time of `wire_bytes` bytes.
    #[must_use]
    pub fn serialisation(&self, wire_bytes: u16) -> Span {
        self.serialiser.byte_time.of(wire_bytes)
    }

    /// Returns the time from the last bit sent to the packet's arrival, host processing included.
    #[must_use]
    pub fn delay(&self) -> Span {
        self.serialiser.delay
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
        // ns-3.17: 1,048 bytes at 100 Gbit/s are 83.84 ns, and 83 there.
        let truncated = ByteTime::of_rate(100 * G).in_whole_ns();
        assert_eq!(truncated.of(1_048), Span::from_ns(83));
        assert_eq!(truncated.of_bytes(1_048), Span(83_840));
    }
}
