//! First-paced latencies as bars of text: how long after a flowlet's first byte its first paced
//! transmission came.

use std::fmt::Write as _;

use crate::measure::stats::percentile;

/// Upper bounds of the rows in microseconds.
const BOUNDS_US: [f64; 12] = [
    50.0,
    100.0,
    200.0,
    300.0,
    500.0,
    750.0,
    1_000.0,
    2_000.0,
    5_000.0,
    10_000.0,
    50_000.0,
    f64::INFINITY,
];
const BAR_CELLS: usize = 40;

/// Counts per row: samples up to the row's bound and above the last row's.
#[must_use]
pub fn rows(samples_us: &[f64]) -> Vec<usize> {
    let mut counts = vec![0; BOUNDS_US.len()];
    for sample in samples_us {
        counts[BOUNDS_US
            .partition_point(|bound| bound < sample)
            .min(BOUNDS_US.len() - 1)] += 1;
    }
    counts
}

/// The histogram, from the first row that has samples to the last.
#[must_use]
pub fn text(samples_us: &[f64]) -> String {
    let counts = rows(samples_us);
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let first = counts.iter().position(|n| *n > 0).unwrap_or(0);
    let last = counts.iter().rposition(|n| *n > 0).unwrap_or(0);
    let at = |p| percentile(samples_us, p).unwrap_or(0.0);
    let mut out = format!(
        "first byte written to first paced transmission: {} flowlets, p50 {:.0} µs, p99 {:.0} µs\n",
        samples_us.len(),
        at(50.0),
        at(99.0)
    );
    for row in first..=last {
        let label = if BOUNDS_US[row].is_finite() {
            format!("≤ {}", unit(BOUNDS_US[row]))
        } else {
            "more".to_owned()
        };
        let cells = (counts[row] * BAR_CELLS).div_ceil(most);
        let _ = writeln!(
            out,
            "{label:>10} │{:<BAR_CELLS$}│ {}",
            "█".repeat(cells),
            counts[row]
        );
    }
    out.truncate(out.trim_end().len());
    out
}

fn unit(us: f64) -> String {
    if us < 1_000.0 {
        format!("{us:.0} µs")
    } else {
        format!("{:.0} ms", us / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_in_one_row() {
        let samples = [10.0, 50.0, 51.0, 499.0, 1e9];
        let counts = rows(&samples);
        assert_eq!(counts.iter().sum::<usize>(), samples.len());
        assert_eq!((counts[0], counts[1], counts[4], counts[11]), (2, 1, 1, 1));
        let text = text(&samples);
        assert!(text.contains("p50 51 µs"), "{text}");
        assert_eq!(text.lines().count(), 1 + 12);
    }
}
