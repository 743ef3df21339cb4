//! Ratewright's rates as maxima over the hosts' own TCP, where not everything is as the allocator
//! believes: hosts without Ratewright, and links that are slower than told.
//!
//! | file | what it shows |
//! |---|---|
//! | [`hosts`] | half of the hosts without Ratewright: slowdown of both halves |
//! | [`links`] | a tenth of the links a fifth slower than told: drops |
//! | [`told`] | two flows over a link that is told as 0.97 to 5 times as fast |
//! | [`check`] | the check of told capacities: what is wrong is named, and taken back |
//! | [`clos`] | runs behind the first two |
//!
//! The oracle is TCP alone, with the same flows over the same network, seed by seed. That of
//! `check` is what was done to the network. `obey.toml` and `check.toml` have the transports,
//! `verdicts.toml` the rows of the short form that do not agree. The rest is fixed here, before any
//! run:
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | network | 4 racks of 16 hosts under 4 spines, 10 and 40 Gbit/s | Flowtune's (NSDI 2017 §5.3), with 64 hosts |
//! | traffic | web search, Poisson, 60 % of the hosts' links | long flows hold links, short ones find the queues |
//! | slowdown | 99 % of the half, at most 1.1 times as large | the accepted harm |
//! | drops | no more, in packets of a million | a model that is wrong must not fill queues |
//! | two flows | each at least 0.8 of what it has with TCP alone, drops at most 1.5 times as many | chance of CUBIC's own shares |

pub mod check;
pub mod clos;
pub mod hosts;
pub mod links;
pub mod told;

use ratewright_topology::Topology;

use super::{Experiment, ExperimentError, Reproduction, Settings, records};
use crate::net::{FabricConfig, Told};
use crate::plan::{PlannedTransport, read_transports};
use crate::report::figure::Figure;
use crate::report::plot::Picture;
use crate::time::Span;

/// The experiments.
pub const OBEY: &[Experiment] = &[
    Experiment {
        name: "hosts",
        file_name: "hosts",
        title: "half of the hosts without Ratewright",
        run: hosts::run,
        variations: hosts::VARIATIONS,
    },
    Experiment {
        name: "links",
        file_name: "links",
        title: "a tenth of the links slower than told",
        run: links::run,
        variations: &[],
    },
    Experiment {
        name: "told",
        file_name: "told",
        title: "two flows over a link that is told as faster or slower",
        run: told::run,
        variations: &[],
    },
    Experiment {
        name: "check",
        file_name: "check",
        title: "what is wrong is named, and taken back",
        run: check::run,
        variations: &[],
    },
];

/// Congestion controls of hosts, in labels of `obey.toml`.
pub const CONTROLS: [&str; 2] = ["CUBIC", "DCTCP"];

/// Rate of hosts' links, in bit/s.
const HOST_BPS: u64 = 10_000_000_000;
/// Processing of a packet by a host (NSDI 2017 §5.3).
const HOST_DELAY: Span = Span::from_us(2);

/// Hosts with Ratewright.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Managed {
    /// None: TCP alone.
    None,
    /// Half of them, drawn once.
    Half,
    /// All.
    All,
}

impl Managed {
    /// All choices.
    pub const EVERY: [Self; 3] = [Self::None, Self::Half, Self::All];

    /// Name in labels.
    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Half => "half",
            Self::All => "all",
        }
    }
}

/// A figure with its recorded verdicts, and its picture.
fn reproduction(mut figure: Figure, picture: Picture) -> Reproduction {
    records::record(include_str!("verdicts.toml"), &mut figure);
    Reproduction { figure, picture }
}

/// Returns the transport of a congestion control, over a network that the allocator is told so.
fn transport(
    control: &str,
    managed: Managed,
    topology: &Topology,
    told: Told,
    settings: &Settings,
) -> Result<PlannedTransport, ExperimentError> {
    let fabric = FabricConfig {
        host_delay: HOST_DELAY,
        told,
        ..FabricConfig::default()
    };
    let label = format!("{control}, {}", managed.name());
    let text = include_str!("obey.toml");
    let all = read_transports(text, "obey.toml", topology, fabric, &settings.set)?;
    let mut all = all.into_iter();
    all.find(|transport| transport.label == label)
        .ok_or(ExperimentError::NoContender(label))
}
