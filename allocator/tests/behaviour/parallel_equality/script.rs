//! Random scripts of events (flowlets that start, end and move, links that change, sessions that
//! end), and a book that keeps the problem by its own account.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowSpec, LinkPath, RateEngine,
};
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, UtilityKind};
use ratewright_topology::{HostId, PathChoice, ThreeTierClos, Topology, TwoTierClos};

/// Sessions that flowlets belong to.
const SESSIONS: u32 = 5;
/// Upper bound of class 2's rates.
const BOUND_BPS: f64 = 3e9;
/// Share of every link that is reserved.
pub(crate) const MICE_RESERVE: f64 = 0.02;

/// Eight racks of four hosts under `spines` spines: enough racks for eight blocks.
pub(crate) fn two_tiers(spines: u32) -> Topology {
    let shape = TwoTierClos {
        racks: 8,
        hosts_per_rack: 4,
        spines,
        fabric_capacity_bps: 15_000_000_000,
        ..TwoTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// Four pods of two racks: one, two and four blocks are whole pods, eight are racks. Aggregation
/// switches have one core link more than a pod's table holds.
pub(crate) fn three_tiers(aggs_per_pod: u32) -> Topology {
    let shape = ThreeTierClos {
        pods: 4,
        racks_per_pod: 2,
        hosts_per_rack: 4,
        aggs_per_pod,
        cores: aggs_per_pod * 5,
        fabric_capacity_bps: 15_000_000_000,
        core_capacity_bps: 10_000_000_000,
        ..ThreeTierClos::default()
    };
    shape.build().expect("a valid network")
}

/// Capacity of every link, in bit/s.
pub(crate) fn capacities_bps(topology: &Topology) -> Vec<f64> {
    let capacity = |id| topology.effective_capacity_bps(id) as f64;
    topology.links().iter().map(|l| capacity(l.id)).collect()
}

/// Three classes: log, α-fair with α = 2, and log of three times the weight with a rate bound.
pub(crate) fn config() -> EngineConfig {
    let class = |utility| Class {
        utility,
        ..Class::default()
    };
    let alpha = AlphaFair::new(2.0).expect("a valid α");
    let bounded = Class {
        weight: 3.0,
        max_rate_bps: BOUND_BPS,
        ..Class::default()
    };
    EngineConfig {
        classes: ClassTable::new([
            (0, class(UtilityKind::Log)),
            (1, class(UtilityKind::Alpha(alpha))),
            (2, bounded),
        ])
        .expect("valid classes"),
        mice_reserve: MICE_RESERVE,
        settle_tolerance: 1e-6,
        ..EngineConfig::default()
    }
}

/// A flowlet as the generators make it.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    source: u32,
    destination: u32,
    hash: u32,
    weight: f64,
    class: u8,
    demand_bps: f64,
}

/// Demands: most flowlets have none, others from almost 0 to more than a link.
fn demand_bps() -> impl Strategy<Value = f64> {
    prop_oneof![4 => Just(f64::INFINITY), 3 => 1e8..2e9f64, 1 => 1e3..2e10f64, 1 => Just(0.0)]
}

fn sketch(hosts: u32) -> impl Strategy<Value = Sketch> {
    let weight = prop_oneof![6 => Just(1.0), 1 => 0.25..8.0f64];
    let class = prop_oneof![8 => Just(0u8), 1 => Just(1u8), 1 => Just(2u8)];
    let demand_bps = demand_bps();
    (0..hosts, 1..hosts, any::<u32>(), weight, class, demand_bps).prop_map(
        move |(source, step, hash, weight, class, demand_bps)| Sketch {
            source,
            destination: (source + step) % hosts,
            hash,
            weight,
            class,
            demand_bps,
        },
    )
}

/// One event. An [`Index`] picks among what exists by then.
#[derive(Clone, Debug)]
pub(crate) enum ScriptStep {
    Start(Sketch),
    /// A known flowlet starts again with other terms.
    Restart(Index, Sketch),
    /// A known flowlet starts again with another demand and otherwise the same terms.
    Demand(Index, f64),
    End(Index),
    Reroute(Index, u32),
    Capacity(Index, f64),
    /// Ends of all flows of a session.
    EndSession(u32),
    Iterate,
}

fn step(hosts: u32) -> impl Strategy<Value = ScriptStep> {
    // Failed, as before, or anything between.
    let factor = prop_oneof![1 => Just(0.0), 2 => Just(1.0), 2 => 0.05..1.5f64];
    prop_oneof![
        8 => sketch(hosts).prop_map(ScriptStep::Start),
        1 => (any::<Index>(), sketch(hosts)).prop_map(|(at, sketch)| ScriptStep::Restart(at, sketch)),
        6 => (any::<Index>(), demand_bps()).prop_map(|(at, demand)| ScriptStep::Demand(at, demand)),
        6 => any::<Index>().prop_map(ScriptStep::End),
        2 => (any::<Index>(), any::<u32>()).prop_map(|(at, hash)| ScriptStep::Reroute(at, hash)),
        3 => (any::<Index>(), factor).prop_map(|(at, factor)| ScriptStep::Capacity(at, factor)),
        1 => (0..SESSIONS).prop_map(ScriptStep::EndSession),
        12 => Just(ScriptStep::Iterate),
    ]
}

/// First flowlets, the order in which they come, and later events.
#[derive(Clone, Debug)]
pub(crate) struct EventScript {
    first: Vec<(u32, Sketch)>,
    shuffled: Vec<(u32, Sketch)>,
    steps: Vec<ScriptStep>,
}

pub(crate) fn scripts(hosts: u32) -> impl Strategy<Value = EventScript> {
    let first = prop::collection::vec(sketch(hosts), 1..120)
        .prop_map(|list| (0..).zip(list).collect::<Vec<(u32, Sketch)>>());
    let both = first.prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle()));
    (both, prop::collection::vec(step(hosts), 0..80)).prop_map(|((first, shuffled), steps)| {
        EventScript {
            first,
            shuffled,
            steps,
        }
    })
}

