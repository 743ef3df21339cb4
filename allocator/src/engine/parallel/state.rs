//! State of the engine between two calls of its driver.

use super::price_correction::Corrected;
use super::price_update::UpdateReport;
use crate::engine::RateUpdate;

/// Task of the next iteration.
///
/// ```text
///                 event                first_rates
///       Quiet ─────────────► Disturbed ───────────► Corrected ──┐ event,
///      ▲     │                ▲     │                 │   ▲     │ first_rates
///      │     │ iterate        │     │ iterate         │   └─────┘
///      │     │ (at rest)      │     ▼                 ▼ iterate
///      │     ▼          event │    Quiet, or Unnormalized (at rest)
///      └── Unnormalized ──────┘
///  iterate
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) enum EngineState {
    /// No event since the last iteration. The next one makes one pass, which normalises the last
    /// one's rates and computes new ones.
    Quiet {
        /// Iterations in a row without events and without a rate past the threshold.
        iterations: u32,
    },
    /// As `Quiet`, and prices stand still: the next iteration only normalises the last one's rates.
    Unnormalized {
        /// As in `Quiet`.
        iterations: u32,
        /// Report of the last iteration.
        report: UpdateReport,
    },
    /// Events since the last iteration, for which prices are not corrected yet.
    Disturbed,
    /// As `Disturbed`, and prices were corrected for first rates: rows are up to date but for
    /// events that came later.
    Corrected(Corrected),
}

impl EngineState {
    /// State after an event.
    pub(super) fn after_event(self) -> Self {
        match self {
            Self::Corrected(_) => self,
            Self::Quiet { .. } | Self::Unnormalized { .. } | Self::Disturbed => Self::Disturbed,
        }
    }
}

/// Way of starts and ends into the rows.
///
/// ```text
///             start, end             reroute, capacity, end of a session
///   Current ────────────► Queued ───────────────────────────────────────► AtOnce
///      ▲                    │             (from Current, too)               │
///      └────────────────────┴───────────────────────────────────────────────┘
///                           update of the rows
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowUpdates {
    /// None is queued; the next ones will be.
    Current,
    /// Some wait for the next update of the rows.
    Queued,
    /// Each is applied at once: an event since the last update needs flows in their cells.
    AtOnce,
}

/// Turns of compaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompactionTurns {
    /// Compactions in a row that found nothing to do.
    pub(super) idle: usize,
    /// Flows passed over since a table was compacted while events came.
    pub(super) flows_since: usize,
    /// [`FLOWS_PER_COMPACTION`](super::FLOWS_PER_COMPACTION), or a test's value.
    pub(super) flows_between: usize,
}

/// Updates of the last iteration that were not drained yet.
#[derive(Debug, Default)]
pub(super) struct WaitingUpdates {
    /// Those in the workers' outboxes.
    pub(super) in_outboxes: usize,
    /// Those taken out of the outboxes when an event came: the event may give a flow's number to
    /// another flow.
    pub(super) saved: Vec<RateUpdate>,
}
