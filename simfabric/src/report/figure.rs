//! A reproduced figure: the paper's values, our estimates beside them, a verdict per row.
//!
//! A verdict is a test of equivalence at 95 %. [`Claim`] states, before any run, which values count
//! as the paper's. The whole [interval](Estimate::interval) inside that range *agrees*, the whole
//! interval outside it *disagrees*. Anything else is *no figure*: the runs do not decide it. An
//! interval that is wider than the range therefore never agrees.

use std::path::Path;

use ratewright_plot::commit::commit;
use ratewright_plot::digits::short;
use ratewright_plot::file::write_text;
use serde::{Deserialize, Serialize};

use super::estimate::Estimate;
use super::file::{ReportError, write_json};
use super::plot::Picture;

/// The paper's value of a row. Untagged: JSON has a number, a range, words or null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paper {
    /// One number.
    Number(f64),
    /// From the least to the largest.
    Range([f64; 2]),
    /// In words, where it gives no number.
    Text(String),
    /// Nothing; the row is there for comparison.
    Nothing(()),
}

/// The paper's value, and the range of ours that counts as equal to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    paper: Paper,
    /// Ends of the accepted range, infinite where it has none; `None`: nothing to judge by.
    accepted: Option<(f64, f64)>,
}

impl Claim {
    /// Claims a number, accepting a relative distance up to `tolerance`.
    #[must_use]
    pub fn number(value: f64, tolerance: f64) -> Self {
        let claim = Self::range((value, value), tolerance);
        Self {
            paper: Paper::Number(value),
            ..claim
        }
    }

    /// Claims a range, accepting it widened by the relative `tolerance` at both ends.
    #[must_use]
    pub fn range((low, high): (f64, f64), tolerance: f64) -> Self {
        // `abs`: the tolerance moves a negative end outwards, too.
        let accepted = (low - tolerance * low.abs(), high + tolerance * high.abs());
        Self {
            paper: Paper::Range([low, high]),
            accepted: Some(accepted),
        }
    }

    /// Quotes words, which no value is judged by.
    #[must_use]
    pub fn words(text: impl Into<String>) -> Self {
        Self {
            paper: Paper::Text(text.into()),
            accepted: None,
        }
    }

    /// Claims nothing: the row is there for comparison.
    #[must_use]
    pub const fn nothing() -> Self {
        Self {
            paper: Paper::Nothing(()),
            accepted: None,
        }
    }

    /// Accepts values up to `most`: our reading of the paper's words.
    #[must_use]
    pub fn at_most(mut self, most: f64) -> Self {
        let low = self.accepted.map_or(f64::NEG_INFINITY, |range| range.0);
        self.accepted = Some((low, most));
        self
    }

    /// Accepts values from `least` on: our reading of the paper's words.
    #[must_use]
    pub fn at_least(mut self, least: f64) -> Self {
        let high = self.accepted.map_or(f64::INFINITY, |range| range.1);
        self.accepted = Some((least, high));
        self
    }
}

/// Result of comparing a row with the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// The interval lies within the accepted range.
    #[serde(rename = "agrees")]
    Agrees,
    /// The interval lies outside of the accepted range.
    #[serde(rename = "disagrees")]
    Disagrees,
    /// The paper gives no number, or the runs do not decide.
    #[serde(rename = "no figure")]
    NoFigure,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 3] = [Self::Agrees, Self::Disagrees, Self::NoFigure];

    /// The verdict's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Disagrees => "disagrees",
            Self::NoFigure => "no figure",
        }
    }
}

