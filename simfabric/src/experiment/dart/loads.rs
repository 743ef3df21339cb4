//! Dart figures 11 to 13, tables I and II: tail and median latency of short messages, throughput,
//! marks, and what deflection costs, by mix and load.

use super::runs::{Load, LoadSample, Mix, SHORT_BYTES, Scene, samples, schedule};
use super::{colour, label, reproduction};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::report::stats::mean;

/// Compared schemes, the paper's own last.
const LABELS: [&str; 4] = [label::DCTCP, label::TIMELY, label::DCQCN, label::DART];
/// Mixes and loads of both tables, in their order.
const LOADS: [Load; 9] = [
    (Mix::Typical, 20),
    (Mix::Typical, 40),
    (Mix::Typical, 60),
    (Mix::Light, 20),
    (Mix::Light, 40),
    (Mix::Light, 60),
    (Mix::Light, 80),
    (Mix::Heavy, 20),
    (Mix::Heavy, 40),
];
/// Table I: packets of short messages with marks, in per cent, under DCQCN and Dart.
const MARKED: [[f64; 9]; 2] = [
    [17.0, 41.0, 67.0, 5.0, 14.0, 36.0, 48.0, 33.0, 70.0],
    [6.0, 11.0, 14.0, 4.0, 9.0, 21.0, 28.0, 9.0, 18.0],
];
/// Table II: increase of the network's load and of short messages' paths, in per cent.
const INCREASE: [[f64; 9]; 2] = [
    [3.0, 6.0, 9.0, 0.4, 0.8, 1.4, 3.0, 11.0, 15.0],
    [8.0, 15.0, 23.0, 4.0, 8.0, 14.0, 26.0, 15.0, 21.0],
];
/// Accepted relative distance from the paper's numbers.
const TOLERANCE: f64 = 0.25;
/// Accepted distance of what the paper calls comparable.
const COMPARABLE: f64 = 0.25;
/// Size of the figures' short messages: 8 kB.
const SIZE: usize = SHORT_BYTES.len() - 1;

/// A value of a run, if it has one.
type Value = fn(&LoadSample) -> Option<f64>;

/// Samples of all schemes at all loads.
struct Samples(Vec<Replicas<LoadSample>>);

impl Samples {
    fn of(&self, label: &str, load: usize) -> &Replicas<LoadSample> {
        let scheme = LABELS.iter().position(|other| *other == label);
        &self.0[scheme.unwrap_or(0) * LOADS.len() + load]
    }

    /// Estimates a value of a scheme over Dart's at a load.
    fn over_dart(
        &self,
        label: &str,
        load: usize,
        value: impl Fn(&LoadSample) -> Option<f64>,
    ) -> Option<Estimate> {
        let (other, dart) = (self.of(label, load), self.of(label::DART, load));
        dart.paired(other, |dart, other| Some(value(other)? / value(dart)?))
    }

    /// Estimates the mean, over schemes and loads, of a value over Dart's.
    fn mean_over_dart(
        &self,
        labels: &[&str],
        loads: &[usize],
        value: impl Fn(&LoadSample) -> Option<f64>,
    ) -> Option<Estimate> {
        let seeds = self.of(label::DART, 0).0.len();
        // A seed that lacks one of the runs, or the value in one, has no mean.
        let of_seed = |seed: usize| {
            let ratios: Option<Vec<f64>> = (labels.iter())
                .flat_map(|label| loads.iter().map(move |load| (*label, *load)))
                .map(|(label, load)| {
                    let of = |label| value(self.of(label, load).0[seed].as_ref()?);
                    Some(of(label)? / of(label::DART)?)
                })
                .collect();
            mean(&ratios?)
        };
        Estimate::of((0..seeds).filter_map(of_seed))
    }
}

/// Name of a load.
fn name((mix, percent): Load) -> String {
    format!("{} mix at {percent} %", mix.name())
}

/// Completion time of the figures' short messages: 0 is the median, 1 the tail.
fn latency(statistic: usize) -> impl Fn(&LoadSample) -> Option<f64> {
    move |sample| sample.short_us[SIZE][statistic]
}

