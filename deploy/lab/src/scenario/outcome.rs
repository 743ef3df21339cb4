//! The outcome of a run: the figures and measurements of its phases.

use super::check::CheckRow;
use super::figures::Figures;
use super::obey::judge::ObeyRow;
use crate::measure::recording::Recording;

/// Results of one phase.
#[derive(Debug, Clone)]
pub struct ScenarioPhase {
    /// The scenario's figures.
    pub figures: Figures,
    /// Everything measured, for the plot.
    pub recording: Recording,
    /// Microseconds from a flowlet's first byte to its first paced transmission.
    pub first_paced_us: Vec<f64>,
}

/// Results of a run.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// The back end that the daemons used.
    pub backend: String,
    /// With what the scenario shows: Ratewright, or its control datagrams ahead of data.
    pub with: Option<ScenarioPhase>,
    /// Without it: the kernel's Cubic alone, or control datagrams that wait with data.
    pub without: Option<ScenarioPhase>,
    /// Cause of an end before the last run; the phases hold the runs before it.
    pub broken_off: Option<String>,
    /// Promise that the results break, in words.
    pub missed: Option<String>,
    /// Cases of the obey scenario.
    pub cases: Option<Vec<ObeyRow>>,
    /// Cases of the check scenario.
    pub checks: Option<Vec<CheckRow>>,
}

impl RunOutcome {
    /// Returns the outcome of a run before its first phase.
    pub(super) fn empty(backend: String) -> Self {
        Self {
            backend,
            with: None,
            without: None,
            broken_off: None,
            missed: None,
            cases: None,
            checks: None,
        }
    }

    /// Returns the outcome of a network that is as told, in which nothing may be named.
    pub(super) fn in_right_network(self) -> Self {
        let named = self.with.as_ref().and_then(|with| with.figures.not_as_told);
        let named = named.filter(|&named| named > 0);
        Self {
            missed: named.map(|named| format!("{named} times something was named as not as told")),
            ..self
        }
    }

    /// Sorts phases by whether they were run with Ratewright.
    pub(super) fn of(backend: String, phases: impl Iterator<Item = (bool, ScenarioPhase)>) -> Self {
        let mut outcome = Self::empty(backend);
        for (with, phase) in phases {
            if with {
                outcome.with = Some(phase);
            } else {
                outcome.without = Some(phase);
            }
        }
        outcome
    }
}
