//! Feeds: measurements of receivers, senders and links that tell the allocator of traffic which it
//! does not schedule.
//!
//! A [`Telemetry`] message arrives from a host's session or from a collector of switches. The
//! service and the simulator hand it to [`Feeds::take`], and call [`Feeds::apply`] once per
//! interval. Every reading ends in one of three things: a link's capacity, a link's dummy flow, or
//! a flow's demand. No clock, no socket and no lock stands here.
//!
//! # What a message must hold
//!
//! | entry | reporter | contents |
//! |---|---|---|
//! | `ReceiverCount` | the receiver, a collector | all senders with bytes under way to the receiver, announced ones included |
//! | `CreditState` | the sender or the receiver, a collector | counters that only grow while the pair exists; the entry repeats in every message while it is active |
//! | `LinkInt` | a host at one end, a collector | counters of one interface; two readings make a measurement |
//!
//! A reporter repeats its state at every [`FeedsConfig::interval_ns`], and at once when a sender
//! begins or is announced. Silence is no measurement: the effect of the newest one fades from
//! [`FeedsConfig::fresh_ns`] to [`FeedsConfig::max_age_ns`]. A counter that falls begins anew.
//! `age_ns` is the time from the measurement to the sending of the message.

use std::collections::BTreeMap;

use ratewright_proto::telemetry::{OWN_DOWNLINK, OWN_UPLINK, Telemetry};
use ratewright_topology::{HostId, LinkId, Node, Topology};

use crate::engine::EngineEvent;

mod config;

pub use config::FeedsConfig;

/// Sender of a telemetry message, as its session or its configuration proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reporter {
    /// A host. It may tell of itself as a sender and a receiver, and of its own two links.
    Host(HostId),
    /// The configured collector of switches. It may tell of everything.
    Collector,
}

/// Change that a feed asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedChange {
    /// An event for the engine: another capacity of a link, or its dummy flow.
    Engine(EngineEvent),
    /// [`Feeds::demand_bps`] of a flow has changed: the owner of the flow starts it again with the
    /// lesser of this and its own demand.
    Demand {
        /// The sending host.
        sender: HostId,
        /// The flow's id at that host.
        flow: u32,
    },
}

/// Reason for which an entry of a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// The reporter may not tell of this host or link.
    NotOfReporter,
    /// No such host or link is in the topology.
    Unknown,
    /// The measurement was older than the maximum when it arrived.
    TooOld,
    /// The reading is switched off.
    Off,
}

impl Refused {
    /// Label in metrics.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotOfReporter => "not_of_reporter",
            Self::Unknown => "unknown",
            Self::TooOld => "too_old",
            Self::Off => "off",
        }
    }
}

/// Newest measurements and their effects on links and flows.
#[derive(Debug)]
pub struct Feeds {
    config: FeedsConfig,
    refused: BTreeMap<Refused, u64>,
    taken: u64,
}

impl Feeds {
    /// Creates feeds without a measurement, for the links and hosts of a topology.
    #[must_use]
    pub fn new(config: FeedsConfig, _topology: &Topology) -> Self {
        Self {
            config,
            refused: BTreeMap::new(),
            taken: 0,
        }
    }

    /// Takes a message. Entries that the reporter may not send are refused and counted; the others
    /// count. `is_managed` tells if the allocator schedules the flows of a host. O(entries).
    pub fn take(
        &mut self,
        _now_ns: u64,
        reporter: Reporter,
        telemetry: &Telemetry,
        topology: &Topology,
        _is_managed: impl Fn(HostId) -> bool,
    ) {
        let hosts = topology.hosts().len();
        for count in &telemetry.receivers {
            let receiver = HostId(count.receiver);
            let admitted = admit(
                self.config.receivers,
                reporter,
                &[receiver],
                hosts,
                count.age_ns,
                self.config.max_age_ns,
            );
            self.count(admitted);
        }
        for credit in &telemetry.credits {
            let ends = [HostId(credit.sender), HostId(credit.receiver)];
            let admitted = admit(
                self.config.credit,
                reporter,
                &ends,
                hosts,
                credit.age_ns,
                self.config.max_age_ns,
            );
            self.count(admitted);
        }
        for link in &telemetry.links {
            let admitted = link_of(reporter, link.link, topology).and(if !self.config.int {
                Err(Refused::Off)
            } else if link.age_ns >= self.config.max_age_ns {
                Err(Refused::TooOld)
            } else {
                Ok(())
            });
            self.count(admitted);
        }
    }

    fn count(&mut self, admitted: Result<(), Refused>) {
        match admitted {
            Ok(()) => self.taken += 1,
            Err(reason) => *self.refused.entry(reason).or_insert(0) += 1,
        }
    }

    /// Takes the load that the engine allocated to every link, in bit/s, by link index. The caller
    /// calls it after an iteration, as often as it calls [`apply`](Self::apply) or more.
    pub fn observe(&mut self, _now_ns: u64, _loads_bps: &[f64]) {}

    /// Hands over the changes that the measurements ask for.
    pub fn apply(
        &mut self,
        _now_ns: u64,
        _topology: &Topology,
        _changes: &mut dyn FnMut(FeedChange),
    ) {
    }

    /// Returns the maximum demand of a flow as its credit gives it, in bit/s; infinite without one.
    #[must_use]
    pub fn demand_bps(&self, _sender: HostId, _flow: u32) -> f64 {
        f64::INFINITY
    }

    /// Returns the entries taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the entries refused so far, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (Refused, u64)> + '_ {
        self.refused.iter().map(|(&reason, &count)| (reason, count))
    }
}

fn admit(
    on: bool,
    reporter: Reporter,
    ends: &[HostId],
    hosts: usize,
    age_ns: u64,
    max_age_ns: u64,
) -> Result<(), Refused> {
    if ends.iter().any(|host| host.index() >= hosts) {
        return Err(Refused::Unknown);
    }
    if let Reporter::Host(host) = reporter
        && !ends.contains(&host)
    {
        return Err(Refused::NotOfReporter);
    }
    if !on {
        return Err(Refused::Off);
    }
    if age_ns >= max_age_ns {
        return Err(Refused::TooOld);
    }
    Ok(())
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

#[cfg(test)]
mod tests;
