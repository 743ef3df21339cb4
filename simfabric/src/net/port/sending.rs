//! The sending end of a port: queue, serialiser, and entry to the wire.

use rand::RngExt as _;

use super::{ByteTime, Wire};
use crate::ext::IntHop;
use crate::flow::PacketCount;
use crate::net::queue::{ClassMask, Discipline, DropReason, Next, QueueContext};
use crate::net::stats::PortStats;
use crate::packet::{Flags, PacketId, PacketSlab};
use crate::rng::Stream;
use crate::time::{Span, Time};

/// State that every packet touches at the sending end, whether it waits or not: one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Serialiser {
    /// Time at which the next departure may begin: no packet leaves before it. The greatest time
    /// if none waits, or none of an open class.
    pub(super) due_at: Time,
    /// Time at which the serialiser is free.
    pub(super) free_at: Time,
    pub(super) byte_time: ByteTime,
    /// Time from the last bit sent to the packet's arrival.
    pub(super) delay: Span,
    /// Last packet on the wire.
    pub(super) wire_tail: PacketId,
    /// Packets in the queue; a copy that spares reading the queue's own line.
    pub(super) waiting: u32,
    /// Packets that bypassed the queue, because none waited and none was being sent.
    pub(super) bypassed: PacketCount,
    /// True if packets may bypass an empty queue: the discipline allows it, the link is up and no
    /// class is paused.
    pub(super) bypass_allowed: bool,
    /// True if the port's event is pending.
    pub(super) scheduled: bool,
    /// True if an event of the departure at `due_at` is pending.
    pub(super) departure_scheduled: bool,
    /// Reasons to look for missing events after every packet.
    pub(super) watch: Watch,
    pub(super) up: bool,
    /// Priority flow control: classes of which no packet leaves, because the far end pauses them.
    pub(super) paused: ClassMask,
    /// True if the wire has a [`Jitter`], which otherwise is not read.
    pub(super) jitters: bool,
    /// Telemetry that the port gives beside that of now.
    pub(super) telemetry: PortTelemetry,
}

/// Telemetry that a port gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PortTelemetry {
    /// That of now, to whoever asks.
    OfNow,
    /// That of now, and packets that ask for it are stamped as they leave.
    Stamps,
    /// That of the last refresh of the port's [`IntTable`].
    Table,
}

/// A port's entry in its switch's All_INT_Table, which is refreshed periodically (FNCC §4.1).
///
/// It is computed when it is read, or when the port changes: that is late, but of the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntTable {
    period: Span,
    /// Time of the last refresh that was computed.
    refreshed: Option<Time>,
    entry: IntHop,
}

impl IntTable {
    /// Makes an entry that is refreshed at multiples of a period.
    pub(super) fn new(period: Span) -> Self {
        Self {
            period,
            refreshed: None,
            entry: IntHop::NONE,
        }
    }

    /// Returns the entry.
    pub(super) fn entry(&self) -> IntHop {
        self.entry
    }

    /// Brings the entry to the last refresh until now, if nothing has changed since the one before.
    pub(super) fn bring_to(&mut self, now: Time, telemetry_at: impl FnOnce(Time) -> IntHop) {
        let period = self.period.0.max(1);
        let last = Time(now.0 / period * period);
        if self.refreshed.is_none_or(|refreshed| refreshed < last) {
            self.refreshed = Some(last);
            self.entry = telemetry_at(last);
        }
    }
}

/// Reasons to look at a port's events after every packet, though its wire's event is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Watch(pub(super) u8);

impl Watch {
    pub(super) const NONE: Self = Self(0);
    /// Departures are events.
    pub(super) const EAGER: Self = Self(1);
    /// The queue has a clock, no tick of which is pending: a packet may start it.
    pub(super) const CLOCK_STANDS: Self = Self(2);

    pub(super) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn set(&mut self, other: Self, on: bool) {
        if on {
            self.0 |= other.0;
        } else {
            self.0 &= !other.0;
        }
    }
}

