//! Cases × seeds in parallel, and estimates over the seeds.

use rayon::prelude::*;

use super::{ExperimentError, Settings};
use crate::report::estimate::Estimate;

/// Results of one case, one for each seed in the order of [`Settings::seeds`].
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Replicas<S>(pub Vec<S>);

/// Runs every case under every seed, on all threads of the pool. Results are in the order of the
/// cases, whatever the number of threads.
///
/// # Errors
/// The first run that fails.
pub fn sweep<C: Sync, S: Send>(
    settings: &Settings,
    cases: &[C],
    run: impl Fn(&C, u64) -> Result<S, ExperimentError> + Sync,
) -> Result<Vec<Replicas<S>>, ExperimentError> {
    let seeds: Vec<u64> = settings.seeds().collect();
    let runs: Vec<(&C, u64)> = cases
        .iter()
        .flat_map(|case| seeds.iter().map(move |&seed| (case, seed)))
        .collect();
    let mut samples = runs
        .par_iter()
        // Runs differ in length by far: threads take them one by one.
        .with_max_len(1)
        .map(|&(case, seed)| run(case, seed))
        .collect::<Result<Vec<S>, _>>()?
        .into_iter();
    let of_case = |_| Replicas(samples.by_ref().take(seeds.len()).collect());
    Ok(cases.iter().map(of_case).collect())
}

impl<S> Replicas<S> {
    /// Estimates the mean of a value. `None` if a seed has no such value.
    pub fn estimate(&self, value: impl Fn(&S) -> Option<f64>) -> Option<Estimate> {
        let values: Option<Vec<f64>> = self.0.iter().map(value).collect();
        Estimate::of(values?)
    }

    /// Estimates the mean of a value of two cases, such as a ratio, seed by seed: flows of equal
    /// seeds are equal, so that much of their chance cancels.
    pub fn paired<T>(
        &self,
        other: &Replicas<T>,
        value: impl Fn(&S, &T) -> Option<f64>,
    ) -> Option<Estimate> {
        let pairs = self.0.iter().zip(&other.0);
        let values: Option<Vec<f64>> = pairs.map(|(own, other)| value(own, other)).collect();
        Estimate::of(values?)
    }

    /// Sums a count over the seeds.
    pub fn total(&self, count: impl Fn(&S) -> usize) -> usize {
        self.0.iter().map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_cases_and_seeds() {
        let settings = Settings {
            first_seed: 5,
            seed_count: 3,
            quick: true,
            set: Vec::new(),
            store: None,
        };
        let cases = [100, 200];
        let found = sweep(&settings, &cases, |case, seed| Ok(case + seed)).unwrap();
        assert_eq!(found[0].0, [105, 106, 107]);
        assert_eq!(found[1].0, [205, 206, 207]);
        let mean = found[1].estimate(|&value| Some(value as f64)).unwrap();
        assert_eq!((mean.mean, mean.runs), (206.0, 3));
        let apart = found[1].paired(&found[0], |b, a| Some((b - a) as f64));
        assert_eq!(apart.unwrap().interval(), Some([100.0; 2]));
        assert_eq!(found[0].estimate(|&v| (v != 106).then_some(0.0)), None);
        let failed = sweep(&settings, &cases, |_, seed| match seed {
            6 => Err(ExperimentError::Stopped),
            _ => Ok(()),
        });
        assert!(matches!(failed, Err(ExperimentError::Stopped)));
    }
}
