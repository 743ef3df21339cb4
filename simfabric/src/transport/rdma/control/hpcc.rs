//! HPCC (Li et al., SIGCOMM 2019): the window follows the load of the most loaded hop, which
//! switches tell in telemetry on data packets.
//!
//! | rule | source |
//! |---|---|
//! | u = min(q, q') / (B T) + txRate / B of each hop; the greatest goes into a mean U over T | §3.2, algorithm 1, lines 1–11 |
//! | R = Rc / (U/η) + R_AI, or R = Rc + R_AI below η for `max_stage` updates | algorithm 1, lines 12–21 |
//! | every acknowledgement computes from Rc; Rc moves once per round trip | §3.2, *fast reaction without overreaction* |
//!
//! Windows are kept as rates, W = R T. Details that the paper leaves open are those of its public
//! simulator: U begins at 1, the first acknowledgement only notes its telemetry, and the window is
//! in payload bytes.

use super::{Acked, Control, PathFacts};
use crate::ext::{IntHop, MAX_HOPS};
use crate::net::Telemetry;
use crate::time::Span;

/// HPCC's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HpccConfig {
    /// Target load η (§3.3: 95 %).
    pub eta: f64,
    /// Additive steps before a multiplicative one below η (§3.3: 5).
    pub max_stage: u32,
    /// Additive increase W_AI / T at each update, as a share of the line's rate.
    pub increase_share: f64,
    /// Least rate, in bit/s.
    pub min_rate_bps: f64,
    /// True if every acknowledgement moves the window; otherwise one per round trip does.
    pub per_ack: bool,
}

/// Telemetry of the last acknowledgement, hop by hop, with the load of the present one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loads {
    /// Greatest load of a hop.
    pub(super) u: f64,
    /// Place of that hop in the trail.
    pub(super) hop: usize,
    /// Time between both stamps of that hop, at most T.
    pub(super) tau: Span,
}

/// Stamps that are this far apart are in the wrong order: the clock of 24 bits of nanoseconds has
/// wrapped.
const REORDERED: Span = Span::from_ns(1 << 23);

/// Estimator of the load of a path (HPCC algorithm 1, `MeasureInflight`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    hops: [IntHop; MAX_HOPS],
    len: usize,
    /// Number of the acknowledgement that brought them.
    ack: u64,
}

impl Trace {
    pub(super) const EMPTY: Self = Self {
        hops: [IntHop::NONE; MAX_HOPS],
        len: 0,
        ack: 0,
    };

    /// Takes an acknowledgement's telemetry. Returns the greatest load since the one before; `None`
    /// of the first, of one on another path, and of one that comes too late or says nothing.
    pub(super) fn update(
        &mut self,
        acked: &Acked<'_>,
        base_rtt: Span,
        load: impl Fn(IntHop, IntHop, f64) -> f64,
    ) -> Option<Loads> {
        let hops = acked.hops;
        let known = self.len == hops.len();
        let mut greatest: Option<Loads> = None;
        let mut is_late = false;
        for (hop, (&new, &old)) in hops.iter().zip(&self.hops).enumerate().filter(|_| known) {
            let (span, sent) = new.since(old);
            is_late |= span >= REORDERED;
            // Two stamps of one moment tell nothing of a rate, and no link has none.
            if span == Span::ZERO || new.rate_bps() == 0 {
                continue;
            }
            let seconds = span.as_secs_f64();
            // A counter that went backwards has wrapped. A packet counts when it begins to leave.
            let could_send = new.rate_bps() as f64 * seconds / 8.0;
            if sent as f64 > 2.0 * could_send + f64::from(u16::MAX) {
                continue;
            }
            let u = load(new, old, seconds);
            if greatest.is_none_or(|known| u > known.u) {
                let tau = span.min(base_rtt);
                greatest = Some(Loads { u, hop, tau });
            }
        }
        if is_late {
            // One of newer data is not late: a clock was wrong, and its stamps count from here on.
            if acked.ack <= self.ack {
                return None;
            }
            greatest = None;
        }
        self.ack = acked.ack;
        self.len = hops.len().min(MAX_HOPS);
        self.hops[..self.len].copy_from_slice(&hops[..self.len]);
        greatest
    }

