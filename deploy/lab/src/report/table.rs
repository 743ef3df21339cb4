//! The summary that the lab prints at its end.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::figures::LinkRow;
use crate::scenario::figures::{Figures, WeightRate};
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};

/// Function that prints one figure.
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
    ("least of a flow's fair share, settled", |f| {
        f.share_min.map(percent)
    }),
    ("segments sent again", |f| {
        f.retransmitted.map(|v| v.to_string())
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
    ("the one download of 50 that is read", |f| {
        f.reader_mbps.map(mbps)
    }),
    ("bulk beside 4 applications of 5 Mbit/s", |f| {
        f.bulk_mbps.map(mbps)
    }),
    ("unused capacity is with others, p50", |f| {
        f.redistributed_ms.as_ref().map(|r| ms_or_never(r.p50))
    }),
    ("unused capacity is with others, at most", |f| {
        f.redistributed_ms.as_ref().map(|r| ms_or_never(r.max))
    }),
    ("source 10 ms on, 10 ms off: share of fair", |f| share(f, 0)),
    ("source 1 ms on, 3 ms off: share of fair", |f| share(f, 1)),
    ("rise of demand to 5 % of fair, p50", |f| {
        f.rise_ms.map(|r| format!("{:.2} ms", r.p50))
    }),
    ("rise of demand to 5 % of fair, p99", |f| {
        f.rise_ms.map(|r| format!("{:.2} ms", r.p99))
    }),
    ("rises, demands that the daemon raised", |f| {
        let rise = f.rise_ms?;
        let raised = rise
            .raised
            .map_or("–".to_owned(), |raised| raised.to_string());
        Some(format!("{}, {raised}", rise.count))
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
    ("outside TCP: managed flows give way", |f| {
        Some(ms_or_never(f.feeds.as_ref()?.give_way_ms))
    }),
    ("outside TCP: managed flows take it back", |f| {
        Some(ms_or_never(f.feeds.as_ref()?.take_back_ms))
    }),
    ("outside TCP: its share of a fair one", |f| {
        Some(format!("{:.2}", f.feeds.as_ref()?.outside_of_fair?))
    }),
    ("outside TCP: queue, mean", |f| {
        Some(format!("{:.1} kB", f.feeds.as_ref()?.queue_mean_kb?))
    }),
    ("outside TCP: packets lost", |f| {
        Some(format!("{}", f.feeds.as_ref()?.packets_lost?))
    }),
    ("no allocator: eight senders within 10 % of fair", |f| {
        Some(ms_or_never(f.feeds.as_ref()?.fair_ms))
    }),
    ("no allocator: demand to share, p99", |f| {
        Some(format!("{:.0} µs", f.feeds.as_ref()?.share_us_p99?))
    }),
    ("no allocator: least Jain index of 50 ms", |f| {
        Some(format!("{:.4}", f.feeds.as_ref()?.jain_min?))
    }),
    ("no allocator: least link use of 100 ms", |f| {
        Some(format!("{:.3}", f.feeds.as_ref()?.utilization_min?))
    }),
    ("no allocator: packets lost", |f| {
        Some(format!("{}", f.feeds.as_ref()?.packets_lost_alone?))
    }),
    ("start to first rate: p50", |f| {
        f.first_rate_us.map(|p| format!("{:.0} µs", p.p50))
    }),
    ("start to first rate: p99", |f| {
        f.first_rate_us.map(|p| format!("{:.0} µs", p.p99))
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
pub fn summary(options: &LabOptions, outcome: &RunOutcome) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let with = format!("with Ratewright ({})", outcome.backend);
    let names = match options.scenario {
        ScenarioKind::Starts => ["control first", "control with data"],
        ScenarioKind::Feeds => ["feeds and shares", "neither"],
        _ => [with.as_str(), "Cubic alone"],
    };
    let phases: Vec<(&str, &ScenarioPhase)> =
        [(names[0], &outcome.with), (names[1], &outcome.without)]
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
        // Only rows that the scenario measures.
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

/// The safety scenario's rows, completion times beside plain TCP's on the same network.
#[must_use]
pub fn safety(outcome: &RunOutcome) -> Table {
    let mut table = headed([
        "safety",
        "runs",
        "connections",
        "unfinished",
        "broken",
        "bytes missing",
        "silent back-off",
        "under a rate",
        "completion p50",
        "p99",
        "p99 / cubic's",
    ]);
    let rows = |phase: &Option<ScenarioPhase>| {
        phase
            .as_ref()
            .and_then(|phase| phase.figures.safety.clone())
            .unwrap_or_default()
    };
    let (with, without) = (rows(&outcome.with), rows(&outcome.without));
    for row in without.iter().chain(&with) {
        let times = row.completion_s;
        let cubic = without
            .iter()
            // Networks differ by back end (some shape hosts), so each has its own baseline.
            .find(|base| (base.backend, base.family) == (row.backend, row.family))
            .and_then(|base| base.completion_s);
        let seconds = |s: Option<f64>| s.map_or("–".to_owned(), |s| format!("{s:.2} s"));
        table.add_row([
            format!("{}, {}, IPv{}", row.backend, row.fate, row.family),
            row.runs.to_string(),
            row.connections.to_string(),
            row.unfinished.to_string(),
            row.broken.to_string(),
            row.missing_bytes.to_string(),
            row.silent_backoff.to_string(),
            row.held.map_or("–".to_owned(), |held| held.to_string()),
            seconds(times.map(|t| t.p50)),
            seconds(times.map(|t| t.p99)),
            times
                .zip(cubic)
                .map_or("–".to_owned(), |(t, c)| format!("{:.3}", t.p99 / c.p99)),
        ]);
    }
    table
}

/// The rows of the scenario of links without a shaper, beside plain TCP's.
#[must_use]
pub fn links(outcome: &RunOutcome) -> Table {
    let mut table = headed([
        "links",
        "flows",
        "with Ratewright",
        "of the rate's payload",
        "Cubic alone",
        "processor time per bit",
        "maxima of their own",
        "Cubic alone",
    ]);
    let rows = |phase: &Option<ScenarioPhase>| {
        phase
            .as_ref()
            .and_then(|phase| phase.figures.links.clone())
            .unwrap_or_default()
    };
    let (with, without) = (rows(&outcome.with), rows(&outcome.without));
    // Either phase may be left out on the command line; both have the same keys.
    let keys = if with.is_empty() { &without } else { &with };
    for key in keys {
        let of = |rows: &[LinkRow]| {
            rows.iter()
                .find(|row| (row.link_mbps, row.flows) == (key.link_mbps, key.flows))
                .cloned()
        };
        let (with, without) = (of(&with), of(&without));
        let dash = || "–".to_owned();
        let gbps = |row: &Option<LinkRow>| {
            row.as_ref()
                .map_or_else(dash, |row| format!("{:.2} Gbit/s", row.payload_gbps))
        };
        let ps = |value: Option<f64>| value.map_or_else(dash, |ps| format!("{ps:.1} ps"));
        table.add_row([
            format!("{} Gbit/s", f64::from(key.link_mbps) / 1e3),
            key.flows.to_string(),
            gbps(&with),
            with.as_ref()
                .and_then(|row| row.of_rate)
                .map_or_else(dash, percent),
            gbps(&without),
            ps(with.as_ref().map(|row| row.processor_ps_per_bit)),
            ps(without.as_ref().and_then(|row| row.own_maxima_ps_per_bit)),
            ps(without.as_ref().map(|row| row.processor_ps_per_bit)),
        ]);
    }
    table
}

pub(super) fn headed<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header);
    for column in 1..N {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn mbps(value: f64) -> String {
    format!("{value:.1} Mbit/s")
}

fn ms_or_never(value: Option<f64>) -> String {
    value.map_or("never".to_owned(), |ms| format!("{ms:.0} ms"))
}

fn share(figures: &Figures, index: usize) -> Option<String> {
    let share = figures.on_off.as_ref()?.get(index)?.share;
    Some(format!("{share:.3}"))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn rate(figures: &Figures, index: usize) -> Option<String> {
    let WeightRate { rate_mbps, .. } = figures.weights.as_ref()?.get(index)?;
    Some(format!("{rate_mbps:.1} Mbit/s"))
}
