//! A receiver: its ledger of credit, and whom it gives credit next (SIRD §4.1, §4.4, algorithm 1).

use std::collections::BTreeMap;

use ratewright_topology::HostId;

use super::bucket::Bucket;
use super::{CREDIT, Order, Received, SirdConfig, SirdHost};
use crate::host::Timer;
use crate::packet::{Flags, Packet, PacketKind};
use crate::transport::Context;
use crate::transport::message::{Arrival, Incoming};

/// Credit of one receiver: a ledger that balances.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit {
    pub(super) issued: u64,
    /// Part of what was issued that senders took by themselves.
    pub(super) unscheduled: u64,
    pub(super) returned: u64,
    pub(super) reclaimed: u64,
    /// The most that was outstanding at once when credit was issued, senders' own included. That
    /// may exceed B as it comes: it is kept, and no credit is issued meanwhile.
    pub(super) most: u64,
}

impl Credit {
    pub(super) fn outstanding(&self) -> u64 {
        self.issued - self.returned - self.reclaimed
    }

    pub(super) fn issue(&mut self, bytes: u64) {
        self.issued += bytes;
        self.most = self.most.max(self.outstanding());
    }

    /// Counts what a sender took by itself, for an unscheduled message.
    pub(super) fn note_unscheduled(&mut self, bytes: u64) {
        self.issued += bytes;
        self.unscheduled += bytes;
    }
}

impl Incoming<Received> {
    /// Returns true if the sender has credit that it does not use: it answered two requests for
    /// these bytes by BUSY. The credit is free for others, and the message gets no other until all
    /// bytes have come that it was for.
    fn is_hoarded(&self) -> bool {
        self.own.busy_answers >= 2 && self.misses_any()
    }
}

/// A sender, as a receiver sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SenderState {
    /// Credit that is outstanding.
    pub(super) outstanding: u64,
    /// Bucket sizes by the sender's marks and by the core's.
    pub(super) buckets: [Bucket; 2],
    /// Number of the latest credit, for turns.
    pub(super) turn: u64,
    /// Credit that it was issued, and that came back as data, so far.
    pub(super) issued: u64,
    pub(super) returned: u64,
    /// Packets with credit so far, and those of them with its mark.
    pub(super) packets: u64,
    pub(super) csn_packets: u64,
}

impl SenderState {
    /// Returns the size of the lesser of its buckets.
    pub(super) fn limit(&self) -> f64 {
        let [by_sender, by_network] = &self.buckets;
        by_sender.bytes.min(by_network.bytes)
    }
}