    /// Returns true if no acknowledgement has come.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Load of a hop: bytes in flight over B T (HPCC §3.2, equation 2).
pub(super) fn in_flight_share(new: IntHop, old: IntHop, seconds: f64, base_rtt: Span) -> f64 {
    let rate_bps = new.rate_bps() as f64;
    let (_, sent) = new.since(old);
    let queue = new.queue_bytes().min(old.queue_bytes()) as f64;
    let queued = queue * 8.0 / (rate_bps * base_rtt.as_secs_f64());
    queued + sent as f64 * 8.0 / seconds / rate_bps
}

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Hpcc {
    config: HpccConfig,
    pub(super) path: PathFacts,
    trace: Trace,
    /// Mean load over T.
    load: f64,
    rate_bps: f64,
    /// Rate Rc that acknowledgements compute from.
    pub(super) reference_bps: f64,
    /// Additive steps since the last multiplicative one.
    stage: u32,
    /// Byte whose acknowledgement is the next to move Rc.
    last_update: u64,
}

impl Hpcc {
    /// Takes an acknowledgement's telemetry into the mean load. Returns the load of the most loaded
    /// hop; `None` if there is nothing to react to.
    pub(super) fn measure(&mut self, acked: &Acked<'_>) -> Option<Loads> {
        let base_rtt = self.path.base_rtt;
        let is_first = self.trace.is_empty();
        let of_hop = |new, old, seconds| in_flight_share(new, old, seconds, base_rtt);
        let loads = self.trace.update(acked, base_rtt, of_hop);
        if is_first {
            self.last_update = acked.next;
        }
        let loads = loads?;
        let share = loads.tau.as_secs_f64() / base_rtt.as_secs_f64();
        self.load = self.load * (1.0 - share) + loads.u * share;
        Some(loads)
    }

    /// Computes the rate from Rc and the mean load, and moves Rc once per round trip (algorithm 1,
    /// `ComputeWind` and `NewAck`).
    pub(super) fn react(&mut self, acked: &Acked<'_>) {
        let is_update = acked.ack > self.last_update;
        if !is_update && !self.config.per_ack {
            return;
        }
        let increase = self.config.increase_share * self.path.line_bps;
        let over = self.load / self.config.eta;
        let is_multiplicative = over >= 1.0 || self.stage >= self.config.max_stage;
        let rate_bps = if is_multiplicative {
            self.reference_bps / over + increase
        } else {
            self.reference_bps + increase
        };
        // A load of 0 gives the line's rate.
        self.rate_bps = self.bounded(rate_bps);
        if is_update {
            self.reference_bps = self.rate_bps;
            self.stage = if is_multiplicative { 0 } else { self.stage + 1 };
            self.last_update = acked.next;
        }
    }

    /// Returns a rate between the least and the line's.
    pub(super) fn bounded(&self, rate_bps: f64) -> f64 {
        let line_bps = self.path.line_bps;
        rate_bps.clamp(self.config.min_rate_bps.min(line_bps), line_bps)
    }

    /// Returns the mean load U.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.load
    }
}

impl Control for Hpcc {
    type Config = HpccConfig;
    const TELEMETRY: Telemetry = Telemetry::Asked;

