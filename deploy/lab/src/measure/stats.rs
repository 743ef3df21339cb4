//! Figures of merit over samples. Plain functions of slices.

/// Jain's fairness index: (Σx)² / (n Σx²); 1 when all are equal, 1/n when one has everything.
/// 1 for no samples or all zero: no sample is less than another.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (values.len() as f64 * squares)
    }
}

/// The `p`-th percentile (0..=100) with linear interpolation between the two nearest ranks;
/// `None` for no samples.
#[must_use]
pub fn percentile(values: &[f64], p: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let rank = p.clamp(0.0, 100.0) / 100.0 * last as f64;
    let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (rank - low as f64))
}

/// The 50th percentile.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 50.0)
}

/// The smallest value; `None` for no samples.
#[must_use]
pub fn minimum(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

/// Arithmetic mean; `None` for no samples.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_of_equal_shares_is_one_and_of_a_monopoly_one_over_n() {
        assert!((jain(&[3.0; 8]) - 1.0).abs() < 1e-12);
        assert!((jain(&[0.0, 0.0, 0.0, 5.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[]), 1.0);
    }

    /// For the values 1..=n the index is (n(n+1)/2)² / (n · n(n+1)(2n+1)/6) = 3(n+1) / (2(2n+1)).
    #[test]
    fn jain_of_an_arithmetic_progression_has_its_closed_form() {
        for n in 1..50u32 {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let n = f64::from(n);
            assert!((jain(&values) - 3.0 * (n + 1.0) / (2.0 * (2.0 * n + 1.0))).abs() < 1e-12);
        }
    }

    #[test]
    fn percentiles_interpolate_between_ranks() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        for p in [0.0, 12.5, 50.0, 90.0, 99.0, 100.0] {
            assert!((percentile(&values, p).unwrap() - p).abs() < 1e-9);
        }
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(minimum(&[2.0, 1.0, 3.0]), Some(1.0));
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
    }
}
