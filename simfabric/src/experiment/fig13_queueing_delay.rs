//! Flowtune fig. 13: the 99th percentile of queueing delays on paths of two and of four links.

use super::comparison::{Comparison, VARIATIONS as PARAMETERS, loads, scenario};
use super::contenders::{DCTCP, FLOWTUNE, PAPER as SCHEMES, XCP, colour};
use super::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};

/// DCTCP's delay over Flowtune's in the paper's words (§5.3.2 I).
const LONGER: f64 = 12.0;
/// Accepted relative distance from that ratio: it is one number for all loads and paths.
const TOLERANCE: f64 = 0.25;
/// Least delay of Flowtune that counts, in µs: its queues may be empty for more than 99 % of the
/// time.
const LEAST_US: f64 = 1e-3;

/// Measured cause of a larger ratio at low loads.
const LOW_LOAD: &str = "DCTCP holds its queues at the mark at any load, while Flowtune's are half as long at load 0.4 as at 0.8: the ratio falls as the load rises, and the paper's 12 comes without a load";

/// Reason for which the short form may not decide the ratio at high loads.
const WIDE: &str = "the ratios of single seeds lie far apart, as those of two 99th percentiles do";

/// See [`PARAMETERS`].
pub(super) const VARIATIONS: &[&[&str]] = PARAMETERS;

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let comparison = Comparison::run(settings)?;
    let mut figure = settings.figure(
        "flowtune-fig13",
        "99th percentile of queueing delays (flowtune fig. 13)",
    );
    figure.scenario = scenario(settings)?;
    figure.notes = comparison.remarks();
    let mut panels = Vec::new();
    // Index 0 of a sample's delays is that of paths of two links, 1 that of four.
    for (hops, path) in ["paths of two links", "paths of four links"]
        .iter()
        .enumerate()
    {
        let delay = |scheme, load| {
            comparison.estimate(scheme, load, |sample| Some(sample.queueing_p99_us[hops]))
        };
        for &load in loads(settings.quick) {
            // The paper compares queues in words; only DCTCP's has a number, in a row of its own.
            for scheme in SCHEMES {
                let paper = match scheme {
                    FLOWTUNE => "near-empty queues",
                    DCTCP => "12 times Flowtune's",
                    XCP => "shorter than DCTCP's",
                    _ => "relatively long, not first in, first out",
                };
                let label = format!("{scheme}, {path}, load {load}");
                let claim = Claim::words(paper);
                let row = Row::judge(label, claim, delay(scheme, load), "µs");
                figure.rows.push(row);
            }
            let over = comparison.against_flowtune(DCTCP, load, |dctcp, flowtune| {
                Some(dctcp.queueing_p99_us[hops] / flowtune.queueing_p99_us[hops].max(LEAST_US))
            });
            let row = Row::judge(
                format!("DCTCP over Flowtune, {path}, load {load}"),
                Claim::number(LONGER, TOLERANCE),
                over,
                "×",
            );
            figure.rows.push(if load <= 0.5 {
                row.disagrees_because(LOW_LOAD)
            } else {
                row.undecided_because(WIDE)
            });
        }
        let lines = SCHEMES.iter().map(|&scheme| {
            let points = loads(settings.quick)
                .iter()
                .filter_map(|&load| Some((load, delay(scheme, load)?)));
            Curve::estimates(scheme, points).colour(colour(scheme))
        });
        panels.push(Panel::curves(
            *path,
            Axis::linear("Load").over(0.0, 1.0),
            Axis::linear("99th percentile of queueing delay (µs)").starting_at(0.0),
            lines.collect(),
        ));
    }
    figure.data = serde_json::json!(comparison);
    let picture = Picture::new(
        "99th percentile of queueing delays",
        "Flowtune fig. 13; over paths and time, from the bytes in queues; 95 % intervals",
        panels,
    )
    .columns(2)
    .panel_size(480, 340);
    Ok(Reproduction { figure, picture })
}