/// Order of the first flowlets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Plain,
    Shuffled,
}

/// A flowlet in the book.
#[derive(Clone, Debug)]
pub(crate) struct BookEntry {
    source: u32,
    destination: u32,
    pub(crate) links: LinkPath,
    class: u8,
    weight: f64,
    /// Its demand, or its class's bound if that is less.
    pub(crate) demand_bps: f64,
    /// Started, or asked for more, since the last iteration.
    pub(crate) new: bool,
}

/// Largest rate of a flowlet of a class.
fn bounded_bps(class: u8, demand_bps: f64) -> f64 {
    if class == 2 {
        demand_bps.min(BOUND_BPS)
    } else {
        demand_bps
    }
}

/// The problem by the test's own account.
pub(crate) struct Book<'a> {
    topology: &'a Topology,
    whole_bps: Vec<f64>,
    /// Not derated.
    pub(crate) capacities_bps: Vec<f64>,
    pub(crate) flows: BTreeMap<FlowNumber, BookEntry>,
    next: u32,
}

impl<'a> Book<'a> {
    pub(crate) fn new(topology: &'a Topology) -> Self {
        let whole_bps = capacities_bps(topology);
        Self {
            topology,
            capacities_bps: whole_bps.clone(),
            whole_bps,
            flows: BTreeMap::new(),
            next: 0,
        }
    }

    fn path(&self, source: u32, destination: u32, hash: u32) -> LinkPath {
        let choice = PathChoice::Hash(hash);
        let path = self
            .topology
            .path(HostId(source), HostId(destination), choice)
            .expect("a whole network");
        path.iter().map(|link| link.0).collect()
    }

