//! Sum of all readings of one link.

use arrayvec::ArrayVec;
use ratewright_topology::{HostId, LinkId, Node, Topology};

use super::{Feed, Feeds, LinkEffect, Reading, host_of};

/// Difference of two readings of one quantity, as a share of the link's capacity, from which they
/// contradict each other.
const TOLERANCE: f64 = 0.1;

/// Effect on a link, and the feeds whose readings did not stand.
pub(super) struct Evaluation {
    pub(super) effect: LinkEffect,
    pub(super) contradictions: ArrayVec<Feed, 3>,
    /// A reading that does not stand has a part in it.
    pub(super) ages: bool,
    /// The collector's reading stands, and the host's would take more.
    pub(super) is_held: bool,
}

/// External load of a link as measured.
#[derive(Debug, Clone, Copy, Default)]
struct MeasuredLink {
    external_bps: f64,
    /// Drain of the queue and capacity that the link lacks.
    withheld_bps: f64,
    at_ns: u64,
    /// Part of its effect that its age leaves it.
    weight: f64,
    ages: bool,
}

impl MeasuredLink {
    fn sum_bps(&self) -> f64 {
        self.external_bps + self.withheld_bps
    }

    fn is_fresh(&self) -> bool {
        self.weight >= 1.0
    }

    /// Returns it with the part of its effect that its age leaves it.
    fn faded(self) -> Self {
        Self {
            external_bps: self.weight * self.external_bps,
            withheld_bps: self.weight * self.withheld_bps,
            ..self
        }
    }
}

/// External load of a link as its readings together give it.
struct Measured {
    /// The reading in force, faded by its age.
    stands: Option<MeasuredLink>,
    /// No fresh reading contradicts it.
    agrees: bool,
    /// It is the collector's, and the host's would take more.
    is_held: bool,
}

/// Traffic that gives way, as a feed counts it, faded by its age.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    flows: f64,
    /// Flows by fresh measurements alone.
    fresh_flows: f64,
    demand_bps: f64,
    at_ns: u64,
    /// A fresh measurement has a part in it.
    is_fresh: bool,
    ages: bool,
}

impl LinkEffect {
    pub(super) fn is_none(&self) -> bool {
        self.load_bps == 0.0 && self.flows == 0.0
    }
}

