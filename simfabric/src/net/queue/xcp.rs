//! XCP's router (XCP §3.3 to §3.6). Once per mean round trip it computes the total change of all
//! flows' rates, and shares it out over the packets of the next round trip.

use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::ext::{Extension, XcpHeader};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use crate::time::{Span, Time};
use crate::units::Delay;

crate::parameters! {
    /// XCP's router, with the paper's and ns-2's constants.
    pub struct XcpConfig {
        /// Share of the spare bandwidth that is granted per round trip (XCP §3.5: 0.4).
        alpha: f64 = 0.4,
        /// Share of the standing queue that is taken back per round trip (§3.5: 0.226).
        beta: f64 = 0.226,
        /// Share of the traffic that is shuffled from flow to flow per round trip (§3.5: 0.1).
        gamma: f64 = 0.1,
        /// Control interval before any round-trip time is known (ns-2: 50 ms).
        first_interval: Delay = Delay::from_us(100),
        /// Control interval after one without a packet that carried window and round trip (ns-2: 50
        /// ms); unless given, the last mean round trip.
        idle_interval: Option<Delay> = None,
        /// Shortest control interval; ns-2 has 1 ms, many round trips of a datacenter.
        least_interval: Delay = Delay::from_us(0),
    }
}

crate::parameters! {
    /// XCP's router: computes the change of every flow's window.
    pub struct Config {
        ..
        /// Constants of its controllers.
        control: XcpConfig = XcpConfig::default(),
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "xcp";
    /// It computes with all that passes the link; in classes each would grant the whole link.
    const OF_A_CLASS: bool = false;

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        let control = &self.control;
        for (key, share) in [
            ("alpha", control.alpha),
            ("beta", control.beta),
            ("gamma", control.gamma),
        ] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        self.limit.check(packet_bytes)
    }

    fn build(&self, rate_bps: u64, _: &mut Stream) -> Queue {
        let queue = XcpQueue::new(self.control.clone(), self.limit.capacity(), rate_bps);
        Queue::Xcp(Box::new(queue))
    }
}

/// Sums over the packets of an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    /// Bytes that arrived.
    input_bytes: f64,
    /// Σ bytes of packets that carry a header with a round-trip time.
    header_bytes: f64,
    /// Σ rtt × bytes / window, in seconds: the flows, each counted by its time.
    time_s: f64,
    /// Σ rtt² × bytes / window, in s².
    time_squared: f64,
    /// Shortest queue in the interval.
    min_queue_bytes: f64,
}

/// A queue with an XCP router.
#[derive(Debug)]
pub struct XcpQueue {
    fifo: Fifo,
    config: XcpConfig,
    limit: QueueLimit,
    rate_bytes_per_s: f64,
    interval: Interval,
    interval_end: Time,
    /// Length of the interval that ends then.
    length: Span,
    mean_rtt_s: f64,
    /// Feedback per packet: scale of the gain (§3.5, ξp) and of the loss (ξn).
    gain: f64,
    loss: f64,
    /// Bytes left to be granted and taken back in this interval.
    gain_left: f64,
    loss_left: f64,
}

impl XcpQueue {
    /// Makes an empty queue for a port of this rate.
    #[must_use]
    pub fn new(config: XcpConfig, limit: QueueLimit, rate_bps: u64) -> Self {
        let first = config.first_interval.0;
        Self {
            fifo: Fifo::default(),
            config,
            limit,
            rate_bytes_per_s: rate_bps as f64 / 8.0,
            interval: Interval::default(),
            interval_end: Time::ZERO + first,
            length: first,
            mean_rtt_s: first.as_secs_f64(),
            gain: 0.0,
            loss: 0.0,
            gain_left: 0.0,
            loss_left: 0.0,
        }
    }

