//! The receiving side of a flow: order of bytes, and what is answered.

use ratewright_topology::HostId;

use super::Recovery;
use super::dasr::Tenant;
use crate::time::{Span, Time};
use crate::transport::NO_SLOT;
use crate::transport::ranges::RangeSet;

/// Answer to a data packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// None: a later packet's acknowledgement covers this one, or the gap was reported.
    Nothing,
    /// An acknowledgement.
    Ack,
    /// A negative one: there is a gap before the packet.
    Nack,
}

/// State of the receiving side of a flow.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Next byte in order.
    pub(super) expected: u64,
    /// The flow's bytes.
    pub(super) total_bytes: u64,
    pub(super) src: HostId,
    /// Bytes behind a gap; none with go-back-N.
    held: RangeSet,
    /// Expected byte and time of the last negative acknowledgement.
    nacked: Option<(u64, Time)>,
    /// Packets since the last acknowledgement.
    unanswered: u32,
    /// Time of the last notification of congestion.
    notified: Option<Time>,
    /// Largest sequence number of a packet that was sent once.
    newest: u64,
    /// Tenant of the message, and place of its sender among those that are counted.
    pub(super) tenant: Tenant,
    pub(super) sender: u32,
}

impl Receiver {
    /// Makes the state of a flow of which nothing came.
    pub(super) fn new(src: HostId, total_bytes: u64) -> Self {
        Self {
            expected: 0,
            total_bytes,
            src,
            held: RangeSet::default(),
            nacked: None,
            unanswered: 0,
            notified: None,
            newest: 0,
            tenant: 0,
            sender: NO_SLOT,
        }
    }

    /// Takes the bytes of a packet. Returns the number of bytes that came into order, and the
    /// answer if the packet `asks` for one or is the last of `ack_every`.
    #[inline]
    pub(super) fn on_data(
        &mut self,
        now: Time,
        (seq, end): (u64, u64),
        asks: bool,
        rules: &Rules,
    ) -> (u64, Answer) {
        if seq > self.expected {
            let answer = match rules.recovery {
                // InfiniBand §9.7.5.1.3: one for each gap. A lost one is repeated.
                Recovery::GoBackN => {
                    let known = self.nacked.is_some_and(|(expected, at)| {
                        expected == self.expected && now < at + rules.nack_interval
                    });
                    if known { Answer::Nothing } else { Answer::Nack }
                }
                Recovery::SelectiveRepeat => {
                    self.held.insert(seq, end);
                    Answer::Nack
                }
            };
            if answer == Answer::Nack {
                self.nacked = Some((self.expected, now));
            }
            return (0, answer);
        }
        let before = self.expected;
        self.expected = self.expected.max(end);
        if !self.held.is_empty() {
            if let Some(end) = self.held.covering_end(self.expected) {
                self.expected = end;
            }
            self.held.remove_before(self.expected);
        }
        self.unanswered += 1;
        // A duplicate is acknowledged (InfiniBand C9-110): its acknowledgement may have been lost.
        let is_known = end <= before;
        if asks || is_known || self.unanswered >= rules.ack_every {
            self.unanswered = 0;
            return (self.expected - before, Answer::Ack);
        }
        (self.expected - before, Answer::Nothing)
    }

    /// Takes the sequence number of a packet that was sent once. Returns true if a later one of its
    /// flow overtook it.
    #[inline]
    pub(super) fn was_overtaken(&mut self, seq: u64) -> bool {
        let overtaken = seq < self.newest;
        self.newest = self.newest.max(seq);
        overtaken
    }

    /// Takes a mark. Returns true if the sender is to be notified: at most once per interval (DCQCN
    /// §3.1, NP).
    #[inline]
    pub(super) fn notifies(&mut self, now: Time, interval: Span) -> bool {
        let due = self.notified.is_none_or(|at| now >= at + interval);
        if due {
            self.notified = Some(now);
        }
        due
    }
}

/// Rules by which a receiver answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) recovery: Recovery,
    pub(super) nack_interval: Span,
    pub(super) ack_every: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        recovery: Recovery::GoBackN,
        nack_interval: Span::from_us(10),
        ack_every: 2,
    };

    fn packet(n: u64) -> (u64, u64) {
        (n * 1_000, (n + 1) * 1_000)
    }

    #[test]
    fn a_gap_is_reported_once_and_again_after_the_interval() {
        let mut receiver = Receiver::new(HostId(0), 9_000);
        let mut at = |us, n| receiver.on_data(Time::from_us(us), packet(n), false, &RULES);
        assert_eq!(at(0, 0), (1_000, Answer::Nothing));
        assert_eq!(at(1, 2), (0, Answer::Nack));
        assert_eq!(at(2, 3), (0, Answer::Nothing));
        assert_eq!(at(11, 4), (0, Answer::Nack));
        assert_eq!(at(12, 1), (1_000, Answer::Ack), "the second in order");
        assert_eq!(at(13, 3), (0, Answer::Nack), "another gap");
        assert_eq!(at(14, 0), (0, Answer::Ack), "a duplicate");
    }

    #[test]
    fn selective_repeat_keeps_what_lies_behind_a_gap() {
        let rules = Rules {
            recovery: Recovery::SelectiveRepeat,
            ack_every: 1,
            ..RULES
        };
        let mut receiver = Receiver::new(HostId(0), 9_000);
        let mut at = |n| receiver.on_data(Time::ZERO, packet(n), false, &rules);
        assert_eq!(at(1), (0, Answer::Nack));
        assert_eq!(at(3), (0, Answer::Nack));
        assert_eq!(at(0), (2_000, Answer::Ack));
        assert_eq!(at(2), (2_000, Answer::Ack));
    }

    #[test]
    fn a_sender_is_notified_at_most_once_per_interval() {
        let mut receiver = Receiver::new(HostId(0), 1);
        let interval = Span::from_us(50);
        let times: Vec<u64> = (0..200)
            .filter(|us| receiver.notifies(Time::from_us(*us), interval))
            .collect();
        assert_eq!(times, [0, 50, 100, 150]);
    }
}
