//! Network, workloads and configurations of SIRD's simulations (§6.2), and its testbed (§6.1).

use rand::RngExt as _;
use ratewright_topology::{EcmpConfig, HostId, Topology, TwoTierClos};
use serde::Serialize;

use crate::FlowSpec;
use crate::experiment::ExperimentError;
use crate::net::Framing;
use crate::rng::{Purpose, Stream};
use crate::time::{Span, Time};
use crate::workload::{FlowStream, Merge, Poisson, SizeDistribution};

/// Rate of hosts' links (§6.2), in bit/s.
pub const HOST_BPS: u64 = 100_000_000_000;
/// Hosts of a rack (§6.2).
pub const HOSTS_PER_RACK: u32 = 16;
/// Racks (§6.2).
pub const RACKS: u32 = 9;
/// Hosts (§6.2).
pub const HOSTS: u32 = RACKS * HOSTS_PER_RACK;
/// Spines (§6.2).
pub const SPINES: u32 = 4;
/// The bandwidth-delay product (table 2).
pub const BDP_BYTES: u64 = 100_000;
/// Bandwidth of a rack's switch, in Tbit/s: 16 links of 100 and 4 of 400 Gbit/s.
pub const TOR_TBPS: f64 = 3.2;
/// Delay of a host's link and of one between switches (the simulator's). With packets' own time
/// they make round trips of 5.5 and 7.5 µs (table 2).
const LINK_DELAYS: [Span; 2] = [Span::from_ns(1_250), Span::from_ns(500)];

/// Published sizes of messages (§6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Workload {
    /// RPCs at Google, 3 kB on average.
    WKa,
    /// Hadoop at Facebook, 125 kB on average.
    WKb,
    /// Web search, 2.5 MB on average.
    WKc,
}

impl Workload {
    /// All, in the order of the tables' columns.
    pub const ALL: [Self; 3] = [Self::WKa, Self::WKb, Self::WKc];

    /// Name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WKa => "WKa",
            Self::WKb => "WKb",
            Self::WKc => "WKc",
        }
    }

    /// Returns the distribution.
    ///
    /// # Errors
    /// None in truth; the reader's are passed on.
    pub fn sizes(self) -> Result<SizeDistribution, ExperimentError> {
        let name = match self {
            Self::WKa => "google-rpc",
            Self::WKb => "hadoop",
            Self::WKc => "web-search-wkc",
        };
        Ok(SizeDistribution::published(name)?)
    }
}

/// Traffic configuration (§6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Configuration {
    /// All-to-all.
    Balanced,
    /// All-to-all over half of the links between switches.
    Core,
    /// All-to-all, with incast beside it.
    Incast,
}

impl Configuration {
    /// All, in the order of the tables' columns.
    pub const ALL: [Self; 3] = [Self::Balanced, Self::Core, Self::Incast];

    /// Name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "Balanced",
            Self::Core => "Core",
            Self::Incast => "Incast",
        }
    }

    /// Returns the network.
    ///
    /// # Errors
    /// None in truth; the builder's are passed on.
    pub fn topology(self) -> Result<Topology, ExperimentError> {
        let fabric_capacity_bps = match self {
            Self::Core => 200_000_000_000,
            Self::Balanced | Self::Incast => 400_000_000_000,
        };
        let [host, core] = LINK_DELAYS;
        let network = TwoTierClos {
            racks: RACKS,
            hosts_per_rack: HOSTS_PER_RACK,
            spines: SPINES,
            host_capacity_bps: HOST_BPS,
            fabric_capacity_bps,
            host_delay_ns: host.as_ns(),
            fabric_delay_ns: core.as_ns(),
            // ExpressPass needs data on the way of its credit; others draw paths of their own.
            ecmp: EcmpConfig {
                seed: 0,
                symmetric: true,
            },
            ..TwoTierClos::default()
        };
        Ok(network.build()?)
    }

    /// Returns the share of hosts' links that an applied load is: where the core is half as fast,
    /// it is divided by 2 and by the 89 % of messages that cross it (§6.2).
    #[must_use]
    pub fn host_load(self, applied: f64) -> f64 {
        let crossing = f64::from(HOSTS - HOSTS_PER_RACK) / f64::from(HOSTS);
        match self {
            Self::Core => applied / (2.0 * crossing),
            Self::Balanced | Self::Incast => applied,
        }
    }

    /// Returns the messages of a run at an applied load, incast's with label 1.
    ///
    /// # Errors
    /// A load that cannot be.
    pub fn flows(
        self,
        workload: Workload,
        applied: f64,
        until: Time,
        seed: u64,
    ) -> Result<FlowStream, ExperimentError> {
        let load = self.host_load(applied);
        let sizes = workload.sizes()?;
        let span = (Time::ZERO, until);
        let poisson = |load: f64| Poisson::new(HOSTS, HOST_BPS, load, sizes, span, seed);
        if self != Self::Incast {
            return Ok(Box::new(poisson(load)?));
        }
        let incast = Bursts::new(INCAST_SHARE * load, until, seed);
        let beside = poisson((1.0 - INCAST_SHARE) * load)?;
        Ok(Box::new(Merge::new(vec![
            Box::new(beside),
            Box::new(incast),
        ])))
    }
}

