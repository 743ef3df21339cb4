//! Flowtune fig. 11: update traffic as a share of capacity, from 128 servers to 2,048.
//!
//! A share that grew with the network would mean that one flowlet's change cascades through it
//! (§5.3.2 G). Runs are packet by packet, with the fluid data plane beside them.

use rayon::prelude::*;

use super::assumptions::Counting;
use super::control_traffic::{TrafficCase, TrafficSample, all, announce, fluid};
use super::fig09_update_traffic::scenario;
use super::{ExperimentError, Reproduction, Settings, scene};
use crate::report::figure::{Figure, Row, Verdict};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};
use crate::time::Time;

/// Sizes of the network, in servers.
const SERVERS: [u32; 5] = [128, 256, 512, 1_024, 2_048];
/// Largest share over least share up to which shares count as constant.
const CONSTANT: f64 = 1.15;

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: Settings) -> Result<Reproduction, ExperimentError> {
    let loads: &[f64] = if settings.quick {
        &[0.6]
    } else {
        &[0.4, 0.6, 0.8]
    };
    // In ms, shorter than for figure 9: 2,048 servers have 14 times the packets.
    let (warm_up, end) = if settings.quick { (3, 6) } else { (20, 40) };
    let cases: Vec<_> = loads
        .iter()
        .flat_map(|&load| {
            SERVERS.map(|servers| TrafficCase {
                // Racks grow in number, not in size, under four spines whose links stay the same.
                racks: servers / scene::HOSTS_PER_RACK,
                workload: "web",
                load,
                threshold: 0.01,
                warm_up: Time::from_ms(warm_up),
                end: Time::from_ms(end),
                seed: settings.seed,
                assumptions: settings.assumptions,
            })
        })
        .collect();
    let packets = all(&cases)?;
    // `all` has announced and run the packet runs; the fluid ones take as much simulated time
    // again.
    announce(&cases);
    let fluids: Vec<TrafficSample> = cases.par_iter().map(fluid).collect::<Result<_, _>>()?;
    let mut figure = Figure::new(
        "flowtune-g",
        "Update traffic by network size (flowtune fig. 11)",
        settings.seed,
        settings.quick,
    );
    let counting = settings.assumptions.count.unwrap_or(Counting::Wire);
    let percent = |sample: &TrafficSample| sample.percent(counting);
    let mut lines = Vec::new();
    let pairs = packets
        .chunks(SERVERS.len())
        .zip(fluids.chunks(SERVERS.len()));
    for (i, (&load, (packets, fluids))) in loads.iter().zip(pairs).enumerate() {
        let shares: Vec<_> = packets.iter().map(percent).collect();
        // The ratio of the extremes is the test: a trend shows in it as well as a single size.
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        figure.rows.push(
            Row::new(
                format!("Web, load {load}: share at 128 to 2,048 servers"),
                "the same at every size",
                (least, most),
                "% of capacity",
                if most / least <= CONSTANT {
                    Verdict::Reproduced
                } else {
                    Verdict::Off
                },
            )
            .note(format!(
                "largest over least {:.3}; up to {CONSTANT} counts as constant",
                most / least
            )),
        );
        figure.rows.push(
            Row::new(
                format!("Web, load {load}: packets over fluid at 128 servers"),
                crate::report::figure::Paper::Nothing(()),
                percent(&packets[0]) / percent(&fluids[0]),
                "ratio",
                Verdict::NoFigure,
            )
            .note(format!(
                "{:.2} flowlets per server are active with packets, {:.2} with a fluid: packets wait behind other flowlets' first windows",
                packets[0].active_per_host, fluids[0].active_per_host
            )),
        );
        let line = |name: String, samples: &[TrafficSample]| {
            let points = samples
                .iter()
                .map(|sample| (f64::from(sample.hosts), percent(sample)))
                .collect();
            Curve::new(name, points).colour(style::colour(i)).dots()
        };
        lines.push(line(format!("load {load}"), packets));
        lines.push(line(format!("load {load}, fluid data"), fluids).dashed());
    }
    figure.scenario = scenario(warm_up, end);
    figure.data = serde_json::json!({ "packets": packets, "fluid": fluids });
    let panel = Panel::curves(
        "Web workload, to and from the allocator",
        Axis::linear("Servers"),
        Axis::linear("Share of network capacity (%)"),
        lines,
    );
    let picture = Picture::new(
        "Update traffic by network size",
        "Flowtune fig. 11: threshold 0.01; 16 servers per rack, 4 spines",
        vec![panel],
    )
    .panel_size(760, 420);
    Ok(Reproduction { figure, picture })
}
