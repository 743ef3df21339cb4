//! Recorded verdicts: a paper's `verdicts.toml` names the rows that do not agree in the short form,
//! each group with its measured cause.

use serde::Deserialize;

use crate::report::figure::{Figure, Verdict};

/// Rows of one verdict and cause.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    figure: String,
    verdict: Verdict,
    cause: String,
    rows: Vec<String>,
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Records {
    #[serde(default)]
    record: Vec<Record>,
}

/// Records the verdicts of a figure's rows, and their causes, out of the text of a `verdicts.toml`.
pub(super) fn record(verdicts: &str, figure: &mut Figure) {
    // A file that cannot be read fails a test; nothing is then recorded.
    let read: Result<Records, _> = toml::from_str(verdicts);
    for record in read.map_or_else(|_| Vec::new(), |records| records.record) {
        if record.figure != figure.figure {
            continue;
        }
        for row in &mut figure.rows {
            if record.rows.contains(&row.name) {
                let known = row.clone();
                *row = match record.verdict {
                    Verdict::Disagrees => known.disagrees_because(record.cause.clone()),
                    Verdict::Agrees | Verdict::NoFigure => {
                        known.undecided_because(record.cause.clone())
                    }
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_can_be_read_and_name_a_row_once() {
        for text in [
            include_str!("sird/verdicts.toml"),
            include_str!("dart/verdicts.toml"),
            include_str!("feeds/verdicts.toml"),
        ] {
            let read: Result<Records, _> = toml::from_str(text);
            let mut rows = Vec::new();
            for record in read.unwrap().record {
                assert_ne!(record.verdict, Verdict::Agrees, "agreeing is not recorded");
                assert!(!record.cause.is_empty());
                let figure = record.figure;
                rows.extend(record.rows.into_iter().map(|row| (figure.clone(), row)));
            }
            let all = rows.len();
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), all);
        }
    }
}
