//! FNCC fig. 10: two flows that meet at the first switch, at 100, 200 and 400 Gbit/s: when the
//! first one slows down, when both have fair rates, the queue, and the throughput.
//!
//! The text has four times off fig. 10b, of which the join's 300 µs are taken here. All else it has
//! in words: FNCC is the first to slow down and to have fair rates, and has the shortest queue, at
//! every rate, and at 200 and 400 Gbit/s the highest use.

use super::scene::Hop;
use super::two_flows::{
    BY_CHANCE, JOIN, TwoFlowSample, data, drops_rows, first_hop_cases, two_flows,
};
use super::{curve, label};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};

/// Rates of links, in Gbit/s.
const RATES_GBPS: [u64; 3] = [100, 200, 400];
/// Compared schemes, in the order in which the paper has them slow down.
const LABELS: [&str; 4] = [label::FNCC, label::HPCC, label::DCQCN, label::ROCC];
/// First slow-downs of the paper at 100 Gbit/s, in µs after the join.
const PAPER_US: [f64; 4] = [0.0, 30.0, 46.0, 70.0];
/// Accuracy of a time off a plot, in µs.
const READING_US: f64 = 5.0;

/// Causes of verdicts on first slow-downs at 100 Gbit/s, where these are not by chance.
const SLOW_DOWN_CAUSES: [Option<&str>; 4] = [
    Some(
        "telemetry of a queue reaches the sender 3 µs after the join, but U is a mean over the round \
         trip T, so that the rate is 2 % lower only some µs later",
    ),
    Some(
        "the acknowledgement of the first packet that met a queue comes one round trip of 12.6 µs \
         after the join; the paper's time is more than two",
    ),
    None,
    Some(
        "the switch's clock ticks every 40 µs, and its tick at 320 µs finds a queue that has grown \
         by 230 kB; the paper's time is near the next tick",
    ),
];
/// Cause of the verdict on RoCC against DCQCN in the long form.
const TICK_BEFORE_MARK: &str = "RoCC's tick at 320 µs comes before most of DCQCN's first marks";
/// Cause of the verdict on fair rates.
const ONE_HEARS_FIRST: &str = "flow 0 hears of the queue while flow 1 still waits for its first \
                               acknowledgement, and so bears the reduction; HPCC's rule moves \
                               shares by W_AI alone, 40 Mbit/s per round trip at 100 Gbit/s; and \
                               LHCS, whose load is that of one acknowledgement, takes noise at \
                               the receiver's link for congestion and gives flow 1 β of the whole \
                               link, as its receiver has no other flow (fig. 13 has both flows \
                               without LHCS)";
/// Reason why rows on HPCC's use may stay undecided.
const AS_FAR_AS_SEEDS: &str = "the schemes differ by less than the spread over seeds";

