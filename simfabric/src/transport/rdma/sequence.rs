//! A flow's bytes as its sender numbers them: what goes next, and what is sent again.
//!
//! | recovery | rule | source |
//! |---|---|---|
//! | go-back-N | a negative acknowledgement or a time-out goes back to the first byte that is not acknowledged | DCQCN §2.2; InfiniBand's reliable connections |
//! | selective repeat | what lies below a byte that arrived out of order is lost, and sent again once; a time-out sends again all that did not arrive | IRN (SIGCOMM 2018) §3.1 |

use super::Recovery;
use crate::transport::ranges::RangeSet;

/// Packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outgoing {
    pub(super) seq: u64,
    pub(super) bytes: u64,
    /// True if its bytes were sent before.
    pub(super) again: bool,
}

/// State of the sending side of a flow.
#[derive(Debug)]
pub(super) struct Sequence {
    recovery: Recovery,
    mss_bytes: u64,
    /// First byte that is not acknowledged.
    pub(super) una: u64,
    /// Next byte to be sent for the first time, or again after going back.
    pub(super) next: u64,
    /// Byte after the last one that was ever sent.
    pub(super) highest: u64,
    /// Byte after the flow's last one.
    pub(super) limit: u64,
    /// Bytes that arrived out of order.
    arrived: RangeSet,
    /// Bytes before this that did not arrive are lost.
    lost_before: u64,
    /// Lost bytes before this were sent again.
    resent_before: u64,
}

impl Sequence {
    /// Makes a flow of which nothing was sent.
    pub(super) fn new(recovery: Recovery, mss_bytes: u64, bytes: u64) -> Self {
        Self {
            recovery,
            mss_bytes,
            una: 0,
            next: 0,
            highest: 0,
            limit: bytes,
            arrived: RangeSet::default(),
            lost_before: 0,
            resent_before: 0,
        }
    }

