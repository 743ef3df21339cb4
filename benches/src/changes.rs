//! `ratewright-bench changes`: how long the parallel engine pauses over a change of the network.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::engine::parallel::{ParallelEngine, ParallelOptions};
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowSpec, LinkPath, RateEngine,
};
use ratewright_cli::clock::now_ns;
use ratewright_plot::commit::commit;
use ratewright_topology::{HostId, LinkId, Node, PathChoice, Topology, TwoTierClos};
use serde::Serialize;

use super::engine::{MOST_FLOWS, check_workers};
use super::sweep::print_json;

/// Iterations within which an engine comes to rest.
const MOST_ITERATIONS: u32 = 5_000;

/// Options.
#[derive(Debug, Clone, Args)]
pub struct ChangesOptions {
    /// Racks of 48 hosts under 16 spines
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub racks: u32,
    /// Flows between random hosts
    #[arg(long, default_value_t = 49_152, value_parser = clap::value_parser!(u32).range(1..=MOST_FLOWS as i64))]
    pub flows: u32,
    /// Workers
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Runs, of which the shortest times count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Seed of flows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Cost of one change of the network.
#[derive(Debug, Clone, Serialize)]
struct Change {
    /// Name of the change, as the table shows it.
    what: &'static str,
    /// Number of events applied.
    events: usize,
    /// Applying them.
    apply_us: f64,
    /// The iteration after that, rates out included.
    iteration_us: f64,
    /// Largest load over capacity after it.
    max_link_load: f64,
}

/// The results file.
#[derive(Debug, Clone, Serialize)]
struct ChangesResults {
    commit: &'static str,
    seed: u64,
    hosts: usize,
    links: usize,
    flows: u32,
    workers: usize,
    /// An iteration after one flow was replaced: what every change is to be compared with.
    one_event_us: f64,
    changes: Vec<Change>,
}

/// The network, its flows and the engine.
struct EngineScene {
    topology: Topology,
    engine: ParallelEngine,
    /// By flow: its hosts and its hash.
    flows: Vec<(HostId, HostId, u32)>,
    paths: Vec<LinkPath>,
}

/// Runs it and prints the results.
///
/// # Errors
/// If options make no sense.
pub fn run(options: &ChangesOptions) -> Result<()> {
    let mut results = measure(options)?;
    for _ in 1..options.repeats {
        let again = measure(options)?;
        // The least of several runs: whatever else the machine does only adds time.
        results.one_event_us = results.one_event_us.min(again.one_event_us);
        for (best, change) in results.changes.iter_mut().zip(again.changes) {
            best.apply_us = best.apply_us.min(change.apply_us);
            best.iteration_us = best.iteration_us.min(change.iteration_us);
        }
    }
    if options.json {
        return print_json(&results);
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "change",
        "events",
        "applied in",
        "next iteration",
        "fullest link",
    ]);
    for change in &results.changes {
        table.add_row([
            change.what.to_owned(),
            change.events.to_string(),
            format!("{:.0} µs", change.apply_us),
            format!("{:.0} µs", change.iteration_us),
            format!("{:.4}", change.max_link_load),
        ]);
    }
    for column in 1..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    println!(
        "{} flows, {} hosts, {} worker(s). One flow replaced and the iteration after it: {:.0} µs.",
        results.flows, results.hosts, results.workers, results.one_event_us
    );
    Ok(())
}

