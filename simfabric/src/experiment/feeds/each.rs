//! Each feed alone, all and none, at a load of 80 %: what each gives, its error and its age.

use super::runs::{Case, FeedSample, READINGS, samples};
use super::{Feeds, SCHEMES};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};

/// Load in per cent of the hosts' links.
const LOAD: u32 = 80;

/// Schemes of a form: in the short one, one without credit and one with it.
fn schemes(quick: bool) -> &'static [&'static str] {
    if quick { &SCHEMES[..2] } else { &SCHEMES }
}

type Value = fn(&FeedSample) -> Option<f64>;

/// Compared values, with their unit.
const VALUES: [(&str, &str, Value); 4] = [
    ("queue of a shared link", "kB", |s| {
        Some(s.shared_queue_bytes / 1e3)
    }),
    ("99 % slowdown of Ratewright", "", |s| s.slowdown[0][0]),
    ("mean slowdown of the other", "", |s| s.slowdown[1][1]),
    ("goodput of both", "Gbit/s", |s| Some(s.total_gbps())),
];

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let schemes = schemes(settings.quick);
    let cases: Vec<Case> = (schemes.iter())
        .flat_map(|scheme| Feeds::EVERY.map(|feeds| (*scheme, feeds, LOAD)))
        .collect();
    let samples = samples(settings, &cases)?;
    let mut figure = settings.figure("feeds-each", "Each feed alone, all and none");
    figure.scenario = super::scenario(settings.quick);
    figure.scenario.push(format!("load {LOAD} %"));
    for (case, runs) in cases.iter().zip(&samples) {
        rows(&mut figure, *case, runs);
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let picture = picture(schemes, &samples);
    Ok(super::reproduction(figure, picture))
}

fn rows(figure: &mut Figure, (scheme, feeds, _): Case, runs: &Replicas<FeedSample>) {
    let case = format!("{scheme}, {}", feeds.name());
    let mut add = |what: String, value: &dyn Fn(&FeedSample) -> Option<f64>, unit: &str| {
        let estimate = runs.estimate(value);
        if estimate.is_some() {
            let name = format!("{case}: {what}");
            figure
                .rows
                .push(Row::judge(name, Claim::nothing(), estimate, unit));
        }
    };
    for (what, unit, value) in VALUES {
        add(what.to_owned(), &value, unit);
    }
    for (i, (_, what, unit, _)) in READINGS.iter().enumerate() {
        let of = |value: fn(&super::runs::ReadingSample) -> f64| {
            move |sample: &FeedSample| sample.readings[i].as_ref().map(value)
        };
        add(format!("{what}, mean error"), &of(|r| r.error), unit);
        add(format!("{what}, mean truth"), &of(|r| r.truth), unit);
        add(format!("{what}, mean age"), &of(|r| r.age_us), "µs");
    }
    if feeds == Feeds::All {
        let share = |sample: &FeedSample| Some(100.0 * sample.control_share);
        add("use of the allocator's links".to_owned(), &share, "%");
    }
}

fn picture(schemes: &[&'static str], samples: &[Replicas<FeedSample>]) -> Picture {
    let panels = VALUES.iter().map(|(title, unit, value)| {
        let curves = schemes.iter().enumerate().map(|(s, scheme)| {
            let points = (0..Feeds::EVERY.len()).filter_map(|f| {
                let runs = &samples[s * Feeds::EVERY.len() + f];
                Some((f as f64, runs.estimate(value)?))
            });
            Curve::estimates(*scheme, points).colour(style::colour(s))
        });
        let y = if unit.is_empty() {
            (*title).to_owned()
        } else {
            format!("{title} ({unit})")
        };
        let x = Axis::linear("0 none, 1 receivers, 2 credit, 3 INT, 4 all").over(-0.5, 4.5);
        Panel::curves(
            *title,
            x,
            Axis::linear(y).starting_at(0.0),
            curves.collect(),
        )
    });
    Picture::new(
        "Each feed alone, all and none",
        "144 hosts, web search at 80 %; 95 % intervals",
        panels.collect(),
    )
    .columns(2)
    .panel_size(460, 300)
}
