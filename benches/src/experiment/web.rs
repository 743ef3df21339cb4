//! Sizes of a web server's flowlets.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// Flow sizes of web servers within a cluster: points of the cumulative distribution by Roy, Zeng,
/// Bagga, Porter and Snoeren (*Inside the Social Network's (Datacenter) Network*, SIGCOMM
/// 2015, fig. 6a), as (bytes, share of flows up to that size). Between points the size is linear.
/// Their mean is 62.3 kB. It is the "Web" workload of flowtune §5.3.
const POINTS: [(f64, f64); 41] = [
    (50.0, 0.0),
    (68.0, 0.0366),
    (89.0, 0.0675),
    (120.0, 0.1),
    (175.0, 0.1438),
    (263.0, 0.1972),
    (301.0, 0.215),
    (500.0, 0.226),
    (900.0, 0.2667),
    (1_085.0, 0.313),
    (1_664.0, 0.3722),
    (2_169.0, 0.423_36),
    (3_000.0, 0.4796),
    (4_277.0, 0.537_03),
    (5_892.0, 0.586_31),
    (7_000.0, 0.6111),
    (10_000.0, 0.6519),
    (14_639.0, 0.688_16),
    (19_318.0, 0.711_84),
    (24_512.0, 0.7315),
    (34_660.0, 0.7574),
    (44_086.0, 0.774_06),
    (60_000.0, 0.7926),
    (80_000.0, 0.8074),
    (107_612.0, 0.816_66),
    (144_310.0, 0.8241),
    (169_888.0, 0.840_75),
    (200_000.0, 0.8574),
    (228_286.0, 0.8759),
    (260_573.0, 0.8944),
    (283_560.0, 0.911_08),
    (310_050.0, 0.928_88),
    (331_170.0, 0.942_24),
    (353_730.0, 0.9556),
    (376_154.0, 0.964_85),
    (400_000.0, 0.9741),
    (442_606.0, 0.9833),
    (565_213.0, 0.9907),
    (663_127.0, 0.9935),
    (882_045.0, 0.998_15),
    (1_000_000.0, 1.0),
];

/// Returns the mean size in bytes.
#[must_use]
pub fn mean_bytes() -> f64 {
    POINTS
        .windows(2)
        // Linear between points: a piece's mean is its middle, weighted by its share of the flows.
        .map(|w| (w[1].1 - w[0].1) * (w[0].0 + w[1].0) / 2.0)
        .sum()
}

/// Returns the size that the share `share` of the flowlets does not exceed, in bytes.
#[must_use]
pub fn quantile_bytes(share: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    // The clamp keeps a point on either side for shares of 0 and 1.
    let after = POINTS.partition_point(|p| p.1 < share);
    let (b, pb) = POINTS[after.clamp(1, POINTS.len() - 1)];
    let (a, pa) = POINTS[after.clamp(1, POINTS.len() - 1) - 1];
    a + (b - a) * (share - pa) / (pb - pa)
}

/// Draws the size of a flowlet, in bytes.
pub fn sample_bytes(rng: &mut Pcg64Mcg) -> f64 {
    quantile_bytes(rng.random())
}