fn measure(options: &ChangesOptions) -> Result<ChangesResults> {
    let mut world = EngineScene::new(options)?;
    let mut changes = Vec::new();
    let replaced = world.replace_first()?;
    let one = world.carry_out("one flow is replaced", replaced)?;
    // A path between racks is host link, uplink, downlink, host link.
    let uplink = world.paths[0].get(1).copied().map(LinkId);
    let uplink = uplink.context("the first flow stays in its rack")?;
    let Node::Switch(spine) = world.topology.links()[uplink.index()].to else {
        bail!("the first flow's second link leads to no switch");
    };
    for (what, up) in [("a link fails", false), ("the link comes back", true)] {
        changes.push(world.change(what, |topology| {
            // A cable fails in both directions.
            for link in [uplink, topology.reverse_link(uplink)] {
                topology.set_link_up(link, up);
            }
        })?);
    }
    for (what, up) in [("a spine fails", false), ("the spine comes back", true)] {
        changes.push(world.change(what, |topology| {
            topology.set_switch_up(spine, up);
        })?);
    }
    changes.push(world.change("a link's capacity halves", |topology| {
        let capacity_bps = topology.links()[uplink.index()].capacity_bps;
        topology.set_capacity_bps(uplink, capacity_bps / 2);
    })?);
    let dummy = EngineEvent::Start(FlowSpec {
        number: world.number_beside(0),
        links: [uplink.0].into_iter().collect(),
        class: 0,
        // Stands for traffic beyond the allocator's control, with the share of ten flows.
        weight: 10.0,
        demand_bps: f64::INFINITY,
    });
    changes.push(world.carry_out("external traffic on a link", vec![dummy])?);
    let alone = world.start_alone()?;
    let end = vec![EngineEvent::EndAll(vec![alone])];
    changes.push(world.carry_out("a session with one flow ends", end)?);
    let demands = world.demands(1e8);
    changes.push(world.carry_out("every tenth flow has a demand", demands)?);
    // Last, since no flow keeps its path.
    let events = world.another_topology(options.racks + 1)?;
    changes.push(world.carry_out("another topology, all flows anew", events)?);
    Ok(ChangesResults {
        commit: commit(),
        seed: options.seed,
        hosts: world.topology.hosts().len(),
        links: world.topology.links().len(),
        flows: options.flows,
        workers: options.workers,
        one_event_us: one.apply_us + one.iteration_us,
        changes,
    })
}

fn network(racks: u32) -> Result<Topology> {
    let shape = TwoTierClos {
        racks,
        hosts_per_rack: 48,
        spines: 16,
        ..TwoTierClos::default()
    };
    shape.build().context("no such network can be built")
}

fn capacities_bps(topology: &Topology) -> Vec<f64> {
    let links = topology.links().iter();
    links
        .map(|link| topology.effective_capacity_bps(link.id) as f64)
        .collect()
}

impl EngineScene {
    fn new(options: &ChangesOptions) -> Result<Self> {
        let topology = network(options.racks)?;
        check_workers(&topology, options.workers)?;
        let parallel = ParallelOptions {
            workers: options.workers,
            ..ParallelOptions::default()
        };
        let capacities = capacities_bps(&topology);
        let config = EngineConfig {
            // Two more: the external traffic's, and the one of a session of its own.
            max_flows: options.flows as usize + 2,
            ..EngineConfig::default()
        };
        let engine = ParallelEngine::for_topology(config, parallel, &topology, &capacities)?;
        let mut random = Pcg64Mcg::seed_from_u64(options.seed);
        let hosts = topology.hosts().len() as u32;
        let flows = (0..options.flows)
            .map(|_| {
                let source = random.random_range(0..hosts);
                // Of another rack: the next one, or one beyond it.
                let far = random.random_range(48..hosts - 47);
                (
                    HostId(source),
                    HostId((source + far) % hosts),
                    random.random(),
                )
            })
            .collect();
        let mut world = Self {
            topology,
            engine,
            flows,
            paths: Vec::new(),
        };
        world.paths = world.find_paths()?;
        for event in world.starts() {
            world.engine.apply(event)?;
        }
        // Changes are measured from rest: what is left of an earlier one must not count.
        world.rest();
        Ok(world)
    }

    fn find_paths(&self) -> Result<Vec<LinkPath>> {
        let path = |&(source, destination, hash): &(HostId, HostId, u32)| {
            let path = self
                .topology
                .path(source, destination, PathChoice::Hash(hash))?;
            Ok(path.iter().map(|link| link.0).collect())
        };
        self.flows.iter().map(path).collect()
    }

    fn spec_of(&self, flow: usize) -> FlowSpec {
        FlowSpec {
            number: FlowNumber::first(flow as u32),
            links: self.paths[flow].clone(),
            class: 0,
            weight: 1.0,
            demand_bps: f64::INFINITY,
        }
    }

    fn starts(&self) -> Vec<EngineEvent> {
        (0..self.flows.len())
            .map(|flow| EngineEvent::Start(self.spec_of(flow)))
            .collect()
    }

