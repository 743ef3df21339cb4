//! End of a warm-up by MSER-5.
//!
//! The rule truncates a series where the standard error of the mean of the rest is least (White,
//! *An effective truncation heuristic for bias reduction in simulation output*, Simulation 69(6),
//! 1997). It works on means of five samples, and does not trust a minimum in the second half of
//! the series: the series is then too short, or has no steady state (Hoad, Robinson and Davies,
//! *Automating warm-up length estimation*, JORS 61(9), 2010).

/// Samples per batch mean.
const BATCH: usize = 5;
/// Least number of batches, below which nothing is said.
const LEAST_BATCHES: usize = 10;

/// Returns the number of samples that belong to the warm-up. `None`: the series is too short, or it
/// is not stationary.
#[must_use]
pub fn mser5(samples: &[f64]) -> Option<usize> {
    let batches: Vec<f64> = samples
        .chunks_exact(BATCH)
        .map(|batch| batch.iter().sum::<f64>() / BATCH as f64)
        .collect();
    if batches.len() < LEAST_BATCHES {
        return None;
    }
    // Sums from the end, so that each truncation takes one step. Differences from the last batch
    // keep a large mean from cancelling a small variance.
    let origin = batches[batches.len() - 1];
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, batches.len());
    for (truncated, batch) in batches.iter().enumerate().rev() {
        let value = batch - origin;
        sum += value;
        squares += value * value;
        let left = (batches.len() - truncated) as f64;
        // The last few batches may be equal by chance; their error of 0 says nothing.
        if batches.len() - truncated >= BATCH {
            let error = (squares - sum * sum / left).max(0.0) / (left * left);
            // Among equal errors the shortest warm-up.
            if error <= best.0 {
                best = (error, truncated);
            }
        }
    }
    (best.1 <= batches.len() / 2).then_some(best.1 * BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Stream};
    use rand::RngExt as _;

    fn noise(seed: u64, count: usize) -> Vec<f64> {
        let mut rng = Stream::new(seed, Purpose::Test, 0);
        (0..count).map(|_| rng.random::<f64>() - 0.5).collect()
    }

    #[test]
    fn a_transient_is_cut_off_where_it_ends() {
        for seed in 0..20 {
            let mut samples = noise(seed, 400);
            for (i, sample) in samples.iter_mut().enumerate() {
                *sample += 100.0 - 20.0 * (-(i as f64) / 15.0).exp();
            }
            let end = mser5(&samples).expect("stationary");
            // The rule may cut off some of the noise, too, but the rest has the steady mean.
            assert!(end >= 20, "{seed}: {end}");
            let mean = samples[end..].iter().sum::<f64>() / (samples.len() - end) as f64;
            assert!((mean - 100.0).abs() < 0.15, "{seed}: {end} {mean}");
        }
    }

    #[test]
    fn a_stationary_series_has_no_warm_up_and_a_growing_one_no_end_of_it() {
        assert_eq!(mser5(&[3.0; 100]), Some(0));
        let growing: Vec<f64> = noise(1, 400)
            .iter()
            .enumerate()
            .map(|(i, noise)| noise + 0.1 * i as f64)
            .collect();
        assert_eq!(mser5(&growing), None);
        assert_eq!(mser5(&[1.0; 49]), None);
    }
}
