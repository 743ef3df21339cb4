//! Choice of a client's datagram path: QUIC until sealed datagrams are known to get through in both
//! directions, and QUIC again once they no longer do.
//!
//! A peer that answers late is busy, not cut off, and QUIC costs it many times as much. Hosts that
//! fell back to QUIC because an allocator is overloaded would keep it overloaded. The answer
//! time-out therefore grows with the measured answer time.
//!
//! Only the client decides; the server answers on the path that the client used last. Both paths
//! carry one sequence of numbers and acknowledgements, so the protocol repairs everything that a
//! change loses.
//!
//! ```text
//!             probe answered
//!   Probing ─────────────────► Up        Probing: QUIC, a probe now and then
//!      ▲                        │        Up: sealed
//!      └── unanswered too long ─┘
//! ```

use crate::datagram::flags;

/// Path of a client's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramPath {
    /// QUIC datagrams.
    Quic,
    /// Sealed datagrams.
    Sealed,
}

/// Timing of probes, and of the fallback from the sealed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConfig {
    /// Time to the second probe; it doubles with each further one.
    pub probe_ns: u64,
    /// Longest time between probes.
    pub max_probe_ns: u64,
    /// Time without an answer to an ack-eliciting datagram after which the path counts as blocked.
    /// A fraction of a lease, so that no rate expires. Where answers take longer than usual, it is
    /// four times the measured answer time, up to [`MAX_TIMEOUT_FACTOR`] times this value.
    pub answer_timeout_ns: u64,
}

/// Largest multiple of the configured answer time-out. With the defaults, that is half of the time
/// after which a session without any answer is given up, so QUIC is tried before that.
pub const MAX_TIMEOUT_FACTOR: u64 = 5;

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            probe_ns: 2_000_000,
            max_probe_ns: 1_000_000_000,
            answer_timeout_ns: 100_000_000,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathPhase {
    Probing {
        next_ns: u64,
        wait_ns: u64,
    },
    Up {
        unanswered_ns: Option<u64>,
        /// The time-out was extended once already.
        extended: bool,
    },
}

/// Selector of the datagram path; sans-IO.
#[derive(Debug, Clone)]
pub struct PathSelector {
    config: PathConfig,
    phase: PathPhase,
    /// Measured answer time: rises at once and falls by an eighth with each answer.
    answer_ns: u64,
    fallbacks: u64,
}

/// Returns true if a datagram of either end asks for an answer.
pub fn is_ack_eliciting(datagram: &[u8]) -> bool {
    datagram
        .get(1)
        .is_some_and(|bits| bits & flags::ACK_ELICITING != 0)
}

impl PathSelector {
    /// Makes the selector of a new session: a probe is due at once.
    pub fn new(now_ns: u64, config: PathConfig) -> Self {
        Self {
            phase: PathPhase::Probing {
                next_ns: now_ns,
                wait_ns: config.probe_ns,
            },
            config,
            answer_ns: 0,
            fallbacks: 0,
        }
    }

    /// Time without an answer after which the path counts as blocked at present.
    fn answer_timeout_ns(&self) -> u64 {
        let usual_ns = self.config.answer_timeout_ns;
        let most_ns = usual_ns.saturating_mul(MAX_TIMEOUT_FACTOR);
        self.answer_ns.saturating_mul(4).clamp(usual_ns, most_ns)
    }

    /// Path of the next datagram.
    pub fn path(&self) -> DatagramPath {
        match self.phase {
            PathPhase::Probing { .. } => DatagramPath::Quic,
            PathPhase::Up { .. } => DatagramPath::Sealed,
        }
    }

    /// Records a datagram that was sent on the sealed path.
    pub fn sent(&mut self, now_ns: u64, ack_eliciting: bool) {
        if let PathPhase::Up { unanswered_ns, .. } = &mut self.phase
            && ack_eliciting
        {
            // The oldest unanswered datagram counts, or a busy sender would never notice a blocked
            // path.
            unanswered_ns.get_or_insert(now_ns);
        }
    }

    /// Records a sealed datagram that was opened. Returns true if the path has just come up.
    pub fn heard(&mut self, now_ns: u64) -> bool {
        let was_up = matches!(self.phase, PathPhase::Up { .. });
        if let PathPhase::Up {
            unanswered_ns: Some(since_ns),
            ..
        } = self.phase
        {
            // Counted from the oldest unanswered datagram: an upper bound of the answer time.
            let took_ns = now_ns.saturating_sub(since_ns);
            self.answer_ns = took_ns.max(self.answer_ns - self.answer_ns / 8);
        }
        self.phase = PathPhase::Up {
            unanswered_ns: None,
            extended: false,
        };
        !was_up
    }

    /// Time of the next [`on_timeout`](Self::on_timeout).
    pub fn next_timeout(&self) -> Option<u64> {
        match self.phase {
            PathPhase::Probing { next_ns, .. } => Some(next_ns),
            PathPhase::Up { unanswered_ns, .. } => {
                Some(unanswered_ns?.saturating_add(self.answer_timeout_ns()))
            }
        }
    }

