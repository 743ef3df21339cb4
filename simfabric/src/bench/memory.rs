//! Memory latency of this machine: the time of a cache line that is waited for, and of one among
//! many prefetched ones. A packet-hop touches some fifteen lines.

use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::cache::prefetch;
use crate::rng::{Purpose, Stream};

/// Distance, in lines, between the line that is prefetched and the one that is touched.
const AHEAD: usize = 32;

/// One cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct CacheLine {
    /// The next one of a ring through all of them.
    next: u32,
    touched: u32,
}

/// Cache lines in a row, and an order in which they are touched.
#[derive(Debug)]
pub struct CacheLines {
    lines: Vec<CacheLine>,
    order: Vec<u32>,
}

impl CacheLines {
    /// Allocates `bytes` bytes of lines, at least one line. The seed determines the order of the
    /// ring.
    #[must_use]
    pub fn new(bytes: usize, seed: u64) -> Self {
        let count = (bytes / size_of::<CacheLine>()).clamp(1, u32::MAX as usize);
        let mut rng = Stream::new(seed, Purpose::Test, 0);
        let mut ring: Vec<u32> = (0..count as u32).collect();
        ring.shuffle(&mut rng);
        let mut lines = vec![CacheLine::default(); count];
        // One cycle through all lines: a random successor function would close early, and its short
        // cycle would fit into the cache.
        for (i, line) in ring.iter().enumerate() {
            lines[*line as usize].next = ring[(i + 1) % count];
        }
        let order = (0..1 << 16)
            .map(|_| rng.random_range(0..count as u32))
            .collect();
        Self { lines, order }
    }

    /// Follows the ring for `steps` steps and returns the line where it ended. Each line holds the
    /// number of the next, so that no load can begin before the one before it is done.
    #[must_use]
    pub fn chase(&self, steps: usize) -> u32 {
        (0..steps).fold(0, |at, _| self.lines[at as usize].next)
    }

    /// Changes `steps` lines at random places, each prefetched `AHEAD` lines before.
    pub fn touch(&mut self, steps: usize) {
        let mut shift = 0_u32;
        let count = self.lines.len() as u32;
        for step in 0..steps {
            let here = step % self.order.len();
            if here == 0 {
                // Other lines in each round.
                // A prime step, so that rounds do not repeat the same lines.
                shift = (shift + 7_919) % count;
            }
            let place = |index: usize| {
                let place = self.order[index % self.order.len()] + shift;
                if place < count { place } else { place - count }
            };
            prefetch::<_, 1>(&self.lines[place(step + AHEAD) as usize]);
            let line = place(step) as usize;
            self.lines[line].touched = self.lines[line].touched.wrapping_add(1);
        }
    }

    /// Number of changes to lines so far.
    #[must_use]
    pub fn touched(&self) -> u64 {
        self.lines.iter().map(|line| u64::from(line.touched)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_leads_through_all_lines() {
        let lines = CacheLines::new(64 * 100, 1);
        let mut seen: Vec<u32> = (0..100).map(|steps| lines.chase(steps)).collect();
        assert_eq!(lines.chase(100), lines.chase(0));
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn every_step_changes_one_line() {
        let mut lines = CacheLines::new(64 * 1_000, 1);
        lines.touch(100_000);
        assert_eq!(lines.touched(), 100_000);
    }
}
