//! History of what the allocator handed out on every link.

use std::collections::VecDeque;

/// Maximum number of observations that are kept apart. Of more, the oldest become one, with their
/// mean over time.
const MAX_OBSERVATIONS: usize = 32;

/// Loads of all links from a time to the next observation.
#[derive(Debug, Clone, Default)]
struct Observation {
    from_ns: u64,
    loads_bps: Vec<f64>,
}

/// Loads that were handed out on every link, back to the maximum age of a measurement. A link costs
/// nothing until somebody asks for it.
#[derive(Debug, Default)]
pub(super) struct HandedOut {
    /// Oldest first, each later than the one before.
    observations: VecDeque<Observation>,
    /// Time for which observations become one, with their mean; 0: none do.
    grain_ns: u64,
}

impl HandedOut {
    /// Makes an empty history of means over `grain_ns` each.
    pub(super) fn with_grain_ns(grain_ns: u64) -> Self {
        Self {
            observations: VecDeque::new(),
            grain_ns,
        }
    }

    /// Takes the loads of all links from now on, in bit/s. `loads_bps` becomes that of an old
    /// observation. What has been over for `span_ns` is forgotten.
    pub(super) fn observe(&mut self, now_ns: u64, span_ns: u64, loads_bps: &mut Vec<f64>) {
        let newest = self.observations.back_mut();
        if let Some(newest) = newest
            && newest.from_ns >= now_ns
        {
            std::mem::swap(&mut newest.loads_bps, loads_bps);
            return;
        }
        let mut observation = Observation::default();
        while self.observations.len() > 1
            && self.observations[1].from_ns.saturating_add(span_ns) <= now_ns
        {
            observation = self.observations.pop_front().unwrap_or_default();
        }
        if let Some(newest) = self.observations.len().checked_sub(2)
            && now_ns - self.observations[newest].from_ns <= self.grain_ns
        {
            observation = self.join(newest, now_ns);
        } else if self.observations.len() == MAX_OBSERVATIONS {
            let end_ns = self.observations[2].from_ns;
            observation = self.join(0, end_ns);
        }
        observation.from_ns = now_ns;
        std::mem::swap(&mut observation.loads_bps, loads_bps);
        self.observations.push_back(observation);
    }

    /// Joins the observation at an index with the next one, which ended at `end_ns`. Returns one
    /// that is not needed any more.
    #[allow(clippy::cast_precision_loss, reason = "times are far below 2^53 ns")]
    fn join(&mut self, index: usize, end_ns: u64) -> Observation {
        let Some(first) = self.observations.remove(index) else {
            return Observation::default();
        };
        let Some(second) = self.observations.get_mut(index) else {
            return first;
        };
        let first_ns = (second.from_ns - first.from_ns) as f64;
        let share = first_ns / (end_ns - first.from_ns) as f64;
        for (load_bps, former_bps) in second.loads_bps.iter_mut().zip(&first.loads_bps) {
            *load_bps += share * (former_bps - *load_bps);
        }
        second.from_ns = first.from_ns;
        first
    }

    /// Returns the time of the newest observation; 0 before the first one.
    pub(super) fn newest_ns(&self) -> u64 {
        self.observations.back().map_or(0, |newest| newest.from_ns)
    }

    /// Returns the loads at a time, in bit/s by link; the oldest known ones before that.
    pub(super) fn at(&self, at_ns: u64) -> &[f64] {
        let mut newest_first = self.observations.iter().rev();
        let at = newest_first.find(|observation| observation.from_ns <= at_ns);
        let at = at.or(self.observations.front());
        at.map_or(&[], |observation| &observation.loads_bps)
    }

    /// Returns the mean of a link's load between two times, in bit/s. Before the oldest observation
    /// its load held, after the newest one its load holds.
    #[allow(
        clippy::cast_precision_loss,
        reason = "intervals are far below 2^53 ns"
    )]
    pub(super) fn mean_bps(&self, link: usize, from_ns: u64, to_ns: u64) -> f64 {
        let load_bps = |at: &Observation| at.loads_bps.get(link).copied().unwrap_or(0.0);
        let (mut sum, mut end_ns) = (0.0, to_ns);
        for observation in self.observations.iter().rev() {
            let begin_ns = observation.from_ns.max(from_ns);
            if begin_ns < end_ns {
                sum += load_bps(observation) * (end_ns - begin_ns) as f64;
                end_ns = begin_ns;
            }
            if end_ns <= from_ns {
                break;
            }
        }
        let Some(oldest) = self.observations.front() else {
            return 0.0;
        };
        if to_ns <= from_ns {
            return self.at(to_ns).get(link).copied().unwrap_or(0.0);
        }
        // Nothing is known of the time before.
        sum += load_bps(oldest) * end_ns.saturating_sub(from_ns) as f64;
        sum / (to_ns - from_ns) as f64
    }

    pub(super) fn clear(&mut self) {
        self.observations.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads of one link that is 1 from 10 to 20, 2 from 20 to 30 and so on.
    fn history(to: u64, span_ns: u64) -> HandedOut {
        let mut history = HandedOut::default();
        for at in 1..=to {
            history.observe(10 * at, span_ns, &mut vec![at as f64]);
        }
        history
    }

    #[test]
    fn the_mean_is_weighted_by_time_and_the_ends_go_on() {
        let history = history(4, 1_000);
        for (from_ns, to_ns, mean_bps) in [
            (10, 20, 1.0),
            (15, 25, 1.5),
            (10, 50, 2.5),
            (0, 20, 1.0),
            (45, 45, 4.0),
            (40, 90, 4.0),
            (28, 32, 2.5),
        ] {
            assert!(
                (history.mean_bps(0, from_ns, to_ns) - mean_bps).abs() < 1e-9,
                "{from_ns} {to_ns}: {}",
                history.mean_bps(0, from_ns, to_ns)
            );
        }
        assert_eq!(history.mean_bps(7, 10, 20), 0.0, "no such link");
        assert_eq!((history.at(29), history.newest_ns()), (&[2.0][..], 40));
    }

    #[test]
    fn more_observations_than_are_kept_apart_keep_their_mean() {
        let to = 3 * MAX_OBSERVATIONS as u64;
        let history = history(to, u64::MAX);
        assert_eq!(history.observations.len(), MAX_OBSERVATIONS);
        let whole = history.mean_bps(0, 10, 10 * (to + 1));
        assert!((whole - (to + 1) as f64 / 2.0).abs() < 1e-9, "{whole}");
        let newest = history.mean_bps(0, 10 * to - 100, 10 * to);
        assert!((newest - (to as f64 - 5.5)).abs() < 1e-9, "{newest}");
    }

    #[test]
    fn observations_of_one_grain_are_one_with_their_mean() {
        let mut history = HandedOut::with_grain_ns(100);
        for at in 1..=100_u64 {
            history.observe(10 * at, 500, &mut vec![at as f64]);
        }
        assert!(history.observations.len() <= 8, "{history:?}");
        // From 600 to 1,000 the loads are 60 to 99, each for 10.
        let mean_bps = history.mean_bps(0, 600, 1_000);
        assert!((mean_bps - 79.5).abs() < 2.0, "{mean_bps}");
        let newest = history.at(1_000);
        assert_eq!(newest, &[100.0]);
    }

    #[test]
    fn what_is_over_for_longer_than_the_span_is_forgotten() {
        let history = history(20, 50);
        assert!(history.observations.len() <= 7);
        assert!((history.mean_bps(0, 150, 200) - 17.0).abs() < 1e-9);
    }
}
