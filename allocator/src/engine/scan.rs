//! Incremental scan of all flows.

use super::Optimality;
use crate::num::optimality::Tally;

/// A scan of all flows, for figures that cost milliseconds with tens of thousands of flows. Its
/// driver does other work between two steps ([`RateEngine::scan`](super::RateEngine::scan)).
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Result: the allocated load of every link, in bit/s, by link index.
    pub loads_bps: Vec<f64>,
    /// Result: the distance of the rates from the optimum.
    pub optimality: Optimality,
    pub(super) tally: Tally,
    /// Flow number at which the scan continues.
    pub(super) next: u32,
    /// Links by block and slot, in an engine that has blocks.
    pub(super) links_by_slot: Vec<Vec<u32>>,
    pub(super) under_way: bool,
}

impl Scan {
    /// Restarts the scan at the first flow.
    pub fn restart(&mut self) {
        self.under_way = false;
    }
}
