//! Newton's method with the whole Hessian, for small networks (flowtune appendix B).

use super::response::{Response, respond};
use super::utility::Utility;
use super::{Optimizer, Problem};

/// Projected Newton (Bertsekas 1982) on the dual D(p): H Δp = G over the links with a price or an
/// excess, with H_lm = Σ_{s over l and m} −∂x_s/∂q_s, and a line search on D.
///
/// One iteration factors a dense matrix: O(n³) time and O(n²) memory for n priced links. That makes
/// it a yardstick for small networks, not a production optimiser. Prices of links that all their
/// flows share are not unique, so H may be singular; its diagonal is raised by a relative 10⁻⁹.
#[derive(Clone, Debug)]
pub struct ExactNewton {
    prices: Vec<f64>,
    sums: Vec<Response>,
    /// Links in the system, and each link's row or [`NONE`].
    active: Vec<u32>,
    row: Vec<u32>,
    matrix: Vec<f64>,
    step: Vec<f64>,
    trial: Vec<f64>,
}

/// Error for more links than a dense Hessian is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{links} links are too many for a dense Hessian, which is kept for up to {most}", most = ExactNewton::MAX_LINKS)]
pub struct TooManyLinks {
    /// Number of links.
    pub links: usize,
}

const NONE: u32 = u32::MAX;
/// Added to the diagonal of H, relative to it.
const RIDGE: f64 = 1e-9;
/// Share of the predicted decrease of D that a step must achieve (Armijo).
const SUFFICIENT: f64 = 1e-4;
/// Halvings of a step before it is taken as it is.
const HALVINGS: u32 = 30;

impl ExactNewton {
    /// Most links: 32 MiB of matrix.
    pub const MAX_LINKS: usize = 2048;

    /// An optimiser for `links` links. Prices start at 1.
    ///
    /// # Errors
    /// More than [`Self::MAX_LINKS`].
    pub fn new(links: usize) -> Result<Self, TooManyLinks> {
        if links > Self::MAX_LINKS {
            return Err(TooManyLinks { links });
        }
        Ok(Self::with_links(links))
    }

    fn with_links(links: usize) -> Self {
        Self {
            prices: vec![1.0; links],
            sums: vec![Response::default(); links],
            active: Vec::new(),
            row: vec![NONE; links],
            matrix: Vec::new(),
            step: Vec::new(),
            trial: Vec::new(),
        }
    }

    /// Computes rates, sums, active links and the residual at the current prices.
    fn evaluate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        self.sums.fill(Response::default());
        for (s, rate) in rates.iter_mut().enumerate() {
            *rate = 0.0;
            if problem.flows.limits[s].cap > 0.0 {
                let response = respond(problem, s, problem.path_price(s, &self.prices));
                *rate = response.rate;
                for &link in &problem.flows.paths[s] {
                    self.sums[link as usize].add(response);
                }
            }
        }
        self.active.clear();
        self.row.fill(NONE);
        let mut residual: f64 = 0.0;
        for (link, (sum, &capacity)) in self.sums.iter().zip(problem.capacities).enumerate() {
            if sum.rate <= 0.0 || capacity <= 0.0 {
                continue;
            }
            let excess = sum.rate / capacity - 1.0;
            if excess > 0.0 || self.prices[link] > 0.0 {
                self.row[link] = self.active.len() as u32;
                self.active.push(link as u32);
                let mean = sum.elastic / sum.neg_slope.max(f64::MIN_POSITIVE);
                // Spare capacity counts by the link's share of its flows' path prices.
                let felt = (self.prices[link] / mean).min(1.0);
                residual = residual.max(excess).max(-excess * felt);
            }
        }
        residual
    }

    /// Assembles the lower triangle of H, and G, over the active links.
    fn assemble(&mut self, problem: &Problem<'_>) {
        let n = self.active.len();
        self.matrix.clear();
        self.matrix.resize(n * n, 0.0);
        self.step.clear();
        for (i, &link) in self.active.iter().enumerate() {
            let link = link as usize;
            let capacity = problem.capacities[link];
            // Where no flow reacts: the slope of one log flow that fills the link.
            self.matrix[i * n + i] = if self.sums[link].reacts() {
                RIDGE * self.sums[link].neg_slope
            } else {
                capacity * capacity
            };
            self.step.push(self.sums[link].rate - capacity);
        }
        for s in 0..problem.flows.len() {
            if problem.flows.limits[s].cap <= 0.0 {
                continue;
            }
            let path = &problem.flows.paths[s];
            let neg_slope = respond(problem, s, problem.path_price(s, &self.prices)).neg_slope;
            for &a in path {
                for &b in path {
                    let (i, j) = (self.row[a as usize], self.row[b as usize]);
                    // Inactive links are out of the system; the factorisation reads the lower
                    // triangle only.
                    if i != NONE && j != NONE && j <= i {
                        self.matrix[i as usize * n + j as usize] += neg_slope;
                    }
                }
            }
        }
    }

    /// Computes D(p) up to a constant.
    fn dual(&self, problem: &Problem<'_>, prices: &[f64]) -> f64 {
        let flows = problem.flows;
        let mut dual = 0.0;
        for s in 0..flows.len() {
            let cap = flows.limits[s].cap;
            if cap > 0.0 {
                let utility = problem.classes.utility(flows.classes[s]);
                let price = problem.path_price(s, prices);
                let rate = utility.rate_at(price / flows.weights[s]).min(cap);
                dual += flows.weights[s] * utility.value(rate) - price * rate;
            }
        }
        for (link, &price) in prices.iter().enumerate() {
            // A link without flows keeps its price, which must not count as a charge.
            if self.sums[link].rate > 0.0 {
                dual += price * problem.capacities[link];
            }
        }
        dual
    }

    /// Takes the longest of the steps 1, ½, ¼ … along the Newton direction that decreases D enough.
    fn search(&mut self, problem: &Problem<'_>) {
        let start = self.dual(problem, &self.prices);
        let mut trial = std::mem::take(&mut self.trial);
        let mut length = 1.0;
        for _ in 0..HALVINGS {
            trial.clone_from(&self.prices);
            let mut predicted = 0.0;
            for (&link, step) in self.active.iter().zip(&self.step) {
                let link = link as usize;
                // Projection: prices are never negative.
                trial[link] = (self.prices[link] + length * step).max(0.0);
                let excess = self.sums[link].rate - problem.capacities[link];
                predicted += excess * (trial[link] - self.prices[link]);
            }
            // Near the optimum, the decrease is below D's rounding: a full step must still pass.
            let rounding = 1e-13 * start.abs();
            if self.dual(problem, &trial) <= start - SUFFICIENT * predicted + rounding {
                break;
            }
            length /= 2.0;
        }
        self.trial = std::mem::replace(&mut self.prices, trial);
    }
}

