//! Rows of figures 12 to 15 that are off, measured again under other assumptions where the paper leaves one
//! open ([`Assumptions`](super::assumptions::Assumptions)). A row is explained if one of them brings it to where the
//! paper has it, and stays off if none does; its note has what came of each.
//!
//! A row may have a bound, too: what it would be if Flowtune had no control plane
//! ([`Scheme::Ideal`]). If even that is outside on the same side, no allocator that shares evenly
//! reaches the paper's figure on this workload, and that explains the row.

use super::assumptions::AssumptionError;
use super::comparison::{SchemeSample, fetch};
use super::schemes::Scheme;
use super::{ExperimentError, Settings};
use crate::report::figure::{Figure, Number, Row, Verdict, short};

/// Assumptions as on the command line, made together.
pub type Alternative = &'static [&'static str];

/// What a row asks of two samples: of its scheme, and of Flowtune.
pub type Measure = fn(usize, &SchemeSample, &SchemeSample) -> Option<f64>;

/// A judged row of a figure.
#[derive(Clone, Copy, Debug)]
pub struct RowCheck {
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
    pub alternatives: &'static [Alternative],
    /// Whether the row has a bound.
    pub bounded: bool,
}

/// Settings with other assumptions on top.
fn with(settings: Settings, alternative: Alternative) -> Result<Settings, AssumptionError> {
    let mut settings = settings;
    for option in alternative {
        settings.assumptions.set(option)?;
    }
    Ok(settings)
}

/// Measures every row that is off again, in all its alternatives.
///
/// # Errors
/// See [`ExperimentError`].
pub fn explain(
    figure: &mut Figure,
    settings: Settings,
    checks: &[RowCheck],
    measure: Measure,
) -> Result<(), ExperimentError> {
    let off: Vec<&RowCheck> = checks
        .iter()
        .filter(|check| figure.rows[check.row].verdict == Verdict::Off)
        .collect();
    let mut cases = Vec::new();
    for check in &off {
        for alternative in check.alternatives {
            let settings = with(settings, alternative)?;
            cases.push((settings, check.scheme, check.load));
            cases.push((settings, Scheme::Flowtune, check.load));
        }
        if check.bounded {
            cases.push((settings, check.scheme, check.load));
            cases.push((settings, Scheme::Ideal, check.load));
        }
    }
    let samples = fetch(&cases)?;
    let mut pairs = samples.chunks_exact(2);
    for check in off {
        let row = &mut figure.rows[check.row];
        let (least, most) = (
            check.range.0 * (1.0 - check.tolerance),
            check.range.1 * (1.0 + check.tolerance),
        );
        let mut found = Vec::new();
        let mut explained = false;
        for (alternative, pair) in check.alternatives.iter().zip(&mut pairs) {
            let Some(value) = measure(check.of, &pair[0], &pair[1]) else {
                continue;
            };
            let judged = Row::judged("", check.range, value, "", check.tolerance);
            explained |= judged.verdict == Verdict::Reproduced;
            let options: Vec<String> = alternative
                .iter()
                .map(|option| format!("--set {option}"))
                .collect();
            found.push(format!(
                "{} {} with {}",
                short(value),
                row.unit,
                options.join(" ")
            ));
        }
        if check.bounded
            && let Some(pair) = pairs.next()
            && let Some(bound) = measure(check.of, &pair[0], &pair[1])
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
    use crate::experiment::assumptions::Assumptions;

    /// Every alternative that a figure names is one that can be gone.
    #[test]
    fn every_alternative_changes_an_assumption() {
        let settings = Settings {
            seed: 1,
            quick: true,
            assumptions: Assumptions::default(),
        };
        let alternatives = crate::experiment::fig12_completion_times::PAPER
            .iter()
            .flat_map(|row| row.3)
            .chain(&crate::experiment::fig13_queueing_delay::ALTERNATIVES)
            .chain(&crate::experiment::fig14_drops::ALTERNATIVES)
            .chain(
                crate::experiment::fig15_fairness_score::PAPER
                    .iter()
                    .flat_map(|row| row.2),
            );
        for alternative in alternatives {
            let changed = with(settings, alternative).unwrap();
            assert_ne!(changed, settings, "{alternative:?}");
        }
    }
}
