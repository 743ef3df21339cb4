//! Reproductions of the Flowtune paper's figures. One file holds one figure: its scenario, its
//! sweep, the paper's numbers, and the picture.
//!
//! | file | figure |
//! |---|---|
//! | [`fig08_staggered_flows`] | flowtune fig. 8: five staggered flows under five schemes |
//! | [`fig09_update_traffic`] | flowtune fig. 9: update traffic by load and workload |
//! | [`fig10_thresholds`] | flowtune fig. 10: update traffic saved by larger thresholds |
//! | [`fig11_network_size`] | flowtune fig. 11: update traffic from 128 to 2,048 servers |
//! | [`fig12_completion_times`] | flowtune fig. 12: 99 % of completion times by size and load |
//! | [`fig13_queueing_delay`] | flowtune fig. 13: queueing delay |
//! | [`fig14_drops`] | flowtune fig. 14: drops |
//! | [`fig15_fairness_score`] | flowtune fig. 15: proportional fairness |
//! | [`comparison`] | runs behind figures 12 to 15: five schemes under equal flowlets |
//! | [`control_traffic`] | runs behind figures 9 to 11, and their counts of control traffic |
//! | [`monitor`] | progress of the runs, and a request to stop them |
//! | [`dart`] | Dart: figures 9, 11 to 15, tables I and II |
//! | [`feeds`] | the allocator's feeds, of no paper: with them against without |
//! | [`obey`] | rates as maxima over TCP, of no paper: where the allocator is wrong |
//! | `records` | recorded verdicts with their causes |
//! | [`fncc`] | FNCC: figures 1, 3, 10, 12 to 15 |
//! | [`sird`] | SIRD: figures 3 and 4 |
//! | [`rpm`] | RPM: table II, fig. 5, lemma 1, asymmetric paths |
//! | [`contenders`], `flowtune.toml` | the compared schemes with their parameters and queues |
//! | [`scene`] | the paper's network (flowtune §5.3), workload and measures |
//! | [`store`] | folder of runs, by which a long experiment goes on |
//! | [`sweep`] | cases × seeds in parallel, and estimates over the seeds |
//!
//! An experiment is an entry of its paper's list in [`PAPERS`]. Its function lists the cases of a
//! [sweep](sweep::sweep), estimates the rows' values over the seeds, and
//! [judges](crate::report::figure::Row::judge) each by a
//! [claim](crate::report::figure::Claim) that stands in its file.

pub mod comparison;
pub mod contenders;
pub mod control_traffic;
pub mod monitor;

pub mod fig08_staggered_flows;
pub mod fig09_update_traffic;
pub mod fig10_thresholds;
pub mod fig11_network_size;
pub mod fig12_completion_times;
pub mod fig13_queueing_delay;
pub mod fig14_drops;
pub mod fig15_fairness_score;

pub mod dart;
pub mod feeds;
pub mod fncc;
pub mod obey;
mod records;
pub mod rpm;
pub mod scene;
pub mod schedule;
pub mod sird;
pub mod store;
pub mod sweep;

use crate::net::FabricError;
use crate::parameters::{SetError, Setting, from_settings};
use crate::plan::PlanError;
use crate::report::figure::Figure;
use crate::report::plot::Picture;
use crate::scheme::StartError;
use crate::workload::{PoissonError, SizeError};
use scene::SceneConfig;

/// Settings that are common to all experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The first seed.
    pub first_seed: u64,
    /// Number of seeds; each case runs once with each.
    pub seed_count: u32,
    /// The short form, for continuous integration.
    pub quick: bool,
    /// Parameters in place of the paper's: of schemes, of the framing (`packet`) and of the
    /// [scene](scene::SceneConfig).
    pub set: Vec<Setting>,
    /// Folder of the runs of experiments that can go on after a stop.
    pub store: Option<store::RunStore>,
}

impl Settings {
    /// Seeds of the short form, the fewest that give an interval of use.
    pub const QUICK_SEEDS: u32 = 3;
    /// Seeds of the long form.
    pub const LONG_SEEDS: u32 = 5;

    /// Returns the seeds.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.first_seed;
        (0..u64::from(self.seed_count)).map(move |i| first.wrapping_add(i))
    }

    /// Returns workload and measures.
    ///
    /// # Errors
    /// A setting of the scene that it does not take.
    pub fn scene(&self) -> Result<SceneConfig, ExperimentError> {
        let scene: SceneConfig = from_settings(scene::NAME, &self.set)?;
        scene.check().map_err(|error| SetError {
            option: scene::NAME.to_owned(),
            message: error.to_string(),
        })?;
        Ok(scene)
    }

    /// Makes a figure of these settings, without rows.
    #[must_use]
    pub fn figure(&self, name: &str, title: &str) -> Figure {
        Figure::new(name, title, (self.first_seed, self.seed_count), self.quick)
    }
}