/// Variation of a host's processing time. It passes behind the NIC's queue, as that time does.
#[derive(Debug)]
pub(super) struct Jitter {
    most: Span,
    rng: Stream,
    /// Arrival time of the packet before.
    last: Time,
}

impl Jitter {
    pub(super) fn new(most: Span, rng: Stream) -> Self {
        let last = Time::ZERO;
        Self { most, rng, last }
    }

    /// Returns the arrival time of a packet that would arrive at `at` without jitter and takes
    /// `serialisation` on the link.
    fn delay(&mut self, at: Time, serialisation: Span) -> Time {
        let extra = Span(self.rng.random_range(0..=self.most.0));
        // In order, and no closer to the packet before than the link's rate allows.
        self.last = (at + extra).max(self.last + serialisation);
        self.last
    }
}

/// Losses on a link.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) share: f64,
    pub(super) rng: Stream,
}

/// Chance on a link: the near end draws jitter, the far end losses.
#[derive(Debug, Default)]
pub(super) struct Chance {
    pub(super) jitter: Option<Jitter>,
    pub(super) loss: Option<Loss>,
}

impl Chance {
    /// Returns true if the next packet is lost. Out of line: few runs lose any.
    #[cold]
    #[inline(never)]
    pub(super) fn loses(&mut self) -> bool {
        let loss = self.loss.as_mut();
        loss.is_some_and(|loss| loss.rng.random_bool(loss.share))
    }
}

impl Wire {
    /// Returns a packet's arrival time with jitter. Out of line: few runs have any.
    #[cold]
    #[inline(never)]
    fn jittered(&mut self, at: Time, serialisation: Span) -> Time {
        match self
            .chance
            .as_mut()
            .and_then(|chance| chance.jitter.as_mut())
        {
            Some(jitter) => jitter.delay(at, serialisation),
            None => at,
        }
    }
}

impl Serialiser {
    /// Returns true if a departure is due.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.due_at <= now
    }

    /// Sets the time of the next departure.
    #[inline]
    pub(super) fn set_due(&mut self, at: Time) {
        // An event for another time stays pending and finds nothing to do.
        self.departure_scheduled &= at == self.due_at;
        self.due_at = at;
    }

    /// Lets the queue be asked for a packet as soon as the serialiser is free, after a change.
    #[inline]
    pub(super) fn ask_again(&mut self, now: Time) {
        if self.waiting > 0 {
            self.set_due(self.free_at.max(now));
        }
    }

    /// Lets the queue be asked for a packet that waits from now on and may leave at `opens_at`.
    #[inline]
    fn ask_for(&mut self, now: Time, opens_at: Time) {
        if self.paused.is_empty() {
            let at = self.free_at.max(now).max(opens_at);
            self.set_due(at.min(self.due_at));
        } else {
            self.ask_again(now);
        }
    }

    /// Returns true if a packet that comes now bypasses the queue; departures until now are done.
    #[inline]
    pub(super) fn can_bypass(&self, now: Time) -> bool {
        // Without short circuit: one branch instead of three.
        (self.waiting == 0) & (self.free_at <= now) & self.bypass_allowed
    }

    /// Sends a packet past the queue.
    #[inline]
    pub(super) fn bypass(
        &mut self,
        wire: &mut Wire,
        now: Time,
        id: PacketId,
        packets: &mut PacketSlab,
    ) {
        let wire_bytes = self.launch(wire, now, id, packets);
        self.bypassed.add(wire_bytes);
    }

    /// Begins to send a packet and appends it to the wire. Returns its bytes on the link. Inlined:
    /// every packet takes one of its few ways here at every hop.
    #[inline(always)]
    pub(super) fn launch(
        &mut self,
        wire: &mut Wire,
        at: Time,
        id: PacketId,
        packets: &mut PacketSlab,
    ) -> u16 {
        let packet = &mut packets[id];
        let wire_bytes = packet.wire_bytes;
        packet.count_hop();
        packet.next = PacketId::NONE;
        let serialisation = self.byte_time.of(wire_bytes);
        self.free_at = at + serialisation;
        let mut arrives_at = self.free_at + self.delay;
        if self.jitters {
            arrives_at = wire.jittered(arrives_at, serialisation);
        }
        self.append(wire, arrives_at, id, packets);
        wire_bytes
    }

    /// Appends a packet to the wire's chain.
    #[inline]
    pub(super) fn append(
        &mut self,
        wire: &mut Wire,
        arrives_at: Time,
        id: PacketId,
        packets: &mut PacketSlab,
    ) {
        // Arrivals on one wire are in order of departure, so appending keeps the chain sorted. A
        // rate that rises keeps it so, since serialisation precedes the common delay.
        if self.wire_tail.is_some() {
            let tail = &mut packets[self.wire_tail];
            tail.next = id;
            tail.at = arrives_at;
        } else {
            wire.head = id;
            wire.head_at = arrives_at;
        }
        self.wire_tail = id;
    }
}

