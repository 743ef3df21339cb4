//! Ideal central scheduler: every host knows its flows' rates at once, without a message.
//!
//! | file | what rates are the best ones |
//! |---|---|
//! | [`MaxMin`] of the allocator | max-min fair ones, by progressive filling |
//! | `proportional` | proportionally fair ones, by the production optimiser |
//!
//! Fastpass (SIGCOMM 2014) and Flowtune approximate this scheme, an upper bound on both. Rates are
//! the exact solution for the active flows, computed in no time when one starts or has sent its
//! last byte, known everywhere without delay, and paced from the first packet on. Its distance from
//! Flowtune is the cost of the control plane: notices, iterations and updates. It is no bound for
//! mean completion times under other objectives (shortest flow first finishes the mean flow
//! sooner).

use std::sync::Arc;

use ratewright_allocator::engine::EngineError;
use ratewright_allocator::num::MaxMin;
use ratewright_topology::{HostId, PathChoice, Topology};

pub use self::proportional::Proportional;
use super::flowtune::paced_tcp;
use super::tcp::congestion::{Allocated, AllocatedConfig};
use super::tcp::{TcpConfig, TcpHost};
use super::{Context, NO_SLOT, SharedByHosts, Transport};
use crate::flow::FlowId;
use crate::host::{Endpoint, Pull, Side, Timer};
use crate::packet::Packet;

mod proportional;

/// Settings of the ideal scheme.
#[derive(Clone, Copy, Debug)]
pub struct IdealConfig {
    /// TCP of the flows; their initial window is not used.
    pub tcp: TcpConfig<AllocatedConfig>,
    /// Share of every link that is allocated. Acknowledgements take the rest: one of 84 bytes for
    /// every 1,538 bytes of data is 5.5 %.
    pub share: f64,
    /// Objective that the rates maximise.
    pub objective: Objective,
}

impl Default for IdealConfig {
    fn default() -> Self {
        Self {
            tcp: paced_tcp(),
            share: 0.945,
            objective: Objective::default(),
        }
    }
}

/// Objective of the ideal rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The smallest rate is as large as possible, then the next: [`MaxMin`], Fastpass's objective.
    #[default]
    MaxMin,
    /// The sum of the rates' logarithms is as large as possible: [`Proportional`], Flowtune's
    /// objective.
    Proportional,
}

/// Solver of the active flows' rates, by [`Objective`].
enum Rates {
    MaxMin(MaxMin<FlowId>),
    Proportional(Box<Proportional>),
}

impl Rates {
    fn add(&mut self, flow: FlowId, weight: f64, links: Vec<u32>) -> u32 {
        match self {
            Self::MaxMin(rates) => rates.add(flow, weight, links),
            Self::Proportional(rates) => rates.add(flow, weight, &links),
        }
    }

    fn remove(&mut self, slot: u32) {
        match self {
            Self::MaxMin(rates) => rates.remove(slot),
            Self::Proportional(rates) => rates.remove(slot),
        }
    }

    /// Returns the number of solutions that are not exact.
    fn unsettled(&self) -> u64 {
        match self {
            Self::MaxMin(_) => 0,
            Self::Proportional(rates) => rates.unsettled(),
        }
    }

    fn solve(&mut self) -> &[(FlowId, f64)] {
        match self {
            Self::MaxMin(rates) => rates.solve(),
            Self::Proportional(rates) => rates.solve(),
        }
    }
}

/// The ideal scheme; see the [module](self).
pub struct Ideal {
    tcp: TcpConfig<AllocatedConfig>,
    shared: IdealShared,
}

/// The central scheduler, which all hosts know.
pub struct IdealShared {
    topology: Arc<Topology>,
    rates: Rates,
    /// Places among the active flows, by flow; [`NO_SLOT`] once the last byte was sent.
    places: Vec<u32>,
    /// Changed rates by host, which it has not taken yet.
    changed: Vec<Vec<(FlowId, u64)>>,
    solutions: u64,
    unreachable: u64,
}

impl SharedByHosts for IdealShared {}

type IdealContext<'a> = Context<'a, IdealShared>;

/// The ideal scheme at one host.
#[derive(Debug)]
pub struct IdealHost {
    tcp: TcpHost<Allocated>,
}

