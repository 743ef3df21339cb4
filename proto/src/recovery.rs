//! Round-trip times, sent packets and loss detection, after RFC 6298 and RFC 9002.
//!
//! A datagram is lost when one sent three or more later has been acknowledged, or when no
//! acknowledgement arrives within the retransmission timeout. The timeout doubles with every
//! timeout in a row. It includes the peer's acknowledgement delay: little for datagrams that ask
//! for a prompt acknowledgement. Only those give round-trip samples. Lost datagrams are not sent
//! again: the session learns their slots and sends the newest state of these (flowtune §5.1,
//! Protocol).

use std::collections::VecDeque;

use crate::datagram::prompt_ack_delay_ns;
use crate::sequence::ACK_WINDOW;

/// Datagrams that must have been acknowledged past one to call it lost.
pub const REORDER_THRESHOLD: u64 = 3;
/// Maximum number of doublings of the timeout.
const MAX_BACKOFF: u32 = 6;

/// Smoothed round-trip time and its variation (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub struct RttEstimate {
    srtt_ns: Option<u64>,
    rttvar_ns: u64,
}

impl RttEstimate {
    /// Takes a sample.
    pub fn sample(&mut self, rtt_ns: u64) {
        match self.srtt_ns {
            None => {
                self.srtt_ns = Some(rtt_ns);
                // RFC 6298 §2.2.
                self.rttvar_ns = rtt_ns / 2;
            }
            Some(srtt) => {
                // RFC 6298 §2.3 with α = 1/8 and β = 1/4; the variation uses the old smoothed time.
                let error = srtt.abs_diff(rtt_ns);
                self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + error / 4;
                self.srtt_ns = Some(srtt - srtt / 8 + rtt_ns / 8);
            }
        }
    }

    /// The smoothed round-trip time, once one was measured.
    pub fn srtt_ns(&self) -> Option<u64> {
        self.srtt_ns
    }

