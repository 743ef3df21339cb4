//! `simfabric compare`: two results, number by number.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use ratewright_plot::digits::short;
use serde_json::Value;

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// A summary.json, or a figure's JSON.
    a: PathBuf,
    /// Another of the same kind.
    b: PathBuf,
    /// Fail if a number differs by more than this share of the larger one.
    #[arg(long)]
    tolerance: Option<f64>,
}

impl CompareArgs {
    /// Prints the numbers that differ, with their relative difference.
    pub(crate) fn run(&self) -> Result<()> {
        let (one, two) = (ResultFile::read(&self.a)?, ResultFile::read(&self.b)?);
        one.check_against(&two, [&self.a, &self.b])?;
        if one.of != two.of {
            say!("A: {}", one.of);
            say!("B: {}", two.of);
        }
        let (a, b) = (one.numbers, two.numbers);
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["", "A", "B", "B − A"]);
        let (mut compared, mut different, mut beyond) = (0, 0, 0);
        // Numbers of the first file in its order, then those that only the second has.
        let names = a
            .iter()
            .chain(b.iter().filter(|(name, _)| find(&a, name).is_none()));
        for (name, _) in names {
            let (left, right) = (find(&a, name), find(&b, name));
            compared += 1;
            // Equal to the bit: results of equal runs are, so any difference is one.
            if left == right {
                continue;
            }
            different += 1;
            // Relative to the larger: a change from 1 to 0 is as large as one from 0 to 1. A number
            // that is missing is beyond any tolerance.
            let share = match (left, right) {
                (Some(l), Some(r)) => (r - l) / l.abs().max(r.abs()),
                _ => f64::INFINITY,
            };
            if self.tolerance.is_some_and(|t| share.abs() > t) {
                beyond += 1;
            }
            let text = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), short);
            let change = if share.is_finite() {
                format!("{:+.2} %", share * 100.0)
            } else {
                "only in one".to_owned()
            };
            table.add_row([name.clone(), text(left), text(right), change]);
        }
        if different > 0 {
            say!("{table}");
        }
        say!("{compared} numbers compared, {different} differ");
        if let Some(tolerance) = self.tolerance
            && beyond > 0
        {
            bail!(
                "{beyond} numbers differ by more than {} %",
                short(tolerance * 100.0)
            );
        }
        Ok(())
    }
}

/// The number of a name, if there is one.
fn find(numbers: &[(String, f64)], name: &str) -> Option<f64> {
    numbers
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, value)| *value)
}

/// Kind of a file of results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ResultKind {
    name: &'static str,
    /// Field that has its numbers, and distinguishes it from others.
    key: &'static str,
}

const KINDS: [ResultKind; 2] = [
    ResultKind {
        name: "a summary of a plan",
        key: "transports",
    },
    ResultKind {
        name: "a figure",
        key: "rows",
    },
];

/// A file of results.
#[derive(Debug)]
struct ResultFile {
    kind: ResultKind,
    /// Plan or figure, seed, commit and form, in words.
    of: String,
    /// The figure's name, if the file has one.
    figure: Option<String>,
    /// Labels of a summary's transports; keys of `rows` are none.
    labels: Vec<String>,
    /// Every number with its path in the JSON; rows of figures by their names.
    numbers: Vec<(String, f64)>,
}

impl ResultFile {
    /// Reads a file of either kind.
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let value: Value = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text))
            .with_context(|| format!("{} is no JSON", path.display()))?;
        // By their fields, not by the file's name, which a user may change.
        let known = KINDS
            .iter()
            .find_map(|kind| Some((*kind, value.get(kind.key)?)));
        let Some((kind, known)) = known else {
            bail!(
                "{}: neither a summary of a plan nor a figure",
                path.display()
            );
        };
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let parts = [
            text("plan").or_else(|| text("figure")),
            value.get("seed").map(|seed| format!("seed {seed}")),
            text("commit").map(|commit| format!("commit {commit}")),
            value.get("quick").and_then(Value::as_bool).map(|quick| {
                let form = if quick { "short" } else { "long" };
                format!("{form} form")
            }),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let mut numbers = Vec::new();
        collect(known, "", &mut numbers);
        Ok(Self {
            kind,
            of: parts.join(", "),
            figure: text("figure"),
            labels: known
                .as_object()
                .map(|labels| labels.keys().cloned().collect())
                .unwrap_or_default(),
            numbers,
        })
    }

    /// Refuses two files whose numbers do not mean the same.
    fn check_against(&self, other: &Self, [a, b]: [&Path; 2]) -> Result<()> {
        let (a, b) = (a.display(), b.display());
        if self.kind != other.kind {
            let (one, two) = (self.kind.name, other.kind.name);
            bail!("{a} is {one}, {b} is {two}; only two of a kind can be compared");
        }
        if let (Some(one), Some(two)) = (&self.figure, &other.figure)
            && one != two
        {
            bail!("results of different things: {a} is {one}, {b} is {two}");
        }
        // Summaries with one transport in common are comparable; the others' numbers then are only
        // in one of them. Figures have no labels.
        let common = self.labels.iter().any(|label| other.labels.contains(label));
        if !common && !self.labels.is_empty() && !other.labels.is_empty() {
            bail!(
                "results of different things: no transport is in both, {} in A, {} in B",
                self.labels.join(", "),
                other.labels.join(", ")
            );
        }
        Ok(())
    }
}

/// Collects the numbers below a value, with their paths.
fn collect(value: &Value, at: &str, found: &mut Vec<(String, f64)>) {
    let below = |name: &str| {
        if at.is_empty() {
            name.to_owned()
        } else {
            format!("{at} / {name}")
        }
    };
    match value {
        Value::Number(number) => found.extend(number.as_f64().map(|n| (at.to_owned(), n))),
        Value::Object(fields) => {
            for (name, field) in fields {
                collect(field, &below(name), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                // By name, so that a row keeps its place when another is added before it.
                let name = item.get("name").and_then(Value::as_str);
                collect(item, &below(name.unwrap_or(&index.to_string())), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
