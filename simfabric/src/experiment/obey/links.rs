//! A tenth of the links a fifth slower than told: drops, against TCP alone on the same network.

use super::clos::{Case, ClosSample, samples};
use super::{CONTROLS, Managed, hosts};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases: Vec<Case> = CONTROLS
        .iter()
        .flat_map(|control| Managed::EVERY.map(|managed| (*control, managed, true)))
        .collect();
    let samples = samples(settings, &cases)?;
    let mut figure = settings.figure("obey-links", "A tenth of the links slower than told");
    figure.scenario = hosts::scenario(settings.quick);
    figure
        .scenario
        .push("a tenth of the links, drawn by the seed, has 0.8 of what is told".to_owned());
    for (control, of) in CONTROLS.iter().zip(samples.chunks(Managed::EVERY.len())) {
        let [none, half, all] = of else { continue };
        for (managed, runs) in [(Managed::Half, half), (Managed::All, all)] {
            let more = runs.paired(none, |with, without| {
                Some(with.drops_ppm - without.drops_ppm)
            });
            let name = format!(
                "{control}: drops with Ratewright on {}, less TCP's",
                managed.name()
            );
            let claim = Claim::words("no more").at_most(0.0);
            figure.rows.push(Row::judge(name, claim, more, "ppm"));
        }
        for (managed, runs) in Managed::EVERY.iter().zip(of) {
            let values: [(&str, fn(&ClosSample) -> f64); 2] = [
                ("drops", |s| s.drops_ppm),
                ("retransmissions", |s| s.retransmits_ppm),
            ];
            for (what, value) in values {
                let name = format!("{control}, {}: {what}", managed.name());
                let mean = runs.estimate(|sample| Some(value(sample)));
                figure
                    .rows
                    .push(Row::judge(name, Claim::nothing(), mean, "ppm"));
            }
        }
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let picture = picture(&samples);
    Ok(super::reproduction(figure, picture))
}

fn picture(samples: &[Replicas<ClosSample>]) -> Picture {
    let curves = CONTROLS.iter().zip(samples.chunks(Managed::EVERY.len()));
    let curves = curves.enumerate().map(|(number, (control, of))| {
        let points = of.iter().enumerate().filter_map(|(managed, runs)| {
            Some((managed as f64, runs.estimate(|s| Some(s.drops_ppm))?))
        });
        Curve::estimates(*control, points).colour(style::colour(number))
    });
    let panel = Panel::curves(
        "Drops",
        Axis::linear("Ratewright on 0 none, 1 half, 2 all hosts").over(-0.5, 2.5),
        Axis::linear("drops (ppm)").starting_at(0.0),
        curves.collect(),
    );
    Picture::new(
        "A tenth of the links a fifth slower than told",
        "64 hosts, web search at 60 %; 95 % intervals",
        vec![panel],
    )
    .panel_size(480, 320)
}
