//! Which transport a client's datagrams take: QUIC until sealed datagrams are
//! known to get through in both directions, QUIC again once they no longer do.
//!
//! An end that answers late is busy, not cut off, and QUIC costs it many times
//! as much: hosts that changed over to QUIC because an allocator is overloaded
//! would keep it so. The timeout grows with the time that answers take.
//!
//! Only the client decides; the server answers on the path on which it was
//! last addressed. A session's numbers and acknowledgements are the same on
//! both paths, so nothing is lost by a change that the protocol does not
//! repair.
//!
//! ```text
//!             probe answered
//!   Probing ─────────────────► Up        Probing: QUIC, a probe now and then
//!      ▲                        │        Up: sealed
//!      └── unanswered too long ─┘
//! ```

use crate::datagram::flags;

/// Where a client's datagrams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramPath {
    /// QUIC datagrams.
    Quic,
    /// Sealed datagrams.
    Sealed,
}

/// When to probe, and when to give the sealed path up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConfig {
    /// Time to the second probe; each further one waits twice as long.
    pub probe_ns: u64,
    /// Longest time between probes.
    pub max_probe_ns: u64,
    /// Silence after something that asks for an answer from which on the path
    /// counts as blocked. A fraction of a lease, so that no rate runs out.
    /// Where answers take longer than usual, four times what they take, and
    /// [`MAX_TIMEOUT_FACTOR`] times this at most.
    pub answer_timeout_ns: u64,
}

/// How many times its usual length the timeout can become: with the default, half of the time after which a
/// session without any answer is given up, so that QUIC is tried before that.
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
        /// The timeout was extended already.
        extended: bool,
    },
}

/// The choice of the path; sans-IO.
#[derive(Debug, Clone)]
pub struct PathSelector {
    config: PathConfig,
    phase: PathPhase,
    /// What answers take: rises at once and falls by an eighth with each.
    answer_ns: u64,
    fallbacks: u64,
}

/// Whether a datagram of either end asks for an answer.
pub fn is_ack_eliciting(datagram: &[u8]) -> bool {
    datagram
        .get(1)
        .is_some_and(|bits| bits & flags::ACK_ELICITING != 0)
}

impl PathSelector {
    /// A new session's: a probe is due at once.
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

    /// Silence after something that asks for an answer from which on the path counts as blocked.
    fn answer_timeout_ns(&self) -> u64 {
        let usual_ns = self.config.answer_timeout_ns;
        let most_ns = usual_ns.saturating_mul(MAX_TIMEOUT_FACTOR);
        self.answer_ns.saturating_mul(4).clamp(usual_ns, most_ns)
    }

    /// Where the next datagram goes.
    pub fn path(&self) -> DatagramPath {
        match self.phase {
            PathPhase::Probing { .. } => DatagramPath::Quic,
            PathPhase::Up { .. } => DatagramPath::Sealed,
        }
    }

    /// A datagram was sent on the sealed path.
    pub fn sent(&mut self, now_ns: u64, ack_eliciting: bool) {
        if let PathPhase::Up { unanswered_ns, .. } = &mut self.phase
            && ack_eliciting
        {
            unanswered_ns.get_or_insert(now_ns);
        }
    }

    /// A sealed datagram was opened. True if the path has just come up.
    pub fn heard(&mut self, now_ns: u64) -> bool {
        let was_up = matches!(self.phase, PathPhase::Up { .. });
        if let PathPhase::Up {
            unanswered_ns: Some(since_ns),
            ..
        } = self.phase
        {
            let took_ns = now_ns.saturating_sub(since_ns);
            self.answer_ns = took_ns.max(self.answer_ns - self.answer_ns / 8);
        }
        self.phase = PathPhase::Up {
            unanswered_ns: None,
            extended: false,
        };
        !was_up
    }

    /// When [`on_timeout`](Self::on_timeout) is to be called.
    pub fn next_timeout(&self) -> Option<u64> {
        match self.phase {
            PathPhase::Probing { next_ns, .. } => Some(next_ns),
            PathPhase::Up { unanswered_ns, .. } => {
                Some(unanswered_ns?.saturating_add(self.answer_timeout_ns()))
            }
        }
    }

    /// Time has passed. True: send a probe, which is an empty sealed datagram.
    pub fn on_timeout(&mut self, now_ns: u64) -> bool {
        let Some(late_ns) = self
            .next_timeout()
            .and_then(|at_ns| now_ns.checked_sub(at_ns))
        else {
            return false;
        };
        let quarter_ns = self.answer_timeout_ns() / 4;
        if let PathPhase::Up {
            unanswered_ns,
            extended: extended @ false,
        } = &mut self.phase
            && late_ns > quarter_ns
        {
            // Who is called so late was not running: the answer may be there, and not be read yet.
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
            wait_ns: wait_ns.saturating_mul(2).min(self.config.max_probe_ns),
        };
        true
    }

    /// Times that the sealed path was given up.
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
