//! Gain of the loop from a rate to a reading that shows it and back, and its bounds.
//!
//! Write e for the estimate of a link's external load, E for the truth, T for the interval of the
//! readings and d for the delay from a new rate to its traffic at the link. The allocator hands out
//! C − e. A reading subtracts what was handed out, so a change of e shows as external load for the
//! time d, until the traffic follows.
//!
//! - d ≤ T, with φ = d/T: the reading is E + φ(e₋₁ − e₋₂). With u = e − E and gain g:
//!   u = (1 − g + gφ) u₋₁ − gφ u₋₂. The loop is stable while gφ < 1 and g(1 − 2φ) < 2. Its roots
//!   are real, so nothing oscillates, while g ≤ 1/(1 + √φ)².
//! - d = mT: u = u₋₁ − g u₋₁₋ₘ. The loop is stable while g < 2 sin(π/(2(2m + 1))) and does not
//!   oscillate while g ≤ mᵐ/(m + 1)ᵐ⁺¹ (Levin and May, 1976). As T falls, gain per time times delay
//!   tends to π/2 and to 1/e.
//!
//! [`steady`] returns the second bound of each case, which is the largest gain without oscillation.

/// Maximum number of intervals in a delay; a longer delay counts as this many.
const MAX_LAG: u32 = 64;

/// Returns the largest gain per reading at which the estimate of external load does not oscillate,
/// for readings at this interval and traffic that follows rates after at most this delay.
#[must_use]
pub fn steady(delay_ns: u64, interval_ns: u64) -> f64 {
    let ratio = ratio(delay_ns, interval_ns);
    if ratio <= 1.0 {
        1.0 / (1.0 + ratio.sqrt()).powi(2)
    } else {
        integral(lag(ratio))
    }
}

/// Returns the gain per reading above which the estimate of external load diverges.
#[must_use]
pub fn stable(delay_ns: u64, interval_ns: u64) -> f64 {
    let ratio = ratio(delay_ns, interval_ns);
    if ratio <= 1.0 {
        let alternating = if ratio < 0.5 {
            2.0 / (1.0 - 2.0 * ratio)
        } else {
            f64::INFINITY
        };
        alternating.min(1.0 / ratio)
    } else {
        let m = f64::from(lag(ratio));
        2.0 * (std::f64::consts::FRAC_PI_2 / (2.0 * m + 1.0)).sin()
    }
}

/// Returns the time in which a standing queue is drained, in nanoseconds: the least at which the
/// queue does not oscillate. A queue integrates rates, and is read one interval late.
#[must_use]
pub fn drain_ns(delay_ns: u64, interval_ns: u64) -> f64 {
    let m = lag(ratio(delay_ns, interval_ns)) + 1;
    #[allow(
        clippy::cast_precision_loss,
        reason = "intervals are far below 2^53 ns"
    )]
    let interval_ns = interval_ns.max(1) as f64;
    interval_ns / integral(m)
}

#[allow(clippy::cast_precision_loss, reason = "times are far below 2^53 ns")]
fn ratio(delay_ns: u64, interval_ns: u64) -> f64 {
    delay_ns as f64 / interval_ns.max(1) as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded by MAX_LAG"
)]
fn lag(ratio: f64) -> u32 {
    (ratio.ceil().min(f64::from(MAX_LAG)) as u32).max(1)
}

/// Largest gain without oscillation of x = x₋₁ − g x₋₁₋ₘ.
fn integral(m: u32) -> f64 {
    let m = f64::from(m);
    (m / (m + 1.0)).powf(m) / (m + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs the loop of a link with capacity 1 and external load 0.4, which the estimate does not
    /// know at first. The link is simulated in steps of 1/20 interval; rates reach it after the
    /// delay. Returns the estimates after each reading.
    fn estimates(delay_ns: u64, interval_ns: u64, gain: f64) -> Vec<f64> {
        const STEPS: usize = 20;
        let truth = 0.4;
        let delay = (delay_ns as usize * STEPS).div_ceil(interval_ns as usize);
        let mut estimate: f64 = 0.0;
        let mut handed_out: Vec<f64> = vec![1.0; delay + 1];
        let mut estimates = Vec::new();
        for _ in 0..400 {
            let (mut carried, mut subtracted) = (0.0, 0.0);
            for _ in 0..STEPS {
                handed_out.push(1.0 - estimate);
                carried += truth + handed_out[handed_out.len() - 1 - delay];
                subtracted += 1.0 - estimate;
            }
            let reading = (carried - subtracted) / STEPS as f64;
            estimate += gain * (reading - estimate);
            estimates.push(estimate);
        }
        estimates
    }

    fn overshoot(estimates: &[f64]) -> f64 {
        estimates.iter().fold(0.0, |most: f64, e| most.max(e - 0.4))
    }

    #[test]
    fn no_delay_up_to_a_millisecond_makes_the_estimate_oscillate() {
        for interval_ns in [MS / 10, MS / 3, MS, 2 * MS, 5 * MS, 10 * MS] {
            let gain = steady(MS, interval_ns);
            for delay_ns in (0..=10).map(|tenth| tenth * MS / 10) {
                let run = estimates(delay_ns, interval_ns, gain);
                let last = *run.last().expect("400 readings");
                assert!(
                    (last - 0.4).abs() < 1e-3,
                    "{delay_ns} {interval_ns}: {last}"
                );
                assert!(overshoot(&run) < 1e-6, "{delay_ns} {interval_ns} {gain}");
            }
        }
    }

    #[test]
    fn above_the_steady_gain_it_overshoots_and_above_the_stable_gain_it_diverges() {
        for interval_ns in [MS / 10, MS / 4, MS / 2, MS] {
            let above = estimates(MS, interval_ns, 1.5 * steady(MS, interval_ns));
            assert!(overshoot(&above) > 1e-3, "{interval_ns}");
            let limit = stable(MS, interval_ns);
            let within = estimates(MS, interval_ns, 0.9 * limit);
            let last = |run: &[f64]| {
                run[390..]
                    .iter()
                    .fold(0.0, |most: f64, e| most.max((e - 0.4).abs()))
            };
            assert!(last(&within) < 0.1, "{interval_ns}: {}", last(&within));
            let beyond = estimates(MS, interval_ns, 1.1 * limit);
            assert!(last(&beyond) > 1.0, "{interval_ns}: {}", last(&beyond));
        }
    }

    #[test]
    fn gain_times_delay_tends_to_the_bounds_of_continuous_time() {
        let interval_ns = MS / 64;
        let per_delay = 64.0;
        assert!((steady(MS, interval_ns) * per_delay - (-1.0_f64).exp()).abs() < 0.01);
        let half_pi = std::f64::consts::FRAC_PI_2;
        assert!((stable(MS, interval_ns) * per_delay - half_pi).abs() < 0.02);
    }

    #[test]
    fn a_standing_queue_drains_without_undershoot() {
        for interval_ns in [MS / 10, MS, 10 * MS] {
            let lag = 1 + MS.div_ceil(interval_ns) as usize;
            let share = interval_ns as f64 / drain_ns(MS, interval_ns);
            let mut queue = vec![1.0; lag + 1];
            for _ in 0..400 {
                let next = queue[queue.len() - 1] - share * queue[queue.len() - 1 - lag];
                assert!(next > -1e-9, "{interval_ns}");
                queue.push(next);
            }
            assert!(queue[queue.len() - 1] < 1e-2, "{interval_ns}");
        }
    }
}
