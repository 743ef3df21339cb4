//! Workloads: iterators of [`FlowSpec`] in the order of their starts. The run draws from them as it
//! goes, so that a long run does not hold all its flows in advance.
//!
//! | module | what lives there |
//! |---|---|
//! | [`ratewright_sizes`] | published size distributions, a user's CSV, and the exact mean of the sampler |
//! | [`poisson`] | Poisson arrivals between random pairs at a load |
//! | [`patterns`] | incast, all-to-all, permutation, staggered |
//! | [`trace`] | flows as CSV, in and out |

pub mod patterns;
pub mod poisson;
pub mod trace;

pub use patterns::{AllToAll, Incast, Permutation, Rounds, Staggered};
pub use poisson::{Poisson, PoissonError};
pub use ratewright_sizes::{SizeDistribution, SizeError};
pub use trace::{FlowTrace, TraceError};

use crate::FlowSpec;

/// A stream of flows in order of their starts; deterministic by its seed.
pub trait Arrivals {
    /// Returns the next flow; `None` after the last.
    fn next_flow(&mut self) -> Option<FlowSpec>;
}

/// Every iterator over flows is a workload.
impl<I: Iterator<Item = FlowSpec>> Arrivals for I {
    fn next_flow(&mut self) -> Option<FlowSpec> {
        self.next()
    }
}

/// A boxed stream of flows in start order.
pub type FlowStream = Box<dyn Iterator<Item = FlowSpec> + Send>;

/// Merge of several workloads by start; of equal starts, the workload listed first goes first.
pub struct Merge {
    sources: Vec<(std::iter::Peekable<FlowStream>, u16)>,
}

impl Merge {
    /// Merges workloads; flows of the i-th get the label i.
    #[must_use]
    pub fn new(sources: Vec<FlowStream>) -> Self {
        let numbered = sources.into_iter().zip(0_u16..);
        Self {
            sources: numbered.map(|(s, label)| (s.peekable(), label)).collect(),
        }
    }
}

impl Iterator for Merge {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        let mut first = None;
        for (index, (source, _)) in self.sources.iter_mut().enumerate() {
            if let Some(flow) = source.peek()
                // Strictly earlier, so that the first listed workload wins a tie.
                && first.is_none_or(|(_, start)| flow.start < start)
            {
                first = Some((index, flow.start));
            }
        }
        let (source, label) = self.sources.get_mut(first?.0)?;
        let mut flow = source.next()?;
        flow.label = *label;
        Some(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostId, Time};

    #[test]
    fn merged_workloads_come_in_start_order() {
        let at =
            |us: u64, bytes: u64| FlowSpec::new(HostId(0), HostId(1), bytes, Time::from_us(us));
        let first: FlowStream = Box::new([at(1, 1), at(5, 2)].into_iter());
        let second: FlowStream = Box::new([at(0, 3), at(1, 4), at(9, 5)].into_iter());
        let merged: Vec<(u64, u16)> = Merge::new(vec![first, second])
            .map(|f| (f.bytes, f.label))
            .collect();
        assert_eq!(merged, [(3, 1), (1, 0), (4, 1), (2, 0), (5, 1)]);
    }
}