/// Returns a port's telemetry: what it has sent, and what waits.
pub(super) fn telemetry(
    at: Time,
    wire: &Wire,
    serialiser: &Serialiser,
    stats: &PortStats,
    queue_bytes: u64,
) -> IntHop {
    let sent = stats.sent.bytes + serialiser.bypassed.bytes;
    IntHop::new(wire.rate_bps, at, sent, queue_bytes)
}

/// The sending end with its queue. The discipline is a type here, so that a packet's path has one
/// dispatch on it.
pub(super) struct SendingEnd<'a, D> {
    pub(super) serialiser: &'a mut Serialiser,
    pub(super) wire: &'a mut Wire,
    pub(super) queue: &'a mut D,
    /// Access of the queue to the run; its time is that of each operation.
    pub(super) q: QueueContext<'a>,
}

impl<D: Discipline> SendingEnd<'_, D> {
    /// Simulates all departures until now. Inlined: most packets that come find some due.
    #[inline(always)]
    pub(super) fn depart_until(&mut self, now: Time) {
        while self.serialiser.is_due(now) {
            let at = self.serialiser.due_at;
            // Accounted before the departure, with the length that lasted until then.
            let bytes = self.queue.bytes();
            self.q.stats.account(at, self.serialiser.waiting, bytes);
            self.note(at);
            self.send_next(at);
        }
    }

    /// Refreshes the port's table, if it has one, before the port changes.
    #[inline]
    fn note(&mut self, at: Time) {
        if self.serialiser.telemetry == PortTelemetry::Table {
            self.refresh_table(at);
        }
    }

    #[cold]
    fn refresh_table(&mut self, at: Time) {
        let bytes = self.queue.bytes();
        if let Some(mut table) = self.q.stats.int_table.take() {
            let stats = &self.q.stats;
            table.bring_to(at, |at| {
                telemetry(at, self.wire, self.serialiser, stats, bytes)
            });
            self.q.stats.int_table = Some(table);
        }
    }

    /// Returns true if a packet that comes now bypasses the queue, which has taken note of it. What
    /// waits while the link is free is of classes that are held back.
    #[inline]
    fn passes(&mut self, now: Time, id: PacketId) -> bool {
        let serialiser = &*self.serialiser;
        if serialiser.can_bypass(now) {
            return true;
        }
        let is_idle = serialiser.free_at <= now;
        let is_open = serialiser.up && serialiser.paused.is_empty();
        // A buffer is given to what waits, for however short a time.
        if !is_idle || !is_open || self.q.buffer.is_some() {
            return false;
        }
        let packet = &self.q.shared.packets[id];
        self.queue.pass(now, packet.class, packet.wire_bytes)
    }

    /// Takes a packet, after all departures until now.
    #[inline]
    pub(super) fn accept(&mut self, now: Time, id: PacketId) {
        self.depart_until(now);
        self.note(now);
        let passes = self.passes(now, id);
        let packets = &mut self.q.shared.packets;
        if passes {
            if self.serialiser.telemetry == PortTelemetry::Stamps
                && packets[id].flags.contains(Flags::INT)
            {
                let bytes = self.queue.bytes();
                let hop = telemetry(now, self.wire, self.serialiser, self.q.stats, bytes);
                self.q.shared.extensions.stamp(&mut packets[id], hop);
            }
            self.serialiser.bypass(self.wire, now, id, packets);
            // What a shaper holds back waits for this packet, too.
            if self.serialiser.due_at < self.serialiser.free_at {
                self.serialiser.set_due(self.serialiser.free_at);
            }
            return;
        }
        let packet = &mut packets[id];
        packet.at = now;
        let class = packet.class;
        self.q.stats.offered.add(packet.wire_bytes);
        let waiting = self.serialiser.waiting;
        // What passes through an empty queue changes none of its means: that queue was and stays
        // empty.
        let idle = waiting == 0 && self.serialiser.free_at <= now;
        if !idle {
            self.q.stats.account(now, waiting, self.queue.bytes());
        }
        self.q.now = now;
        // Counted as offered first: conservation sums what is offered.
        if !self.serialiser.up {
            // It took no buffer.
            self.q.buffer = None;
            self.q.drop(id, DropReason::LinkDown);
            return;
        }
        self.queue.enqueue(&mut self.q, id);
        let waiting = self.queue.packets();
        // The discipline may have dropped this packet or others, so the length is read again.
        self.serialiser.waiting = waiting;
        if waiting == 0 {
            self.serialiser.set_due(Time::MAX);
            return;
        }
        self.serialiser.ask_for(now, self.queue.opens_at(class));
        // Also where others wait, if those are of classes that are paused or shaped.
        if self.serialiser.is_due(now) {
            self.send_next(now);
        }
        let waiting = self.serialiser.waiting;
        if waiting > 0 {
            if idle {
                self.q.stats.account(now, 0, 0);
            }
            self.q.stats.record_length(waiting, self.queue.bytes());
        }
    }

    /// Begins to send the queue's next packet, if one may go. The queue may drop all packets that
    /// it has instead.
    #[inline]
    fn send_next(&mut self, at: Time) {
        self.q.now = at;
        let open = self.serialiser.paused.complement();
        let next = self.queue.select(&mut self.q, open);
        self.serialiser.waiting = self.queue.packets();
        let id = match next {
            Next::Packet(id) => id,
            Next::At(at) => return self.serialiser.set_due(at),
            // All that waits is paused, or the discipline dropped all it had.
            Next::Nothing => return self.serialiser.set_due(Time::MAX),
        };
        let packets = &mut self.q.shared.packets;
        if let Some(buffer) = &mut self.q.buffer {
            buffer.release(at, &packets[id]);
        }
        if self.serialiser.telemetry == PortTelemetry::Stamps
            && packets[id].flags.contains(Flags::INT)
        {
            let bytes = self.queue.bytes();
            let hop = telemetry(at, self.wire, self.serialiser, self.q.stats, bytes);
            self.q.shared.extensions.stamp(&mut packets[id], hop);
        }
        let wire_bytes = self.serialiser.launch(self.wire, at, id, packets);
        self.q.stats.sent.add(wire_bytes);
        let waits = self.serialiser.waiting > 0;
        let due_at = if waits {
            self.serialiser.free_at.max(self.queue.next_opens_at())
        } else {
            Time::MAX
        };
        self.serialiser.set_due(due_at);
    }

    /// Drops all waiting packets, because the link fails.
    pub(super) fn drop_all(&mut self, now: Time) {
        let bytes = self.queue.bytes();
        self.q.stats.account(now, self.serialiser.waiting, bytes);
        self.note(now);
        self.q.now = now;
        while self.queue.packets() > 0 {
            // A discipline may drop packets by itself meanwhile; those are counted by their reason.
            if let Some(id) = self.queue.dequeue(&mut self.q) {
                self.q.drop(id, DropReason::LinkDown);
            }
        }
        self.serialiser.waiting = 0;
    }
}
