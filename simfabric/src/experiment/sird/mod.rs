//! Reproduction of SIRD's evaluation (Prasopoulos et al.: *SIRD: A Sender-Informed,
//! Receiver-Driven Datacenter Transport Protocol*, NSDI 2025): credit by receivers that senders and
//! core inform, against Homa, dcPIM, ExpressPass, DCTCP and Swift.
//!
//! | file | what of the paper |
//! |---|---|
//! | [`fig01_homa_queues`] | fig. 1: distributions of Homa's queues; table 3 for our queues |
//! | [`sensitivity`] | figures 2, 9, 10, 11: overcommitment, B and SThr, UnschT, priorities |
//! | [`headlines`] | §1, §6.2.1: the headlines, and how much of tables 4 and 5 is as in the paper |
//! | [`fig03_incast`] | fig. 3: small and scheduled messages beside an incast |
//! | [`fig04_outcast`] | fig. 4: where credit is under a congested sender |
//! | [`tables`] | tables 4 and 5, figures 5 to 8, 12, 13 |
//! | [`paper`] | numbers of tables 3, 4 and 5 |
//! | `verdicts.toml` | rows of the short form that do not agree, with their causes |
//! | [`runs`] | runs behind all but figures 3 and 4, and their measures |
//! | [`scene`] | §6.1, §6.2: networks, workloads, configurations |
//!
//! `sird.toml` has the transports, with the source of each value. What else the paper's text lacks
//! is fixed here, before any run:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | the testbed's links | 0.5 µs, hosts 3.6 µs | they make the text's round trip of 18 µs |
//! | senders of 17 Gbit/s (fig. 3) | a message of 10 MB every 4.7 ms each, at a random phase | "in an open loop" |
//! | probes (fig. 3) | 8 bytes every 100 µs, 500 kB every ms | "periodically" |
//! | stages (fig. 4) | 4 ms, of which the last half counts | the paper's are of seconds |

pub mod fig01_homa_queues;
pub mod fig03_incast;
pub mod fig04_outcast;
pub mod headlines;
pub mod paper;
pub mod runs;
pub mod scene;
pub mod sensitivity;
pub mod tables;

use ratewright_topology::Topology;

use super::{Experiment, ExperimentError, Reproduction, Settings, records};
use crate::net::FabricConfig;
use crate::parameters::Setting;
use crate::plan::{PlannedTransport, read_transports};
use crate::report::figure::Figure;
use crate::report::plot::Picture;
use crate::report::plot::style::{self, RGBColor};

/// The experiments, in the order of the paper.
pub const SIRD: &[Experiment] = &[
    Experiment {
        name: "headlines",
        file_name: "headlines",
        title: "§1: the headlines, and how much of the tables is as in the paper",
        run: headlines::run,
        variations: &[],
    },
    Experiment {
        name: "fig1",
        file_name: "fig01_homa_queues",
        title: "fig. 1: distributions of Homa's queues",
        run: fig01_homa_queues::run,
        variations: &[],
    },
    Experiment {
        name: "fig2",
        file_name: "fig02_overcommitment",
        title: "fig. 2: queues against goodput over the overcommitment",
        run: sensitivity::fig02,
        variations: &[],
    },
    Experiment {
        name: "fig3",
        file_name: "fig03_incast",
        title: "fig. 3: latency of messages beside an incast",
        run: fig03_incast::run,
        variations: &[
            &["sird.pacing=false"],
            &["sird.credit=1.0"],
            &["sird.credit=2.0"],
        ],
    },
    Experiment {
        name: "fig4",
        file_name: "fig04_outcast",
        title: "fig. 4: credit at a congested sender and at its receivers",
        run: fig04_outcast::run,
        variations: &[&["sird.gain=0.04"], &["sird.gain=0.16"]],
    },
    Experiment {
        name: "table4",
        file_name: "table4_slowdown",
        title: "table 4, fig. 5a: slowdown of six protocols at 50 %",
        run: tables::table4,
        variations: &[
            &["sird.uplink=srpt"],
            &["dctcp.warm_connections=0", "swift.warm_connections=0"],
            &["dcpim.priorities=sizes"],
            &["expresspass.rules=simulator"],
        ],
    },
    Experiment {
        name: "table5",
        file_name: "table5_goodput_and_queues",
        title: "table 5, figures 5b and 5c: goodput and queues of six protocols",
        run: tables::table5,
        variations: &[],
    },
    Experiment {
        name: "fig6",
        file_name: "fig06_largest_queues",
        title: "fig. 6: largest queues against goodput",
        run: tables::fig06,
        variations: &[],
    },
    Experiment {
        name: "fig7",
        file_name: "fig07_slowdown",
        title: "fig. 7: slowdown by size at 50 %",
        run: tables::fig07,
        variations: &[],
    },
    Experiment {
        name: "fig8",
        file_name: "fig08_slowdown",
        title: "fig. 8: slowdown by size at 70 %",
        run: tables::fig08,
        variations: &[],
    },
    Experiment {
        name: "fig12",
        file_name: "fig12_slowdown",
        title: "fig. 12: slowdown of WKb by size at 50 %",
        run: tables::fig12,
        variations: &[],
    },
    Experiment {
        name: "fig13",
        file_name: "fig13_mean_queues",
        title: "fig. 13: mean queues against goodput",
        run: tables::fig13,
        variations: &[],
    },
    Experiment {
        name: "fig9",
        file_name: "fig09_informed_overcommitment",
        title: "fig. 9: goodput over B and SThr, and where credit is",
        run: sensitivity::fig09,
        variations: &[],
    },
    Experiment {
        name: "fig10",
        file_name: "fig10_unscheduled",
        title: "fig. 10: slowdown over UnschT",
        run: sensitivity::fig10,
        variations: &[],
    },
    Experiment {
        name: "fig11",
        file_name: "fig11_priorities",
        title: "fig. 11: slowdown over the use of priorities",
        run: sensitivity::fig11,
        variations: &[],
    },
    Experiment {
        name: "table3",
        file_name: "table3_buffers",
        title: "table 3: our queues in switches' buffers",
        run: fig01_homa_queues::table3,
        variations: &[],
    },
];

