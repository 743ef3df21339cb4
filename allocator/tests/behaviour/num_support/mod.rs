//! Random problems on real topologies, for the tests of `num` and `engine`, and of the optimisers
//! that measurements compare.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary takes what it needs of this module"
)]

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::{FlowNumber, FlowSpec, LinkPath};
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, Utility, UtilityKind};
use ratewright_allocator::num::{
    FNorm, FlowArrays, Normalizer, Optimizer, Problem, RATE_UNIT_BPS, RateLimit, SafeguardedNed,
    optimality, path_capacity,
};
use ratewright_topology::{HostId, PathChoice, ThreeTierClos, Topology, TwoTierClos};

/// Makes a generator of a fixed algorithm, so that a seed gives one problem on every machine.
pub fn rng(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

/// Builds four racks of four hosts at 10 Gbit/s, two spines, leaf–spine links of `fabric_bps`.
pub fn two_tiers(fabric_bps: u64) -> Topology {
    let shape = TwoTierClos {
        fabric_capacity_bps: fabric_bps,
        ..TwoTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// Builds two pods of two racks of four hosts at 10 Gbit/s, fabric and core links of `fabric_bps`.
pub fn three_tiers(fabric_bps: u64) -> Topology {
    let shape = ThreeTierClos {
        fabric_capacity_bps: fabric_bps,
        core_capacity_bps: fabric_bps,
        ..ThreeTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// Returns the capacity of every link, in bit/s.
pub fn capacities_bps(topology: &Topology) -> Vec<f64> {
    topology
        .links()
        .iter()
        .map(|l| topology.effective_capacity_bps(l.id) as f64)
        .collect()
}

/// Returns the links between two different random hosts, on a random path.
pub fn random_path(topology: &Topology, rng: &mut Pcg64Mcg) -> LinkPath {
    let hosts = topology.hosts().len() as u32;
    let src = rng.random_range(0..hosts);
    // An offset of at least 1 never draws the source again.
    let dst = (src + rng.random_range(1..hosts)) % hosts;
    let choice = PathChoice::Hash(rng.random());
    let path = topology
        .path(HostId(src), HostId(dst), choice)
        .expect("all links are up");
    path.iter().map(|link| link.0).collect()
}

/// Makes a flow of class 0 and weight 1 without a demand.
pub fn flow(key: u32, links: &[u32]) -> FlowSpec {
    FlowSpec {
        number: FlowNumber::first(key),
        links: links.iter().copied().collect(),
        class: 0,
        weight: 1.0,
        demand_bps: f64::INFINITY,
    }
}

/// Owns what a [`Problem`] borrows.
pub struct Instance {
    pub capacities: Vec<f64>,
    pub classes: ClassTable,
    pub paths: Vec<LinkPath>,
    pub class_ids: Vec<u8>,
    pub weights: Vec<f64>,
    /// Demands in Gbit/s.
    pub demands: Vec<f64>,
    pub limits: Vec<RateLimit>,
}

impl Instance {
    /// Makes the problem of these flows over links of these capacities (in bit/s), in internal
    /// units.
    pub fn new(classes: ClassTable, capacities_bps: &[f64], specs: &[FlowSpec]) -> Self {
        let capacities: Vec<f64> = capacities_bps.iter().map(|c| c / RATE_UNIT_BPS).collect();
        let mut instance = Self {
            capacities,
            classes,
            paths: Vec::new(),
            class_ids: Vec::new(),
            weights: Vec::new(),
            demands: Vec::new(),
            limits: Vec::new(),
        };
        for spec in specs {
            let class = instance
                .classes
                .get(spec.class)
                .expect("a defined class")
                .clone();
            let weight = class.weight * spec.weight;
            // The class's bound limits a flow as a demand of its own would.
            let demand = spec.demand_bps.min(class.max_rate_bps) / RATE_UNIT_BPS;
            let capacity = path_capacity(&spec.links, &instance.capacities);
            instance.paths.push(spec.links.clone());
            instance.class_ids.push(spec.class);
            instance.weights.push(weight);
            instance.demands.push(demand);
            instance
                .limits
                .push(RateLimit::new(&class.utility, weight, demand, capacity));
        }
        instance
    }

    pub fn problem(&self) -> Problem<'_> {
        Problem {
            capacities: &self.capacities,
            classes: &self.classes,
            flows: FlowArrays {
                paths: &self.paths,
                classes: &self.class_ids,
                weights: &self.weights,
                limits: &self.limits,
            },
        }
    }

    /// Computes Σ w U(x).
    pub fn utility(&self, rates: &[f64]) -> f64 {
        let class = |s: usize| {
            self.classes
                .get(self.class_ids[s])
                .expect("a defined class")
        };
        rates
            .iter()
            .enumerate()
            .map(|(s, &x)| self.weights[s] * class(s).utility.value(x))
            .sum()
    }
}

/// A user's utility: log(1 + 10 x).
#[derive(Debug)]
struct ShiftedLog;

impl Utility for ShiftedLog {
    fn value(&self, rate: f64) -> f64 {
        (10.0 * rate).ln_1p()
    }
    fn marginal(&self, rate: f64) -> f64 {
        10.0 / (1.0 + 10.0 * rate)
    }
    fn rate_at(&self, price: f64) -> f64 {
        (1.0 / price - 0.1).max(0.0)
    }
    fn rate_slope_at(&self, price: f64) -> f64 {
        if price < 10.0 {
            -1.0 / (price * price)
        } else {
            0.0
        }
    }
}

/// Classes 0, 1, 2: log, α = 2, a user's utility.
pub fn mixed_classes() -> ClassTable {
    let class = |utility| Class {
        utility,
        ..Class::default()
    };
    let alpha = AlphaFair::new(2.0).expect("a valid α");
    ClassTable::new([
        (0, Class::default()),
        (1, class(UtilityKind::Alpha(alpha))),
        (2, class(UtilityKind::Custom(Arc::new(ShiftedLog)))),
    ])
    .expect("valid classes")
}

/// Makes random flows of classes 0 to `kinds` − 1 over four racks of four hosts.
pub fn mixed_instance(seed: u64, flows: u32, kinds: u8) -> Instance {
    let topology = two_tiers(15_000_000_000);
    let mut rng = rng(seed);
    let specs: Vec<FlowSpec> = (0..flows)
        .map(|key| FlowSpec {
            weight: [1.0, 2.0, 4.0][rng.random_range(0..3)],
            class: rng.random_range(0..kinds),
            ..flow(key, &random_path(&topology, &mut rng))
        })
        .collect();
    Instance::new(mixed_classes(), &capacities_bps(&topology), &specs)
}

/// Returns the optimal rates and their prices, certified by the duality gap.
pub fn optimum(instance: &Instance) -> (Vec<f64>, Vec<f64>) {
    let mut optimizer = SafeguardedNed::new(0.4, instance.capacities.len());
    let mut rates = vec![0.0; instance.paths.len()];
    for _ in 0..50_000 {
        if optimizer.iterate(&instance.problem(), &mut rates) < 1e-11 {
            break;
        }
    }
    let mut normalized = vec![0.0; rates.len()];
    FNorm::default().normalize(&instance.problem(), &rates, &mut normalized);
    let measured = optimality::measure(
        &instance.problem(),
        optimizer.prices(),
        &normalized,
        &mut Vec::new(),
    );
    // D(p) bounds the utility of any feasible rates: no other optimiser is needed as a judge.
    assert!(measured.relative_duality_gap < 1e-9, "{measured:?}");
    (rates, optimizer.prices().to_vec())
}

/// Returns the largest relative difference of two rate vectors; NaN if one is.
pub fn largest_error(rates: &[f64], truth: &[f64]) -> f64 {
    rates.iter().zip(truth).fold(0.0, |m, (a, b)| {
        let error = (a / b - 1.0).abs();
        // `f64::max` would drop a NaN, and with it the mistake.
        if error > m || error.is_nan() {
            error
        } else {
            m
        }
    })
}

/// Returns the largest ratio of load to capacity; infinite for a loaded link without capacity.
pub fn fullest(problem: &Problem<'_>, rates: &[f64]) -> f64 {
    let mut loads = vec![0.0; problem.capacities.len()];
    problem.loads(rates, &mut loads);
    loads
        .iter()
        .zip(problem.capacities)
        .fold(0.0, |m, (&load, &capacity)| {
            // A failed link without flows is 0 / 0, not over-allocated.
            if load == 0.0 {
                m
            } else {
                f64::max(m, load / capacity)
            }
        })
}
