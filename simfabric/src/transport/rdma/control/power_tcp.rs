//! PowerTCP and θ-PowerTCP (Addanki et al., NSDI 2022): the window follows the *power* of a hop,
//! its arrival rate times what is in flight, or of the path, by round-trip times alone.
//!
//! | control | normalised power Γ | rate |
//! |---|---|---|
//! | PowerTCP (algorithm 1) | A (q + B T) / (B² T), arrival rate A, of the most loaded hop | γ (Rc η/U + β) + (1 − γ) Rc |
//! | θ-PowerTCP (algorithm 2) | (1 + dRTT/dt) RTT / T | γ (Rc/U + β) + (1 − γ) Rc |
//!
//! U is Γ's mean over T, and Rc moves once per round trip, as in HPCC. So do the authors' public
//! simulator, whose floors of A/B and of 1 + dRTT/dt at 1/2, target η and tolerance of the least
//! round trip stand here, too.

use super::hpcc::Trace;
use super::{Acked, Control, PathFacts};
use crate::ext::IntHop;
use crate::net::Telemetry;
use crate::time::{Span, Time};

/// Parameters of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerTcpConfig {
    /// Weight γ of the newest rate.
    pub gamma: f64,
    /// Additive increase β, in bit/s.
    pub increase_bps: f64,
    /// Target η of the power; 1 for θ-PowerTCP.
    pub eta: f64,
    /// Factor of the least round trip that counts as that of an idle path, of θ-PowerTCP.
    pub tolerance: f64,
    /// Least rate, in bit/s.
    pub min_rate_bps: f64,
    /// True if the first acknowledgement moves the rate as if nothing had passed its hops before.
    /// Of PowerTCP.
    pub first_reacts: bool,
}

/// Least share of arrivals in the power.
const LEAST_CURRENT: f64 = 0.5;

/// Rate from mean power, which both controls share.
#[derive(Clone, Copy, Debug)]
struct Power {
    config: PowerTcpConfig,
    path: PathFacts,
    mean: f64,
    rate_bps: f64,
    /// Rate Rc that acknowledgements compute from.
    reference_bps: f64,
    /// Byte whose acknowledgement is the next to move Rc.
    last_update: u64,
}

impl Power {
    fn new(config: &PowerTcpConfig, path: PathFacts) -> Self {
        Self {
            config: *config,
            path,
            mean: 1.0,
            rate_bps: path.line_bps,
            reference_bps: path.line_bps,
            last_update: 0,
        }
    }

    fn react(&mut self, acked: &Acked<'_>, power: f64, tau: Span) {
        let base_rtt = self.path.base_rtt;
        let share = tau.min(base_rtt).as_secs_f64() / base_rtt.as_secs_f64();
        self.mean = self.mean * (1.0 - share) + power * share;
        let PowerTcpConfig { gamma, eta, .. } = self.config;
        // A mean of 0 gives the line's rate.
        let target = self.reference_bps * eta / self.mean + self.config.increase_bps;
        let rate_bps = gamma * target + (1.0 - gamma) * self.reference_bps;
        let least = self.config.min_rate_bps.min(self.path.line_bps);
        self.rate_bps = rate_bps.clamp(least, self.path.line_bps);
        if acked.ack > self.last_update {
            self.reference_bps = self.rate_bps;
            self.last_update = acked.next;
        }
    }

    fn window_bytes(&self) -> u64 {
        self.path.window_bytes(self.rate_bps)
    }
}

/// PowerTCP's control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct PowerTcp {
    power: Power,
    trace: Trace,
}

/// Power of a hop (algorithm 1, `NormPower`).
fn of_hop(new: IntHop, old: IntHop, seconds: f64, base_rtt: Span) -> f64 {
    let (_, sent) = new.since(old);
    // What came is what was sent and what the queue has more.
    let growth = new.queue_bytes() as f64 - old.queue_bytes() as f64;
    let arrivals = (sent as f64 + growth) * 8.0 / seconds / new.rate_bps() as f64;
    of_arrivals(new, arrivals, base_rtt)
}

/// Power of a hop at which this share of its rate arrives.
fn of_arrivals(hop: IntHop, arrivals: f64, base_rtt: Span) -> f64 {
    let queued = hop.queue_bytes() as f64 * 8.0 / (hop.rate_bps() as f64 * base_rtt.as_secs_f64());
    arrivals.max(LEAST_CURRENT) * (queued + 1.0)
}

impl Control for PowerTcp {
    type Config = PowerTcpConfig;
    const TELEMETRY: Telemetry = Telemetry::Asked;

    fn new(config: &PowerTcpConfig, path: PathFacts) -> Self {
        Self {
            power: Power::new(config, path),
            trace: Trace::EMPTY,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        let base_rtt = self.power.path.base_rtt;
        let is_first = self.trace.is_empty();
        let load = |new, old, seconds| of_hop(new, old, seconds, base_rtt);
        let loads = self.trace.update(acked, base_rtt, load);
        if is_first && self.power.config.first_reacts {
            let hops = acked.hops.iter().filter(|hop| hop.rate_bps() > 0);
            let power = hops.map(|hop| of_arrivals(*hop, 0.0, base_rtt));
            if let Some(power) = power.reduce(f64::max) {
                self.power.react(acked, power, base_rtt);
            }
        }
        if is_first {
            self.power.last_update = acked.next;
        }
        if let Some(loads) = loads {
            self.power.react(acked, loads.u, loads.tau);
        }
    }

    fn rate_bps(&self) -> f64 {
        self.power.rate_bps
    }

    fn window_bytes(&self) -> u64 {
        self.power.window_bytes()
    }
}

/// θ-PowerTCP's control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct ThetaPowerTcp {
    power: Power,
    /// Time and round trip of the acknowledgement before.
    last: Option<(Time, Span)>,
    least_rtt: Span,
}

