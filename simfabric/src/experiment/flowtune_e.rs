//! Flowtune fig. 9: traffic to and from the allocator as a share of network capacity, by load and
//! workload, with a notification threshold of 0.01.
//!
//! The paper's flow sizes are Facebook's "all" category (its appendix C), whose curves are not
//! public; ours are the intra-cluster curves of the same study. A workload's mean size sets how many
//! flowlets start per second at a load, and with that most of the update traffic, so the report gives
//! starts and updates per server beside the shares.

use super::control_traffic::{Case, Sample, all};
use super::{ExperimentError, Reproduction, Settings, scene};
use crate::report::figure::{Figure, Paper, Row, Verdict};
use crate::report::plot::{Axis, Line, Panel, Picture, style};
use crate::time::Time;
use crate::workload::SizeDistribution;

/// Workloads and the paper's share of capacity, in per cent (flowtune §5.3.2 (E), at load 0.8).
const PAPER: [(&str, &str, f64); 3] = [
    ("hadoop", "Hadoop", 0.17),
    ("cache", "Cache", 0.57),
    ("web", "Web", 1.13),
];
/// How much larger Hadoop's flows are made, to show what their size does.
const HADOOP_FACTOR: u64 = 4;
/// What counts as reproduced.
const TOLERANCE: f64 = 0.3;

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: Settings) -> Result<Reproduction, ExperimentError> {
    let loads: &[f64] = if settings.quick {
        &[0.4, 0.8]
    } else {
        &[0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    };
    let (warm_up, end) = if settings.quick { (10, 20) } else { (100, 200) };
    let mut cases = Vec::new();
    for (workload, _, _) in PAPER {
        for &load in loads {
            cases.push(Case {
                racks: scene::RACKS,
                workload,
                load,
                threshold: 0.01,
                warm_up: Time::from_ms(warm_up),
                end: Time::from_ms(end),
                seed: settings.seed,
                size_factor: 1,
            });
        }
    }
    let hadoop = &cases[loads.len() - 1];
    cases.push(Case {
        size_factor: HADOOP_FACTOR,
        ..hadoop.clone()
    });
    let mut samples = all(&cases)?;
    let larger = samples.pop();
    let mut figure = Figure::new(
        "flowtune-e",
        "Update traffic by load and workload (flowtune fig. 9)",
        settings.seed,
        settings.quick,
    );
    let top = loads.len() - 1;
    let mut at_top = Vec::new();
    for (i, (workload, name, paper)) in PAPER.into_iter().enumerate() {
        let sample = &samples[i * loads.len() + top];
        at_top.push(sample);
        let row = Row::judged(
            format!("{name}, load 0.8: IP packets to and from the allocator"),
            paper,
            sample.ip_percent,
            "% of capacity",
            TOLERANCE,
        );
        figure.rows.push(explain(row, sample, workload)?);
        figure.rows.push(Row::new(
            format!("{name}, load 0.8: the same with Ethernet, preamble and gap"),
            Paper::Nothing(()),
            sample.total_percent(),
            "% of capacity",
            Verdict::NoFigure,
        ));
        figure.rows.push(Row::new(
            format!("{name}, load 0.8: to the allocator over from it"),
            "substantially lower",
            sample.to_allocator_percent / sample.from_allocator_percent,
            "ratio",
            if sample.to_allocator_percent < 0.6 * sample.from_allocator_percent {
                Verdict::Reproduced
            } else {
                Verdict::Off
            },
        ));
    }
    at_top.sort_by(|a, b| b.starts_per_host_s.total_cmp(&a.starts_per_host_s));
    let ordered = at_top
        .windows(2)
        .all(|pair| pair[0].ip_percent > pair[1].ip_percent);
    let verdict = if ordered {
        Verdict::Reproduced
    } else {
        Verdict::Off
    };
    figure.rows.push(
        Row::new("The smaller the mean size, the more traffic", "yes", f64::from(u8::from(ordered)), "1 = yes", verdict)
            .note("the paper's order is Web, Cache, Hadoop; the public curves have means of 62, 688 and 122 kB, so here it is Web, Hadoop, Cache"),
    );
    if let Some(larger) = larger {
        figure.rows.push(
            Row::new(
                format!("Hadoop, all sizes times {HADOOP_FACTOR}: IP packets to and from the allocator"),
                Paper::Nothing(()),
                larger.ip_percent,
                "% of capacity",
                Verdict::NoFigure,
            )
            .note(format!(
                "{:.0} starts per server and second, {:.1} updates per flowlet: how much traffic a workload causes is a matter of how many flowlets start",
                larger.starts_per_host_s, larger.updates_per_flowlet
            )),
        );
    }
    figure.scenario = scenario(warm_up, end);
    figure.data = serde_json::to_value(&samples).unwrap_or_default();
    let lines = PAPER.iter().enumerate().map(|(i, (_, name, _))| {
        let points = samples[i * loads.len()..(i + 1) * loads.len()]
            .iter()
            .map(|sample| (sample.load, sample.ip_percent))
            .collect();
        Line::new(*name, points).colour(style::colour(i)).dots()
    });
    let directions = PAPER.iter().enumerate().map(|(i, (_, name, _))| {
        let points = samples[i * loads.len()..(i + 1) * loads.len()]
            .iter()
            .map(|sample| (sample.load, sample.to_allocator_percent))
            .collect();
        Line::new(*name, points).colour(style::colour(i)).dots()
    });
    let x = || Axis::linear("Load").over(0.0, 1.0);
    let mut both = Panel::lines(
        "To and from the allocator",
        x(),
        Axis::linear("Share of network capacity (%)").over(0.0, 1.4),
        lines.collect(),
    );
    for (_, name, paper) in PAPER {
        both = both.mark(paper, format!("paper, {name}"));
    }
    let to = Panel::lines(
        "To the allocator, with Ethernet, preamble and gap",
        x(),
        Axis::linear("Share of network capacity (%)"),
        directions.collect(),
    );
    let picture = Picture::new(
        "Update traffic by load and workload",
        "Flowtune fig. 9: 144 servers, threshold 0.01; IP packets, both directions, as the paper counts",
        vec![both, to],
    );
    Ok(Reproduction { figure, picture })
}

/// The measurements that a share follows from.
fn explain(row: Row, sample: &Sample, workload: &str) -> Result<Row, ExperimentError> {
    let mean = SizeDistribution::published(workload)?.mean_bytes();
    let starts = sample.starts_per_host_s;
    // A flowlet that needs no update at all still says that it starts and ends.
    let least = starts
        * f64::from(
            crate::control::datagram_wire_bytes(48) + crate::control::datagram_wire_bytes(36),
        )
        * 800.0
        / scene::HOST_BPS as f64;
    let text = format!(
        "mean size {:.0} kB: {starts:.0} starts, {:.0} updates and {:.0} update datagrams per server and second, {:.1} updates per flowlet; notices alone, each in a datagram of its own, are {least:.2} %; bare acknowledgements {:.2} %",
        mean / 1e3,
        sample.updates_per_host_s,
        sample.update_datagrams_per_host_s,
        sample.updates_per_flowlet,
        sample.bare_percent,
    );
    Ok(row.explained(text))
}

pub(super) fn scenario(warm_up_ms: u64, end_ms: u64) -> Vec<String> {
    vec![
        "4 spines, 16 servers per rack at 10 Gbit/s, 1.5 µs per link, 2 µs per server; allocator by 40 Gbit/s to each spine (more beyond 144 servers, in proportion)".to_owned(),
        "Poisson flowlets between uniformly random pairs; an iteration every 10 µs, γ 0.4".to_owned(),
        format!("packet by packet; counted from {warm_up_ms} ms to {end_ms} ms"),
        "control datagrams with their Ethernet, IPv4 and UDP headers, minimum frame, preamble and gap; acknowledgements wait up to 50 µs for company".to_owned(),
    ]
}
