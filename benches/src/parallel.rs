//! The parallel engine at a size of the paper's table, kept busy: what its benchmarks and the
//! counting of its instructions share.

use std::collections::VecDeque;

use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions, Simd};
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowNumbers, RateEngine,
};
use ratewright_topology::{ThreeTierClos, Topology, TwoTierClos};

use crate::{random_flow, rng};

/// Hosts of a rack: the most that a link table holds.
const RACK_HOSTS: u32 = 48;
/// Iterations before anything is measured: rows are put in order meanwhile.
const WARM_UP: u32 = 300;

/// The network of `ratewright-bench engine`: racks of 48 hosts under 16 spines.
#[must_use]
pub fn two_tiers(hosts: u32) -> Topology {
    let shape = TwoTierClos {
        racks: hosts / RACK_HOSTS,
        hosts_per_rack: RACK_HOSTS,
        spines: 16,
        ..TwoTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// Four pods of racks of 24 hosts.
#[must_use]
pub fn three_tiers(hosts: u32) -> Topology {
    let shape = ThreeTierClos {
        pods: 4,
        racks_per_pod: hosts / (4 * 24),
        hosts_per_rack: 24,
        aggs_per_pod: 4,
        cores: 16,
        ..ThreeTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// An engine with its flows, and what it takes to replace them.
pub struct Busy<'a> {
    topology: &'a Topology,
    /// The engine.
    pub engine: ParallelEngine,
    random: Pcg64Mcg,
    numbers: FlowNumbers<()>,
    /// In the order in which they started.
    active: VecDeque<FlowNumber>,
}

impl<'a> Busy<'a> {
    /// An engine of two blocks and one worker with `flows` random flows, warm.
    #[must_use]
    pub fn new(topology: &'a Topology, flows: u32, simd: Simd) -> Self {
        // Out of reach, so that the engine never rests.
        let config = EngineConfig {
            settle_tolerance: 1e-12,
            ..EngineConfig::default()
        };
        let capacities: Vec<f64> = topology
            .links()
            .iter()
            .map(|link| topology.effective_capacity_bps(link.id) as f64)
            .collect();
        let options = ParallelOptions {
            simd,
            ..ParallelOptions::default()
        };
        let layout = Layout::of(topology, 2).expect("it can be cut in two");
        let engine =
            ParallelEngine::new(config, options, layout, &capacities).expect("valid settings");
        let mut busy = Self {
            topology,
            engine,
            random: rng(),
            numbers: FlowNumbers::new(0),
            active: VecDeque::new(),
        };
        (0..flows).for_each(|_| busy.start());
        (0..WARM_UP).for_each(|_| busy.iterate());
        busy
    }

    fn start(&mut self) {
        let number = self.numbers.take(());
        let spec = random_flow(self.topology, &mut self.random, number);
        self.active.push_back(number);
        self.engine
            .apply(EngineEvent::Start(spec))
            .expect("a valid flow");
    }

    /// The oldest flow ends, another starts.
    pub fn replace(&mut self) {
        if let Some(oldest) = self.active.pop_front() {
            self.numbers.give_back(oldest);
            self.engine
                .apply(EngineEvent::End(oldest))
                .expect("a known flow");
        }
        self.start();
    }

    /// An iteration, and its output.
    pub fn iterate(&mut self) {
        self.engine.iterate();
        self.engine.drain_updates(&mut |update| {
            std::hint::black_box(update);
        });
    }
}
