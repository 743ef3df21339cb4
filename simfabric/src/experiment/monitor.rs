//! How far the experiments of this process are, and a way to stop them.
//!
//! An experiment says which simulated time its runs will take before it starts them
//! ([`Monitor::expect`]); its runs report what they have done of it, and end early, with
//! [`ExperimentError::Stopped`], once somebody has asked for that. One monitor serves the
//! whole process: its experiments are one piece of work to whoever waits for them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::ExperimentError;
use crate::run::{EndReason, Sim};
use crate::time::{Span, Time};
use crate::transport::Transport;
use crate::workload::Arrivals;

/// Counters that runs on several threads add to.
#[derive(Debug)]
pub struct Monitor {
    expected_ns: AtomicU64,
    done_ns: AtomicU64,
    packet_hops: AtomicU64,
    stopped: AtomicBool,
}

/// The process's monitor.
pub static MONITOR: Monitor = Monitor {
    expected_ns: AtomicU64::new(0),
    done_ns: AtomicU64::new(0),
    packet_hops: AtomicU64::new(0),
    stopped: AtomicBool::new(false),
};

/// How far experiments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MonitorProgress {
    /// Simulated nanoseconds that all runs announced so far take together.
    pub expected_ns: u64,
    /// Of those, how many are done.
    pub done_ns: u64,
    /// Packets that left a queue onto a link and arrived.
    pub packet_hops: u64,
}

impl Monitor {
    /// How far experiments are.
    #[must_use]
    pub fn progress(&self) -> MonitorProgress {
        MonitorProgress {
            expected_ns: self.expected_ns.load(Relaxed),
            done_ns: self.done_ns.load(Relaxed),
            packet_hops: self.packet_hops.load(Relaxed),
        }
    }

    /// Ends all runs soon, and lets none begin. There is no way back.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Announces runs that take so much simulated time together.
    pub fn expect(&self, runs: usize, each: Span) {
        let span = each.0 / 1_000 * runs as u64;
        self.expected_ns.fetch_add(span, Relaxed);
    }

    /// Counts simulated time that something else than [`Monitor::run_until`] has run.
    ///
    /// # Errors
    /// If somebody has asked to stop.
    pub fn done(&self, span: Span) -> Result<(), ExperimentError> {
        self.done_ns.fetch_add(span.0 / 1_000, Relaxed);
        if self.stopped.load(Relaxed) {
            return Err(ExperimentError::Stopped);
        }
        Ok(())
    }

    /// Runs until a time, or until nothing is left to happen.
    ///
    /// # Errors
    /// If the workload's flows are out of order or lead nowhere, or if somebody has asked to stop.
    pub fn run_until<T: Transport, A: Arrivals>(
        &self,
        sim: &mut Sim<T, A>,
        end: Time,
    ) -> Result<(), ExperimentError> {
        let begin = sim.progress();
        let (mut at, mut hops) = (begin.now, begin.packet_hops);
        let ended = sim.run_with(end, |progress| {
            let now = progress.now.min(end);
            self.done_ns.fetch_add(now.since(at).0 / 1_000, Relaxed);
            self.packet_hops
                .fetch_add(progress.packet_hops - hops, Relaxed);
            (at, hops) = (now, progress.packet_hops);
            if self.stopped.load(Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if ended == EndReason::Stopped {
            return Err(ExperimentError::Stopped);
        }
        self.packet_hops
            .fetch_add(sim.progress().packet_hops - hops, Relaxed);
        self.done(end.since(at))
    }
}
