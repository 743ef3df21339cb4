//! Where flows come from.

use crate::flow::FlowSpec;

/// A stream of flows in order of their starts; deterministic by its seed.
pub trait Arrivals {
    /// The next flow; none when there are no more.
    fn next_flow(&mut self) -> Option<FlowSpec>;
}

/// Every iterator over flows is a workload.
impl<I: Iterator<Item = FlowSpec>> Arrivals for I {
    fn next_flow(&mut self) -> Option<FlowSpec> {
        self.next()
    }
}
