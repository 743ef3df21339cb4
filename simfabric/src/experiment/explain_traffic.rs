//! Explanations for rows of figures 9 and 10 that are off, as in [`explain`](super::explain): the
//! same measurement under alternatives. One alternative inside the paper's range explains the row;
//! otherwise it stays off.

use super::ExperimentError;
use super::assumptions::{Assumptions, Counting};
use super::control_traffic::{TrafficCase, TrafficSample, all};
use super::explain::Alternative;
use crate::report::digits::short;
use crate::report::figure::{Figure, Row, Verdict};

/// A judged row of a figure, and the means to explain it.
#[derive(Clone, Debug)]
pub struct TrafficRowCheck {
    /// The row's index in the figure.
    pub row: usize,
    /// The paper's range.
    pub range: (f64, f64),
    /// Relative widening of the range at both ends.
    pub tolerance: f64,
    /// The runs that the row's value follows from.
    pub cases: Vec<TrafficCase>,
    /// The counting of control traffic, unless an alternative has another.
    pub counting: Counting,
    /// Alternatives to measure the row under.
    pub alternatives: &'static [Alternative],
    /// The row's value from the samples of its cases.
    pub measure: fn(&[TrafficSample], Counting) -> Option<f64>,
}

/// The run behind a case, without its counting: equal runs with different counting are one run.
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

/// Measures every row that is off under all its alternatives, notes the results, and turns its
/// verdict to [`Verdict::Explained`] where one of them explains it. `known` are the figure's own
/// runs, and `samples` theirs, in the same order.
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
                // `runs` begins with the known ones, so an index below their number needs no run.
                // An alternative of the counting alone finds itself there.
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
    // Indices into `runs` are indices into this: known samples first, new ones in the order of
    // runs.
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
        // Every result is noted, also those outside: a reader sees what was tried.
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

    /// An alternative with a key or value that does not exist would fail only once a row is off.
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
