//! `ratewright bench over-allocation`: flowtune §5.4, (L), fig. 16.

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use ratewright_allocator::num::experiment::flowlets::paper_network;
use ratewright_allocator::num::experiment::over_allocation::{
    OPTIMIZERS, OverAllocation, run as measure,
};

use super::chart::{Chart, Line, Panel};
use super::sweep::{SweepOptions, announce, print_json};

/// Runs the experiment and prints it.
///
/// # Errors
/// When options make no sense or the figure cannot be written.
pub fn run(options: &SweepOptions) -> Result<()> {
    options.check()?;
    let network = paper_network();
    let mut results = Vec::new();
    for &load in &options.loads {
        for named in OPTIMIZERS {
            results.push(measure(
                &network,
                options.stream(load),
                options.length(),
                named,
            )?);
        }
    }
    if let Some(file) = &options.svg {
        chart(options, &results).draw(file)?;
        announce(file);
    }
    if options.json {
        print_json(&options.results(results))
    } else {
        println!("{}", table(options, &results));
        Ok(())
    }
}

fn find<'a>(results: &'a [OverAllocation], name: &str, load: f64) -> Option<&'a OverAllocation> {
    results
        .iter()
        .find(|r| r.optimizer == name && r.load == load)
}

fn table(options: &SweepOptions, results: &[OverAllocation]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let title = "allocated beyond capacities (Gbit/s): mean · p99".to_owned();
    let loads = options.loads.iter().map(|l| format!("load {l}"));
    table.set_header(std::iter::once(title).chain(loads));
    for (name, _) in OPTIMIZERS {
        let cells = options.loads.iter().map(|&load| {
            find(results, name, load).map_or_else(String::new, |r| {
                format!("{:.2} · {:.1}", r.mean_gbps, r.p99_gbps)
            })
        });
        table.add_row(std::iter::once(name.to_owned()).chain(cells));
    }
    for column in 1..=options.loads.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn chart(options: &SweepOptions, results: &[OverAllocation]) -> Chart {
    let lines: Vec<Line> = OPTIMIZERS
        .iter()
        .enumerate()
        .map(|(i, &(name, _))| Line {
            name: name.to_owned(),
            colour: COLOURS[i],
            dashed: name.ends_with("-RT"),
            strong: name == "Ratewright",
            points: options
                .loads
                .iter()
                .filter_map(|&load| Some((load, find(results, name, load)?.mean_gbps)))
                .collect(),
        })
        .collect();
    let all = || lines.iter().flat_map(|l| l.points.iter().map(|p| p.1));
    let most = all().fold(0.1, f64::max);
    let least = all().filter(|v| *v > 0.0).fold(most, f64::min);
    let ends = |values: &[f64]| {
        values
            .iter()
            .fold((1.0_f64, 0.0_f64), |(a, b), &v| (a.min(v), b.max(v)))
    };
    let (first, last) = ends(&options.loads);
    Chart {
        title: "Over-allocation without normalisation, by optimiser".to_owned(),
        subtitle: options.describe(),
        panels: vec![Panel {
            title: String::new(),
            x_name: "mean load of a server's link",
            y_name: "allocated beyond capacities (Gbit/s, sum over links)",
            x: (first - 0.02, last + 0.02),
            y: (10_f64.powf(least.log10().floor()), most * 1.6),
            log: true,
            references: Vec::new(),
            label_at: 0.0,
            at_x: None,
            lines,
        }],
    }
}

/// NED and Gradient share their colours with their -RT variants.
const COLOURS: [usize; 7] = [1, 1, 2, 2, 3, 5, 0];