    fn new(config: &HpccConfig, path: PathFacts) -> Self {
        Self {
            config: *config,
            path,
            trace: Trace::EMPTY,
            load: 1.0,
            rate_bps: path.line_bps,
            reference_bps: path.line_bps,
            stage: 0,
            last_update: 0,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        if self.measure(acked).is_some() {
            self.react(acked);
        }
    }

    fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    fn window_bytes(&self) -> u64 {
        self.path.window_bytes(self.rate_bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    const RATE_BPS: u64 = 100_000_000_000;
    /// T of a dumbbell of three switches in HPCC's public simulator.
    const BASE_RTT: Span = Span::from_ns(12_320);

    fn control(max_stage: u32, per_ack: bool) -> Hpcc {
        let config = HpccConfig {
            eta: 0.95,
            max_stage,
            increase_share: 0.0004,
            min_rate_bps: 1e9,
            per_ack,
        };
        let path = PathFacts {
            line_bps: RATE_BPS as f64,
            receiver_bps: RATE_BPS as f64,
            base_rtt: BASE_RTT,
            begins: Time::ZERO,
        };
        Hpcc::new(&config, path)
    }

    fn ack(control: &mut Hpcc, ack: u64, next: u64, hops: &[IntHop]) -> f64 {
        control.on_ack(&Acked {
            now: Time::ZERO,
            ack,
            next,
            rtt: BASE_RTT,
            marked: false,
            hops,
            flows: 0,
            rcp: None,
        });
        control.rate_bps() / 1e9
    }

    fn hop(ns: u64, sent_bytes: u64, queue_bytes: u64) -> IntHop {
        IntHop::new(RATE_BPS, Time::from_ns(ns), sent_bytes, queue_bytes)
    }

    /// The first acknowledgements of a lone flow in HPCC's public simulator (commit 9f4be2a), as it
    /// logged them: three hops, bytes in units of 512, η 0.95, no additive steps.
    #[test]
    fn the_public_simulators_first_acknowledgements_give_its_rates() {
        let mut control = control(0, true);
        let expected = [
            (0, 100.0, 1.0),
            (1, 95.079, 0.999_588),
            (2, 95.118, 0.999_178),
            (3, 95.157, 0.998_772),
        ];
        for (n, rate, load) in expected {
            let hops = [3_512_883, 3_514_470, 3_516_057].map(|ns| hop(ns + 87 * n, 1_024 * n, 0));
            let got = ack(&mut control, 1_000 * (n + 1), 143_000 + 1_000 * n, &hops);
            assert!((got - rate).abs() < 0.002, "{n}: {got} for {rate}");
            assert!(
                (control.load() - load).abs() < 2e-5,
                "{n}: {}",
                control.load()
            );
        }
    }

    /// Acknowledgements that bring a load for a whole T: R = Rc η / U + R_AI at once, and Rc moves
    /// with the first acknowledgement of what was sent after it moved.
    #[test]
    fn every_acknowledgement_computes_from_the_reference() {
        for per_ack in [true, false] {
            let mut control = control(5, per_ack);
            let ns = BASE_RTT.as_ns();
            ack(&mut control, 1_000, 100_000, &[hop(0, 0, 0)]);
            // B T = 154,000 bytes pass in T, and as many wait: U = 2.
            let first = ack(&mut control, 2_000, 101_000, &[hop(ns, 153_984, 154_000)]);
            let one = 0.95 * 100.0 / (153_984.0 / 154_000.0) + 0.04;
            assert!((first - if per_ack { one } else { 100.0 }).abs() < 1e-6);
            let queue = 154_000 / 80 * 80;
            let second = ack(
                &mut control,
                3_000,
                102_000,
                &[hop(2 * ns, 307_968, 154_000)],
            );
            let load = 153_984.0 / 154_000.0 + f64::from(queue) / 154_000.0;
            let both = 100.0 * 0.95 / load + 0.04;
            assert!((second - if per_ack { both } else { 100.0 }).abs() < 1e-6);
            // The acknowledgement of byte 101,000 is the first after Rc's last update.
            let third = ack(
                &mut control,
                101_000,
                150_000,
                &[hop(3 * ns, 461_952, 154_000)],
            );
            assert!((third - both).abs() < 1e-6);
            // From the new Rc now.
            let fourth = ack(
                &mut control,
                151_000,
                200_000,
                &[hop(4 * ns, 615_936, 154_000)],
            );
            assert!((fourth - (both * 0.95 / load + 0.04)).abs() < 1e-6);
        }
    }

    /// Below η there are `max_stage` additive steps and then a multiplicative one.
    #[test]
    fn additive_steps_come_before_a_multiplicative_one() {
        let mut control = control(3, true);
        control.reference_bps = 10e9;
        control.load = 0.475;
        let mut rates = Vec::new();
        for n in 0..5_u64 {
            // Half of the target's load all the time; every acknowledgement updates Rc.
            let sent = n * 73_152;
            let hop = hop(n * BASE_RTT.as_ns(), sent, 0);
            rates.push(ack(
                &mut control,
                10_000 * (n + 1),
                10_000 * (n + 1) + 1,
                &[hop],
            ));
        }
        assert!((rates[1] - 10.04).abs() < 1e-9, "{rates:?}");
        assert!((rates[2] - 10.08).abs() < 1e-9, "{rates:?}");
        assert!((rates[3] - 10.12).abs() < 1e-9, "{rates:?}");
        assert!((rates[4] - 20.28).abs() < 0.1, "{rates:?}");
    }

    /// An acknowledgement that was overtaken, two of one moment, and telemetry that makes no sense:
    /// rates stay within their bounds, and late ones change nothing.
    #[test]
    fn telemetry_out_of_order_or_absurd_has_a_bounded_effect() {
        let mut control = control(0, true);
        ack(&mut control, 1_000, 100_000, &[hop(10_000, 0, 0)]);
        ack(
            &mut control,
            2_000,
            100_000,
            &[hop(20_000, 123_904, 50_000)],
        );
        let before = control;
        ack(&mut control, 2_000, 100_000, &[hop(19_000, 120_000, 0)]);
        ack(&mut control, 2_000, 100_000, &[hop(20_000, 500_000, 0)]);
        assert_eq!(control.rate_bps.to_bits(), before.rate_bps.to_bits());
        assert_eq!(control.load.to_bits(), before.load.to_bits());
        let absurd = [
            hop(21_000, u64::MAX, u64::MAX),
            IntHop::NONE,
            IntHop::new(1_000_000_000, Time::from_ns(29_000), 0, u64::MAX),
            hop(40_000, 0, 0),
        ];
        for (n, hop) in absurd.into_iter().enumerate() {
            ack(&mut control, 200_000 * n as u64, 300_000 * n as u64, &[hop]);
            let rate = control.rate_bps();
            assert!((1e9..=100e9).contains(&rate), "{n}: {rate}");
            assert!(control.window_bytes() >= 1 && control.load.is_finite());
        }
        // A path of another length begins anew.
        let rate = control.rate_bps();
        ack(&mut control, 1, 1, &[hop(50_000, 0, 0), hop(50_000, 0, 0)]);
        assert_eq!(control.rate_bps().to_bits(), rate.to_bits());
    }
}
