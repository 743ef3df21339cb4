//! The network of the paper's simulations (flowtune §5.3, *Topology*), and what figures 9 to 15
//! measure on it.

use ratewright_sizes::NAMES;
use ratewright_topology::{BuildError, Topology, TwoTierClos};
use serde::{Deserialize, Serialize};

use crate::parameters::ParamError;
use crate::time::Span;
use crate::workload::{SizeDistribution, SizeError};

/// Every server's link, in bit/s.
pub const HOST_BPS: u64 = 10_000_000_000;
/// Servers under one top-of-rack switch.
pub const HOSTS_PER_RACK: u32 = 16;
/// Racks in the paper's network.
pub const RACKS: u32 = 9;
/// Processing time of a packet in a server, outbound as well as inbound.
pub const HOST_DELAY: Span = Span::from_us(2);
/// Propagation over any link.
pub const LINK_DELAY: Span = Span::from_ns(1_500);

/// Racks of 16 servers under 4 spines with full bisection: 10 Gbit/s to servers, 40 Gbit/s between
/// switches, 1.5 µs per link.
///
/// With the servers' 2 µs, a round trip over two links takes 14 µs, as in the paper. Over four
/// links it takes 20 µs, for which the paper has 22.
///
/// # Errors
/// If there are no racks.
pub fn topology(racks: u32) -> Result<Topology, BuildError> {
    TwoTierClos {
        racks,
        hosts_per_rack: HOSTS_PER_RACK,
        spines: 4,
        host_capacity_bps: HOST_BPS,
        fabric_capacity_bps: 4 * HOST_BPS,
        // The builder's host delay is that of a link to a host; HOST_DELAY, the processing in a
        // host,
        // is the fabric's.
        host_delay_ns: LINK_DELAY.as_ps() / 1_000,
        fabric_delay_ns: LINK_DELAY.as_ps() / 1_000,
        ..TwoTierClos::default()
    }
    .build()
}

/// Rate of the allocator's link to every spine: 40 Gbit/s (flowtune §5.3), and in proportion to the
/// servers beyond the paper's 144. At 2,048 servers one per cent of their capacity is more than 160
/// Gbit/s.
#[must_use]
pub fn allocator_bps(hosts: u32) -> u64 {
    // Smaller networks keep the paper's links.
    let servers = u64::from(hosts.max(RACKS * HOSTS_PER_RACK));
    40_000_000_000 * servers / u64::from(RACKS * HOSTS_PER_RACK)
}

/// Name of [`SceneConfig`] in settings.
pub const NAME: &str = "scene";

crate::parameters! {
    /// Workload and measures of figures 9 to 15, for what the paper leaves open.
    pub struct SceneConfig {
        /// Published sizes of flowlets in figures 12 to 15 (§5.3: web).
        workload: String = "web".to_owned(),
        /// Factor on the sizes.
        size_factor: f64 = 1.0,
        /// Bytes that larger flowlets are cut to; unless given, none is cut.
        size_cut: Option<u64> = None,
        /// Control traffic that counts in figures 9 to 11: "ip" as in ns-2, "wire", "paper",
        /// "alone" or "updates".
        count: Counting = Counting::Ip,
        /// Queues in a path's delay (figure 13): "all", with the sender's NIC, or "switches".
        path_queues: PathQueues = PathQueues::All,
        /// Weight in the fairness score (figure 15): every "flowlet" once, or by its "time".
        score: ScoreWeight = ScoreWeight::Flowlet,
    }
}

/// Queues that add up to the queueing delay of a path (figure 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathQueues {
    /// Queues of switches.
    Switches,
    /// Queues of switches, and the sender's NIC.
    All,
}

/// Weight of a flowlet's rate in the fairness score (figure 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreWeight {
    /// Every flowlet counts once.
    Flowlet,
    /// A flowlet counts by its duration: the score of the active flowlets, averaged over time.
    Time,
}