    fn rest(&mut self) {
        for _ in 0..MOST_ITERATIONS {
            let settled = self.engine.iterate().settled;
            self.engine.drain_updates(&mut |_| ());
            if settled {
                break;
            }
        }
    }

    /// A session with a flow like the first one.
    fn start_alone(&mut self) -> Result<FlowNumber> {
        let number = self.number_beside(1);
        self.engine.apply(EngineEvent::Start(FlowSpec {
            number,
            ..self.spec_of(0)
        }))?;
        self.rest();
        Ok(number)
    }

    /// Number of a flow beside those of the scene.
    fn number_beside(&self, at: u32) -> FlowNumber {
        FlowNumber::first(self.flows.len() as u32 + at)
    }

    /// Another demand for every tenth flow.
    fn demands(&self, demand_bps: f64) -> Vec<EngineEvent> {
        let start = |flow| {
            EngineEvent::Start(FlowSpec {
                demand_bps,
                ..self.spec_of(flow)
            })
        };
        (0..self.flows.len()).step_by(10).map(start).collect()
    }

    fn replace_first(&mut self) -> Result<Vec<EngineEvent>> {
        let end = EngineEvent::End(FlowNumber::first(0));
        Ok(vec![end, EngineEvent::Start(self.spec_of(0))])
    }

    /// Applies a change in the order of the service: added capacity first, then the flows' new
    /// paths, then removed capacity.
    fn change(&mut self, what: &'static str, change: impl FnOnce(&mut Topology)) -> Result<Change> {
        let before = capacities_bps(&self.topology);
        change(&mut self.topology);
        let after = capacities_bps(&self.topology);
        let event = |(link, &capacity_bps): (usize, &f64)| EngineEvent::Capacity {
            link: link as u32,
            capacity_bps,
        };
        let more = after.iter().enumerate().filter(|(l, is)| **is > before[*l]);
        let less = after.iter().enumerate().filter(|(l, is)| **is < before[*l]);
        let paths = self.find_paths()?;
        let moved = paths.iter().zip(&self.paths).enumerate();
        let reroutes = moved.filter(|(_, (is, was))| is != was);
        // More capacity first and less last: no link is over its capacity in between.
        let mut events: Vec<EngineEvent> = more.map(event).collect();
        events.extend(reroutes.map(|(flow, (links, _))| EngineEvent::Reroute {
            number: FlowNumber::first(flow as u32),
            links: links.clone(),
        }));
        events.extend(less.map(event));
        self.paths = paths;
        self.carry_out(what, events)
    }

    fn another_topology(&mut self, racks: u32) -> Result<Vec<EngineEvent>> {
        self.topology = network(racks)?;
        self.paths = self.find_paths()?;
        let reset = EngineEvent::Reset {
            capacities: capacities_bps(&self.topology),
            topology: Some(Arc::new(self.topology.clone())),
        };
        Ok(std::iter::once(reset).chain(self.starts()).collect())
    }

    /// Applies the events, iterates once, computes the fullest link, and iterates until the engine
    /// rests.
    fn carry_out(&mut self, what: &'static str, events: Vec<EngineEvent>) -> Result<Change> {
        let count = events.len();
        let begin_ns = now_ns();
        for event in events {
            self.engine.apply(event)?;
        }
        let applied_ns = now_ns();
        self.engine.iterate();
        self.engine.drain_updates(&mut |_| ());
        let end_ns = now_ns();
        let (mut loads, mut capacities) = (Vec::new(), Vec::new());
        self.engine.link_loads(&mut loads);
        self.engine.link_capacities(&mut capacities);
        // Of a dead link, any load is too much.
        let used = |(load, capacity): (&f64, &f64)| {
            if *capacity > 0.0 {
                load / capacity
            } else {
                load * f64::MAX
            }
        };
        let max_link_load = loads.iter().zip(&capacities).map(used).fold(0.0, f64::max);
        self.rest();
        Ok(Change {
            what,
            events: count,
            apply_us: (applied_ns - begin_ns) as f64 / 1e3,
            iteration_us: (end_ns - applied_ns) as f64 / 1e3,
            max_link_load,
        })
    }
}
