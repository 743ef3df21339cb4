//! An allocator whose engine is broken: it takes every link for half as large again, and its prices
//! hardly move.
//!
//! The alerts `RatewrightLinkOverAllocated` and `RatewrightFarFromOptimum` are about defects, which
//! no input brings about in a sound engine that has a core. `make test-monitoring` runs this
//! allocator to see them fire. Its argument is the configuration file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ratewright_allocator::engine::{
    EngineConfig, EngineError, EngineEvent, IterationReport, Optimality, RateEngine, RateUpdate,
    ReferenceEngine, StepRule,
};
use ratewright_allocator::service::run::{self, with_causes};
use ratewright_allocator::service::runtime::engine_host::EngineFactory;

/// Factor by which the engine overrates links.
const FACTOR: f64 = 1.5;

/// Step of the prices: none to speak of.
const GAMMA: f64 = 1e-9;

/// The reference engine, with links that are too large.
struct BrokenEngine(ReferenceEngine);

impl RateEngine for BrokenEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        self.0.apply(event)
    }

    fn iterate(&mut self) -> IterationReport {
        self.0.iterate()
    }

    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        self.0.drain_updates(sink);
    }

    fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        self.0.link_loads(loads_bps);
    }

    fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
        self.0.link_capacities(capacities_bps);
        for capacity_bps in capacities_bps {
            *capacity_bps /= FACTOR;
        }
    }

    fn optimality(&self) -> Optimality {
        self.0.optimality()
    }

    fn flow_count(&self) -> usize {
        self.0.flow_count()
    }
}

fn broken_engine() -> EngineFactory {
    Arc::new(|config, _, capacities_bps| {
        let settings = EngineConfig {
            gamma: GAMMA,
            step_rule: StepRule::Ned,
            max_flows: config.limits.max_flows as usize,
            ..EngineConfig::default()
        };
        let larger: Vec<f64> = capacities_bps.iter().map(|bps| bps * FACTOR).collect();
        let engine = ReferenceEngine::new(settings, &larger)?;
        Ok(Box::new(BrokenEngine(engine)))
    })
}

fn main() -> ExitCode {
    let Some(config) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: broken_engine FILE");
        return ExitCode::FAILURE;
    };
    match run::run(&config, broken_engine()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("broken_engine: {}", with_causes(&error));
            ExitCode::FAILURE
        }
    }
}
