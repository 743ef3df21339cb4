//! `ratewright bench`: measures the optimisers and the engine.
//!
//! | module | what |
//! |---|---|
//! | [`over_allocation`] | what optimisers over-allocate, against load |
//! | [`normalizer`] | what normalisers leave of the optimal throughput, against load |
//! | [`convergence`] | how fast rates are right again after flows were replaced, by step rule |
//! | [`engine`] | how long an iteration of the parallel engine takes, part by part |
//! | [`scaling`] | the same for Flowtune's table of sizes, by blocks and workers, with peers |
//! | [`changes`] | how long the parallel engine pauses over a change of the network |
//! | [`peers`] | other ways to share a network |
//! | [`sweep`] | what the first two share: a run for each load and optimiser, tables over loads |
//! | [`chart`] | lines over an axis |

mod bytes;
pub mod changes;
pub mod chart;
pub mod convergence;
pub mod engine;
mod iterations;
pub mod normalizer;
pub mod over_allocation;
pub mod peers;
pub mod scaling;
pub mod sweep;

use anyhow::Result;
use clap::Subcommand;

use ratewright_allocator::num::experiment::normalizer::NormalizerFigures;
use ratewright_allocator::num::experiment::over_allocation::OverAllocation;

use changes::ChangesOptions;
use convergence::ConvergenceOptions;
use engine::EngineOptions;
use scaling::ScalingOptions;
use sweep::SweepOptions;

/// Measure the optimisers and the engine
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// What each optimiser allocates beyond capacities, against load (Flowtune, fig. 16)
    OverAllocation(SweepOptions),
    /// What U-NORM and F-NORM leave of the optimal throughput, against load (Flowtune, fig. 17)
    Normalizer(SweepOptions),
    /// How fast rates are right again after 1 % of the flows were replaced, by step rule
    Convergence(ConvergenceOptions),
    /// How long an iteration of the engine takes on this machine
    Engine(EngineOptions),
    /// How long the engine pauses over failures, other capacities and another topology
    Changes(ChangesOptions),
    /// The same for Flowtune's table of sizes, by blocks and workers, next to other solvers
    Scaling(ScalingOptions),
}

impl BenchCommand {
    /// Runs it.
    ///
    /// # Errors
    /// When options make no sense or a file cannot be written.
    pub fn run(self) -> Result<()> {
        match self {
            Self::OverAllocation(options) => sweep::run::<OverAllocation>(&options),
            Self::Normalizer(options) => sweep::run::<NormalizerFigures>(&options),
            Self::Convergence(options) => convergence::run(&options),
            Self::Engine(options) => engine::run(&options),
            Self::Changes(options) => changes::run(&options),
            Self::Scaling(options) => scaling::run(&options),
        }
    }
}
