//! `simfabric run`: runs a plan's transports, several at a time.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indexmap::IndexMap;
use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use ratewright_plot::digits::short;
use ratewright_plot::file::write_text;
use ratewright_plot::{Axis, Curve, Panel, Picture, style};
use ratewright_simfabric::parameters::Setting;
use ratewright_simfabric::plan::{Overrides, PlannedTransport, RunPlan, TransportRun};
use ratewright_simfabric::report::file::write_json;
use ratewright_simfabric::report::summary::Summary;
use ratewright_simfabric::run::Progress;
use ratewright_simfabric::{FlowId, Time};
use rayon::prelude::*;

use super::create;
use super::stop::StopRequest;

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The plan, in TOML; docs/simfabric/plans.md describes the format.
    plan: PathBuf,
    /// Folder of the results.
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// Replaces the plan's seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Another value for a parameter of a scheme; `simfabric list` has them all.
    #[arg(long, value_name = "SCHEME.KEY=VALUE")]
    set: Vec<Setting>,
    /// Runs at a time; each transport of the plan is one run. Results do not depend on it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Threads that simulate each run, at most. Results do not depend on it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

impl RunArgs {
    /// Runs the plan and writes `summary.json`, `flows-<transport>.csv` and, where the plan asks
    /// for it, `throughput.svg`.
    pub(crate) fn run(&self) -> Result<()> {
        let mut plan = RunPlan::load(
            &self.plan,
            &Overrides {
                seed: self.seed,
                set: self.set.clone(),
            },
        )?;
        plan.threads = self.threads.into();
        // In this order: a signal that comes once the directory is there is always heard.
        let stop = StopRequest::on_ctrl_c()?;
        create(&self.out)?;
        let bars = MultiProgress::new();
        let length = RunLength::of(&plan)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(usize::from(self.jobs))
            .build()
            .context("cannot start the workers")?;
        let outcomes: Vec<Result<(String, TransportRun)>> = pool.install(|| {
            let runs = plan.transports.par_iter();
            runs.map(|transport| {
                let run = one(&plan, transport, length, &bars, &stop)?;
                Ok((transport.label.clone(), run))
            })
            .collect()
        });
        let runs = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
        // Files are written after all runs, in the plan's order, whichever run ended first.
        for (transport, (_, run)) in plan.transports.iter().zip(&runs) {
            let name = format!("flows-{}.csv", transport.file_name());
            write_text(&self.out.join(name), &flows_csv(run))?;
        }
        if plan.series.is_some() {
            picture(&plan, &runs).write(&self.out.join("throughput.svg"))?;
        }
        let file = self
            .plan
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into());
        let results = runs
            .iter()
            .map(|(label, e)| (label.clone(), e.summary.clone()));
        let summary = Summary::new(file, plan.seed, results.collect());
        write_json(&self.out.join("summary.json"), &summary)?;
        print(&summary, &self.out)?;
        // What a stopped run has is written, and the exit code still says that it is not all.
        if !summary.complete {
            let got = |(label, e): &(String, TransportRun)| {
                let s = &e.summary;
                let at = format!("{label} at {} ms", short(s.simulated_us / 1e3));
                match s.ended.as_str() {
                    "deadlock" => format!("{at} by a deadlock of {}", s.deadlock.join(" -> ")),
                    "pause-storm" => format!("{at} by pauses of {}", s.pause_storms.join(" and ")),
                    _ => at,
                }
            };
            let got: Vec<String> = runs.iter().map(got).collect();
            bail!(
                "stopped: {}; {} holds what there is",
                got.join(", "),
                self.out.display()
            );
        }
        Ok(())
    }
}

/// Length of a run, as far as it is known before the run begins.
#[derive(Clone, Copy, Debug)]
enum RunLength {
    /// It ends at this time.
    Time(Time),
    /// It ends when this number of flows is complete.
    Flows(u64),
}

impl RunLength {
    /// The length of a plan's runs.
    fn of(plan: &RunPlan) -> Result<Self> {
        Ok(if plan.end < Time::MAX {
            Self::Time(plan.end)
        } else {
            Self::Flows(plan.flows()?.count() as u64)
        })
    }

    /// Ticks of a whole bar: nanoseconds, or flows.
    const fn whole(self) -> u64 {
        match self {
            Self::Time(end) => end.as_ns(),
            Self::Flows(count) => count,
        }
    }

    /// Ticks that are done.
    const fn done(self, progress: Progress) -> u64 {
        match self {
            Self::Time(_) => progress.now.as_ns(),
            Self::Flows(_) => progress.completed,
        }
    }
}

