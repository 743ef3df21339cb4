//! Half of the hosts without Ratewright: what either half has, against a network of one kind.

use super::clos::{Case, ClosSample, HalfSample, samples, schedule};
use super::{CONTROLS, Managed};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};

/// Accepted slowdown, in parts of that in a network of one kind.
const HARM: f64 = 1.1;
/// Halves of the hosts, in the order of [`ClosSample::halves`].
const HALVES: [&str; 2] = ["with Ratewright", "without"];

/// Other parameters: the kernel's credit, hardly any, and demands by shorter windows.
pub const VARIATIONS: &[&[&str]] = &[
    &["ratewright.credit_time=1ms"],
    &["ratewright.credit_packets=2", "ratewright.credit_time=0us"],
    &["ratewright.demand_window=2ms"],
];

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases: Vec<Case> = CONTROLS
        .iter()
        .flat_map(|control| Managed::EVERY.map(|managed| (*control, managed, false)))
        .collect();
    let samples = samples(settings, &cases)?;
    let mut figure = settings.figure("obey-hosts", "Half of the hosts without Ratewright");
    figure.scenario = scenario(settings.quick);
    for (control, of) in CONTROLS.iter().zip(samples.chunks(Managed::EVERY.len())) {
        if let [none, half, all] = of {
            judge(&mut figure, control, [none, half, all]);
            for (managed, runs) in Managed::EVERY.iter().zip(of) {
                values(&mut figure, &format!("{control}, {}", managed.name()), runs);
            }
        }
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let picture = picture(&samples);
    Ok(super::reproduction(figure, picture))
}

/// Describes the runs in words.
pub(super) fn scenario(quick: bool) -> Vec<String> {
    let ms = |span: crate::Span| span.as_us_f64() / 1e3;
    let times = schedule(quick);
    vec![
        "64 hosts in 4 racks under 4 spines, links of 10 and 40 Gbit/s".to_owned(),
        "web search at 60 % of the hosts' links".to_owned(),
        format!(
            "flows that start from {} to {} ms; they have {} ms to finish",
            ms(times.warm_up),
            ms(times.warm_up + times.counted),
            ms(times.most_drain)
        ),
    ]
}

/// Judges either half by its network of one kind, and the half with Ratewright by TCP alone, too.
fn judge(figure: &mut Figure, control: &str, [none, half, all]: [&Replicas<ClosSample>; 3]) {
    let ratios = [
        (0, half, all, "Ratewright on all"),
        (0, half, none, "TCP alone"),
        (1, half, none, "TCP alone"),
    ];
    for (of, with, alone, against) in ratios {
        type Value = fn(&HalfSample) -> Option<f64>;
        let ratio = |value: Value| {
            with.paired(alone, |with, alone| {
                Some(value(&with.halves[of])? / value(&alone.halves[of])?)
            })
        };
        let name = |what| {
            format!(
                "{control}: {what} of the half {}, over {against}",
                HALVES[of]
            )
        };
        let claim = Claim::words("at most 1.1 times").at_most(HARM);
        let rows = [
            (name("99 % slowdown"), claim, ratio(|half| half.p99)),
            (
                name("mean slowdown"),
                Claim::nothing(),
                ratio(|half| half.mean),
            ),
        ];
        for (name, claim, ratio) in rows {
            figure.rows.push(Row::judge(name, claim, ratio, "ratio"));
        }
    }
}

/// Adds the values of a case, for comparison.
fn values(figure: &mut Figure, case: &str, runs: &Replicas<ClosSample>) {
    let mut add = |what: String, value: &dyn Fn(&ClosSample) -> Option<f64>, unit: &str| {
        let name = format!("{case}: {what}");
        figure.rows.push(Row::judge(
            name,
            Claim::nothing(),
            runs.estimate(value),
            unit,
        ));
    };
    for (of, half) in HALVES.iter().enumerate() {
        add(
            format!("99 % slowdown, half {half}"),
            &|s| s.halves[of].p99,
            "",
        );
        add(
            format!("mean slowdown, half {half}"),
            &|s| s.halves[of].mean,
            "",
        );
    }
    add("drops".to_owned(), &|s| Some(s.drops_ppm), "ppm");
    let total = |count: fn(&HalfSample) -> usize| {
        runs.total(|sample| sample.halves.iter().map(count).sum())
    };
    let unfinished = total(|half| half.unfinished);
    if unfinished > 0 {
        figure.notes.push(format!(
            "{case}: {unfinished} of {} flows were unfinished at the end and count with their age",
            total(|half| half.flows)
        ));
    }
}

fn picture(samples: &[Replicas<ClosSample>]) -> Picture {
    let panels = CONTROLS.iter().zip(samples.chunks(Managed::EVERY.len()));
    let panels = panels.map(|(control, of)| {
        let curves = HALVES.iter().enumerate().map(|(half, name)| {
            let points = of.iter().enumerate().filter_map(|(managed, runs)| {
                Some((managed as f64, runs.estimate(|s| s.halves[half].p99)?))
            });
            Curve::estimates(*name, points).colour(style::colour(half))
        });
        Panel::curves(
            format!("{control}: 99 % slowdown"),
            Axis::linear("Ratewright on 0 none, 1 half, 2 all hosts").over(-0.5, 2.5),
            Axis::linear("slowdown").starting_at(0.0),
            curves.collect(),
        )
    });
    Picture::new(
        "Half of the hosts without Ratewright",
        "64 hosts, web search at 60 %; 95 % intervals",
        panels.collect(),
    )
    .columns(2)
    .panel_size(420, 300)
}
