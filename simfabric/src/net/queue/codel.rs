//! CoDel (RFC 8289): drops, or marks, by how long packets stay in the queue rather than by how many
//! there are.

use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use crate::time::{Span, Time};
use crate::units::Delay;

crate::parameters! {
    /// CoDel's control law.
    pub struct CodelConfig {
        /// Acceptable sojourn time of a standing queue (RFC 8289 §4.3: 5 ms, for the Internet).
        target: Delay = Delay::from_ms(5),
        /// Time for which it may be exceeded: a worst-case round trip (§4.3: 100 ms).
        interval: Delay = Delay::from_ms(100),
        /// Packets that understand marks are marked instead of dropped.
        ecn: bool = true,
    }
}

crate::parameters! {
    /// CoDel: marks or drops by sojourn time.
    pub struct Config {
        ..
        /// Target, interval, marks.
        control: CodelConfig = CodelConfig::default(),
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "codel";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        self.limit.check(packet_bytes)
    }

    fn build(&self, _: u64, _: &mut Stream) -> Queue {
        let queue = CodelQueue::new(self.control.clone(), self.limit.capacity());
        Queue::Codel(Box::new(queue))
    }
}

/// The control law of one queue (RFC 8289 §5): decides at each dequeue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    /// Time at which the sojourn time will have been above target for an interval.
    first_above: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    dropping: bool,
    /// Largest packet seen; a queue shorter than it is never too long.
    largest_bytes: u64,
}

impl Codel {
    /// Returns the time of the next drop: the interval over the square root of the count (§5.6).
    fn control_law(&self, config: &CodelConfig, from: Time) -> Time {
        // TCP's throughput falls with the square root of the drop rate, so that this spacing lowers
        // it linearly.
        from + config
            .interval
            .0
            .mul_f64(1.0 / f64::from(self.count).sqrt())
    }

    /// Takes the oldest packet and returns whether it may be dropped (§5.6, `dodequeue`).
    fn take(
        &mut self,
        config: &CodelConfig,
        q: &QueueContext<'_>,
        fifo: &mut Fifo,
    ) -> Option<(PacketId, bool)> {
        let Some(id) = fifo.pop(&q.shared.packets) else {
            self.first_above = None;
            return None;
        };
        let packet = q.packet(id);
        self.largest_bytes = self.largest_bytes.max(u64::from(packet.wire_bytes));
        let sojourn = q.now.since(packet.at);
        // §5.6: a packet's worth or less behind it is no standing queue, whatever the delay.
        if sojourn < config.target.0 || fifo.bytes() <= self.largest_bytes {
            self.first_above = None;
            return Some((id, false));
        }
        match self.first_above {
            None => {
                self.first_above = Some(q.now + config.interval.0);
                Some((id, false))
            }
            Some(at) => Some((id, q.now >= at)),
        }
    }

    /// Takes the next packet of the queue, after the drops or marks that are due (§5.5).
    pub fn dequeue(
        &mut self,
        config: &CodelConfig,
        q: &mut QueueContext<'_>,
        fifo: &mut Fifo,
    ) -> Option<PacketId> {
        let Some((mut id, mut ok_to_drop)) = self.take(config, q, fifo) else {
            self.dropping = false;
            return None;
        };
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            // One dequeue may drop several packets: the control law runs by time and not by
            // packets.
            while self.dropping && q.now >= self.drop_next {
                self.count += 1;
                if config.ecn && q.mark(id) {
                    self.drop_next = self.control_law(config, self.drop_next);
                    return Some(id);
                }
                q.drop(id, DropReason::Early);
                match self.take(config, q, fifo) {
                    None => {
                        self.dropping = false;
                        return None;
                    }
                    Some(next) => (id, ok_to_drop) = next,
                }
                if ok_to_drop {
                    self.drop_next = self.control_law(config, self.drop_next);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            let marked = config.ecn && q.mark(id);
            if !marked {
                q.drop(id, DropReason::Early);
            }
            self.dropping = true;
            // §5.4: soon after the last time, go on from about where it was.
            let delta = self.count.saturating_sub(self.last_count);
            let recent = q.now.since(self.drop_next) < Span(config.interval.0.0.saturating_mul(16));
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = self.control_law(config, q.now);
            self.last_count = self.count;
            if !marked {
                let Some((next, _)) = self.take(config, q, fifo) else {
                    self.dropping = false;
                    return None;
                };
                id = next;
            }
        }
        Some(id)
    }
}

/// A queue under CoDel.
#[derive(Debug)]
pub struct CodelQueue {
    fifo: Fifo,
    control: Codel,
    config: CodelConfig,
    limit: QueueLimit,
}

impl CodelQueue {
    /// Makes an empty queue.
    #[must_use]
    pub fn new(config: CodelConfig, limit: QueueLimit) -> Self {
        Self {
            fifo: Fifo::default(),
            control: Codel::default(),
            config,
            limit,
        }
    }
}

impl Discipline for CodelQueue {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let wire_bytes = q.packet(id).wire_bytes;
        if self
            .limit
            .fits(self.fifo.packets(), self.fifo.bytes(), wire_bytes)
        {
            self.fifo.push(&mut q.shared.packets, id);
        } else {
            q.drop(id, DropReason::Full);
        }
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        self.control.dequeue(&self.config, q, &mut self.fifo)
    }

