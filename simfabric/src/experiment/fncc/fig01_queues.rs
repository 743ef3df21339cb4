//! FNCC fig. 1b–d: the queue at the congestion point, where two flows at the line's rate meet, at
//! 100, 200 and 400 Gbit/s. The text says that HPCC's and DCQCN's are deeper than FNCC's.

use super::scene::Hop;
use super::two_flows::{BY_CHANCE, JOIN, data, drops_rows, first_hop_cases, two_flows};
use super::{curve, label};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Panel, Picture};

/// Rates of links, in Gbit/s.
const RATES_GBPS: [u64; 3] = [100, 200, 400];
/// Compared schemes, the paper's own last.
const LABELS: [&str; 3] = [label::DCQCN, label::HPCC, label::FNCC];

/// Times that the picture shows, in µs.
const SHOWN_US: (f64, f64) = (250.0, 700.0);

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases = first_hop_cases(&RATES_GBPS, &LABELS);
    let samples = two_flows(settings, &cases)?;
    let mut figure = settings.figure("fncc-fig1", "Queue where two flows meet (FNCC fig. 1b–d)");
    figure.scenario = super::two_flow_scenario(Hop::First);
    let mut panels = Vec::new();
    for (rate, runs) in RATES_GBPS.iter().zip(samples.chunks(LABELS.len())) {
        for (label, runs) in LABELS.iter().zip(runs) {
            figure.rows.push(Row::judge(
                format!("{rate}G, {label}: largest queue"),
                Claim::nothing(),
                runs.estimate(|sample| Some(sample.peak_kb)),
                "kB",
            ));
        }
        let fncc = &runs[LABELS.len() - 1];
        for (label, other) in LABELS.iter().zip(&runs[..LABELS.len() - 1]) {
            let row = Row::judge(
                format!("{rate}G: largest queue, {label} over FNCC"),
                Claim::words("deeper").at_least(1.0),
                other.paired(fncc, |other, fncc| Some(other.peak_kb / fncc.peak_kb)),
                "ratio",
            );
            figure.rows.push(if *label == label::DCQCN {
                row.undecided_because(BY_CHANCE)
            } else {
                row
            });
        }
        let curves = LABELS.iter().zip(runs).map(|(label, runs)| {
            curve(
                label,
                runs.first().map(|sample| &sample.curves.queue),
                SHOWN_US,
            )
        });
        let panel = Panel::curves(
            format!("{rate} Gbit/s"),
            Axis::linear("Time (µs)").over(SHOWN_US.0, SHOWN_US.1),
            Axis::linear("Queue (kB)").starting_at(0.0),
            curves.collect(),
        );
        panels.push(panel.event(JOIN.as_us_f64(), "flow 1 joins"));
    }
    figure.rows.extend(drops_rows(&cases, &samples));
    figure.data = data(&cases, &samples);
    let picture = Picture::new(
        "The faster the news, the shorter the queue",
        "FNCC fig. 1b–d; two flows meet at the first switch; first seed",
        panels,
    )
    .columns(3)
    .panel_size(420, 340);
    Ok(Reproduction { figure, picture })
}
