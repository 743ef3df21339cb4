//! One end of a TCP connection that carries real bytes, both ways.
//!
//! Window, scoreboard and recovery are those of simulated flows' senders. This module adds the
//! bytes themselves, a connection that grows as messages are written, and acknowledgements on
//! segments with data. Messages are cut out of the stream by the frames of the production
//! protocol's own TCP connection ([`FrameDecoder`]).
//!
//! A segment is acknowledged at once, on data if there is some to send. There are no delayed
//! acknowledgements, because the connections' retransmission time-out is shorter than such a delay
//! (flowtune §5.3, *control connections*: 20 to 30 µs). There is no Nagle algorithm either:
//! messages that are written at one moment share segments, later ones wait for the window alone.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use ratewright_proto::SessionError;
use ratewright_proto::control::{FrameDecoder, append_frame};

use super::congestion::{Congestion as _, NewReno};
use super::rtt::RttEstimator;
use super::sender::{Ack, TcpReceiver, TcpSender};
use crate::ext::StreamSegment;
use crate::time::{Span, Time};

/// Parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Largest payload of a segment.
    pub mss_bytes: u16,
    /// Segments before the first acknowledgement (RFC 6928).
    pub initial_window_packets: u32,
    /// Least retransmission time-out.
    pub min_rto: Span,
    /// Largest retransmission time-out, which also holds before the first measurement.
    pub max_rto: Span,
}

impl Default for StreamConfig {
    /// Flowtune's control connections (§5.3).
    fn default() -> Self {
        Self {
            // 1,500 bytes without IPv4's header and TCP's.
            mss_bytes: 1_460,
            initial_window_packets: 10,
            min_rto: Span::from_us(20),
            max_rto: Span::from_us(30),
        }
    }
}

/// Counters of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Segments sent again.
    pub retransmits: u64,
    /// Time-outs.
    pub time_outs: u64,
}

/// One end of a connection.
#[derive(Debug)]
pub struct StreamEnd {
    config: StreamConfig,
    sender: TcpSender<NewReno>,
    /// Written bytes that are not acknowledged; the first is the sender's `una`.
    outgoing: VecDeque<u8>,
    receiver: TcpReceiver,
    /// Bytes that arrived, from the receiver's `expected` on; gaps hold 0.
    out_of_order: VecDeque<u8>,
    frames: FrameDecoder,
    /// Echo and blocks that the next segment reports, and whether an acknowledgement is due.
    echo: Time,
    blocks: ArrayVec<(u64, u64), 3>,
    ack_due: bool,
    counts: StreamCounts,
}

impl StreamEnd {
    /// Makes an end of an established connection on which nothing was sent.
    #[must_use]
    pub fn new(config: StreamConfig) -> Self {
        let mss_bytes = u64::from(config.mss_bytes);
        let window_bytes = mss_bytes * u64::from(config.initial_window_packets);
        let control = NewReno::new(&(), mss_bytes, window_bytes);
        Self {
            config,
            sender: TcpSender::new(control, RttEstimator::new(config.max_rto), mss_bytes, 0),
            outgoing: VecDeque::new(),
            receiver: TcpReceiver::default(),
            out_of_order: VecDeque::new(),
            frames: FrameDecoder::new(),
            echo: Time::ZERO,
            blocks: ArrayVec::new(),
            ack_due: false,
            counts: StreamCounts::default(),
        }
    }

    /// Writes a message.
    pub fn write(&mut self, message: &[u8]) {
        let before = self.outgoing.len();
        append_frame(&mut self.outgoing, message);
        self.sender.limit += (self.outgoing.len() - before) as u64;
    }

    /// Takes the next message that arrived whole and in order.
    ///
    /// # Errors
    /// The stream is no sequence of frames.
    pub fn read(&mut self) -> Result<Option<&[u8]>, SessionError> {
        self.frames.next_frame()
    }

    /// Takes a segment.
    pub fn on_segment(&mut self, now: Time, segment: &StreamSegment) {
        let una = self.sender.una;
        // RFC 7323 §4.1: an echo is a round trip only if it acknowledges something.
        if segment.ack > una || !segment.blocks.is_empty() {
            let ack = Ack {
                ack: segment.ack,
                stamp: segment.echo,
                rtt: now.since(segment.echo),
                marked: false,
                switches: 0,
                blocks: &segment.blocks,
            };
            let limited = self.sender.next < self.sender.limit;
            self.sender.on_ack(now, &ack, self.config.min_rto, limited);
            let acknowledged = (self.sender.una - una) as usize;
            self.outgoing.drain(..acknowledged);
        }
        // A bare acknowledgement is not acknowledged.
        if segment.bytes.is_empty() {
            return;
        }
        let expected = self.receiver.expected;
        let end = segment.seq + segment.bytes.len() as u64;
        let (in_order, blocks) = self.receiver.on_segment(segment.seq, end);
        // The segment's first `known` bytes arrived before.
        let known = expected.saturating_sub(segment.seq) as usize;
        if let Some(new) = segment.bytes.get(known..) {
            let at = segment.seq.saturating_sub(expected) as usize;
            if self.out_of_order.len() < at + new.len() {
                self.out_of_order.resize(at + new.len(), 0);
            }
            for (to, from) in self.out_of_order.range_mut(at..).zip(new) {
                *to = *from;
            }
        }
        let ready = in_order as usize;
        // A ring buffer: the bytes in order may wrap around its end.
        let (first, wrapped) = self.out_of_order.as_slices();
        let split = ready.min(first.len());
        self.frames.push(&first[..split]);
        self.frames.push(&wrapped[..ready - split]);
        self.out_of_order.drain(..ready);
        self.echo = segment.sent_at;
        self.blocks = blocks;
        self.ack_due = true;
    }

    /// Takes the next segment to send: data that the window allows, or an acknowledgement that is
    /// due. `buffer` is empty and becomes the segment's; if there is no segment, it comes back.
    ///
    /// # Errors
    /// There is no segment to send; the error holds the buffer.
    pub fn poll_segment(&mut self, now: Time, buffer: Vec<u8>) -> Result<StreamSegment, Vec<u8>> {
        let mut segment = StreamSegment {
            connection: 0,
            seq: self.sender.next,
            ack: self.receiver.expected,
            sent_at: now,
            echo: self.echo,
            blocks: ArrayVec::new(),
            bytes: buffer,
        };
        if let Some(next) = self.sender.peek_segment() {
            self.sender.sent(now, next);
            self.counts.retransmits += u64::from(next.again);
            segment.seq = next.seq;
            let first = (next.seq - self.sender.una) as usize;
            let bytes = self.outgoing.range(first..first + next.bytes as usize);
            segment.bytes.extend(bytes);
        } else if !self.ack_due {
            return Err(segment.bytes);
        }
        // Said once: a later segment's echo would be of something else.
        segment.blocks = std::mem::take(&mut self.blocks);
        self.ack_due = false;
        Ok(segment)
    }

    /// Returns the time to wait for an acknowledgement from now on; `None` if none is outstanding.
    #[must_use]
    pub fn time_out(&self) -> Option<Span> {
        // The ceiling holds after back-off, too.
        let rto = self.sender.rtt.rto().min(self.config.max_rto);
        (!self.sender.is_idle()).then_some(rto)
    }

    /// Handles the retransmission time-out.
    pub fn on_time_out(&mut self, now: Time) {
        if !self.sender.is_idle() {
            self.counts.time_outs += 1;
            self.sender.on_time_out(now);
        }
    }

    /// Returns the first byte that the other end has not acknowledged. When it moves, the time-out
    /// starts again (RFC 6298 §5.3).
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.sender.una
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
