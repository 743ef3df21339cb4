//! Network utility maximisation over slices.

pub mod ned;
pub mod normalize;
pub mod optimality;
mod problem;
pub mod utility;

pub use problem::{Flows, MAX_PATH_LINKS, Path, Problem, RATE_UNIT_BPS};

/// An iterative optimiser of link prices.
pub trait Optimizer: Send {
    /// One iteration: rates from prices, then prices from rates. `rates` has one entry per flow.
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]);
    /// The prices by link, after the last iteration.
    fn prices(&self) -> &[f64];
    /// Forgets everything: a new topology with that many links.
    fn reset(&mut self, links: usize);
}