/// Solves A x = b in place for the symmetric positive definite A in the lower triangle of `a`, by
/// Cholesky's factorisation. An unknown whose pivot is not positive becomes 0.
fn solve(a: &mut [f64], b: &mut [f64]) {
    let n = b.len();
    for i in 0..n {
        let (done, rest) = a.split_at_mut(i * n);
        let row = &mut rest[..n];
        for j in 0..i {
            let other = &done[j * n..j * n + j];
            let dot: f64 = row[..j].iter().zip(other).map(|(x, y)| x * y).sum();
            row[j] = (row[j] - dot) / done[j * n + j];
        }
        let square: f64 = row[..i].iter().map(|x| x * x).sum();
        let pivot = row[i] - square;
        // An infinite pivot makes the unknown 0 and takes its row out of the others.
        row[i] = if pivot > 0.0 {
            pivot.sqrt()
        } else {
            f64::INFINITY
        };
        let dot: f64 = row[..i].iter().zip(&*b).map(|(x, y)| x * y).sum();
        b[i] = (b[i] - dot) / row[i];
    }
    for i in (0..n).rev() {
        b[i] /= a[i * n + i];
        let known = b[i];
        for j in 0..i {
            b[j] -= a[i * n + j] * known;
        }
    }
}

impl Optimizer for ExactNewton {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        let residual = self.evaluate(problem, rates);
        if !self.active.is_empty() {
            self.assemble(problem);
            solve(&mut self.matrix, &mut self.step);
            self.search(problem);
        }
        residual
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn warm_start(&mut self, prices: &[f64]) {
        self.prices.copy_from_slice(prices);
    }

    /// # Panics
    /// With more than [`Self::MAX_LINKS`] links.
    fn reset(&mut self, links: usize) {
        assert!(links <= Self::MAX_LINKS, "{}", TooManyLinks { links });
        *self = Self::with_links(links);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solves_a_system_and_survives_a_singular_one() {
        // [4 2; 2 3] x = [2 5] has x = [−0.5, 2].
        let (mut a, mut b) = ([4.0, 0.0, 2.0, 3.0], [2.0, 5.0]);
        solve(&mut a, &mut b);
        assert!(
            (b[0] + 0.5).abs() < 1e-12 && (b[1] - 2.0).abs() < 1e-12,
            "{b:?}"
        );
        let (mut a, mut b) = ([1.0, 0.0, 1.0, 1.0], [1.0, 1.0]);
        solve(&mut a, &mut b);
        assert_eq!(b, [1.0, 0.0]);
    }

    #[test]
    fn too_many_links_are_refused() {
        let refused = ExactNewton::new(ExactNewton::MAX_LINKS + 1);
        assert!(refused.is_err_and(|e| e.to_string().contains("2049")));
    }
}
