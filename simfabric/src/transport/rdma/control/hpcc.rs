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
}

impl Trace {
    pub(super) const EMPTY: Self = Self {
        hops: [IntHop::NONE; MAX_HOPS],
        len: 0,
    };

    /// Takes an acknowledgement's telemetry. Returns the greatest load since the one before; `None`
    /// of the first, of one on another path, and of one that comes too late or says nothing.
    pub(super) fn update(
        &mut self,
        hops: &[IntHop],
        base_rtt: Span,
        load: impl Fn(IntHop, IntHop, f64) -> f64,
    ) -> Option<Loads> {
        let known = self.len == hops.len();
        let mut greatest: Option<Loads> = None;
        let mut is_late = false;
        for (hop, (&new, &old)) in hops.iter().zip(&self.hops).enumerate().filter(|_| known) {
            let (span, _) = new.since(old);
            is_late |= span >= REORDERED;
            // Two stamps of one moment tell nothing of a rate, and no link has none.
            if span == Span::ZERO || new.rate_bps() == 0 {
                continue;
            }
            let u = load(new, old, span.as_secs_f64());
            if greatest.is_none_or(|known| u > known.u) {
                let tau = span.min(base_rtt);
                greatest = Some(Loads { u, hop, tau });
            }
        }
        if is_late {
            return None;
        }
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
        let loads = self.trace.update(acked.hops, base_rtt, of_hop);
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
        // Written so that a load of 0 gives the line's rate.
        self.rate_bps = rate_bps.clamp(
            self.config.min_rate_bps.min(self.path.line_bps),
            self.path.line_bps,
        );
        if is_update {
            self.reference_bps = self.rate_bps;
            self.stage = if is_multiplicative { 0 } else { self.stage + 1 };
            self.last_update = acked.next;
        }
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