/// Label of incast's messages.
pub const INCAST_LABEL: u16 = 1;
/// Share of the load that is incast (§6.2).
const INCAST_SHARE: f64 = 0.07;
/// Senders of an incast (§6.2).
const INCAST_SENDERS: usize = 30;
/// Bytes of each of its messages (§6.2).
const INCAST_BYTES: u64 = 500_000;

/// Incasts: periodically, random senders send to a random receiver (§6.2).
#[derive(Clone, Debug)]
struct Bursts {
    hosts: Vec<u32>,
    period_ps: f64,
    /// Number of the present incast, and of its senders that have been drawn.
    at: (u64, usize),
    phase: f64,
    until: Time,
    rng: Stream,
}

impl Bursts {
    fn new(load: f64, until: Time, seed: u64) -> Self {
        let bits = INCAST_SENDERS as f64 * INCAST_BYTES as f64 * 8.0;
        let rate_bps = load * f64::from(HOSTS) * HOST_BPS as f64;
        // A stream of its own beside that of the Poisson process.
        let mut rng = Stream::new(seed, Purpose::Arrivals, 1);
        Self {
            hosts: (0..HOSTS).collect(),
            period_ps: 1e12 * bits / rate_bps,
            at: (0, 0),
            phase: rng.random(),
            until,
            rng,
        }
    }
}

impl Iterator for Bursts {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        let (number, drawn) = self.at;
        let start = Time::from_ps(((number as f64 + self.phase) * self.period_ps) as u64);
        if start >= self.until {
            return None;
        }
        // Steps of a Fisher–Yates shuffle draw without replacement: the receiver, then senders.
        let mut draw = |at: usize| {
            let pick = self.rng.random_range(at..self.hosts.len());
            self.hosts.swap(at, pick);
        };
        if drawn == 0 {
            draw(0);
        }
        draw(drawn + 1);
        let [dst, src] = [0, drawn + 1].map(|i| HostId(self.hosts[i]));
        self.at = if drawn + 1 < INCAST_SENDERS {
            (number, drawn + 1)
        } else {
            (number + 1, 0)
        };
        Some(FlowSpec::new(src, dst, INCAST_BYTES, start))
    }
}

/// Least time of a message by the definition of the authors' simulator: its payload at the rate
/// of a host's link, and the propagation of its path.
#[must_use]
pub fn least_time(src: HostId, dst: HostId, bytes: u64) -> Span {
    let [host, core] = LINK_DELAYS;
    let crosses = src.0 / HOSTS_PER_RACK != dst.0 / HOSTS_PER_RACK;
    let propagation = host + host + if crosses { core + core } else { Span::ZERO };
    // 80 ps for a byte.
    propagation + Span(bytes * (8_000_000_000_000 / HOST_BPS))
}

/// The testbed: hosts of one rack with jumbo frames and a round trip of 18 µs through software
/// (§6.1).
pub mod testbed {
    use super::{ExperimentError, Framing, HOST_BPS, Span, Topology, TwoTierClos};