/// Runs one transport, with a bar of simulated time or of complete flows.
fn one(
    plan: &RunPlan,
    transport: &PlannedTransport,
    length: RunLength,
    bars: &MultiProgress,
    stop: &StopRequest,
) -> Result<TransportRun> {
    // The bar estimates from its position, which is 0 while the first flows are in flight.
    let left = |state: &ProgressState, text: &mut dyn Write| {
        let _ = match state.pos() {
            0 => write!(text, "?"),
            _ => write!(text, "{:#}", HumanDuration(state.eta())),
        };
    };
    let style =
        ProgressStyle::with_template("{prefix:>12} {bar:16} {percent:>3} %  {left} left  {msg}")?
            .with_key("left", left);
    let bar = bars.add(ProgressBar::new(length.whole()).with_style(style));
    bar.set_prefix(transport.label.clone());
    let run = plan.run(transport, |progress| {
        bar.set_position(length.done(progress));
        bar.set_message(format!(
            "{} ms, {} of {} flows complete",
            short(progress.now.as_us_f64() / 1e3),
            progress.completed,
            // A run to a fixed time does not know how many flows will come.
            match length {
                RunLength::Time(_) => progress.started,
                RunLength::Flows(count) => count,
            }
        ));
        if stop.requested() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    run.with_context(|| format!("transport {}", transport.label))
}

/// `flows-<transport>.csv`: one line per flow, times in ns with three decimals.
fn flows_csv(run: &TransportRun) -> String {
    let mut csv = String::from(
        "src,dst,bytes,workload,class,start_ns,finished_ns,acknowledged_ns,\
         delivered_bytes,retransmits,drops\n",
    );
    // Picoseconds as decimals of nanoseconds, by integers: a float would lose digits of long runs.
    let ns = |time: Time| format!("{}.{:03}", time.as_ps() / 1_000, time.as_ps() % 1_000);
    for flow in &run.results.flows {
        let spec = &flow.spec;
        let bytes = match spec.bytes {
            ratewright_simfabric::FlowSpec::UNBOUNDED => "unbounded".to_owned(),
            bytes => bytes.to_string(),
        };
        // Writing into a String cannot fail.
        let _ = writeln!(
            csv,
            "{},{},{bytes},{},{},{},{},{},{},{},{}",
            spec.src.0,
            spec.dst.0,
            spec.label,
            spec.class,
            ns(spec.start),
            flow.finished.map(ns).unwrap_or_default(),
            flow.acknowledged.map(ns).unwrap_or_default(),
            flow.delivered_bytes,
            flow.retransmits,
            flow.drops
        );
    }
    csv
}

/// Throughput over time: a panel for each transport, a curve for each sampled flow.
fn picture(plan: &RunPlan, runs: &[(String, TransportRun)]) -> Picture {
    let most = plan.series.map_or(0, |s| s.1);
    // Flow n has one colour in all panels, so that transports can be compared flow by flow.
    let panels = runs.iter().filter_map(|(label, run)| {
        let series = run.results.series.as_ref()?;
        let flows = (run.results.flows.len() as u32).min(most);
        let lines = (0..flows).map(|flow| {
            let rates = series.goodput_bps(FlowId(flow));
            let points = series.times.iter().zip(rates);
            let points = points
                .map(|(at, bps)| (at.as_us_f64() / 1e3, bps / 1e9))
                .collect();
            Curve::new(format!("flow {}", flow + 1), points).colour(style::colour(flow as usize))
        });
        let (x, y) = (Axis::linear("time (ms)"), Axis::linear("goodput (Gbit/s)"));
        Some(Panel::curves(label.clone(), x, y, lines.collect()))
    });
    Picture::new(
        "Goodput of each flow",
        format!("seed {}", plan.seed),
        panels.collect(),
    )
}

/// Prints a line per transport, and the path of the summary.
fn print(summary: &Summary, out: &Path) -> Result<()> {
    let transports: &IndexMap<_, _> = &summary.transports;
    for (label, o) in transports {
        let q = o.queue_packets;
        say!(
            "{label}: goodput {} Gbit/s, Jain {}, longest queue {} / {} / {} / {} packets (mean, p50, p95, max), {} drops, {} of {} flows complete",
            short(o.goodput_gbps),
            o.jain.map_or("–".to_owned(), short),
            short(q.mean),
            q.p50,
            q.p95,
            q.max,
            o.drops,
            o.flows[1],
            o.flows[0]
        );
    }
    say!("{}", out.join("summary.json").display());
    Ok(())
}
