//! FNCC fig. 3: pauses at the congestion point, where two flows at the line's rate meet, at 200 and
//! 400 Gbit/s. The text says that FNCC has the fewest, and HPCC and DCQCN more.

use super::scene::Hop;
use super::two_flows::{BY_CHANCE, data, drops_rows, first_hop_cases, two_flows};
use super::{colour, label};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};

/// Rates of links, in Gbit/s.
const RATES_GBPS: [u64; 2] = [200, 400];
/// Compared schemes, in the order of the paper's counts.
const LABELS: [&str; 3] = [label::FNCC, label::HPCC, label::DCQCN];

/// Cause of HPCC's verdict.
const BELOW_XOFF: &str = "neither pauses: XOFF is 500 kB of what came by one port (802.1Qbb), and \
                          two ports bring the largest queue of HPCC, which is 623 kB at 400 \
                          Gbit/s";

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases = first_hop_cases(&RATES_GBPS, &LABELS);
    let samples = two_flows(settings, &cases)?;
    let mut figure = settings.figure("fncc-fig3", "Pauses where two flows meet (FNCC fig. 3)");
    figure.scenario = super::two_flow_scenario(Hop::First);
    let of = |rate: usize, label: usize| &samples[rate * LABELS.len() + label];
    for (i, rate) in RATES_GBPS.iter().enumerate() {
        for (j, label) in LABELS.iter().enumerate() {
            figure.rows.push(Row::judge(
                format!("{rate}G, {label}: pauses"),
                Claim::nothing(),
                of(i, j).estimate(|sample| Some(sample.pauses as f64)),
                "pauses",
            ));
        }
        for j in 1..LABELS.len() {
            let row = Row::judge(
                format!("{rate}G: pauses, {} less {}", LABELS[j], LABELS[j - 1]),
                Claim::words("more").at_least(1.0),
                of(i, j).paired(of(i, j - 1), |more, fewer| {
                    Some(more.pauses as f64 - fewer.pauses as f64)
                }),
                "pauses",
            );
            figure.rows.push(if LABELS[j] == label::HPCC {
                row.disagrees_because(BELOW_XOFF)
            } else {
                row.undecided_because(BY_CHANCE)
            });
        }
    }
    figure.rows.extend(drops_rows(&cases, &samples));
    figure.data = data(&cases, &samples);
    let bars = LABELS.iter().enumerate().map(|(j, label)| {
        let counts =
            (0..RATES_GBPS.len()).map(|i| of(i, j).estimate(|sample| Some(sample.pauses as f64)));
        Bars::estimates(*label, &counts.collect::<Vec<_>>()).colour(colour(label))
    });
    let groups = RATES_GBPS.map(|rate| format!("{rate} Gbit/s")).to_vec();
    let panel = Panel::bars(
        "Pauses sent by switches until 1 ms",
        "rate of all links",
        Axis::linear("Pauses"),
        groups,
        bars.collect(),
    );
    let picture = Picture::new(
        "Pauses where two flows meet",
        "FNCC fig. 3; XOFF at 500 kB of a port",
        vec![panel],
    )
    .panel_size(620, 380);
    Ok(Reproduction { figure, picture })
}
