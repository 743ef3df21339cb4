//! SIRD fig. 1: distributions of Homa's queues under web search, against buffers of switches, and
//! table 3's meaning for the queues of table 5.
//!
//! The newest switch of table 3 has 3.13 MB for a Tbit/s (§2.2): 10 MB for a rack's 3.2 Tbit/s if
//! its ports share them, 313 kB for a host's port if they do not.

use super::paper::{BUFFER_MB_PER_TBPS, Column, Measure, SWITCHES, columns};
use super::runs::{Case, estimate, runs};
use super::scene::{Configuration, HOST_BPS, TOR_TBPS, Workload};
use super::tables::{Table, loads};
use super::{label, reproduction};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Curve, Panel, Picture};

/// Runs figure 1.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let column = (Configuration::Balanced, Workload::WKc);
    let loads = loads(settings.quick);
    let cases: Vec<Case> = loads
        .iter()
        .map(|load| Case::new(label::HOMA, column, *load))
        .collect();
    let runs = runs(settings, &cases)?;
    let mut figure = settings.figure("sird-fig1", "Homa's queues under web search (SIRD fig. 1)");
    figure.scenario = vec![
        "WKc, balanced; queues every 10 µs in the counted time, of all racks and of hosts' ports"
            .to_owned(),
    ];
    let port_kb = BUFFER_MB_PER_TBPS * HOST_BPS as f64 / 1e9;
    let rack_mb = BUFFER_MB_PER_TBPS * TOR_TBPS;
    let (mut ports, mut racks) = (Vec::new(), Vec::new());
    for (load, of_load) in loads.iter().zip(&runs) {
        let name = format!("{:.0} %", 100.0 * load);
        for (what, share) in [("median", 50), ("99 %", 99), ("largest", 100)] {
            figure.rows.push(Row::judge(
                format!("{name}: {what} queue of a host's port"),
                Claim::nothing(),
                of_load.estimate(|sample| sample.port_kb.get(share).copied()),
                "kB",
            ));
            figure.rows.push(Row::judge(
                format!("{name}: {what} queue of a rack"),
                Claim::nothing(),
                of_load.estimate(|sample| sample.rack_kb.get(share).map(|kb| kb / 1e3)),
                "MB",
            ));
        }
        if let Some(sample) = of_load.first() {
            let of = |per_cents: &[f64], unit: f64| {
                let points = per_cents.iter().enumerate();
                points.map(|(at, kb)| (kb / unit, at as f64)).collect()
            };
            ports.push(Curve::new(name.clone(), of(&sample.port_kb, 1.0)));
            racks.push(Curve::new(name, of(&sample.rack_kb, 1e3)));
        }
    }
    let panel = |title: &str, unit: &str, buffer: f64, curves| {
        Panel::curves(
            title,
            Axis::linear(format!("Queue ({unit})")).over(0.0, 1.3 * buffer),
            Axis::linear("Share of time (%)").over(0.0, 100.0),
            curves,
        )
        .event(buffer, "buffer")
    };
    let panels = vec![
        panel("Port of a host, part of a buffer", "kB", port_kb, ports),
        panel("Rack, shared buffer", "MB", rack_mb, racks),
    ];
    let picture = Picture::new(
        "Homa's queues under web search",
        "SIRD fig. 1; first seed",
        panels,
    );
    Ok(reproduction(figure, picture))
}

/// Table 3: part of each switch's buffer that the queues of table 5 take, in proportion to its
/// bandwidth.
///
/// # Errors
/// See [`ExperimentError`].
pub fn table3(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let loads = loads(settings.quick);
    let table = Table::run(settings, &columns(), loads)?;
    let mut figure = settings.figure(
        "sird-table3",
        "Largest queues in switches' buffers (SIRD table 3, §6.2.1)",
    );
    figure.scenario = vec![format!(
        "largest queue of a rack's {TOR_TBPS} Tbit/s over the loads, over as large a part of the \
         buffer"
    )];
    // §6.2.1: at most 8 % where receivers are the bottleneck, 23 % where the core is.
    for (configuration, paper) in [(Configuration::Balanced, 8.0), (Configuration::Core, 23.0)] {
        let columns = Workload::ALL.map(|workload| (configuration, workload));
        // Those that the form has.
        let there = |column: &Column| table.has(Measure::Peak, label::SIRD, *column);
        let all = columns.into_iter().filter(there);
        let all = all.map(|column| table.values(Measure::Peak, label::SIRD, column));
        let Some(larger) = all.reduce(|a, b| super::runs::paired(&a, &b, f64::max)) else {
            continue;
        };
        let shares: Vec<Option<f64>> = larger
            .into_iter()
            .map(|mb| Some(100.0 * mb? / (BUFFER_MB_PER_TBPS * TOR_TBPS)))
            .collect();
        figure.rows.push(Row::judge(
            format!(
                "{}, SIRD: part of 3.13 MB for a Tbit/s",
                configuration.name()
            ),
            Claim::words(format!("at most {paper} %")).at_most(paper * 1.15),
            estimate(&shares),
            "%",
        ));
    }
    let protocols = [label::SIRD, label::HOMA];
    let column = (Configuration::Balanced, Workload::WKb);
    let mut bars: Vec<(&str, Vec<Option<f64>>)> =
        protocols.iter().map(|label| (*label, Vec::new())).collect();
    for (switch, tbps, mb) in SWITCHES {
        for (label, bars) in &mut bars {
            let peak = table.values(Measure::Peak, label, column);
            let shares: Vec<Option<f64>> = peak
                .into_iter()
                .map(|peak| Some(100.0 * peak? / (mb / tbps * TOR_TBPS)))
                .collect();
            let share = estimate(&shares);
            bars.push(share.map(|share| share.mean));
            figure.rows.push(Row::judge(
                format!("WKb Balanced, {label}: part of {switch}"),
                Claim::nothing(),
                share,
                "%",
            ));
        }
    }
    let groups = SWITCHES.iter().map(|(name, ..)| {
        let model = name.split_once(' ').map_or(*name, |(_, model)| model);
        model
            .replace("Spectrum ", "")
            .replace("Tomahawk", "TH")
            .replace("Trident", "TD")
    });
    // Names of models would overlap in one row of panels: half of them each.
    let groups: Vec<String> = groups
        .map(|name| name.split(" BCM").next().unwrap_or(&name).to_owned())
        .collect();
    let half = groups.len().div_ceil(2);
    let panels = [(0, half), (half, groups.len())].map(|(from, to)| {
        let bars = bars.iter().map(|(label, values)| {
            Bars::new(*label, values[from..to].to_vec()).colour(super::colour(label))
        });
        Panel::bars(
            "",
            "",
            Axis::linear("Part of the buffer (%)").over(0.0, 110.0),
            groups[from..to].to_vec(),
            bars.collect(),
        )
        .mark(100.0, "the whole buffer")
    });
    let picture = Picture::new(
        "Largest queues in switches' buffers, WKb balanced",
        "SIRD table 3",
        panels.into(),
    )
    .columns(1)
    .panel_size(1_100, 260);
    Ok(reproduction(figure, picture))
}
