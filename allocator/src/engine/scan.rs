//! Looks at all flows, a few at a time.

use super::Optimality;
use crate::num::optimality::Tally;

/// A walk over all flows of an engine, for figures that cost milliseconds where there are tens of thousands of
/// flows: whoever drives the engine does other things in between ([`RateEngine::scan`](super::RateEngine::survey)).
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// What was found: the allocated load of every link, in bit/s, by link index.
    pub loads_bps: Vec<f64>,
    /// What was found: how far rates are from the optimum.
    pub optimality: Optimality,
    pub(super) tally: Tally,
    /// Where the walk goes on.
    pub(super) next: u32,
    /// Links by block and slot, in an engine that has blocks.
    pub(super) links_by_slot: Vec<Vec<u32>>,
    pub(super) under_way: bool,
}

impl Scan {
    /// Begins with the first flow again.
    pub fn restart(&mut self) {
        self.under_way = false;
    }
}
