//! Pauses between attempts: exponential with jitter, so that a fleet does not knock in step.

use std::time::Duration;

/// The next pause, and how it grows.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    ceiling: Duration,
    random: u64,
}

impl Backoff {
    /// Pauses from `min` (at most) to `max` (at most); `seed` makes hosts differ.
    #[must_use]
    pub fn new(min: Duration, max: Duration, seed: u64) -> Self {
        Self {
            min,
            max,
            ceiling: min,
            random: seed,
        }
    }

    /// The next pause: between half the ceiling and the ceiling, which doubles.
    pub fn next_pause(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(self.max);
        ceiling / 2 + (ceiling / 2).mul_f64(self.uniform())
    }

    /// After a success.
    pub fn reset(&mut self) {
        self.ceiling = self.min;
    }

    /// SplitMix64, as a number in [0, 1).
    #[allow(clippy::cast_precision_loss)] // 53 bits fit a double
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_cap_with_jitter_below_half() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(20), ms(150), 1);
        for ceiling in [20, 40, 80, 150, 150] {
            let pause = backoff.next_pause();
            assert!(
                pause >= ms(ceiling) / 2 && pause <= ms(ceiling),
                "{pause:?} for {ceiling} ms"
            );
        }
        backoff.reset();
        assert!(backoff.next_pause() <= ms(20));
    }

    #[test]
    fn hosts_differ() {
        let pause =
            |seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(1), seed).next_pause();
        assert!(pause(1) != pause(2) && pause(2) != pause(3));
    }
}
