//! Rows of figures 9 and 10 that are off, measured again under other choices, as
//! [`explain`](super::explain) does for figures 12 to 15: a row is explained if one of them brings it to
//! where the paper has it, and stays off if none does.

use super::ExperimentError;
use super::choices::{Choices, Counting};
use super::control_traffic::{Case, Sample, all};
use super::explain::Way;
use crate::report::figure::{Figure, Row, Verdict, short};

/// A judged row of a figure.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its index in the figure.
    pub row: usize,
    /// The paper's range.
    pub range: (f64, f64),
    /// How much wider it may be, relative.
    pub tolerance: f64,
    /// The runs that it is worked out from.
    pub cases: Vec<Case>,
    /// What counts unless chosen otherwise.
    pub counting: Counting,
    /// What to try.
    pub ways: &'static [Way],
    /// What the row asks of these runs.
    pub measure: fn(&[Sample], Counting) -> Option<f64>,
}

/// The run behind a case: what counts of it does not change it.
fn run_of(case: &Case) -> Case {
    let choices = Choices {
        count: None,
        ..case.choices
    };
    Case {
        choices,
        ..case.clone()
    }
}

/// Measures every row that is off again, in all its ways. `known` are runs that were made already, with
/// their samples.
///
/// # Errors
/// See [`ExperimentError`].
pub fn explain(
    figure: &mut Figure,
    known: &[Case],
    samples: &[Sample],
    asked: &[Asked],
) -> Result<(), ExperimentError> {
    let mut runs: Vec<Case> = known.iter().map(run_of).collect();
    let mut questions = Vec::new();
    for asked in asked {
        if figure.rows[asked.row].verdict != Verdict::Off {
            continue;
        }
        for way in asked.ways {
            let mut indices = Vec::new();
            let mut counting = asked.counting;
            for case in &asked.cases {
                let mut case = case.clone();
                for choice in *way {
                    case.choices.set(choice)?;
                }
                counting = case.choices.count.unwrap_or(counting);
                let run = run_of(&case);
                let index = runs.iter().position(|known| *known == run);
                indices.push(index.unwrap_or_else(|| {
                    runs.push(run);
                    runs.len() - 1
                }));
            }
            questions.push((asked, way, indices, counting));
        }
    }
    let mut samples = samples.to_vec();
    samples.extend(all(&runs[known.len()..])?);
    for (asked, way, indices, counting) in questions {
        let of: Vec<Sample> = indices.iter().map(|&i| samples[i].clone()).collect();
        let Some(value) = (asked.measure)(&of, counting) else {
            continue;
        };
        let row = &mut figure.rows[asked.row];
        let way: Vec<String> = way.iter().map(|choice| format!("--set {choice}")).collect();
        let found = format!("{} {} with {}", short(value), row.unit, way.join(" "));
        row.note = Some(match row.note.take() {
            Some(note) => format!("{note}; {found}"),
            None => found,
        });
        let judged = Row::judged("", asked.range, value, "", asked.tolerance);
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

    /// Every way that a figure names is one that can be gone.
    #[test]
    fn all_ways_are_choices() {
        for way in fig09_update_traffic::WAYS
            .iter()
            .chain(fig10_thresholds::WAYS)
        {
            let mut choices = Choices::default();
            for choice in *way {
                choices.set(choice).unwrap();
            }
            assert_ne!(choices, Choices::default(), "{way:?}");
        }
    }
}
