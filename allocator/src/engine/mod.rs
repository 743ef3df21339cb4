//! The engine: what turns flowlet starts and ends into rates.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the vocabulary: events in, rate updates out, the [`RateEngine`] trait |
//! | `config` | how the engine allocates, and which settings make sense |
//! | `error` | what an event can be refused for |
//! | `reference` | [`ReferenceEngine`]: f64 NED + F-NORM + threshold filter, single-threaded |
//! | `flows` | its flow table: dense arrays, O(1) start and end |
//! | `parallel` | the engine for many flows and cores: single precision, vector kernels, workers |
//! | `thread` | the engine on its own OS thread, fed and drained by rings |
//! | `stats` | what that thread publishes about itself |
//! | `scan` | a look at all flows, a few at a time |
//! | `affinity`, `clock` | pinning a thread; reading the monotonic clock |
//!
//! An engine is driven by [`RateEngine::apply`] (cheap, O(1) per event) and [`RateEngine::iterate`]
//! (one step of the optimiser over everything). Rates leave through [`RateEngine::drain_updates`],
//! and only those that moved by more than the threshold since they last left (flowtune §5.3.2).

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use ratewright_topology::Topology;

mod affinity;
mod clock;
mod config;
mod error;
pub mod parallel;
mod reference;
mod reference_flows;
mod scan;
mod stats;
pub mod thread;

#[cfg(test)]
mod tests;

pub use affinity::pin_current_thread;
pub use config::{EngineConfig, StepRule};
pub use error::EngineError;
pub use reference::ReferenceEngine;
pub use scan::Scan;
pub use stats::{EngineStats, Exceptions, LinkLoad};

pub use crate::num::optimality::Optimality;

/// The longest path an engine takes: three links up and three down (three-tier Clos).
pub const MAX_PATH_LINKS: usize = crate::num::MAX_PATH_LINKS;

/// The directed links of a flow, as indices into the engine's capacity vector.
pub type LinkPath = ArrayVec<u32, MAX_PATH_LINKS>;

/// Names one flowlet in the whole allocator: `(session << 32) | flow id`.
///
/// The flow id carries a generation in its high bits, so a key is not reused soon after its
/// flowlet ended, and an update that is still on its way for an ended flowlet finds no taker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey(pub u64);

impl FlowKey {
    /// The key of flow `flow_id` of session `session`.
    #[must_use]
    pub const fn new(session: u32, flow_id: u32) -> Self {
        Self(((session as u64) << 32) | flow_id as u64)
    }

    /// The session that owns the flow.
    #[must_use]
    pub const fn session(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The flow's id within its session.
    #[must_use]
    pub const fn flow_id(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.session(), self.flow_id())
    }
}

/// Everything the engine has to know about a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSpec {
    /// Its name.
    pub key: FlowKey,
    /// The links it crosses, source to destination; at least one.
    pub links: LinkPath,
    /// Index into the engine's class table.
    pub class: u8,
    /// Multiplies the class's weight; finite and above zero.
    pub weight: f64,
    /// The most the flow can use; `f64::INFINITY` if it takes whatever it gets.
    pub demand_bps: f64,
}

/// A change of the problem. Events are applied in the order in which they are given.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// A flowlet begins. If its key is already known, the new description replaces the old one.
    Start(FlowSpec),
    /// A flowlet is over.
    End(FlowKey),
    /// A flowlet takes another way from now on.
    Reroute {
        /// The flowlet.
        key: FlowKey,
        /// Its new links; at least one.
        links: LinkPath,
    },
    /// A link's capacity changed; 0 means that it failed.
    Capacity {
        /// The link.
        link: u32,
        /// Its capacity from now on.
        capacity_bps: f64,
    },
    /// A session is gone: all of its flows end.
    DropSession(u32),
    /// A new topology: every flow is forgotten (its links mean nothing any more) and prices start anew.
    Reset {
        /// The capacity of every link, by link index.
        capacities: Vec<f64>,
        /// What the links are of, if it is known: the parallel engine cuts its blocks by it. Without,
        /// it keeps its blocks if there are as many links as before, and works on every flow by
        /// itself, which is slow, if not.
        topology: Option<Arc<Topology>>,
    },
}

/// A rate that an endpoint has to hear about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateUpdate {
    /// The flow.
    pub key: FlowKey,
    /// Its rate from now on. 0 means that no usable path is left.
    pub rate_bps: f64,
}

/// What one iteration did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IterationReport {
    /// Flows that were given a rate.
    pub flows: usize,
    /// Rates that passed the threshold and wait to be drained.
    pub updates: usize,
    /// Largest |new − old| / new over all flows, after normalisation.
    pub max_relative_rate_change: f64,
    /// Largest load over capacity before normalisation: how far the optimiser overshot.
    pub max_overload: f64,
    /// The optimiser's own distance from the optimum: the largest relative excess of a link, or room
    /// left on a link that charges for it.
    pub residual: f64,
    /// Nothing is to be gained from another iteration until the next event.
    pub settled: bool,
}

/// An optimiser of rates with its flow table: what the engine thread drives.
pub trait RateEngine: Send {
    /// Changes the problem.
    ///
    /// # Errors
    /// A refused event has changed nothing.
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError>;

    /// One step of the optimiser over all flows, normalised, so that no link is over-allocated.
    fn iterate(&mut self) -> IterationReport;

    /// Between events and the iteration that follows them: hands over first rates of flows that have started,
    /// as far as they can be told without looking at the other flows. They fit the links once all flows
    /// answer the prices of now, as they do in that iteration, which tells every flow's rate as if this had
    /// not been called. Who does not call this misses nothing but time.
    fn first_rates(&mut self, _sink: &mut dyn FnMut(RateUpdate)) {}

    /// Hands over every rate that has to be told, each flow at most once, and forgets them.
    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate));

    /// Hands over so many of them at most; true if there are more. The next iteration forgets those.
    fn drain_some(&mut self, _most: usize, sink: &mut dyn FnMut(RateUpdate)) -> bool {
        self.drain_updates(sink);
        false
    }

    /// The allocated load of every link after the last iteration, in bit/s, by link index.
    fn link_loads(&self, loads_bps: &mut Vec<f64>);

    /// What may be handed out on every link (after derating), in bit/s, by link index.
    fn link_capacities(&self, capacities_bps: &mut Vec<f64>);

    /// How far the last iteration's rates are from the optimum. Costs about one iteration.
    fn optimality(&self) -> Optimality;

    /// Goes on with a survey by about so many flows, or begins one. True once all were looked at, and the survey
    /// says what was found. What flows and links are is what they are when they are looked at: a survey
    /// that events or iterations come between is as inexact as they are large.
    fn scan(&self, scan: &mut Scan, _flows: usize) -> bool {
        self.link_loads(&mut scan.loads_bps);
        scan.optimality = self.optimality();
        true
    }

    /// Flows in the table.
    fn flow_count(&self) -> usize;

    /// Flows that cost more than others, and prices that had to start anew.
    fn exceptions(&self) -> Exceptions {
        Exceptions::default()
    }
}
