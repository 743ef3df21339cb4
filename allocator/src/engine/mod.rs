//! The engine: turns flowlet starts and ends into rates.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the vocabulary: events in, rate updates out, the [`RateEngine`] trait |
//! | `config` | settings of the allocation, and their bounds |
//! | `error` | reasons for which an event is refused |
//! | `flow_number` | numbers of flows, and who has them |
//! | `reference`, `reference_flows` | [`ReferenceEngine`]: f64 NED, F-NORM and threshold filter on one thread; its flows |
//! | `parallel` | the engine for many flows and cores: single precision, vector kernels, workers |
//! | `driver` | what the thread that drives an engine keeps: rates that wait, figures |
//! | `stats` | figures that this thread publishes |
//! | `duration_histogram` | durations in buckets |
//! | `scan` | an incremental scan of all flows |
//! | `affinity`, `clock` | pinning of threads; the monotonic clock |
//!
//! A driver calls [`RateEngine::apply`] per event (O(1)) and [`RateEngine::iterate`] (one step of
//! the optimiser over all flows). Rates leave through [`RateEngine::drain_updates`], and only those
//! that moved by more than the threshold since they were last notified (flowtune §5.3.2).

use std::sync::Arc;

use ratewright_topology::Topology;

mod affinity;
mod clock;
mod config;
pub mod driver;
mod duration_histogram;
mod error;
mod flow_number;
pub mod parallel;
mod reference;
mod reference_flows;
mod scan;
mod stats;

#[cfg(test)]
mod tests;

pub use affinity::pin_current_thread;
pub use config::{EngineConfig, StepRule};
pub use duration_histogram::{DurationFigures, DurationHistogram};
pub use error::EngineError;
pub use flow_number::{FlowNumber, FlowNumbers};
pub use reference::ReferenceEngine;
pub use scan::Scan;
pub use stats::{EngineStats, Exceptions, LinkLoad};

pub use crate::num::optimality::Optimality;

pub use crate::num::{LinkPath, MAX_PATH_LINKS};

/// Description of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSpec {
    /// Number of the flow.
    pub number: FlowNumber,
    /// Links from source to destination; at least one.
    pub links: LinkPath,
    /// Index into the engine's class table.
    pub class: u8,
    /// Factor on the class's weight; finite and above zero.
    pub weight: f64,
    /// Largest rate that the flow can use; `f64::INFINITY` if there is none.
    pub demand_bps: f64,
}

/// A change of the problem. Events are applied in the order in which they are given.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// A flowlet begins. A known number takes the new description.
    Start(FlowSpec),
    /// A flowlet is over.
    End(FlowNumber),
    /// A flowlet takes another route.
    Reroute {
        /// The flowlet.
        number: FlowNumber,
        /// Its new links; at least one.
        links: LinkPath,
    },
    /// A link's capacity changed; 0 means that it failed.
    Capacity {
        /// The link.
        link: u32,
        /// The new capacity.
        capacity_bps: f64,
    },
    /// Flows of a session that is gone end. Those that the engine does not have are passed over.
    EndAll(Vec<FlowNumber>),
    /// A new topology: the engine forgets every flow, whose links mean nothing any more, and resets
    /// prices.
    Reset {
        /// Capacities by link index.
        capacities: Vec<f64>,
        /// Topology of the links, if known: the parallel engine cuts its blocks by it. Without one
        /// it keeps its blocks if the number of links is unchanged. Otherwise every flow takes the
        /// scalar path, which is slow.
        topology: Option<Arc<Topology>>,
    },
}

/// A rate to notify an endpoint of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateUpdate {
    /// The flow.
    pub number: FlowNumber,
    /// Its new rate. 0 means that no usable path is left.
    pub rate_bps: f64,
}

/// Report of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IterationReport {
    /// Flows that have a rate.
    pub flows: usize,
    /// Rates that passed the threshold and wait to be drained.
    pub updates: usize,
    /// Largest |new − old| / new over all flows, after normalisation.
    pub max_relative_rate_change: f64,
    /// Largest load over capacity before normalisation: how far the optimiser overshot.
    pub max_overload: f64,
    /// Distance from the optimum in the optimiser's own terms: the largest relative excess of a
    /// link, or spare capacity on a link with a price.
    pub residual: f64,
    /// Another iteration changes nothing until the next event.
    pub settled: bool,
}

/// An optimiser of rates with its flow table, as a driver sees it.
pub trait RateEngine: Send {
    /// Applies an event.
    ///
    /// # Errors
    /// The event is refused, and has changed nothing.
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError>;

    /// Makes one step of the optimiser over all flows, and normalises the rates so that no link is
    /// over-allocated.
    fn iterate(&mut self) -> IterationReport;

    /// Hands over first rates of new flows between events and the next iteration, as far as they
    /// follow without a pass over the other flows. They fit the links once all flows respond to the
    /// present prices, which they do in that iteration. It notifies every flow's rate as if this
    /// had not been called, so calling it only saves time.
    fn first_rates(&mut self, _sink: &mut dyn FnMut(RateUpdate)) {}

    /// Hands over every rate that has to be notified, each flow at most once, and forgets them.
    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate));

    /// Hands over at most `most` of them; returns true if there are more. The next iteration
    /// forgets those.
    fn drain_some(&mut self, _most: usize, sink: &mut dyn FnMut(RateUpdate)) -> bool {
        self.drain_updates(sink);
        false
    }

    /// Writes the allocated load of every link after the last iteration, in bit/s, by link index.
    fn link_loads(&self, loads_bps: &mut Vec<f64>);

    /// Writes the derated capacity of every link, in bit/s, by link index.
    fn link_capacities(&self, capacities_bps: &mut Vec<f64>);

    /// Writes the price of every link after the last iteration, by link index: the marginal utility
    /// of one Gbit/s more. Empty where the engine does not tell.
    fn link_prices(&self, prices: &mut Vec<f64>) {
        prices.clear();
    }

    /// Measures the distance of the last iteration's rates from the optimum. Costs about one
    /// iteration.
    fn optimality(&self) -> Optimality;

    /// Scans about `flows` further flows, or begins a scan. Returns true once all were scanned; the
    /// results then stand in `scan`. Flows and links count as they are when they are read, so a
    /// scan across events or iterations is as inexact as these are large.
    fn scan(&self, scan: &mut Scan, _flows: usize) -> bool {
        self.link_loads(&mut scan.loads_bps);
        scan.optimality = self.optimality();
        true
    }

    /// Number of flows in the table.
    fn flow_count(&self) -> usize;

    /// Counts of flows on the scalar path, by reason, and of price resets.
    fn exceptions(&self) -> Exceptions {
        Exceptions::default()
    }
}
