//! The summary that the lab prints at its end.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use crate::lab::options::LabOptions;
use crate::scenario::figures::{Figures, WeightRate};
use crate::scenario::{Outcome, Phase};

/// How one figure is printed.
type Show = fn(&Figures) -> Option<String>;

const ROWS: &[(&str, Show)] = &[
    ("Jain's index, settled 50 ms windows: least", |f| {
        f.jain_settled_min.map(|v| format!("{v:.4}"))
    }),
    ("Jain's index, settled 50 ms windows: median", |f| {
        f.jain_settled_median.map(|v| format!("{v:.4}"))
    }),
    ("bottleneck used while any flow is active", |f| {
        f.utilization_active.map(percent)
    }),
    ("coflow completion p50", |f| {
        f.completion_s.as_ref().map(|c| format!("{:.3} s", c.p50))
    }),
    ("coflow completion p90", |f| {
        f.completion_s.as_ref().map(|c| format!("{:.3} s", c.p90))
    }),
    ("coflow completion p95", |f| {
        f.completion_s.as_ref().map(|c| format!("{:.3} s", c.p95))
    }),
    ("single transfer p50", |f| {
        f.completion_s
            .as_ref()
            .map(|c| format!("{:.3} s", c.transfers.p50))
    }),
    ("single transfer p95", |f| {
        f.completion_s
            .as_ref()
            .map(|c| format!("{:.3} s", c.transfers.p95))
    }),
    ("least link use over 100 ms during the outages", |f| {
        f.utilization_outage_min.map(percent)
    }),
    ("least link use over 100 ms after the restarts", |f| {
        let mins = f.outages.iter().filter_map(|o| o.utilization_recovery_min);
        mins.min_by(f64::total_cmp).map(percent)
    }),
    ("sockets back on plain Cubic after a kill", |f| {
        f.fallback_ms.map(|v| format!("{v:.0} ms"))
    }),
    ("fair again after a restart", |f| {
        f.recovery_ms.map(|v| format!("{v:.0} ms"))
    }),
    ("connections lost", |f| {
        f.connections_lost.map(|v| v.to_string())
    }),
    ("rate of long flows of weight 1", |f| rate(f, 0)),
    ("rate of long flows of weight 2", |f| rate(f, 1)),
    ("rate of long flows of weight 4", |f| rate(f, 2)),
    ("short flows complete, p50", |f| {
        f.short_flow_ms.map(|q| format!("{:.1} ms", q.p50))
    }),
    ("short flows complete, p95", |f| {
        f.short_flow_ms.map(|q| format!("{:.1} ms", q.p95))
    }),
    ("first byte to first paced rate: p50", |f| {
        f.first_paced_us.map(|p| format!("{:.0} µs", p.p50))
    }),
    ("first byte to first paced rate: p99", |f| {
        f.first_paced_us.map(|p| format!("{:.0} µs", p.p99))
    }),
];

/// The table: figures down, phases across.
#[must_use]
pub fn summary(options: &LabOptions, outcome: &Outcome) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let with = format!("with Ratewright ({})", outcome.backend);
    let phases: Vec<(&str, &Phase)> = [
        (with.as_str(), &outcome.with),
        ("Cubic alone", &outcome.without),
    ]
    .into_iter()
    .filter_map(|(name, phase)| Some((name, phase.as_ref()?)))
    .collect();
    let title = format!(
        "{}, {} Mbit/s links",
        options.scenario.name(),
        options.link_mbps()
    );
    table.set_header(
        std::iter::once(title).chain(phases.iter().map(|(name, _)| (*name).to_owned())),
    );
    for (name, show) in ROWS {
        let cells: Vec<Option<String>> = phases
            .iter()
            .map(|(_, phase)| show(&phase.figures))
            .collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells
                .into_iter()
                .map(|cell| cell.unwrap_or_else(|| "–".to_owned()));
            table.add_row(std::iter::once((*name).to_owned()).chain(cells));
        }
    }
    for column in 1..=phases.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn rate(figures: &Figures, index: usize) -> Option<String> {
    let WeightRate { rate_mbps, .. } = figures.weights.as_ref()?.get(index)?;
    Some(format!("{rate_mbps:.1} Mbit/s"))
}
