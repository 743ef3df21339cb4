//! Explanations for rows of figures 12 to 15 that are off: the same measurement under alternatives
//! to the [`Assumptions`](super::assumptions::Assumptions). One alternative inside the paper's
//! range explains the row; otherwise it stays off. The row's note lists every result.
//!
//! A row may also have a bound: its value under exact fair rates without a control plane
//! ([`Scheme::Ideal`]). If even the bound is outside on the same side, no allocator that shares
//! evenly reaches the paper's number on this workload, and that explains the row.

use super::assumptions::AssumptionError;
use super::comparison::{SchemeSample, fetch};
use super::schemes::Scheme;
use super::{ExperimentError, Settings};
use crate::report::digits::short;
use crate::report::figure::{Figure, Number, Row, Verdict};

/// Values for one or several assumptions, each `KEY=VALUE` as on the command line.
pub type Alternative = &'static [&'static str];

/// The value of a row from its [`RowCheck::of`], its scheme's sample, and Flowtune's.
pub type Measure = fn(usize, &SchemeSample, &SchemeSample) -> Option<f64>;

/// A judged row of a figure, and the means to explain it.
#[derive(Clone, Copy, Debug)]
pub struct RowCheck {
    /// The row's index in the figure.
    pub row: usize,
    /// The scheme that the row compares with Flowtune.
    pub scheme: Scheme,
    /// The load, as a share of the servers' links.
    pub load: f64,
    /// Argument of the measure beside the samples, such as the index of a size class.
    pub of: usize,
    /// The paper's range.
    pub range: (f64, f64),
    /// Relative widening of the range at both ends.
    pub tolerance: f64,
    /// Alternatives to measure the row under.
    pub alternatives: &'static [Alternative],
    /// True if the ideal scheme bounds the row.
    pub bounded: bool,
}

/// Sets an alternative's values on top of the settings.
fn with(settings: Settings, alternative: Alternative) -> Result<Settings, AssumptionError> {
    let mut settings = settings;
    for option in alternative {
        settings.assumptions.set(option)?;
    }
    Ok(settings)
}

/// Measures every row that is off under all its alternatives, notes the results, and turns its
/// verdict to [`Verdict::Explained`] where one of them explains it.
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
            // Both sides of the ratio change: an assumption such as the framing is Flowtune's too.
            let settings = with(settings, alternative)?;
            cases.push((settings, check.scheme, check.load));
            cases.push((settings, Scheme::Flowtune, check.load));
        }
        if check.bounded {
            cases.push((settings, check.scheme, check.load));
            cases.push((settings, Scheme::Ideal, check.load));
        }
    }
    // One call for all cases, so that they run in parallel. Pairs then come in the order above.
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
        // The alternatives come first in the zip: once they are used up, it takes no further pair,
        // which would be the bound's or the next check's.
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
            // A row that is below can only be explained by a bound that is below, and one above by
            // one above: a bound on the other side says that an allocator could be inside.
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

    /// An alternative with a key or value that does not exist would fail only once a row is off.
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
