//! Duration of attempts to connect, and of the pauses between them; sans-IO.
//!
//! An absent allocator and an overloaded one ask for different behaviour. Without any answer, a
//! host tries again soon; the longer the absence, the rarer its attempts and the longer each waits.
//! So a restart is noticed within a small part of the absence, and a fleet converges however slow
//! the allocator's machine is. A host that hears "busy" knows that the allocator is present. Its
//! next attempt waits much longer, and costs the allocator nothing until its turn comes.

use std::time::Duration;

/// An attempt waits for the time without a session divided by this number.
const PATIENCE_PART: u32 = 4;

/// Pauses last for at most this part of the time without a session.
const PAUSE_PART: u32 = 8;

/// Factor by which an attempt waits longer than the last one that met a busy allocator.
const BUSY_FACTOR: u32 = 4;

/// Pauses after such an attempt last for at most the next one's handshake time-out divided by this
/// number.
const BUSY_PAUSE_PART: u32 = 4;

/// Growing pauses with jitter, so that a fleet does not knock in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    ceiling: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// Makes pauses that grow from at most `min` to at most `max`; `seed` makes hosts differ.
    #[must_use]
    pub fn new(min: Duration, max: Duration, seed: u64) -> Self {
        Self {
            min,
            max,
            ceiling: min,
            jitter: Jitter(seed),
        }
    }

    /// Returns the next pause: between half the ceiling and the ceiling, which then doubles.
    pub fn next_pause(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(self.max);
        ceiling / 2 + (ceiling / 2).mul_f64(self.jitter.uniform())
    }

    /// Restarts with the shortest pause, after a success.
    pub fn reset(&mut self) {
        self.ceiling = self.min;
    }
}

#[derive(Debug, Clone)]
struct Jitter(u64);