    fn start(&mut self, number: FlowNumber, sketch: &Sketch) -> EngineEvent {
        let links = self.path(sketch.source, sketch.destination, sketch.hash);
        let entry = BookEntry {
            source: sketch.source,
            destination: sketch.destination,
            links: links.clone(),
            class: sketch.class,
            weight: sketch.weight,
            demand_bps: bounded_bps(sketch.class, sketch.demand_bps),
            new: true,
        };
        self.flows.insert(number, entry);
        EngineEvent::Start(FlowSpec {
            number,
            links,
            class: sketch.class,
            weight: sketch.weight,
            demand_bps: sketch.demand_bps,
        })
    }

    fn pick(&self, at: Index) -> Option<FlowNumber> {
        let count = self.flows.len();
        (count > 0).then(|| *self.flows.keys().nth(at.index(count)).expect("in range"))
    }

    /// Records a step; returns the event for the engine.
    fn event(&mut self, step: &ScriptStep) -> Option<EngineEvent> {
        Some(match step {
            ScriptStep::Iterate => return None,
            ScriptStep::Start(sketch) => {
                let number = FlowNumber::first(self.next);
                self.next += 1;
                self.start(number, sketch)
            }
            ScriptStep::Restart(at, sketch) => {
                let number = self.pick(*at)?;
                self.start(number, sketch)
            }
            ScriptStep::Demand(at, demand_bps) => {
                let number = self.pick(*at)?;
                let entry = self.flows.get_mut(&number).expect("picked");
                let most = bounded_bps(entry.class, *demand_bps);
                entry.new |= most > entry.demand_bps;
                entry.demand_bps = most;
                EngineEvent::Start(FlowSpec {
                    number,
                    links: entry.links.clone(),
                    class: entry.class,
                    weight: entry.weight,
                    demand_bps: *demand_bps,
                })
            }
            ScriptStep::End(at) => {
                let number = self.pick(*at)?;
                self.flows.remove(&number);
                EngineEvent::End(number)
            }
            ScriptStep::Reroute(at, hash) => {
                let number = self.pick(*at)?;
                let (source, destination) =
                    (self.flows[&number].source, self.flows[&number].destination);
                let links = self.path(source, destination, *hash);
                self.flows.get_mut(&number).expect("picked").links = links.clone();
                EngineEvent::Reroute { number, links }
            }
            ScriptStep::Capacity(at, factor) => {
                let link = at.index(self.capacities_bps.len());
                let capacity_bps = self.whole_bps[link] * factor;
                self.capacities_bps[link] = capacity_bps;
                EngineEvent::Capacity {
                    link: link as u32,
                    capacity_bps,
                }
            }
            ScriptStep::EndSession(session) => {
                let of_session = |number: &FlowNumber| number.index() % SESSIONS == *session;
                let ended = self.flows.extract_if(.., |number, _| of_session(number));
                EngineEvent::EndAll(ended.map(|(number, _)| number).collect())
            }
        })
    }

    /// Plays a script to an engine, and calls `iterate` for every iteration in it.
    pub(crate) fn play<E: RateEngine>(
        &mut self,
        script: &EventScript,
        order: Order,
        engine: &mut E,
        mut iterate: impl FnMut(&mut Self, &mut E) -> Result<(), TestCaseError>,
    ) -> Result<(), TestCaseError> {
        let first = match order {
            Order::Plain => &script.first,
            Order::Shuffled => &script.shuffled,
        };
        for (number, sketch) in first {
            let event = self.start(FlowNumber::first(*number), sketch);
            engine.apply(event).expect("a valid event");
        }
        self.next = first.len() as u32;
        iterate(self, engine)?;
        for step in &script.steps {
            if matches!(step, ScriptStep::Iterate) {
                iterate(self, engine)?;
            } else if let Some(event) = self.event(step) {
                engine.apply(event).expect("a valid event");
            }
        }
        Ok(())
    }
}
