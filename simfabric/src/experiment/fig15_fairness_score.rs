//! Flowtune fig. 15: the proportional-fairness score, Σ log₂ of the rates of flowlets, per flowlet.
//! A factor of two in rate is one point.

use super::comparison::{Comparison, VARIATIONS as PARAMETERS, loads, scenario};
use super::contenders::{DCTCP, FLOWTUNE, PFABRIC, SFQ_CODEL, XCP, colour};
use super::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::report::size_groups::BY_PACKETS;

/// Points per flowlet by which the paper's Flowtune is ahead (§5.3.2 K).
const PAPER: [(&str, (f64, f64)); 4] = [
    (DCTCP, (1.0, 1.9)),
    (PFABRIC, (0.45, 0.83)),
    (SFQ_CODEL, (0.25, 0.25)),
    (XCP, (1.3, 1.3)),
];

/// Accepted widening of the paper's ranges at both ends: the text gives no loads.
const TOLERANCE: f64 = 0.3;

/// See [`PARAMETERS`].
pub(super) const VARIATIONS: &[&[&str]] = PARAMETERS;

/// Measured cause of the rows that disagree, by scheme. The remark beside a row has the lead by
/// size class.
fn cause(scheme: &str) -> &'static str {
    match scheme {
        DCTCP => {
            "Flowtune is ahead for one packet alone: DCTCP's first window of ten packets is on its way while a flowlet of Flowtune waits for its first rate, and two thirds of the public curve's flowlets have two packets or more"
        }
        PFABRIC => {
            "pFabric sends short flowlets at their link's rate ahead of all others, which scores in every class of the public curve; Flowtune has no priorities"
        }
        SFQ_CODEL => {
            "CUBIC's first window of ten packets is on its way while a flowlet of Flowtune waits for its first rate, and fair queues share as evenly"
        }
        _ => {
            "XCP's cost is round trips at the begin of a flowlet, which a third of the public curve's flowlets, of one packet, do not pay; the paper's sizes are not public"
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let comparison = Comparison::run(settings)?;
    let mut figure = settings.figure(
        "flowtune-fig15",
        "Proportional fairness per flowlet (flowtune fig. 15)",
    );
    figure.scenario = scenario(settings)?;
    figure.notes = comparison.remarks();
    // Scores are means of logarithms, so one scheme's lead is a difference, not a ratio.
    let ahead = |scheme, load| {
        comparison.against_flowtune(scheme, load, |theirs, ours| {
            Some(ours.fairness - theirs.fairness)
        })
    };
    for (scheme, range) in PAPER {
        for &load in loads(settings.quick) {
            let row = Row::judge(
                format!("Flowtune over {scheme}, load {load}"),
                Claim::range(range, TOLERANCE),
                ahead(scheme, load),
                "points",
            );
            let by_class = (0..BY_PACKETS.len()).filter_map(|class| {
                let lead = comparison.against_flowtune(scheme, load, |theirs, ours| {
                    Some(ours.fairness_by_class[class]? - theirs.fairness_by_class[class]?)
                })?;
                Some(format!("{:+.2} ({})", lead.mean, BY_PACKETS[class].0))
            });
            let by_class: Vec<String> = by_class.collect();
            let score = |scheme| {
                let score = comparison.estimate(scheme, load, |sample| Some(sample.fairness));
                score.map_or(0.0, |score| score.mean)
            };
            let note = format!(
                "mean of log₂ of the rates in bit/s: Flowtune {:.2}, {scheme} {:.2}; by class {}",
                score(FLOWTUNE),
                score(scheme),
                by_class.join(", ")
            );
            figure
                .rows
                .push(row.disagrees_because(cause(scheme)).note(note));
        }
    }
    figure.data = serde_json::json!(comparison);
    let lines = PAPER.iter().map(|&(scheme, ..)| {
        let points = loads(settings.quick).iter().filter_map(|&load| {
            // Figure 15 is normalised to Flowtune's score, so the others lie below 0.
            let ahead = ahead(scheme, load)?;
            let behind = Estimate {
                mean: -ahead.mean,
                ..ahead
            };
            Some((load, behind))
        });
        Curve::estimates(scheme, points).colour(colour(scheme))
    });
    let picture = Picture::new(
        "Proportional fairness per flowlet, against Flowtune",
        "Flowtune fig. 15; below zero is less fair than Flowtune, one point is a factor of two in rate; 95 % intervals",
        vec![
            Panel::curves(
                "Score minus Flowtune's",
                Axis::linear("Load").over(0.0, 1.0),
                Axis::linear("Score per flowlet (points)"),
                lines.collect(),
            )
            .mark(0.0, "Flowtune"),
        ],
    )
    .panel_size(640, 400);
    Ok(Reproduction { figure, picture })
}
