//! Settings of the allocation, and their bounds.

use super::EngineError;
use crate::num::utility::ClassTable;
#[cfg(doc)]
use crate::num::{Ned, SafeguardedNed};

/// Price update of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepRule {
    /// [`SafeguardedNed`]: converges where NED does not, and corrects prices for starts and ends at
    /// once.
    #[default]
    Safeguarded,
    /// [`Ned`]: Algorithm 1 of the paper to the letter, for comparison.
    Ned,
}

/// Settings of the allocation.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// NED's step γ (flowtune §2, (4)). With the guarded rule, the shortest step of a link.
    pub gamma: f64,
    /// The price update.
    pub step_rule: StepRule,
    /// Relative change above which a rate is notified again (flowtune §5.3.2). Capacities are
    /// derated by the same share, so that rates within the threshold never over-use a link.
    pub threshold: f64,
    /// Share of every link that is kept for flowlets that never ask (flowtune §6).
    pub mice_reserve: f64,
    /// Upper bound of the flows.
    pub max_flows: usize,
    /// Utilities and weights by class.
    pub classes: ClassTable,
    /// Tolerance at which the engine has settled. Then no rate moves by more than this share, and
    /// no link is over-used, or under-used despite a price, by more than this share of its
    /// capacity. Every rate past the threshold is notified, too.
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
        // NED's step diverges from 2 on: a step of γ corrects γ times a link's excess.
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
        // Flow numbers are `u32`s, the largest of which stand for none.
        let bound = self.max_flows;
        within(
            "max_flows",
            bound as f64,
            bound > 0 && bound <= 1 << 30,
            "1 to 2^30",
        )
    }
}
