//! Reproduction of RPM (Baganal-Krishna, Tran, Kundel, Rizk: *Accelerating End-host Congestion
//! Response using P4 Programmable Switches*): CoDel's marks forward against marks in
//! acknowledgements.
//!
//! | file | what of the paper |
//! |---|---|
//! | [`table2_fairness`] | table II: throughput of long Cubic flows with equal and unequal round trips |
//! | [`fig05_completion_times`] | fig. 5: completion of short DCTCP flows |
//! | [`lemma1_stability`] | lemma 1: η and s*, and the loop on both sides of the bound |
//! | [`asymmetric_paths`] | §III-C: acknowledgements that come back another way |
//! | [`model`] | §IV: the paper's model |
//!
//! `rpm.toml` has the transports and queues, with the source of each value. The rest is fixed here,
//! before any run, for what the paper's text lacks:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | acknowledgements | one per packet | the model's (§IV); a Linux receiver delays them, which halves those that can take a mark |
//! | switches' links | 1 µs | short against every delay that the paper sets |
//! | patience of RPM | 250 ms | above all round trips of table I: Algorithm 1 has no bound |

pub mod asymmetric_paths;
pub mod fig05_completion_times;
pub mod lemma1_stability;
pub mod model;
pub mod table2_fairness;

use std::fmt::Write as _;

use ratewright_topology::Topology;

use super::monitor::MONITOR;
use super::{Experiment, ExperimentError, Settings};
use crate::net::queue::rpm::{self, Scope};
use crate::net::{FabricConfig, QueueConfig};
use crate::plan::{PlannedTransport, read_transports};
use crate::results::RunResults;
use crate::run::Config;
use crate::time::{Span, Time};
use crate::units::Delay;
use crate::workload::FlowStream;

/// The experiments, in the order of the paper.
pub const RPM: &[Experiment] = &[
    Experiment {
        name: "table2",
        file_name: "table2_fairness",
        title: "table II: Jain's index of long Cubic flows",
        run: table2_fairness::run,
        variations: &[
            &["cubic.growth=continuous"],
            &["cubic.hystart=false"],
            &["cubic.queue.interval=100ms"],
        ],
    },
    Experiment {
        name: "fig5",
        file_name: "fig05_completion_times",
        title: "fig. 5: completion times of short DCTCP flows",
        run: fig05_completion_times::run,
        variations: &[&["dctcp.min_rto=200ms"], &["dctcp.queue.target=100us"]],
    },
    Experiment {
        name: "lemma1",
        file_name: "lemma1_stability",
        title: "lemma 1: stability of the delayed loop",
        run: lemma1_stability::run,
        variations: &[],
    },
    Experiment {
        name: "asymmetric",
        file_name: "asymmetric_paths",
        title: "§III-C: acknowledgements that come back another way",
        run: asymmetric_paths::run,
        variations: &[],
    },
];

/// Rate of hosts' links, and of the bottleneck (§V-B), in bit/s.
const HOST_BPS: u64 = 10_000_000_000;
/// Sender-receiver pairs (§V-B).
const PAIRS: u32 = 10;
/// Delay of links between switches.
const SWITCH_DELAY: Span = Span::from_us(1);

/// Direction of a discipline's marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Marking {
    /// In data packets, through the receiver: the paper's CoDel-FWD.
    Forward,
    /// In acknowledgements, by flow: RPM.
    Reverse,
    /// In acknowledgements of any flow of the port: RPM with one state per port (§III-C).
    ReverseByPort,
}

impl Marking {
    /// Name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "CoDel-FWD",
            Self::Reverse => "RPM",
            Self::ReverseByPort => "RPM by port",
        }
    }

    /// Returns the discipline with its marks in this direction.
    fn of(self, discipline: QueueConfig) -> QueueConfig {
        let scope = match self {
            Self::Forward => return discipline,
            Self::Reverse => Scope::Flow,
            Self::ReverseByPort => Scope::Port,
        };
        QueueConfig::Rpm(rpm::Config {
            each: discipline.into(),
            scope,
            patience: Delay::from_ms(250),
            ..rpm::Config::default()
        })
    }
}

/// The testbed (fig. 4): senders 0 to 9 – S1 – R1 – S2 – receivers 10 to 19.
struct Testbed {
    /// Rate of the link from S1 to R1, and of that from R1 to S2, in bit/s.
    rates_bps: [u64; 2],
    /// One-way delay of the senders' links.
    senders: Span,
    /// One-way delay of the receivers' links, by pair.
    receivers: [Span; PAIRS as usize],
}

impl Testbed {
    fn topology(&self) -> Result<Topology, ExperimentError> {
        // Two racks under one spine are the testbed's line of three switches.
        let mut text = format!(
            "kind = \"two_tier_clos\"\n[parameters]\nracks = 2\nhosts_per_rack = {PAIRS}\n\
             spines = 1\nhost_capacity = \"{HOST_BPS}bit/s\"\n\
             fabric_capacity = \"{}bit/s\"\nhost_delay = \"{}ns\"\nfabric_delay = \"{}ns\"\n\
             ipv4_base = \"none\"\nipv6_base = \"none\"\n",
            self.rates_bps[0],
            self.senders.as_ns(),
            SWITCH_DELAY.as_ns(),
        );
        let mut link = |from: &str, to: &str, key: &str, value: String| {
            for (from, to) in [(from, to), (to, from)] {
                let _ = write!(
                    text,
                    "[[link]]\nfrom = \"{from}\"\nto = \"{to}\"\n{key} = \"{value}\"\n"
                );
            }
        };
        link(
            "spine1",
            "leaf2",
            "capacity",
            format!("{}bit/s", self.rates_bps[1]),
        );
        for (pair, delay) in (1..).zip(self.receivers) {
            let host = format!("h{}", PAIRS + pair);
            link(&host, "leaf2", "delay", format!("{}ns", delay.as_ns()));
        }
        Ok(Topology::from_toml_str(&text, "RPM's testbed")?)
    }
}

/// Returns a transport of `rpm.toml` by its scheme, over switches that mark in this direction.
fn transport(
    scheme: &str,
    marking: Marking,
    topology: &Topology,
    host_delay: Span,
    settings: &Settings,
) -> Result<PlannedTransport, ExperimentError> {
    let fabric = FabricConfig {
        host_delay,
        ..FabricConfig::default()
    };
    let text = include_str!("rpm.toml");
    let all = read_transports(text, "rpm.toml", topology, fabric, &settings.set)?;
    let mut transport = all
        .into_iter()
        .find(|transport| transport.label == scheme)
        .ok_or_else(|| ExperimentError::NoContender(scheme.to_owned()))?;
    let FabricConfig { edge, core, .. } = &mut transport.fabric;
    for queue in [edge, core] {
        *queue = marking.of(std::mem::take(queue));
    }
    Ok(transport)
}

/// Runs flows until a time and returns the results.
fn results(
    transport: &PlannedTransport,
    topology: &Topology,
    config: Config,
    flows: FlowStream,
    end: Time,
) -> Result<RunResults, ExperimentError> {
    let mut run = transport.start(config, topology, flows)?;
    MONITOR.run_until(&mut *run, end)?;
    let results = run.results();
    results.conservation?;
    Ok(results)
}
