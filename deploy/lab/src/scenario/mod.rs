//! The scenarios. Each builds a network of its own for either phase, so that the baseline never
//! sees anything of Ratewright.

pub mod check;
pub mod coflow;
pub mod failover;
pub mod fairness;
pub mod feeds;
pub mod figures;
pub mod links;
pub mod mixed;
pub mod obey;
pub mod outcome;
mod phases;
pub mod safety;
pub mod starts;
pub mod usage;

use anyhow::Result;

use crate::lab::context::Lab;
use crate::options::ScenarioKind;
use outcome::RunOutcome;

/// Runs the scenario that the command line names.
///
/// # Errors
/// When it does not run to its end.
pub fn run(lab: &Lab) -> Result<RunOutcome> {
    match lab.options.scenario {
        ScenarioKind::Fairness => fairness::run(lab),
        ScenarioKind::Coflow => coflow::run(lab),
        ScenarioKind::Feeds => feeds::run(lab),
        ScenarioKind::Failover => failover::run(lab),
        ScenarioKind::Mixed => mixed::run(lab),
        ScenarioKind::Use => usage::run(lab),
        ScenarioKind::Links => links::run(lab),
        ScenarioKind::Safety => safety::run(lab),
        ScenarioKind::Starts => starts::run(lab),
        ScenarioKind::Obey => obey::run(lab),
        ScenarioKind::Check => check::run(lab),
    }
}
