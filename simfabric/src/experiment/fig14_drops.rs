//! Flowtune fig. 14: data that the network drops.

use super::comparison::{find, loads, samples, scenario};
use super::explain::{Alternative, RowCheck, explain};
use super::schemes::Scheme;
use super::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Figure, Row, Verdict};
use crate::report::plot::{Axis, Curve, Panel, Picture};

/// Share of the bytes that servers send up to which drops are negligible.
const NEGLIGIBLE: f64 = 1e-3;

/// Share that sfqCoDel drops at load 0.8 in the paper's words, in per cent (§5.3.2 J).
const DROPS: f64 = 8.0;
/// Relative distance from that share up to which a row is reproduced.
const TOLERANCE: f64 = 0.3;

/// Alternatives for a row that is off.
pub(super) const ALTERNATIVES: [Alternative; 3] =
    [&["codel-interval=60"], &["hystart=false"], &["buffer=50"]];

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: Settings) -> Result<Reproduction, ExperimentError> {
    let samples = samples(settings)?;
    let mut figure = Figure::new(
        "flowtune-j",
        "Dropped data (flowtune fig. 14)",
        settings.seed,
        settings.quick,
    );
    figure.scenario = scenario(settings);
    let mut checks = Vec::new();
    for &load in loads(settings.quick) {
        for scheme in Scheme::ALL {
            let sample = find(&samples, scheme, load);
            let share = sample.map(|sample| sample.drops_share);
            let label = format!(
                "{}, load {load}: dropped of what servers send",
                scheme.name()
            );
            let percent = share.map(|share| 100.0 * share);
            // The text has a number for sfqCoDel at load 0.8 alone: "close to 8 %". Loads are
            // literals, so 0.79 only keeps the comparison clear of rounding.
            let row = match scheme {
                Scheme::SfqCodel if load >= 0.79 => {
                    checks.push(RowCheck {
                        row: figure.rows.len(),
                        scheme,
                        load,
                        of: 0,
                        range: (DROPS, DROPS),
                        tolerance: TOLERANCE,
                        alternatives: &ALTERNATIVES,
                        bounded: false,
                    });
                    Row::judged(label, DROPS, percent, "%", TOLERANCE)
                }
                Scheme::SfqCodel | Scheme::PFabric => {
                    Row::judged(label, "drops much", percent, "%", 0.0)
                }
                _ => Row::new(
                    label,
                    "negligible",
                    percent,
                    "%",
                    match share {
                        Some(share) if share <= NEGLIGIBLE => Verdict::Reproduced,
                        Some(_) => Verdict::Off,
                        None => Verdict::NotMeasured,
                    },
                ),
            };
            let gbps = sample.map_or(0.0, |sample| sample.drops_gbps);
            let note = format!("{gbps:.2} Gbit/s in the whole network");
            figure.rows.push(row.note(note));
        }
    }
    explain(&mut figure, settings, &checks, |_, theirs, _| {
        Some(100.0 * theirs.drops_share)
    })?;
    // The picture has the paper's unit, Gbit/s of the whole network; rows have shares.
    let lines = Scheme::ALL
        .iter()
        .map(|&scheme| {
            let points = loads(settings.quick)
                .iter()
                .filter_map(|&load| Some((load, find(&samples, scheme, load)?.drops_gbps)))
                .collect();
            Curve::new(scheme.name(), points).dots()
        })
        .collect();
    let picture = Picture::new(
        "Dropped data",
        "Flowtune fig. 14; the whole network of 144 servers",
        vec![Panel::curves(
            "Drops",
            Axis::linear("Load").over(0.0, 1.0),
            Axis::linear("Dropped (Gbit/s)"),
            lines,
        )],
    )
    .panel_size(640, 400);
    Ok(Reproduction { figure, picture })
}
