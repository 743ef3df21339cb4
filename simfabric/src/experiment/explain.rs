//! Rows of figures 12 to 15 that are off, measured again under other choices where the paper leaves one
//! open ([`Choices`](super::choices::Choices)). A row is explained if one of them brings it to where the
//! paper has it, and stays off if none does; its note has what came of each.
//!
//! A row may have a bound, too: what it would be if Flowtune had no control plane
//! ([`Scheme::Ideal`]). If even that is outside on the same side, no allocator that shares evenly
//! reaches the paper's figure on this workload, and that explains the row.

use super::choices::ChoiceError;
use super::comparison::{Sample, fetch};
use super::schemes::Scheme;
use super::{ExperimentError, Settings};
use crate::report::figure::{Figure, Number, Row, Verdict, short};

/// Choices as on the command line, made together.
pub type Way = &'static [&'static str];

/// What a row asks of two samples: of its scheme, and of Flowtune.
pub type Measure = fn(usize, &Sample, &Sample) -> Option<f64>;

/// A judged row of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Its index in the figure.
    pub row: usize,
    /// The scheme.
    pub scheme: Scheme,
    /// The load.
    pub load: f64,
    /// What the measure takes beside the samples, such as a class of size.
    pub of: usize,
    /// The paper's range.
    pub range: (f64, f64),
    /// How much wider it may be, relative.
    pub tolerance: f64,
    /// What to try.
    pub ways: &'static [Way],
    /// Whether the row has a bound.
    pub bounded: bool,
}

/// Settings with other choices on top.
fn with(settings: Settings, way: Way) -> Result<Settings, ChoiceError> {
    let mut settings = settings;
    for choice in way {
        settings.choices.set(choice)?;
    }
    Ok(settings)
}

/// Measures every row that is off again, in all its ways.
///
/// # Errors
/// See [`ExperimentError`].
pub fn explain(
    figure: &mut Figure,
    settings: Settings,
    questions: &[Question],
    measure: Measure,
) -> Result<(), ExperimentError> {
    let off: Vec<&Question> = questions
        .iter()
        .filter(|question| figure.rows[question.row].verdict == Verdict::Off)
        .collect();
    let mut cases = Vec::new();
    for question in &off {
        for way in question.ways {
            let settings = with(settings, way)?;
            cases.push((settings, question.scheme, question.load));
            cases.push((settings, Scheme::Flowtune, question.load));
        }
        if question.bounded {
            cases.push((settings, question.scheme, question.load));
            cases.push((settings, Scheme::Ideal, question.load));
        }
    }
    let samples = fetch(&cases)?;
    let mut pairs = samples.chunks_exact(2);
    for question in off {
        let row = &mut figure.rows[question.row];
        let (least, most) = (
            question.range.0 * (1.0 - question.tolerance),
            question.range.1 * (1.0 + question.tolerance),
        );
        let mut found = Vec::new();
        let mut explained = false;
        for (way, pair) in question.ways.iter().zip(&mut pairs) {
            let Some(value) = measure(question.of, &pair[0], &pair[1]) else {
                continue;
            };
            let judged = Row::judged("", question.range, value, "", question.tolerance);
            explained |= judged.verdict == Verdict::Reproduced;
            let way: Vec<String> = way.iter().map(|choice| format!("--set {choice}")).collect();
            found.push(format!(
                "{} {} with {}",
                short(value),
                row.unit,
                way.join(" ")
            ));
        }
        if question.bounded
            && let Some(pair) = pairs.next()
            && let Some(bound) = measure(question.of, &pair[0], &pair[1])
        {
            let ours = match row.ours {
                Number::Value(ours) => ours,
                Number::Range(_) | Number::Missing(()) => bound,
            };
            explained |= (ours < least && bound < least) || (ours > most && bound > most);
            found.push(format!(
                "{} {} against exact fair rates without a control plane",
                short(bound),
                row.unit
            ));
        }
        if found.is_empty() {
            continue;
        }
        let mut note = row.note.take().unwrap_or_default();
        if !note.is_empty() {
            note.push_str("; ");
        }
        note.push_str(&found.join(", "));
        row.note = Some(note);
        if explained {
            row.verdict = Verdict::Explained;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::choices::Choices;

    /// Every way that a figure names is one that can be gone.
    #[test]
    fn all_ways_are_choices() {
        let settings = Settings {
            seed: 1,
            quick: true,
            choices: Choices::default(),
        };
        let ways = crate::experiment::fig12_completion_times::PAPER
            .iter()
            .flat_map(|row| row.3)
            .chain(&crate::experiment::fig13_queueing_delay::WAYS)
            .chain(&crate::experiment::fig14_drops::WAYS)
            .chain(
                crate::experiment::fig15_fairness_score::PAPER
                    .iter()
                    .flat_map(|row| row.2),
            );
        for way in ways {
            let changed = with(settings, way).unwrap();
            assert_ne!(changed, settings, "{way:?}");
        }
    }
}
