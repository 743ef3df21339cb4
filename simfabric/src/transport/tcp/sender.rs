//! The sending side of a flow: window, selective acknowledgements, loss recovery.
//!
//! Recovery follows RFC 6675: a byte is lost when more than two packets' worth of bytes behind it
//! have arrived, and lost bytes do not count as in flight. A lost retransmission is found as by
//! RACK (RFC 8985 §6.2): a packet that was sent a quarter of a round trip after it was
//! acknowledged. Time stamps echo the sending time of the packet that caused an acknowledgement, so
//! that round trips of retransmissions are measured too.

use arrayvec::ArrayVec;

use super::congestion::{AckAdvance, Congestion, DelaySample, Reduction};
use super::rtt::RttEstimator;
use crate::packet::Flags;
use crate::time::{Span, Time};
use crate::transport::ranges::RangeSet;

/// Number of packets behind a missing one that make it lost (RFC 6675 §2, `DupThresh`).
const DUP_THRESH: u64 = 3;

/// Congestion state of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CongestionState {
    /// No congestion: the window grows.
    Open,
    /// A mark reduced the window, which stays until that window is acknowledged.
    Reduced,
    /// Lost packets are sent again.
    Recovery,
    /// Slow start after a time-out.
    Loss,
}

/// Fields of an acknowledgement.
#[derive(Debug)]
pub(super) struct Ack<'a> {
    pub(super) ack: u64,
    /// Sending time of the packet that caused it.
    pub(super) stamp: Time,
    /// Round-trip time that results.
    pub(super) rtt: Span,
    pub(super) marked: bool,
    /// Switches that this packet passed, for controls that measure delay.
    pub(super) switches: u8,
    pub(super) blocks: &'a [(u64, u64)],
}

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutgoingSegment {
    pub(super) seq: u64,
    pub(super) bytes: u64,
    pub(super) again: bool,
    /// True if it tells the receiver that the window was reduced (RFC 3168 §6.1.2).
    pub(super) cwr: bool,
}

/// The sender of one flow.
#[derive(Debug)]
pub(super) struct TcpSender<C> {
    /// First byte that is not acknowledged.
    pub(super) una: u64,
    /// First byte that was never sent.
    pub(super) next: u64,
    /// First byte that does not exist.
    pub(super) limit: u64,
    mss_bytes: u64,
    pub(super) state: CongestionState,
    /// Position whose acknowledgement ends the state.
    recover: u64,
    /// First byte that was not sent at the last reduction, which is where the receiver learns of
    /// it; 0 before the first.
    reduced_at: u64,
    /// True if no new data was sent since the last reduction.
    cwr_due: bool,
    /// Position before which missing bytes are lost.
    lost_before: u64,
    /// Position before which lost bytes have been sent again.
    resent_before: u64,
    /// Latest time at which the segment at `una` was sent again; [`Time::MAX`] if it was not.
    una_resent_at: Time,
    last_resent_at: Time,
    sacked: RangeSet,
    pub(super) control: C,
    pub(super) rtt: RttEstimator,
}

impl<C: Congestion> TcpSender<C> {
    pub(super) fn new(control: C, rtt: RttEstimator, mss_bytes: u64, limit: u64) -> Self {
        Self {
            una: 0,
            next: 0,
            limit,
            mss_bytes,
            state: CongestionState::Open,
            recover: 0,
            reduced_at: 0,
            cwr_due: false,
            lost_before: 0,
            resent_before: 0,
            una_resent_at: Time::MAX,
            last_resent_at: Time::ZERO,
            sacked: RangeSet::default(),
            control,
            rtt,
        }
    }

    /// Returns the bytes in flight (RFC 6675 §4, `pipe`): sent, not arrived, and not lost unless
    /// sent again.
    #[inline]
    pub(super) fn in_flight_bytes(&self) -> u64 {
        let outstanding = self.next - self.una - self.sacked.bytes();
        if self.lost_before <= self.una {
            return outstanding;
        }
        // Between `from` and `lost_before` lie lost bytes that were not sent again.
        let from = self.resent_before.max(self.una);
        if from >= self.lost_before {
            return outstanding;
        }
        let arrived = self.sacked.bytes_before(self.lost_before) - self.sacked.bytes_before(from);
        outstanding - (self.lost_before - from - arrived)
    }

