//! Readings of one link, who may tell of it, and how a load is judged.

use ratewright_proto::telemetry::{LinkInt, OWN_DOWNLINK, OWN_UPLINK};
use ratewright_topology::{HostId, LinkId, Node, Topology};

use super::credit::HEADROOM;
use super::external::ExternalTraffic;
use super::handed_out::HandedOut;
use super::int::{LinkFacts, Reading};
use super::status::{Feed, Refused};
use super::{Feeds, Reporter};

/// Part of a dummy flow's maximum that it keeps per reading that measures less.
const SHRINK: f64 = 0.75;

/// Readings of one link.
#[derive(Debug, Clone, Default)]
pub(super) struct LinkReadings {
    pub(super) host: Reading,
    pub(super) collector: Option<Box<Reading>>,
    /// Maximum of the dummy flow that the measured load allows, in bit/s; 0 before a measurement.
    pub(super) dummy_bps: f64,
    /// Sum that was last marked for evaluation, in bit/s.
    marked_bps: f64,
    /// The dummy flow has the maximum that the newest measurement gives it.
    pub(super) is_settled: bool,
    /// The link waits for its evaluation.
    pub(super) is_dirty: bool,
    /// Time of the newest measurement of any feed.
    pub(super) newest_ns: u64,
}

impl LinkReadings {
    fn of(&self, host: bool) -> Option<&Reading> {
        if host {
            Some(&self.host)
        } else {
            self.collector.as_deref()
        }
    }

    fn external_bps(&self, of_host: bool) -> f64 {
        self.of(of_host).map_or(0.0, |reading| reading.external_bps)
    }

    /// Returns the capacity that a reading takes, in bit/s.
    fn sum_bps(&self, capacity_bps: f64, of_host: bool) -> f64 {
        self.of(of_host).map_or(0.0, |reading| {
            reading.external_bps + reading.drain_bps + reading.lost_bps(capacity_bps)
        })
    }

    /// Takes a measured load. Returns true if what the link is to have has moved.
    pub(super) fn judge(&mut self, measured_bps: f64, capacity_bps: f64, bounds: Bounds) -> bool {
        let sum_bps = self.sum_bps(capacity_bps, bounds.of_host);
        let external_bps = self.external_bps(bounds.of_host);
        let hysteresis_bps = bounds.hysteresis * capacity_bps;
        let wanted_bps = measured_bps.max(external_bps) * HEADROOM + hysteresis_bps;
        let former_bps = if self.dummy_bps > 0.0 {
            self.dummy_bps
        } else {
            bounds.max_share * capacity_bps
        };
        self.dummy_bps = wanted_bps.max(former_bps * SHRINK);
        self.is_settled = self.dummy_bps <= wanted_bps;
        let moved = (sum_bps - self.marked_bps).abs() > hysteresis_bps / 2.0
            || (self.dummy_bps - former_bps).abs() > hysteresis_bps / 2.0;
        if moved {
            self.marked_bps = sum_bps;
        }
        moved
    }
}

/// Bounds by which a measured load is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) hysteresis: f64,
    pub(super) max_share: f64,
    /// The load is by the host's reading, not the collector's.
    pub(super) of_host: bool,
}