    /// Returns the bytes in flight: those that were sent, since the last time of going back, and
    /// are not acknowledged.
    #[inline]
    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.next - self.una
    }

    /// Returns true if nothing is to be acknowledged.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.una == self.highest
    }

    /// Returns true if every byte is acknowledged.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.una == self.limit
    }

    /// Returns the next packet that a window allows. A packet may go while less than the window is
    /// in flight, so that it may pass the window's end. What was lost goes whatever the window is.
    #[inline]
    pub(super) fn peek(&self, window_bytes: u64) -> Option<Outgoing> {
        if self.lost_before > self.una {
            let from = self.resent_before.max(self.una);
            let (seq, end) = self.arrived.gap_from(from);
            if seq < self.lost_before {
                let end = end.unwrap_or(self.lost_before).min(self.lost_before);
                let bytes = (end - seq).min(self.mss_bytes);
                let again = true;
                return Some(Outgoing { seq, bytes, again });
            }
        }
        let bytes = (self.limit - self.next).min(self.mss_bytes);
        let outgoing = Outgoing {
            seq: self.next,
            bytes,
            again: self.next < self.highest,
        };
        let is_open = self.in_flight_bytes() < window_bytes;
        Some(outgoing).filter(|_| is_open & (bytes > 0))
    }

    /// Notes that the packet that was just peeked at leaves.
    #[inline]
    pub(super) fn sent(&mut self, packet: Outgoing) {
        let end = packet.seq + packet.bytes;
        if packet.seq == self.next {
            self.next = end;
            self.highest = self.highest.max(end);
        } else {
            self.resent_before = end;
        }
    }

    /// Takes a cumulative acknowledgement. Returns the bytes newly acknowledged; one of bytes that
    /// were never sent says nothing.
    #[inline]
    pub(super) fn on_ack(&mut self, ack: u64) -> u64 {
        if ack <= self.una || ack > self.highest {
            return 0;
        }
        let bytes = ack - self.una;
        self.una = ack;
        self.next = self.next.max(ack);
        if !self.arrived.is_empty() {
            self.arrived.remove_before(ack);
        }
        bytes
    }

    /// Takes the negative acknowledgement that the packet of `seq` elicited, after its cumulative
    /// part.
    pub(super) fn on_nack(&mut self, seq: u64) {
        match self.recovery {
            Recovery::GoBackN => self.next = self.una,
            Recovery::SelectiveRepeat => {
                // A receiver that lies about what it got can only spoil its own flow.
                let end = (seq + self.mss_bytes).min(self.highest);
                if seq > self.una && seq < end {
                    self.arrived.insert(seq, end);
                }
                let last = self.arrived.ranges().last();
                self.lost_before = last.map_or(0, |range| range.0).max(self.lost_before);
            }
        }
    }

    /// Handles the time-out: all that did not arrive is lost.
    pub(super) fn on_time_out(&mut self) {
        match self.recovery {
            Recovery::GoBackN => self.next = self.una,
            Recovery::SelectiveRepeat => {
                self.lost_before = self.highest;
                self.resent_before = self.una;
            }
        }
    }

    /// Ends the flow after what was sent so far and one byte more, by which the receiver learns of
    /// the end.
    pub(super) fn stop(&mut self) {
        self.limit = self.limit.min(self.highest + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(sequence: &mut Sequence, window_bytes: u64) -> Vec<(u64, u64, bool)> {
        let mut sent = Vec::new();
        while let Some(packet) = sequence.peek(window_bytes) {
            sequence.sent(packet);
            sent.push((packet.seq, packet.bytes, packet.again));
        }
        sent
    }

    #[test]
    fn a_window_is_passed_by_less_than_a_packet() {
        for (window, packets) in [(1, 1), (1_000, 1), (1_001, 2), (2_500, 3)] {
            let mut sequence = Sequence::new(Recovery::GoBackN, 1_000, 10_000);
            assert_eq!(send(&mut sequence, window).len(), packets, "{window}");
            assert!(sequence.in_flight_bytes() < window + 1_000);
        }
    }

    #[test]
    fn go_back_n_sends_all_from_the_gap_on() {
        let mut sequence = Sequence::new(Recovery::GoBackN, 1_000, 3_500);
        let first: Vec<_> = send(&mut sequence, u64::MAX);
        assert_eq!(first.last(), Some(&(3_000, 500, false)));
        assert_eq!(sequence.on_ack(1_000), 1_000);
        sequence.on_nack(2_000);
        let again = send(&mut sequence, u64::MAX);
        assert_eq!(
            again,
            [
                (1_000, 1_000, true),
                (2_000, 1_000, true),
                (3_000, 500, true)
            ]
        );
        assert_eq!(sequence.on_ack(3_500), 2_500);
        assert!(sequence.is_done());
    }

    /// IRN §3.1: only what lies below a byte that arrived is sent again, once.
    #[test]
    fn selective_repeat_sends_the_gaps_alone() {
        let mut sequence = Sequence::new(Recovery::SelectiveRepeat, 1_000, 6_000);
        send(&mut sequence, u64::MAX);
        sequence.on_ack(1_000);
        sequence.on_nack(2_000);
        sequence.on_nack(4_000);
        assert_eq!(
            send(&mut sequence, u64::MAX),
            [(1_000, 1_000, true), (3_000, 1_000, true)]
        );
        sequence.on_nack(5_000);
        assert_eq!(send(&mut sequence, u64::MAX), [], "nothing new is lost");
        sequence.on_time_out();
        assert_eq!(
            send(&mut sequence, u64::MAX),
            [(1_000, 1_000, true), (3_000, 1_000, true)]
        );
        sequence.on_ack(6_000);
        assert!(sequence.is_done() && sequence.peek(u64::MAX).is_none());
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_says_nothing() {
        let mut sequence = Sequence::new(Recovery::GoBackN, 1_000, 9_000);
        send(&mut sequence, 2_000);
        assert_eq!(sequence.on_ack(9_000), 0);
        assert_eq!(sequence.on_ack(2_000), 2_000);
        assert_eq!(sequence.on_ack(1_000), 0, "an old one");
        assert!(sequence.is_idle());
    }
}
