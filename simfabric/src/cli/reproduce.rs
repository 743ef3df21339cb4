//! `simfabric reproduce`: a paper's figures, with the paper's numbers beside ours.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ratewright_simfabric::experiment::assumptions::Assumptions;
use ratewright_simfabric::experiment::monitor::{MONITOR, MonitorProgress};
use ratewright_simfabric::experiment::{Experiment, ExperimentError, FLOWTUNE, Settings};
use ratewright_simfabric::report::commit::COMMIT;
use ratewright_simfabric::report::digits::short;
use ratewright_simfabric::report::tally::Tally;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::create;
use super::stop::StopRequest;

/// Interval at which the bar is drawn, and at which a request to stop is passed on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Arguments of `reproduce`.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The paper.
    #[arg(value_parser = ["flowtune"])]
    paper: String,
    /// The letters of the experiments, or `all`. H to K share their runs: together they take as
    /// long as one.
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// The short form, a minute at most per experiment.
    #[arg(long)]
    quick: bool,
    /// Another choice where the paper leaves one open; `simfabric list` has them, and
    /// docs/simfabric/reproduction.md which figures they move.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the results go.
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// Also write all tables into one Markdown file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at the same time; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// Fail, once everything is written, if a row is off: outside of what the paper has, and not
    /// explained by a measurement.
    #[arg(long)]
    strict: bool,
}

impl ReproduceArgs {
    /// Runs the experiments and writes their results.
    pub(crate) fn run(&self) -> Result<()> {
        let mut chosen: Vec<&Experiment> = Vec::new();
        for wanted in &self.experiments {
            let all = wanted == "all";
            // A word that adds nothing is unknown: letters have an experiment each.
            let before = chosen.len();
            let known = FLOWTUNE.iter();
            chosen.extend(
                known.filter(|e| all || wanted.eq_ignore_ascii_case(&e.letter.to_string())),
            );
            if chosen.len() == before {
                let known: Vec<String> = FLOWTUNE.iter().map(|e| e.letter.to_string()).collect();
                bail!(
                    "{} has no experiment {wanted}; there are {} and all",
                    self.paper,
                    known.join(", ")
                );
            }
        }
        let mut assumptions = Assumptions::default();
        for option in &self.set {
            assumptions.set(option)?;
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.jobs.unwrap_or(0))
            .build()
            .context("starting the threads")?;
        let settings = Settings {
            seed: self.seed,
            quick: self.quick,
            assumptions,
        };
        let stop = StopRequest::on_ctrl_c()?;
        create(&self.out)?;
        let mut written = Vec::new();
        let mut markdown = String::new();
        let mut tally = Tally::default();
        for experiment in chosen {
            // A title on standard error is progress; a closed one must not end the runs.
            let _ = writeln!(
                std::io::stderr(),
                "{}: {}",
                experiment.letter,
                experiment.title
            );
            // The monitor counts for the whole process; this experiment's share is the difference.
            let before = MONITOR.progress();
            let outcome = watched(experiment.letter, &stop, || {
                pool.install(|| (experiment.run)(settings))
            })?;
            let result = match outcome {
                Ok(result) => result,
                Err(ExperimentError::Stopped) => {
                    let (part, whole) = since(before);
                    let ms = |ns: u64| short(ns as f64 / 1e6);
                    bail!(
                        "stopped: {} had simulated {} of {} ms; {}",
                        experiment.letter,
                        ms(part),
                        ms(whole),
                        if written.is_empty() {
                            "no figure is written".to_owned()
                        } else {
                            format!("{} holds {}", self.out.display(), written.join(", "))
                        }
                    );
                }
                Err(e) => return Err(e.into()),
            };
            // Written one by one: a stop keeps the figures that are done.
            result
                .figure
                .write(&self.out, experiment.file_name, &result.picture)?;
            say!("{}", result.figure.table());
            markdown.push('\n');
            markdown.push_str(&result.figure.markdown(experiment.letter, experiment.title));
            tally.add(&result.figure);
            written.push(experiment.letter.to_string());
        }
        say!("{tally}");
        // After everything is written: the user reads a row that is off in its file.
        if let Some(path) = &self.markdown {
            let form = if self.quick { " --quick" } else { "" };
            let set: String = self.set.iter().map(|key| format!(" --set {key}")).collect();
            let text = format!(
                "# Results of the simulated fabric\n\nWritten by:\n\n```sh\nsimfabric reproduce {} \\\n    \
                 {}{form}{set} --seed {} \\\n    --out DIR --markdown FILE\n```\n\nThe verdicts are explained \
                 in [reproduction.md](reproduction.md). Commit {COMMIT}.\n\n**{tally}**\n{markdown}",
                self.paper,
                self.experiments.join(" "),
                self.seed
            );
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.strict && !tally.off().is_empty() {
            bail!("{} off: {}", tally.off().len(), tally.off().join("; "));
        }
        Ok(())
    }
}

/// Simulated nanoseconds done since `before`, and those announced since then.
fn since(before: MonitorProgress) -> (u64, u64) {
    let progress = MONITOR.progress();
    let whole = progress.expected_ns - before.expected_ns;
    ((progress.done_ns - before.done_ns).min(whole), whole)
}

/// Does the work with a bar of simulated time beside it, and passes a request to stop on to the
/// monitor.
fn watched<R: Send>(
    letter: char,
    stop: &StopRequest,
    work: impl FnOnce() -> R + Send,
) -> Result<R> {
    let style =
        ProgressStyle::with_template("{prefix:>2} {bar:20} {percent:>3} %  {eta} left  {msg}")?;
    let bar = ProgressBar::new(0)
        .with_style(style)
        .with_prefix(letter.to_string());
    let before = MONITOR.progress();
    let (finished, waiting) = mpsc::channel::<()>();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let waiting = waiting;
            // The work never sends. Once it is done it drops its end, which wakes this thread at
            // once instead of after an interval.
            while waiting.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                if stop.requested() {
                    MONITOR.stop();
                }
                let (part, whole) = since(before);
                bar.set_length(whole);
                bar.set_position(part);
                bar.set_message(format!(
                    "{} of {} ms, {} million hops",
                    short(part as f64 / 1e6),
                    short(whole as f64 / 1e6),
                    (MONITOR.progress().packet_hops - before.packet_hops) / 1_000_000
                ));
            }
        });
        let result = work();
        drop(finished);
        result
    });
    bar.finish_and_clear();
    Ok(result)
}