/// Rows of one rate.
fn judge(figure: &mut Figure, rate: u64, runs: &[Replicas<TwoFlowSample>]) {
    let is_first = rate == RATES_GBPS[0];
    for (i, (label, runs)) in LABELS.iter().zip(runs).enumerate() {
        let paper = PAPER_US[i];
        let claim = if is_first {
            Claim::number(paper, 0.0)
                .at_least(paper - READING_US)
                .at_most(paper + READING_US)
        } else {
            Claim::nothing()
        };
        let row = Row::judge(
            format!("{rate}G, {label}: first slow-down after the join"),
            claim,
            runs.estimate(|sample| sample.slow_down_us),
            "µs",
        );
        figure.rows.push(match SLOW_DOWN_CAUSES[i] {
            _ if !is_first => row,
            Some(cause) => row.disagrees_because(cause),
            None => row.undecided_because(BY_CHANCE),
        });
    }
    for (i, pair) in runs.windows(2).enumerate() {
        let names = [LABELS[i + 1], LABELS[i]];
        let row = Row::judge(
            format!("{rate}G: first slow-down, {} less {}", names[0], names[1]),
            Claim::words("later").at_least(0.0),
            pair[1].paired(&pair[0], |later, sooner| {
                Some(later.slow_down_us? - sooner.slow_down_us?)
            }),
            "µs",
        );
        figure.rows.push(if !names.contains(&label::DCQCN) {
            row
        } else if names[0] == label::ROCC && !figure.quick && rate < 400 {
            // Three seeds do not show it.
            row.disagrees_because(TICK_BEFORE_MARK)
        } else {
            row.undecided_because(BY_CHANCE)
        });
    }
    type Value = fn(&TwoFlowSample) -> Option<f64>;
    let measures: [(&str, &str, Value); 5] = [
        ("flow 1's first slow-down after the join", "µs", |s| {
            s.joined_slow_down_us
        }),
        ("fair from, after the join", "µs", |s| Some(s.fair_us)),
        ("largest queue", "kB", |s| Some(s.peak_kb)),
        ("mean queue", "kB", |s| Some(s.mean_kb)),
        ("use of the link", "share", |s| Some(s.used)),
    ];
    for (what, unit, value) in measures {
        for (label, runs) in LABELS.iter().zip(runs) {
            figure.rows.push(Row::judge(
                format!("{rate}G, {label}: {what}"),
                Claim::nothing(),
                runs.estimate(value),
                unit,
            ));
        }
    }
    let [fncc, others @ ..] = runs else { return };
    let row = Row::judge(
        format!("{rate}G: fair from, FNCC over HPCC"),
        Claim::words("sooner").at_most(1.0),
        fncc.paired(&others[0], |fncc, hpcc| Some(fncc.fair_us / hpcc.fair_us)),
        "ratio",
    );
    figure.rows.push(row.disagrees_because(ONE_HEARS_FIRST));
    for (label, other) in LABELS[1..].iter().zip(others) {
        let row = Row::judge(
            format!("{rate}G: largest queue, FNCC over {label}"),
            Claim::words("shortest").at_most(1.0),
            fncc.paired(other, |fncc, other| Some(fncc.peak_kb / other.peak_kb)),
            "ratio",
        );
        figure.rows.push(if *label == label::DCQCN {
            row.undecided_because(BY_CHANCE)
        } else {
            row
        });
        let claim = if is_first {
            Claim::nothing()
        } else {
            Claim::words("highest").at_least(1.0)
        };
        let row = Row::judge(
            format!("{rate}G: use, FNCC over {label}"),
            claim,
            fncc.paired(other, |fncc, other| Some(fncc.used / other.used)),
            "ratio",
        );
        figure.rows.push(match *label {
            _ if is_first => row,
            label::HPCC => row.undecided_because(AS_FAR_AS_SEEDS),
            label::DCQCN => row.undecided_because(BY_CHANCE),
            _ => row.disagrees_because(
                "RoCC's queue stays at the 1 MB at which both senders are paused, so that its link is \
                 never idle",
            ),
        });
    }
}

/// Times that the picture shows, in µs.
const SHOWN_US: (f64, f64) = (280.0, 1_000.0);

/// Panels of one rate: queue, rates, throughput.
fn panels(rate: u64, runs: &[Replicas<TwoFlowSample>]) -> [Panel; 3] {
    let time = || Axis::linear("Time (µs)").over(SHOWN_US.0, SHOWN_US.1);
    let of = |points: fn(&TwoFlowSample) -> &Vec<(f64, f64)>| {
        let curves = LABELS.iter().zip(runs);
        let curves = curves.map(|(label, runs)| curve(label, runs.first().map(points), SHOWN_US));
        curves.collect::<Vec<_>>()
    };
    let mut rates = of(|sample| &sample.curves.rates[0]);
    rates.extend(
        of(|sample| &sample.curves.rates[1])
            .into_iter()
            .map(|curve| {
                // Its flow 0 has the entry of the legend.
                Curve {
                    name: String::new(),
                    ..curve.dashed()
                }
            }),
    );
    let panel = |title: &str, y: Axis, curves| {
        let title = format!("{rate} Gbit/s: {title}");
        Panel::curves(title, time(), y, curves).event(JOIN.as_us_f64(), "flow 1 joins")
    };
    [
        panel(
            "queue",
            Axis::linear("Queue (kB)").starting_at(0.0),
            of(|sample| &sample.curves.queue),
        ),
        panel(
            "senders' rates (flow 1 dashed)",
            Axis::linear("Rate (Gbit/s)").over(0.0, 1.05 * rate as f64),
            rates,
        ),
        panel(
            "throughput of both flows",
            Axis::linear("Share of the link").over(0.0, 1.05),
            of(|sample| &sample.curves.throughput),
        ),
    ]
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases = first_hop_cases(&RATES_GBPS, &LABELS);
    let samples = two_flows(settings, &cases)?;
    let mut figure = settings.figure(
        "fncc-fig10",
        "Response of a flow to another one that joins it (FNCC fig. 10)",
    );
    figure.scenario = super::two_flow_scenario(Hop::First);
    let mut all = Vec::new();
    for (rate, runs) in RATES_GBPS.iter().zip(samples.chunks(LABELS.len())) {
        judge(&mut figure, *rate, runs);
        all.extend(panels(*rate, runs));
    }
    figure.rows.extend(drops_rows(&cases, &samples));
    figure.data = data(&cases, &samples);
    let picture = Picture::new(
        "Two flows that meet at the first switch",
        "FNCC fig. 10; first seed",
        all,
    )
    .columns(3)
    .panel_size(460, 320);
    Ok(Reproduction { figure, picture })
}
