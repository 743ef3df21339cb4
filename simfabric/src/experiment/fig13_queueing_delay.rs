//! Flowtune fig. 13: the 99th percentile of queueing delays on paths of two and of four links.

use super::comparison::{find, loads, samples, scenario};
use super::explain::{Alternative, RowCheck, explain};
use super::schemes::Scheme;
use super::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};

/// DCTCP's delay over Flowtune's in the paper's words (§5.3.2 I).
const LONGER: f64 = 12.0;
/// Relative distance from that ratio up to which a row is reproduced.
const TOLERANCE: f64 = 0.25;

/// Alternatives for a row that is off.
pub(super) const ALTERNATIVES: [Alternative; 3] =
    [&["framing=ethernet"], &["reserve=0.05"], &["mark=40"]];

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: Settings) -> Result<Reproduction, ExperimentError> {
    let samples = samples(settings)?;
    let mut figure = Figure::new(
        "flowtune-i",
        "99th percentile of queueing delays (flowtune fig. 13)",
        settings.seed,
        settings.quick,
    );
    figure.scenario = scenario(settings);
    let paths = ["paths of two links", "paths of four links"];
    let mut panels = Vec::new();
    let mut checks = Vec::new();
    // Index 0 of a sample's delays is that of paths of two links, 1 that of four.
    for (hops, path) in paths.iter().enumerate() {
        let delay = |scheme, load| find(&samples, scheme, load).map(|s| s.queueing_p99_us[hops]);
        for &load in loads(settings.quick) {
            // The paper compares queues in words; only DCTCP's has a number, in a row of its own.
            for scheme in Scheme::ALL {
                let label = format!("{}, {path}, load {load}", scheme.name());
                let paper = match scheme {
                    Scheme::Flowtune => "near-empty queues",
                    Scheme::Dctcp => "12 times Flowtune's",
                    Scheme::Xcp => "shorter than DCTCP's",
                    _ => "relatively long, not first in, first out",
                };
                figure
                    .rows
                    .push(Row::judged(label, paper, delay(scheme, load), "µs", 0.0));
            }
            let over = delay(Scheme::Dctcp, load)
                .zip(delay(Scheme::Flowtune, load))
                // Flowtune's queues may be empty for more than 99 % of the time: at least 1 ns.
                .map(|(dctcp, flowtune)| dctcp / flowtune.max(1e-3));
            checks.push(RowCheck {
                row: figure.rows.len(),
                scheme: Scheme::Dctcp,
                load,
                of: hops,
                range: (LONGER, LONGER),
                tolerance: TOLERANCE,
                alternatives: &ALTERNATIVES,
                bounded: false,
            });
            figure.rows.push(
                Row::judged(
                    format!("DCTCP over Flowtune, {path}, load {load}"),
                    LONGER,
                    over,
                    "×",
                    TOLERANCE,
                )
                .note(format!(
                    "DCTCP {:.1} µs, Flowtune {:.1} µs",
                    delay(Scheme::Dctcp, load).unwrap_or_default(),
                    delay(Scheme::Flowtune, load).unwrap_or_default()
                )),
            );
        }
        let lines = Scheme::ALL
            .iter()
            .map(|&scheme| {
                let points = loads(settings.quick)
                    .iter()
                    .filter_map(|&load| Some((load, delay(scheme, load)?)))
                    .collect();
                Curve::new(scheme.name(), points).dots()
            })
            .collect();
        panels.push(Panel::curves(
            *path,
            Axis::linear("Load").over(0.0, 1.0),
            Axis::linear("99th percentile of queueing delay (µs)"),
            lines,
        ));
    }
    explain(&mut figure, settings, &checks, |hops, theirs, ours| {
        Some(theirs.queueing_p99_us[hops] / ours.queueing_p99_us[hops].max(1e-3))
    })?;
    let picture = Picture::new(
        "99th percentile of queueing delays",
        "Flowtune fig. 13; from the lengths of queues",
        panels,
    )
    .columns(2)
    .panel_size(480, 340);
    Ok(Reproduction { figure, picture })
}
