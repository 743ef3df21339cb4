//! Injected network faults: some datagrams are lost, some arrive late and out of order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Maximum delay of a datagram.
const LATEST_NS: u64 = 1_000_000;

/// A delayed datagram: its delivery time, a number that keeps the order stable, the host's index,
/// the content.
type Held = Reverse<(u64, u64, usize, Vec<u8>)>;

/// One direction of the network between all hosts and the allocator.
#[derive(Debug)]
pub struct NetworkFaults {
    loss: f64,
    reorder: f64,
    rng: Pcg64Mcg,
    held: BinaryHeap<Held>,
    count: u64,
    /// Datagrams lost so far.
    pub lost: u64,
}

impl NetworkFaults {
    /// Creates a direction that loses and delays these shares of its datagrams.
    #[must_use]
    pub fn new(loss: f64, reorder: f64, seed: u64) -> Self {
        Self {
            loss,
            reorder,
            rng: Pcg64Mcg::seed_from_u64(seed),
            held: BinaryHeap::new(),
            count: 0,
            lost: 0,
        }
    }

    /// Returns true if a datagram is to be delivered at once. Another one is lost, or comes out of
    /// [`due`](Self::due) later.
    pub fn passes(&mut self, now_ns: u64, host: usize, datagram: &[u8]) -> bool {
        // No random draw without faults: the hot path of ordinary runs.
        if self.loss == 0.0 && self.reorder == 0.0 {
            return true;
        }
        if self.rng.random::<f64>() < self.loss {
            self.lost += 1;
            return false;
        }
        if self.rng.random::<f64>() >= self.reorder {
            return true;
        }
        let at_ns = now_ns + self.rng.random_range(1..=LATEST_NS);
        // Ties in time are broken by this number, so that runs repeat.
        self.count += 1;
        self.held
            .push(Reverse((at_ns, self.count, host, datagram.to_vec())));
        false
    }

    /// Takes the next datagram whose delay is over.
    pub fn due(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.held
            .pop()
            .map(|Reverse((_, _, host, bytes))| (host, bytes))
    }

    /// Returns the time at which [`due`](Self::due) has a datagram.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_was_asked_for_is_lost_and_the_rest_arrives_once() {
        let mut faults = NetworkFaults::new(0.3, 0.2, 7);
        let (mut direct, mut late) = (0, Vec::new());
        for number in 0..20_000u32 {
            let now_ns = u64::from(number) * 1_000;
            if faults.passes(now_ns, 1, &number.to_be_bytes()) {
                direct += 1;
            }
            while let Some((host, bytes)) = faults.due(now_ns) {
                assert_eq!(host, 1);
                late.push(bytes);
            }
        }
        while let Some((_, bytes)) = faults.due(u64::MAX) {
            late.push(bytes);
        }
        let lost = faults.lost as usize;
        assert!((5_700..6_300).contains(&lost), "{lost} of 20000 lost");
        assert_eq!(direct + late.len() + lost, 20_000);
        assert!((2_500..3_100).contains(&late.len()), "{} late", late.len());
        assert!(!late.is_sorted(), "late ones arrive out of order");
    }

    #[test]
    fn fair_weather_holds_nothing() {
        let mut faults = NetworkFaults::new(0.0, 0.0, 1);
        assert!(faults.passes(5, 0, b"x"));
        assert_eq!((faults.next_ns(), faults.lost), (None, 0));
    }
}
