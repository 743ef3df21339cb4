//! A reproduced figure: the paper's numbers, ours beside them, a verdict per row.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::commit::COMMIT;
use super::digits::short;
use super::file::{ReportError, write_json, write_text};
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

impl From<f64> for Paper {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<(f64, f64)> for Paper {
    fn from((low, high): (f64, f64)) -> Self {
        Self::Range([low, high])
    }
}

impl From<&str> for Paper {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The measured value of a row. Untagged: JSON has a number, a range or null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// A number.
    Value(f64),
    /// From the least to the largest.
    Range([f64; 2]),
    /// There was nothing to measure: no such flow, or none finished.
    Missing(()),
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        // JSON has neither NaN nor infinities; both come from a division by what did not happen.
        if value.is_finite() {
            Self::Value(value)
        } else {
            Self::Missing(())
        }
    }
}

impl From<Option<f64>> for Number {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Missing(()), Self::from)
    }
}

impl From<(f64, f64)> for Number {
    fn from((low, high): (f64, f64)) -> Self {
        Self::Range([low, high])
    }
}

/// Result of comparing a row with the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within what the paper gives, or within the tolerance stated.
    Reproduced,
    /// Outside; the row's note gives the measurement that explains it.
    Explained,
    /// Outside, and not explained.
    Off,
    /// The paper gives no number.
    NoFigure,
    /// Nothing was measured, for the reason in the note.
    NotMeasured,
}

impl Verdict {
    /// All verdicts, from reproduced to not measured.
    pub const ALL: [Self; 5] = [
        Self::Reproduced,
        Self::Explained,
        Self::Off,
        Self::NoFigure,
        Self::NotMeasured,
    ];

    /// The verdict's name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Explained => "explained",
            Self::Off => "off",
            Self::NoFigure => "no-figure",
            Self::NotMeasured => "not-measured",
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
    /// Our value.
    pub ours: Number,
    /// Unit of both values.
    pub unit: String,
    /// Result of their comparison.
    pub verdict: Verdict,
    /// A remark, or the measurement that explains a difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Row {
    /// A row with a verdict of the caller's.
    pub fn new(
        name: impl Into<String>,
        paper: impl Into<Paper>,
        ours: impl Into<Number>,
        unit: impl Into<String>,
        verdict: Verdict,
    ) -> Self {
        Self {
            name: name.into(),
            paper: paper.into(),
            ours: ours.into(),
            unit: unit.into(),
            verdict,
            note: None,
        }
    }

    /// A row that is reproduced when `ours` lies in the paper's range (or at its number) widened by
    /// the relative `tolerance` at both ends, and [`Verdict::Off`] otherwise.
    pub fn judged(
        name: impl Into<String>,
        paper: impl Into<Paper>,
        ours: impl Into<Number>,
        unit: impl Into<String>,
        tolerance: f64,
    ) -> Self {
        let (paper, ours) = (paper.into(), ours.into());
        let range = match paper {
            Paper::Number(value) => Some((value, value)),
            Paper::Range([low, high]) => Some((low, high)),
            Paper::Text(_) | Paper::Nothing(()) => None,
        };
        let measured = match ours {
            Number::Value(value) => Some((value, value)),
            Number::Range([low, high]) => Some((low, high)),
            Number::Missing(()) => None,
        };
        // A measured range is inside only with both its ends.
        let verdict = match (range, measured) {
            (_, None) => Verdict::NotMeasured,
            (None, Some(_)) => Verdict::NoFigure,
            (Some((low, high)), Some((least, most))) => {
                // `abs`: the tolerance moves a negative end outwards, too.
                let inside =
                    least >= low - tolerance * low.abs() && most <= high + tolerance * high.abs();
                if inside {
                    Verdict::Reproduced
                } else {
                    Verdict::Off
                }
            }
        };
        Self::new(name, paper, ours, unit, verdict)
    }

    /// Adds what explains the row. A row that is off and has a measured cause becomes
    /// [`Verdict::Explained`].
    #[must_use]
    pub fn explained(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        if self.verdict == Verdict::Off {
            self.verdict = Verdict::Explained;
        }
        self
    }

    /// Adds a remark; the verdict stays.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// A reproduced figure, with the samples and remarks behind its rows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Name by paper and letter, such as `flowtune-h`.
    pub figure: String,
    /// Title, with the paper's number of the figure.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
    /// The seed of the runs.
    pub seed: u64,
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
    /// Samples behind rows and picture, in a form of the experiment's.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

impl Figure {
    /// A figure without rows.
    pub fn new(
        figure: impl Into<String>,
        title: impl Into<String>,
        seed: u64,
        quick: bool,
    ) -> Self {
        Self {
            figure: figure.into(),
            title: title.into(),
            rows: Vec::new(),
            seed,
            commit: COMMIT.to_owned(),
            quick,
            scenario: Vec::new(),
            notes: Vec::new(),
            data: serde_json::Value::Null,
        }
    }

    /// Writes `file_name` with the ends `.json`, `.csv` and `.svg` into `dir`, which is made if it
    /// is
    /// missing.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path, file_name: &str, picture: &Picture) -> Result<(), ReportError> {
        let path = |end| dir.join(format!("{file_name}.{end}"));
        write_json(&path("json"), self)?;
        write_text(&path("csv"), &self.csv())?;
        picture.write(&path("svg"))
    }

