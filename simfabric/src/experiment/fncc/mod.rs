//! Reproduction of FNCC (Xu et al.: *FNCC: Fast Notification Congestion Control in Data Center
//! Networks*): congestion's news by the acknowledgements that pass it, against HPCC, DCQCN and
//! RoCC.
//!
//! | file | what of the paper |
//! |---|---|
//! | [`fig01_queues`] | fig. 1b–d: queues of two flows at 100, 200 and 400 Gbit/s |
//! | [`fig03_pauses`] | fig. 3: pauses of the same flows |
//! | [`fig10_response`] | fig. 10: the same flows' first slow-down, rates, queues and throughput |
//! | [`int_age`] | fig. 12, §5.4.1: age of each hop's telemetry at the sender, exactly |
//! | [`fig13_hops`] | fig. 13: congestion at the first, middle and last hop; four flows' fairness |
//! | [`slowdown`] | figures 14 and 15: web search and Hadoop on the fat tree |
//! | [`beyond`] | not in the paper: the same scenes under PowerTCP, θ-PowerTCP and Swift |
//! | [`two_flows`] | runs behind figures 1, 3, 10 and 13, and `beyond` |
//! | [`scene`] | figures 9 and 11, §5.5: the networks |
//!
//! `fncc.toml` has the transports, with the source of each value. What else the paper's text lacks
//! is fixed here, before any run:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | packets | 1,456 bytes of payload, 1,538 on the link | a frame of 1,518 bytes (§5) has 62 of Ethernet, IP, UDP and RoCEv2; preamble and gap take 20 |
//! | paths of fig. 11 | three switches each, flows meet at the same hop of both | the text names the hop alone |
//! | end of figures 1, 3, 10 and 13 | 1 ms | the text has no time after 450 µs |
//! | reading of times of fig. 10 | ± 5 µs | the text has them off a plot |
//! | reading of reductions | ± 25 % of them | the paper has one run without a word on chance |

pub mod beyond;
pub mod fig01_queues;
pub mod fig03_pauses;
pub mod fig10_response;
pub mod fig13_hops;
pub mod int_age;
pub mod scene;
pub mod slowdown;
pub mod two_flows;

use ratewright_topology::Topology;

use super::{Experiment, ExperimentError, Settings};
use crate::net::{FabricConfig, Framing};
use crate::plan::{PlannedTransport, read_transports};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Row};
use crate::report::plot::style::RGBColor;
use crate::report::plot::{Curve, style};

/// The experiments, in the order of the paper.
pub const FNCC: &[Experiment] = &[
    Experiment {
        name: "fig1",
        file_name: "fig01_queues",
        title: "fig. 1b–d: queues of two flows at 100, 200 and 400 Gbit/s",
        run: fig01_queues::run,
        variations: OF_QUEUES,
    },
    Experiment {
        name: "fig3",
        file_name: "fig03_pauses",
        title: "fig. 3: pauses of two flows at 200 and 400 Gbit/s",
        run: fig03_pauses::run,
        variations: OF_PAUSES,
    },
    Experiment {
        name: "fig10",
        file_name: "fig10_response",
        title: "fig. 10: response of a flow to another one that joins it",
        run: fig10_response::run,
        variations: OF_RESPONSES,
    },
    Experiment {
        name: "fig12",
        file_name: "fig12_telemetry_age",
        title: "fig. 12: age of each hop's telemetry at the sender",
        run: int_age::run,
        variations: &[],
    },
    Experiment {
        name: "fig13",
        file_name: "fig13_hops",
        title: "fig. 13: congestion at the first, middle and last hop",
        run: fig13_hops::run,
        variations: OF_HOPS,
    },
    Experiment {
        name: "fig14",
        file_name: "fig14_web_search",
        title: "fig. 14: slowdown of web search on a fat tree",
        run: slowdown::web_search,
        variations: OF_TREES,
    },
    Experiment {
        name: "fig15",
        file_name: "fig15_hadoop",
        title: "fig. 15: slowdown of Hadoop on a fat tree",
        run: slowdown::hadoop,
        variations: OF_TREES,
    },
    Experiment {
        name: "beyond",
        file_name: "beyond_the_paper",
        title: "beyond the paper: FNCC beside PowerTCP, θ-PowerTCP and Swift",
        run: beyond::run,
        variations: &[],
    },
];

