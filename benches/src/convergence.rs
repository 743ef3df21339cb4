//! `ratewright-bench convergence`: how fast rates are right again after flows were replaced.

use std::path::PathBuf;

use crate::experiment::convergence::engine::measure_engine;
use crate::experiment::convergence::{
    Convergence, RuleFigures, Setup, TARGET_P99_ERROR, TARGET_THROUGHPUT, TARGET_TIME, measure,
};
use crate::experiment::flowlets::paper_network;
use crate::experiment::rules::{ENGINE, PLAIN, RULES};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use ratewright_cli::clock::now_ns;
use ratewright_plot::commit::commit;
use ratewright_plot::{Axis, Curve, Panel, Picture, style};
use ratewright_topology::TwoTierClos;
use serde::Serialize;

use super::engine::{MOST_FLOWS, check_workers};
use super::sweep::{announce, print_json};

/// Options.
#[derive(Debug, Clone, Args)]
pub struct ConvergenceOptions {
    /// Racks of 16 hosts
    #[arg(long, default_value_t = 96)]
    pub racks: u32,
    /// Flows between random hosts
    #[arg(long, default_value_t = 12_288)]
    pub flows: usize,
    /// Share of the flows that is replaced
    #[arg(long, default_value_t = 0.01)]
    pub share: f64,
    /// Capacity of a leaf–spine link in Gbit/s; 40 is full bisection
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub fabric_gbps: u64,
    /// Iterations after that
    #[arg(long, default_value_t = 10)]
    pub iterations: usize,
    /// Random cases; figures are means over them
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub cases: u32,
    /// Runs of every case, of which the shortest times count
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Workers of the parallel engine, which is measured beside the rules
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Seed of the first case
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw the figure here
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Maximum of `--iterations`.
const MOST_ITERATIONS: usize = 10_000;

/// The results file.
#[derive(Debug, Clone, Serialize)]
struct ConvergenceResults {
    /// Commit of the program.
    commit: &'static str,
    /// Seed of the first case.
    seed: u64,
    #[serde(flatten)]
    convergence: Convergence,
}

/// Runs the experiment and prints it.
///
/// # Errors
/// When options make no sense or the figure cannot be written.
pub fn run(options: &ConvergenceOptions) -> Result<()> {
    ensure!(
        options.share > 0.0 && options.share <= 1.0,
        "--share is above 0 and at most 1"
    );
    ensure!(
        (1..=MOST_ITERATIONS).contains(&options.iterations),
        "--iterations is 1 to {MOST_ITERATIONS}"
    );
    ensure!(
        (1..=MOST_FLOWS).contains(&options.flows),
        "--flows is 1 to {MOST_FLOWS}"
    );
    let setup = Setup {
        network: TwoTierClos {
            racks: options.racks,
            fabric_capacity_bps: options.fabric_gbps * 1_000_000_000,
            ..paper_network()
        },
        flows: options.flows,
        // At least one, or there would be nothing to converge from.
        replaced: ((options.flows as f64 * options.share).round() as usize).max(1),
        iterations: options.iterations,
        cases: options.cases,
        repeats: options.repeats,
        seed: options.seed,
    };
    // Checked before minutes of measurements of the other rules.
    let topology = setup.network.build();
    check_workers(
        &topology.context("no such network can be built")?,
        options.workers,
    )?;
    let mut result = measure(&setup, &RULES, &mut now_ns, &mut |_| ())?;
    // The engine's times are reported in iterations of the f64 optimiser as well.
    let reference_us = result.plain_iteration_us;
    result.engines = measure_engine(&setup, options.workers, reference_us, &mut now_ns)?;
    if let Some(file) = &options.svg {
        picture(&result).write(file)?;
        announce(file);
    }
    if options.json {
        return print_json(&ConvergenceResults {
            commit: commit(),
            seed: options.seed,
            convergence: result,
        });
    }
    println!("{}", table(&result));
    // Both entries share the workers and the unit of time.
    for engine in result.engines.iter().take(1) {
        println!(
            "parallel and parallel-plain: {} worker(s), {}; their unit of time is a plain iteration of the same engine, {:.1} µs. Applying the events takes {:.1} µs.",
            engine.workers, engine.simd, engine.plain_iteration_us, engine.events_us
        );
    }
    println!(
        "One iteration of plain NED with F-NORM: {:.1} µs. Target: within the time of {TARGET_TIME} of them, p99 rate error ≤ {:.0} % and throughput ≥ {TARGET_THROUGHPUT}.",
        result.plain_iteration_us,
        TARGET_P99_ERROR * 100.0
    );
    Ok(())
}

/// Iterations that the table shows.
const SHOWN: [usize; 4] = [1, 2, 5, 10];

fn table(result: &Convergence) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let mut header = vec![
        "rule".to_owned(),
        "iteration\ncosts".to_owned(),
        format!("within time {TARGET_TIME}:\np99 error, throughput"),
    ];
    header.extend(SHOWN.map(|i| format!("iteration {i}\nat time: p99 error, throughput")));
    table.set_header(header);
    let of_engines = result.engines.iter().map(|engine| &engine.figures);
    for rule in result.rules.iter().chain(of_engines) {
        let mut row = vec![
            format!("{}\n{}", rule.rule, rule.what),
            format!("{:.2}", rule.iteration_time),
            rule.in_time.map_or_else(
                || "–".to_owned(),
                |p| {
                    let mark = if rule.meets_target { " ✓" } else { "" };
                    format!(
                        "{:.2} %, {:.4}{mark}",
                        p.p99_rate_error * 100.0,
                        p.throughput
                    )
                },
            ),
        ];
        for shown in SHOWN {
            let point = rule.points.iter().find(|p| p.iteration == shown);
            row.push(point.map_or_else(String::new, |p| {
                format!(
                    "{:.2}: {:.2} %, {:.4}",
                    p.time,
                    p.p99_rate_error * 100.0,
                    p.throughput
                )
            }));
        }
        table.add_row(row);
    }
    for column in 1..=2 + SHOWN.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Rules that are drawn, each in a colour and a stroke of its own.
const DRAWN: [&str; 8] = [
    "ratewright",
    "plain",
    "guarded",
    "plain-scaled",
    "plain-0.6-events",
    "guarded-events",
    "local-1",
    "coordinate",
];
/// The right end of the time axis.
const LAST_TIME: f64 = 8.0;

fn picture(result: &Convergence) -> Picture {
    let curve = |rule: &RuleFigures, colour: usize, y: fn(f64, f64) -> f64| {
        let points = rule
            .points
            .iter()
            // Slow rules have points far beyond the axis.
            .filter(|p| p.time <= LAST_TIME)
            .map(|p| (p.time, y(p.p99_rate_error, p.throughput)));
        let curve = Curve::new(rule.rule, points.collect()).colour(style::colour(colour));
        match rule.rule {
            name if name == PLAIN.name => curve.dashed().rings(),
            name if name == ENGINE.name => curve.dots().width(3),
            _ => curve.dots(),
        }
    };
    let curves = |y: fn(f64, f64) -> f64| -> Vec<Curve> {
        DRAWN
            .iter()
            .enumerate()
            .filter_map(|(colour, name)| {
                let rule = result.rules.iter().find(|r| r.rule == *name)?;
                Some(curve(rule, colour, y))
            })
            .collect()
    };
    let errors = curves(|error, _| error * 100.0);
    let throughputs = curves(|_, throughput| throughput);
    let values = |curves: &[Curve]| -> Vec<f64> {
        let points = curves.iter().flat_map(|curve| &curve.points);
        points.map(|point| point.1).collect()
    };
    // Wider than these only where a curve leaves them.
    let highest_error = values(&errors).into_iter().fold(27.0, f64::max);
    let lowest_throughput = values(&throughputs).into_iter().fold(0.965, f64::min);
    let error = Axis::linear("p99 of |rate / optimum − 1| (%)").over(0.0, highest_error);
    let throughput = Axis::linear("share of the optimal throughput").over(lowest_throughput, 1.001);
    let panel = |title: &str, y, curves, target: f64, text: &str| {
        let time = "time since the flows were replaced (iterations of plain NED with F-NORM)";
        let time = Axis::linear(time).over(0.0, LAST_TIME + 0.2);
        let panel = Panel::curves(title, time, y, curves);
        panel.mark(target, text).event(TARGET_TIME, "target")
    };
    let panels = vec![
        panel(
            "99th percentile of rate errors after F-NORM",
            error,
            errors,
            TARGET_P99_ERROR * 100.0,
            "7 %",
        ),
        panel(
            "Throughput after F-NORM",
            throughput,
            throughputs,
            TARGET_THROUGHPUT,
            "0.99",
        ),
    ];
    let title = format!(
        "Rates after {} of {} flows were replaced, by step rule",
        result.replaced, result.flows
    );
    let subtitle = format!(
        "{} hosts, {} links, two-tier Clos · means over {} random cases · one plain iteration: {:.0} µs, one thread",
        result.hosts, result.links, result.cases, result.plain_iteration_us
    );
    Picture::new(title, subtitle, panels).panel_size(760, 480)
}
