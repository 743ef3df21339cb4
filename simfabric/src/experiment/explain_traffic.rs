//! Rows of figures 9 and 10 that are off, measured again under other assumptions, as
//! [`explain`](super::explain) does for figures 12 to 15: a row is explained if one of them brings it to
//! where the paper has it, and stays off if none does.

use super::ExperimentError;
use super::assumptions::{Assumptions, Counting};
use super::control_traffic::{TrafficCase, TrafficSample, all};
use super::explain::Alternative;
use crate::report::figure::{Figure, Row, Verdict, short};

/// A judged row of a figure.
#[derive(Clone, Debug)]
pub struct TrafficRowCheck {
    /// Its index in the figure.
    pub row: usize,
    /// The paper's range.
    pub range: (f64, f64),
    /// How much wider it may be, relative.
    pub tolerance: f64,
    /// The runs that it is worked out from.
    pub cases: Vec<TrafficCase>,
    /// What counts unless chosen otherwise.
    pub counting: Counting,
    /// What to try.
    pub alternatives: &'static [Alternative],
    /// What the row asks of these runs.
    pub measure: fn(&[TrafficSample], Counting) -> Option<f64>,
}

/// The run behind a case: what counts of it does not change it.
fn run_of(case: &TrafficCase) -> TrafficCase {
    let assumptions = Assumptions {
        count: None,
        ..case.assumptions
    };
    TrafficCase {
        assumptions,
        ..case.clone()
    }
}

/// Measures every row that is off again, in all its alternatives. `known` are runs that were made already, with
/// their samples.
///
/// # Errors
/// See [`ExperimentError`].
pub fn explain(
    figure: &mut Figure,
    known: &[TrafficCase],
    samples: &[TrafficSample],
    checks: &[TrafficRowCheck],
) -> Result<(), ExperimentError> {
    let mut runs: Vec<TrafficCase> = known.iter().map(run_of).collect();
    let mut planned = Vec::new();
    for check in checks {
        if figure.rows[check.row].verdict != Verdict::Off {
            continue;
        }
        for alternative in check.alternatives {
            let mut indices = Vec::new();
            let mut counting = check.counting;
            for case in &check.cases {
                let mut case = case.clone();
                for option in *alternative {
                    case.assumptions.set(option)?;
                }
                counting = case.assumptions.count.unwrap_or(counting);
                let run = run_of(&case);
                let index = runs.iter().position(|known| *known == run);
                indices.push(index.unwrap_or_else(|| {
                    runs.push(run);
                    runs.len() - 1
                }));
            }
            planned.push((check, alternative, indices, counting));
        }
    }
    let mut samples = samples.to_vec();
    samples.extend(all(&runs[known.len()..])?);
    for (check, alternative, indices, counting) in planned {
        let of: Vec<TrafficSample> = indices.iter().map(|&i| samples[i].clone()).collect();
        let Some(value) = (check.measure)(&of, counting) else {
            continue;
        };
        let row = &mut figure.rows[check.row];
        let options: Vec<String> = alternative
            .iter()
            .map(|option| format!("--set {option}"))
            .collect();
        let found = format!("{} {} with {}", short(value), row.unit, options.join(" "));
        row.note = Some(match row.note.take() {
            Some(note) => format!("{note}; {found}"),
            None => found,
        });
        let judged = Row::judged("", check.range, value, "", check.tolerance);
        if judged.verdict == Verdict::Reproduced {
            row.verdict = Verdict::Explained;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{fig09_update_traffic, fig10_thresholds};

    /// Every alternative that a figure names is one that can be gone.
    #[test]
    fn every_alternative_changes_an_assumption() {
        for alternative in fig09_update_traffic::ALTERNATIVES
            .iter()
            .chain(fig10_thresholds::ALTERNATIVES)
        {
            let mut assumptions = Assumptions::default();
            for option in *alternative {
                assumptions.set(option).unwrap();
            }
            assert_ne!(assumptions, Assumptions::default(), "{alternative:?}");
        }
    }
}
