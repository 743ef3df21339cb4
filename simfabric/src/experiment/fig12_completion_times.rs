//! Flowtune fig. 12: the 99th percentile of completion times under other schemes over Flowtune's,
//! by size of flowlet and load. Completion times are divided by those on an empty network, as in
//! the paper.

use super::comparison::{find, loads, samples, scenario};
use super::explain::{Alternative, RowCheck, explain};
use super::schemes::Scheme;
use super::{ExperimentError, Reproduction, Settings};
use crate::report::classes::CLASSES;
use crate::report::figure::{Figure, Row, Verdict};
use crate::report::plot::{Axis, Bars, Panel, Picture};

/// A number of the paper: scheme, index into [`CLASSES`], range, and alternatives for where ours is
/// off.
pub(super) type PaperRow = (Scheme, usize, (f64, f64), &'static [Alternative]);

/// The least and the largest ratio that the paper's text gives (§5.3.2 H), by scheme and class. The
/// figure's bars are not printed as numbers.
pub(super) const PAPER: [PaperRow; 5] = [
    (
        Scheme::Dctcp,
        0,
        (8.6, 10.9),
        &[&["reserve=0.05"], &["framing=ethernet"]],
    ),
    (
        Scheme::Dctcp,
        1,
        (2.1, 2.9),
        // Two packets are ns-2's first window.
        &[
            &["handshake=true"],
            &["tcp-window=2"],
            &["handshake=true", "tcp-window=2"],
        ],
    ),
    (
        Scheme::PFabric,
        0,
        (1.7, 2.4),
        &[
            &["pfabric-nic=short"],
            &["pfabric-nic=short", "pfabric-window=4"],
            &["pfabric-nic=fifo"],
            // pFabric's rule of three round trips, for this network's of 22 µs.
            &["pfabric-nic=short", "pfabric-rto=66"],
        ],
    ),
    // The text gives the first at high load, the second at low load: see `applies`. sfqCoDel's tail
    // is that of time-outs after drops at a flow's end, so the alternatives vary both.
    (
        Scheme::SfqCodel,
        2,
        (3.5, 3.8),
        &[&["min-rto=2000"], &["min-rto=3000"], &["codel-interval=60"]],
    ),
    (
        Scheme::SfqCodel,
        3,
        (2.1, 2.4),
        &[
            &["min-rto=4000"],
            &["codel-interval=60"],
            &["codel-interval=60", "min-rto=1000"],
            &["codel-interval=60", "min-rto=1400"],
            &["codel-interval=60", "min-rto=2000"],
        ],
    ),
];

/// Relative widening of the paper's ranges at both ends: they span loads that the text does not
/// give.
const TOLERANCE: f64 = 0.1;

/// True if the paper's range holds at this load.
fn applies(scheme: Scheme, class: usize, load: f64) -> bool {
    match (scheme, class) {
        (Scheme::SfqCodel, 2) => load >= 0.7,
        (Scheme::SfqCodel, 3) => load <= 0.5,
        _ => true,
    }
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: Settings) -> Result<Reproduction, ExperimentError> {
    let samples = samples(settings)?;
    let mut figure = Figure::new(
        "flowtune-h",
        "99th percentile of completion times over Flowtune's (flowtune fig. 12)",
        settings.seed,
        settings.quick,
    );
    figure.scenario = scenario(settings);
    // Flowtune is the first of all, and what the others are divided by.
    let others = &Scheme::ALL[1..];
    let ratio = |scheme, class: usize, load| {
        let theirs = find(&samples, scheme, load)?;
        let ours = find(&samples, Scheme::Flowtune, load)?;
        Some((
            theirs.slowdown_p99[class]? / ours.slowdown_p99[class]?,
            theirs.slowdown_p99[class]?,
            ours.slowdown_p99[class]?,
            ours.flowlets[class],
        ))
    };
    // Classes that the workload has flowlets of: the public Web curve need not reach all.
    let classes: Vec<usize> = (0..CLASSES.len())
        .filter(|&class| samples.iter().any(|sample| sample.flowlets[class] > 0))
        .collect();
    let mut checks = Vec::new();
    for &scheme in others {
        for &class in &classes {
            let name = CLASSES[class].0;
            for &load in loads(settings.quick) {
                let found = ratio(scheme, class, load);
                let paper = PAPER
                    .iter()
                    .find(|row| (row.0, row.1) == (scheme, class) && applies(scheme, class, load));
                let label = format!("{}, {name}, load {load}", scheme.name());
                let ours = found.map(|found| found.0);
                // Combinations without a number are rows too, so that the picture's bars are in the
                // table.
                let row = match paper {
                    Some(&(.., range, alternatives)) => {
                        checks.push(RowCheck {
                            row: figure.rows.len(),
                            scheme,
                            load,
                            of: class,
                            range,
                            tolerance: TOLERANCE,
                            alternatives,
                            bounded: true,
                        });
                        Row::judged(label, range, ours, "×", TOLERANCE)
                    }
                    None if found.is_none() => Row::new(label, "", ours, "×", Verdict::NotMeasured),
                    None => Row::new(label, "no number in the text", ours, "×", Verdict::NoFigure),
                };
                let note = found.map_or(
                    "no such flowlet ended".to_owned(),
                    |(_, theirs, ours, of)| {
                        format!(
                            "99 % of {of} flowlets within {theirs:.2} times an empty network's, \
                         Flowtune {ours:.2}"
                        )
                    },
                );
                figure.rows.push(row.note(note));
            }
        }
    }
    explain(&mut figure, settings, &checks, |class, theirs, ours| {
        Some(theirs.slowdown_p99[class]? / ours.slowdown_p99[class]?)
    })?;
    figure.notes = vec![
        "the paper's Web curve is not public: the one that is has a mean of 63 kB; sizes move every ratio".to_owned(),
    ];
    figure.data = serde_json::json!(samples);
    let panels = loads(settings.quick)
        .iter()
        .map(|&load| {
            let series = others
                .iter()
                .map(|&scheme| {
                    let values = classes
                        .iter()
                        .map(|&class| ratio(scheme, class, load).map(|found| found.0))
                        .collect();
                    Bars::new(scheme.name(), values)
                })
                .collect();
            Panel::bars(
                format!("Load {load}"),
                "Size of flowlet",
                Axis::linear("99th percentile over Flowtune's (×)"),
                classes
                    .iter()
                    .map(|&class| CLASSES[class].0.to_owned())
                    .collect(),
                series,
            )
            // The subtitle explains this line, so it needs no text of its own in every panel.
            .mark(1.0, "")
        })
        .collect();
    let picture = Picture::new(
        "99th percentile of completion times over Flowtune's",
        format!(
            "Flowtune fig. 12; workload {}; the line at 1 is Flowtune",
            settings.assumptions.workload
        ),
        panels,
    )
    .columns(2)
    .panel_size(560, 320);
    Ok(Reproduction { figure, picture })
}
