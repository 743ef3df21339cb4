//! Capacities as an allocator is told them, where they are not the network's.

use ratewright_topology::units::MAX_CAPACITY_BPS;
use ratewright_topology::{LinkId, Topology};

/// Links of which an allocator is told another capacity than they have. The network and every
/// other scheme know the true ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    factors: Vec<(LinkId, f64)>,
}

impl Told {
    /// Least told capacity, in parts of the true one.
    pub const LEAST: f64 = 1e-3;
    /// Largest told capacity, in parts of the true one.
    pub const MOST: f64 = 1e3;

    /// Tells these links' capacities multiplied by their factors, each bounded by
    /// [`LEAST`](Self::LEAST) and [`MOST`](Self::MOST).
    #[must_use]
    pub fn new(factors: impl IntoIterator<Item = (LinkId, f64)>) -> Self {
        let factors = factors.into_iter();
        Self {
            factors: factors.filter(|(_, factor)| *factor != 1.0).collect(),
        }
    }

    /// Returns the network as the allocator is told it. No capacity is above what a topology may
    /// have.
    #[must_use]
    pub fn of(&self, network: &Topology) -> Topology {
        let mut told = network.clone();
        for (link, factor) in &self.factors {
            let true_bps = network.links().get(link.index()).map(|l| l.capacity_bps);
            let factor = factor.clamp(Self::LEAST, Self::MOST);
            let bps = true_bps.unwrap_or(0) as f64 * factor;
            told.set_capacity_bps(*link, (bps.round() as u64).clamp(1, MAX_CAPACITY_BPS));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratewright_topology::TwoTierClos;

    #[test]
    fn only_the_named_links_are_told_otherwise_and_none_beyond_the_bound() {
        let network = TwoTierClos::default().build().unwrap();
        let told = Told::new([
            (LinkId(0), 1.25),
            (LinkId(1), 0.97),
            (LinkId(2), 1.0),
            (LinkId(3), 1e12),
        ]);
        let told = told.of(&network);
        for link in network.links() {
            let factor = match link.id.0 {
                0 => 1.25,
                1 => 0.97,
                3 => Told::MOST,
                _ => 1.0,
            };
            let bps = (link.capacity_bps as f64 * factor).round() as u64;
            let told_bps = told.effective_capacity_bps(link.id);
            assert_eq!(told_bps, bps.min(MAX_CAPACITY_BPS));
        }
    }
}
