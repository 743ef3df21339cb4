//! Slow motion: a fabric whose links are slower than those that it stands for.
//!
//! The flowlets of 4,096 hosts at 10 Gbit/s are tens of millions a second, more than one machine
//! can play. A swarm plays them on links that are slower by a factor and keeps everything else in
//! proportion: what the protocol does once in some time, and not once for some flowlet, is
//! stretched by the same factor, so that control traffic is the same share of the links' capacity
//! as on the fabric that is meant. Left as they are, leases of 300 ms would run out ten thousand
//! times as often, measured in flowlets.

use std::time::Duration;

use ratewright_allocator::service::config::Allocation;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S};

/// Least time between two rate updates to a host on the fabric that is meant: what an iteration
/// takes for 4,608 hosts and 49,152 flows, on the paper's 64 cores (flowtune §5.2, 30.71 µs) as on
/// two with this engine. The paper's simulated allocator iterates every 10 µs (§5.3).
const UPDATE_INTERVAL: Duration = Duration::from_micros(30);
/// The most that the allocator's configuration takes.
const MOST_LEASE: Duration = Duration::from_secs(10);
const MOST_LIVENESS: Duration = Duration::from_secs(60);
const MOST_UPDATE_INTERVAL: Duration = Duration::from_secs(10);

/// Times of sessions, stretched by the factor by which the fabric is slower than the one that it
/// stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeDilation {
    /// Factor of the slow-down; 1 for none.
    pub slow_motion: f64,
    /// Lifetime of a rate that the allocator does not renew.
    pub lease: Duration,
    /// Liveness time-out of either end.
    pub liveness: Duration,
    /// Longest delay of an acknowledgement that no peer waits for.
    pub ack_delay: Duration,
    /// Least time between two datagrams that a host is sent for later rates.
    pub update_interval: Duration,
}

impl TimeDilation {
    /// As it is: the allocator's defaults.
    #[must_use]
    pub fn usual() -> Self {
        let allocation = Allocation::default();
        Self {
            slow_motion: 1.0,
            lease: Duration::from_millis(allocation.lease_ms),
            liveness: Duration::from_millis(allocation.liveness_ms),
            ack_delay: Duration::from_millis(allocation.ack_delay_ms),
            update_interval: Duration::from_micros(allocation.update_interval_us),
        }
    }

    /// `slow_motion` times slower, as far as the allocator's configuration takes it;
    /// [`usual`](Self::usual) for factors that are not above 1.
    #[must_use]
    pub fn slower(slow_motion: f64) -> Self {
        let usual = Self::usual();
        if slow_motion.is_nan() || slow_motion <= 1.0 {
            return usual;
        }
        let slowed = |usual: Duration, most: Duration| {
            Duration::try_from_secs_f64(usual.as_secs_f64() * slow_motion)
                .map_or(most, |slowed| slowed.min(most))
        };
        let lease = slowed(usual.lease, MOST_LEASE);
        // The allocator's configuration takes no liveness below two leases.
        let liveness = slowed(usual.liveness, MOST_LIVENESS).max(2 * lease);
        Self {
            slow_motion,
            lease,
            liveness,
            // An acknowledgement later than the liveness time-out would come too late.
            ack_delay: slowed(usual.ack_delay, liveness),
            // From the fabric that is meant and not from the default, which is that of a real
            // allocator.
            update_interval: slowed(UPDATE_INTERVAL, MOST_UPDATE_INTERVAL),
        }
    }

    /// Its keys and values of the allocator's `[allocation]` table; none for what is usual.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, u128)> {
        // The defaults need no lines, and stay those of the allocator's own version.
        if *self == Self::usual() {
            return Vec::new();
        }
        vec![
            ("lease_ms", self.lease.as_millis()),
            ("liveness_ms", self.liveness.as_millis()),
            ("ack_delay_ms", self.ack_delay.as_millis()),
            ("update_interval_us", self.update_interval.as_micros()),
        ]
    }

    /// [`ack_delay`](Self::ack_delay) in nanoseconds.
    #[must_use]
    pub fn ack_delay_ns(&self) -> u64 {
        self.ack_delay.as_nanos() as u64
    }

    /// Returns the time without rates after which a host has every rate, once nothing changes. It
    /// is longer than the allocator holds a rate back because earlier ones are unacknowledged or
    /// were sent a moment ago.
    #[must_use]
    pub fn quiet_ns(&self) -> u64 {
        let prompt_ack_delay_ns =
            ratewright_proto::datagram::prompt_ack_delay_ns(self.ack_delay_ns());
        300 * NS_PER_MS + prompt_ack_delay_ns + self.update_interval.as_nanos() as u64
    }

    /// Returns the limit of a wait for [`quiet_ns`](Self::quiet_ns): rates that have not settled
    /// are sent again and again.
    #[must_use]
    pub fn quiet_patience_ns(&self) -> u64 {
        10 * NS_PER_S + 10 * self.quiet_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_grow_with_the_factor_up_to_what_the_allocator_takes() {
        let dilation = TimeDilation::slower(10.0);
        assert_eq!(dilation.lease, Duration::from_secs(3));
        assert_eq!(dilation.ack_delay, Duration::from_millis(200));
        assert_eq!(dilation.update_interval, Duration::from_micros(300));
        let dilation = TimeDilation::slower(16_000.0);
        assert_eq!(dilation.lease, Duration::from_secs(10));
        assert_eq!(dilation.liveness, Duration::from_secs(60));
        assert_eq!(dilation.ack_delay, dilation.liveness);
        assert_eq!(dilation.update_interval, Duration::from_millis(480));
        assert_eq!(
            TimeDilation::slower(f64::INFINITY).lease,
            Duration::from_secs(10)
        );
    }

    #[test]
    fn what_is_not_slower_is_as_usual() {
        for factor in [f64::NAN, -1.0, 0.0, 1.0] {
            assert_eq!(TimeDilation::slower(factor), TimeDilation::usual());
            assert!(TimeDilation::slower(factor).settings().is_empty());
        }
    }
}
