//! Other ways to share a network, on the engine's own problem: an interior-point solver, which
//! finds the same optimum, and max-min fairness, which is another one.

use anyhow::{Result, ensure};
use clarabel::algebra::CscMatrix;
use clarabel::solver::SupportedConeT::{ExponentialConeT, NonnegativeConeT};
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, SolverStatus};
use ratewright_allocator::engine::LinkPath;
use ratewright_allocator::num::MaxMin;
use ratewright_cli::clock::now_ns;
use serde::Serialize;

/// The name of progressive filling.
pub const MAX_MIN: &str = "max-min, progressive filling";
/// The name of the interior-point solver.
pub const CLARABEL: &str = "Clarabel, interior point";
/// Gap and infeasibility at which the solver stops, relative to the objective and to the
/// capacities.
const TOLERANCE: f64 = 1e-6;

/// Flows without end, all of weight 1, and the links' capacities in Gbit/s.
#[derive(Debug)]
pub struct Problem {
    /// Links by flow.
    pub paths: Vec<LinkPath>,
    /// By link.
    pub capacities: Vec<f64>,
    /// The engine's rates at rest, by flow.
    pub rates: Vec<f64>,
}

/// Result of another solver for a [`Problem`].
#[derive(Debug, Clone, Serialize)]
pub struct PeerFigures {
    /// Its name.
    pub name: &'static str,
    /// True if the solver converged.
    pub solved: bool,
    /// Time for all rates, from nothing.
    pub ms: f64,
    /// Largest relative difference of a rate from the engine's at rest.
    pub max_relative_difference: f64,
    /// Sum of its rates over that of the engine's.
    pub throughput: f64,
}

impl Problem {
    fn figures(
        &self,
        name: &'static str,
        ns: u64,
        solved: bool,
        rates: &[f64],
    ) -> Result<PeerFigures> {
        // Rates are compared by index, so a missing one would shift all others.
        ensure!(rates.len() == self.rates.len(), "{name} left flows out");
        let pairs = || rates.iter().zip(&self.rates);
        // In Gbit/s: 1e-9 is 1 bit/s, which keeps a rate of 0 from dividing by 0.
        let differences = pairs().map(|(theirs, ours)| (theirs - ours).abs() / ours.max(1e-9));
        Ok(PeerFigures {
            name,
            solved,
            ms: ns as f64 / 1e6,
            max_relative_difference: differences.fold(0.0, f64::max),
            throughput: rates.iter().sum::<f64>() / self.rates.iter().sum::<f64>(),
        })
    }

    /// Progressive filling of the links, which has no optimum to approach: it is exact.
    ///
    /// # Errors
    /// If it left flows out.
    pub fn max_min(&self) -> Result<PeerFigures> {
        let mut solver = MaxMin::new(self.capacities.clone());
        for (flow, path) in (0u32..).zip(&self.paths) {
            // Before the clock starts, as the engine's tables are built before its iterations.
            solver.add(flow, 1.0, path.iter().copied().collect());
        }
        let began_ns = now_ns();
        let mut rates: Vec<(u32, f64)> = solver.solve().to_vec();
        let ns = now_ns() - began_ns;
        // The solver's order is not that of the flows.
        rates.sort_unstable_by_key(|(flow, _)| *flow);
        let rates: Vec<f64> = rates.into_iter().map(|(_, rate)| rate).collect();
        self.figures(MAX_MIN, ns, true, &rates)
    }

    /// Σ log x as a conic problem: variables x_s, and t_s with e^(t_s) ≤ x_s; maximise Σ t.
    ///
    /// # Errors
    /// If the problem could not be stated.
    pub fn clarabel(&self) -> Result<PeerFigures> {
        let flows = self.paths.len();
        let (mut rows, mut columns, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let mut entry = |row: usize, column: usize, value: f64| {
            rows.push(row);
            columns.push(column);
            values.push(value);
        };
        // The load of each link in use, at most its capacity.
        let mut row_of = vec![usize::MAX; self.capacities.len()];
        let mut right = Vec::new();
        for (flow, path) in self.paths.iter().enumerate() {
            for &link in path {
                let link = link as usize;
                if row_of[link] == usize::MAX {
                    row_of[link] = right.len();
                    right.push(self.capacities[link]);
                }
                entry(row_of[link], flow, 1.0);
            }
        }
        let mut cones = vec![NonnegativeConeT(right.len())];
        // (t, 1, x) in the exponential cone.
        for flow in 0..flows {
            entry(right.len(), flows + flow, -1.0);
            entry(right.len() + 2, flow, -1.0);
            right.extend([0.0, 1.0, 0.0]);
            cones.push(ExponentialConeT());
        }
        let variables = 2 * flows;
        let constraints =
            CscMatrix::new_from_triplets(right.len(), variables, rows, columns, values);
        let objective: Vec<f64> = (0..variables)
            .map(|variable| if variable < flows { 0.0 } else { -1.0 })
            .collect();
        let settings = DefaultSettings {
            verbose: false,
            tol_gap_abs: TOLERANCE,
            tol_gap_rel: TOLERANCE,
            tol_feas: TOLERANCE,
            ..DefaultSettings::default()
        };
        // The objective is linear in t: all curvature is in the cones.
        let quadratic = CscMatrix::zeros((variables, variables));
        let began_ns = now_ns();
        let mut solver = DefaultSolver::new(
            &quadratic,
            &objective,
            &constraints,
            &right,
            &cones,
            settings,
        )?;
        solver.solve();
        let ns = now_ns() - began_ns;
        let solved = solver.solution.status == SolverStatus::Solved;
        self.figures(CLARABEL, ns, solved, &solver.solution.x[..flows])
    }
}
