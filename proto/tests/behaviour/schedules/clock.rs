//! Clocks that are neither set alike nor run alike.

/// Monotonic clock of a host: `offset + t + t · skew`, with jumps ahead and times at which it
/// stood.
///
/// A virtual machine that is paused, or a machine that sleeps, finds its clock standing; a clock
/// that is set, or a machine that wakes, finds it ahead. It never goes back: it is monotonic.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) offset_ns: u64,
    pub(crate) skew_ppm: i64,
    /// Jumps ahead: time and length, in the order of time.
    pub(crate) jumps: Vec<(u64, u64)>,
    /// Stops of the clock: begin and end, in the order of time and disjoint.
    pub(crate) stands: Vec<(u64, u64)>,
}

impl Clock {
    /// The clock's reading at global time `global_ns`.
    pub(crate) fn read(&self, global_ns: u64) -> u64 {
        let drift = i128::from(global_ns) * i128::from(self.skew_ppm) / 1_000_000;
        let steady = i128::from(self.offset_ns) + i128::from(global_ns) + drift;
        let ahead: u64 = self
            .jumps
            .iter()
            .take_while(|&&(at_ns, _)| at_ns <= global_ns)
            .map(|&(_, by_ns)| by_ns)
            .sum();
        // The drift of a stop is taken back with it: the oscillator stood as well.
        let behind: i128 = self
            .stands
            .iter()
            .take_while(|&&(from_ns, _)| from_ns <= global_ns)
            .map(|&(from_ns, until_ns)| {
                let stood = i128::from(until_ns.min(global_ns) - from_ns);
                stood + i128::from(until_ns.min(global_ns)) * i128::from(self.skew_ppm) / 1_000_000
                    - i128::from(from_ns) * i128::from(self.skew_ppm) / 1_000_000
            })
            .sum();
        (steady + i128::from(ahead) - behind) as u64
    }

    /// Makes the clock jump ahead.
    pub(crate) fn jump(&mut self, global_ns: u64, by_ns: u64) {
        self.jumps.push((global_ns, by_ns));
    }

    /// Stops the clock for a while, or longer if it stands already.
    pub(crate) fn stand(&mut self, global_ns: u64, for_ns: u64) {
        match self.stands.last_mut() {
            Some((_, until_ns)) if *until_ns >= global_ns => {
                *until_ns = (*until_ns).max(global_ns + for_ns);
            }
            _ => self.stands.push((global_ns, global_ns + for_ns)),
        }
    }

    /// Total time for which the clock stands from `from_ns` on, in global time. Time-outs of the
    /// host last longer by as much.
    pub(crate) fn stood_ns(&self, from_ns: u64) -> u64 {
        self.stands
            .iter()
            .map(|&(began_ns, ended_ns)| ended_ns.saturating_sub(began_ns.max(from_ns)))
            .sum()
    }

    /// End of the newest stop; 0 if there was none.
    pub(crate) fn runs_at_ns(&self) -> u64 {
        self.stands.last().map_or(0, |&(_, ended_ns)| ended_ns)
    }

    /// The first global time at which the clock reads `local_ns` or more.
    pub(crate) fn when(&self, local_ns: u64) -> u64 {
        if self.jumps.is_empty() && self.stands.is_empty() {
            let elapsed = i128::from(local_ns) - i128::from(self.offset_ns);
            let guess = elapsed * 1_000_000 / (1_000_000 + i128::from(self.skew_ppm));
            // The division rounds, so the search begins a little before the estimate.
            let mut global = guess.max(2) as u64 - 2;
            while self.read(global) < local_ns {
                global += 1;
            }
            return global;
        }
        // The clock never goes back, so the time can be cornered from both sides.
        let mut high = 1;
        while self.read(high) < local_ns {
            high *= 2;
        }
        let mut low = high / 2;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.read(middle) < local_ns {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
