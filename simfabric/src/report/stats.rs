//! Jain's index, percentiles, means.

/// Jain's fairness index (Σx)² / (n Σx²): 1 when all are equal, 1/n when one has everything.
/// Nothing to share is shared fairly: 1 for no values and for all zeros.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|v| v * v).sum();
    // No values, or none above 0: the quotient below would be NaN.
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (values.len() as f64 * squares)
}

/// The arithmetic mean; `None` of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The `share`-quantile by nearest rank: the least value that at least `share` of the values do not
/// exceed. `None` of nothing. Sorts its argument.
pub fn quantile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    quantile_sorted(values, share)
}

/// As [`quantile`], of values already in ascending order.
#[must_use]
pub fn quantile_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    // Ranks begin at 1; a share of 0 has rank 0 and takes the least value, too.
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_of_known_shares() {
        assert!((jain(&[5.0, 5.0, 5.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        // (1+2+3)² / (3·14) = 36/42
        assert!((jain(&[1.0, 2.0, 3.0]) - 36.0 / 42.0).abs() < 1e-12);
        assert!((jain(&[]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn quantiles_by_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.99), Some(99.0));
        assert_eq!(quantile(&mut values, 0.5), Some(50.0));
        assert_eq!(quantile(&mut values, 0.0), Some(1.0));
        assert_eq!(quantile(&mut values, 1.0), Some(100.0));
        assert_eq!(quantile(&mut [7.0], 0.01), Some(7.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }
}