    /// Handles timers that are due at `now_ns`. Returns true if a probe, an empty sealed datagram,
    /// is to be sent.
    pub fn on_timeout(&mut self, now_ns: u64) -> bool {
        let Some(late_ns) = self
            .next_timeout()
            .and_then(|at_ns| now_ns.checked_sub(at_ns))
        else {
            return false;
        };
        // The extension leaves a quarter of the time-out to read what has arrived.
        let quarter_ns = self.answer_timeout_ns() / 4;
        if let PathPhase::Up {
            unanswered_ns,
            extended: extended @ false,
        } = &mut self.phase
            && late_ns > quarter_ns
        {
            // A caller this late was not running: the answer may have arrived and be unread.
            *extended = true;
            *unanswered_ns = Some(now_ns.saturating_sub(3 * quarter_ns));
            return false;
        }
        let wait_ns = match self.phase {
            PathPhase::Probing { wait_ns, .. } => wait_ns,
            PathPhase::Up { .. } => {
                self.fallbacks += 1;
                self.config.probe_ns
            }
        };
        self.phase = PathPhase::Probing {
            next_ns: now_ns.saturating_add(wait_ns),
            // Back-off: a path that a firewall blocks costs one probe per `max_probe_ns`.
            wait_ns: wait_ns.saturating_mul(2).min(self.config.max_probe_ns),
        };
        true
    }

    /// Number of fallbacks to QUIC.
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn datagrams_go_by_quic_until_a_probe_is_answered() {
        let mut path = PathSelector::new(0, PathConfig::default());
        assert_eq!(path.path(), DatagramPath::Quic);
        assert!(path.on_timeout(0), "the first probe is due at once");
        assert!(!path.on_timeout(MS));
        assert!(path.on_timeout(2 * MS));
        assert_eq!(path.path(), DatagramPath::Quic);
        assert!(path.heard(2 * MS));
        assert_eq!(path.path(), DatagramPath::Sealed);
        assert_eq!(path.next_timeout(), None, "nothing waits for an answer");
    }

    #[test]
    fn a_blocked_path_is_probed_ever_more_rarely() {
        let config = PathConfig::default();
        let mut path = PathSelector::new(0, config);
        let mut before_ns = 0;
        let mut gaps_ns = Vec::new();
        for _ in 0..12 {
            let at_ns = path.next_timeout().expect("a probe is always planned");
            gaps_ns.push(at_ns - before_ns);
            before_ns = at_ns;
            assert!(path.on_timeout(at_ns));
            assert_eq!(path.path(), DatagramPath::Quic);
        }
        assert!(gaps_ns.is_sorted());
        assert_eq!(gaps_ns.last(), Some(&config.max_probe_ns));
        assert_eq!(path.fallbacks(), 0, "it was never up");
    }

    #[test]
    fn silence_falls_back_only_where_an_answer_is_due() {
        let config = PathConfig::default();
        let mut path = PathSelector::new(0, config);
        path.heard(0);
        path.sent(0, false);
        assert_eq!(path.next_timeout(), None, "acknowledgements get no answer");
        path.sent(MS, true);
        path.sent(40 * MS, true);
        assert_eq!(
            path.next_timeout(),
            Some(MS + config.answer_timeout_ns),
            "the oldest unanswered one counts"
        );
        assert!(!path.on_timeout(config.answer_timeout_ns));
        assert!(path.on_timeout(MS + config.answer_timeout_ns));
        assert_eq!((path.path(), path.fallbacks()), (DatagramPath::Quic, 1));
        assert!(path.heard(200 * MS), "an answer to a probe brings it back");
        assert_eq!(path.path(), DatagramPath::Sealed);
    }

    #[test]
    fn who_answers_late_is_given_more_time_but_not_without_end() {
        let config = PathConfig::default();
        let mut path = PathSelector::new(0, config);
        path.heard(0);
        for (took_ns, answer_timeout_ns) in [
            (20 * MS, 100 * MS),
            (80 * MS, 320 * MS),
            (90 * MS, 360 * MS),
            (400 * MS, 500 * MS),
        ] {
            path.sent(MS, true);
            path.heard(MS + took_ns);
            path.sent(MS, true);
            assert_eq!(
                path.next_timeout(),
                Some(MS + answer_timeout_ns),
                "{took_ns}"
            );
        }
        // Prompt answers bring the usual timeout back.
        for _ in 0..32 {
            path.sent(MS, true);
            path.heard(MS + 1);
        }
        path.sent(MS, true);
        assert_eq!(path.next_timeout(), Some(MS + config.answer_timeout_ns));
    }

    #[test]
    fn who_was_not_running_gets_a_little_more_time_to_read_the_answer_but_only_once() {
        let config = PathConfig::default();
        let mut path = PathSelector::new(0, config);
        path.heard(0);
        path.sent(0, true);
        assert!(!path.on_timeout(1_000 * MS));
        assert_eq!(path.path(), DatagramPath::Sealed);
        let again_ns = path.next_timeout().expect("an answer is still due");
        assert!(again_ns > 1_000 * MS && again_ns < 1_000 * MS + config.answer_timeout_ns);
        assert!(path.on_timeout(again_ns + 1_000 * MS));
        assert_eq!(path.path(), DatagramPath::Quic);
    }
}
