//! Reproduction of Dart (Xue et al.: *Dart: Divide and Specialize for Fast Response to Congestion
//! in RDMA-based Datacenter Networks*): apportioning by receivers and deflection by switches,
//! against DCTCP, DCQCN, TIMELY, RCP and ExpressPass.
//!
//! | file | what of the paper |
//! |---|---|
//! | [`convergence`] | fig. 9, fig. 15, §VI-D: time until flows share a link fairly |
//! | [`incast`] | fig. 10: incasts beside a long flow |
//! | [`loads`] | figures 11 to 13, tables I and II: latency and throughput by mix and load |
//! | [`techniques`] | fig. 14: what each technique gives |
//! | [`runs`] | runs behind both: incasts beside long flows on the oversubscribed fat tree |
//!
//! `dart.toml` has the transports, `verdicts.toml` the rows of the short form that do not agree,
//! with their causes. The paper's text lost several values; they are fixed here by what its other
//! numbers imply:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | links | 40 Gbit/s | the testbed's flow alone reaches 43 Gbit/s (§V-A), whose round trip the simulations share. At 10 Gbit/s, marks grow by a half from 20 to 60 % load, where table I has four times as many: an incast alone then fills its receiver's line |
//! | buffer | 225 kB per port | pFabric's evaluation, which §VI-A cites, has a tenth of the buffer for the threshold of 22.5 kB |
//! | delay of a link | 1 µs | six links each way take the 12 µs of the hardware's round trip (§V-A) |
//! | network | 16 pods of 4 racks of 16 hosts | hosts are 5.84 links apart on average; the paper has 5.8 (table II) |
//! | oversubscription | 4, at the racks' uplinks | §VI-A |
//! | long flows | 1 MB | none; see the sensitivity table |
//! | load | share of the racks' uplinks | beyond 25 % of hosts' links these are full, and the paper goes up to 80 % |
//! | short flows' share | 10 % light, 40 % typical (§VI-B), 70 % heavy | table II: load increases by that share of the path dilation, to 0.5 points in all 9 columns |
//! | begin of an incast's senders | each within 100 µs | the testbed's (§V-B). At one moment, 57 % of DCQCN's short packets are marked at 20 % load, of 5 to 33 % in table I: an incast of 8 kB is six times the threshold |
//! | groups of senders | 64 for each size of short flows | "groups of randomly-chosen servers" (§VI-A) without number |
//! | hosts under DCTCP | 11 µs per packet and host | 25.4 µs for 2 kB with TCP, by DCQCN's measurements (§VI-A: calibrated to these) |
//! | accepted distance | 25 % | the paper has one run without a word on chance |

pub mod convergence;
pub mod incast;
pub mod loads;
pub mod runs;
pub mod techniques;

use ratewright_topology::{EcmpConfig, Topology};

use super::{Experiment, ExperimentError, Reproduction, Settings, records};
use crate::net::{FabricConfig, Framing};
use crate::parameters::Setting;
use crate::plan::{PlannedTransport, read_transports};
use crate::report::figure::Figure;
use crate::report::plot::style::RGBColor;
use crate::report::plot::{Picture, style};
use crate::time::Span;

/// The experiments, in the order of the paper.
pub const DART: &[Experiment] = &[
    Experiment {
        name: "fig9",
        file_name: "fig09_convergence",
        title: "fig. 9, fig. 15, §VI-D: round trips until flows share a link",
        run: convergence::run,
        variations: &[],
    },
    Experiment {
        name: "fig10",
        file_name: "fig10_incast",
        title: "fig. 10: incasts beside a long flow, on one switch",
        run: incast::run,
        variations: OF_INCAST,
    },
    Experiment {
        name: "fig11",
        file_name: "fig11_loads",
        title: "figures 11 to 13, tables I and II: latency and throughput by mix and load",
        run: loads::run,
        variations: OF_LOADS,
    },
    Experiment {
        name: "fig14",
        file_name: "fig14_techniques",
        title: "fig. 14: what each of Dart's techniques gives",
        run: techniques::run,
        variations: OF_TECHNIQUES,
    },
];

/// Labels of `dart.toml`.
mod label {
    pub(super) const DART: &str = "Dart";
    pub(super) const IOFD_ONLY: &str = "IOFD only";
    pub(super) const DASR_ONLY: &str = "DASR only";
    pub(super) const WITHOUT_LOOK_AHEAD: &str = "DASR without LA";
    pub(super) const IN_SOFTWARE: &str = "DASR in software";
    pub(super) const FLOW_CONTROL: &str = "flow control";
    pub(super) const DCQCN: &str = "DCQCN";
    pub(super) const PRIORITIES: &str = "Pri-Q";
    pub(super) const TIMELY: &str = "TIMELY";
    pub(super) const DCTCP: &str = "DCTCP";
    pub(super) const RCP: &str = "RCP";
    pub(super) const EXPRESS_PASS: &str = "ExpressPass";
}

