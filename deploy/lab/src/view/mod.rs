//! What the user sees while a scenario runs: lines ([`plain`]) or a live picture ([`tui`]). Either asks
//! the lab to end once nobody can see it any more ([`output`]).

pub mod plain;
pub mod tui;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indexmap::IndexMap;
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use crate::lab::Cancel;
use crate::lab::options::LabOptions;
use crate::measure::recording::{Recording, Shared};
use crate::measure::stats::jain;
use crate::traffic::protocol::BIN_NS;

/// What the scenario tells the view.
#[derive(Debug)]
pub struct Live {
    /// `ratewright-lab fairness`, link speed and so on.
    pub title: String,
    stage: Mutex<Stage>,
}

/// Where the scenario is.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// Phase's name.
    pub phase: String,
    /// The phase's measurements.
    pub recording: Option<Shared>,
    /// Messages with their times.
    pub log: Vec<(u64, String)>,
}

impl Live {
    /// For a run.
    #[must_use]
    pub fn new(options: &LabOptions) -> Live {
        let title = format!(
            "ratewright-lab {} · links {} Mbit/s · buffers {} KiB",
            options.scenario.name(),
            options.link_mbps(),
            options.buffer_kib
        );
        Live {
            title,
            stage: Mutex::default(),
        }
    }

    /// A message.
    pub fn say(&self, text: impl Into<String>) {
        self.stage().log.push((now_ns(), text.into()));
    }

    /// A phase begins.
    pub fn phase(&self, name: &str, recording: &Shared) {
        let mut stage = self.stage();
        stage.log.push((now_ns(), name.to_owned()));
        stage.phase = name.to_owned();
        stage.recording = Some(recording.clone());
    }

    /// Where the scenario is.
    pub fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rates of one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moment {
    /// Label and payload bit/s of every active flow; flows of one label are summed up.
    pub flows: Vec<(String, f64)>,
    /// Share of the bottleneck in use.
    pub utilization: f64,
    /// Jain's index of the active flows.
    pub jain: Option<f64>,
}

/// Sinks report every 50 ms: what is older has arrived.
const REPORT_LAG_NS: u64 = 80 * NS_PER_MS;
const MOMENT_NS: u64 = 200 * NS_PER_MS;

/// The rates a moment ago, over 200 ms.
#[must_use]
pub fn moment(recording: &Recording, now_ns: u64) -> Moment {
    let to = now_ns.saturating_sub(REPORT_LAG_NS) / BIN_NS * BIN_NS;
    let from = to.saturating_sub(MOMENT_NS);
    let active = recording.flows.values().filter(|f| {
        f.started_ns.is_some_and(|at| at < to)
            && f.ended_ns.is_none_or(|at| at > from)
            && f.failed.is_none()
    });
    let mut flows: IndexMap<&str, f64> = IndexMap::new();
    for flow in active {
        *flows.entry(&flow.label).or_insert(0.0) += flow.rate_bps(from, to);
    }
    let rates: Vec<f64> = flows.values().copied().collect();
    Moment {
        utilization: recording
            .ports
            .first()
            .map_or(0.0, |port| port.utilization(from, to)),
        jain: (rates.len() >= 2).then(|| jain(&rates)),
        flows: flows
            .into_iter()
            .map(|(label, rate)| (label.to_owned(), rate))
            .collect(),
    }
}

/// The pipe or terminal that the lab writes to is closed: it ends, and says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NobodyListens;

impl std::fmt::Display for NobodyListens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody listens to standard output any more")
    }
}

impl std::error::Error for NobodyListens {}

/// How long the view's thread may take to end. One that reads from a terminal which is gone may not.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The view's thread.
#[derive(Debug)]
pub struct View {
    stop: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl View {
    /// Starts the live picture, or lines if `plain` or standard output is no terminal.
    #[must_use]
    pub fn start(live: &Arc<Live>, cancel: &Cancel, plain: bool) -> View {
        let stop = Arc::new(AtomicBool::new(false));
        let deaf = Arc::new(AtomicBool::new(false));
        let (live, cancel, stopped) = (Arc::clone(live), cancel.clone(), Arc::clone(&stop));
        let nobody_listens = Arc::clone(&deaf);
        let terminal = !plain && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let show = move || {
            let picture = terminal.then(|| tui::show(&live, &cancel, &stopped));
            if let None | Some(Err(_)) = picture
                && plain::show(&live, &stopped).is_err()
            {
                nobody_listens.store(true, Ordering::Relaxed);
                cancel.set();
            }
        };
        View {
            stop,
            deaf,
            thread: std::thread::Builder::new()
                .name("view".into())
                .spawn(show)
                .ok(),
        }
    }

    /// Ends the view and gives the terminal back.
    ///
    /// # Errors
    /// When the view ended because nobody could see it.
    pub fn finish(mut self) -> Result<(), NobodyListens> {
        self.end();
        if self.deaf.load(Ordering::Relaxed) {
            return Err(NobodyListens);
        }
        Ok(())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let until = now_ns() + END_PATIENCE.as_nanos() as u64;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && now_ns() < until {
                ratewright_cli::clock::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.end();
    }
}