    /// The rows as comma-separated values (RFC 4180), with all digits. A number is a range from
    /// itself to itself. Column `paper` has the paper's words where it gives no number.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut csv = String::from(
            "name,paper,paper_low,paper_high,ours_low,ours_high,unit,verdict,note\r\n",
        );
        for row in &self.rows {
            let (words, paper) = match &row.paper {
                Paper::Number(value) => ("", Some([*value; 2])),
                Paper::Range(range) => ("", Some(*range)),
                Paper::Text(text) => (text.as_str(), None),
                Paper::Nothing(()) => ("", None),
            };
            let ours = match row.ours {
                Number::Value(value) => Some([value; 2]),
                Number::Range(range) => Some(range),
                Number::Missing(()) => None,
            };
            let ends = |range: Option<[f64; 2]>| {
                range.map_or([String::new(), String::new()], |r| r.map(|v| v.to_string()))
            };
            let ([paper_low, paper_high], [ours_low, ours_high]) = (ends(paper), ends(ours));
            let fields = [
                quoted(&row.name),
                quoted(words),
                paper_low,
                paper_high,
                ours_low,
                ours_high,
                quoted(&row.unit),
                row.verdict.as_str().to_owned(),
                quoted(row.note.as_deref().unwrap_or_default()),
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

    /// The rows as a Markdown table below a heading with the figure's letter and title.
    #[must_use]
    pub fn markdown(&self, letter: char, title: &str) -> String {
        let mut text = format!("## {letter}: {title}\n\n");
        let mut line = |cells: [String; 5]| {
            // A bar would begin the next column.
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
        };
        line(COLUMNS.map(str::to_owned));
        line(["---"; 5].map(str::to_owned));
        for row in &self.rows {
            line(row.cells());
        }
        let noted = |row: &&Row| row.note.is_some();
        for (i, row) in self.rows.iter().filter(noted).enumerate() {
            // A blank line ends the table.
            let gap = if i == 0 { "\n" } else { "" };
            let note = row.note.as_deref().unwrap_or_default();
            text.push_str(&format!("{gap}- {}: {note}\n", row.name));
        }
        text
    }
}

const COLUMNS: [&str; 5] = ["", "paper", "ours", "unit", "verdict"];

impl Row {
    /// The row's cells, in the order of [`COLUMNS`].
    fn cells(&self) -> [String; 5] {
        let paper = match &self.paper {
            Paper::Number(value) => short(*value),
            Paper::Range([low, high]) => format!("{} to {}", short(*low), short(*high)),
            Paper::Text(text) => text.clone(),
            Paper::Nothing(()) => "–".to_owned(),
        };
        let ours = match self.ours {
            Number::Value(value) => short(value),
            Number::Range([low, high]) => format!("{} to {}", short(low), short(high)),
            Number::Missing(()) => "–".to_owned(),
        };
        [
            self.name.clone(),
            paper,
            ours,
            self.unit.clone(),
            self.verdict.as_str().to_owned(),
        ]
    }
}

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

    #[test]
    fn rows_as_csv_keep_commas_quotation_marks_and_every_digit() {
        let mut figure = Figure::new("f", "t", 1, true);
        figure.rows = vec![
            Row::judged("a, b", 2.0, 1.0 / 3.0, "x", 0.1).note("say \"no\""),
            Row::judged("c", (8.6, 10.9), (9.0, 10.0), "µs", 0.0),
            Row::judged("d", "near-empty", f64::NAN, "µs", 0.0),
        ];
        let csv = figure.csv();
        let lines: Vec<&str> = csv.split_terminator("\r\n").collect();
        assert_eq!(
            lines[1..],
            [
                "\"a, b\",,2,2,0.3333333333333333,0.3333333333333333,x,off,\"say \"\"no\"\"\"",
                "c,,8.6,10.9,9,10,µs,reproduced,",
                "d,near-empty,,,,,µs,not-measured,",
            ]
        );
        assert_eq!(lines[0].split(',').count(), 9);
    }

    #[test]
    fn a_row_has_the_fields_that_readers_rely_on() {
        let rows = [
            Row::judged("a", 2.0, 2.1, "x", 0.1),
            Row::judged("b", (8.6, 10.9), 5.0, "x", 0.0).explained("because of 3"),
            Row::judged("c", "near-empty", 5.0, "µs", 0.0),
            Row::judged("d", 1.0, f64::NAN, "µs", 0.0),
        ];
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(
            json,
            serde_json::json!([
                {"name": "a", "paper": 2.0, "ours": 2.1, "unit": "x", "verdict": "reproduced"},
                {"name": "b", "paper": [8.6, 10.9], "ours": 5.0, "unit": "x",
                 "verdict": "explained", "note": "because of 3"},
                {"name": "c", "paper": "near-empty", "ours": 5.0, "unit": "µs", "verdict": "no-figure"},
                {"name": "d", "paper": 1.0, "ours": null, "unit": "µs", "verdict": "not-measured"},
            ])
        );
        let back: Vec<Row> = serde_json::from_value(json).unwrap();
        assert_eq!(back, rows);
    }

    #[test]
    fn a_range_is_reproduced_only_from_end_to_end() {
        let verdict = |ours: (f64, f64)| Row::judged("", (1.0, 2.0), ours, "", 0.0).verdict;
        assert_eq!(verdict((1.0, 2.0)), Verdict::Reproduced);
        assert_eq!(verdict((0.9, 2.0)), Verdict::Off);
        assert_eq!(verdict((1.0, 2.1)), Verdict::Off);
    }
}