impl Feeds {
    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    pub(super) fn effect_of(&self, now_ns: u64, topology: &Topology, link: LinkId) -> Evaluation {
        let capacity_bps = topology.effective_capacity_bps(link) as f64;
        let tolerance_bps = TOLERANCE * capacity_bps;
        let max_bps = self.config.max_share * capacity_bps;
        let mut contradictions = ArrayVec::new();
        let Measured {
            stands: measured,
            agrees,
            is_held,
        } = self.measured(now_ns, topology, link, tolerance_bps);
        if !agrees {
            contradictions.push(Feed::Int);
        }
        let credited = self.credited(now_ns, topology, link);
        let credit_is_fresh = credited.is_some_and(|credited| credited.is_fresh);
        // A count that fades has no say beside fresh credit.
        let counted = self
            .counted(now_ns, topology, link)
            .filter(|counted| counted.is_fresh || !credit_is_fresh);
        let mut effect = LinkEffect {
            newest_ns: self.links[link.index()].newest_ns,
            oldest_ns: u64::MAX,
            ..LinkEffect::default()
        };
        let mut demand_bps = f64::INFINITY;
        // Counts see every sender, credit only those of schemes with credit.
        match (counted, credited) {
            (Some(counted), credited) => {
                effect.flows = counted.flows;
                effect.weighed_by = (counted.flows > 0.0).then_some(Feed::Receivers);
                effect.oldest_ns = effect.oldest_ns.min(counted.at_ns);
                if let Some(credited) = credited {
                    effect.oldest_ns = effect.oldest_ns.min(credited.at_ns);
                    if credited.fresh_flows > counted.flows + 0.5 {
                        contradictions.push(Feed::Credit);
                    }
                    if credited.flows + 0.5 > counted.flows {
                        demand_bps = credited.demand_bps;
                    }
                }
            }
            (None, Some(credited)) => {
                effect.flows = credited.flows;
                effect.weighed_by = (credited.flows > 0.0).then_some(Feed::Credit);
                effect.oldest_ns = effect.oldest_ns.min(credited.at_ns);
                demand_bps = credited.demand_bps;
            }
            (None, None) => {}
        }
        if let Some(measured) = measured {
            effect.oldest_ns = effect.oldest_ns.min(measured.at_ns);
            effect.external_bps = measured.external_bps;
            effect.load_bps = measured.withheld_bps;
            let dummy_bps = self.links[link.index()].dummy_bps;
            let is_fresh = measured.is_fresh();
            if effect.flows > 0.0 {
                if dummy_bps > 0.0 {
                    let exceeds = demand_bps.is_finite() && demand_bps > dummy_bps + tolerance_bps;
                    if exceeds && is_fresh && credit_is_fresh {
                        contradictions.push(Feed::Credit);
                    }
                    demand_bps = demand_bps.min(dummy_bps);
                }
            } else if counted.is_none_or(|counted| !counted.demand_bps.is_infinite()) {
                effect.load_bps += measured.external_bps;
            } else if measured.external_bps > tolerance_bps
                && is_fresh
                && counted.is_some_and(|counted| counted.is_fresh)
                && !contradictions.is_full()
            {
                // The receiver can tell managed traffic apart, and sees no other.
                contradictions.push(Feed::Int);
            }
        }
        if effect.flows > 0.0 {
            effect.load_bps = effect.load_bps.min(max_bps);
            effect.demand_bps = demand_bps.min(max_bps - effect.load_bps);
        } else {
            effect.load_bps = effect.load_bps.min(max_bps);
        }
        // Less than the hysteresis is noise.
        if effect.load_bps < self.config.hysteresis * capacity_bps {
            effect.load_bps = 0.0;
        }
        if effect.demand_bps <= 0.0 {
            (effect.flows, effect.demand_bps, effect.weighed_by) = (0.0, 0.0, None);
        }
        let parts = [
            counted.map(|part| (part.at_ns, part.ages)),
            measured.map(|part| (part.at_ns, part.ages)),
        ];
        for (at_ns, _) in parts.into_iter().flatten() {
            effect.newest_ns = effect.newest_ns.max(at_ns);
        }
        let ages = credited.is_some() || parts.into_iter().flatten().any(|(_, ages)| ages);
        Evaluation {
            effect,
            contradictions,
            ages,
            is_held,
        }
    }

    /// Returns the age of the newest measurement of a link, in nanoseconds. One that stands is as
    /// old as its host's last word.
    #[must_use]
    pub fn age_ns(&self, now_ns: u64, topology: &Topology, link: LinkId) -> u64 {
        let Evaluation { effect, .. } = self.effect_of(now_ns, topology, link);
        now_ns.saturating_sub(effect.newest_ns)
    }

