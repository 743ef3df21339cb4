//! Progress of this process's experiments, and a request to stop them.
//!
//! A [sweep](super::sweep) announces the simulated time of its runs before it starts them
//! ([`Monitor::expect`]). Runs report the time that they have done, and end early, with
//! [`ExperimentError::Stopped`], after [`Monitor::stop`]. One monitor serves the whole process,
//! because all its experiments share one progress bar and one Ctrl-C.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::ExperimentError;
use crate::run::EndReason;
use crate::scheme::Run;
use crate::time::{Span, Time};

/// Counters of all runs, which several threads add to.
#[derive(Debug)]
pub struct Monitor {
    expected_ns: AtomicU64,
    done_ns: AtomicU64,
    packet_hops: AtomicU64,
    stopped: AtomicBool,
    closed: AtomicBool,
}

/// The process's monitor.
pub static MONITOR: Monitor = Monitor {
    expected_ns: AtomicU64::new(0),
    done_ns: AtomicU64::new(0),
    packet_hops: AtomicU64::new(0),
    stopped: AtomicBool::new(false),
    closed: AtomicBool::new(false),
};

/// A snapshot of a monitor's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MonitorProgress {
    /// Simulated nanoseconds of all runs announced so far.
    pub expected_ns: u64,
    /// Simulated nanoseconds that are done.
    pub done_ns: u64,
    /// Packets that left a queue onto a link and arrived.
    pub packet_hops: u64,
}

impl Monitor {
    /// Reads the counters.
    #[must_use]
    pub fn progress(&self) -> MonitorProgress {
        // Relaxed: the counters are shown to a person and nothing else is published through them.
        MonitorProgress {
            expected_ns: self.expected_ns.load(Relaxed),
            done_ns: self.done_ns.load(Relaxed),
            packet_hops: self.packet_hops.load(Relaxed),
        }
    }

    /// Ends all runs soon, and lets none begin, for the rest of the process.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Lets no run begin; those that have begun go on.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Returns true after [`Monitor::close`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Announces a run of a simulated time.
    pub fn expect(&self, time: Span) {
        self.expected_ns.fetch_add(time.0 / 1_000, Relaxed);
    }

    /// Counts simulated time of a run that does not go through [`Monitor::run_until`].
    ///
    /// # Errors
    /// After [`Monitor::stop`].
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
    /// If the workload's flows are out of order or lead nowhere, and after [`Monitor::stop`].
    pub fn run_until(&self, sim: &mut dyn Run, end: Time) -> Result<(), ExperimentError> {
        let begin = sim.progress();
        // A run may come here in parts, so only what is new since the last report counts.
        let (mut at, mut hops) = (begin.now, begin.packet_hops);
        let ended = sim.run_with(end, &mut |progress| {
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
        // A run that has nothing left to do ends before `end`; its bar must fill all the same.
        self.packet_hops
            .fetch_add(sim.progress().packet_hops - hops, Relaxed);
        self.done(end.since(at))
    }
}
