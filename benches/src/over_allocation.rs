//! `ratewright-bench over-allocation`: flowtune §5.4, (L), fig. 16.

use crate::experiment::NamedOptimizer;
use crate::experiment::flow_set::FlowSetError;
use crate::experiment::flowlets::Stream;
use crate::experiment::over_allocation::{Length, OPTIMIZERS, OverAllocation, run};
use comfy_table::Table;
use ratewright_topology::TwoTierClos;

use super::chart::{Chart, ChartLine, Panel};
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

    fn chart(options: &SweepOptions, results: &[Self]) -> Chart {
        let line = |(i, &(name, _)): (usize, &NamedOptimizer)| ChartLine {
            name: name.to_owned(),
            colour: COLOURS[i],
            // Single-precision variants share the colour of their double-precision twins.
            dashed: name.ends_with("-RT"),
            strong: name == "Ratewright",
            points: points(options, results, name, |r| r.mean_gbps),
        };
        let lines: Vec<ChartLine> = OPTIMIZERS.iter().enumerate().map(line).collect();
        let all = || lines.iter().flat_map(|l| l.points.iter().map(|p| p.1));
        let most = all().fold(0.1, f64::max);
        let least = all().filter(|v| *v > 0.0).fold(most, f64::min);
        Chart {
            title: "Over-allocation without normalisation, by optimiser".to_owned(),
            subtitle: options.describe(),
            panels: vec![Panel {
                title: String::new(),
                x_name: "mean load of a server's link",
                y_name: "allocated beyond capacities (Gbit/s, sum over links)",
                x: options.load_axis(),
                x_names: Vec::new(),
                y: (10_f64.powf(least.log10().floor()), most * 1.6),
                log: true,
                references: Vec::new(),
                label_at: 0.0,
                at_x: None,
                lines,
            }],
        }
    }
}

/// NED and Gradient share their colours with their -RT variants.
const COLOURS: [usize; 7] = [1, 1, 2, 2, 3, 5, 0];