/// A row of a figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the measured value.
    pub name: String,
    /// The paper's value.
    pub paper: Paper,
    /// Our mean over the seeds; `None`: there was nothing to measure.
    pub ours: Option<f64>,
    /// Ends of the mean's 95 % interval.
    pub interval: Option<[f64; 2]>,
    /// Unit of all values.
    pub unit: String,
    /// Result of their comparison.
    pub verdict: Verdict,
    /// Ends of the accepted range, `None` where it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<[Option<f64>; 2]>,
    /// Reason for a missing verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Verdict that the experiment's file records, where it is not the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Verdict>,
    /// Measured cause of the recorded verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// A remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Row {
    /// Judges an estimate by the paper's claim.
    pub fn judge(
        name: impl Into<String>,
        claim: Claim,
        estimate: Option<Estimate>,
        unit: impl Into<String>,
    ) -> Self {
        let interval = estimate.and_then(|estimate| estimate.interval());
        let (verdict, reason) = match (claim.accepted, estimate, interval) {
            (_, None, _) => (Verdict::NoFigure, Some("nothing was measured")),
            (None, ..) => (Verdict::NoFigure, None),
            (.., None) => (Verdict::NoFigure, Some("one run has no interval")),
            (Some((low, high)), _, Some([least, most])) => {
                if low <= least && most <= high {
                    (Verdict::Agrees, None)
                } else if most < low || high < least {
                    (Verdict::Disagrees, None)
                } else if most - least > high - low {
                    let reason = "the interval is wider than the accepted range";
                    (Verdict::NoFigure, Some(reason))
                } else {
                    let reason = "the interval reaches over an end of the accepted range";
                    (Verdict::NoFigure, Some(reason))
                }
            }
        };
        let end = |value: f64| value.is_finite().then_some(value);
        Self {
            name: name.into(),
            paper: claim.paper,
            ours: estimate.map(|estimate| estimate.mean),
            interval,
            unit: unit.into(),
            verdict,
            accepted: claim.accepted.map(|(low, high)| [end(low), end(high)]),
            reason: reason.map(str::to_owned),
            expected: None,
            cause: None,
            note: None,
        }
    }

    /// Records that this row disagrees, and its measured cause.
    #[must_use]
    pub fn disagrees_because(self, cause: impl Into<String>) -> Self {
        self.recorded(Verdict::Disagrees, cause)
    }

    /// Records that the runs may not decide this row, and why. It must not disagree.
    #[must_use]
    pub fn undecided_because(self, cause: impl Into<String>) -> Self {
        self.recorded(Verdict::NoFigure, cause)
    }

    fn recorded(mut self, verdict: Verdict, cause: impl Into<String>) -> Self {
        self.expected = Some(verdict);
        self.cause = Some(cause.into());
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Returns the verdict that the experiment's file records. A row that can be judged agrees, if
    /// nothing else is recorded.
    #[must_use]
    pub fn expected_verdict(&self) -> Verdict {
        self.expected.unwrap_or(if self.accepted.is_some() {
            Verdict::Agrees
        } else {
            Verdict::NoFigure
        })
    }

    /// Returns true if the verdict is the recorded one. A row that the runs may not decide may also
    /// agree.
    #[must_use]
    pub fn is_as_recorded(&self) -> bool {
        let decided = self.verdict == Verdict::Agrees && self.expected == Some(Verdict::NoFigure);
        decided || self.verdict == self.expected_verdict()
    }

    /// The row's cells, in the order of [`COLUMNS`].
    fn cells(&self) -> [String; 6] {
        let paper = match &self.paper {
            Paper::Number(value) => short(*value),
            Paper::Range([low, high]) => format!("{} to {}", short(*low), short(*high)),
            Paper::Text(text) => text.clone(),
            Paper::Nothing(()) => "–".to_owned(),
        };
        [
            self.name.clone(),
            paper,
            self.ours.map_or("–".to_owned(), short),
            interval_text(self.interval),
            self.unit.clone(),
            self.verdict.as_str().to_owned(),
        ]
    }

    /// Reason, cause and remark, if there are any.
    fn remarks(&self) -> Option<String> {
        let parts = [&self.reason, &self.cause, &self.note];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The ends of an interval in words.
fn interval_text(interval: Option<[f64; 2]>) -> String {
    interval.map_or("–".to_owned(), |[low, high]| {
        format!("{} to {}", short(low), short(high))
    })
}

/// A row's value under other parameters. It has no verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sensitivity {
    /// The changed parameters, `KEY=VALUE` each.
    pub parameters: Vec<String>,
    /// Name of the row.
    pub name: String,
    /// Our mean.
    pub ours: Option<f64>,
    /// Ends of the mean's 95 % interval.
    pub interval: Option<[f64; 2]>,
    /// Unit.
    pub unit: String,
}

/// A reproduced figure, with the samples and remarks behind its rows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Name by paper and figure, such as `flowtune-fig12`.
    pub figure: String,
    /// Title, with the paper's number of the figure.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
    /// Number of seeds that every value is a mean over.
    pub seeds: u32,
    /// The first of the seeds; the others follow it.
    pub first_seed: u64,
    /// The commit of the source.
    pub commit: String,
    /// True in the short form.
    pub quick: bool,
    /// Parameters of the runs, in words.
    #[serde(default)]
    pub scenario: Vec<String>,
    /// Remarks on several rows.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Judged rows under other parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Sensitivity>,
    /// Samples behind rows and picture, in a form of the experiment's.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

impl Figure {
    /// A figure without rows, of runs under `seeds` (the first, and their number).
    pub fn new(
        figure: impl Into<String>,
        title: impl Into<String>,
        (first_seed, seeds): (u64, u32),
        quick: bool,
    ) -> Self {
        Self {
            figure: figure.into(),
            title: title.into(),
            rows: Vec::new(),
            seeds,
            first_seed,
            commit: commit().to_owned(),
            quick,
            scenario: Vec::new(),
            notes: Vec::new(),
            sensitivity: Vec::new(),
            data: serde_json::Value::Null,
        }
    }

    /// Adds the judged rows of `other`, the same figure under these parameters, to the sensitivity
    /// table.
    pub fn add_sensitivity(&mut self, parameters: &[&str], other: &Self) {
        let judged = other.rows.iter().filter(|row| row.accepted.is_some());
        self.sensitivity.extend(judged.map(|row| Sensitivity {
            parameters: parameters.iter().map(|&one| one.to_owned()).collect(),
            name: row.name.clone(),
            ours: row.ours,
            interval: row.interval,
            unit: row.unit.clone(),
        }));
    }

    /// Writes `file_name` with the ends `.json`, `.csv` and `.svg` into `dir`, which is made if it
    /// is missing.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path, file_name: &str, picture: &Picture) -> Result<(), ReportError> {
        let path = |end| dir.join(format!("{file_name}.{end}"));
        write_json(&path("json"), self)?;
        write_text(&path("csv"), &self.csv())?;
        Ok(picture.write(&path("svg"))?)
    }

    /// The rows as comma-separated values (RFC 4180), with all digits. A number is a range from
    /// itself to itself. Column `paper` has the paper's words where it gives no number.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut csv = String::from(
            "name,paper,paper_low,paper_high,ours,interval_low,interval_high,unit,verdict,note\r\n",
        );
        for row in &self.rows {
            let (words, paper) = match &row.paper {
                Paper::Number(value) => ("", Some([*value; 2])),
                Paper::Range(range) => ("", Some(*range)),
                Paper::Text(text) => (text.as_str(), None),
                Paper::Nothing(()) => ("", None),
            };
            let ends = |range: Option<[f64; 2]>| {
                range.map_or([String::new(), String::new()], |r| r.map(|v| v.to_string()))
            };
            let ([paper_low, paper_high], [low, high]) = (ends(paper), ends(row.interval));
            let fields = [
                quoted(&row.name),
                quoted(words),
                paper_low,
                paper_high,
                row.ours.map_or(String::new(), |value| value.to_string()),
                low,
                high,
                quoted(&row.unit),
                row.verdict.as_str().to_owned(),
                quoted(&row.remarks().unwrap_or_default()),
            ];
            csv.push_str(&fields.join(","));
            csv.push_str("\r\n");
        }
        csv
    }

    /// The rows as a text table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table
            .load_style(comfy_table::presets::UTF8_FULL_CONDENSED)
            .set_header(COLUMNS);
        for row in &self.rows {
            table.add_row(row.cells());
        }
        table.to_string()
    }

    /// The figure as Markdown below a heading: scenario, rows, remarks, sensitivity.
    #[must_use]
    pub fn markdown(&self, heading: &str) -> String {
        let mut text = format!("## {heading}\n\n");
        if !self.scenario.is_empty() {
            text.push_str(&format!("{}.\n\n", self.scenario.join("; ")));
        }
        let line = |text: &mut String, cells: &[String]| {
            // A bar would begin the next column.
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
        };
        let head = |text: &mut String, names: &[&str]| {
            line(
                text,
                &names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>(),
            );
            line(text, &vec!["---".to_owned(); names.len()]);
        };
        head(&mut text, &COLUMNS);
        for row in &self.rows {
            line(&mut text, &row.cells());
        }
        let remarks = self.rows.iter().filter_map(|row| {
            let remarks = row.remarks()?;
            Some(format!("{}: {remarks}", row.name))
        });
        for (i, remark) in remarks.chain(self.notes.iter().cloned()).enumerate() {
            // A blank line ends the table.
            let gap = if i == 0 { "\n" } else { "" };
            text.push_str(&format!("{gap}- {remark}\n"));
        }
        if !self.sensitivity.is_empty() {
            text.push_str("\nThe judged rows under other parameters, without a verdict:\n\n");
            head(
                &mut text,
                &["parameters", "", "ours", "95 % interval", "unit"],
            );
            for other in &self.sensitivity {
                let cells = [
                    other.parameters.join(" "),
                    other.name.clone(),
                    other.ours.map_or("–".to_owned(), short),
                    interval_text(other.interval),
                    other.unit.clone(),
                ];
                line(&mut text, &cells);
            }
        }
        text
    }
}

