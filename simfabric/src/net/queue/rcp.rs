//! RCP's router (Dukkipati et al., *Processor Sharing Flows in the Internet*, IWQoS 2005; Dukkipati
//! and McKeown, *Why Flow-Completion Time is the Right Metric for Congestion Control*, CCR 2006).
//!
//! A port has one rate R, the same for all its flows. At the end of each interval T, a mean round
//! trip, it becomes
//!
//! ```text
//! R ← R (1 + (T/d) (α (γC − y) − β q/d) / (γC))
//! ```
//!
//! for the mean round trip d of the interval's packets, their rate y, the queue q at its end, and
//! the link's rate C. Data packets carry the least R of their path, written as they leave
//! ([`RcpHeader`](crate::ext::RcpHeader)).

use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::ext::Extension;
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use crate::time::{Span, Time};
use crate::units::Delay;

crate::parameters! {
    /// RCP's controller, with the gains of CCR 2006 and the rest of the authors' ns-2 code.
    pub struct RcpConfig {
        /// Gain of spare bandwidth, α.
        alpha: f64 = 0.4,
        /// Gain of the queue, β.
        beta: f64 = 0.226,
        /// Share of the link that flows are to use, γ.
        gamma: f64 = 1.0,
        /// Rate at first, as a share of the link's.
        first_share: f64 = 0.05,
        /// Least rate, in packets of 1,000 bytes per mean round trip.
        least_packets: f64 = 0.01,
        /// Mean round trip before one was measured. ns-2 has 200 ms, for the Internet.
        first_round_trip: Delay = Delay::from_us(100),
        /// Longest interval.
        most_interval: Delay = Delay::from_ms(10),
    }
}