impl Jitter {
    /// Returns the next number of SplitMix64 in [0, 1).
    #[allow(clippy::cast_precision_loss)] // 53 bits fit a double
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Bounds of [`Persistence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PersistenceConfig {
    /// Duration of the first attempt.
    pub min_patience: Duration,
    /// Longest duration of an attempt.
    pub max_patience: Duration,
    /// The first pause, at most.
    pub min_pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
}

impl Default for PersistenceConfig {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            min_patience: ms(250),
            max_patience: ms(4_000),
            min_pause: ms(20),
            max_pause: ms(2_000),
        }
    }
}

/// Factor by which the Welcome, with the topology in it, may take longer than the handshake.
const WELCOME_PART: u32 = 4;

/// Failure of a round of attempts, one per address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// There was no answer, or the connection broke.
    Lost,
    /// An allocator answered that it is busy.
    Busy,
}

/// Schedule of attempts: the duration of the next one, and the pause before it; see the
/// [module](self).
#[derive(Debug, Clone)]
pub struct Persistence {
    config: PersistenceConfig,
    failing_since_ns: Option<u64>,
    /// Shortest duration of attempts since an allocator was last busy.
    busy: Option<Duration>,
    jitter: Jitter,
}

impl Persistence {
    /// Makes the schedule before the first attempt; `seed` makes hosts differ.
    #[must_use]
    pub fn new(config: PersistenceConfig, seed: u64) -> Self {
        Self {
            config,
            failing_since_ns: None,
            busy: None,
            jitter: Jitter(seed),
        }
    }

    fn failing_for(&self, now_ns: u64) -> Duration {
        let since_ns = self.failing_since_ns.unwrap_or(now_ns);
        Duration::from_nanos(now_ns.saturating_sub(since_ns))
    }

    /// Returns the duration of an attempt that begins now.
    #[must_use]
    pub fn patience(&self, now_ns: u64) -> Duration {
        let PersistenceConfig {
            min_patience: min,
            max_patience: max,
            ..
        } = self.config;
        let lost = self.failing_for(now_ns) / PATIENCE_PART;
        // A configured maximum below the minimum must not make `clamp` panic.
        lost.max(self.busy.unwrap_or(min)).clamp(min, max.max(min))
    }

    /// Returns the time that an attempt waits for its turn, once it has heard that the allocator is
    /// present: the allocator first asks each host to prove its address. A host that left now would
    /// lose its place, and cost the allocator the same again.
    #[must_use]
    pub fn queue_patience(&self, now_ns: u64) -> Duration {
        self.patience(now_ns).max(self.config.max_patience)
    }

    /// Returns the time that a Hello waits for its answer: an allocator that takes long for one
    /// step takes long for the next.
    #[must_use]
    pub fn welcome_patience(&self, now_ns: u64) -> Duration {
        (self.patience(now_ns) * WELCOME_PART).max(self.config.max_patience)
    }

    /// Notes a failed round of attempts, and returns the pause before the next one.
    pub fn failed(&mut self, now_ns: u64, failure: Failure) -> Duration {
        self.failing_since_ns.get_or_insert(now_ns);
        let PersistenceConfig {
            min_pause: min,
            max_pause: max,
            ..
        } = self.config;
        match failure {
            // Half of the pause is random, so a fleet that lost its allocator at once spreads out.
            Failure::Lost => {
                let ceiling = (self.failing_for(now_ns) / PAUSE_PART).clamp(min, max.max(min));
                ceiling / 2 + (ceiling / 2).mul_f64(self.jitter.uniform())
            }
            Failure::Busy => {
                let patience = self.patience(now_ns) * BUSY_FACTOR;
                // Kept until a success: the allocator's load outlasts this attempt.
                self.busy = Some(patience.min(self.config.max_patience));
                // Spread over the whole range: hosts that heard "busy" together must not come back
                // together.
                let ceiling = self.patience(now_ns) / BUSY_PAUSE_PART;
                ceiling
                    .clamp(min, max.max(min))
                    .mul_f64(self.jitter.uniform())
            }
        }
    }

    /// Notes that a session exists.
    pub fn succeeded(&mut self) {
        self.failing_since_ns = None;
        self.busy = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_to_the_cap_with_jitter_below_half() {
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
        let pause = |seed| {
            let mut persistence = Persistence::new(PersistenceConfig::default(), seed);
            persistence.failed(0, Failure::Busy)
        };
        assert!(pause(1) != pause(2) && pause(2) != pause(3));
    }

    /// Attempts at an allocator that never answers: beginning, duration, and the pause that
    /// follows.
    fn unanswered(until_ns: u64) -> Vec<(u64, Duration, Duration)> {
        let mut persistence = Persistence::new(PersistenceConfig::default(), 3);
        let (mut now_ns, mut attempts) = (0, Vec::new());
        while now_ns < until_ns {
            let began_ns = now_ns;
            let patience = persistence.patience(now_ns);
            now_ns += patience.as_nanos() as u64;
            let pause = persistence.failed(now_ns, Failure::Lost);
            now_ns += pause.as_nanos() as u64;
            attempts.push((began_ns, patience, pause));
        }
        attempts
    }

    #[test]
    fn an_allocator_that_is_back_is_noticed_within_a_part_of_its_absence() {
        for (began_ns, patience, pause) in unanswered(20_000 * MS) {
            let away = Duration::from_nanos(began_ns) + patience;
            assert!(
                patience <= (away / 4).max(ms(250)),
                "{patience:?} after {away:?}"
            );
            assert!(pause <= (away / 8).max(ms(20)), "{pause:?} after {away:?}");
        }
    }

    #[test]
    fn patience_and_pauses_grow_to_seconds() {
        let attempts = unanswered(200_000 * MS);
        assert_eq!(attempts[0].1, ms(250));
        let (_, patience, pause) = attempts.last().expect("some");
        assert_eq!(*patience, ms(4_000));
        assert!(*pause >= ms(1_000) && *pause <= ms(2_000));
        // An absence of minutes costs the network little.
        assert!(attempts.len() < 80, "{} attempts", attempts.len());
    }

    #[test]
    fn a_busy_allocator_is_waited_for_and_success_forgets_it() {
        let mut persistence = Persistence::new(PersistenceConfig::default(), 5);
        for (patience, pause) in [(250, 250), (1_000, 1_000), (4_000, 1_000)] {
            assert_eq!(persistence.patience(0), ms(patience));
            assert!(persistence.failed(0, Failure::Busy) <= ms(pause));
        }
        persistence.succeeded();
        assert_eq!(persistence.patience(0), ms(250));
        assert!(persistence.failed(0, Failure::Lost) <= ms(20));
    }
}