/// Runs figures 11 to 13 and tables I and II.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let scene = Scene::of(settings)?;
    let cases: Vec<(&str, Load)> = (LABELS.iter())
        .flat_map(|label| LOADS.iter().map(move |load| (*label, *load)))
        .collect();
    let times = schedule(settings.quick);
    let samples = Samples(samples(settings, &cases)?);
    let mut figure = settings.figure(
        "dart-fig11",
        "Latency and throughput by mix and load (Dart figures 11 to 13, tables I and II)",
    );
    let ms = |span: crate::time::Span| span.as_us_f64() / 1e3;
    figure.scenario = vec![
        format!(
            "1,024 hosts in 16 pods, all links 1 µs, hosts' {} Gbit/s and switches' {} Gbit/s, \
             uplinks of racks a quarter of their hosts'",
            scene.link_rate.0 as f64 / 1e9,
            scene.link_rate.0 as f64 * f64::from(scene.uplink_speed) / 1e9
        ),
        format!(
            "incasts of {} short messages of 2, 4 or 8 kB beside long ones of {} kB",
            scene.incast_senders,
            scene.long_bytes as f64 / 1e3
        ),
        format!(
            "messages that start from {} to {} ms",
            ms(times.warm_up),
            ms(times.warm_up + times.counted)
        ),
    ];
    judge(&mut figure, &samples);
    figure.data = serde_json::json!({ "cases": cases, "samples": samples.0 });
    let picture = picture(&samples);
    Ok(reproduction(figure, picture))
}

fn judge(figure: &mut Figure, samples: &Samples) {
    let rivals = [label::DCQCN, label::TIMELY];
    figure.rows.push(Row::judge(
        "fig. 11, typical mix at 20 and 40 %: 99 % latency of DCQCN and TIMELY over Dart's, mean",
        Claim::number(4.8, TOLERANCE),
        samples.mean_over_dart(&rivals, &[0, 1], latency(1)),
        "ratio",
    ));
    for label in rivals {
        figure.rows.push(Row::judge(
            format!("fig. 11, headline at 40 %: 99 % latency of {label} over Dart's"),
            Claim::words("4.8 on average").at_least(3.0),
            samples.over_dart(label, 1, latency(1)),
            "ratio",
        ));
    }
    for (load, of) in LOADS.iter().enumerate() {
        let light = of.0 == Mix::Light;
        for label in &LABELS[..3] {
            let claim = if light && *label != label::DCTCP {
                let claim = Claim::words("comparable").at_least(1.0 - COMPARABLE);
                claim.at_most(1.0 + COMPARABLE)
            } else {
                Claim::words("Dart's is lowest").at_least(1.0)
            };
            figure.rows.push(Row::judge(
                format!(
                    "fig. 11, {}: 99 % latency of {label} over Dart's",
                    name(*of)
                ),
                claim,
                samples.over_dart(label, load, latency(1)),
                "ratio",
            ));
        }
    }
    for (labels, paper, of) in [
        (&rivals[..], 1.4, "DCQCN and TIMELY"),
        (&[label::DCTCP][..], 3.0, "DCTCP"),
    ] {
        figure.rows.push(Row::judge(
            format!(
                "fig. 12, typical mix: median latency of {of} over Dart's, mean of three loads"
            ),
            Claim::number(paper, TOLERANCE),
            samples.mean_over_dart(labels, &[0, 1, 2], latency(0)),
            "ratio",
        ));
    }
    for (load, of) in LOADS.iter().enumerate() {
        for label in &LABELS[..3] {
            figure.rows.push(Row::judge(
                format!("fig. 13, {}: throughput of {label} over Dart's", name(*of)),
                Claim::words("Dart's is highest").at_most(1.0),
                samples.over_dart(label, load, |sample| Some(sample.goodput_gbps)),
                "ratio",
            ));
        }
    }
    for (label, paper) in [label::DCQCN, label::DART].into_iter().zip(MARKED) {
        for ((load, of), paper) in LOADS.iter().enumerate().zip(paper) {
            figure.rows.push(Row::judge(
                format!(
                    "table I, {}: short messages' packets marked, {label}",
                    name(*of)
                ),
                Claim::number(paper, TOLERANCE),
                samples
                    .of(label, load)
                    .estimate(|sample| sample.short_marked),
                "%",
            ));
        }
    }
    let measures: [(&str, Value); 2] = [
        ("load increase", |sample| Some(sample.link_bytes)),
        ("path dilation", |sample| sample.short_hops),
    ];
    for ((what, value), paper) in measures.into_iter().zip(INCREASE) {
        for ((load, of), paper) in LOADS.iter().enumerate().zip(paper) {
            let over = samples.over_dart(label::DCQCN, load, value);
            // Dart's over DCQCN's, in per cent above.
            let dart = samples.of(label::DART, load);
            let increase = over.and_then(|_| {
                dart.paired(samples.of(label::DCQCN, load), |dart, dcqcn| {
                    Some(100.0 * (value(dart)? / value(dcqcn)? - 1.0))
                })
            });
            figure.rows.push(Row::judge(
                format!("table II, {}: {what}", name(*of)),
                Claim::number(paper, TOLERANCE),
                increase,
                "%",
            ));
        }
    }
    for (load, of) in LOADS.iter().enumerate() {
        for label in LABELS {
            let runs = samples.of(label, load);
            for (what, statistic) in [("median", 0), ("99 %", 1)] {
                figure.rows.push(Row::judge(
                    format!("{}, {label}: {what} latency", name(*of)),
                    Claim::nothing(),
                    runs.estimate(latency(statistic)),
                    "µs",
                ));
            }
            figure.rows.push(Row::judge(
                format!("{}, {label}: marks at links to receivers", name(*of)),
                Claim::nothing(),
                runs.estimate(|sample| sample.marked_at_receivers),
                "%",
            ));
            let (flows, unfinished) = (
                runs.total(|sample| sample.flows),
                runs.total(|sample| sample.unfinished),
            );
            if unfinished > 0 {
                figure.notes.push(format!(
                    "{}, {label}: {unfinished} of {flows} messages were unfinished at the end and \
                     count with their age",
                    name(*of)
                ));
            }
        }
    }
}

