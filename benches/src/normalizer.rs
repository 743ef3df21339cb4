//! `ratewright-bench normalizer`: flowtune §5.4, (M), fig. 17.

use crate::experiment::NamedOptimizer;
use crate::experiment::flow_set::FlowSetError;
use crate::experiment::flowlets::Stream;
use crate::experiment::normalizer::{NormalizerFigures, OPTIMIZERS, run};
use crate::experiment::over_allocation::Length;
use comfy_table::Table;
use ratewright_plot::{Axis, Curve, Panel, Picture, style};
use ratewright_topology::TwoTierClos;

use super::sweep::{Figures, Row, SweepOptions, load_table, points};

/// Throughput after F-NORM in the paper (§5.4), as a share of the optimum, with its label.
const PAPER: [(f64, &str); 2] = [
    (0.997, "paper: NED + F-NORM, 0.997"),
    (0.984, "paper: Gradient + F-NORM, 0.984"),
];

/// A figure of an optimiser at a load: what it is, and how it is written.
type FigureRow = (&'static str, fn(&NormalizerFigures) -> String);

/// Rows of the table for each optimiser.
const ROWS: [FigureRow; 4] = [
    ("F-NORM", |r| format!("{:.4}", r.f_norm)),
    ("F-NORM, p1 of iterations", |r| {
        format!("{:.4}", r.f_norm_p1)
    }),
    ("U-NORM", |r| format!("{:.4}", r.u_norm)),
    ("F-NORM, p99 rate error", |r| {
        format!("{:.4}", r.f_norm_p99_rate_error)
    }),
];

/// NED, Gradient, Ratewright twice.
const COLOURS: [usize; 4] = [1, 2, 0, 4];

impl Figures for NormalizerFigures {
    const OPTIMIZERS: &'static [NamedOptimizer] = &OPTIMIZERS;

    fn measure(
        network: &TwoTierClos,
        stream: Stream,
        length: Length,
        named: NamedOptimizer,
    ) -> Result<Self, FlowSetError> {
        run(network, stream, length, named)
    }

    fn optimizer(&self) -> &'static str {
        self.optimizer
    }

    fn load(&self) -> f64 {
        self.load
    }

    fn table(options: &SweepOptions, results: &[Self]) -> Table {
        let of = |(name, _): NamedOptimizer| {
            ROWS.map(|(what, cell)| -> Row<Self> { (format!("{name} + {what}"), name, cell) })
        };
        let rows = OPTIMIZERS.map(of).concat();
        let title = "throughput as a share of the optimum";
        load_table(options, results, title, &rows)
    }

    fn picture(options: &SweepOptions, results: &[Self]) -> Picture {
        let panel = |title: &str, low, high, curves| {
            let y = Axis::linear("throughput as a share of the optimum").over(low, high);
            Panel::curves(title, options.load_axis(), y, curves)
        };
        let close = curves(options, results, true);
        let lowest = close
            .iter()
            .flat_map(|curve| curve.points.iter().map(|p| p.1))
            .fold(0.98, f64::min);
        let floor = (lowest * 200.0).floor() / 200.0;
        let close = panel("F-NORM alone", floor, 1.002, close);
        let close = PAPER.iter().fold(close, |p, (y, name)| p.mark(*y, *name));
        let all = curves(options, results, false);
        let all = panel("F-NORM and U-NORM", 0.0, 1.02, all);
        let title = "Throughput after normalisation";
        Picture::new(title, options.describe(), vec![all, close]).panel_size(760, 480)
    }
}

fn curves(options: &SweepOptions, results: &[NormalizerFigures], f_norm_only: bool) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (i, &(name, _)) in OPTIMIZERS.iter().enumerate() {
        let curve = |norm: &str, value: fn(&NormalizerFigures) -> f64| {
            let points = points(options, results, name, value);
            Curve::new(format!("{name} + {norm}"), points).colour(style::colour(COLOURS[i]))
        };
        let width = if name == "Ratewright" { 3 } else { 2 };
        curves.push(curve("F-NORM", |r| r.f_norm).dots().width(width));
        if !f_norm_only {
            curves.push(curve("U-NORM", |r| r.u_norm).dashed().rings());
        }
    }
    curves
}
