//! Means over independent runs with Student's 95 % confidence interval.
//!
//! A run with another seed is an independent sample of one measured value. The interval for the
//! mean of n such values is mean ± t·s/√n, with t the 97.5 % quantile of Student's distribution
//! with n − 1 degrees of freedom (Law, *Simulation Modeling and Analysis*, §4.5).

use std::f64::consts::FRAC_PI_2;

use ratewright_plot::Measured;
use serde::{Deserialize, Serialize};

/// Share of intervals that contain the true mean.
pub const CONFIDENCE: f64 = 0.95;

/// A mean over runs, with its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval; `None` of a single run, which has none.
    pub half_width: Option<f64>,
    /// Number of runs.
    pub runs: usize,
}

impl Estimate {
    /// Estimates the mean of one value per run. `None` without runs, or if any value is not finite.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let runs = values.len();
        let mean = values.iter().sum::<f64>() / runs as f64;
        let half_width = (runs > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let deviation = (squares / (runs - 1) as f64).sqrt();
            student_t(runs - 1, CONFIDENCE) * deviation / (runs as f64).sqrt()
        });
        Some(Self {
            mean,
            half_width,
            runs,
        })
    }

    /// Returns the ends of the interval.
    #[must_use]
    pub fn interval(&self) -> Option<[f64; 2]> {
        let half_width = self.half_width?;
        Some([self.mean - half_width, self.mean + half_width])
    }
}

impl From<Estimate> for Measured {
    fn from(estimate: Estimate) -> Self {
        Self {
            value: estimate.mean,
            interval: estimate.interval(),
        }
    }
}

/// Returns t such that a value of Student's distribution lies within ±t with this probability.
#[must_use]
pub fn student_t(degrees: usize, probability: f64) -> f64 {
    // The probability rises with t = √ν tan θ from 0 at θ = 0 to 1 at π/2: halving finds it.
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if within(degrees, middle) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    (degrees as f64).sqrt() * low.tan()
}

/// Probability that |t| ≤ √ν tan θ, in closed form for whole ν (Abramowitz and Stegun 26.7.3 and
/// 26.7.4).
fn within(degrees: usize, theta: f64) -> f64 {
    let (sin, cos) = theta.sin_cos();
    let odd = degrees % 2 == 1;
    // Terms of the finite series: cos θ (2/3 cos²θ) (4/5 cos²θ) … or 1 (1/2 cos²θ) (3/4 cos²θ) ….
    let (mut term, mut power) = if odd { (cos, 1) } else { (1.0, 0) };
    let mut sum = 0.0;
    while power + 2 <= degrees {
        sum += term;
        power += 2;
        term *= (power - 1) as f64 / power as f64 * cos * cos;
    }
    if odd {
        (theta + sin * sum) / FRAC_PI_2
    } else {
        sin * sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Closed forms for one and two degrees of freedom; the printed tables for more.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        let one = (std::f64::consts::PI * 0.475).tan();
        let two = 0.95 / (2.0 * 0.975 * 0.025_f64).sqrt();
        for (degrees, t) in [
            (1, one),
            (2, two),
            (3, 3.182_446),
            (4, 2.776_445),
            (5, 2.570_582),
            (9, 2.262_157),
            (10, 2.228_139),
            (29, 2.045_230),
            (30, 2.042_272),
            (120, 1.979_930),
            (1_001, 1.962_339),
        ] {
            let found = student_t(degrees, 0.95);
            assert!((found / t - 1.0).abs() < 1e-5, "{degrees}: {found} {t}");
        }
    }

    /// Three values by hand: mean 2, deviation 1, t 4.3027, √3.
    #[test]
    fn the_interval_of_three_runs() {
        let estimate = Estimate::of([1.0, 2.0, 3.0]).unwrap();
        assert_eq!((estimate.mean, estimate.runs), (2.0, 3));
        assert!((estimate.half_width.unwrap() - 2.484_138).abs() < 1e-5);
        assert_eq!(Estimate::of([7.0]).unwrap().interval(), None);
        assert_eq!(Estimate::of([7.0, 7.0]).unwrap().interval(), Some([7.0; 2]));
        assert_eq!(Estimate::of([]), None);
        assert_eq!(Estimate::of([1.0, f64::NAN]), None);
    }

    /// Of intervals around means of five uniform values, about 95 % contain the true mean.
    #[test]
    fn intervals_contain_the_mean_as_often_as_they_say() {
        use crate::rng::{Purpose, Stream};
        use rand::RngExt as _;
        let mut rng = Stream::new(1, Purpose::Test, 0);
        let trials = 4_000;
        let hits = (0..trials)
            .filter(|_| {
                // Sums of three: near a normal distribution, for which the interval is exact.
                let mut draw = || (0..3).map(|_| rng.random::<f64>()).sum::<f64>();
                let estimate = Estimate::of((0..5).map(|_| draw())).unwrap();
                (estimate.mean - 1.5).abs() <= estimate.half_width.unwrap()
            })
            .count();
        let share = hits as f64 / f64::from(trials);
        assert!((0.94..0.96).contains(&share), "{share}");
    }
}
