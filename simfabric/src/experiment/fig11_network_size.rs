//! Flowtune fig. 11: update traffic as a share of capacity, from 128 servers to 2,048.
//!
//! A share that grew with the network would mean that one flowlet's change cascades through it
//! (§5.3.2 G).

use super::control_traffic::{TrafficCase, TrafficSample, all, remarks};
use super::fig09_update_traffic::{PRODUCTION, scenario};
use super::{ExperimentError, Reproduction, Settings, scene};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};
use crate::time::Span;

/// Sizes of the network, in servers.
const SERVERS: [u32; 5] = [128, 256, 512, 1_024, 2_048];
/// Largest share over least share up to which shares count as constant. At the paper's curves'
/// scale it is about the thickness of a line.
const CONSTANT: f64 = 1.15;

/// Production's control plane, and the paper's encoding.
pub(super) const VARIATIONS: &[&[&str]] = &[PRODUCTION, &["scene.count=paper"]];

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let (loads, servers): (&[f64], &[u32]) = if settings.quick {
        (&[0.6], &[128, 512, 2_048])
    } else {
        (&[0.4, 0.6, 0.8], &SERVERS)
    };
    // Shorter than for figure 9: 2,048 servers have 14 times the packets.
    let (warm_up, counted) = if settings.quick {
        (Span::from_ms(2), Span::from_ms(2))
    } else {
        (Span::from_ms(20), Span::from_ms(20))
    };
    let case = |load: f64, servers: u32| TrafficCase {
        // Racks grow in number, not in size, under four spines whose links stay the same.
        racks: servers / scene::HOSTS_PER_RACK,
        workload: "web",
        load,
        threshold: 0.01,
        warm_up,
        counted,
    };
    let cases: Vec<TrafficCase> = loads
        .iter()
        .flat_map(|&load| servers.iter().map(move |&servers| case(load, servers)))
        .collect();
    let samples = all(settings, &cases)?;
    let mut figure = settings.figure(
        "flowtune-fig11",
        "Update traffic by network size (flowtune fig. 11)",
    );
    let counting = settings.scene()?.count;
    let percent = |sample: &TrafficSample| Some(sample.percent(counting));
    let mut lines = Vec::new();
    for (i, (&load, of_load)) in loads.iter().zip(samples.chunks(servers.len())).enumerate() {
        let shares = of_load.iter().map(|runs| runs.estimate(percent));
        let shares: Vec<(u32, _)> = servers.iter().copied().zip(shares).collect();
        // Sizes whose means are farthest apart. Their ratio is the test: a trend shows in it as
        // well as a single size.
        let mean = |i: usize| shares[i].1.map_or(0.0, |share| share.mean);
        let by_mean = |a: &usize, b: &usize| mean(*a).total_cmp(&mean(*b));
        let most = (0..shares.len()).max_by(by_mean).unwrap_or(0);
        let least = (0..shares.len()).min_by(by_mean).unwrap_or(0);
        let ratio = of_load[most].paired(&of_load[least], |most, least| {
            Some(percent(most)? / percent(least)?)
        });
        figure.rows.push(Row::judge(
            format!(
                "Web, load {load}: share of {} servers over that of {}, the largest ratio",
                shares[most].0, shares[least].0
            ),
            Claim::words("the same at every size").at_most(CONSTANT),
            ratio,
            "ratio",
        ));
        for (servers, share) in &shares {
            figure.rows.push(Row::judge(
                format!("Web, load {load}: share at {servers} servers"),
                Claim::nothing(),
                *share,
                "% of capacity",
            ));
        }
        let points = shares
            .iter()
            .filter_map(|(servers, share)| Some((f64::from(*servers), (*share)?)));
        let line = Curve::estimates(format!("load {load}"), points);
        lines.push(line.colour(style::colour(i)));
    }
    figure.scenario = scenario((warm_up, counted));
    figure.notes = remarks(&cases, &samples);
    figure.data = serde_json::to_value(&samples).unwrap_or_default();
    let panel = Panel::curves(
        "Web workload, to and from the allocator",
        Axis::log("Servers"),
        Axis::linear("Share of network capacity (%)").starting_at(0.0),
        lines,
    );
    let picture = Picture::new(
        "Update traffic by network size",
        "Flowtune fig. 11: threshold 0.01; 16 servers per rack, 4 spines; 95 % intervals",
        vec![panel],
    )
    .panel_size(760, 420);
    Ok(Reproduction { figure, picture })
}