impl Control for ThetaPowerTcp {
    type Config = PowerTcpConfig;

    fn new(config: &PowerTcpConfig, path: PathFacts) -> Self {
        Self {
            power: Power::new(config, path),
            last: None,
            least_rtt: path.base_rtt,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        // No packet takes no time: its receiver lies about the time at which it left.
        if acked.rtt == Span::ZERO {
            return;
        }
        self.least_rtt = self.least_rtt.min(acked.rtt);
        let Some((at, rtt)) = self.last.replace((acked.now, acked.rtt)) else {
            self.power.last_update = acked.next;
            return;
        };
        let tau = acked.now.since(at);
        if tau == Span::ZERO {
            return;
        }
        let gradient = (acked.rtt.as_secs_f64() - rtt.as_secs_f64()) / tau.as_secs_f64();
        let idle_s = self.power.config.tolerance * self.least_rtt.as_secs_f64();
        let power = (1.0 + gradient).max(LEAST_CURRENT) * acked.rtt.as_secs_f64() / idle_s;
        self.power.react(acked, power, tau);
    }

    fn rate_bps(&self) -> f64 {
        self.power.rate_bps
    }

    fn window_bytes(&self) -> u64 {
        self.power.window_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathFacts = PathFacts {
        line_bps: 100e9,
        receiver_bps: 100e9,
        base_rtt: Span::from_us(10),
        begins: Time::ZERO,
    };

    fn config(gamma: f64, eta: f64) -> PowerTcpConfig {
        PowerTcpConfig {
            gamma,
            increase_bps: 150e6,
            eta,
            tolerance: 1.0,
            min_rate_bps: 100e6,
            first_reacts: false,
        }
    }

    fn acked(now: Time, rtt: Span, hops: &[IntHop]) -> Acked<'_> {
        Acked {
            now,
            ack: 1,
            next: 1_000_000,
            rtt,
            marked: false,
            hops,
            flows: 0,
            rcp: None,
        }
    }

    /// Twice the link's rate arrives for T while half a BDP waits: Γ = 2 × 1.5.
    #[test]
    fn power_is_arrivals_times_what_is_in_flight() {
        let mut control = PowerTcp::new(&config(0.9, 0.95), PATH);
        let hop = |us, sent, queue| IntHop::new(100_000_000_000, Time::from_us(us), sent, queue);
        let first = [hop(0, 0, 0)];
        control.on_ack(&acked(Time::from_us(5), Span::from_us(10), &first));
        // B T is 125,000 bytes; units of 128 and 80 bytes divide what follows.
        let second = [hop(10, 128_000, 64_000)];
        control.on_ack(&acked(Time::from_us(15), Span::from_us(10), &second));
        let power = (128.0 + 64.0) / 125.0 * (1.0 + 64.0 / 125.0);
        let expected = 0.9 * (100e9 * 0.95 / power + 150e6) + 0.1 * 100e9;
        assert!((control.rate_bps() - expected).abs() < 1e3);
    }

    /// Half a BDP waits, and arrivals count as half of the link's: Γ = 0.5 × 1.5, of which Rc is
    /// the line's rate, and U for the acknowledgement that follows.
    #[test]
    fn a_first_acknowledgement_that_counts_finds_an_idle_past() {
        let mut control = PowerTcp::new(
            &PowerTcpConfig {
                first_reacts: true,
                ..config(0.9, 0.95)
            },
            PATH,
        );
        let hop = |us, sent| IntHop::new(100_000_000_000, Time::from_us(us), sent, 62_480);
        control.on_ack(&acked(Time::from_us(5), Span::from_us(10), &[hop(1, 0)]));
        assert_eq!(control.rate_bps().to_bits(), PATH.line_bps.to_bits());
        let queued = 1.0 + 62.48 / 125.0;
        assert!((control.power.mean - 0.5 * queued).abs() < 1e-9);
        // The line's rate for half of T.
        let second = [hop(6, 62_464)];
        control.on_ack(&acked(Time::from_us(10), Span::from_us(10), &second));
        let mean = 0.25 * queued + 0.5 * queued * 62.464 / 62.5;
        assert!((control.power.mean - mean).abs() < 1e-9);
    }

    /// A round trip that grew by half of the time between acknowledgements: Γ = 1.5 RTT / T.
    #[test]
    fn theta_power_is_growth_times_the_round_trip() {
        let mut control = ThetaPowerTcp::new(&config(0.7, 1.0), PATH);
        control.on_ack(&acked(Time::from_us(20), Span::from_us(10), &[]));
        control.on_ack(&acked(Time::from_us(30), Span::from_us(15), &[]));
        let expected = 0.7 * (100e9 / (1.5 * 1.5) + 150e6) + 0.3 * 100e9;
        assert!((control.rate_bps() - expected).abs() < 1e3);
    }
}