impl SirdHost {
    /// Takes data, a request, or a probe, any of which may be the first that comes of a message.
    pub(super) fn on_data(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        let bytes = cx.flow(packet.flow).bytes;
        let simulator = self.config.simulator;
        let prefix = if simulator {
            // Data and probes name it.
            packet.ack.min(bytes)
        } else {
            self.config.prefix_bytes(bytes)
        };
        let is_data = packet.kind == PacketKind::Data;
        // Bytes behind the prefix have credit.
        let counts = simulator || !is_data || packet.end() > prefix;
        let (config, senders) = (&self.config, &mut self.senders);
        let (numbers, credit) = (&mut self.sender_numbers, &mut self.credit);
        let own = |_: &mut Context<'_>| {
            let mut received = Received::default();
            if simulator || prefix < bytes {
                received.sender = Self::sender(numbers, senders, config, packet.src);
            }
            if prefix > 0 && simulator {
                received.outstanding = config.wire_bytes(0, prefix);
                let sender = &mut senders[received.sender as usize];
                sender.outstanding += received.outstanding;
                sender.issued += received.outstanding;
                credit.note_unscheduled(received.outstanding);
            }
            (prefix, received)
        };
        let arrival = self.messages.on_data(cx, packet, own);
        let sender = match &arrival {
            Arrival::Late => return,
            Arrival::Complete(_, _, message) => message.own.sender,
            Arrival::More(slot, _) => match self.messages.incoming(*slot) {
                Some(message) => message.own.sender,
                None => return,
            },
        };
        if counts && (is_data || simulator) {
            self.heed_marks(sender, packet);
        }
        match arrival {
            Arrival::Late => {}
            Arrival::Complete(slot, _, message) => {
                self.give_back(sender, message.own.outstanding);
                if let Some(remaining) = message.own.waits {
                    self.waiting.remove(&(remaining, message.id.0, slot));
                }
            }
            Arrival::More(slot, new_bytes) => {
                let mut returned = 0;
                if let Some(message) = self.messages.incoming(slot) {
                    message.own.asked = false;
                    if new_bytes > 0 && !message.is_hoarded() {
                        message.own.busy_answers = 0;
                    }
                    if new_bytes > 0 && counts {
                        returned = u64::from(packet.wire_bytes).min(message.own.outstanding);
                        message.own.outstanding -= returned;
                    }
                }
                self.give_back(sender, returned);
                self.wait_for_credit(slot);
                if packet.kind == PacketKind::Probe {
                    self.messages.on_probe(cx, slot);
                }
            }
        }
        self.send_credits(cx);
    }

    /// Takes the marks of a packet of a sender.
    pub(super) fn heed_marks(&mut self, sender: u32, packet: &Packet) {
        let config = &self.config;
        let sender = &mut self.senders[sender as usize];
        if packet.kind == PacketKind::Data {
            sender.packets += 1;
            sender.csn_packets += u64::from(packet.flags.contains(Flags::CSN));
        }
        let floors = [config.sender_floor_bytes, config.network_floor_bytes];
        let marks = [Flags::CSN, Flags::CE];
        let simulated = config.simulator.then(|| {
            let full_bytes = config.framing.wire_bytes(config.framing.mss_bytes);
            (full_bytes, sender.limit())
        });
        for ((bucket, floor), mark) in sender.buckets.iter_mut().zip(floors).zip(marks) {
            let most = config.sender_credit_bytes;
            let marked = packet.flags.contains(mark);
            let (gain, bounds) = (config.gain, [floor.min(most), most]);
            match simulated {
                Some((full_bytes, limit)) => {
                    bucket.on_packet_of_simulator(full_bytes.into(), marked, (gain, limit), bounds);
                }
                None => bucket.on_packet(packet.wire_bytes.into(), marked, gain, bounds),
            }
        }
    }

    /// Returns the number of a sender, whose state is kept from its first message on.
    fn sender(
        numbers: &mut BTreeMap<HostId, u32>,
        senders: &mut Vec<SenderState>,
        config: &SirdConfig,
        host: HostId,
    ) -> u32 {
        let next = senders.len() as u32;
        let number = *numbers.entry(host).or_insert(next);
        if number == next {
            senders.push(SenderState {
                outstanding: 0,
                buckets: [Bucket::new(config.sender_credit_bytes); 2],
                turn: 0,
                issued: 0,
                returned: 0,
                packets: 0,
                csn_packets: 0,
            });
        }
        number
    }

    /// Takes credit back that came with data.
    fn give_back(&mut self, sender: u32, bytes: u64) {
        if bytes > 0 {
            let sender = &mut self.senders[sender as usize];
            sender.outstanding -= bytes;
            sender.returned += bytes;
            self.credit.returned += bytes;
        }
    }

    /// Puts a message among those that wait for credit, or at its new place there, or takes it out.
    pub(super) fn wait_for_credit(&mut self, slot: u32) {
        let Some(message) = self.messages.incoming(slot) else {
            return;
        };
        let may_wait = message.allowed < message.bytes && !message.is_hoarded();
        let waits = may_wait.then(|| message.remaining_bytes());
        let waited = std::mem::replace(&mut message.own.waits, waits);
        let flow = message.id.0;
        if waited != waits {
            if let Some(remaining) = waited {
                self.waiting.remove(&(remaining, flow, slot));
            }
            if let Some(remaining) = waits {
                self.waiting.insert((remaining, flow, slot));
            }
        }
    }

    /// Returns the credit that the message in a slot needs next, and the byte that it allows up to,
    /// if the buckets have as much.
    fn next_credit(&mut self, slot: u32) -> Option<(u64, u64)> {
        let config = &self.config;
        let message = self.messages.incoming(slot)?;
        let mss = u64::from(config.framing.mss_bytes);
        let end = message.allowed.saturating_add(mss).min(message.bytes);
        let bytes = config.wire_bytes(message.allowed, end);
        let sender = &self.senders[message.own.sender as usize];
        let bucket = sender.limit();
        let (before, after) = (sender.outstanding, sender.outstanding + bytes);
        let has_room = if config.simulator {
            before as f64 <= bucket && after as f64 <= config.sender_credit_bytes
        } else {
            after as f64 <= bucket
        };
        has_room.then_some((bytes, end))
    }

    /// Chooses the message that gets the next credit.
    fn choose(&mut self) -> Option<(u32, u64, u64)> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut best: Option<(u64, (u32, u64, u64))> = None;
        for &(_, _, slot) in &waiting {
            let Some((bytes, end)) = self.next_credit(slot) else {
                continue;
            };
            if self.credit.outstanding() + bytes > self.config.credit_bytes {
                continue;
            }
            let choice = (slot, bytes, end);
            if self.config.order == Order::Srpt {
                best = Some((0, choice));
                break;
            }
            let message = self.messages.incoming(slot);
            let sender = message.and_then(|m| self.senders.get(m.own.sender as usize));
            let turn = sender.map_or(0, |sender| sender.turn);
            // Of one sender, the shortest message came first.
            if best.is_none_or(|(earliest, _)| turn < earliest) {
                best = Some((turn, choice));
            }
        }
        self.waiting = waiting;
        best.map(|(_, choice)| choice)
    }

    /// Sends credit as long as buckets and pacer let it.
    pub(super) fn send_credits(&mut self, cx: &mut Context<'_>) {
        loop {
            // Nothing that waits needs less than an empty packet.
            let least = u64::from(self.config.framing.wire_bytes(1));
            let used = self.credit.outstanding();
            if self.waiting.is_empty() || used + least > self.config.credit_bytes {
                return;
            }
            let at = if self.config.pacing && cx.now() <= self.next_credit_at {
                self.next_credit_at
            } else {
                self.next_poll(cx.now())
            };
            if at > cx.now() {
                let (kind, slot) = (CREDIT, 0);
                if self.credit_timer.is_none() {
                    self.credit_timer = Some(cx.timer(at, Timer { kind, slot }));
                }
                return;
            }
            let Some((slot, bytes, end)) = self.choose() else {
                return;
            };
            let Some(message) = self.messages.incoming(slot) else {
                return;
            };
            message.allowed = end;
            message.own.outstanding += bytes;
            let ends = (message.id, message.src);
            let sender = &mut self.senders[message.own.sender as usize];
            self.credit.issue(bytes);
            sender.outstanding += bytes;
            sender.issued += bytes;
            sender.turn = self.credit.issued;
            self.wait_for_credit(slot);
            let gap = self.config.time_of(bytes);
            self.next_credit_at = self.next_credit_at.max(cx.now()) + gap;
            let credit = self
                .messages
                .control(cx, PacketKind::Grant, ends, [bytes, end]);
            cx.send(credit);
        }
    }

    /// Takes note of a message that was silent for a time-out. A sender that does not answer a
    /// request for bytes either is dead: its credit is free for others.
    pub(super) fn on_silence(&mut self, slot: u32) {
        let Some(message) = self.messages.incoming(slot) else {
            return;
        };
        if !std::mem::replace(&mut message.own.asked, true) {
            return;
        }
        // It gets no credit until something of it comes.
        self.reclaim(slot);
    }

    /// Takes the word of a sender that bytes are not lost which it may send: it has not come to
    /// them. A sender that says so twice, and sends none of them meanwhile, hoards their credit or
    /// has no use for it: it is free for others.
    pub(super) fn on_busy(&mut self, slot: u32) {
        let Some(message) = self.messages.incoming(slot) else {
            return;
        };
        message.own.asked = false;
        if message.misses_any() {
            message.own.busy_answers = message.own.busy_answers.saturating_add(1);
        }
        if message.is_hoarded() {
            self.reclaim(slot);
        } else {
            self.wait_for_credit(slot);
        }
    }

    /// Frees the credit of a message for others, and takes it out of those that wait for credit.
    /// The sender may still use it: of what comes then, nothing is given back.
    fn reclaim(&mut self, slot: u32) {
        let Some(message) = self.messages.incoming(slot) else {
            return;
        };
        let outstanding = std::mem::take(&mut message.own.outstanding);
        if outstanding > 0 {
            self.senders[message.own.sender as usize].outstanding -= outstanding;
            self.credit.reclaimed += outstanding;
        }
        let flow = message.id.0;
        if let Some(remaining) = message.own.waits.take() {
            self.waiting.remove(&(remaining, flow, slot));
        }
    }
}