/// Other parameters of the loads, and of the techniques.
const OF_LOADS: &[&[&str]] = &[
    NO_JITTER,
    LONGER_FLOWS,
    SHORTER_FLOWS,
    SLOWER_LINKS,
    FASTER_UPLINKS,
    MORE_SENDERS,
    LOW_THRESHOLD,
    HIGH_THRESHOLD,
    TWO_TOKENS,
    LARGE_TABLE,
];
const OF_INCAST: &[&[&str]] = &[NO_JITTER];
const OF_TECHNIQUES: &[&[&str]] = &[LOW_THRESHOLD, HIGH_THRESHOLD];

/// Long flows of 10 MB, and of 250 kB: the text lost their size.
const LONGER_FLOWS: &[&str] = &["scene.long_bytes=10000000"];
const SHORTER_FLOWS: &[&str] = &["scene.long_bytes=250000"];
/// Links of 10 Gbit/s, on which the same thresholds are four times as long: 22.5 kB is DCTCP's at
/// that rate in pFabric's evaluation.
const SLOWER_LINKS: &[&str] = &["scene.link_rate=10Gbit/s", "dcqcn.mark_rate=10Gbit/s"];
/// Uplinks of four times the rate: an incast meets its receiver's link before any other.
const FASTER_UPLINKS: &[&str] = &["scene.uplink_speed=4"];
/// Incasts whose senders begin at one moment.
const NO_JITTER: &[&str] = &["scene.incast_jitter=0us"];
/// Incasts of 32 senders (§VI-C).
const MORE_SENDERS: &[&str] = &["scene.incast_senders=32"];
/// Thresholds of deflection of 5 and 20 kB (§VI-C).
const LOW_THRESHOLD: &[&str] = &["dart.deflection_bytes=5000"];
const HIGH_THRESHOLD: &[&str] = &["dart.deflection_bytes=20000"];
/// Half the tokens, and eight times the table.
const TWO_TOKENS: &[&str] = &["dart.deflection_tokens=2"];
const LARGE_TABLE: &[&str] = &["dart.deflection_entries=64"];

/// Bytes of packets and around them: 1,460 of payload (§VI-A, TIMELY's segments) in frames with
/// headers of Ethernet, IP, UDP and RoCEv2, preamble and gap.
const FRAMING: Framing = Framing {
    mss_bytes: 1_460,
    header_bytes: 82,
    min_wire_bytes: 84,
};

/// Processing of a packet by a host under DCTCP: 25.4 µs for 2 kB with TCP in DCQCN's measurements
/// (its §2.1), less 2.8 µs with RDMA's sends, over two hosts.
const TCP_HOST_DELAY: Span = Span::from_us(11);

/// ECMP by which packets and answers take one way, as ExpressPass needs, for every scheme.
const SYMMETRIC: EcmpConfig = EcmpConfig {
    seed: 0,
    symmetric: true,
};

/// A figure with its recorded verdicts, and its picture.
fn reproduction(mut figure: Figure, picture: Picture) -> Reproduction {
    records::record(include_str!("verdicts.toml"), &mut figure);
    Reproduction { figure, picture }
}

/// Returns a transport of `dart.toml` by its label.
fn transport(
    label: &str,
    topology: &Topology,
    settings: &Settings,
) -> Result<PlannedTransport, ExperimentError> {
    let host_delay = if label == label::DCTCP {
        TCP_HOST_DELAY
    } else {
        Span::ZERO
    };
    let fabric = FabricConfig {
        framing: FRAMING,
        host_delay,
        ..FabricConfig::default()
    };
    let text = include_str!("dart.toml");
    let of_schemes = settings.set.iter().filter(|s| s.name != runs::SCENE);
    let set: Vec<Setting> = of_schemes.cloned().collect();
    let all = read_transports(text, "dart.toml", topology, fabric, &set)?;
    all.into_iter()
        .find(|transport| transport.label == label)
        .ok_or_else(|| ExperimentError::NoContender(label.to_owned()))
}

/// Colour of a scheme, the same in all figures.
fn colour(label: &str) -> RGBColor {
    let schemes = [
        label::DART,
        label::DCQCN,
        label::TIMELY,
        label::DCTCP,
        label::IOFD_ONLY,
        label::DASR_ONLY,
        label::WITHOUT_LOOK_AHEAD,
        label::PRIORITIES,
        label::RCP,
        label::EXPRESS_PASS,
    ];
    // Two of the testbed's have the colours of two that no figure has beside them.
    let label = match label {
        label::IN_SOFTWARE => label::DART,
        label::FLOW_CONTROL => label::TIMELY,
        _ => label,
    };
    let index = schemes.iter().position(|scheme| *scheme == label);
    style::colour(index.unwrap_or(schemes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_has_a_transport() {
        let scene = runs::Scene::default();
        let topology = scene.topology().unwrap();
        let settings = Settings {
            first_seed: 1,
            seed_count: 1,
            quick: true,
            set: Vec::new(),
            store: None,
        };
        for label in [
            label::DART,
            label::IOFD_ONLY,
            label::DASR_ONLY,
            label::WITHOUT_LOOK_AHEAD,
            label::DCQCN,
            label::PRIORITIES,
            label::TIMELY,
            label::DCTCP,
            label::RCP,
            label::EXPRESS_PASS,
            label::IN_SOFTWARE,
            label::FLOW_CONTROL,
        ] {
            transport(label, &topology, &settings).unwrap();
        }
    }
}