    /// Runs the efficiency and the fairness controller (§3.4, §3.5) at the end of an interval.
    fn end_interval(&mut self, seconds: f64) {
        let XcpConfig {
            alpha, beta, gamma, ..
        } = self.config;
        let sums = self.interval;
        if sums.time_s > 0.0 {
            self.mean_rtt_s = sums.time_squared / sums.time_s;
        } else if let Some(interval) = self.config.idle_interval {
            self.mean_rtt_s = interval.0.as_secs_f64();
        }
        let d = self.mean_rtt_s;
        let input_rate = sums.input_bytes / seconds;
        let spare = self.rate_bytes_per_s - input_rate;
        let aggregate = alpha * d * spare - beta * sums.min_queue_bytes;
        // §3.5: h = max(0, γ·y − |φ|), in bytes of a mean round trip.
        let shuffled = (gamma * input_rate * d - aggregate.abs()).max(0.0);
        self.gain_left = shuffled + aggregate.max(0.0);
        self.loss_left = shuffled + (-aggregate).max(0.0);
        // Sums are of the interval that passed, shares are for the next one: scale them to it.
        let scale = d.max(self.config.least_interval.0.as_secs_f64()) / seconds;
        self.gain = if sums.time_s > 0.0 {
            self.gain_left / (sums.time_s * scale)
        } else {
            0.0
        };
        self.loss = if sums.header_bytes > 0.0 {
            self.loss_left / (sums.header_bytes * scale)
        } else {
            0.0
        };
        self.interval = Interval {
            min_queue_bytes: self.fifo.bytes() as f64,
            ..Interval::default()
        };
    }

    /// Returns the length of the control interval that begins: a mean round trip.
    fn next_interval(&self) -> Span {
        Span::from_secs_f64(self.mean_rtt_s).max(self.config.least_interval.0)
    }

    /// Catches up with intervals that have ended.
    fn advance(&mut self, now: Time) {
        if now < self.interval_end {
            return;
        }
        if let Some(idle) = self.config.idle_interval {
            self.advance_by_clock(now, idle.0);
        } else {
            let late = now.since(self.interval_end);
            self.end_interval((self.length + late).as_secs_f64());
            self.interval_end = now + self.next_interval();
        }
        self.length = self.next_interval();
    }

    /// Catches up by a clock that also ticks while no packet passes. Intervals without traffic
    /// count as such and do not prolong the one before.
    fn advance_by_clock(&mut self, now: Time, idle: Span) {
        // A second interval has passed whole, without a packet: its sums are zero.
        self.end_interval(self.length.as_secs_f64());
        let interval = self.next_interval();
        let next = self.interval_end + interval;
        if now < next {
            self.interval_end = next;
            return;
        }
        self.end_interval(
            self.mean_rtt_s
                .max(self.config.least_interval.0.as_secs_f64()),
        );
        let passed = now.since(next).0 / idle.0.max(1);
        self.interval_end = next + Span(idle.0.max(1) * (passed + 1));
    }

    /// Updates a packet's congestion header.
    fn stamp(&mut self, header: &mut XcpHeader, bytes: f64) {
        if header.rtt_s <= 0.0 || header.cwnd_bytes <= 0.0 {
            // The flow's first window: there is nothing to compute a share by.
            header.feedback_bytes = header.feedback_bytes.min(0.0);
            return;
        }
        let time = header.rtt_s * bytes / header.cwnd_bytes;
        self.interval.header_bytes += bytes;
        self.interval.time_s += time;
        self.interval.time_squared += header.rtt_s * time;
        // §3.5: p = ξp rtt² s / cwnd, n = ξn rtt s, with rtt in units of the mean one, since both
        // change a window per round trip of the flow itself.
        let own = header.rtt_s / self.mean_rtt_s;
        let plus = (self.gain * time * own).min(self.gain_left);
        let minus = (self.loss * bytes * own).min(self.loss_left);
        let feedback = plus - minus;
        if feedback < header.feedback_bytes {
            header.feedback_bytes = feedback;
            self.gain_left -= plus;
            self.loss_left -= minus;
        } else {
            // Another router is narrower: what this one would have given stays.
            self.gain_left -= header.feedback_bytes.clamp(0.0, self.gain_left);
            self.loss_left -= minus;
        }
    }
}

