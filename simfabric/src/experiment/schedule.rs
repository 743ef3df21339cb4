//! Schedule of a run under a steady load: a warm-up, a time in which the flows that start are
//! counted, and steps in which these may finish under the same load.

use super::ExperimentError;
use super::monitor::MONITOR;
use crate::results::{FlowResult, RunResults};
use crate::scheme::Run;
use crate::time::{Span, Time};

/// Schedule of a run.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Warm-up.
    pub warm_up: Span,
    /// Time in which flows that start are counted.
    pub counted: Span,
    /// Time that they have to finish after it, at most.
    pub most_drain: Span,
    /// Steps of that time.
    pub drain: Span,
}

impl Schedule {
    /// Returns the longest that a run may take.
    #[must_use]
    pub fn most(&self) -> Span {
        self.warm_up + self.counted + self.most_drain
    }

    /// Returns the end of the warm-up.
    #[must_use]
    pub fn begin(&self) -> Time {
        Time::ZERO + self.warm_up
    }

    /// Returns the time until which flows that start are counted.
    #[must_use]
    pub fn last(&self) -> Time {
        self.begin() + self.counted
    }

    /// Returns true if a flow is counted.
    #[must_use]
    pub fn counts(&self, flow: &FlowResult) -> bool {
        (self.begin()..self.last()).contains(&flow.spec.start)
    }

    /// Goes on with a run that is at [`last`](Self::last), until all counted flows have finished or
    /// their time is up.
    ///
    /// # Errors
    /// See [`MONITOR`], and if the run lost a packet.
    pub fn drain(&self, run: &mut dyn Run) -> Result<RunResults, ExperimentError> {
        let mut results = run.results();
        let mut end = self.last();
        let unfinished = |results: &RunResults| {
            let mut flows = results.flows.iter();
            flows.any(|flow| self.counts(flow) && flow.finished.is_none())
        };
        while end < self.last() + self.most_drain && unfinished(&results) {
            end += self.drain;
            MONITOR.run_until(run, end)?;
            results = run.results();
        }
        // What was announced and not needed.
        MONITOR.done((Time::ZERO + self.most()).since(end))?;
        results.conservation?;
        Ok(results)
    }
}
