//! The results file.

use ratewright_plot::commit::commit;
use serde::Serialize;

use crate::options::LabOptions;
use crate::scenario::check::CheckRow;
use crate::scenario::figures::Figures;
use crate::scenario::obey::judge::ObeyRow;
use crate::scenario::outcome::RunOutcome;

/// One object per run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabResults {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The back end that the daemons used.
    pub backend: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Commit of the program.
    pub commit: &'static str,
    /// Capacity of a host's link.
    pub link_mbps: u32,
    /// Drop-tail buffer of a switch port.
    pub buffer_kib: u32,
    /// All times of the scenario were scaled by this.
    pub duration_scale: f64,
    /// With what the scenario shows (Ratewright, or control datagrams ahead of data); null if that
    /// phase was left out.
    pub with: Option<Figures>,
    /// Without it (the kernel's Cubic alone, or control datagrams that wait with data); null if
    /// that phase was left out.
    pub without: Option<Figures>,
    /// Cases of the obey scenario, each with and without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cases: Option<Vec<ObeyRow>>,
    /// Cases of the check scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<CheckRow>>,
}

impl LabResults {
    /// Collects a run's results.
    #[must_use]
    pub fn new(options: &LabOptions, outcome: &RunOutcome) -> LabResults {
        LabResults {
            scenario: options.scenario.name(),
            backend: outcome.backend.clone(),
            seed: options.seed,
            commit: commit(),
            link_mbps: options.link_mbps(),
            buffer_kib: options.buffer_kib,
            duration_scale: options.duration_scale,
            with: outcome.with.as_ref().map(|phase| phase.figures.clone()),
            without: outcome.without.as_ref().map(|phase| phase.figures.clone()),
            cases: outcome.cases.clone(),
            checks: outcome.checks.clone(),
        }
    }
}
