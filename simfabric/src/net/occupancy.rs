//! Distribution over time of the bytes that a switch holds.
//!
//! Ports are lazy: a packet's departure is simulated late, though its time is exact. What a switch
//! holds is therefore known in order of time only once all of its ports have caught up. Until then
//! changes are kept as they come, and they are sorted then.

use crate::time::Time;

/// Changes from which on a switch's ports are to catch up.
const MANY: usize = 2_048;

/// Distribution over time of a number of bytes. Values below 64 are exact, others as much as 3 %
/// too high.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ByteDistribution {
    /// Picoseconds by bin.
    spans: Vec<u64>,
}

impl ByteDistribution {
    /// Bins for each power of two, as a power of two.
    const BITS: u32 = 5;
    /// Values with bins of their own.
    const EXACT: u64 = 2 << Self::BITS;

    fn bin(bytes: u64) -> usize {
        if bytes < Self::EXACT {
            return bytes as usize;
        }
        let shift = bytes.ilog2() - Self::BITS;
        // Of this power of two, 1.00000 to 1.11111 in binary.
        (u64::from(shift << Self::BITS) + (bytes >> shift)) as usize
    }

    /// Returns the greatest value of a bin.
    fn greatest(bin: usize) -> u64 {
        let bin = bin as u64;
        if bin < Self::EXACT {
            return bin;
        }
        let shift = (bin >> Self::BITS) - 1;
        let mantissa = bin - (shift << Self::BITS);
        ((mantissa + 1) << shift) - 1
    }

    fn add(&mut self, bytes: u64, span_ps: u64) {
        if span_ps == 0 {
            return;
        }
        let bin = Self::bin(bytes);
        if bin >= self.spans.len() {
            self.spans.resize(bin + 1, 0);
        }
        self.spans[bin] += span_ps;
    }

    /// Returns the bytes that were not exceeded for this share of the time.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let total: u64 = self.spans.iter().sum();
        let wanted = share * total as f64;
        let mut sum = 0;
        for (bin, span) in self.spans.iter().enumerate() {
            sum += span;
            // Share 0 is the least value that occurred.
            if sum > 0 && sum as f64 >= wanted {
                return Self::greatest(bin);
            }
        }
        0
    }
}

/// Bytes that a switch holds, over time.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    /// Changes since `since`, in any order.
    changes: Vec<(Time, i32)>,
    bytes: u64,
    since: Time,
    distribution: ByteDistribution,
}

impl Occupancy {
    /// Notes that bytes came, or left if below 0.
    #[inline]
    pub(crate) fn note(&mut self, at: Time, bytes: i32) {
        self.changes.push((at, bytes));
    }

    /// Returns true if the ports of the switch are to catch up.
    #[inline]
    pub(crate) fn has_many(&self) -> bool {
        self.changes.len() >= MANY
    }

    /// Accounts for the time until now; the ports of the switch have caught up.
    pub(crate) fn settle(&mut self, now: Time) {
        self.changes.sort_unstable();
        // At one moment what leaves is ahead of what comes; neither lasts.
        for (at, bytes) in self.changes.drain(..) {
            let span = at.since(self.since);
            self.distribution.add(self.bytes, span.0);
            self.since = at;
            self.bytes = self.bytes.wrapping_add_signed(bytes.into());
        }
        self.distribution.add(self.bytes, now.since(self.since).0);
        self.since = now;
    }

    /// Forgets what was accounted for, at the end of a warm-up.
    pub(crate) fn reset(&mut self) {
        self.distribution = ByteDistribution::default();
    }

    pub(crate) fn distribution(&self) -> &ByteDistribution {
        &self.distribution
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn changes_count_in_the_order_of_their_times() {
        let mut occupancy = Occupancy::default();
        occupancy.note(Time(100), 50);
        occupancy.note(Time(400), 10);
        // A departure that was simulated late.
        occupancy.note(Time(200), -50);
        occupancy.settle(Time(1_000));
        // 0 for 100 + 200, 50 for 100, 10 for 600.
        let quantiles = [0.0, 0.3, 0.31, 0.9, 0.91, 1.0];
        let found = quantiles.map(|share| occupancy.distribution().quantile(share));
        assert_eq!(found, [0, 0, 10, 10, 50, 50]);
        occupancy.reset();
        occupancy.settle(Time(1_100));
        assert_eq!(occupancy.distribution().quantile(0.0), 10);
    }

    proptest! {
        #[test]
        fn a_bin_holds_values_within_3_percent(bytes in 0_u64..1 << 50) {
            let bin = ByteDistribution::bin(bytes);
            let greatest = ByteDistribution::greatest(bin);
            prop_assert!(bytes <= greatest && greatest <= bytes + bytes / 32);
            prop_assert_eq!(ByteDistribution::bin(greatest), bin);
            prop_assert_eq!(ByteDistribution::bin(greatest + 1), bin + 1);
        }
    }
}
