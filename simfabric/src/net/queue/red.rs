//! RED (Floyd and Jacobson 1993): drops, or marks, with a probability that grows with the mean
//! length of the queue; gentle above the upper threshold.

use rand::RngExt as _;

use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use crate::time::Time;

crate::parameters! {
    /// RED's probability, with Floyd's recommendations for a queue of some hundred packets.
    pub struct RedConfig {
        /// Mean length, in packets, below which no packet is dropped.
        min_packets: f64 = 15.0,
        /// Mean length, in packets, at which the probability is `max_probability`.
        max_packets: f64 = 45.0,
        /// Probability at `max_packets`; beyond, it grows to 1 at twice that length.
        max_probability: f64 = 0.1,
        /// Weight of the newest sample in the mean.
        weight: f64 = 0.002,
        /// Packets that understand marks are marked instead of dropped.
        ecn: bool = true,
    }
}

crate::parameters! {
    /// RED: marks or drops by the mean length.
    pub struct Config {
        ..
        /// Thresholds, probability, weight, marks.
        control: RedConfig = RedConfig::default(),
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "red";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        let control = &self.control;
        // Written so that NaN fails, too: it is neither above nor below anything.
        let (min, max) = (control.min_packets, control.max_packets);
        if !(min >= 0.0 && max > min && max.is_finite()) {
            let message = "`max_packets` must be above `min_packets`, which must not be below 0";
            return Err(ParamError::of("max_packets", message));
        }
        for (key, share) in [
            ("max_probability", control.max_probability),
            ("weight", control.weight),
        ] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        self.limit.check(packet_bytes)
    }

    fn build(&self, rate_bps: u64, rng: &mut Stream) -> Queue {
        let limit = self.limit.capacity();
        let queue = Red::new(self.control.clone(), limit, rate_bps, rng.split());
        Queue::Red(Box::new(queue))
    }
}

/// A queue under RED.
#[derive(Debug)]
pub struct Red {
    fifo: Fifo,
    config: RedConfig,
    limit: QueueLimit,
    rate_bps: u64,
    mean: f64,
    /// Packets since the last drop; −1 while the mean is below the lower threshold.
    count: i64,
    /// Time since which the queue is empty.
    idle_since: Option<Time>,
    rng: Stream,
}

impl Red {
    /// Makes an empty queue for a port of this rate.
    #[must_use]
    pub fn new(config: RedConfig, limit: QueueLimit, rate_bps: u64, rng: Stream) -> Self {
        Self {
            fifo: Fifo::default(),
            config,
            limit,
            rate_bps,
            mean: 0.0,
            count: -1,
            idle_since: Some(Time::ZERO),
            rng,
        }
    }

    fn sample(&mut self, q: &QueueContext<'_>, wire_bytes: u16) {
        let weight = self.config.weight;
        if let Some(since) = self.idle_since.take() {
            // As if an empty queue had been sampled once per packet that could have left.
            let seconds = f64::from(wire_bytes) * 8.0 / self.rate_bps.max(1) as f64;
            let samples = q.now.since(since).as_secs_f64() / seconds;
            self.mean *= (1.0 - weight).powf(samples);
        } else {
            self.mean += weight * (f64::from(self.fifo.packets()) - self.mean);
        }
    }

    fn probability(&self) -> f64 {
        let RedConfig {
            min_packets: min,
            max_packets: max,
            max_probability: at_max,
            ..
        } = self.config;
        if self.mean < max {
            at_max * (self.mean - min) / (max - min)
        } else {
            (at_max + (1.0 - at_max) * (self.mean - max) / max).min(1.0)
        }
    }
}

impl Discipline for Red {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let wire_bytes = q.packet(id).wire_bytes;
        self.sample(q, wire_bytes);
        if !self
            .limit
            .fits(self.fifo.packets(), self.fifo.bytes(), wire_bytes)
        {
            self.count = 0;
            q.drop(id, DropReason::Full);
            return;
        }
        if self.mean < self.config.min_packets {
            self.count = -1;
        } else {
            self.count += 1;
            let base = self.probability();
            // Spreads the drops evenly instead of geometrically (§6 of the paper).
            let spread = base / (1.0 - self.count as f64 * base);
            let chosen =
                base >= 1.0 || !(0.0..1.0).contains(&spread) || self.rng.random::<f64>() < spread;
            if chosen {
                self.count = 0;
                // Marks alone do not hold a queue that is so long, so that packets are dropped
                // there.
                let mark = self.config.ecn && self.mean < 2.0 * self.config.max_packets;
                if !(mark && q.mark(id)) {
                    q.drop(id, DropReason::Early);
                    return;
                }
            }
        }
        self.fifo.push(&mut q.shared.packets, id);
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        let id = self.fifo.pop(&q.shared.packets);
        if self.fifo.packets() == 0 && self.idle_since.is_none() {
            self.idle_since = Some(q.now);
        }
        id
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
    use crate::net::queue::testing::{Bench, packet, stream};

    /// Marks among `packets` arrivals at a queue that stays at `length`.
    fn marks(length: u32, packets: u32) -> u64 {
        let config = RedConfig {
            weight: 0.1,
            ..RedConfig::default()
        };
        let mut bench = Bench::new(Red::new(
            config,
            QueueLimit::Unlimited,
            10_000_000_000,
            stream(),
        ));
        for _ in 0..length {
            bench.put(packet(0, 0, 1_500));
        }
        for _ in 0..500 {
            bench.put(packet(0, 0, 1_500));
            bench.take();
        }
        let before = bench.stats.marks;
        for _ in 0..packets {
            bench.put(packet(0, 0, 1_500));
            bench.take();
        }
        bench.stats.marks - before
    }

    #[test]
    fn the_share_that_is_marked_follows_the_mean_length() {
        assert_eq!(marks(10, 10_000), 0);
        // Halfway between the thresholds the base probability is 0.05; spread evenly, gaps are
        // uniform over 1..=20, 10.5 on average.
        let half = marks(30, 10_000) as f64;
        assert!((half - 10_000.0 / 10.5).abs() < 60.0, "{half}");
        // At one and a half times the upper threshold: 0.55, which is more than every other one.
        let gentle = marks(67, 10_000) as f64;
        assert!(gentle > 5_500.0, "{gentle}");
    }

    #[test]
    fn what_understands_no_marks_is_dropped() {
        let config = RedConfig {
            weight: 1.0,
            ..RedConfig::default()
        };
        let mut bench = Bench::new(Red::new(
            config,
            QueueLimit::Unlimited,
            10_000_000_000,
            stream(),
        ));
        for _ in 0..1_000 {
            bench.put(Packet {
                flags: crate::packet::Flags::NONE,
                ..packet(0, 0, 1_500)
            });
        }
        assert!(bench.drops(DropReason::Early) > 900 - 90);
        assert!(bench.queue.packets() <= 90);
        assert_eq!(bench.stats.marks, 0);
    }
    use crate::packet::Packet;
}
