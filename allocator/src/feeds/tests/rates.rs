//! Random histories before an engine: what it hands out fits the links, leaves flows the share
//! that no feed may take, and is the answer without feeds again once all is forgotten.

use ratewright_topology::PathChoice;

use super::histories::{Step, apply_to, steps};
use super::*;
use crate::engine::{EngineConfig, FlowNumber, FlowSpec, RateEngine, ReferenceEngine};

const MS: u64 = 1_000_000;

/// Flows from each of four hosts to each other: every host link is the bottleneck of some.
struct Network {
    topology: Topology,
    feeds: Feeds,
    engine: ReferenceEngine,
    paths: Vec<Vec<u32>>,
    rates_bps: Vec<f64>,
    now_ns: u64,
}

impl Network {
    fn new(config: FeedsConfig) -> Self {
        let topology = topology();
        let capacities_bps: Vec<f64> = (topology.links().iter())
            .map(|link| topology.effective_capacity_bps(link.id) as f64)
            .collect();
        let engine = ReferenceEngine::new(EngineConfig::default(), &capacities_bps);
        let mut network = Self {
            feeds: Feeds::new(config, &topology),
            engine: engine.expect("default settings"),
            topology,
            paths: Vec::new(),
            rates_bps: Vec::new(),
            now_ns: 1_000 * MS,
        };
        for (src, dst) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
            let path = network
                .topology
                .path(HostId(src), HostId(dst), PathChoice::Hash(0));
            let links: Vec<u32> = path.expect("links are up").iter().map(|l| l.0).collect();
            let started = network.engine.apply(EngineEvent::Start(FlowSpec {
                number: FlowNumber::first(network.paths.len() as u32),
                links: links.iter().copied().collect(),
                class: 0,
                weight: 1.0,
                demand_bps: f64::INFINITY,
            }));
            started.expect("a good flow");
            network.paths.push(links);
            network.rates_bps.push(0.0);
        }
        network.iterate(200);
        network
    }

    fn capacity_bps(&self, link: u32) -> f64 {
        self.topology.effective_capacity_bps(LinkId(link)) as f64
    }

    /// Iterates, and checks after each iteration that the flows' rates together fit every link.
    fn iterate(&mut self, iterations: u32) {
        for _ in 0..iterations {
            self.engine.iterate();
            let (rates_bps, feeds) = (&mut self.rates_bps, &mut self.feeds);
            self.engine.drain_updates(&mut |update| {
                if !feeds.external_mut().on_rate(&update) {
                    rates_bps[update.number.index() as usize] = update.rate_bps;
                }
            });
            let mut sums_bps: BTreeMap<u32, f64> = BTreeMap::new();
            for (path, rate_bps) in self.paths.iter().zip(&self.rates_bps) {
                for link in path {
                    *sums_bps.entry(*link).or_default() += rate_bps;
                }
            }
            for (link, sum_bps) in sums_bps {
                let most_bps = self.capacity_bps(link);
                assert!(sum_bps <= most_bps * (1.0 + 1e-9), "{link}: {sum_bps}");
            }
        }
    }

    fn apply(&mut self) {
        let (engine, now_ns) = (&mut self.engine, self.now_ns);
        apply_to(&mut self.feeds, now_ns, &self.topology, &mut |event| {
            engine.apply(event).expect("the engine takes it");
        });
    }

    fn play(&mut self, steps: &[Step]) {
        let mut loads_bps = Vec::new();
        for (reporter, telemetry, pause_ns) in steps {
            let reporter =
                reporter.map_or(Reporter::Collector, |host| Reporter::Host(HostId(host)));
            self.feeds
                .take(self.now_ns, reporter, telemetry, &self.topology, |_| false);
            self.engine.link_loads(&mut loads_bps);
            self.feeds.observe(self.now_ns, &mut loads_bps);
            self.apply();
            self.iterate(2);
            self.now_ns += pause_ns;
        }
    }

    /// Returns the least part of its uplink that a flow has.
    fn least_share(&self) -> f64 {
        let shares = self.paths.iter().zip(&self.rates_bps);
        let shares = shares.map(|(path, rate_bps)| rate_bps / self.capacity_bps(path[0]));
        shares.fold(f64::INFINITY, f64::min)
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn rates_fit_every_link_and_flows_keep_what_no_feed_may_take(
        steps in steps(proptest::option::of(0..4_u32)),
        max_share in 0.0..0.9_f64,
    ) {
        let config = FeedsConfig { max_share, ..FeedsConfig::default() };
        let silence_ns = config.max_age_ns + 2 * config.interval_ns;
        let mut network = Network::new(config);
        let open_loop = network.least_share();
        network.play(&steps);
        network.iterate(300);
        let least = network.least_share();
        // One per cent for rates that were not announced, and as much for iterations to come.
        proptest::prop_assert!(least >= (1.0 - max_share) * open_loop - 0.02, "{least} {max_share}");
        let end_ns = network.now_ns + silence_ns;
        while let Some(due_ns) = network.feeds.next_due_ns().filter(|&due_ns| due_ns <= end_ns) {
            network.now_ns = due_ns.max(network.now_ns);
            network.apply();
        }
        network.iterate(300);
        let again = network.least_share();
        proptest::prop_assert!((again - open_loop).abs() <= 0.02, "{again} {open_loop}");
    }
}
