//! The allocator's feeds in a closed loop: Ratewright beside a scheme that its allocator does not
//! control, on the same hosts and links, with and without receiver counts, credit and INT.
//!
//! | file | what it shows |
//! |---|---|
//! | [`loads`] | with all feeds against without: queues, slowdown, goodput, harm to the other scheme |
//! | [`each`] | each feed alone, all, none; error and age of each |
//! | [`stages`] | one picture per feed: a shared link while external traffic comes and goes |
//! | [`runs`] | runs behind the first two |
//!
//! `feeds.toml` has the transports, `verdicts.toml` the rows of the short form that do not agree.
//! The rest is fixed here, before any run:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | network | 9 racks of 16 hosts under 4 spines, 10 and 40 Gbit/s | Flowtune's (NSDI 2017 §5.3) |
//! | traffic | web search, Poisson, half of the load under each scheme | long flows hold links, short ones find the queues |
//! | loads | 40, 60 and 80 % of the hosts' links, the ends in the short form | the range that feeds are for |
//! | reading | every 100 µs | 5 round trips |
//! | standing queue | mean of what waits for a receiver's link, over the samples at which flows of both schemes are on their way to the receiver | a link with one scheme's flows is not shared; DCTCP alone keeps a queue of its own |
//! | times | flows of 8 ms after 8 ms count, 20 after 10 in the long form | a web search flow takes 1.4 ms alone on average |

pub mod each;
pub mod loads;
pub mod runs;
pub mod stages;

use ratewright_topology::{EcmpConfig, Topology, TwoTierClos};

use super::{Experiment, ExperimentError, Reproduction, Settings, records};
use crate::net::FabricConfig;
use crate::parameters::Setting;
use crate::plan::{PlannedTransport, read_transports};
use crate::report::figure::Figure;
use crate::report::plot::Picture;
use crate::time::Span;

/// The experiments.
pub const FEEDS: &[Experiment] = &[
    Experiment {
        name: "loads",
        file_name: "loads",
        title: "all feeds against none, by the other scheme and load",
        run: loads::run,
        variations: &[],
    },
    Experiment {
        name: "each",
        file_name: "each",
        title: "each feed alone, all and none; errors and ages",
        run: each::run,
        variations: &[],
    },
    Experiment {
        name: "int",
        file_name: "int",
        title: "INT: a shared uplink while external flows come and go",
        run: stages::run_int,
        variations: &[],
    },
    Experiment {
        name: "receivers",
        file_name: "receivers",
        title: "receiver counts: a receiver's link while external senders come and go",
        run: stages::run_receivers,
        variations: &[],
    },
    Experiment {
        name: "credit",
        file_name: "credit",
        title: "credit: a receiver's link while SIRD's senders come and go",
        run: stages::run_credit,
        variations: &[],
    },
];

/// Schemes beside Ratewright: labels of `feeds.toml`.
pub const SCHEMES: [&str; 4] = ["DCTCP", "SIRD", "HPCC", "Dart"];

/// Rate of hosts' links, in bit/s.
const HOST_BPS: u64 = 10_000_000_000;
/// Processing of a packet by a host (NSDI 2017 §5.3).
const HOST_DELAY: Span = Span::from_us(2);

/// Feeds that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feeds {
    /// None: the open loop.
    None,
    /// Receiver counts.
    Receivers,
    /// Credit.
    Credit,
    /// INT of links.
    Int,
    /// All three.
    All,
}

impl Feeds {
    /// All choices, in the order of tables.
    pub const EVERY: [Self; 5] = [
        Self::None,
        Self::Receivers,
        Self::Credit,
        Self::Int,
        Self::All,
    ];

    /// Name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "no feed",
            Self::Receivers => "receiver counts",
            Self::Credit => "credit",
            Self::Int => "INT",
            Self::All => "all feeds",
        }
    }

    /// The feeds as a setting of Flowtune.
    fn setting(self) -> Option<Setting> {
        let feeds = match self {
            Self::None => return None,
            Self::Receivers => "receivers = true",
            Self::Credit => "credit = true",
            Self::Int => "int = true",
            Self::All => "receivers = true, credit = true, int = true",
        };
        Some(Setting {
            name: "flowtune".to_owned(),
            key: "feeds".to_owned(),
            value: format!("{{ {feeds} }}"),
        })
    }
}

/// A figure with its recorded verdicts, and its picture.
fn reproduction(mut figure: Figure, picture: Picture) -> Reproduction {
    records::record(include_str!("verdicts.toml"), &mut figure);
    Reproduction { figure, picture }
}

/// Describes the runs of [`runs`] in words.
fn scenario(quick: bool) -> Vec<String> {
    let ms = |span: Span| span.as_us_f64() / 1e3;
    let times = runs::schedule(quick);
    vec![
        "144 hosts in 9 racks under 4 spines, links of 10 and 40 Gbit/s".to_owned(),
        "web search, half of the load under Ratewright and half under the other scheme".to_owned(),
        format!(
            "flows that start from {} to {} ms; they have {} ms to finish",
            ms(times.warm_up),
            ms(times.warm_up + times.counted),
            ms(times.most_drain)
        ),
        "readings every 100 µs".to_owned(),
    ]
}

/// Makes a leaf-spine network of so many racks, hosts per rack and spines. HPCC and Dart need
/// packets and answers on one way.
fn topology(
    racks: u32,
    hosts_per_rack: u32,
    spines: u32,
    fabric_bps: u64,
) -> Result<Topology, ExperimentError> {
    let clos = TwoTierClos {
        racks,
        hosts_per_rack,
        spines,
        host_capacity_bps: HOST_BPS,
        fabric_capacity_bps: fabric_bps,
        host_delay_ns: 1_500,
        fabric_delay_ns: 1_500,
        ecmp: EcmpConfig {
            seed: 0,
            symmetric: true,
        },
        ..TwoTierClos::default()
    };
    Ok(clos.build()?)
}

/// Returns the transport of a label with these feeds.
fn transport(
    label: &str,
    feeds: Feeds,
    topology: &Topology,
    settings: &Settings,
) -> Result<PlannedTransport, ExperimentError> {
    let fabric = FabricConfig {
        host_delay: HOST_DELAY,
        ..FabricConfig::default()
    };
    let mut set: Vec<Setting> = feeds.setting().into_iter().collect();
    set.extend(settings.set.iter().cloned());
    let text = include_str!("feeds.toml");
    let all = read_transports(text, "feeds.toml", topology, fabric, &set)?;
    all.into_iter()
        .find(|transport| transport.label == label)
        .ok_or_else(|| ExperimentError::NoContender(label.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_a_transport_and_every_choice_of_feeds_is_another_run() {
        let topology = topology(2, 4, 2, 40_000_000_000).unwrap();
        let settings = Settings {
            first_seed: 1,
            seed_count: 1,
            quick: true,
            set: Vec::new(),
            store: None,
        };
        for label in SCHEMES {
            let mut keys = Vec::new();
            for feeds in Feeds::EVERY {
                let key = transport(label, feeds, &topology, &settings).unwrap().key();
                assert!(!keys.contains(&key), "{label}: {}", feeds.name());
                keys.push(key);
            }
        }
    }
}
