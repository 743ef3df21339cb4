//! All feeds against none, by the other scheme and load: standing queues, the tail of Ratewright's
//! flows, goodput, and what it costs the other scheme.

use super::runs::{Case, FeedSample, samples};
use super::{Feeds, SCHEMES};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};

/// Loads in per cent of the hosts' links.
const LOADS: [u32; 3] = [40, 60, 80];

/// Loads of a form: the short one has the ends.
fn loads(quick: bool) -> &'static [u32] {
    const ENDS: [u32; 2] = [LOADS[0], LOADS[2]];
    if quick { &ENDS } else { &LOADS }
}

/// Times by which standing queues are to be shorter.
const SHORTER: f64 = 3.0;
/// Accepted harm to the other scheme.
const HARM: f64 = 0.02;
/// Accepted distance of goodputs that are called not less: the chance of a run's last flows.
const NOT_LESS: f64 = 0.01;

/// Samples without feeds and with all, by scheme and load.
struct Samples {
    loads: &'static [u32],
    runs: Vec<Replicas<FeedSample>>,
}

impl Samples {
    fn of(&self, scheme: usize, load: usize, with: bool) -> &Replicas<FeedSample> {
        &self.runs[(scheme * self.loads.len() + load) * 2 + usize::from(with)]
    }

    /// Estimates a value with feeds over that without, seed by seed.
    fn ratio(
        &self,
        scheme: usize,
        load: usize,
        value: impl Fn(&FeedSample) -> Option<f64>,
    ) -> Option<Estimate> {
        let (without, with) = (self.of(scheme, load, false), self.of(scheme, load, true));
        with.paired(without, |with, without| {
            Some(value(with)? / value(without)?)
        })
    }
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let loads = loads(settings.quick);
    let mut cases: Vec<Case> = Vec::new();
    for scheme in SCHEMES {
        for load in loads {
            cases.extend([Feeds::None, Feeds::All].map(|feeds| (scheme, feeds, *load)));
        }
    }
    let samples = Samples {
        loads,
        runs: samples(settings, &cases)?,
    };
    let mut figure = settings.figure("feeds-loads", "All feeds against none, by scheme and load");
    figure.scenario = super::scenario(settings.quick);
    judge(&mut figure, &samples);
    figure.data = serde_json::json!({ "cases": cases, "samples": samples.runs });
    let picture = picture(&samples);
    Ok(super::reproduction(figure, picture))
}

fn judge(figure: &mut Figure, samples: &Samples) {
    for (s, scheme) in SCHEMES.iter().enumerate() {
        for (l, load) in samples.loads.iter().enumerate() {
            let of = |what: &str| format!("{scheme}, {load} %: {what}");
            let shorter = samples
                .of(s, l, true)
                .paired(samples.of(s, l, false), |with, without| {
                    Some(without.shared_queue_bytes / with.shared_queue_bytes)
                });
            let rows = [
                (
                    "queues of shared links, without feeds over with",
                    Claim::words("3 times shorter").at_least(SHORTER),
                    shorter,
                ),
                (
                    "99 % slowdown of Ratewright, with over without",
                    Claim::words("lower").at_most(1.0),
                    samples.ratio(s, l, |sample| sample.slowdown[0][0]),
                ),
                (
                    "goodput of both, with over without",
                    Claim::words("not less").at_least(1.0 - NOT_LESS),
                    samples.ratio(s, l, |sample| Some(sample.total_gbps())),
                ),
                (
                    "mean slowdown of the other scheme, with over without",
                    Claim::words("at most 2 % more").at_most(1.0 + HARM),
                    samples.ratio(s, l, |sample| sample.slowdown[1][1]),
                ),
                (
                    "goodput of the other scheme, with over without",
                    Claim::words("at most 2 % less").at_least(1.0 - HARM),
                    samples.ratio(s, l, |sample| Some(sample.goodput_gbps[1])),
                ),
            ];
            for (what, claim, value) in rows {
                let row = Row::judge(of(what), claim, value, "ratio");
                figure.rows.push(row);
            }
            for (with, name) in [(false, "without"), (true, "with")] {
                values(figure, samples.of(s, l, with), &of(name));
            }
        }
    }
}

/// Adds the values of a case, for comparison.
fn values(figure: &mut Figure, runs: &Replicas<FeedSample>, case: &str) {
    type Value = fn(&FeedSample) -> Option<f64>;
    let values: [(&str, &str, Value); 7] = [
        ("queue of a shared link", "kB", |s| {
            Some(s.shared_queue_bytes / 1e3)
        }),
        ("time in which a link is shared", "%", |s| {
            Some(100.0 * s.shared_time)
        }),
        ("queue of any port", "kB", |s| Some(s.queue_bytes / 1e3)),
        ("99 % slowdown of Ratewright", "", |s| s.slowdown[0][0]),
        ("99 % slowdown of the other", "", |s| s.slowdown[1][0]),
        ("goodput of Ratewright", "Gbit/s", |s| {
            Some(s.goodput_gbps[0])
        }),
        ("goodput of the other", "Gbit/s", |s| {
            Some(s.goodput_gbps[1])
        }),
    ];
    for (what, unit, value) in values {
        let row = Row::judge(
            format!("{case}, {what}"),
            Claim::nothing(),
            runs.estimate(value),
            unit,
        );
        figure.rows.push(row);
    }
    let total = |count: fn(&FeedSample) -> usize| runs.total(count);
    let unfinished = total(|s| s.unfinished.iter().sum());
    if unfinished > 0 {
        figure.notes.push(format!(
            "{case}: {unfinished} of {} flows were unfinished at the end and count with their age",
            total(|s| s.flows.iter().sum())
        ));
    }
}

fn picture(samples: &Samples) -> Picture {
    type Value = fn(&FeedSample) -> Option<f64>;
    let measures: [(&str, Value); 4] = [
        ("queue of a shared link (kB)", |s| {
            Some(s.shared_queue_bytes / 1e3)
        }),
        ("99 % slowdown of Ratewright", |s| s.slowdown[0][0]),
        ("99 % slowdown of the other", |s| s.slowdown[1][0]),
        ("goodput of both (Gbit/s)", |s| Some(s.total_gbps())),
    ];
    let mut panels = Vec::new();
    for (s, scheme) in SCHEMES.iter().enumerate() {
        for (title, value) in measures {
            let curves = [(false, "no feed"), (true, "all feeds")].map(|(with, name)| {
                let points = samples.loads.iter().enumerate().filter_map(|(l, load)| {
                    Some((f64::from(*load), samples.of(s, l, with).estimate(value)?))
                });
                Curve::estimates(name, points).colour(style::colour(usize::from(with)))
            });
            let x = Axis::linear("load (%)").over(30.0, 90.0);
            let y = Axis::linear(title).starting_at(0.0);
            panels.push(Panel::curves(
                format!("{scheme}: {title}"),
                x,
                y,
                curves.into(),
            ));
        }
    }
    Picture::new(
        "Half of the load under Ratewright, half under another scheme",
        "144 hosts, web search; 95 % intervals",
        panels,
    )
    .columns(4)
    .panel_size(360, 260)
}