/// Labels of `fncc.toml`.
mod label {
    pub(super) const FNCC: &str = "FNCC";
    pub(super) const WITHOUT_LHCS: &str = "FNCC without LHCS";
    pub(super) const HPCC: &str = "HPCC";
    pub(super) const DCQCN: &str = "DCQCN";
    pub(super) const ROCC: &str = "RoCC";
    pub(super) const POWER_TCP: &str = "PowerTCP";
    pub(super) const THETA_POWER_TCP: &str = "θ-PowerTCP";
    pub(super) const SWIFT: &str = "Swift";
}

/// Other parameters of fig. 1, of fig. 3, of fig. 10, of fig. 13, and of the fat tree's runs.
const OF_QUEUES: &[&[&str]] = &[
    WITHOUT_LHCS,
    HIGHER_ALPHA,
    HIGHER_BETA,
    PERIODIC_TABLE,
    PER_ROUND_TRIP,
    DCQCN_OF_HPCC,
];
const OF_PAUSES: &[&[&str]] = &[DCQCN_OF_HPCC, HALF_XOFF];
const OF_RESPONSES: &[&[&str]] = &[
    WITHOUT_LHCS,
    LHCS_OF_WINDOWS,
    HIGHER_ALPHA,
    HIGHER_BETA,
    PERIODIC_TABLE,
    PER_ROUND_TRIP,
    WITHOUT_STAGES,
    DCQCN_OF_HPCC,
    ROCC_AT_100G,
    ROCC_GAINS,
];
const OF_HOPS: &[&[&str]] = &[
    LHCS_OF_WINDOWS,
    HIGHER_ALPHA,
    HIGHER_BETA,
    PERIODIC_TABLE,
    PER_ROUND_TRIP,
    WITHOUT_STAGES,
];
const OF_TREES: &[&[&str]] = &[WITHOUT_LHCS, HIGHER_ALPHA, HIGHER_BETA, DCQCN_OF_HPCC];

/// FNCC without the last hop's speed-up.
const WITHOUT_LHCS: &[&str] = &["fncc.last_hop=none"];

/// The last hop's speed-up of the window itself (§3.2.2 in words).
const LHCS_OF_WINDOWS: &[&str] = &["fncc.last_hop=window"];

/// Load of the last hop that noise does not reach.
///
/// A frame of 1,538 bytes is 12.016 units of 128. The difference of two stamps a packet apart is
/// therefore 13 units at times, which is a load of 1.08 of a link that is just full.
const HIGHER_ALPHA: &[&str] = &["fncc.alpha=1.15"];

/// The whole fair rate at the last hop.
const HIGHER_BETA: &[&str] = &["fncc.beta=1"];

/// Switches whose table of telemetry is a microsecond old at most (§4.1 has no period).
const PERIODIC_TABLE: &[&str] = &["fncc.table_period=1us"];

/// One reaction per round trip.
const PER_ROUND_TRIP: &[&str] = &["fncc.per_ack=false", "hpcc.per_ack=false"];

/// No additive steps, as in HPCC's public simulator.
const WITHOUT_STAGES: &[&str] = &["fncc.max_stage=0", "hpcc.max_stage=0"];

/// Thresholds of RoCC from memory of its paper for 100 Gbit/s: 300, 600 and 660 kB.
const ROCC_AT_100G: &[&str] = &[
    "rocc.reference_bytes=120000",
    "rocc.halving_bytes=240000",
    "rocc.most_bytes=264000",
];

/// RoCC's other gains, of which its authors' modules do not say for which links they are.
const ROCC_GAINS: &[&str] = &["rocc.alpha=0.8", "rocc.beta=2.4"];

/// Pauses at 250 kB of a port: at 500 kB of a queue that two ports fill.
const HALF_XOFF: &[&str] = &[
    "fncc.xoff_bytes=250000",
    "hpcc.xoff_bytes=250000",
    "dcqcn.xoff_bytes=250000",
    "rocc.xoff_bytes=250000",
];

