//! The state of a run that the view shows, and the rates of a moment.

use std::sync::{Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use crate::measure::recording::{Recording, SharedRecording};
use crate::measure::stats::jain;
use crate::options::LabOptions;
use crate::traffic::protocol::BIN_NS;

/// State of a run that the scenario shares with the view.
#[derive(Debug)]
pub struct Live {
    /// `ratewright-lab fairness`, link speed and so on.
    pub title: String,
    stage: Mutex<Stage>,
}

/// Stage of the scenario.
#[derive(Debug, Clone, Default)]
pub struct Stage {
    /// Phase's name.
    pub phase: String,
    /// The phase's measurements.
    pub recording: Option<SharedRecording>,
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
    pub fn phase(&self, name: &str, recording: &SharedRecording) {
        let mut stage = self.stage();
        stage.log.push((now_ns(), name.to_owned()));
        stage.phase = name.to_owned();
        stage.recording = Some(recording.clone());
    }

    /// Stage of the scenario.
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
    // Down to a bin's border, on which rates are exact.
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
        // One flow alone is fair by definition.
        jain: (rates.len() >= 2).then(|| jain(&rates)),
        flows: flows
            .into_iter()
            .map(|(label, rate)| (label.to_owned(), rate))
            .collect(),
    }
}
