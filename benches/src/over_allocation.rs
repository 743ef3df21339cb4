//! `ratewright-bench over-allocation`: flowtune §5.4, (L), fig. 16.

use crate::experiment::NamedOptimizer;
use crate::experiment::flow_set::FlowSetError;
use crate::experiment::flowlets::Stream;
use crate::experiment::over_allocation::{Length, OPTIMIZERS, OverAllocation, run};
use comfy_table::Table;
use ratewright_plot::{Axis, Curve, Panel, Picture, style};
use ratewright_topology::TwoTierClos;

use super::sweep::{Figures, Row, SweepOptions, load_table, points};

impl Figures for OverAllocation {
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
        let rows = OPTIMIZERS.map(|(name, _)| -> Row<Self> {
            (name.to_owned(), name, |r| {
                format!("{:.2} · {:.1}", r.mean_gbps, r.p99_gbps)
            })
        });
        let title = "allocated beyond capacities (Gbit/s): mean · p99";
        load_table(options, results, title, &rows)
    }

    fn picture(options: &SweepOptions, results: &[Self]) -> Picture {
        let curve = |(i, &(name, _)): (usize, &NamedOptimizer)| {
            let points = points(options, results, name, |r| r.mean_gbps);
            let curve = Curve::new(name, points).colour(style::colour(COLOURS[i]));
            match name {
                // Single-precision variants share the colour of their double-precision twins.
                _ if name.ends_with("-RT") => curve.dashed().rings(),
                "Ratewright" => curve.dots().width(3),
                _ => curve.dots(),
            }
        };
        let curves = OPTIMIZERS.iter().enumerate().map(curve).collect();
        let y = Axis::log("allocated beyond capacities (Gbit/s, sum over links)");
        Picture::new(
            "Over-allocation without normalisation, by optimiser",
            options.describe(),
            vec![Panel::curves("", options.load_axis(), y, curves)],
        )
        .panel_size(760, 500)
    }
}

/// NED and Gradient share their colours with their -RT variants.
const COLOURS: [usize; 7] = [1, 1, 2, 2, 3, 5, 0];
