//! Transports that the Flowtune paper compares (§5.3), with one set of parameters for all figures:
//! `flowtune.toml`, in the language of plans.
//!
//! Figures name them by their labels. `--set SCHEME.KEY=VALUE` replaces a parameter, as in plans;
//! `packet.KEY` is the framing, and `SCHEME.queue.KEY` a queue's parameter.

use ratewright_topology::Topology;

use super::{ExperimentError, Settings, scene};
use crate::net::FabricConfig;
use crate::plan::{PlannedTransport, read_transports};
use crate::report::plot::style::{self, RGBColor};

/// Labels of the paper's schemes, in its order. The first is what the others are compared with.
pub const PAPER: [&str; 5] = [FLOWTUNE, DCTCP, PFABRIC, SFQ_CODEL, XCP];
/// Label of the paper's own scheme.
pub const FLOWTUNE: &str = "Flowtune";
/// Label of DCTCP.
pub const DCTCP: &str = "DCTCP";
/// Label of pFabric.
pub const PFABRIC: &str = "pFabric";
/// Label of CUBIC over sfqCoDel.
pub const SFQ_CODEL: &str = "sfqCoDel";
/// Label of XCP.
pub const XCP: &str = "XCP";
/// Label of exact fair rates without a control plane, which is none of the paper's schemes.
pub const IDEAL: &str = "ideal";

/// Returns the paper's transports and the ideal one on a network.
///
/// # Errors
/// A setting that none of them takes.
pub fn contenders(
    topology: &Topology,
    settings: &Settings,
) -> Result<Vec<PlannedTransport>, ExperimentError> {
    let fabric = FabricConfig {
        host_delay: scene::HOST_DELAY,
        ..FabricConfig::default()
    };
    let of_schemes = settings.set.iter().filter(|s| s.name != scene::NAME);
    let of_schemes: Vec<_> = of_schemes.cloned().collect();
    let text = include_str!("flowtune.toml");
    Ok(read_transports(
        text,
        "flowtune.toml",
        topology,
        fabric,
        &of_schemes,
    )?)
}

/// Returns the colour of one of the paper's schemes, the same in all figures.
#[must_use]
pub fn colour(label: &str) -> RGBColor {
    let place = PAPER.iter().position(|scheme| *scheme == label);
    style::colour(place.unwrap_or(PAPER.len()))
}

/// Returns the transport of a label.
///
/// # Errors
/// See [`contenders`].
pub fn contender(
    label: &str,
    topology: &Topology,
    settings: &Settings,
) -> Result<PlannedTransport, ExperimentError> {
    let all = contenders(topology, settings)?;
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

    #[test]
    fn the_set_has_the_papers_schemes_in_its_order_and_the_ideal_one() {
        let topology = scene::topology(scene::RACKS).unwrap();
        let all = contenders(&topology, &settings(&[])).unwrap();
        let labels: Vec<&str> = all.iter().map(|t| t.label.as_str()).collect();
        assert_eq!(labels[..5], PAPER);
        assert_eq!(labels[5..], [IDEAL]);
    }

    /// A variation that changes nothing, or that is refused, would only show when it is run.
    #[test]
    fn every_variation_of_every_experiment_changes_a_run() {
        let topology = scene::topology(1).unwrap();
        let key = |settings: &Settings| {
            let all = contenders(&topology, settings).unwrap();
            let keys: Vec<String> = all.iter().map(PlannedTransport::key).collect();
            (keys, settings.scene().unwrap())
        };
        let usual = key(&settings(&[]));
        // Other papers have transports of their own.
        for experiment in crate::experiment::FLOWTUNE {
            for variation in experiment.variations {
                assert_ne!(key(&settings(variation)), usual, "{variation:?}");
            }
        }
    }

    /// Equal runs are found by equal keys, whatever is set for other schemes.
    #[test]
    fn a_setting_changes_the_key_of_its_scheme_alone() {
        let topology = scene::topology(1).unwrap();
        let keys = |options: &[&str]| -> Vec<String> {
            let all = contenders(&topology, &settings(options)).unwrap();
            all.iter().map(PlannedTransport::key).collect()
        };
        let (usual, other) = (keys(&[]), keys(&["dctcp.gain=0.5"]));
        let same: Vec<bool> = usual.iter().zip(&other).map(|(a, b)| a == b).collect();
        assert_eq!(same, [true, false, true, true, true, true]);
        // A default that is set changes nothing.
        assert_eq!(keys(&["dctcp.gain=0.0625"]), usual);
    }

    #[test]
    fn a_setting_that_fits_nothing_is_refused_by_its_name() {
        let topology = scene::topology(1).unwrap();
        for (option, part) in [
            ("warp.gain=1", "no transport is of this scheme"),
            ("dctcp.gian=1", "unknown key `gian`"),
            ("dctcp.gain=2", "it must be above 0 and at most 1"),
            ("cubic.queue.interval=60", "a time with its unit"),
            ("packet.mss_bytes=0", "a packet needs payload"),
        ] {
            let error = contenders(&topology, &settings(&[option])).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(part), "{option}: {error}");
        }
        assert!(settings(&["scene.workload=wob"]).scene().is_err());
    }
}