    /// Returns true if all sent bytes are acknowledged.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.una == self.next
    }

    /// Takes an acknowledgement. `window_limited` is true if the window stopped the flow last.
    /// Returns true if the left edge advanced.
    #[inline]
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        ack: &Ack<'_>,
        min_rto: Span,
        window_limited: bool,
    ) -> bool {
        // Never beyond what was sent, whatever the peer acknowledges.
        let acknowledged = ack.ack.min(self.next);
        let newly = acknowledged.saturating_sub(self.una);
        if newly > 0 {
            self.una = acknowledged;
            if !self.sacked.is_empty() {
                self.sacked.remove_before(acknowledged);
            }
            self.una_resent_at = if self.resent_before > self.una {
                self.last_resent_at
            } else {
                Time::MAX
            };
        }
        for &(first, end) in ack.blocks {
            self.sacked.insert(first.max(self.una), end.min(self.next));
        }
        self.rtt.sample(ack.rtt, min_rto);
        self.control
            .on_any_ack(newly, ack.marked, self.una, self.next);
        if C::MEASURES_DELAY {
            self.control.on_delay(&DelaySample {
                now,
                rtt: ack.rtt,
                switches: ack.switches,
                bytes: newly,
            });
        }
        if self.state != CongestionState::Open && self.una >= self.recover {
            self.state = CongestionState::Open;
        }
        // RFC 3168 §6.1.2: one reduction per window of data. An echo that lasts until the receiver
        // knows of the reduction is the old one, until data behind the reduction is acknowledged.
        let heard = C::ECHOES_EACH_MARK || self.reduced_at == 0 || self.una > self.reduced_at;
        if ack.marked && self.state == CongestionState::Open && heard {
            self.reduce(now, Reduction::Mark, self.in_flight_bytes());
            self.state = CongestionState::Reduced;
            self.recover = self.next;
        }
        if C::FAST_RETRANSMIT && !self.sacked.is_empty() {
            self.detect_loss(now, ack.stamp);
        }
        let may_grow = matches!(self.state, CongestionState::Open | CongestionState::Loss);
        // A window that the flow does not fill is no measure of the network (RFC 9438 §5.8). In
        // slow start half of it is enough, as in Linux: bursts wait in the sender's NIC although
        // the path is empty.
        let probing = self.control.in_slow_start()
            && self.control.window_bytes() < 2 * (self.in_flight_bytes() + newly);
        // RFC 3168 §6.1.2: an acknowledgement with an echo does not increase the window.
        if newly > 0 && may_grow && !ack.marked && (window_limited || probing) {
            self.control.on_acked(&AckAdvance {
                now,
                bytes: newly,
                least_rtt: self.rtt.least(),
                smoothed_rtt: self.rtt.smoothed(),
            });
        }
        newly > 0
    }

    /// Reduces the window, for which the next new data carries CWR, whatever the reason (RFC 3168
    /// §6.1.2).
    fn reduce(&mut self, now: Time, why: Reduction, in_flight_bytes: u64) {
        self.control.reduce(now, why, in_flight_bytes);
        self.reduced_at = self.next;
        self.cwr_due = true;
    }

    fn detect_loss(&mut self, now: Time, stamp: Time) {
        // RFC 6675 §4, `IsLost`: more than (DupThresh − 1) · SMSS bytes.
        let enough = (DUP_THRESH - 1) * self.mss_bytes + 1;
        if let Some(edge) = self.sacked.edge_with_above(enough) {
            self.lost_before = self.lost_before.max(edge);
        }
        if self.lost_before <= self.una {
            return;
        }
        if matches!(self.state, CongestionState::Open | CongestionState::Reduced) {
            let in_flight = self.next - self.una - self.sacked.bytes();
            // One reduction per window, whatever its reason.
            if self.state == CongestionState::Open {
                self.reduce(now, Reduction::Loss, in_flight);
            }
            self.state = CongestionState::Recovery;
            self.recover = self.next;
            // Recovery begins: no lost byte has been sent again yet.
            self.resent_before = self.una;
            self.una_resent_at = Time::MAX;
        }
        let tolerance = Span(self.rtt.smoothed().0 / 4);
        if self.una_resent_at != Time::MAX
            && self.resent_before > self.una
            && stamp > self.una_resent_at + tolerance
        {
            // What was sent after the retransmission arrived, it did not.
            self.resent_before = self.una;
            self.una_resent_at = Time::MAX;
        }
    }

    /// Handles the retransmission time-out: all bytes that did not arrive count as lost.
    pub(super) fn on_time_out(&mut self, now: Time) {
        // RFC 5681 §3.1: the threshold is set at the first time-out of a segment alone.
        if self.state != CongestionState::Loss || self.una >= self.recover {
            let in_flight = self.in_flight_bytes();
            self.reduce(now, Reduction::TimeOut, in_flight);
        } else {
            self.reduce(now, Reduction::TimeOut, 0);
        }
        self.rtt.back_off();
        self.state = CongestionState::Loss;
        self.recover = self.next;
        self.lost_before = self.next;
        self.resent_before = self.una;
        self.una_resent_at = Time::MAX;
    }

    /// Returns the next segment that the window allows.
    #[inline]
    pub(super) fn peek_segment(&self) -> Option<OutgoingSegment> {
        let in_flight = self.in_flight_bytes();
        let window = self.control.window_bytes();
        // One segment goes when none is in flight; otherwise a small window would stop the flow for
        // good. A window of 0 waits for a rate.
        let allowed = |bytes: u64| (in_flight == 0 && window > 0) || in_flight + bytes <= window;
        // RFC 6675 §4, `NextSeg`, rule 1: lost bytes before new ones.
        if self.lost_before > self.una {
            let from = self.resent_before.max(self.una);
            let (seq, end) = self.sacked.gap_from(from);
            if seq < self.lost_before {
                let end = end.unwrap_or(self.next).min(self.lost_before);
                let segment = OutgoingSegment {
                    seq,
                    bytes: (end - seq).min(self.mss_bytes),
                    again: true,
                    cwr: false,
                };
                return Some(segment).filter(|segment| allowed(segment.bytes));
            }
        }
        let bytes = (self.limit - self.next).min(self.mss_bytes);
        let segment = OutgoingSegment {
            seq: self.next,
            bytes,
            again: false,
            cwr: self.cwr_due,
        };
        Some(segment).filter(|segment| segment.bytes > 0 && allowed(segment.bytes))
    }

    /// Returns true if a segment has all the payload that a packet can have.
    #[inline]
    pub(super) fn is_full(&self, segment: OutgoingSegment) -> bool {
        segment.bytes >= self.mss_bytes
    }

    /// Marks the segment that was just returned as sent.
    #[inline]
    pub(super) fn sent(&mut self, now: Time, segment: OutgoingSegment) {
        if segment.again {
            self.resent_before = segment.seq + segment.bytes;
            self.last_resent_at = now;
            if segment.seq == self.una {
                self.una_resent_at = now;
            }
        } else {
            self.next += segment.bytes;
            self.cwr_due = false;
        }
    }
}