crate::parameters! {
    /// RCP: one rate for all flows of a port, written into their packets.
    pub struct Config {
        ..
        /// Controller.
        control: RcpConfig = RcpConfig::default(),
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl RcpConfig {
    /// Checks values.
    ///
    /// # Errors
    /// The first key whose value the controller cannot work with.
    pub fn check(&self) -> Result<(), ParamError> {
        for (key, share) in [
            ("alpha", self.alpha),
            ("beta", self.beta),
            ("gamma", self.gamma),
            ("first_share", self.first_share),
        ] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        if !(self.least_packets > 0.0 && self.least_packets.is_finite()) {
            return Err(ParamError::of("least_packets", "it must be above 0"));
        }
        for (key, delay) in [
            ("first_round_trip", self.first_round_trip),
            ("most_interval", self.most_interval),
        ] {
            if delay.0 == Span::ZERO {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        Ok(())
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "rcp";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        self.control.check()?;
        self.limit.check(packet_bytes)
    }

    fn build(&self, rate_bps: u64, _: &mut Stream) -> Queue {
        let queue = RcpQueue::new(self.control.clone(), self.limit.capacity(), rate_bps);
        Queue::Rcp(Box::new(queue))
    }
}

/// Sums over the packets of an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    /// Bytes that arrived.
    input_bytes: u64,
    /// Bytes of packets with a round-trip time, and Σ bytes × time in seconds.
    timed_bytes: u64,
    time_s: f64,
}

/// A queue with an RCP router.
#[derive(Debug)]
pub struct RcpQueue {
    fifo: Fifo,
    config: RcpConfig,
    limit: QueueLimit,
    /// γC, in bit/s.
    most_bps: f64,
    rate_bps: f64,
    /// Mean round trip, d.
    mean_s: f64,
    interval: Interval,
    length: Span,
    interval_end: Time,
}

impl RcpQueue {
    /// Makes an empty queue for a port of this rate.
    #[must_use]
    pub fn new(config: RcpConfig, limit: QueueLimit, rate_bps: u64) -> Self {
        let length = config.first_round_trip.0.min(config.most_interval.0);
        Self {
            fifo: Fifo::default(),
            limit,
            most_bps: config.gamma * rate_bps as f64,
            rate_bps: config.first_share * rate_bps as f64,
            mean_s: config.first_round_trip.0.as_secs_f64(),
            interval: Interval::default(),
            length,
            interval_end: Time::ZERO + length,
            config,
        }
    }

    /// Updates the rate at the end of an interval.
    fn end_interval(&mut self) {
        let RcpConfig { alpha, beta, .. } = self.config;
        let sums = std::mem::take(&mut self.interval);
        if sums.timed_bytes > 0 {
            self.mean_s = sums.time_s / sums.timed_bytes as f64;
        }
        let (d, seconds) = (self.mean_s, self.length.as_secs_f64());
        let spare_bps = self.most_bps - sums.input_bytes as f64 * 8.0 / seconds;
        let queue_bps = self.fifo.bytes() as f64 * 8.0 / d;
        let change = seconds / d * (alpha * spare_bps - beta * queue_bps) / self.most_bps;
        let least_bps = self.config.least_packets * 8_000.0 / d;
        // In this order: a least rate above the link's must not win.
        self.rate_bps = (self.rate_bps * (1.0 + change))
            .max(least_bps)
            .min(self.most_bps);
        self.length = Span::from_secs_f64(d)
            .min(self.config.most_interval.0)
            .max(Span(1));
        self.interval_end += self.length;
    }

    /// Catches up with intervals that have ended.
    fn advance(&mut self, now: Time) {
        while self.interval_end <= now {
            self.end_interval();
            let settled = self.fifo.packets() == 0 && self.rate_bps >= self.most_bps;
            if settled && self.interval_end <= now {
                // Further intervals without a packet change nothing.
                let passed = now.since(self.interval_end).0 / self.length.0;
                self.interval_end += self.length * passed;
            }
        }
    }
}

impl Discipline for RcpQueue {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        self.advance(q.now);
        let packet = *q.packet(id);
        // Dropped packets are part of the input traffic.
        self.interval.input_bytes += u64::from(packet.wire_bytes);
        if !self
            .limit
            .fits(self.fifo.packets(), self.fifo.bytes(), packet.wire_bytes)
        {
            q.drop(id, DropReason::Full);
            return;
        }
        if let Some(Extension::Rcp(header)) = q.shared.extensions.get(&packet)
            && packet.payload_bytes > 0
            && header.rtt > Span::ZERO
        {
            self.interval.timed_bytes += u64::from(packet.wire_bytes);
            self.interval.time_s += header.rtt.as_secs_f64() * f64::from(packet.wire_bytes);
        }
        self.fifo.push(&mut q.shared.packets, id);
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        self.advance(q.now);
        let id = self.fifo.pop(&q.shared.packets)?;
        let packet = *q.packet(id);
        // Acknowledgements carry the header back; only the forward path counts.
        if packet.payload_bytes > 0
            && let Some(Extension::Rcp(header)) = q.shared.extensions.get_mut(&packet)
        {
            header.rate_bps = header.rate_bps.min(self.rate_bps as u64);
        }
        Some(id)
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
    use crate::ext::RcpHeader;
    use crate::net::queue::testing::{Bench, packet};

    const RATE_BPS: u64 = 8_000_000_000;
    const RTT: Span = Span::from_us(100);

    fn bench(config: RcpConfig) -> Bench<RcpQueue> {
        Bench::new(RcpQueue::new(config, QueueLimit::Unlimited, RATE_BPS))
    }

    /// Offers one packet of 1,000 bytes at a time, and takes it at once unless it is to wait.
    /// Returns the rate that it is granted.
    fn pass(bench: &mut Bench<RcpQueue>, at: Time, waits: bool) -> f64 {
        bench.now = at;
        let mut data = packet(0, 0, 1_000);
        data.payload_bytes = 1_000;
        let header = RcpHeader::any(RTT);
        let extensions = &mut bench.shared.extensions;
        extensions.attach(&mut data, Extension::Rcp(header));
        bench.put(data);
        if waits {
            return f64::NAN;
        }
        let mut taken = bench.take().expect("it waits");
        match bench.shared.extensions.take(&mut taken) {
            Some(Extension::Rcp(header)) => header.rate_bps as f64,
            other => panic!("{other:?}"),
        }
    }

    /// The equation, for an interval of one mean round trip.
    fn updated(rate_bps: f64, input_bps: f64, queue_bytes: f64) -> f64 {
        let c = RATE_BPS as f64;
        let queue_bps = queue_bytes * 8.0 / RTT.as_secs_f64();
        (rate_bps * (1.0 + (0.4 * (c - input_bps) - 0.226 * queue_bps) / c)).min(c)
    }

    #[test]
    fn the_rate_follows_the_equation_interval_by_interval() {
        let mut bench = bench(RcpConfig::default());
        let mut expected = 0.05 * RATE_BPS as f64;
        // A quarter of the link in the first interval, half in the second, and so on.
        for (interval, packets) in [25_u64, 50, 75, 100, 40].into_iter().enumerate() {
            let begin = Time::ZERO + RTT * interval as u64;
            for i in 0..packets {
                let granted = pass(&mut bench, begin + Span(RTT.0 / packets * i), false);
                let off = (granted - expected).abs();
                assert!(off <= 1.0, "{interval}: {granted} {expected}");
            }
            expected = updated(expected, packets as f64 * 8_000.0 / 100e-6, 0.0);
        }
    }

    #[test]
    fn what_waits_at_the_end_of_an_interval_lowers_the_rate() {
        let mut bench = bench(RcpConfig::default());
        for i in 0..100 {
            pass(&mut bench, Time::from_us(i), true);
        }
        // 100 packets came and none left: y = C, q = C d.
        let expected = updated(0.05 * RATE_BPS as f64, RATE_BPS as f64, 100_000.0);
        let granted = {
            bench.now = Time::from_us(100);
            let mut taken = bench.take().expect("a packet");
            match bench.shared.extensions.take(&mut taken) {
                Some(Extension::Rcp(header)) => header.rate_bps as f64,
                other => panic!("{other:?}"),
            }
        };
        assert!((granted - expected).abs() <= 1.0);
        assert!((expected / (0.05 * RATE_BPS as f64) - (1.0 - 0.226)).abs() < 1e-9);
    }

    /// An idle link's rate grows by 1 + α per mean round trip, up to γC, however long it is idle.
    #[test]
    fn an_idle_link_offers_all_of_itself_in_time() {
        let config = RcpConfig {
            gamma: 0.95,
            ..RcpConfig::default()
        };
        let mut bench = bench(config);
        let first = 0.05 * RATE_BPS as f64;
        for intervals in 1..=5_u32 {
            let mut bench = self::bench(RcpConfig {
                gamma: 0.95,
                ..RcpConfig::default()
            });
            let granted = pass(&mut bench, Time::from_us(100 * u64::from(intervals)), false);
            let expected = first * 1.4_f64.powi(intervals as i32);
            assert!((granted - expected).abs() <= 1.0);
        }
        let late = pass(&mut bench, Time::from_ms(60_000), false);
        assert!((late - 0.95 * RATE_BPS as f64).abs() <= 1.0);
        // Its clock has kept up: the interval ends where whole round trips do.
        assert_eq!(bench.queue.interval_end, Time::from_ms(60_000) + RTT);
    }

    /// C/N (RCP §3): flows that send what they are granted share the link equally, without a queue.
    #[test]
    fn flows_that_obey_come_to_an_equal_share() {
        for flows in [1_u32, 4, 20] {
            let mut bench = bench(RcpConfig::default());
            let mut granted = 0.05 * RATE_BPS as f64;
            let mut queue_bytes = 0.0;
            for interval in 0..400_u64 {
                let begin = Time::ZERO + RTT * interval;
                // All flows' packets of a round trip, at the rate that they were granted in the
                // last one; the link takes up to 100 of them.
                let packets = (granted * f64::from(flows) * 100e-6 / 8_000.0).round() as u64;
                for i in 0..packets {
                    pass(&mut bench, begin + Span(RTT.0 / packets * i), true);
                }
                bench.now = begin + Span(RTT.0 - 1);
                for _ in 0..100 {
                    if let Some(mut taken) = bench.take()
                        && let Some(Extension::Rcp(header)) =
                            bench.shared.extensions.take(&mut taken)
                    {
                        granted = header.rate_bps as f64;
                    }
                }
                queue_bytes = bench.queue.bytes() as f64;
            }
            let share = RATE_BPS as f64 / f64::from(flows);
            assert!((granted / share - 1.0).abs() < 0.03, "{flows}: {granted}");
            assert!(queue_bytes <= 6_000.0, "{flows}: {queue_bytes}");
        }
    }

    #[test]
    fn a_packet_keeps_the_least_rate_of_its_path() {
        let mut bench = bench(RcpConfig::default());
        let narrower = RcpHeader {
            rate_bps: 1_000,
            ..RcpHeader::any(RTT)
        };
        let mut data = packet(0, 0, 1_000);
        data.payload_bytes = 1_000;
        let extensions = &mut bench.shared.extensions;
        extensions.attach(&mut data, Extension::Rcp(narrower));
        bench.put(data);
        let mut taken = bench.take().expect("it waits");
        let kept = bench.shared.extensions.take(&mut taken);
        assert_eq!(kept, Some(Extension::Rcp(narrower)));
    }
}
