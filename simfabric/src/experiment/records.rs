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
/// The long form takes the causes of what disagrees in it, too; nothing else is recorded of it.
pub(super) fn record(verdicts: &str, figure: &mut Figure) {
    // A file that cannot be read fails a test; nothing is then recorded.
    let read: Result<Records, _> = toml::from_str(verdicts);
    for record in read.map_or_else(|_| Vec::new(), |records| records.record) {
        if record.figure != figure.figure {
            continue;
        }
        for row in &mut figure.rows {
            let holds = figure.quick
                || (record.verdict == Verdict::Disagrees && row.verdict == Verdict::Disagrees);
            if holds && record.rows.contains(&row.name) {
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
    use crate::report::estimate::Estimate;
    use crate::report::figure::{Claim, Row};

    /// Three seeds of the short form may not decide a row that the long form decides.
    #[test]
    fn the_long_form_takes_the_causes_of_its_own_disagreements() {
        let row = "16 senders: median completion time, DCQCN over DASR's";
        let text = format!(
            "[[record]]\nfigure = \"f\"\nverdict = \"disagrees\"\ncause = \"c\"\nrows = [{row:?}]"
        );
        let cause = |quick: bool, accepted: Claim| {
            let mut figure = Figure::new("f", "", (1, 3), quick);
            let values = Estimate::of([1.0, 1.1, 0.9]);
            figure.rows.push(Row::judge(row, accepted, values, "ratio"));
            record(&text, &mut figure);
            figure.rows[0].cause.clone()
        };
        let (kept, missed) = (|| Claim::number(1.0, 0.9), || Claim::number(9.0, 0.1));
        assert_eq!(cause(true, missed()).as_deref(), Some("c"));
        assert_eq!(cause(false, missed()).as_deref(), Some("c"));
        assert_eq!(cause(true, kept()).as_deref(), Some("c"));
        assert_eq!(cause(false, kept()), None);
    }

    #[test]
    fn the_files_can_be_read_and_name_a_row_once() {
        for text in [
            include_str!("sird/verdicts.toml"),
            include_str!("dart/verdicts.toml"),
            include_str!("feeds/verdicts.toml"),
            include_str!("obey/verdicts.toml"),
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
