//! `simfabric reproduce`: a paper's figures, with the paper's numbers beside ours.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ratewright_plot::commit::commit;
use ratewright_plot::digits::short;
use ratewright_simfabric::experiment::monitor::{MONITOR, MonitorProgress};
use ratewright_simfabric::experiment::store::RunStore;
use ratewright_simfabric::experiment::sweep::take_run_count;
use ratewright_simfabric::experiment::{
    Experiment, ExperimentError, PAPERS, PaperExperiments, Reproduction, Settings,
};
use ratewright_simfabric::parameters::Setting;
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
    #[arg(value_parser = paper)]
    paper: &'static PaperExperiments,
    /// The names of the experiments, or `all`; `simfabric list` has them. Flowtune's H to K share
    /// their runs: together they take as long as one.
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// The short form: fewer seeds, loads and milliseconds.
    #[arg(long)]
    quick: bool,
    /// Another value for a parameter of a scheme (also of its `queue` or `nic_queue`), of the
    /// framing (`packet`), or of the `scene`; `simfabric list` has them, and
    /// docs/simfabric/reproduction.md which figures they move.
    #[arg(long, value_name = "NAME.KEY=VALUE")]
    set: Vec<Setting>,
    /// Folder of the results.
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// Also write all tables into one Markdown file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// The first seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds that values are means over; by default 5, and 3 in the short form.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: Option<u32>,
    /// Also measure the judged rows under other parameters, for a table without verdicts.
    #[arg(long)]
    sensitivity: bool,
    /// Minutes after which the long form begins no run any more: its figures are then of the runs
    /// that are there. Runs are kept in the folder, and another command goes on.
    #[arg(long, conflicts_with = "quick")]
    minutes: Option<u64>,
    /// Runs at the same time; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// Fail, once everything is written, if a verdict differs from the one that is recorded in the
    /// experiment's file. Records hold for the fixed parameters and the usual seeds.
    #[arg(long, conflicts_with_all = ["set", "seed", "seeds"])]
    strict: bool,
}

/// The paper of a name.
fn paper(name: &str) -> Result<&'static PaperExperiments, String> {
    PAPERS
        .iter()
        .find(|paper| paper.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = PAPERS.iter().map(|paper| paper.name).collect();
            format!("there are {}", names.join(", "))
        })
}

impl ReproduceArgs {
    /// The chosen experiments, in the order of the command line.
    fn chosen(&self) -> Result<Vec<&'static Experiment>> {
        let mut chosen = Vec::new();
        for wanted in &self.experiments {
            let all = wanted == "all";
            // A word that adds nothing is unknown: names have an experiment each.
            let before = chosen.len();
            let known = self.paper.experiments.iter();
            chosen.extend(known.filter(|e| all || wanted.eq_ignore_ascii_case(e.name)));
            if chosen.len() == before {
                let known: Vec<&str> = self.paper.experiments.iter().map(|e| e.name).collect();
                bail!(
                    "{} has no experiment {wanted}; there are {} and all",
                    self.paper.name,
                    known.join(", ")
                );
            }
        }
        Ok(chosen)
    }

    /// Runs the experiments and writes their results.
    pub(crate) fn run(&self) -> Result<()> {
        let chosen = self.chosen()?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.jobs.unwrap_or(0))
            .build()
            .context("starting the threads")?;
        let usual = if self.quick {
            Settings::QUICK_SEEDS
        } else {
            Settings::LONG_SEEDS
        };
        let settings = Settings {
            first_seed: self.seed,
            seed_count: self.seeds.unwrap_or(usual),
            quick: self.quick,
            set: self.set.clone(),
            store: Some(RunStore {
                dir: self.out.join("runs"),
                // The short form is what a check runs.
                same_commit: self.quick,
            }),
        };
        if self.minutes == Some(0) {
            // Only what is in the folder.
            MONITOR.close();
        } else if let Some(minutes) = self.minutes {
            // Nobody waits for this thread: it ends with the process.
            std::thread::spawn(move || {
                let (_sender, nothing) = mpsc::channel::<()>();
                let _ = nothing.recv_timeout(Duration::from_secs(60 * minutes));
                MONITOR.close();
            });
        }
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
                experiment.name,
                experiment.title
            );
            // The monitor counts for the whole process; this experiment's share is the difference.
            let before = MONITOR.progress();
            let outcome = watched(experiment.name, &stop, || {
                pool.install(|| self.reproduce(experiment, &settings))
            })?;
            let result = match outcome {
                Ok(result) => result,
                Err(ExperimentError::Stopped) => {
                    let (part, whole) = since(before);
                    let ms = |ns: u64| short(ns as f64 / 1e6);
                    bail!(
                        "stopped: {} had simulated {} of {} ms; {}; the long form goes on from {}",
                        experiment.name,
                        ms(part),
                        ms(whole),
                        if written.is_empty() {
                            "no figure is written".to_owned()
                        } else {
                            format!("{} holds {}", self.out.display(), written.join(", "))
                        },
                        self.out.join("runs").display()
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
            let heading = format!("{}: {}", experiment.name, experiment.title);
            markdown.push_str(&result.figure.markdown(&heading));
            tally.add(&result.figure);
            written.push(experiment.name);
        }
        say!("{tally}");
        // After everything is written: the user reads an unexpected row in its file.
        if let Some(path) = &self.markdown {
            std::fs::write(path, self.document(&settings, &tally, &markdown))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.strict && !tally.unexpected().is_empty() {
            bail!(
                "{} verdicts are not the recorded ones: {}",
                tally.unexpected().len(),
                tally.unexpected().join("; ")
            );
        }
        Ok(())
    }

    /// Runs one experiment, and again under other parameters if these are wanted.
    fn reproduce(
        &self,
        experiment: &Experiment,
        settings: &Settings,
    ) -> Result<Reproduction, ExperimentError> {
        let mut result = (experiment.run)(settings)?;
        if self.sensitivity {
            for parameters in experiment.variations {
                let mut other = settings.clone();
                for option in *parameters {
                    other.set.push(option.parse::<Setting>()?);
                }
                let other = (experiment.run)(&other)?;
                result.figure.add_sensitivity(parameters, &other.figure);
            }
        }
        result.figure.notes.extend(take_run_count().remarks());
        Ok(result)
    }

    /// The document of all tables, with the command that writes it.
    fn document(&self, settings: &Settings, tally: &Tally, tables: &str) -> String {
        let form = if self.quick { " --quick" } else { "" };
        let sensitivity = if self.sensitivity {
            " --sensitivity"
        } else {
            ""
        };
        let set = self.set.iter();
        let set: String = set.map(|set| format!(" --set '{set}'")).collect();
        let (first, count) = (settings.first_seed, settings.seed_count);
        let paper = self.paper.name;
        format!(
            "# Results of the simulated fabric: {paper}\n\nWritten by:\n\n```sh\nsimfabric \
             reproduce {paper} {}{form}{sensitivity}{set} \\\n    --seed {first} --seeds {count} \
             --out DIR --markdown FILE\n```\n\n[reproduction.md](reproduction.md) defines the \
             verdicts. Commit {commit}.\n\n**{tally}**\n{tables}",
            self.experiments.join(" "),
            commit = commit(),
        )
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
fn watched<R: Send>(name: &str, stop: &StopRequest, work: impl FnOnce() -> R + Send) -> Result<R> {
    let style =
        ProgressStyle::with_template("{prefix:>2} {bar:20} {percent:>3} %  {eta} left  {msg}")?;
    let bar = ProgressBar::new(0)
        .with_style(style)
        .with_prefix(name.to_owned());
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