impl Feeds {
    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    pub(super) fn take_int(
        &mut self,
        now_ns: u64,
        reporter: Reporter,
        entry: &LinkInt,
        topology: &Topology,
    ) -> Result<(), Refused> {
        let id = link_of(reporter, entry.link, topology)?;
        self.is_on(Feed::Int, entry.age_ns)?;
        let link = &topology.links()[id.index()];
        let at_ns = now_ns.saturating_sub(entry.age_ns);
        let capacity_bps = topology.effective_capacity_bps(id) as f64;
        if capacity_bps == 0.0 {
            // A dead link carries nothing that could be handed out.
            return Ok(());
        }
        let generation = self.generation_of(reporter, entry.interval_ns > 0);
        let mut is_observed = true;
        if entry.managed_bytes.is_none() {
            self.needs_loads_until_ns = now_ns.saturating_add(self.config.max_age_ns);
            // Managed traffic would count as external.
            let observed_ns = self.handed_out.newest_ns();
            is_observed =
                observed_ns > 0 && observed_ns.saturating_add(self.config.max_age_ns) > now_ns;
            if !is_observed && generation == 0 {
                return Err(Refused::Unobserved);
            }
        }
        let (handed_out, external) = (&self.handed_out, &self.external);
        let facts = LinkFacts {
            capacity_bps,
            handed_out_bps: &|from_ns, to_ns| {
                if is_observed {
                    handed_out_bps(handed_out, external, id, from_ns, to_ns)
                } else {
                    // It is read again once something was observed.
                    f64::INFINITY
                }
            },
            generation,
            sees_queue: match reporter {
                Reporter::Host(host) => link.from == Node::Host(host),
                Reporter::Collector => true,
            },
            max_delay_ns: self.config.max_delay_ns,
        };
        let readings = &mut self.links[id.index()];
        let reading = match reporter {
            Reporter::Host(_) => &mut readings.host,
            Reporter::Collector => readings.collector.get_or_insert_with(Box::default),
        };
        if at_ns < reading.at_ns {
            return Ok(());
        }
        // A host's reading that stands takes its place meanwhile.
        let was_silent = reporter == Reporter::Collector
            && reading.at_ns.saturating_add(self.config.fresh_ns) < now_ns;
        let expected_bps = reading.external_bps;
        let had_measured = reading.is_measured();
        let Some(measured_bps) = reading.take(at_ns, entry, &facts) else {
            return Ok(());
        };
        let is_settled = is_observed && reading.external_bps == measured_bps;
        let bounds = Bounds {
            hysteresis: self.config.hysteresis,
            max_share: self.config.max_share,
            of_host: matches!(reporter, Reporter::Host(_)),
        };
        let moved = readings.judge(measured_bps, capacity_bps, bounds);
        let sum_bps = readings.sum_bps(capacity_bps, bounds.of_host);
        let hysteresis_bps = self.config.hysteresis * capacity_bps;
        let is_settled = is_settled && readings.is_settled;
        if bounds.of_host {
            self.stand(id, topology, is_settled);
        }
        if had_measured {
            let error = (measured_bps - expected_bps).abs() / capacity_bps;
            self.figures[Feed::Int as usize].erred(error);
        }
        let effect = self.effects.get(id);
        if let Some(effect) = effect
            && let Some(feed) = effect.weighed_by
        {
            let granted_bps = self.external.get(id).map_or(0.0, |link| link.granted_bps);
            let error = (measured_bps - granted_bps).abs() / capacity_bps;
            self.figures[feed as usize].erred(error);
        }
        self.touch(id, at_ns);
        if moved || was_silent || (sum_bps >= hysteresis_bps && self.is_faded(now_ns, id)) {
            self.mark(id);
        }
        Ok(())
    }

    /// Returns the mean of what was handed out to scheduled flows on a link between two times, in
    /// bit/s, back to the maximum age of a measurement.
    pub(super) fn handed_out_bps(&self, link: LinkId, from_ns: u64, to_ns: u64) -> f64 {
        handed_out_bps(&self.handed_out, &self.external, link, from_ns, to_ns)
    }

    /// Returns the same, as [`observe_for_means`](Self::observe_for_means) noted it.
    #[must_use]
    pub fn mean_handed_out_bps(&self, link: LinkId, from_ns: u64, to_ns: u64) -> f64 {
        let history = &self.handed_out_before;
        handed_out_bps(history, &self.external, link, from_ns, to_ns)
    }
}

/// Returns the mean of what was handed out to scheduled flows on a link between two times, in
/// bit/s.
fn handed_out_bps(
    handed_out: &HandedOut,
    external: &ExternalTraffic,
    link: LinkId,
    from_ns: u64,
    to_ns: u64,
) -> f64 {
    // A dummy flow stands for traffic of others.
    let granted_bps = external.granted_bps().get(link.index()).copied();
    let load_bps = handed_out.mean_bps(link.index(), from_ns, to_ns);
    (load_bps - f64::from(granted_bps.unwrap_or(0.0))).max(0.0)
}

/// Returns the host at one end of a link, which reads it.
pub(super) fn host_of(link: LinkId, topology: &Topology) -> Option<HostId> {
    let link = topology.links().get(link.index())?;
    match (link.from, link.to) {
        (Node::Host(host), _) | (_, Node::Host(host)) => Some(host),
        _ => None,
    }
}

/// Returns the link that an entry names, if the reporter may tell of it.
fn link_of(reporter: Reporter, link: u32, topology: &Topology) -> Result<LinkId, Refused> {
    match (reporter, link) {
        (Reporter::Host(host), OWN_UPLINK) => Ok(topology.host_uplink(host)),
        (Reporter::Host(host), OWN_DOWNLINK) => Ok(topology.host_downlink(host)),
        (_, link) => {
            let known = topology
                .links()
                .get(link as usize)
                .ok_or(Refused::Unknown)?;
            match reporter {
                Reporter::Host(host)
                    if known.from != Node::Host(host) && known.to != Node::Host(host) =>
                {
                    Err(Refused::NotOfReporter)
                }
                _ => Ok(known.id),
            }
        }
    }
}
