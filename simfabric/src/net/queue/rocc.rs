//! RoCC's congestion point (Taheri et al., *RoCC: Robust Congestion Control for RDMA*, CoNEXT
//! 2020): a proportional-integral controller of the queue computes one fair rate for all flows of
//! the port, and the switch tells it to the senders of the queue's flows.
//!
//! Every interval T, for the queue q and that of the tick before, q′, both in units of ΔQ, and the
//! rate F in units of ΔF, of which Fmax is the link's:
//!
//! | if | then |
//! |---|---|
//! | q ≥ Qmax and F > Fmax/8 | F ← Fmin |
//! | q − q′ ≥ Qmid and F > Fmax/8 | F ← F/2 |
//! | else | F ← F − a (q − Qref) − b (q − q′) |
//!
//! The gains tune themselves: a = 2α/ℓ and b = 2β/ℓ, where ℓ doubles from 2 up to 64 while
//! F < Fmax/ℓ. F stays within Fmin and Fmax. After each tick a [`Notice`] goes to the sender of
//! every flow that has data in the queue. F begins at Fmax; the authors' program begins at 0, and
//! so tells the first flows rates that have nothing to do with the queue.
//!
//! The clock ticks at multiples of T. It stands while the queue is empty and F is Fmax, since
//! nothing changes then.