/// Labels of `sird.toml`, Homa's without its workload.
mod label {
    pub(super) const SIRD: &str = "SIRD";
    pub(super) const HOMA: &str = "Homa";
    pub(super) const DCPIM: &str = "dcPIM";
    pub(super) const EXPRESSPASS: &str = "ExpressPass";
    pub(super) const DCTCP: &str = "DCTCP";
    pub(super) const SWIFT: &str = "Swift";
}

/// Compared protocols, in the order of the paper's tables.
const PROTOCOLS: [&str; 6] = [
    label::DCTCP,
    label::SWIFT,
    label::EXPRESSPASS,
    label::HOMA,
    label::DCPIM,
    label::SIRD,
];

/// Colour of a protocol, the same in all figures.
fn colour(label: &str) -> RGBColor {
    let all = [
        label::SIRD,
        label::HOMA,
        label::DCPIM,
        label::EXPRESSPASS,
        label::DCTCP,
        label::SWIFT,
    ];
    let index = all.iter().position(|protocol| *protocol == label);
    style::colour(index.unwrap_or(all.len()))
}

/// A figure with its recorded verdicts, and its picture.
fn reproduction(mut figure: Figure, picture: Picture) -> Reproduction {
    records::record(include_str!("verdicts.toml"), &mut figure);
    Reproduction { figure, picture }
}

/// Returns the testbed's SIRD (§6.1), with its bandwidth-delay product and without priorities, and
/// with one parameter of the case's own.
fn testbed_transport(
    settings: &Settings,
    topology: &Topology,
    own: &str,
) -> Result<PlannedTransport, ExperimentError> {
    let options = ["sird.bdp_bytes=216000", "sird.first_priority=none", own];
    let set: Result<Vec<Setting>, _> = options.iter().map(|option| option.parse()).collect();
    let fabric = FabricConfig {
        framing: scene::testbed::FRAMING,
        host_delay: scene::testbed::HOST_DELAY,
        ..FabricConfig::default()
    };
    transport(label::SIRD, topology, fabric, settings, &set?)
}

/// Returns a transport of `sird.toml` by its label, with parameters of the case's own.
fn transport(
    label: &str,
    topology: &Topology,
    fabric: FabricConfig,
    settings: &Settings,
    own: &[Setting],
) -> Result<PlannedTransport, ExperimentError> {
    let text = include_str!("sird.toml");
    // The user's settings come last: they replace a case's.
    let set: Vec<Setting> = own.iter().chain(&settings.set).cloned().collect();
    let all = read_transports(text, "sird.toml", topology, fabric, &set)?;
    all.into_iter()
        .find(|transport| transport.label == label)
        .ok_or_else(|| ExperimentError::NoContender(label.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &[&str]) -> Settings {
        Settings {
            first_seed: 1,
            seed_count: 1,
            quick: true,
            set: options.iter().map(|o| o.parse().unwrap()).collect(),
            store: None,
        }
    }

    /// A variation that changes nothing, or that is refused, would only show when it is run.
    #[test]
    fn every_variation_changes_a_transport() {
        let topology = scene::testbed::topology().unwrap();
        let keys = |options: &[&str]| {
            [label::SIRD, label::DCTCP, label::DCPIM, label::EXPRESSPASS].map(|label| {
                let fabric = FabricConfig::default();
                let all = settings(options);
                transport(label, &topology, fabric, &all, &[])
                    .unwrap()
                    .key()
            })
        };
        for experiment in SIRD {
            for variation in experiment.variations {
                assert_ne!(keys(variation), keys(&[]), "{variation:?}");
            }
        }
    }

    /// Queues have no limit (§6.2), and each protocol has a transport for every workload.
    #[test]
    fn every_protocol_runs_over_queues_without_limit() {
        use crate::net::QueueConfig;
        use crate::net::queue::Limit;
        let topology = scene::Configuration::Core.topology().unwrap();
        for workload in scene::Workload::ALL {
            for label in PROTOCOLS {
                let case = runs::Case::new(label, (scene::Configuration::Core, workload), 0.5);
                let transport = case.transport(&topology, &settings(&[])).unwrap();
                for queue in [&transport.fabric.edge, &transport.fabric.core] {
                    for each in queue.of_classes() {
                        let limit = match each {
                            QueueConfig::DropTail(drop_tail) => &drop_tail.limit,
                            QueueConfig::EcnThreshold(marking) => &marking.limit,
                            other => panic!("{label}: {}", other.discipline()),
                        };
                        // ExpressPass limits its credit.
                        let is_credit = label == label::EXPRESSPASS && *limit == Limit::packets(8);
                        assert!(
                            is_credit || *limit == Limit::default(),
                            "{label}: {limit:?}"
                        );
                    }
                }
            }
        }
    }
}
