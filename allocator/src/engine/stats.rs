//! Figures that an engine's driver publishes.

use std::sync::Arc;

use super::{IterationReport, Optimality};

/// Load of a link after the last iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct LinkLoad {
    /// The link.
    pub link: u32,
    /// Sum of the rates over it, in bit/s.
    pub load_bps: f64,
    /// Derated capacity, in bit/s.
    pub capacity_bps: f64,
    /// Price: marginal utility of one Gbit/s more; 0 where the engine does not tell.
    pub price: f64,
}

impl LinkLoad {
    /// Load over capacity; 0 for a link without capacity, over which nothing is sent.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        if self.capacity_bps > 0.0 {
            self.load_bps / self.capacity_bps
        } else {
            0.0
        }
    }
}

/// Exceptions from the engine's fast path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exceptions {
    /// Flows on the scalar path because their utility is not log.
    pub flows_of_other_utilities: usize,
    /// Flows on the scalar path because their paths have links that fit no table.
    pub flows_on_other_paths: usize,
    /// Flows on the scalar path because rows have no space: their hosts have very many flows, or
    /// all rows are in use.
    pub flows_without_room: usize,
    /// Prices that were not a number and were reset, since the engine began.
    pub price_resets: u64,
}

/// A snapshot of an engine and its driver. Counters start at 0 with the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Iterations so far.
    pub iterations: u64,
    /// Events applied so far.
    pub events_applied: u64,
    /// Starts refused because the flow table was full.
    pub events_refused_full: u64,
    /// Ends and reroutes of flows that are not known.
    pub events_refused_unknown_flow: u64,
    /// Events refused for a bad number, path, link or class.
    pub events_refused_invalid: u64,
    /// Rate updates handed to the ring so far.
    pub updates_sent: u64,
    /// Rate updates that a newer one of the same flow replaced while the ring was full.
    pub updates_superseded: u64,
    /// Flows whose newest rate waits for space in the ring.
    pub updates_waiting: usize,
    /// Duration of the last iteration, events included.
    pub last_iteration_ns: u64,
    /// Median duration of recent iterations.
    pub p50_iteration_ns: u64,
    /// 99th percentile of the duration of recent iterations.
    pub p99_iteration_ns: u64,
    /// Report of the last iteration.
    pub last_report: IterationReport,
    /// Flows in the table.
    pub flows: usize,
    /// Flows on the scalar path by reason, and price resets.
    pub exceptions: Exceptions,
    /// Distance from the optimum, measured at most once a second and when the engine settles.
    pub optimality: Optimality,
    /// The most loaded links by utilisation, fullest first.
    pub top_links: Vec<LinkLoad>,
    /// All links by index, as of the last scan.
    pub links: Arc<[LinkLoad]>,
    /// No rate moves, and the thread sleeps until the next event.
    pub settled: bool,
}