impl Discipline for XcpQueue {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        self.advance(q.now);
        let packet = *q.packet(id);
        let bytes = f64::from(packet.wire_bytes);
        // Dropped packets are part of the input traffic.
        self.interval.input_bytes += bytes;
        if !self
            .limit
            .fits(self.fifo.packets(), self.fifo.bytes(), packet.wire_bytes)
        {
            q.drop(id, DropReason::Full);
            return;
        }
        // Acknowledgements carry the header back; only the forward path counts.
        if packet.payload_bytes > 0
            && let Some(Extension::Xcp(header)) = q.shared.extensions.get_mut(&packet)
        {
            self.stamp(header, f64::from(packet.payload_bytes));
        }
        self.fifo.push(&mut q.shared.packets, id);
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        self.advance(q.now);
        let id = self.fifo.pop(&q.shared.packets);
        let left = self.fifo.bytes() as f64;
        self.interval.min_queue_bytes = self.interval.min_queue_bytes.min(left);
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
    use crate::ext::Extension;
    use crate::net::queue::testing::{Bench, packet};

    /// After an interval without packets, the next packet waits for its grant for `idle_interval`.
    #[test]
    fn after_an_idle_interval_the_next_is_as_long_as_asked_for() {
        let granted_at_us = |idle_interval| {
            let config = XcpConfig {
                idle_interval,
                ..XcpConfig::default()
            };
            let queue = XcpQueue::new(config, QueueLimit::Unlimited, RATE_BPS);
            let mut bench = Bench::new(queue);
            // Busy to 500 µs, idle to 900 µs, busy again.
            let busy = (0..50).chain(90..400).map(|i| 10 * i);
            for (sequence, us) in busy.enumerate() {
                bench.now = Time::from_us(us);
                let mut data = packet(0, sequence as u64, 1_000);
                data.payload_bytes = 1_000;
                let header = XcpHeader {
                    cwnd_bytes: 10_000.0,
                    rtt_s: RTT_S,
                    feedback_bytes: f64::INFINITY,
                };
                bench
                    .shared
                    .extensions
                    .attach(&mut data, Extension::Xcp(header));
                bench.put(data);
                let mut out = bench.take().unwrap();
                let extension = bench.shared.extensions.take(&mut out);
                if let Some(Extension::Xcp(header)) = extension
                    && us >= 900
                    && header.feedback_bytes > 0.0
                {
                    return us;
                }
            }
            u64::MAX
        };
        // The last busy interval's share is handed out to whatever comes next.
        assert_eq!(granted_at_us(None), 900);
        // From 500 to 600 µs nothing comes, so the next intervals are of 2 ms.
        assert_eq!(granted_at_us(Some(Delay::from_ms(2))), 2_600);
    }

    const RATE_BPS: u64 = 8_000_000_000;
    /// A gigabyte per second.
    const RATE: f64 = 1e9;
    const RTT_S: f64 = 100e-6;

    /// Feeds intervals of 100 µs with `packets` packets of 1,000 bytes each, evenly, from flows
    /// whose windows are given, and returns each flow's feedback in the last interval.
    fn feedback(packets: u64, windows: &[f64]) -> Vec<f64> {
        let queue = XcpQueue::new(XcpConfig::default(), QueueLimit::Unlimited, RATE_BPS);
        let mut bench = Bench::new(queue);
        let mut sums = Vec::new();
        // The first interval measures, the second one hands out.
        for interval in 0..2u64 {
            sums = vec![0.0; windows.len()];
            for i in 0..packets {
                bench.now = Time::from_us(100 * interval) + Span(100_000_000 * i / packets);
                let flow = (i % windows.len() as u64) as usize;
                let mut data = packet(flow as u32, i, 1_000);
                data.payload_bytes = 1_000;
                bench.shared.extensions.attach(
                    &mut data,
                    Extension::Xcp(XcpHeader {
                        cwnd_bytes: windows[flow],
                        rtt_s: RTT_S,
                        feedback_bytes: f64::INFINITY,
                    }),
                );
                bench.put(data);
                let mut taken = bench.take().expect("one in, one out");
                if let Some(Extension::Xcp(header)) = bench.shared.extensions.take(&mut taken) {
                    sums[flow] += header.feedback_bytes;
                }
            }
        }
        sums
    }