/// The receiving side of a flow.
#[derive(Debug, Default)]
pub(super) struct TcpReceiver {
    /// Next byte in order.
    pub(super) expected: u64,
    held: RangeSet,
    /// True from a mark until the sender's CWR.
    echoes: bool,
}

impl TcpReceiver {
    /// Takes the flags of a segment. Returns true if its acknowledgement echoes a mark (RFC 3168
    /// §6.1.3).
    #[inline]
    pub(super) fn on_flags(&mut self, flags: Flags) -> bool {
        // A packet with both bits says that there was another mark since the reduction.
        self.echoes = flags.contains(Flags::CE) || (self.echoes && !flags.contains(Flags::CWR));
        self.echoes
    }

    /// Takes a segment. Returns the number of bytes that came into order, and the blocks to report;
    /// the one that holds the segment comes first (RFC 2018 §4).
    #[inline]
    pub(super) fn on_segment(&mut self, seq: u64, end: u64) -> (u64, ArrayVec<(u64, u64), 3>) {
        let mut blocks = ArrayVec::new();
        let before = self.expected;
        if seq <= self.expected {
            self.expected = self.expected.max(end);
            if !self.held.is_empty() {
                // The segment filled the gap before a range that was held.
                if let Some(end) = self.held.covering_end(self.expected) {
                    self.expected = end;
                }
                self.held.remove_before(self.expected);
            }
        } else {
            blocks.push(self.held.insert(seq, end));
        }
        for &block in self.held.ranges().iter().rev() {
            if blocks.is_full() {
                break;
            }
            if blocks.first() != Some(&block) {
                blocks.push(block);
            }
        }
        (self.expected - before, blocks)
    }
}

#[cfg(test)]
mod tests;
