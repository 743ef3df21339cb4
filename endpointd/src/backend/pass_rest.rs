//! Rest between passes over the sockets, which bounds the share of the daemon's time that they
//! take. One pass walks over the machine's whole table of sockets.

/// Time that passes rest, in times that the last one took.
const REST_PER_PASS: u64 = 20;

/// Rest after the last pass.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PassRest {
    until_ns: u64,
}

impl PassRest {
    /// Begins after a pass that ended at `ended_ns` and took `took_ns`. It lasts for `pause_ns`, or
    /// for twenty times as long as the pass took, if that is longer.
    pub(super) fn begin(&mut self, ended_ns: u64, took_ns: u64, pause_ns: u64) {
        let rest_ns = pause_ns.max(took_ns.saturating_mul(REST_PER_PASS));
        self.until_ns = ended_ns.saturating_add(rest_ns);
    }

    /// Returns the time from which the next pass may begin.
    pub(super) fn until_ns(self) -> u64 {
        self.until_ns
    }

    /// Returns true if a pass may begin at `now_ns`.
    pub(super) fn is_over(self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_rest_for_the_pause_or_for_twenty_times_their_length() {
        let mut rest = PassRest::default();
        assert!(rest.is_over(0), "the first pass need not wait");
        for (took_ns, until_ns) in [(0, 1_100), (5, 1_100), (6, 1_120), (1_000, 21_000)] {
            rest.begin(1_000, took_ns, 100);
            assert_eq!(rest.until_ns(), until_ns, "after {took_ns} ns");
            assert!(!rest.is_over(until_ns - 1) && rest.is_over(until_ns));
        }
    }
}