use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::flow::FlowId;
use crate::net::Notice;
use crate::packet::{Flags, Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use crate::time::{Span, Time};
use crate::units::{Delay, Rate};
use ratewright_topology::HostId;

crate::parameters! {
    /// RoCC's controller. The paper's values for 40 Gbit/s, as far as its authors' code and memory
    /// have them; thresholds grow in proportion to the link's rate.
    pub struct RoccConfig {
        /// Interval between updates, T.
        interval: Delay = Delay::from_us(40),
        /// Unit of rates, ΔF.
        rate_unit: Rate = Rate(10_000_000),
        /// Unit of queues, ΔQ, in bytes.
        queue_unit_bytes: u32 = 600,
        /// Gain of the queue's distance from its reference, α.
        alpha: f64 = 0.3,
        /// Gain of the queue's growth, β.
        beta: f64 = 1.5,
        /// Queue that the controller aims at, Qref, in bytes at 40 Gbit/s.
        reference_bytes: u64 = 150_000,
        /// Growth from which the rate is halved, Qmid, in bytes at 40 Gbit/s.
        halving_bytes: u64 = 300_000,
        /// Queue from which the rate is the least, Qmax, in bytes at 40 Gbit/s.
        most_bytes: u64 = 360_000,
        /// Least rate, Fmin.
        least_rate: Rate = Rate(100_000_000),
        /// Class of the notices.
        notice_class: u8 = 0,
        /// Bytes of a notice on the link: a frame of the least size with preamble and gap.
        notice_bytes: u16 = 84,
    }
}

crate::parameters! {
    /// RoCC: a PI controller tells the queue's senders one fair rate.
    pub struct Config {
        ..
        /// Controller.
        control: RoccConfig = RoccConfig::default(),
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl RoccConfig {
    /// Rate of the link that the thresholds are for, in bit/s.
    const REFERENCE_BPS: f64 = 40e9;

    /// Checks values.
    ///
    /// # Errors
    /// The first key whose value the controller cannot work with.
    pub fn check(&self) -> Result<(), ParamError> {
        if self.interval.0 == Span::ZERO {
            return Err(ParamError::of("interval", "it must be above 0"));
        }
        if self.queue_unit_bytes == 0 {
            return Err(ParamError::of("queue_unit_bytes", "it must be above 0"));
        }
        if self.notice_bytes == 0 {
            return Err(ParamError::of("notice_bytes", "it must be above 0"));
        }
        for (key, gain) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !(gain > 0.0 && gain.is_finite()) {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        Ok(())
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "rocc";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        self.control.check()?;
        self.limit.check(packet_bytes)
    }

    fn build(&self, rate_bps: u64, _: &mut Stream) -> Queue {
        let queue = RoccQueue::new(self.control.clone(), self.limit.capacity(), rate_bps);
        Queue::Rocc(Box::new(queue))
    }
}

/// The controller, in its units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Controller {
    alpha: f64,
    beta: f64,
    reference: f64,
    halving: f64,
    most: f64,
    least_rate: f64,
    most_rate: f64,
    /// Fair rate, F.
    rate: f64,
    /// Queue at the tick before.
    queue: f64,
}

impl Controller {
    fn new(config: &RoccConfig, rate_bps: u64) -> Self {
        let scale = rate_bps as f64 / RoccConfig::REFERENCE_BPS;
        let unit = f64::from(config.queue_unit_bytes);
        let units = |bytes: u64| (bytes as f64 * scale / unit).trunc();
        let most_rate = rate_bps as f64 / config.rate_unit.0 as f64;
        Self {
            alpha: config.alpha,
            beta: config.beta,
            reference: units(config.reference_bytes),
            halving: units(config.halving_bytes),
            most: units(config.most_bytes),
            least_rate: (config.least_rate.0 as f64 / config.rate_unit.0 as f64).min(most_rate),
            most_rate,
            rate: most_rate,
            queue: 0.0,
        }
    }

    /// Returns the level ℓ of the gains.
    fn level(&self) -> f64 {
        let mut level = 2.0;
        while self.rate < self.most_rate / level && level < 64.0 {
            level *= 2.0;
        }
        level
    }

    /// Updates the fair rate by the queue at a tick.
    fn tick(&mut self, queue: f64) {
        let growth = queue - self.queue;
        let is_high = self.rate > self.most_rate / 8.0;
        if queue >= self.most && is_high {
            self.rate = self.least_rate;
        } else if growth >= self.halving && is_high {
            self.rate /= 2.0;
        } else {
            let gain = 2.0 / self.level();
            let proportional = gain * self.alpha * (queue - self.reference);
            self.rate -= proportional + gain * self.beta * growth;
        }
        self.rate = self.rate.clamp(self.least_rate, self.most_rate);
        self.queue = queue;
    }

    /// Returns true if ticks with an empty queue change nothing.
    fn is_at_rest(&self) -> bool {
        self.rate >= self.most_rate && self.queue == 0.0
    }
}

/// A queue with a RoCC congestion point.
#[derive(Debug)]
pub struct RoccQueue {
    fifo: Fifo,
    config: RoccConfig,
    limit: QueueLimit,
    controller: Controller,
    /// Next tick; [`Time::MAX`] while the clock stands.
    next_tick: Time,
    /// Flows of the queue at a tick, with their senders and path entropy; empty in between.
    flows: Vec<(FlowId, HostId, u16)>,
}

impl RoccQueue {
    /// Makes an empty queue for a port of this rate.
    #[must_use]
    pub fn new(config: RoccConfig, limit: QueueLimit, rate_bps: u64) -> Self {
        Self {
            fifo: Fifo::default(),
            controller: Controller::new(&config, rate_bps),
            config,
            limit,
            next_tick: Time::MAX,
            flows: Vec::new(),
        }
    }

    /// Returns the fair rate, in bit/s.
    fn rate_bps(&self) -> u64 {
        (self.controller.rate * self.config.rate_unit.0 as f64) as u64
    }

    /// Returns the first tick after a time.
    fn tick_after(&self, now: Time) -> Time {
        let interval = self.config.interval.0.0;
        Time((now.0 / interval + 1).saturating_mul(interval))
    }
}

impl Discipline for RoccQueue {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let wire_bytes = q.packet(id).wire_bytes;
        if !self
            .limit
            .fits(self.fifo.packets(), self.fifo.bytes(), wire_bytes)
        {
            q.drop(id, DropReason::Full);
            return;
        }
        self.fifo.push(&mut q.shared.packets, id);
        if self.next_tick == Time::MAX {
            self.next_tick = self.tick_after(q.now);
        }
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        self.fifo.pop(&q.shared.packets)
    }

    fn next_tick(&self) -> Option<Time> {
        Some(self.next_tick)
    }

    fn on_tick(&mut self, q: &mut QueueContext<'_>, notices: &mut Vec<Notice>) {
        let unit = u64::from(self.config.queue_unit_bytes);
        self.controller.tick((self.fifo.bytes() / unit) as f64);
        self.next_tick = if self.controller.is_at_rest() && self.fifo.packets() == 0 {
            Time::MAX
        } else {
            self.tick_after(q.now)
        };
        let data = self.fifo.iter(&q.shared.packets);
        let data = data.filter(|packet| packet.payload_bytes > 0);
        let flows = data.map(|packet| (packet.flow, packet.src, packet.path_hash));
        self.flows.extend(flows);
        // One for each flow, in an order that does not depend on that of its packets.
        self.flows.sort_unstable_by_key(|flow| flow.0);
        self.flows.dedup_by_key(|flow| flow.0);
        let rate_bps = self.rate_bps();
        notices.extend(self.flows.drain(..).map(|(flow, to, path_hash)| Notice {
            flow,
            to,
            value: rate_bps,
            class: self.config.notice_class,
            wire_bytes: self.config.notice_bytes,
            path_hash,
            flags: Flags::NONE,
        }));
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

    const RATE_BPS: u64 = 40_000_000_000;

    fn controller(rate: f64, queue: f64) -> Controller {
        Controller {
            rate,
            queue,
            ..Controller::new(&RoccConfig::default(), RATE_BPS)
        }
    }

    /// The recursion by hand, with the units of 40 Gbit/s: Fmax 4000, Qref 250, Qmid 500, Qmax 600.
    #[test]
    fn a_tick_follows_the_recursion_in_every_region_of_the_gains() {
        for (level, rate) in [(2.0, 4_000.0), (2.0, 2_000.0), (4.0, 1_999.0), (8.0, 600.0)]
            .into_iter()
            .chain([(16.0, 300.0), (32.0, 130.0), (64.0, 70.0), (64.0, 20.0)])
        {
            let mut of = controller(rate, 300.0);
            assert!((of.level() - level).abs() < f64::EPSILON, "{rate}");
            of.tick(310.0);
            // a (q − Qref) + b (q − q′) = (2/ℓ) (0.3 · 60 + 1.5 · 10).
            let expected = (rate - 2.0 / level * 33.0).clamp(10.0, 4_000.0);
            assert!((of.rate - expected).abs() < 1e-9, "{rate}: {}", of.rate);
        }
    }

    #[test]
    fn a_long_or_fast_growing_queue_cuts_at_once_unless_the_rate_is_low() {
        let after = |rate, before, queue| {
            let mut of = controller(rate, before);
            of.tick(queue);
            of.rate
        };
        assert!((after(4_000.0, 590.0, 600.0) - 10.0).abs() < f64::EPSILON);
        assert!((after(4_000.0, 0.0, 500.0) - 2_000.0).abs() < f64::EPSILON);
        // One unit less does neither: 4000 − 0.3 · 249 − 1.5 · 499.
        assert!((after(4_000.0, 0.0, 499.0) - 3_176.8).abs() < 1e-9);
        // F = Fmax/8 is low: ℓ = 8, so 500 − (0.3 · 350 + 1.5 · 10)/4.
        assert!((after(500.0, 590.0, 600.0) - 470.0).abs() < 1e-9);
    }

    /// At the reference, and without growth, the rate stays (the controller's fixed point).
    #[test]
    fn the_rate_rests_where_the_queue_is_at_its_reference() {
        let mut of = controller(1_234.0, 250.0);
        of.tick(250.0);
        assert!((of.rate - 1_234.0).abs() < f64::EPSILON);
    }

    /// The closed loop of N senders that obey at once, dq/dt = N F − C, comes to F = C/N, q = Qref.
    #[test]
    fn senders_that_obey_come_to_an_equal_share_and_the_reference() {
        for flows in [2.0, 10.0, 64.0] {
            let mut of = controller(4_000.0, 0.0);
            let mut queue = 0.0_f64;
            // A unit of rate brings 40 µs · 10 Mbit/s = 50 bytes, a twelfth of a queue's unit.
            for _ in 0..4_000 {
                queue = (queue + (flows * of.rate - 4_000.0) / 12.0).max(0.0);
                of.tick(queue.trunc());
            }
            let share = 4_000.0 / flows;
            assert!((of.rate / share - 1.0).abs() < 0.05, "{flows}: {}", of.rate);
            assert!((queue - 250.0).abs() < 25.0, "{flows}: {queue}");
        }
    }

    #[test]
    fn thresholds_grow_with_the_link() {
        let of = Controller::new(&RoccConfig::default(), 100_000_000_000);
        let thresholds = [of.reference, of.halving, of.most, of.most_rate];
        assert_eq!(thresholds, [625.0, 1_250.0, 1_500.0, 10_000.0]);
    }

    fn tick(bench: &mut Bench<RoccQueue>) -> Vec<(u32, u64)> {
        let mut notices = Vec::new();
        let mut q = QueueContext {
            now: bench.now,
            shared: &mut bench.shared,
            stats: &mut bench.stats,
            buffer: None,
            marks: None,
        };
        bench.queue.on_tick(&mut q, &mut notices);
        let told = notices.iter().map(|n| (n.flow.0, n.value));
        told.collect()
    }

    #[test]
    fn every_flow_with_data_in_the_queue_is_told_once_per_tick() {
        let queue = RoccQueue::new(RoccConfig::default(), QueueLimit::Unlimited, RATE_BPS);
        let mut bench = Bench::new(queue);
        assert_eq!(bench.queue.next_tick(), Some(Time::MAX));
        bench.now = Time::from_us(41);
        for (flow, payload_bytes) in [(7, 1_000), (3, 1_000), (7, 1_000), (5, 0)] {
            bench.put(Packet {
                payload_bytes,
                ..packet(flow, 0, 1_000)
            });
        }
        // Ticks are at multiples of T.
        assert_eq!(bench.queue.next_tick(), Some(Time::from_us(80)));
        bench.now = Time::from_us(80);
        // 4000 bytes are 6 units: 4000 + 0.3 · 244 − 1.5 · 6 is above the link's rate.
        assert_eq!(tick(&mut bench), [(3, RATE_BPS), (7, RATE_BPS)]);
        while bench.take().is_some() {}
        bench.now = Time::from_us(120);
        assert_eq!(tick(&mut bench), []);
        assert_eq!(bench.queue.next_tick(), Some(Time::MAX), "nothing to do");
    }

    /// A clock that stands between misses nothing: all ticks that it skips are of an empty queue.
    #[test]
    fn the_clock_goes_on_until_the_rate_is_the_links() {
        let queue = RoccQueue::new(RoccConfig::default(), QueueLimit::Unlimited, RATE_BPS);
        let mut bench = Bench::new(queue);
        for _ in 0..300 {
            bench.put(packet(1, 0, 1_000));
        }
        bench.now = Time::from_us(40);
        tick(&mut bench);
        while bench.take().is_some() {}
        let mut ticks = 0;
        while let Some(at) = bench.queue.next_tick()
            && at < Time::MAX
        {
            bench.now = at;
            tick(&mut bench);
            ticks += 1;
        }
        // 500 units: halved to 2000; +0.3 · 250 + 1.5 · 500 at once, then +75 per tick.
        assert_eq!(ticks, 1 + (4_000 - 2_825_u32).div_ceil(75));
        assert_eq!(bench.now, Time::from_us(40 * (1 + u64::from(ticks))));
    }
}