impl Ideal {
    /// Makes the scheme on a topology.
    ///
    /// # Errors
    /// Links that the optimiser of proportional rates refuses.
    pub fn new(topology: &Arc<Topology>, config: IdealConfig) -> Result<Self, EngineError> {
        let capacities: Vec<f64> = topology
            .links()
            .iter()
            .map(|link| topology.effective_capacity_bps(link.id) as f64 * config.share)
            .collect();
        let rates = match config.objective {
            Objective::MaxMin => Rates::MaxMin(MaxMin::new(capacities)),
            Objective::Proportional => {
                Rates::Proportional(Box::new(Proportional::new(&capacities)?))
            }
        };
        let shared = IdealShared {
            topology: Arc::clone(topology),
            rates,
            places: Vec::new(),
            changed: vec![Vec::new(); topology.hosts().len()],
            solutions: 0,
            unreachable: 0,
        };
        let tcp = TcpConfig {
            // No packet leaves before the rate, which comes in the same moment.
            initial_window_packets: 0,
            ..config.tcp
        };
        Ok(Self { tcp, shared })
    }
}

/// Computes the rates of all active flows, and tells the hosts that send them.
fn solve(cx: &mut IdealContext<'_>) {
    cx.shared.solutions += 1;
    // Copied, because telling the hosts needs the whole context.
    let changed: Vec<_> = cx.shared.rates.solve().to_vec();
    for (flow, rate_bps) in changed {
        let host = cx.flow(flow).src;
        let of_host = &mut cx.shared.changed[host.index()];
        // At least 1: a rate of 0 would hand the flow to its window.
        of_host.push((flow, (rate_bps as u64).max(1)));
        if of_host.len() == 1 {
            cx.poke(host);
        }
    }
}

/// Releases a flow's rate to the others, because its last byte has left.
fn release(cx: &mut IdealContext<'_>, flow: FlowId) {
    let place = cx.shared.places.get_mut(flow.index());
    let place = place.map_or(NO_SLOT, |place| std::mem::replace(place, NO_SLOT));
    if place != NO_SLOT {
        cx.shared.rates.remove(place);
        solve(cx);
    }
}

impl Transport for Ideal {
    type Shared = IdealShared;
    type Endpoint = IdealHost;

    fn start(self, nodes: u32) -> (IdealShared, Vec<IdealHost>) {
        let tcp = Arc::new(self.tcp);
        let host = |_| IdealHost {
            tcp: TcpHost::new(Arc::clone(&tcp)),
        };
        (self.shared, (0..nodes).map(host).collect())
    }

    fn summary(shared: &IdealShared, _: &[&IdealHost]) -> Vec<(&'static str, f64)> {
        vec![
            ("solutions", shared.solutions as f64),
            ("unreachable_flows", shared.unreachable as f64),
            ("solutions_cut_short", shared.rates.unsettled() as f64),
        ]
    }
}

impl Endpoint for IdealHost {
    type Shared = IdealShared;

    fn on_start(&mut self, cx: &mut IdealContext<'_>, flow: FlowId) {
        let spec = *cx.flow(flow);
        let choice = PathChoice::Hash(cx.path_hash(flow, false).into());
        let path = cx.shared.topology.path(spec.src, spec.dst, choice);
        let Ok(path) = path else {
            cx.shared.unreachable += 1;
            return;
        };
        let links = path.iter().map(|link| link.0).collect();
        let place = cx.shared.rates.add(flow, f64::from(spec.weight), links);
        let places = &mut cx.shared.places;
        if places.len() <= flow.index() {
            places.resize(flow.index() + 1, NO_SLOT);
        }
        places[flow.index()] = place;
        self.tcp.start(cx, flow);
        solve(cx);
    }

    fn on_stop(&mut self, cx: &mut IdealContext<'_>, flow: FlowId) {
        self.tcp.stop(cx, flow);
    }

    fn on_packet(&mut self, cx: &mut IdealContext<'_>, packet: &mut Packet) {
        if let Some(done) = self.tcp.on_packet(cx, packet) {
            release(cx, done.flow);
        }
    }

    fn on_timer(&mut self, cx: &mut IdealContext<'_>, timer: Timer) {
        self.tcp.on_timer(cx, timer.slot);
    }

    /// Takes the rates that have changed.
    fn on_poke(&mut self, cx: &mut IdealContext<'_>) {
        let host: HostId = cx.me();
        let mut changed = std::mem::take(&mut cx.shared.changed[host.index()]);
        for (flow, rate_bps) in changed.drain(..) {
            let slot = cx.slot(flow, Side::Sender);
            self.tcp.set_rate(cx, slot, rate_bps);
        }
        // The list keeps its memory.
        cx.shared.changed[host.index()] = changed;
    }

    fn pull(&mut self, cx: &mut IdealContext<'_>) -> Pull {
        self.tcp.pull(cx, release)
    }
}
