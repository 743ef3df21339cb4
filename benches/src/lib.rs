//! Measurements of Ratewright, behind the `ratewright-bench` program; and the networks and traffic
//! that the Criterion benchmarks and the instruction counts share.
//!
//! | module | what |
//! |---|---|
//! | [`over_allocation`] | what optimisers over-allocate, against load |
//! | [`normalizer`] | what normalisers leave of the optimal throughput, against load |
//! | [`convergence`] | how fast rates are right again after flows were replaced, by step rule |
//! | [`engine`] | how long an iteration of the parallel engine takes, part by part |
//! | [`engine_options`] | its command line |
//! | [`scaling`] | the same for Flowtune's table of sizes, by blocks and workers, with peers |
//! | [`changes`] | how long the parallel engine pauses over a change of the network |
//! | [`feeds`] | what reports of all hosts cost the allocator |
//! | [`peers`] | other ways to share a network |
//! | [`experiment`] | numeric experiments with optimisers and normalisers |
//! | [`optimizers`] | optimisers that only comparisons use |
//! | [`swarm`] | thousands of sessions with one allocator, measured |
//! | [`sweep`] | what the first two share: a run for each load and optimiser, tables over loads |
//! | [`parallel`] | the parallel engine under load, for Criterion and the instruction counts |
//! | [`start_path`] | a start's way through the allocator, for the instruction counts |

mod bytes;
pub mod changes;
pub mod convergence;
pub mod engine;
pub mod engine_options;
mod engine_traffic;
pub mod experiment;
pub mod feeds;
mod iterations;
pub mod normalizer;
pub mod optimizers;
pub mod over_allocation;
pub mod parallel;
pub mod peers;
pub mod scaling;
pub mod start_path;
pub mod swarm;
pub mod sweep;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowSpec, RateEngine, ReferenceEngine,
};
use ratewright_topology::{HostId, PathChoice, Topology, TwoTierClos};

/// A network and its number of flows, as in the paper's table of allocator speeds.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Hosts, a multiple of 16.
    pub hosts: u32,
    /// Flows between random hosts.
    pub flows: u32,
}

/// The sizes that the benchmarks run.
pub const SIZES: [Size; 3] = [
    Size {
        hosts: 384,
        flows: 3_072,
    },
    Size {
        hosts: 1_536,
        flows: 12_288,
    },
    Size {
        hosts: 4_608,
        flows: 49_152,
    },
];

/// A two-tier Clos of full bisection: racks of 16 hosts at 10 Gbit/s, 4 spines at 40 Gbit/s.
#[must_use]
pub fn clos(size: Size) -> Topology {
    let shape = TwoTierClos {
        racks: size.hosts / 16,
        hosts_per_rack: 16,
        spines: 4,
        ..TwoTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// A log flow between two random hosts on a random path.
#[must_use]
pub fn random_flow(topology: &Topology, rng: &mut Pcg64Mcg, number: FlowNumber) -> FlowSpec {
    let hosts = topology.hosts().len() as u32;
    let src = rng.random_range(0..hosts);
    let dst = (src + rng.random_range(1..hosts)) % hosts;
    let path = topology
        .path(HostId(src), HostId(dst), PathChoice::Hash(rng.random()))
        .expect("all links are up");
    FlowSpec {
        number,
        links: path.iter().map(|link| link.0).collect(),
        class: 0,
        weight: 1.0,
        demand_bps: f64::INFINITY,
    }
}

/// A seeded generator: the same traffic in every run.
#[must_use]
pub fn rng() -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(1)
}

/// The reference engine with all flows of that size, after 200 iterations.
#[must_use]
pub fn warm_engine(topology: &Topology, size: Size) -> ReferenceEngine {
    let capacities: Vec<f64> = topology
        .links()
        .iter()
        .map(|l| topology.effective_capacity_bps(l.id) as f64)
        .collect();
    let mut engine =
        ReferenceEngine::new(EngineConfig::default(), &capacities).expect("valid settings");
    let mut rng = rng();
    for flow in 0..size.flows {
        let spec = random_flow(topology, &mut rng, FlowNumber::first(flow));
        engine
            .apply(EngineEvent::Start(spec))
            .expect("a valid flow");
    }
    for _ in 0..200 {
        engine.iterate();
        engine.drain_updates(&mut |_| {});
    }
    engine
}
