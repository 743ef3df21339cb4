//! Links without a shaper: payload rates and processor time per bit over the link's speed.

use ratewright_plot::{Axis, Curve, Panel, Picture, style};

use crate::options::LabOptions;
use crate::scenario::figures::LinkRow;
use crate::scenario::outcome::RunOutcome;

/// Builds the picture.
#[must_use]
pub fn picture(options: &LabOptions, outcome: &RunOutcome) -> Picture {
    let subtitle = format!(
        "medians of {} runs each, alternating with plain TCP, which nothing limits · {}",
        options.runs(),
        outcome.backend
    );
    let panel = |name: &str, unit: &str, value: fn(&LinkRow) -> f64| {
        let speed = Axis::linear("link (Gbit/s)").starting_at(0.0);
        Panel::curves(name, speed, Axis::linear(unit), curves(outcome, value))
    };
    let panels = vec![
        panel("payload", "Gbit/s", |row| row.payload_gbps),
        panel(
            "processor time of the whole machine",
            "ps per bit of payload",
            |row| row.processor_ps_per_bit,
        ),
    ];
    let title = "links: without a shaper, as fast as the topology says";
    Picture::new(title, subtitle, panels).panel_size(700, 496)
}

/// A curve for each number of flows, with and without, through the links' speeds.
fn curves(outcome: &RunOutcome, value: fn(&LinkRow) -> f64) -> Vec<Curve> {
    let (with, without) = (&outcome.with, &outcome.without);
    let mut curves: Vec<Curve> = Vec::new();
    for (phase, who, one, many) in [
        (with, "with Ratewright", style::OURS, style::colour(4)),
        (without, "Cubic alone", style::colour(1), style::colour(5)),
    ] {
        let rows = phase.iter().filter_map(|p| p.figures.links.as_ref());
        for row in rows.flatten() {
            let (ending, colour) = if row.flows == 1 {
                ("", one)
            } else {
                ("s", many)
            };
            let name = format!("{who}, {} flow{ending}", row.flows);
            let point = (f64::from(row.link_mbps) / 1e3, value(row));
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve::new(name, vec![point]).colour(colour).dots()),
            }
        }
    }
    curves
}
