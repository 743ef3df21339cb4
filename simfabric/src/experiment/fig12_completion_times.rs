//! Flowtune fig. 12: the 99th percentile of completion times under other schemes over Flowtune's,
//! by size of flowlet and load. Completion times are divided by those on an empty network, as in
//! the paper.

use super::comparison::{Comparison, SchemeSample, VARIATIONS as PARAMETERS, loads, scenario};
use super::contenders::{DCTCP, FLOWTUNE, PAPER as SCHEMES, PFABRIC, SFQ_CODEL, colour};
use super::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};
use crate::report::size_groups::BY_PACKETS;

/// The least and the largest ratio that the paper's text gives (§5.3.2 H), by scheme and class. The
/// figure's bars are not printed as numbers.
const PAPER: [(&str, usize, (f64, f64)); 5] = [
    (DCTCP, 0, (8.6, 10.9)),
    (DCTCP, 1, (2.1, 2.9)),
    (PFABRIC, 0, (1.7, 2.4)),
    // The text gives the first at high load, the second at low load: see `applies`.
    (SFQ_CODEL, 2, (3.5, 3.8)),
    (SFQ_CODEL, 3, (2.1, 2.4)),
];

/// Accepted widening of the paper's ranges at both ends: they span loads that the text does not
/// give.
const TOLERANCE: f64 = 0.1;

/// See [`PARAMETERS`].
pub(super) const VARIATIONS: &[&[&str]] = PARAMETERS;

/// True if the paper's range holds at this load.
fn applies(scheme: &str, class: usize, load: f64) -> bool {
    match (scheme, class) {
        (SFQ_CODEL, 2) => load >= 0.7,
        (SFQ_CODEL, 3) => load <= 0.5,
        _ => true,
    }
}

/// Reason for which the short form may not decide a row.
const FEW: &str = "the percentile of three seeds varies by more than its distance from an end of the accepted range";

/// Measured cause of a row that disagrees. The remark beside it has both percentiles.
fn cause(scheme: &str, class: usize, load: f64) -> Option<&'static str> {
    match (scheme, class) {
        (DCTCP, 0) if load >= 0.7 => Some(
            "DCTCP holds its queues at the mark whatever the load, while Flowtune's own percentile rises with the number of first windows that meet: the ratio falls with load",
        ),
        (DCTCP, 1) if load >= 0.7 => Some(
            "a flowlet of Flowtune sends one packet and then waits for a rate, which the flowlets that are active at this load share; DCTCP sends its first ten packets at once",
        ),
        (PFABRIC, 0) => Some(
            "a one-packet flowlet is the most urgent in every queue and in its host, and takes at most a quarter longer than on an empty network; Flowtune's waits behind others' first windows",
        ),
        (SFQ_CODEL, 2) => Some(
            "sfqCoDel drops a fourth of the share that it does in the paper (figure 14), so that fewer flowlets wait for a repair",
        ),
        (SFQ_CODEL, 3) => Some(
            "at this load sfqCoDel drops less than 1 % of the data, and begins with ten packets while Flowtune waits for a rate",
        ),
        _ => None,
    }
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let comparison = Comparison::run(settings)?;
    let mut figure = settings.figure(
        "flowtune-fig12",
        "99th percentile of completion times over Flowtune's (flowtune fig. 12)",
    );
    figure.scenario = scenario(settings)?;
    // Flowtune is the first of all, and what the others are divided by.
    let others = &SCHEMES[1..];
    let ratio = |scheme, class: usize, load| {
        comparison.against_flowtune(scheme, load, |theirs, ours| {
            Some(theirs.slowdown_p99[class]? / ours.slowdown_p99[class]?)
        })
    };
    let p99 = |scheme, class: usize, load| {
        let estimate = comparison.estimate(scheme, load, |sample| sample.slowdown_p99[class]);
        estimate.map_or(0.0, |estimate| estimate.mean)
    };
    let at_sender = |scheme, class: usize, load| {
        let value = |sample: &SchemeSample| sample.sender_slowdown_p99[class];
        comparison
            .estimate(scheme, load, value)
            .map_or(0.0, |estimate| estimate.mean)
    };
    let flowlets = |scheme, class: usize, load| {
        let runs = comparison.of(scheme, load);
        runs.map_or(0, |runs| runs.total(|sample| sample.flowlets[class]))
    };
    // Classes that the workload has flowlets of: the public Web curve need not reach all.
    let has_flowlets = |class: &usize| {
        let mut loads = loads(settings.quick).iter();
        loads.any(|&load| flowlets(FLOWTUNE, *class, load) > 0)
    };
    let classes: Vec<usize> = (0..BY_PACKETS.len()).filter(has_flowlets).collect();
    for &scheme in others {
        for &class in &classes {
            for &load in loads(settings.quick) {
                let paper = PAPER
                    .iter()
                    .find(|row| (row.0, row.1) == (scheme, class) && applies(scheme, class, load));
                // Combinations without a number are rows too, so that the picture's bars are in the
                // table.
                let claim = paper.map_or(Claim::words("no number in the text"), |row| {
                    Claim::range(row.2, TOLERANCE)
                });
                let label = format!("{}, {}, load {load}", scheme, BY_PACKETS[class].0);
                let row = Row::judge(label, claim, ratio(scheme, class, load), "×");
                let row = match (paper, cause(scheme, class, load)) {
                    (Some(_), Some(cause)) => row.disagrees_because(cause),
                    (Some(_), None) => row.undecided_because(FEW),
                    (None, _) => row,
                };
                figure.rows.push(row.note(format!(
                    "99 % of {} flowlets within {:.2} times an empty network's, of Flowtune's {} within {:.2}; at the sender's last acknowledgement {:.2} and {:.2}",
                    flowlets(scheme, class, load),
                    p99(scheme, class, load),
                    flowlets(FLOWTUNE, class, load),
                    p99(FLOWTUNE, class, load),
                    at_sender(scheme, class, load),
                    at_sender(FLOWTUNE, class, load),
                )));
            }
        }
    }
    figure.notes = comparison.remarks();
    figure.notes.push(
        "the paper's Web curve is not public: the one that is has a mean of 63 kB; sizes move every ratio".to_owned(),
    );
    figure.data = serde_json::json!(comparison);
    let panels = loads(settings.quick).iter().map(|&load| {
        let series = others.iter().map(|&scheme| {
            let values: Vec<_> = classes
                .iter()
                .map(|&class| ratio(scheme, class, load))
                .collect();
            Bars::estimates(scheme, &values).colour(colour(scheme))
        });
        Panel::bars(
            format!("Load {load}"),
            "Size of flowlet",
            Axis::log("99th percentile over Flowtune's (×)"),
            classes
                .iter()
                .map(|&class| BY_PACKETS[class].0.to_owned())
                .collect(),
            series.collect(),
        )
        // The subtitle explains this line, so it needs no text of its own in every panel.
        .mark(1.0, "")
    });
    let picture = Picture::new(
        "99th percentile of completion times over Flowtune's",
        format!(
            "Flowtune fig. 12; workload {}; the line at 1 is Flowtune; 95 % intervals",
            settings.scene()?.workload
        ),
        panels.collect(),
    )
    .columns(2)
    .panel_size(560, 320);
    Ok(Reproduction { figure, picture })
}