/// A figure and its picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Reproduction {
    /// Rows, scenario, data.
    pub figure: Figure,
    /// Panels with curves or bars of the same data.
    pub picture: Picture,
}

/// An experiment that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The network.
    #[error("the topology: {0}")]
    Topology(#[from] ratewright_topology::BuildError),
    /// The transports of the paper.
    #[error(transparent)]
    Contenders(#[from] PlanError),
    /// A figure's file names a transport that its paper's set lacks.
    #[error("the paper's set has no transport {0:?}")]
    NoContender(String),
    /// A run cannot begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The fabric.
    #[error("the fabric: {0}")]
    Fabric(#[from] FabricError),
    /// The sizes of flows.
    #[error("the workload: {0}")]
    Sizes(#[from] SizeError),
    /// The arrivals of flows.
    #[error("the workload: {0}")]
    Arrivals(#[from] PoissonError),
    /// A setting that does not exist, or a value that it does not take.
    #[error(transparent)]
    Setting(#[from] SetError),
    /// A topology in words.
    #[error(transparent)]
    TopologyText(#[from] ratewright_topology::TopologyError),
    /// A flow without a path.
    #[error("the topology: {0}")]
    Path(#[from] ratewright_topology::PathError),
    /// The run lost or made packets, which is a defect of the simulator.
    #[error("a run that does not add up: {0}")]
    Conservation(#[from] crate::results::ConservationError),
    /// A run's result could not be kept.
    #[error(transparent)]
    Store(#[from] crate::report::ReportError),
    /// The [`monitor`] was asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name on the command line, a letter for Flowtune's.
    pub name: &'static str,
    /// Name of its files, by figure and subject.
    pub file_name: &'static str,
    /// Its figure and subject.
    pub title: &'static str,
    /// Runs all its cases and judges its rows.
    pub run: fn(&Settings) -> Result<Reproduction, ExperimentError>,
    /// Other parameters, `NAME.KEY=VALUE` each, that the sensitivity table has its rows under.
    pub variations: &'static [&'static [&'static str]],
}

/// A paper with its experiments.
#[derive(Clone, Copy, Debug)]
pub struct PaperExperiments {
    /// Name on the command line.
    pub name: &'static str,
    /// Experiments in the order of the paper.
    pub experiments: &'static [Experiment],
}

/// All papers.
pub const PAPERS: &[PaperExperiments] = &[
    PaperExperiments {
        name: "flowtune",
        experiments: FLOWTUNE,
    },
    PaperExperiments {
        name: "rpm",
        experiments: rpm::RPM,
    },
    PaperExperiments {
        name: "fncc",
        experiments: fncc::FNCC,
    },
    PaperExperiments {
        name: "sird",
        experiments: sird::SIRD,
    },
    PaperExperiments {
        name: "dart",
        experiments: dart::DART,
    },
    PaperExperiments {
        name: "feeds",
        experiments: feeds::FEEDS,
    },
    PaperExperiments {
        name: "obey",
        experiments: obey::OBEY,
    },
];

/// Flowtune's experiments on the fabric, by the letters of the paper's §5.
pub const FLOWTUNE: &[Experiment] = &[
    Experiment {
        name: "D",
        file_name: "fig08_staggered_flows",
        title: "fig. 8: how soon five staggered flows share a link",
        run: fig08_staggered_flows::run,
        variations: fig08_staggered_flows::VARIATIONS,
    },
    Experiment {
        name: "E",
        file_name: "fig09_update_traffic",
        title: "fig. 9: update traffic by load and workload",
        run: fig09_update_traffic::run,
        variations: fig09_update_traffic::VARIATIONS,
    },
    Experiment {
        name: "F",
        file_name: "fig10_thresholds",
        title: "fig. 10: update traffic that larger thresholds save",
        run: fig10_thresholds::run,
        variations: fig10_thresholds::VARIATIONS,
    },
    Experiment {
        name: "G",
        file_name: "fig11_network_size",
        title: "fig. 11: update traffic from 128 to 2,048 servers",
        run: fig11_network_size::run,
        variations: fig11_network_size::VARIATIONS,
    },
    Experiment {
        name: "H",
        file_name: "fig12_completion_times",
        title: "fig. 12: 99th percentile of completion times against other schemes",
        run: fig12_completion_times::run,
        variations: fig12_completion_times::VARIATIONS,
    },
    Experiment {
        name: "I",
        file_name: "fig13_queueing_delay",
        title: "fig. 13: 99th percentile of queueing delays",
        run: fig13_queueing_delay::run,
        variations: fig13_queueing_delay::VARIATIONS,
    },
    Experiment {
        name: "J",
        file_name: "fig14_drops",
        title: "fig. 14: dropped data",
        run: fig14_drops::run,
        variations: fig14_drops::VARIATIONS,
    },
    Experiment {
        name: "K",
        file_name: "fig15_fairness_score",
        title: "fig. 15: proportional fairness",
        run: fig15_fairness_score::run,
        variations: fig15_fairness_score::VARIATIONS,
    },
];
