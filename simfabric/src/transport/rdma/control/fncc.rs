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
    /// The reference window becomes the fair one times β, from which the window is computed (§3.2.2,
    /// algorithm 3, lines 25 and 30).
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
            let fair_bps = fair_bps.min(self.hpcc.path.line_bps);
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
