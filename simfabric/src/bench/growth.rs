//! Growth of a run's time with its packet-hops: a power law and a straight line, fitted to runs of
//! several sizes.

/// Sizes that are measured, in hosts. Those of 16, 128 and 1,024 hosts fill a fat tree.
pub const HOSTS: [u32; 8] = [16, 32, 64, 128, 256, 512, 1_024, 2_048];

/// Fits through the runs of several sizes.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Fit {
    /// Exponent of the power law, by least squares of the logarithms; 1 is linear growth.
    pub exponent: f64,
    /// The straight line's slope, by least squares, in nanoseconds per packet-hop.
    pub line_ns_per_hop: f64,
    /// Intercept of the straight line at 0 packet-hops, in seconds.
    pub line_begins_s: f64,
    /// The share of the times' variance that the straight line accounts for, R².
    pub line_r2: f64,
    /// The largest distance of a time from the straight line, as a share of the longest time.
    pub line_worst: f64,
}

/// Fits the straight line y = a + b·x by least squares; returns (a, b).
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = points
        .iter()
        .fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let (mut square, mut product) = (0.0, 0.0);
    for p in points {
        square += (p.0 - x).powi(2);
        product += (p.0 - x) * (p.1 - y);
    }
    let slope = product / square;
    (y - slope * x, slope)
}

impl Fit {
    /// Fits both curves to runs of different sizes, given as (packet-hops, seconds) above 0.
    /// Returns `None` for fewer than two runs.
    #[must_use]
    pub fn of(runs: &[(f64, f64)]) -> Option<Self> {
        if runs.len() < 2 {
            return None;
        }
        // A power law is a straight line of the logarithms; its slope is the exponent.
        let logarithms: Vec<_> = runs.iter().map(|r| (r.0.ln(), r.1.ln())).collect();
        let (begins, slope) = line(runs);
        let mean = runs.iter().map(|r| r.1).sum::<f64>() / runs.len() as f64;
        let longest = runs.iter().map(|r| r.1).fold(0.0, f64::max);
        let off = |r: &(f64, f64)| (r.1 - begins - slope * r.0).abs();
        let unexplained: f64 = runs.iter().map(|r| off(r).powi(2)).sum();
        let all: f64 = runs.iter().map(|r| (r.1 - mean).powi(2)).sum();
        Some(Self {
            exponent: line(&logarithms).1,
            line_ns_per_hop: slope * 1e9,
            line_begins_s: begins,
            line_r2: 1.0 - unexplained / all,
            line_worst: runs.iter().map(off).fold(0.0, f64::max) / longest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_has_its_exponent() {
        let runs = [1e6, 3e6, 2e7, 1e8].map(|hops: f64| (hops, 1e-9 * hops.powf(1.2)));
        let fit = Fit::of(&runs).unwrap();
        assert!((fit.exponent - 1.2).abs() < 1e-12, "{fit:?}");
        assert!(fit.line_worst > 0.001 && fit.line_r2 < 1.0, "{fit:?}");
        assert_eq!(Fit::of(&runs[..1]), None);
    }

    /// Anscombe's first data set (1973): y = 3.0 + 0.5 x, R² = 0.67; its worst point is (13, 7.58).
    #[test]
    fn the_straight_line_is_that_of_least_squares() {
        let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let y = [
            8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68,
        ];
        let runs: Vec<_> = x.into_iter().zip(y).collect();
        let fit = Fit::of(&runs).unwrap();
        assert!((fit.line_begins_s - 3.0).abs() < 0.001, "{fit:?}");
        assert!((fit.line_ns_per_hop / 1e9 - 0.5).abs() < 0.001, "{fit:?}");
        assert!((fit.line_r2 - 0.67).abs() < 0.005, "{fit:?}");
        let worst = (3.0 + 0.5 * 13.0 - 7.58) / 10.84;
        assert!((fit.line_worst - worst).abs() < 0.001, "{fit:?}");
    }
}