fn picture(samples: &Samples) -> Picture {
    let measures: [(&str, &str, Value); 3] = [
        ("99 % latency of 8 kB", "µs", |s| s.short_us[SIZE][1]),
        ("Median latency of 8 kB", "µs", |s| s.short_us[SIZE][0]),
        ("Throughput of a host", "Gbit/s", |s| Some(s.goodput_gbps)),
    ];
    let mut panels = Vec::new();
    for (title, unit, value) in &measures {
        for mix in [Mix::Typical, Mix::Light, Mix::Heavy] {
            let curves = LABELS.iter().map(|label| {
                let loads = LOADS.iter().enumerate().filter(|(_, load)| load.0 == mix);
                let points = loads.filter_map(|(at, load)| {
                    let estimate = samples.of(label, at).estimate(value)?;
                    Some((f64::from(load.1), estimate.mean))
                });
                Curve::new(*label, points.collect())
                    .colour(colour(label))
                    .dots()
            });
            let y = if *unit == "µs" {
                Axis::log(format!("{title} ({unit})"))
            } else {
                Axis::linear(format!("{title} ({unit})")).starting_at(0.0)
            };
            let x = Axis::linear("load of racks' uplinks (%)").over(0.0, 100.0);
            panels.push(Panel::curves(
                format!("{title}: {} mix", mix.name()),
                x,
                y,
                curves.collect(),
            ));
        }
    }
    Picture::new(
        "Short messages beside long ones, by mix and load",
        "Dart figures 11 to 13: 1,024 hosts, oversubscribed by 4",
        panels,
    )
    .columns(3)
    .panel_size(420, 300)
}
