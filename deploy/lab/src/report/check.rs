//! Times until what is not as told is named, and taken back.

use comfy_table::Table;
use ratewright_plot::{Axis, Bars, Panel, Picture};

use super::table::headed;
use crate::measure::stats::percentile;
use crate::options::LabOptions;
use crate::scenario::check::{CheckRow, NAMED_WITHIN_S, TAKEN_BACK_WITHIN_S};

/// Builds the table: a line for each case.
#[must_use]
pub fn table(rows: &[CheckRow]) -> Table {
    let mut table = headed([
        "not as told",
        "name",
        "named after (s)",
        "taken back after (s)",
        "stands in",
        "verdict",
    ]);
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            row.wanted.replace('_', " "),
            list(&row.named_s),
            list(&row.taken_back_s),
            row.seen_in.iter().copied().collect::<Vec<_>>().join(", "),
            match row.missed.is_empty() {
                true => "named".to_owned(),
                false => row.missed.join("; "),
            },
        ]);
    }
    table
}

fn list(times_s: &[Option<f64>]) -> String {
    let one = |s: &Option<f64>| s.map_or_else(|| "never".to_owned(), |s| format!("{s:.1}"));
    times_s.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Builds the picture: the longest times of each case beside what is promised.
#[must_use]
pub fn picture(options: &LabOptions, rows: &[CheckRow]) -> Picture {
    let longest = |of: fn(&CheckRow) -> &Vec<Option<f64>>| -> Vec<Option<f64>> {
        let of_row = |row: &CheckRow| {
            let times: Option<Vec<f64>> = of(row).iter().copied().collect();
            percentile(&times?, 100.0)
        };
        rows.iter().map(of_row).collect()
    };
    let groups: Vec<String> = rows
        .iter()
        .map(|row| row.wanted.replace('_', " "))
        .collect();
    let panel = |title: &str, of, promised_s| {
        let bars = vec![Bars::new("longest of the runs", longest(of))];
        let axis = Axis::linear("time (s)").starting_at(0.0);
        Panel::bars(title, "", axis, groups.clone(), bars).mark(promised_s, "promised")
    };
    let panels = vec![
        panel(
            "from a change to its name",
            |row| &row.named_s,
            NAMED_WITHIN_S,
        ),
        panel(
            "from its end until nothing is named",
            |row| &row.taken_back_s,
            TAKEN_BACK_WITHIN_S,
        ),
    ];
    let subtitle = format!(
        "{} runs of each case · {} Mbit/s, half of that in the Clos",
        options.runs(),
        options.link_mbps()
    );
    Picture::new(
        "check: what is not as told is named, and taken back",
        subtitle,
        panels,
    )
    .columns(1)
    .panel_size(1_200, 360)
}