    #[inline]
    fn front(&self) -> PacketId {
        self.fifo.front().unwrap_or(PacketId::NONE)
    }

    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        self.fifo.iter(packets).for_each(each);
    }

    fn packets(&self) -> u32 {
        self.fifo.packets()
    }

    fn bytes(&self) -> u64 {
        self.fifo.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::queue::testing::{Bench, packet};
    use crate::packet::Flags;

    const CONFIG: CodelConfig = CodelConfig {
        target: Delay::from_ms(5),
        interval: Delay::from_ms(100),
        ecn: false,
    };

    /// A queue that always has a delay of 20 ms: one packet in and one out per millisecond.
    fn drops_at(config: CodelConfig, milliseconds: u64) -> Vec<u64> {
        let mut bench = Bench::new(CodelQueue::new(config, QueueLimit::Unlimited));
        let mut at = Vec::new();
        for ms in 0..milliseconds {
            bench.now = Time::from_ms(ms);
            bench.put(packet(0, ms, 1_000));
            while bench.queue.packets() < 21 && ms >= 21 {
                // What was dropped is made up for, so that the delay stays.
                bench.put(packet(0, ms, 1_000));
            }
            if ms >= 20 {
                let before = bench.drops(DropReason::Early) + bench.stats.marks;
                bench.take();
                if bench.drops(DropReason::Early) + bench.stats.marks > before {
                    at.push(ms);
                }
            }
        }
        at
    }

    #[test]
    fn nothing_is_dropped_below_the_target() {
        let mut bench = Bench::new(CodelQueue::new(CONFIG, QueueLimit::Unlimited));
        for ms in 0..1_000 {
            bench.now = Time::from_ms(ms);
            bench.put(packet(0, ms, 1_000));
            bench.put(packet(0, ms, 1_000));
            bench.now += Span::from_us(4_900);
            bench.take();
            bench.take();
        }
        assert_eq!(bench.drops(DropReason::Early), 0);
    }

    #[test]
    fn drops_begin_after_an_interval_and_come_faster_by_the_square_root() {
        let at = drops_at(CONFIG, 600);
        // First above target at 20 ms, so that 120 ms is the first drop; the next ones follow after
        // 100, 70.7, 57.7, 50 ms (RFC 8289 §5.4), at the next dequeue.
        let expected = [120.0, 220.0, 290.7, 348.4, 398.4, 443.2];
        for (ours, expected) in at.iter().zip(expected) {
            assert!((*ours as f64 - expected).abs() <= 2.0, "{at:?}");
        }
        assert!(at.len() >= 6, "{at:?}");
    }

    #[test]
    fn packets_that_understand_marks_are_marked_at_the_same_times() {
        let marked = drops_at(
            CodelConfig {
                ecn: true,
                ..CONFIG
            },
            400,
        );
        assert_eq!(marked[0], 120);
        let mut bench = Bench::new(CodelQueue::new(
            CodelConfig {
                ecn: true,
                ..CONFIG
            },
            QueueLimit::Unlimited,
        ));
        for ms in 0..200 {
            bench.now = Time::from_ms(ms);
            bench.put(packet(0, ms, 1_000));
            if ms >= 20
                && let Some(taken) = bench.take()
            {
                assert!(!taken.flags.contains(Flags::CE) || ms >= 120);
            }
        }
        assert_eq!(bench.drops(DropReason::Early), 0);
        assert!(bench.stats.marks >= 1);
    }
}
