//! Clocks that are neither set alike nor run alike.

/// A host's monotonic clock: `offset + t + t · skew`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) offset_ns: u64,
    pub(crate) skew_ppm: i64,
}

impl Clock {
    /// The clock's reading at global time `global_ns`.
    pub(crate) fn read(&self, global_ns: u64) -> u64 {
        let drift = i128::from(global_ns) * i128::from(self.skew_ppm) / 1_000_000;
        (i128::from(self.offset_ns) + i128::from(global_ns) + drift) as u64
    }

    /// The first global time at which the clock reads `local_ns` or more.
    pub(crate) fn when(&self, local_ns: u64) -> u64 {
        let elapsed = i128::from(local_ns) - i128::from(self.offset_ns);
        let guess = elapsed * 1_000_000 / (1_000_000 + i128::from(self.skew_ppm));
        let mut global = guess.max(2) as u64 - 2;
        while self.read(global) < local_ns {
            global += 1;
        }
        global
    }
}