/// DCQCN as HPCC's evaluation has it: thresholds for 25 Gbit/s of 100 and 400 kB, intervals of 50
/// and 55 µs (its public simulator).
const DCQCN_OF_HPCC: &[&str] = &[
    "dcqcn.mark_rate=25Gbit/s",
    "dcqcn.mark_min_bytes=100000",
    "dcqcn.mark_max_bytes=400000",
    "dcqcn.mark_probability=0.2",
    "dcqcn.alpha_interval=50us",
];

/// Bytes of packets and around them: frames of 1,518 bytes (§5) with headers of Ethernet, IP, UDP
/// and RoCEv2 (62 bytes), preamble and gap.
const FRAMING: Framing = Framing {
    mss_bytes: 1_456,
    header_bytes: 82,
    min_wire_bytes: 84,
};

/// Returns a transport of `fncc.toml` by its label.
fn transport(
    label: &str,
    topology: &Topology,
    settings: &Settings,
) -> Result<PlannedTransport, ExperimentError> {
    let fabric = FabricConfig {
        framing: FRAMING,
        ..FabricConfig::default()
    };
    let text = include_str!("fncc.toml");
    let all = read_transports(text, "fncc.toml", topology, fabric, &settings.set)?;
    all.into_iter()
        .find(|transport| transport.label == label)
        .ok_or_else(|| ExperimentError::NoContender(label.to_owned()))
}

/// Returns true if a setting gives a transport what its label denies: both of FNCC's take it.
fn is_mislabelled(label: &str, settings: &Settings) -> bool {
    let mut set = settings.set.iter();
    label == label::WITHOUT_LHCS && set.any(|s| s.name == "fncc" && s.key == "last_hop")
}

/// Row of the packets that a scheme dropped: none, since switches pause those that send to them.
fn drops_row(label: &str, drops: Option<Estimate>) -> Row {
    Row::judge(
        format!("{label}: packets dropped"),
        Claim::words("none").at_least(0.0).at_most(0.0),
        drops,
        "packets",
    )
}

/// Colour of a scheme, the same in all figures.
fn colour(label: &str) -> RGBColor {
    let schemes = [
        label::FNCC,
        label::HPCC,
        label::DCQCN,
        label::ROCC,
        label::WITHOUT_LHCS,
        label::POWER_TCP,
        label::THETA_POWER_TCP,
        label::SWIFT,
    ];
    let index = schemes.iter().position(|scheme| *scheme == label);
    style::colour(index.unwrap_or(schemes.len()))
}

/// The curve of a scheme's run between two times. `None` is a run that is missing.
fn curve(label: &str, points: Option<&Vec<(f64, f64)>>, (from, to): (f64, f64)) -> Curve {
    let points = points.into_iter().flatten().copied();
    // Points beyond the axis would be drawn at its end.
    let points = points.filter(|(at, _)| (from..=to).contains(at));
    Curve::new(label, points.collect()).colour(colour(label))
}

/// Scenario of two flows that meet, in words.
fn two_flow_scenario(hop: scene::Hop) -> Vec<String> {
    vec![
        format!("two flows over three switches meet at the {}", hop.name()),
        format!(
            "flow 0 begins at 0, flow 1 at {} µs; until {} µs",
            two_flows::JOIN.as_us_f64(),
            two_flows::END.as_us_f64()
        ),
        format!("links of {} µs", scene::LINK_DELAY.as_us_f64()),
        "packets of 1,538 bytes on the link, XOFF at 500 kB of a port".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variation that changes nothing, or that is refused, would only show when it is run.
    #[test]
    fn every_variation_changes_a_transport() {
        let topology = scene::fat_tree(100_000_000_000).unwrap();
        let labels = [
            label::FNCC,
            label::WITHOUT_LHCS,
            label::HPCC,
            label::DCQCN,
            label::ROCC,
        ];
        let keys = |options: &[&str]| {
            let settings = Settings {
                first_seed: 1,
                seed_count: 1,
                quick: true,
                set: options.iter().map(|o| o.parse().unwrap()).collect(),
                store: None,
            };
            labels.map(|label| transport(label, &topology, &settings).unwrap().key())
        };
        let usual = keys(&[]);
        for experiment in FNCC {
            for variation in experiment.variations {
                assert_ne!(keys(variation), usual, "{variation:?}");
            }
        }
    }
}
