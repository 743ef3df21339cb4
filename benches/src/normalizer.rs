//! `ratewright-bench normalizer`: flowtune §5.4, (M), fig. 17.

use crate::experiment::NamedOptimizer;
use crate::experiment::flow_set::FlowSetError;
use crate::experiment::flowlets::Stream;
use crate::experiment::normalizer::{NormalizerFigures, OPTIMIZERS, run};
use crate::experiment::over_allocation::Length;
use comfy_table::Table;
use ratewright_topology::TwoTierClos;

use super::chart::{Chart, ChartLine, Panel};
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

    fn chart(options: &SweepOptions, results: &[Self]) -> Chart {
        let panel = |title: &str, y, references, lines| Panel {
            title: title.to_owned(),
            x_name: "mean load of a server's link",
            y_name: "throughput as a share of the optimum",
            x: options.load_axis(),
            x_names: Vec::new(),
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
        let floor = (lowest * 200.0).floor() / 200.0;
        let all = lines(options, results, false);
        Chart {
            title: "Throughput after normalisation".to_owned(),
            subtitle: options.describe(),
            panels: vec![
                panel("F-NORM and U-NORM", (0.0, 1.02), Vec::new(), all),
                panel("F-NORM alone", (floor, 1.002), paper, close),
            ],
        }
    }
}

fn lines(
    options: &SweepOptions,
    results: &[NormalizerFigures],
    f_norm_only: bool,
) -> Vec<ChartLine> {
    let mut lines = Vec::new();
    for (i, &(name, _)) in OPTIMIZERS.iter().enumerate() {
        lines.push(ChartLine {
            name: format!("{name} + F-NORM"),
            colour: COLOURS[i],
            dashed: false,
            strong: name == "Ratewright",
            points: points(options, results, name, |r| r.f_norm),
        });
        if !f_norm_only {
            lines.push(ChartLine {
                name: format!("{name} + U-NORM"),
                colour: COLOURS[i],
                dashed: true,
                strong: false,
                points: points(options, results, name, |r| r.u_norm),
            });
        }
    }
    lines
}