    /// Returns the measured load of a link by its host's and a collector's readings.
    ///
    /// While both are fresh, the lesser stands. Once one of them fades, the newer stands alone, and
    /// nothing contradicts it; of two as old as each other the lesser. Values are compared as they
    /// were measured, and the one that stands fades by its own age. A silent reporter thus neither
    /// pulls a fresh load down nor counts.
    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn measured(
        &self,
        now_ns: u64,
        topology: &Topology,
        link: LinkId,
        tolerance_bps: f64,
    ) -> Measured {
        let alone = |reading: Option<MeasuredLink>| Measured {
            stands: reading.map(MeasuredLink::faded),
            agrees: true,
            is_held: false,
        };
        if !self.config.int {
            return alone(None);
        }
        let capacity_bps = topology.effective_capacity_bps(link) as f64;
        let host = host_of(link, topology);
        let known = |reading: &Reading| {
            let (at_ns, ages) = self.known(host, reading.generation, reading.at_ns);
            let weight = self.weight(now_ns, at_ns);
            (reading.is_measured() && weight > 0.0).then(|| MeasuredLink {
                external_bps: reading.external_bps,
                withheld_bps: reading.drain_bps + reading.lost_bps(capacity_bps),
                at_ns,
                weight,
                ages,
            })
        };
        let readings = &self.links[link.index()];
        let host = known(&readings.host);
        let collector = readings.collector.as_deref().and_then(known);
        let (Some(host), Some(collector)) = (host, collector) else {
            return alone(host.or(collector));
        };
        let are_fresh = host.is_fresh() && collector.is_fresh();
        let either = |is_host: bool| if is_host { host } else { collector };
        if !are_fresh && host.at_ns != collector.at_ns {
            return alone(Some(either(host.at_ns > collector.at_ns)));
        }
        let lesser = either(host.sum_bps() < collector.sum_bps());
        let apart_bps = (host.external_bps - collector.external_bps).abs();
        let hysteresis_bps = self.config.hysteresis * capacity_bps;
        Measured {
            stands: Some(lesser.faded()),
            agrees: !are_fresh || apart_bps <= tolerance_bps,
            is_held: host.sum_bps() > collector.sum_bps() + hysteresis_bps,
        }
    }

    /// Returns the time up to which a measurement counts as made, and true if it does not stand.
    fn known(&self, host: Option<HostId>, generation: u32, at_ns: u64) -> (u64, bool) {
        let Some(host) = host.filter(|_| generation > 0) else {
            return (at_ns, true);
        };
        let stands = generation == self.hosts.generation(host);
        (self.hosts.known_ns(host, generation, at_ns), !stands)
    }

    /// Returns the unknown senders of a host's downlink. A demand of infinity says that the count
    /// leaves nothing out.
    fn counted(&self, now_ns: u64, topology: &Topology, link: LinkId) -> Option<Counted> {
        let Node::Host(receiver) = topology.links()[link.index()].to else {
            return None;
        };
        let senders = &self.senders[receiver.index()];
        let (at_ns, ages) = self.known(Some(receiver), senders.generation, senders.at_ns);
        let weight = self.weight(now_ns, at_ns);
        let is_fresh = weight >= 1.0;
        (self.config.receivers && senders.is_known && weight > 0.0).then_some(Counted {
            flows: weight * senders.flows,
            fresh_flows: if is_fresh { senders.flows } else { 0.0 },
            demand_bps: if senders.is_complete {
                f64::INFINITY
            } else {
                0.0
            },
            at_ns,
            is_fresh,
            ages,
        })
    }

    /// Returns the pairs with credit that cross a host's link.
    fn credited(&self, now_ns: u64, topology: &Topology, link: LinkId) -> Option<Counted> {
        if !self.config.credit {
            return None;
        }
        let link = &topology.links()[link.index()];
        let mut sum = Counted {
            at_ns: u64::MAX,
            ..Counted::default()
        };
        let mut add = |pair: &super::credit::Pair, demand_bps: Option<f64>| {
            let weight = self.weight(now_ns, pair.at_ns);
            if weight > 0.0 {
                sum.flows += weight;
                if weight >= 1.0 {
                    sum.fresh_flows += 1.0;
                    sum.is_fresh = true;
                }
                // Before two readings, nothing bounds it.
                sum.demand_bps += weight * demand_bps.unwrap_or(f64::INFINITY);
                sum.at_ns = sum.at_ns.min(pair.at_ns);
            }
        };
        match (link.from, link.to) {
            (_, Node::Host(receiver)) => {
                for pair in self.credits.to(receiver.0) {
                    add(pair, pair.downlink_demand_bps());
                }
            }
            (Node::Host(sender), _) => {
                for pair in self.credits.from(sender.0) {
                    // A congested sender takes what its uplink gives.
                    let demand_bps = pair.downlink_demand_bps();
                    add(pair, demand_bps.filter(|_| !pair.is_congested));
                }
            }
            _ => return None,
        }
        (sum.flows > 0.0).then_some(sum)
    }
}
