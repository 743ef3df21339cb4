//! Obedience to the network: rates over what is due, of all cases.

use comfy_table::Table;
use indexmap::IndexMap;
use ratewright_plot::{Axis, Curve, Panel, Picture};

use super::table::headed;
use crate::options::LabOptions;
use crate::scenario::obey::judge::ObeyRow;

/// Limit of the picture's axis: a flow that has more than its due is no better off for it.
const MOST: f64 = 1.5;

/// Builds the table: a line for each case.
#[must_use]
pub fn table(rows: &[ObeyRow]) -> Table {
    let mut table = headed([
        "obey (Mbit/s of each flow)",
        "with Ratewright",
        "without",
        "fair",
        "retransmitted",
        "without",
        "least half second",
        "without",
        "verdict",
    ]);
    for row in rows {
        table.add_row([
            format!(
                "{} ({}, {}, IPv{})",
                row.name, row.backend, row.congestion, row.family
            ),
            list(&row.with),
            list(&row.without),
            list(&row.fair),
            format!("{:.0}", row.retransmitted_with),
            format!("{:.0}", row.retransmitted_without),
            list(&row.least_half_second_with),
            list(&row.least_half_second_without),
            match row.missed.is_empty() {
                true => "obeys".to_owned(),
                false => row.missed.join("; "),
            },
        ]);
    }
    table
}

fn list(mbps: &[f64]) -> String {
    let all: Vec<String> = mbps.iter().map(|one| format!("{one:.1}")).collect();
    all.join(", ")
}

/// Builds the picture: for each back end and congestion control, the distribution over all cases of
/// the worst flow's rate over what is due to it.
#[must_use]
pub fn picture(options: &LabOptions, rows: &[ObeyRow]) -> Picture {
    let mut samples: IndexMap<String, Vec<f64>> = IndexMap::new();
    for row in rows {
        let name = format!("{} over {}", row.backend, row.congestion);
        samples
            .entry(name)
            .or_default()
            .push(row.least_of_due.min(MOST));
    }
    let curves = samples
        .into_iter()
        .map(|(name, samples)| Curve::distribution(name, samples))
        .collect();
    let panel = Panel::curves(
        "worst flow of each case",
        Axis::linear("rate over the lesser of its fair share and its rate without us")
            .over(0.0, MOST),
        Axis::linear("share of cases (%)").over(0.0, 100.0),
        curves,
    );
    let subtitle = format!(
        "{} cases, medians of {} pairs of runs · {} Mbit/s",
        rows.len(),
        options.runs(),
        options.link_mbps()
    );
    Picture::new(
        "obey: networks that are not as the topology file says",
        subtitle,
        vec![panel],
    )
    .panel_size(900, 496)
}
