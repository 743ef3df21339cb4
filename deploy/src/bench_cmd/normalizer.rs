//! `ratewright bench normalizer`: flowtune §5.4, (M), fig. 17.

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use ratewright_allocator::num::experiment::flowlets::paper_network;
use ratewright_allocator::num::experiment::normalizer::{
    NormalizerFigures, OPTIMIZERS, run as measure,
};

use super::chart::{Chart, Line, Panel};
use super::sweep::{SweepOptions, announce, print_json};

/// What the paper reports for F-NORM.
const PAPER: [(f64, &str); 2] = [
    (0.997, "paper: NED + F-NORM, 0.997"),
    (0.984, "paper: Gradient + F-NORM, 0.984"),
];

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

/// A row of the table: a name and a figure.
type Row = (&'static str, fn(&NormalizerFigures) -> f64);

const ROWS: [Row; 4] = [
    ("F-NORM", |r| r.f_norm),
    ("F-NORM, p1 of iterations", |r| r.f_norm_p1),
    ("U-NORM", |r| r.u_norm),
    ("F-NORM, p99 rate error", |r| r.f_norm_p99_rate_error),
];

fn find<'a>(
    results: &'a [NormalizerFigures],
    name: &str,
    load: f64,
) -> Option<&'a NormalizerFigures> {
    results
        .iter()
        .find(|r| r.optimizer == name && r.load == load)
}

fn table(options: &SweepOptions, results: &[NormalizerFigures]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let title = "throughput as a share of the optimum".to_owned();
    let loads = options.loads.iter().map(|l| format!("load {l}"));
    table.set_header(std::iter::once(title).chain(loads));
    for (name, _) in OPTIMIZERS {
        for (what, figure) in ROWS {
            let cells = options.loads.iter().map(|&load| {
                find(results, name, load).map_or_else(String::new, |r| format!("{:.4}", figure(r)))
            });
            table.add_row(std::iter::once(format!("{name} + {what}")).chain(cells));
        }
    }
    for column in 1..=options.loads.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// NED, Gradient, Ratewright twice.
const COLOURS: [usize; 4] = [1, 2, 0, 4];

fn lines(options: &SweepOptions, results: &[NormalizerFigures], f_norm_only: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    for (i, (name, _)) in OPTIMIZERS.iter().enumerate() {
        for f_norm in [true, false] {
            if f_norm_only && !f_norm {
                continue;
            }
            let value = |r: &NormalizerFigures| if f_norm { r.f_norm } else { r.u_norm };
            lines.push(Line {
                name: format!("{name} + {}", if f_norm { "F-NORM" } else { "U-NORM" }),
                colour: COLOURS[i],
                dashed: !f_norm,
                strong: *name == "Ratewright" && f_norm,
                points: options
                    .loads
                    .iter()
                    .filter_map(|&load| Some((load, value(find(results, name, load)?))))
                    .collect(),
            });
        }
    }
    lines
}

fn chart(options: &SweepOptions, results: &[NormalizerFigures]) -> Chart {
    let ends = |values: &[f64]| {
        values
            .iter()
            .fold((1.0_f64, 0.0_f64), |(a, b), &v| (a.min(v), b.max(v)))
    };
    let (first, last) = ends(&options.loads);
    let panel = |title: &str, y, references, lines| Panel {
        title: title.to_owned(),
        x_name: "mean load of a server's link",
        y_name: "throughput as a share of the optimum",
        x: (first - 0.02, last + 0.02),
        y,
        log: false,
        references,
        label_at: 0.6,
        at_x: None,
        lines,
    };
    let close = lines(options, results, true);
    let lowest = close
        .iter()
        .flat_map(|l| l.points.iter().map(|p| p.1))
        .fold(0.98, f64::min);
    let paper = PAPER.map(|(y, name)| (y, name.to_owned())).to_vec();
    Chart {
        title: "Throughput after normalisation".to_owned(),
        subtitle: options.describe(),
        panels: vec![
            panel(
                "F-NORM and U-NORM",
                (0.0, 1.02),
                Vec::new(),
                lines(options, results, false),
            ),
            panel(
                "F-NORM alone",
                ((lowest * 200.0).floor() / 200.0, 1.002),
                paper,
                close,
            ),
        ],
    }
}
