//! Flowtune fig. 15: the proportional-fairness score, Σ log₂ of the rates of flowlets, per flowlet.
//! A factor of two in rate is one point.

use super::comparison::{find, loads, samples, scenario};
use super::explain::{Alternative, RowCheck, explain};
use super::schemes::Scheme;
use super::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};

/// A number of the paper: scheme, range, and alternatives for where ours is off.
pub(super) type PaperRow = (Scheme, (f64, f64), &'static [Alternative]);

/// Points per flowlet by which the paper's Flowtune is ahead (§5.3.2 K).
pub(super) const PAPER: [PaperRow; 4] = [
    (
        Scheme::Dctcp,
        (1.0, 1.9),
        &[&["handshake=true"], &["handshake=true", "tcp-window=1"]],
    ),
    (
        Scheme::PFabric,
        (0.45, 0.83),
        &[
            &["pfabric-nic=short"],
            // Three round trips, pFabric's rule, as for figure 12.
            &["pfabric-nic=short", "pfabric-rto=66"],
            &["pfabric-nic=fifo"],
            &["pfabric-nic=fifo", "handshake=true"],
        ],
    ),
    (
        Scheme::SfqCodel,
        (0.25, 0.25),
        &[&["handshake=true"], &["handshake=true", "tcp-window=1"]],
    ),
    (
        Scheme::Xcp,
        (1.3, 1.3),
        &[
            &["handshake=true"],
            // ns-2's control interval after an idle one, 50 ms, in which routers hand out nothing.
            &["xcp-interval=50000"],
            &["xcp-interval=50000", "handshake=true"],
            // ns-2's shortest interval, 1 ms, is 45 round trips of this network.
            &["xcp-least-interval=1000"],
            // The paper's sizes are not public. The cost of one packet per round trip grows with
            // them.
            &["xcp-interval=50000", "size-factor=6"],
        ],
    ),
];

/// Relative widening of the paper's ranges at both ends.
const TOLERANCE: f64 = 0.3;

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: Settings) -> Result<Reproduction, ExperimentError> {
    let samples = samples(settings)?;
    let mut figure = Figure::new(
        "flowtune-k",
        "Proportional fairness per flowlet (flowtune fig. 15)",
        settings.seed,
        settings.quick,
    );
    figure.scenario = scenario(settings);
    // Scores are means of logarithms, so one scheme's lead is a difference, not a ratio.
    let ahead = |scheme, load| {
        let ours = find(&samples, Scheme::Flowtune, load)?.fairness;
        Some(ours - find(&samples, scheme, load)?.fairness)
    };
    let mut checks = Vec::new();
    for (scheme, range, alternatives) in PAPER {
        for &load in loads(settings.quick) {
            let label = format!("Flowtune over {}, load {load}", scheme.name());
            checks.push(RowCheck {
                row: figure.rows.len(),
                scheme,
                load,
                of: 0,
                range,
                tolerance: TOLERANCE,
                alternatives,
                bounded: true,
            });
            let row = Row::judged(label, range, ahead(scheme, load), "points", TOLERANCE);
            let score = |scheme| find(&samples, scheme, load).map_or(0.0, |s| s.fairness);
            figure.rows.push(row.note(format!(
                "mean of log₂ of the rates in bit/s: Flowtune {:.2}, {} {:.2}",
                score(Scheme::Flowtune),
                scheme.name(),
                score(scheme)
            )));
        }
    }
    explain(&mut figure, settings, &checks, |_, theirs, ours| {
        Some(ours.fairness - theirs.fairness)
    })?;
    let lines = PAPER
        .iter()
        .map(|&(scheme, ..)| {
            let points = loads(settings.quick)
                .iter()
                // Figure 15 is normalised to Flowtune's score, so the others lie below 0.
                .filter_map(|&load| Some((load, -ahead(scheme, load)?)))
                .collect();
            Curve::new(scheme.name(), points).dots()
        })
        .collect();
    let picture = Picture::new(
        "Proportional fairness per flowlet, against Flowtune",
        "Flowtune fig. 15; below zero is less fair than Flowtune, one point is a factor of two in rate",
        vec![
            Panel::curves(
                "Score minus Flowtune's",
                Axis::linear("Load").over(0.0, 1.0),
                Axis::linear("Score per flowlet (points)"),
                lines,
            )
            .mark(0.0, "Flowtune"),
        ],
    )
    .panel_size(640, 400);
    Ok(Reproduction { figure, picture })
}