    /// Hosts: six senders, a seventh, and a receiver; for figure 4 a sender and three receivers.
    pub const HOSTS: u32 = 8;
    /// 24 frames are a bandwidth-delay product of 216 kB (§6.1).
    pub const FRAMING: Framing = Framing {
        mss_bytes: 8_922,
        header_bytes: 78,
        min_wire_bytes: 84,
    };
    /// The bandwidth-delay product (§6.1).
    pub const BDP_BYTES: f64 = 216_000.0;
    /// Delay of a link, of which the text says nothing.
    const LINK_DELAY: Span = Span::from_ns(500);
    /// Processing of a host, such that a full frame and its credit take 18 µs (§6.1).
    pub const HOST_DELAY: Span = Span::from_ns(3_637);

    /// Returns the rack.
    ///
    /// # Errors
    /// None in truth; the builder's are passed on.
    pub fn topology() -> Result<Topology, ExperimentError> {
        let rack = TwoTierClos {
            racks: 1,
            hosts_per_rack: HOSTS,
            spines: 1,
            host_capacity_bps: HOST_BPS,
            fabric_capacity_bps: HOST_BPS,
            host_delay_ns: LINK_DELAY.as_ns(),
            fabric_delay_ns: LINK_DELAY.as_ns(),
            ..TwoTierClos::default()
        };
        Ok(rack.build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ideal::completion_time;

    /// Table 2: 5.5 and 7.5 µs for a packet and its answer; §6.1: 18 µs.
    #[test]
    fn round_trips_are_the_papers() {
        let topology = Configuration::Balanced.topology().unwrap();
        let framing = Framing::default();
        for (dst, round_trip_us) in [(1, 5.5), (143, 7.5)] {
            let time = |src, dst, bytes| {
                let ends = (HostId(src), HostId(dst));
                completion_time(&topology, framing, Span::ZERO, ends, bytes).unwrap()
            };
            let round_trip = time(0, dst, 1_460) + time(dst, 0, 0);
            let us = round_trip.as_us_f64();
            assert!((us - round_trip_us).abs() < 0.26, "{us}");
        }
        let topology = testbed::topology().unwrap();
        let time = |bytes| {
            let ends = (HostId(0), HostId(1));
            completion_time(
                &topology,
                testbed::FRAMING,
                testbed::HOST_DELAY,
                ends,
                bytes,
            )
        };
        let us = (time(8_922).unwrap() + time(0).unwrap()).as_us_f64();
        assert!((us - 18.0).abs() < 0.01, "{us}");
    }

    /// §6.2: 7 % of the load are incasts of 30 distinct hosts to another one.
    #[test]
    fn incasts_are_of_30_hosts_and_7_percent_of_the_load() {
        let until = Time::from_ms(20);
        let flows = Configuration::Incast.flows(Workload::WKa, 0.5, until, 3);
        let flows: Vec<FlowSpec> = flows.unwrap().collect();
        let incast = flows.iter().filter(|flow| flow.label == INCAST_LABEL);
        let incast: Vec<&FlowSpec> = incast.collect();
        let bits = incast.len() as f64 * INCAST_BYTES as f64 * 8.0;
        let load = bits / (f64::from(HOSTS) * HOST_BPS as f64 * 20e-3);
        assert!((load / 0.035 - 1.0).abs() < 0.05, "{load}");
        for burst in incast.chunks_exact(INCAST_SENDERS) {
            let of_one =
                |flow: &&&FlowSpec| (flow.start, flow.dst) == (burst[0].start, burst[0].dst);
            assert_eq!(burst.iter().filter(of_one).count(), INCAST_SENDERS);
            let mut ends: Vec<u32> = burst.iter().map(|flow| flow.src.0).collect();
            ends.push(burst[0].dst.0);
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(ends.len(), INCAST_SENDERS + 1);
        }
        assert!(flows.is_sorted_by_key(|flow| flow.start));
    }

    /// Of the reference's runs: 8 bytes take 2.5 and 3.5 µs, and 80 ps each.
    #[test]
    fn the_least_time_is_payload_and_propagation() {
        let [near, far] = [1, 16].map(|dst| least_time(HostId(0), HostId(dst), 1_000));
        assert_eq!((near.0, far.0), (2_580_000, 3_580_000));
    }

    /// The core's 800 Gbit/s of a rack are all in use at an applied load of 1: 89 % of the rack's
    /// messages cross it.
    #[test]
    fn the_core_is_full_at_a_load_of_1() {
        let of_hosts = Configuration::Core.host_load(1.0) * 16.0 * 100.0;
        assert!((of_hosts * 128.0 / 144.0 - 800.0).abs() < 1e-9);
    }
}
