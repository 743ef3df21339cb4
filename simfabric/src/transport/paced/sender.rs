//! The sending end of one flow.

use std::collections::VecDeque;

use crate::time::{Span, Time};

/// Number of acknowledged later packets that make a packet lost (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;
/// Largest number of doublings of the retransmission time-out.
const MAX_BACKOFF: u32 = 6;

/// Settings that all senders of a run share.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// Payload of a full packet.
    pub payload_bytes: u16,
    /// Packets that may leave before the first acknowledgement (RFC 6928: 10).
    pub initial_window: u32,
    /// Floor of the retransmission timeout.
    pub min_rto: Span,
    /// Retransmission timeout before the first round trip is measured.
    pub initial_rto: Span,
    /// Ceiling of the retransmission timeout, back-off included.
    pub max_rto: Span,
    /// Time whose bytes at the allocated rate bound the bytes in flight, so that a failed path is
    /// not sent into for ever.
    pub open_window: Span,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            payload_bytes: 1_460,
            initial_window: 10,
            min_rto: Span::from_us(200),
            initial_rto: Span::from_us(400),
            max_rto: Span::from_ms(10),
            open_window: Span::from_us(500),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentState {
    InFlight,
    Acked,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct SentSegment {
    stamp: Time,
    state: SegmentState,
    /// Number of acknowledged packets that were sent later.
    later_acks: u8,
}

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedSegment {
    /// First byte of the payload.
    pub seq: u64,
    /// Payload bytes.
    pub payload_bytes: u16,
    /// True if it was sent before.
    pub retransmit: bool,
    /// True if it carries the last byte of the flow.
    pub last: bool,
}

/// The sending end of one flow.
#[derive(Debug)]
pub struct PacedSender {
    total_bytes: u64,
    /// First segment that is not acknowledged; all before it are.
    first: u64,
    /// State of the sent segments, from `first` on.
    scoreboard: VecDeque<SentSegment>,
    /// Lost segments, which are sent again before new ones.
    lost: VecDeque<u64>,
    in_flight: u32,
    window: f64,
    slow_start_until: f64,
    /// Losses of segments before this one belong to a window that was halved already.
    recover: u64,
    rate_bps: u64,
    /// Time at which the pacer releases the next packet.
    next_at: Time,
    smoothed: Option<(Span, Span)>,
    backoff: u32,
    /// Start of the running retransmission time-out.
    timeout_start: Time,
}

impl PacedSender {
    /// Makes a sender of `total_bytes`, which may be [`UNBOUNDED`](crate::FlowSpec::UNBOUNDED),
    /// with the initial window.
    #[must_use]
    pub fn new(config: &SenderConfig, total_bytes: u64) -> Self {
        Self {
            total_bytes,
            first: 0,
            scoreboard: VecDeque::new(),
            lost: VecDeque::new(),
            in_flight: 0,
            window: f64::from(config.initial_window),
            slow_start_until: f64::INFINITY,
            recover: 0,
            rate_bps: 0,
            next_at: Time::ZERO,
            smoothed: None,
            backoff: 0,
            timeout_start: Time::ZERO,
        }
    }

    /// Returns the allocated rate; 0 without one.
    #[must_use]
    pub fn rate_bps(&self) -> u64 {
        self.rate_bps
    }

    /// Paces at `rate_bps` from now on. The rest of the pacer's wait at the old rate is scaled to
    /// the new one.
    pub fn set_rate(&mut self, now: Time, rate_bps: u64) {
        if rate_bps == 0 {
            self.clear_rate();
            return;
        }
        if self.rate_bps > 0 {
            // Otherwise a rise from a very low rate would take effect only after the old gap.
            let waiting = self.next_at.since(now);
            let factor = self.rate_bps as f64 / rate_bps as f64;
            self.next_at = now + waiting.mul_f64(factor);
        } else {
            self.next_at = now;
        }
        self.rate_bps = rate_bps;
    }

    /// Withdraws the rate: the window takes over, at the packets in flight.
    pub fn clear_rate(&mut self) {
        if self.rate_bps > 0 {
            self.rate_bps = 0;
            // The path carried this much at the allocated rate; slow start would overshoot it.
            self.window = f64::from(self.in_flight.max(2));
            self.slow_start_until = self.window;
        }
    }

    /// Ends the flow at the last byte that has left already.
    pub fn stop(&mut self, config: &SenderConfig) {
        let next = self.first + self.scoreboard.len() as u64;
        self.total_bytes = self
            .total_bytes
            .min(next.saturating_mul(u64::from(config.payload_bytes)));
    }

    /// Returns true if every byte is acknowledged.
    #[must_use]
    pub fn is_done(&self, config: &SenderConfig) -> bool {
        self.first.saturating_mul(u64::from(config.payload_bytes)) >= self.total_bytes
    }

    /// Returns the packets in flight, as far as the sender knows.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn has_more(&self, config: &SenderConfig) -> bool {
        let next = self.first + self.scoreboard.len() as u64;
        !self.lost.is_empty()
            || next.saturating_mul(u64::from(config.payload_bytes)) < self.total_bytes
    }

    fn is_open(&self, config: &SenderConfig) -> bool {
        let window = if self.rate_bps > 0 {
            let bits = self.rate_bps as f64 * config.open_window.as_secs_f64();
            (bits / (8.0 * f64::from(config.payload_bytes))).ceil() + 2.0
        } else {
            self.window
        };
        f64::from(self.in_flight) < window
    }

    /// Takes the next packet that may leave at `now`; `wire_bytes` converts payload into bytes on
    /// the link.
    pub fn poll(
        &mut self,
        config: &SenderConfig,
        now: Time,
        wire_bytes: impl Fn(u16) -> u16,
    ) -> Option<PacedSegment> {
        if !self.has_more(config)
            || !self.is_open(config)
            || (self.rate_bps > 0 && self.next_at > now)
        {
            return None;
        }
        let entry = SentSegment {
            stamp: now,
            state: SegmentState::InFlight,
            later_acks: 0,
        };
        let (index, retransmit) = if let Some(index) = self.lost.pop_front() {
            self.scoreboard[(index - self.first) as usize] = entry;
            (index, true)
        } else {
            self.scoreboard.push_back(entry);
            (self.first + self.scoreboard.len() as u64 - 1, false)
        };
        // RFC 6298 §5.1: the timer starts with the first packet in flight.
        if self.in_flight == 0 {
            self.timeout_start = now;
        }
        self.in_flight += 1;
        let seq = index * u64::from(config.payload_bytes);
        let left = self.total_bytes - seq;
        let payload_bytes = left.min(u64::from(config.payload_bytes)) as u16;
        if self.rate_bps > 0 {
            let bits = f64::from(wire_bytes(payload_bytes)) * 8.0;
            let gap = Span::from_secs_f64(bits / self.rate_bps as f64);
            // An idle pacer saves up no credit for a burst.
            self.next_at = self.next_at.max(now) + gap;
        }
        Some(PacedSegment {
            seq,
            payload_bytes,
            retransmit,
            last: left == u64::from(payload_bytes),
        })
    }

    /// Takes an acknowledgement: all bytes before `expected` have come, and so has the packet at
    /// `seq`, sent at `stamp`.
    pub fn on_ack(
        &mut self,
        config: &SenderConfig,
        now: Time,
        expected: u64,
        seq: u64,
        stamp: Time,
    ) {
        let payload = u64::from(config.payload_bytes);
        self.sample(now.since(stamp));
        let mut newly = 0u32;
        let trigger = seq / payload;
        if trigger >= self.first
            && let Some(entry) = self.scoreboard.get_mut((trigger - self.first) as usize)
        {
            newly += u32::from(entry.state != SegmentState::Acked);
            // Lost segments left the count when they were declared lost.
            self.in_flight -= u32::from(entry.state == SegmentState::InFlight);
            entry.state = SegmentState::Acked;
            self.count_later_acks(trigger, stamp);
        }
        // A flow's last packet may be short: its end counts as the segment's end.
        let expected = expected.div_ceil(payload);
        while self.first < expected {
            let Some(entry) = self.scoreboard.pop_front() else {
                break;
            };
            self.first += 1;
            newly += u32::from(entry.state != SegmentState::Acked);
            self.in_flight -= u32::from(entry.state == SegmentState::InFlight);
        }
        let first = self.first;
        let scoreboard = &self.scoreboard;
        self.lost.retain(|&index| {
            index >= first && scoreboard[(index - first) as usize].state == SegmentState::Lost
        });
        if newly > 0 {
            self.backoff = 0;
            self.timeout_start = now;
            let newly = f64::from(newly);
            self.window += if self.window < self.slow_start_until {
                newly
            } else {
                newly / self.window
            };
        }
    }

    /// Counts the acknowledgement of `trigger` for the earlier packets that were sent before
    /// `stamp`, and declares those lost that have enough.
    fn count_later_acks(&mut self, trigger: u64, stamp: Time) {
        let mut halve = false;
        for offset in 0..(trigger - self.first) as usize {
            let entry = &mut self.scoreboard[offset];
            // A retransmission that left after the acknowledged packet was not overtaken by it.
            if entry.state != SegmentState::InFlight || entry.stamp > stamp {
                continue;
            }
            entry.later_acks += 1;
            if entry.later_acks >= DUPLICATES {
                entry.state = SegmentState::Lost;
                self.in_flight -= 1;
                let index = self.first + offset as u64;
                self.lost.push_back(index);
                // RFC 5681 §4.3: one reduction per window of data.
                halve |= index >= self.recover;
            }
        }
        if halve {
            self.recover = self.first + self.scoreboard.len() as u64;
            self.window = (self.window / 2.0).max(2.0);
            self.slow_start_until = self.window;
        }
    }

    fn sample(&mut self, round_trip: Span) {
        self.smoothed = Some(match self.smoothed {
            None => (round_trip, round_trip / 2),
            Some((smoothed, variation)) => {
                // RFC 6298 §2.3 with α = 1/8 and β = 1/4.
                let error = Span(smoothed.0.abs_diff(round_trip.0));
                (
                    Span(smoothed.0 - smoothed.0 / 8 + round_trip.0 / 8),
                    Span(variation.0 - variation.0 / 4 + error.0 / 4),
                )
            }
        });
    }

    fn rto(&self, config: &SenderConfig) -> Span {
        let base = match self.smoothed {
            None => config.initial_rto,
            Some((smoothed, variation)) => (smoothed + variation * 4).max(config.min_rto),
        };
        (base * (1 << self.backoff)).min(config.max_rto)
    }

    /// Returns the time at which to poll or to call [`on_timeout`](Self::on_timeout), if no
    /// acknowledgement comes before.
    #[must_use]
    pub fn deadline(&self, config: &SenderConfig) -> Option<Time> {
        let pacer = (self.rate_bps > 0 && self.has_more(config) && self.is_open(config))
            .then_some(self.next_at);
        let timeout = (self.in_flight > 0).then(|| self.timeout_start + self.rto(config));
        [pacer, timeout].into_iter().flatten().min()
    }

    /// Declares all packets in flight lost if the retransmission time-out has expired.
    pub fn on_timeout(&mut self, config: &SenderConfig, now: Time) {
        if self.in_flight == 0 || self.timeout_start + self.rto(config) > now {
            return;
        }
        self.lost.clear();
        for (offset, entry) in self.scoreboard.iter_mut().enumerate() {
            if entry.state != SegmentState::Acked {
                entry.state = SegmentState::Lost;
                self.lost.push_back(self.first + offset as u64);
            }
        }
        self.in_flight = 0;
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.recover = self.first + self.scoreboard.len() as u64;
        self.slow_start_until = (self.window / 2.0).max(2.0);
        // RFC 5681 §3.1: the loss window is one segment.
        self.window = 1.0;
        self.timeout_start = now;
    }
}