const COLUMNS: [&str; 6] = ["", "paper", "ours", "95 % interval", "unit", "verdict"];

/// A field of comma-separated values, in quotation marks where it needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(mean: f64, half_width: f64) -> Option<Estimate> {
        Some(Estimate {
            mean,
            half_width: Some(half_width),
            runs: 3,
        })
    }

    #[test]
    fn a_verdict_is_a_test_of_the_whole_interval() {
        // Accepted are 1.8 to 2.2.
        let of = |mean, half| Row::judge("", Claim::number(2.0, 0.1), estimate(mean, half), "");
        for (mean, half, verdict) in [
            (2.1, 0.1, Verdict::Agrees),
            (2.2, 0.01, Verdict::NoFigure),
            (2.0, 0.21, Verdict::NoFigure),
            (2.4, 0.1, Verdict::Disagrees),
            (1.0, 0.7, Verdict::Disagrees),
            // Wider than the range, and yet outside: no value of it is one of the paper's.
            (9.0, 6.0, Verdict::Disagrees),
        ] {
            assert_eq!(of(mean, half).verdict, verdict, "{mean} ± {half}");
        }
        let wide = of(2.0, 0.3).reason.unwrap();
        assert!(wide.contains("wider"), "{wide}");
        // A negative number's tolerance goes outwards, too.
        let row = Row::judge("", Claim::number(-2.0, 0.1), estimate(-2.1, 0.1), "");
        assert_eq!(row.verdict, Verdict::Agrees);
    }

    #[test]
    fn one_run_decides_nothing() {
        let one = Estimate::of([2.0]);
        let row = Row::judge("", Claim::number(2.0, 0.1), one, "");
        assert_eq!(
            (row.verdict, row.ours, row.interval),
            (Verdict::NoFigure, Some(2.0), None)
        );
        assert!(row.reason.is_some());
    }

    #[test]
    fn words_are_judged_by_the_bound_that_is_stated() {
        let claim = || Claim::words("negligible").at_most(0.1);
        let verdict = |mean| Row::judge("", claim(), estimate(mean, 0.02), "%").verdict;
        assert_eq!(verdict(0.05), Verdict::Agrees);
        assert_eq!(verdict(0.2), Verdict::Disagrees);
        let row = Row::judge("", Claim::words("long"), estimate(1.0, 0.1), "µs");
        assert_eq!(row.verdict, Verdict::NoFigure);
        assert_eq!(row.expected_verdict(), Verdict::NoFigure);
        let least = Row::judge(
            "",
            Claim::words("slow").at_least(3.0),
            estimate(5.0, 0.1),
            "",
        );
        assert_eq!(least.accepted, Some([Some(3.0), None]));
        assert_eq!(least.verdict, Verdict::Agrees);
    }

    #[test]
    fn rows_as_csv_keep_commas_quotation_marks_and_every_digit() {
        let mut figure = Figure::new("f", "t", (1, 3), true);
        figure.rows = vec![
            Row::judge("a, b", Claim::number(2.0, 0.1), estimate(0.5, 0.25), "x")
                .disagrees_because("say \"no\""),
            Row::judge(
                "c",
                Claim::range((8.5, 11.0), 0.0),
                estimate(9.0, 0.5),
                "µs",
            ),
            Row::judge("d", Claim::words("near-empty"), None, "µs"),
        ];
        let csv = figure.csv();
        let lines: Vec<&str> = csv.split_terminator("\r\n").collect();
        assert_eq!(
            lines[1..],
            [
                "\"a, b\",,2,2,0.5,0.25,0.75,x,disagrees,\"say \"\"no\"\"\"",
                "c,,8.5,11,9,8.5,9.5,µs,agrees,",
                "d,near-empty,,,,,,µs,no figure,nothing was measured",
            ]
        );
        assert_eq!(lines[0].split(',').count(), 10);
    }

    #[test]
    fn a_row_has_the_fields_that_readers_rely_on() {
        let rows = [
            Row::judge("a", Claim::range((2.0, 3.0), 0.0), estimate(2.5, 0.25), "x"),
            Row::judge("b", Claim::words("near-empty"), estimate(5.0, 0.5), "µs"),
            Row::judge("c", Claim::nothing(), None, "µs"),
        ];
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(
            json,
            serde_json::json!([
                {"name": "a", "paper": [2.0, 3.0], "ours": 2.5, "interval": [2.25, 2.75],
                 "unit": "x", "verdict": "agrees", "accepted": [2.0, 3.0]},
                {"name": "b", "paper": "near-empty", "ours": 5.0, "interval": [4.5, 5.5],
                 "unit": "µs", "verdict": "no figure"},
                {"name": "c", "paper": null, "ours": null, "interval": null, "unit": "µs",
                 "verdict": "no figure", "reason": "nothing was measured"},
            ])
        );
        let back: Vec<Row> = serde_json::from_value(json).unwrap();
        assert_eq!(back, rows);
    }
}
