//! Step rules that [`convergence`](super::convergence) compares.

use ratewright_allocator::num::{Ned, Optimizer, SafeguardedNed};

use super::over_allocation::NED_GAMMA;
use crate::optimizers::{CoordinateDescent, NedRt};

/// Work of a rule between the events and the first iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prelude {
    /// No work beside the optimiser's own.
    Nothing,
    /// Multiplies the prices of dirty links by the ratio of their flows after and before.
    ScalePrices,
    /// Runs sweeps of coordinate descent over the dirty links.
    SweepDirtyLinks(u32),
    /// Runs iterations without F-NORM, whose rates are not used.
    InnerIterations(u32),
}

/// A step rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name in tables and JSON.
    pub name: &'static str,
    /// Short description.
    pub what: &'static str,
    /// Constructor of its optimiser, by number of links.
    pub make: fn(usize) -> Box<dyn Optimizer>,
    /// Work before the first iteration.
    pub prelude: Prelude,
}

const fn rule(
    name: &'static str,
    what: &'static str,
    make: fn(usize) -> Box<dyn Optimizer>,
    prelude: Prelude,
) -> Rule {
    Rule {
        name,
        what,
        make,
        prelude,
    }
}

/// Plain NED, whose iteration is the unit of time.
pub const PLAIN: Rule = rule(
    "plain",
    "NED as in the paper, γ = 0.4",
    |links| Box::new(Ned::new(NED_GAMMA, links)),
    Prelude::Nothing,
);

/// The engine's rule.
pub const ENGINE: Rule = rule(
    "ratewright",
    "guarded step, prices answer events, one pass more after events",
    |links| Box::new(SafeguardedNed::new(NED_GAMMA, links)),
    Prelude::Nothing,
);

/// All rules.
pub const RULES: [Rule; 14] = [
    PLAIN,
    rule(
        "plain-0.6",
        "NED, γ = 0.6",
        |links| Box::new(Ned::new(0.6, links)),
        Prelude::Nothing,
    ),
    rule(
        "plain-rt",
        "NED in single precision (flows copied in every iteration)",
        |links| Box::new(NedRt::new(NED_GAMMA, links)),
        Prelude::Nothing,
    ),
    rule(
        "guarded",
        "per-link step control (guarded step) alone",
        |links| Box::new(SafeguardedNed::without_correction(NED_GAMMA, links)),
        Prelude::Nothing,
    ),
    rule(
        "plain-scaled",
        "touched prices times flows now / flows before, then NED",
        |links| Box::new(Ned::new(NED_GAMMA, links)),
        Prelude::ScalePrices,
    ),
    rule(
        "plain-events",
        "prices answer events, then NED",
        |links| Box::new(Ned::with_correction(NED_GAMMA, links)),
        Prelude::Nothing,
    ),
    rule(
        "plain-0.6-events",
        "prices answer events, then NED, γ = 0.6",
        |links| Box::new(Ned::with_correction(0.6, links)),
        Prelude::Nothing,
    ),
    rule(
        "guarded-events",
        "guarded step, prices answer events",
        |links| Box::new(SafeguardedNed::with_inner_passes(NED_GAMMA, 0, links)),
        Prelude::Nothing,
    ),
    ENGINE,
    rule(
        "ratewright-momentum",
        "the same, and 0.4 of a link's last move again",
        |links| Box::new(SafeguardedNed::with_momentum(NED_GAMMA, 0.4, links)),
        Prelude::Nothing,
    ),
    rule(
        "plain-0.6-events-inner",
        "NED, γ = 0.6, prices answer events, one iteration more before the first F-NORM",
        |links| Box::new(Ned::with_correction(0.6, links)),
        Prelude::InnerIterations(1),
    ),
    rule(
        "local-1",
        "one local sweep over the touched links, then NED",
        |links| Box::new(Ned::new(NED_GAMMA, links)),
        Prelude::SweepDirtyLinks(1),
    ),
    rule(
        "local-3",
        "three local sweeps over the touched links, then NED",
        |links| Box::new(Ned::new(NED_GAMMA, links)),
        Prelude::SweepDirtyLinks(3),
    ),
    rule(
        "coordinate",
        "coordinate descent over all links (Gauss–Seidel)",
        |links| Box::new(CoordinateDescent::new(links)),
        Prelude::Nothing,
    ),
];
