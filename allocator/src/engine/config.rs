//! How the engine allocates, and which settings make sense.

use super::EngineError;
use crate::num::utility::ClassTable;
#[cfg(doc)]
use crate::num::{Ned, SafeguardedNed};

/// Which price update the engine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepRule {
    /// [`SafeguardedNed`]: converges where the plain rule does not, and answers starts and ends at once.
    #[default]
    Guarded,
    /// [`Ned`]: Algorithm 1 of the paper to the letter, for comparison.
    Paper,
}

/// How the engine allocates.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// NED's step γ (flowtune §2, (4)). With the guarded rule, the shortest step of a link.
    pub gamma: f64,
    /// The price update.
    pub step_rule: StepRule,
    /// A rate is told again when it has moved by more than this share (flowtune §5.3.2). All
    /// capacities are derated by the same share, so that rates not yet told never overfill a link.
    pub threshold: f64,
    /// The share of every link that is kept for flowlets that never ask (flowtune §6).
    pub mice_reserve: f64,
    /// The bound of the flow table.
    pub max_flows: usize,
    /// What rates are worth.
    pub classes: ClassTable,
    /// The engine has settled when an iteration moves no rate by more than this share, no link is
    /// over- or under-used by more than this share of its capacity without reason, and every rate
    /// that passed the threshold is told.
    pub settle_tolerance: f64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            gamma: 0.4,
            step_rule: StepRule::default(),
            threshold: 0.01,
            mice_reserve: 0.0,
            max_flows: 1 << 20,
            classes: ClassTable::default(),
            settle_tolerance: 1e-5,
        }
    }
}

impl EngineConfig {
    pub(super) fn check(&self) -> Result<(), EngineError> {
        let within = |name, value: f64, ok: bool, expected| {
            if ok {
                Ok(())
            } else {
                Err(EngineError::BadSetting {
                    name,
                    value,
                    expected,
                })
            }
        };
        within(
            "gamma",
            self.gamma,
            self.gamma > 0.0 && self.gamma < 2.0,
            "above 0 and below 2",
        )?;
        let share = |v: f64| (0.0..=0.5).contains(&v);
        within(
            "threshold",
            self.threshold,
            share(self.threshold),
            "0 to 0.5",
        )?;
        within(
            "mice_reserve",
            self.mice_reserve,
            share(self.mice_reserve),
            "0 to 0.5",
        )?;
        let tolerance = self.settle_tolerance;
        within(
            "settle_tolerance",
            tolerance,
            tolerance > 0.0 && tolerance < 0.1,
            "above 0 and below 0.1",
        )?;
        let bound = self.max_flows;
        within(
            "max_flows",
            bound as f64,
            bound > 0 && bound <= 1 << 30,
            "1 to 2^30",
        )
    }
}