    /// Retransmission timeout without back-off (RFC 6298 §2.3): smoothed time plus four variations.
    fn timeout_ns(&self, initial_ns: u64) -> u64 {
        self.srtt_ns.map_or(initial_ns, |srtt| {
            srtt.saturating_add(4 * self.rttvar_ns.min(u64::MAX / 8))
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketState {
    InFlight,
    Resolved,
}

#[derive(Clone, Copy, Debug)]
struct SentPacket {
    seq: u64,
    sent_ns: u64,
    /// Entries of `slots` that belong to this datagram.
    slots: u32,
    /// The datagram asked for a prompt acknowledgement.
    prompt: bool,
    state: PacketState,
}

/// Fate of an ack-eliciting datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// The peer has acknowledged the datagram.
    Acked,
    /// The datagram counts as lost.
    Lost,
}

/// Bounds of the sent packets and of the timeout.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryConfig {
    /// Ack-eliciting datagrams in flight at most.
    pub max_in_flight: usize,
    /// Floor of the timeout.
    pub min_rto_ns: u64,
    /// Timeout before the first round-trip sample.
    pub initial_rto_ns: u64,
    /// Ceiling of the timeout, back-off included and the peer's acknowledgement delay not included.
    pub max_rto_ns: u64,
    /// Longest time for which the peer delays an acknowledgement.
    pub peer_ack_delay_ns: u64,
}

/// Ack-eliciting datagrams in flight, each with the slots of its records.
#[derive(Debug)]
pub struct SentPackets {
    config: RecoveryConfig,
    sent: VecDeque<SentPacket>,
    slots: VecDeque<u32>,
    /// Numbers and sending times of datagrams that ask for a prompt acknowledgement. The front is
    /// in flight.
    prompt: VecDeque<(u64, u64)>,
    in_flight: usize,
    largest_acked: Option<u64>,
    rtt: RttEstimate,
    backoff: u32,
}

impl SentPackets {
    /// An empty record of sent packets.
    pub fn new(config: RecoveryConfig) -> Self {
        Self {
            config,
            sent: VecDeque::new(),
            slots: VecDeque::new(),
            prompt: VecDeque::new(),
            in_flight: 0,
            largest_acked: None,
            rtt: RttEstimate::default(),
            backoff: 0,
        }
    }

    /// Returns true if another ack-eliciting datagram may be sent.
    pub fn has_room(&self) -> bool {
        self.sent.len() < self.config.max_in_flight
    }

    /// Ack-eliciting datagrams that are neither acknowledged nor lost.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The round-trip estimate.
    pub fn rtt(&self) -> &RttEstimate {
        &self.rtt
    }

    /// Records a slot of the datagram that is being built.
    pub fn push_slot(&mut self, slot: u32) {
        self.slots.push_back(slot);
    }

    /// Records an ack-eliciting datagram with the last `slots` pushed slots; `prompt` if it asks
    /// for a prompt acknowledgement.
    pub fn push(&mut self, seq: u64, sent_ns: u64, slots: u32, prompt: bool) {
        self.sent.push_back(SentPacket {
            seq,
            sent_ns,
            slots,
            prompt,
            state: PacketState::InFlight,
        });
        if prompt {
            self.prompt.push_back((seq, sent_ns));
        }
        self.in_flight += 1;
    }

    fn rto_ns(&self, prompt: bool) -> u64 {
        let held_back_ns = if prompt {
            prompt_ack_delay_ns(self.config.peer_ack_delay_ns)
        } else {
            self.config.peer_ack_delay_ns
        };
        self.rtt
            .timeout_ns(self.config.initial_rto_ns)
            // The peer's delay is added after the ceiling: a slow peer is not a lost datagram.
            .saturating_mul(1 << self.backoff)
            .min(self.config.max_rto_ns)
            .saturating_add(held_back_ns)
            .max(self.config.min_rto_ns)
    }

    /// Time of the next [`on_timeout`](Self::on_timeout); `None` if nothing is in flight.
    pub fn deadline(&self) -> Option<u64> {
        // `retire` keeps resolved datagrams off both fronts, so each front is the oldest in flight.
        let oldest = self.sent.front()?;
        let any_ns = oldest.sent_ns.saturating_add(self.rto_ns(oldest.prompt));
        let prompt_ns = self
            .prompt
            .front()
            .map(|&(_, sent_ns)| sent_ns.saturating_add(self.rto_ns(true)));
        Some(prompt_ns.map_or(any_ns, |prompt_ns| prompt_ns.min(any_ns)))
    }

    /// Takes an acknowledgement of `largest` and, by bit `i` of `bitmap`, of `largest − 1 − i`.
    /// Calls `resolve(seq, slot, outcome)` for every slot of every datagram that was acknowledged
    /// or, by that, lost. Returns the number of datagrams lost.
    pub fn on_ack(
        &mut self,
        now_ns: u64,
        largest: u64,
        bitmap: u64,
        mut resolve: impl FnMut(u64, u32, AckOutcome),
    ) -> u64 {
        let advanced = self.largest_acked.is_none_or(|before| largest > before);
        if advanced {
            self.largest_acked = Some(largest);
        }
        // Acknowledgements arrive reordered: losses count from the newest that any of them named.
        let newest = self.largest_acked.unwrap_or(largest);
        let mut lost = 0;
        let mut progress = false;
        // `slots` holds the slots of all datagrams in order of sending, so a running index finds
        // each share.
        let mut slot_at = 0;
        for entry in &mut self.sent {
            if entry.seq > newest {
                break;
            }
            let slots = slot_at..slot_at + entry.slots as usize;
            slot_at = slots.end;
            if entry.state == PacketState::Resolved {
                continue;
            }
            let acked = entry.seq == largest
                || entry.seq < largest
                    && largest - 1 - entry.seq < ACK_WINDOW
                    && bitmap >> (largest - 1 - entry.seq) & 1 == 1;
            let outcome = if acked {
                progress = true;
                // Others may include up to the peer's whole acknowledgement delay, which is no
                // network time.
                if entry.seq == largest && advanced && entry.prompt {
                    self.rtt.sample(now_ns.saturating_sub(entry.sent_ns));
                }
                AckOutcome::Acked
            } else if entry.seq + REORDER_THRESHOLD <= newest {
                lost += 1;
                AckOutcome::Lost
            } else {
                continue;
            };
            entry.state = PacketState::Resolved;
            // Resolved once: the state guards against a second count.
            self.in_flight -= 1;
            for &slot in self.slots.range(slots) {
                resolve(entry.seq, slot, outcome);
            }
        }
        // An answer ends a row of timeouts (RFC 9002 §6.2.1).
        if progress {
            self.backoff = 0;
        }
        self.retire();
        lost
    }

    /// Declares every datagram lost whose timeout has passed, and doubles the next timeout. Calls
    /// `resolve(seq, slot)` for their slots; returns the number of datagrams.
    pub fn on_timeout(&mut self, now_ns: u64, mut resolve: impl FnMut(u64, u32)) -> u64 {
        let (prompt_ns, rto_ns) = (self.rto_ns(true), self.rto_ns(false));
        let mut lost = 0;
        let mut slot_at = 0;
        for entry in &mut self.sent {
            // Datagrams stand in order of sending and the prompt timeout is the shorter: no later
            // one is due.
            if entry.sent_ns.saturating_add(prompt_ns) > now_ns {
                break;
            }
            let slots = slot_at..slot_at + entry.slots as usize;
            slot_at = slots.end;
            let waits = !entry.prompt && entry.sent_ns.saturating_add(rto_ns) > now_ns;
            if entry.state == PacketState::Resolved || waits {
                continue;
            }
            entry.state = PacketState::Resolved;
            self.in_flight -= 1;
            lost += 1;
            for &slot in self.slots.range(slots) {
                resolve(entry.seq, slot);
            }
        }
        // One doubling per call, however many datagrams it takes: they share one cause.
        if lost > 0 {
            self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        }
        self.retire();
        lost
    }

    /// Removes the resolved datagrams at the front.
    fn retire(&mut self) {
        while let Some(front) = self.sent.front() {
            if front.state == PacketState::InFlight {
                break;
            }
            // Slots leave with their datagram, so both queues stay aligned.
            self.slots.drain(..front.slots as usize);
            self.sent.pop_front();
        }
        while let Some(&(seq, _)) = self.prompt.front() {
            // `sent` is sorted by number, and a front that `sent` no longer holds was resolved.
            let at = self.sent.partition_point(|entry| entry.seq < seq);
            let waits =
                |entry: &SentPacket| entry.seq == seq && entry.state == PacketState::InFlight;
            if self.sent.get(at).is_some_and(waits) {
                break;
            }
            self.prompt.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
