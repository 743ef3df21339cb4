//! One end of a TCP connection that carries real bytes, both ways.
//!
//! Window, scoreboard and recovery are those of the sender that simulated flows have; this adds
//! what they do not need: the bytes themselves, a connection whose end grows as messages are
//! written, and acknowledgements on segments that carry data. Messages are cut out of the stream by
//! the frames of the production protocol's own TCP connection ([`FrameDecoder`]).
//!
//! A segment that arrives is acknowledged at once, on data if there is some to send. There is no
//! delayed acknowledgement, because the retransmission time-out of the connections that this is for
//! is shorter than one would be (flowtune §5.3, *control connections*: 20 to 30 µs), and no Nagle:
//! messages that are written at one moment share segments, later ones wait for the window alone.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use ratewright_proto::SessionError;
use ratewright_proto::control::{FrameDecoder, append_frame};

use super::congestion::{Congestion as _, NewReno};
use super::sender::{Ack, TcpReceiver, TcpSender};
use crate::ext::StreamSegment;
use crate::time::{Span, Time};

/// What a connection is set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Bytes that a segment carries at most.
    pub mss_bytes: u16,
    /// Segments before the first acknowledgement (RFC 6928).
    pub initial_window_packets: u32,
    /// The least retransmission time-out.
    pub min_rto: Span,
    /// The largest, before the first measurement, and whatever was measured and however often it
    /// expired.
    pub max_rto: Span,
}

impl Default for StreamConfig {
    /// Flowtune's control connections (§5.3).
    fn default() -> Self {
        Self {
            // 1,500 bytes without IPv4's header, TCP's and its time stamps (RFC 7323).
            mss_bytes: 1_448,
            initial_window_packets: 10,
            min_rto: Span::from_us(20),
            max_rto: Span::from_us(30),
        }
    }
}

/// What an end has counted.
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
    /// Written and not acknowledged; the first is the sender's `una`.
    outgoing: VecDeque<u8>,
    receiver: TcpReceiver,
    /// Arrived, from the receiver's `expected` on; what has not arrived in between is 0.
    out_of_order: VecDeque<u8>,
    frames: FrameDecoder,
    /// What the next segment says of what arrived, and whether it has to say it soon.
    echo: Time,
    blocks: ArrayVec<(u64, u64), 3>,
    ack_due: bool,
    counts: StreamCounts,
}

impl StreamEnd {
    /// An end of an established connection on which nothing was sent.
    #[must_use]
    pub fn new(config: StreamConfig) -> Self {
        let mss_bytes = u64::from(config.mss_bytes);
        let window_bytes = mss_bytes * u64::from(config.initial_window_packets);
        let control = NewReno::new(&(), mss_bytes, window_bytes);
        Self {
            config,
            sender: TcpSender::new(control, config.max_rto, mss_bytes, 0),
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

    /// The next message that arrived whole and in order.
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
                blocks: &segment.blocks,
            };
            let limited = self.sender.next < self.sender.limit;
            self.sender.on_ack(now, &ack, self.config.min_rto, limited);
            let acknowledged = (self.sender.una - una) as usize;
            self.outgoing.drain(..acknowledged);
        }
        if segment.bytes.is_empty() {
            return;
        }
        let expected = self.receiver.expected;
        let end = segment.seq + segment.bytes.len() as u64;
        let (in_order, blocks) = self.receiver.on_segment(segment.seq, end);
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
        let (first, wrapped) = self.out_of_order.as_slices();
        let split = ready.min(first.len());
        self.frames.push(&first[..split]);
        self.frames.push(&wrapped[..ready - split]);
        self.out_of_order.drain(..ready);
        self.echo = segment.sent_at;
        self.blocks = blocks;
        self.ack_due = true;
    }

    /// The next segment to be sent: data that the window allows, or an acknowledgement that is due.
    /// `buffer` is empty and becomes the segment's; if there is none to be sent it comes back.
    ///
    /// # Errors
    /// Nothing is to be sent.
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

    /// How long to wait for an acknowledgement from now on; none if none is to come.
    #[must_use]
    pub fn time_out(&self) -> Option<Span> {
        let rto = self.sender.rtt.rto().min(self.config.max_rto);
        (!self.sender.is_idle()).then_some(rto)
    }

    /// So long has been waited.
    pub fn on_time_out(&mut self, now: Time) {
        if !self.sender.is_idle() {
            self.counts.time_outs += 1;
            self.sender.on_time_out(now);
        }
    }

    /// First byte that the other end has not acknowledged: when it moves, the wait begins anew
    /// (RFC 6298 §5.3).
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.sender.una
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
