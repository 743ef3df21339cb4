//! Picture of the use scenario: the reader's rate around each kind of stall, and the rates of the
//! reader and the bulk flow, with and without.

use ratewright_plot::{Axis, Bars, Curve, Panel, Picture};

use crate::options::LabOptions;
use crate::scenario::outcome::RunOutcome;

/// Builds the picture.
#[must_use]
pub fn picture(options: &LabOptions, outcome: &RunOutcome) -> Picture {
    let phases = super::phases(outcome);
    let capacity_mbps = f64::from(options.link_mbps());
    let rate = || Axis::linear("rate (Mbit/s)").over(0.0, capacity_mbps * 1.15);
    let bars = phases.iter().map(|(name, colour, phase)| {
        let rates = vec![phase.figures.reader_mbps, phase.figures.bulk_mbps];
        Bars::new(name, rates).colour(*colour)
    });
    let groups = ["reader beside 49 unread", "bulk beside small writes"].map(str::to_owned);
    let mut panels = vec![Panel::bars(
        "rates",
        "",
        rate(),
        groups.to_vec(),
        bars.collect(),
    )];
    let kinds = phases.first().map(|(_, _, phase)| &phase.figures.courses);
    for (kind, _) in kinds.into_iter().flatten() {
        let curve = |(name, colour, phase): &super::ShownPhase<'_>| {
            let mut courses = phase.figures.courses.iter();
            let (_, course) = courses.find(|(other, _)| other == kind)?;
            Some(Curve::new(name, course.clone()).colour(*colour))
        };
        let curves: Vec<Curve> = phases.iter().filter_map(curve).collect();
        let times = || {
            curves
                .iter()
                .flat_map(|c| c.points.iter().map(|(at, _)| *at))
        };
        let (from, to) = (times().fold(0.0, f64::min), times().fold(0.5, f64::max));
        let time = Axis::linear("time after it (s)").over(from, to);
        let title = format!("reader's rate; the other receiver {kind}");
        let panel = Panel::curves(title, time, rate(), curves);
        panels.push(panel.mark(capacity_mbps, "").event(0.0, ""));
    }
    let subtitle = format!(
        "one uplink of {} Mbit/s, {} runs each, alternating; payload, first run's courses over 20 ms",
        options.link_mbps(),
        options.runs()
    );
    let columns = panels.len();
    Picture::new("use: capacity for those that use it", subtitle, panels)
        .columns(columns)
        .panel_size(470, 420)
}