    #[test]
    fn spare_bandwidth_is_handed_out_by_alpha() {
        // Half of the link is used: 50 of 100 packets of 1,000 bytes per round trip.
        let windows = [25_000.0, 25_000.0];
        let given: f64 = feedback(50, &windows).iter().sum();
        let expected = 0.4 * RTT_S * RATE / 2.0;
        assert!(
            (given - expected).abs() < 0.03 * expected,
            "{given} {expected}"
        );
    }

    /// An interval's grant is α of a round trip's spare bandwidth, whatever the interval's length.
    #[test]
    fn a_longer_interval_hands_out_as_much_more_slowly() {
        let config = XcpConfig {
            least_interval: Delay::from_us(400),
            ..XcpConfig::default()
        };
        let mut bench = Bench::new(XcpQueue::new(config, QueueLimit::Unlimited, RATE_BPS));
        let mut given = [0.0; 9];
        // Half of the link is used. Intervals end at 100 µs, 500 µs and 900 µs.
        for i in 0..450u64 {
            bench.now = Time::from_us(2 * i);
            let mut data = packet(0, i, 1_000);
            data.payload_bytes = 1_000;
            let header = XcpHeader {
                cwnd_bytes: 50_000.0,
                rtt_s: RTT_S,
                feedback_bytes: f64::INFINITY,
            };
            bench
                .shared
                .extensions
                .attach(&mut data, Extension::Xcp(header));
            bench.put(data);
            let mut taken = bench.take().expect("one in, one out");
            if let Some(Extension::Xcp(header)) = bench.shared.extensions.take(&mut taken) {
                given[(i / 50) as usize] += header.feedback_bytes;
            }
        }
        let expected = 0.4 * RTT_S * RATE / 2.0;
        for (interval, given) in [(1, &given[1..5]), (5, &given[5..9])] {
            let sum: f64 = given.iter().sum();
            assert!(
                (sum - expected).abs() < 0.05 * expected,
                "from {interval}00 µs: {given:?}"
            );
            let quarter = given[0];
            assert!(
                (quarter - expected / 4.0).abs() < 0.05 * expected,
                "{given:?}"
            );
        }
    }

    #[test]
    fn a_full_link_shuffles_gamma_of_its_traffic_towards_equal_windows() {
        // Two flows with the same number of packets per interval would have the same window; give
        // the shares by packets: three of four belong to the large flow.
        let windows = [75_000.0, 75_000.0, 75_000.0, 25_000.0];
        let changes = feedback(100, &windows);
        let large: f64 = changes[..3].iter().sum();
        let small = changes[3];
        assert!(small > 0.0 && large < 0.0, "{changes:?}");
        // Nothing is created: what one gains the other loses.
        assert!((large + small).abs() < 0.05 * small, "{changes:?}");
        // §3.5: γ of the traffic is taken in proportion to it and given back equally: flow by flow
        // 10,000 / 2 − 10,000 × 1/4.
        assert!((small - 2_500.0).abs() < 250.0, "{changes:?}");
    }

    #[test]
    fn an_overloaded_link_takes_back() {
        // 120 packets where 100 fit.
        let windows = [60_000.0, 60_000.0];
        let taken: f64 = feedback(120, &windows).iter().sum();
        let expected = -0.4 * RTT_S * 0.2 * RATE;
        assert!(
            (taken - expected).abs() < 0.05 * expected.abs(),
            "{taken} {expected}"
        );
    }
}
