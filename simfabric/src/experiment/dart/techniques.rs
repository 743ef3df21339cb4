//! Dart fig. 14: tail latency of short messages with each technique alone, normalised to DCQCN's.

use super::runs::{Load, LoadSample, Mix, samples};
use super::{colour, label, reproduction};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};

/// The bars of a group in the paper's order, behind DCQCN that they are normalised to.
const LABELS: [&str; 6] = [
    label::DCQCN,
    label::PRIORITIES,
    label::IOFD_ONLY,
    label::WITHOUT_LOOK_AHEAD,
    label::DASR_ONLY,
    label::DART,
];
/// Loads of the typical mix, in per cent.
const LOADS: [u32; 3] = [20, 40, 60];
/// The paper's words: loads (by index), a technique, one that it is at most as slow as.
const ORDERS: [(&[usize], &str, &str, &str); 7] = [
    (
        &[1],
        label::IOFD_ONLY,
        label::PRIORITIES,
        "Pri-Q performs worse",
    ),
    (
        &[1],
        label::DASR_ONLY,
        label::PRIORITIES,
        "Pri-Q performs worse",
    ),
    (
        &[1],
        label::IOFD_ONLY,
        label::DCQCN,
        "IOFD handles localized congestion",
    ),
    (
        &[0, 1],
        label::DASR_ONLY,
        label::IOFD_ONLY,
        "DASR contributes more",
    ),
    (
        &[0, 1],
        label::DASR_ONLY,
        label::WITHOUT_LOOK_AHEAD,
        "sizable impact of look-ahead",
    ),
    (
        &[2],
        label::IOFD_ONLY,
        label::DASR_ONLY,
        "IOFD contributes more at 60 %",
    ),
    (
        &[0, 1, 2],
        label::DART,
        label::DASR_ONLY,
        "both together are best",
    ),
];

fn tail(sample: &LoadSample) -> Option<f64> {
    sample.short_us[2][1]
}

/// Runs figure 14.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases: Vec<(&str, Load)> = (LABELS.iter())
        .flat_map(|label| LOADS.map(|load| (*label, (Mix::Typical, load))))
        .collect();
    let samples = samples(settings, &cases)?;
    let of = |label: &str, load: usize| {
        let scheme = LABELS.iter().position(|other| *other == label);
        &samples[scheme.unwrap_or(0) * LOADS.len() + load]
    };
    let ratio = |label: &str, to: &str, load: usize| -> Option<Estimate> {
        of(label, load).paired(of(to, load), |own, other| Some(tail(own)? / tail(other)?))
    };
    let mut figure = settings.figure(
        "dart-fig14",
        "99 % latency of short messages with each technique (Dart fig. 14)",
    );
    figure.scenario =
        vec!["network and messages of figures 11 to 13, typical mix, messages of 8 kB".to_owned()];
    for (loads, faster, slower, words) in ORDERS {
        for load in loads {
            figure.rows.push(Row::judge(
                format!("{} %: 99 % latency, {faster} over {slower}", LOADS[*load]),
                Claim::words(words).at_most(1.0),
                ratio(faster, slower, *load),
                "ratio",
            ));
        }
    }
    for (load, percent) in LOADS.iter().enumerate() {
        for label in &LABELS[1..] {
            figure.rows.push(Row::judge(
                format!("{percent} %: 99 % latency, {label} over DCQCN"),
                Claim::nothing(),
                ratio(label, label::DCQCN, load),
                "ratio",
            ));
        }
    }
    let bars = LABELS[1..].iter().map(|label| {
        let values: Vec<Option<Estimate>> = (0..LOADS.len())
            .map(|load| ratio(label, label::DCQCN, load))
            .collect();
        Bars::estimates(*label, &values).colour(colour(label))
    });
    let panel = Panel::bars(
        "99 % latency of 8 kB, over DCQCN's",
        "load of racks' uplinks",
        Axis::linear("over DCQCN's"),
        LOADS.map(|load| format!("{load} %")).to_vec(),
        bars.collect(),
    );
    let picture = Picture::new(
        "What each of Dart's techniques gives",
        "Dart fig. 14: typical mix",
        vec![panel],
    );
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    Ok(reproduction(figure, picture))
}