/// Counting of the traffic to and from the allocator in figures 9 to 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Counting {
    /// Everything on links, with Ethernet, preamble and gap.
    Wire,
    /// IP packets, as ns-2 counts.
    Ip,
    /// The sent packets with their records in the paper's encoding: 40 bytes of headers each, 16
    /// for a start, 4 for an end, 6 for a rate (flowtune §5.3). Bare acknowledgements do not count.
    Paper,
    /// The paper's encoding, with a packet for every start, end and rate.
    Alone,
    /// The paper's encoding, with a packet for every rate, and nothing else.
    Updates,
}

impl SceneConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// An unknown workload, or sizes that leave nothing of it.
    pub fn check(&self) -> Result<(), ParamError> {
        if !NAMES.contains(&self.workload.as_str()) {
            let message = format!("published workloads are {}", NAMES.join(", "));
            return Err(ParamError::of("workload", message));
        }
        if !(self.size_factor > 0.0 && self.size_factor.is_finite()) {
            return Err(ParamError::of("size_factor", "it must be above 0"));
        }
        if self.size_cut == Some(0) {
            return Err(ParamError::of("size_cut", "it must be above 0"));
        }
        Ok(())
    }

    /// Returns the sizes of the flowlets of figures 12 to 15.
    ///
    /// # Errors
    /// As [`sizes_of`](Self::sizes_of).
    pub fn sizes(&self) -> Result<SizeDistribution, SizeError> {
        self.sizes_of(&self.workload)
    }

    /// Returns the sizes of the flowlets of any published workload, after factor and cut.
    ///
    /// # Errors
    /// If the workload is not a published one, or the factor leaves nothing of it.
    pub fn sizes_of(&self, workload: &str) -> Result<SizeDistribution, SizeError> {
        let mut sizes = SizeDistribution::published(workload)?;
        if (self.size_factor - 1.0).abs() >= f64::EPSILON {
            let times = |bytes: u64| (bytes as f64 * self.size_factor).round() as u64;
            let points = sizes.points().iter();
            let points = points
                .map(|&(bytes, share)| (times(bytes), share))
                .collect();
            let name = format!("{workload} × {}", self.size_factor);
            sizes = SizeDistribution::from_points(&name, points)?;
        }
        let largest = sizes.points().last().map_or(0, |point| point.0);
        if let Some(cut) = self.size_cut.filter(|cut| *cut < largest) {
            let points = sizes.points().iter().copied();
            let mut points: Vec<_> = points.filter(|point| point.0 < cut).collect();
            // Two points at one size are a step: every larger flowlet has the size of the cut.
            points.extend([(cut, sizes.cdf(cut as f64)), (cut, 1.0)]);
            let name = format!("{} up to {cut}", sizes.name());
            sizes = SizeDistribution::from_points(&name, points)?;
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_moves_the_mean() {
        let mean = |scene: SceneConfig| scene.sizes().unwrap().mean_bytes();
        let thrice = SceneConfig {
            size_factor: 3.0,
            ..SceneConfig::default()
        };
        let (before, after) = (mean(SceneConfig::default()), mean(thrice));
        assert!((after / before - 3.0).abs() < 1e-3, "{before} {after}");
    }

    /// Larger flowlets have the size of the cut; all others are as before.
    #[test]
    fn a_cut_shortens_what_is_larger() {
        let of = |size_cut| {
            let scene = SceneConfig {
                size_cut,
                ..SceneConfig::default()
            };
            scene.sizes_of("hadoop").unwrap()
        };
        let (whole, cut) = (of(None), of(Some(1_000_000)));
        for i in 0..=1_000 {
            let share = f64::from(i) / 1_000.0;
            // A byte for rounding.
            let expected = whole.quantile(share).min(1_000_000);
            assert!(cut.quantile(share).abs_diff(expected) <= 1, "{share}");
        }
        assert_eq!(of(Some(1_000_000_000)).points(), whole.points());
    }
}
