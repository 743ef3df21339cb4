//! Flowlets that start as a Poisson process and drain at their allocated rates (flowtune §5.3).

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::num::{FNorm, Normalizer, Optimizer};
use ratewright_topology::TwoTierClos;

use super::flow_set::{FlowSet, FlowSetError};
use super::web;

/// Returns the paper's network: 9 racks of 16 servers at 10 Gbit/s under 4 spines, full bisection.
#[must_use]
pub fn paper_network() -> TwoTierClos {
    TwoTierClos {
        racks: 9,
        hosts_per_rack: 16,
        spines: 4,
        host_capacity_bps: 10_000_000_000,
        fabric_capacity_bps: 40_000_000_000,
        ..TwoTierClos::default()
    }
}

/// Offered load, and interval of the allocator's iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Mean load of a server's link; at 1, the offered bytes fill it exactly.
    pub load: f64,
    /// Time between two iterations.
    pub interval_ns: u64,
    /// Seed of arrivals, sizes and paths.
    pub seed: u64,
}

/// A network under a stream of flowlets, which drain at the rates of one optimiser after F-NORM.
pub struct Flowlets {
    flow_set: FlowSet,
    optimizer: Box<dyn Optimizer>,
    normalizer: FNorm,
    /// Remaining bytes by flow.
    remaining: Vec<f64>,
    rates: Vec<f64>,
    normalized: Vec<f64>,
    interval_ns: u64,
    /// Mean time between two starts anywhere.
    mean_gap_ns: f64,
    now_ns: u64,
    next_start_ns: f64,
    rng: Pcg64Mcg,
}

impl Flowlets {
    /// An empty network before its first flowlet.
    ///
    /// # Errors
    /// A network that cannot be built.
    pub fn new(
        network: &TwoTierClos,
        stream: Stream,
        make: fn(usize) -> Box<dyn Optimizer>,
    ) -> Result<Self, FlowSetError> {
        let flow_set = FlowSet::new(network)?;
        // Gbit/s is bits per nanosecond.
        let mean_bits = web::mean_bytes() * 8.0;
        let mean_gap_ns = mean_bits / (stream.load * flow_set.host_capacity());
        let optimizer = make(flow_set.links());
        Ok(Self {
            flow_set,
            optimizer,
            normalizer: FNorm::default(),
            remaining: Vec::new(),
            rates: Vec::new(),
            normalized: Vec::new(),
            interval_ns: stream.interval_ns,
            mean_gap_ns,
            now_ns: 0,
            next_start_ns: 0.0,
            rng: Pcg64Mcg::seed_from_u64(stream.seed),
        })
    }

    /// Simulates one interval: flowlets drain and new ones start, the allocator receives these
    /// events and iterates once.
    ///
    /// # Errors
    /// Hosts that cannot reach each other.
    pub fn step(&mut self) -> Result<(), FlowSetError> {
        self.drain();
        self.now_ns += self.interval_ns;
        while self.next_start_ns <= self.now_ns as f64 {
            let path = self.flow_set.random_path(&mut self.rng)?;
            self.flow_set.push(path);
            self.remaining.push(web::sample_bytes(&mut self.rng));
            let new = self.flow_set.view(self.flow_set.flows() - 1);
            self.optimizer.flow_started(&new);
            let uniform: f64 = self.rng.random();
            // An exponential gap by inversion; 1 − u is never 0, as u is below 1.
            self.next_start_ns -= self.mean_gap_ns * (1.0 - uniform).ln();
        }
        self.rates.resize(self.flow_set.flows(), 0.0);
        self.normalized.resize(self.flow_set.flows(), 0.0);
        let problem = self.flow_set.problem();
        self.optimizer.iterate(&problem, &mut self.rates);
        self.normalizer
            .normalize(&problem, &self.rates, &mut self.normalized);
        Ok(())
    }

    fn drain(&mut self) {
        // 1 Gbit/s is 1 bit per nanosecond.
        let bytes_per_gbps = self.interval_ns as f64 / 8.0;
        let mut flow = 0;
        while flow < self.remaining.len() {
            let left = &mut self.remaining[flow];
            *left -= self.normalized[flow] * bytes_per_gbps;
            if *left > 0.0 {
                flow += 1;
                continue;
            }
            // The optimiser sees the flow before its removal moves another one to its index.
            self.optimizer.flow_ended(&self.flow_set.view(flow));
            self.flow_set.swap_remove(flow);
            self.remaining.swap_remove(flow);
            self.rates.swap_remove(flow);
            self.normalized.swap_remove(flow);
        }
    }

    /// Returns the network and its flows.
    #[must_use]
    pub fn flow_set(&self) -> &FlowSet {
        &self.flow_set
    }

    /// Returns the optimiser's rates before normalisation, in Gbit/s.
    #[must_use]
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Returns the rates after F-NORM, at which flowlets drain, in Gbit/s.
    #[must_use]
    pub fn normalized(&self) -> &[f64] {
        &self.normalized
    }
}
