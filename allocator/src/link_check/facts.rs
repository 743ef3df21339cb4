//! Words and facts of the check, from messages of hosts and from a topology.

use std::collections::BTreeSet;

use ratewright_proto::telemetry::{AccessUse, HostFaults, LinkUse};
use ratewright_topology::{HostId, LinkId, Node, Topology};

use super::{HostFault, HostWord, LinkFacts, LinkWord};
use crate::feeds::Feeds;

/// Time over which what was handed out is taken.
const WINDOW_NS: u64 = 1_000_000_000;

/// Visitor of the paths of flows from one host to another.
pub type VisitPaths<'a> = dyn Fn(HostId, HostId, &mut dyn FnMut(&[u32])) + 'a;

/// Facts of a network at a time.
pub struct NetworkFacts<'a> {
    /// The time.
    pub now_ns: u64,
    /// The network as it was told.
    pub topology: &'a Topology,
    /// Feeds, which know what was handed out.
    pub feeds: &'a Feeds,
    /// Visits the paths of flows from one host to another.
    pub paths: &'a VisitPaths<'a>,
}

impl LinkFacts for NetworkFacts<'_> {
    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn told_bps(&self, link: LinkId) -> f64 {
        let known = link.index() < self.topology.links().len();
        if known {
            self.topology.effective_capacity_bps(link) as f64
        } else {
            0.0
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn baseline_bps(&self, link: LinkId) -> Option<f64> {
        let link = self.topology.links().get(link.index())?;
        Some(link.frame.allocatable_bps(link.baseline_bps?) as f64)
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "line rates are far below 2^53 bit/s"
    )]
    fn line_rate_bps(&self, link: LinkId) -> f64 {
        let known = self.topology.links().get(link.index());
        known.map_or(0.0, |link| link.line_rate_bps as f64)
    }

    fn handed_out_bps(&self, link: LinkId) -> f64 {
        self.handed_out_before_bps(link, self.now_ns)
    }

    fn handed_out_before_bps(&self, link: LinkId, at_ns: u64) -> f64 {
        let from_ns = at_ns.saturating_sub(WINDOW_NS);
        self.feeds.mean_handed_out_bps(link, from_ns, at_ns)
    }

    fn access(&self, host: HostId) -> Option<(LinkId, LinkId)> {
        let known = host.index() < self.topology.hosts().len();
        known.then(|| {
            let topology = self.topology;
            (topology.host_uplink(host), topology.host_downlink(host))
        })
    }

    fn switch(&self, host: HostId) -> Option<u32> {
        let (uplink, _) = self.access(host)?;
        match self.topology.links().get(uplink.index())?.to {
            Node::Switch(switch) => Some(switch.0),
            Node::Host(_) => None,
        }
    }

    fn inner_links(&self, from: HostId, to: HostId, visit: &mut dyn FnMut(LinkId)) {
        (self.paths)(from, to, &mut |path| {
            for &link in path {
                let ends = self.topology.links().get(link as usize);
                let is_inner = ends.is_some_and(|link| {
                    matches!((link.from, link.to), (Node::Switch(_), Node::Switch(_)))
                });
                if is_inner {
                    visit(LinkId(link));
                }
            }
        });
    }
}

impl HostWord {
    /// Makes the word of a host's message. `paces` says that the host paces its flows: only what
    /// paced flows meet says something of capacities, since TCP alone fills queues by itself.
    #[must_use]
    pub fn of(access_use: &AccessUse, paces: bool) -> Self {
        let AccessUse {
            uplink, downlink, ..
        } = access_use;
        let congested = uplink.congested.iter().filter(|_| paces);
        Self {
            uplink: word_of(uplink),
            downlink: word_of(downlink),
            congested: congested.map(|&host| HostId(host)).collect(),
            has_uncongested: uplink.uncongested > 0,
            faults: faults_in(&access_use.faults),
            in_prefixes_of: (access_use.faults.in_prefixes_of.iter())
                .map(|&host| HostId(host))
                .collect(),
        }
    }
}

fn faults_in(told: &HostFaults) -> BTreeSet<HostFault> {
    [
        (told.no_address, HostFault::AddressNotInPrefix),
        (
            told.other_congestion_control,
            HostFault::CongestionControlChanged,
        ),
        (told.flows_beyond_table, HostFault::FlowsBeyondBound),
    ]
    .into_iter()
    .filter_map(|(has, fault)| has.then_some(fault))
    .collect()
}

#[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
fn word_of(link: &LinkUse) -> LinkWord {
    LinkWord {
        carried_bps: link.carried_bps.map(|bps| bps as f64),
        speed_bps: link.speed_bps as f64,
        is_held_up: link.held_up,
    }
}
