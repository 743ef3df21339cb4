//! FNCC (Xu et al., 2024): HPCC's window, moved by telemetry that switches write into
//! acknowledgements as they pass, so that it is younger.
//!
//! Beside it stands the last-hop congestion speed-up: if the last hop is the most loaded one and
//! above α, Rc becomes B β / N, where the receiver tells the number N of its flows (§3.2.2,
//! algorithm 2). Acknowledgements collect the last hop first.

use super::hpcc::{Hpcc, HpccConfig};
use super::{Acked, Control, PathFacts};
use crate::net::Telemetry;

use serde::{Deserialize, Serialize};

/// Reaction to congestion of the last hop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LastHop {
    /// None of its own: that of HPCC.
    None,
    /// The reference window becomes the fair one times β, from which the window is computed
    /// (§3.2.2, algorithm 3, lines 25 and 30).
    #[default]
    Reference,
    /// The window itself becomes the fair one times β (§3.2.2 in words).
    Window,
}

/// FNCC's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FnccConfig {
    /// Parameters of the window.
    pub hpcc: HpccConfig,
    /// Reaction to congestion of the last hop.
    pub last_hop: LastHop,
    /// Load of the last hop from which it is congested (§3.2.2: 1.05).
    pub alpha: f64,
    /// Part of the fair rate that is taken (§3.2.2: 0.9).
    pub beta: f64,
}

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Fncc {
    hpcc: Hpcc,
    last_hop: LastHop,
    alpha: f64,
    beta: f64,
    /// Rate in place of HPCC's, while the last hop sets the window.
    fair_bps: Option<f64>,
}

impl Control for Fncc {
    type Config = FnccConfig;
    const TELEMETRY: Telemetry = Telemetry::Acknowledgements;

    fn new(config: &FnccConfig, path: PathFacts) -> Self {
        Self {
            hpcc: Hpcc::new(&config.hpcc, path),
            last_hop: config.last_hop,
            alpha: config.alpha,
            beta: config.beta,
            fair_bps: None,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        let Some(loads) = self.hpcc.measure(acked) else {
            return;
        };
        self.fair_bps = None;
        let is_congested = loads.hop == 0 && loads.u > self.alpha;
        if self.last_hop != LastHop::None && is_congested {
            let last_bps = acked.hops[0].rate_bps() as f64;
            // A receiver that does not tell has this flow at least.
            let fair_bps = last_bps * self.beta / f64::from(acked.flows.max(1));
            // A receiver that tells too many stops no flow.
            let fair_bps = self.hpcc.bounded(fair_bps);
            self.hpcc.reference_bps = fair_bps;
            self.fair_bps = (self.last_hop == LastHop::Window).then_some(fair_bps);
        }
        self.hpcc.react(acked);
    }

    fn rate_bps(&self) -> f64 {
        self.fair_bps.unwrap_or(self.hpcc.rate_bps())
    }

    fn window_bytes(&self) -> u64 {
        self.hpcc.path.window_bytes(self.rate_bps())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::IntHop;
    use crate::time::{Span, Time};

    const BASE_RTT: Span = Span::from_ns(12_320);

    /// Rate after T in which the last hop, or the one before it, has this load, in Gbit/s.
    fn rate(last_hop: LastHop, at_last: bool, queue_bytes: u64, flows: u16) -> f64 {
        let config = FnccConfig {
            hpcc: HpccConfig {
                eta: 0.95,
                max_stage: 5,
                increase_share: 0.0004,
                min_rate_bps: 1e9,
                per_ack: true,
            },
            last_hop,
            alpha: 1.05,
            beta: 0.9,
        };
        let path = PathFacts {
            line_bps: 100e9,
            receiver_bps: 100e9,
            base_rtt: BASE_RTT,
            begins: Time::ZERO,
        };
        let mut control = Fncc::new(&config, path);
        for n in 0..2 {
            let hop = |queue| {
                let at = Time::ZERO + BASE_RTT * n;
                IntHop::new(100_000_000_000, at, 153_984 * n, queue)
            };
            let mut hops = [hop(queue_bytes), hop(0)];
            if !at_last {
                hops.reverse();
            }
            control.on_ack(&Acked {
                now: Time::ZERO,
                ack: n,
                next: 1_000_000,
                rtt: BASE_RTT,
                marked: false,
                hops: &hops,
                flows,
                rcp: None,
            });
        }
        control.rate_bps() / 1e9
    }

    /// Algorithm 2: Wc = B RTT β / N at the last hop above α, and HPCC's Wc elsewhere. Algorithm 3
    /// computes W from Wc; the words set W itself.
    #[test]
    fn the_last_hop_sets_the_fair_share_times_beta() {
        let queue = 30_800;
        let load = 153_984.0 / 154_000.0 + 0.2;
        let from = |reference: f64| reference * 0.95 / load + 0.04;
        let close = |got: f64, expected: f64| (got - expected).abs() < 1e-6;
        assert!(close(rate(LastHop::None, true, queue, 4), from(100.0)));
        assert!(close(rate(LastHop::Reference, true, queue, 4), from(22.5)));
        assert!(close(rate(LastHop::Window, true, queue, 4), 22.5));
        assert!(close(rate(LastHop::Window, false, queue, 4), from(100.0)));
        // A receiver that lies by a number of 0 gives one flow's share.
        assert!(close(rate(LastHop::Window, true, queue, 0), 90.0));
    }

    /// Below α there is no speed-up: a load of 1.03.
    #[test]
    fn a_last_hop_below_alpha_is_as_any_other() {
        let load = 153_984.0 / 154_000.0 + 4_640.0 / 154_000.0;
        let expected = 95.0 / load + 0.04;
        assert!((rate(LastHop::Window, true, 4_640, 4) - expected).abs() < 1e-6);
    }
}
