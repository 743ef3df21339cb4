//! A sender: notifications, grants, and the order of tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::RngExt as _;

use super::receiver::token_of;
use super::{DcpimHost, PROMPT, SENDER_STAGE};
use crate::flow::FlowId;
use crate::host::{Arbiter, Pull, Timer, Turn};
use crate::packet::{Packet, PacketKind};
use crate::time::Time;
use crate::transport::Context;
use crate::transport::message::MessageSegment;

/// State of a message at its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    packets: u64,
    /// It needs no tokens.
    is_short: bool,
    /// Tokens that wait for the link, and the bytes that were left when the first of them came.
    tokens: u32,
    remaining: u64,
}

/// A request that waits for the sender's part of the round.
#[derive(Clone, Copy, Debug)]
struct Requested {
    /// Place that the receiver gave it in the first round; a random number in others.
    order: u64,
    flow: FlowId,
    slot: u32,
    links: u32,
}

/// A token that waits for the link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Token {
    /// Those before their data phase go last.
    prompt: bool,
    /// Bytes that the message had left, for all of its tokens that wait at once: of one message
    /// the first goes first.
    remaining: u64,
    /// Number in order of arrival.
    number: u64,
    flow: u32,
    slot: u32,
    first: u64,
    end: u64,
    /// Number that its receiver gave it.
    issued: u64,
    expires: Time,
}

/// Channels that receivers accepted for the data phase of a matching.
#[derive(Clone, Copy, Debug, Default)]
struct Matched {
    epoch: u64,
    links: u32,
}

/// The sending part of a host.
#[derive(Debug)]
pub(super) struct Sender {
    /// Short messages.
    arbiter: Arbiter,
    tokens: BinaryHeap<Reverse<Token>>,
    arrivals: u64,
    requests: Vec<Requested>,
    /// Of even and odd matchings: of the present one and of the one before.
    matched: [Matched; 2],
    has_stage_timer: bool,
    /// Counters.
    pub(super) used: u64,
    pub(super) expired: u64,
}

impl Sender {
    pub(super) fn new(arbiter: Arbiter) -> Self {
        Self {
            arbiter,
            tokens: BinaryHeap::new(),
            arrivals: 0,
            requests: Vec::new(),
            matched: [Matched::default(); 2],
            has_stage_timer: false,
            used: 0,
            expired: 0,
        }
    }

    /// Returns the tokens that came, as far as they could be used.
    pub(super) fn came(&self) -> u64 {
        self.arrivals
    }

    /// Returns the tokens that wait for the link.
    pub(super) fn waiting(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Returns the channels that are matched in a matching.
    fn links(&mut self, epoch: u64) -> &mut u32 {
        let matched = &mut self.matched[(epoch % 2) as usize];
        if matched.epoch != epoch {
            *matched = Matched { epoch, links: 0 };
        }
        &mut matched.links
    }
}

impl DcpimHost {
    /// Begins a message: notifies its receiver, and sends it if it is short.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let spec = cx.flow(flow);
        let (bytes, dst) = (spec.bytes, spec.dst);
        let is_short = self.config.is_short(bytes);
        let own = Sent {
            packets: self.config.packets(bytes),
            is_short,
            tokens: 0,
            remaining: bytes,
        };
        let allowed_bytes = if is_short { bytes } else { 0 };
        let slot = self.messages.start(cx, flow, allowed_bytes, own);
        let ends = (flow, dst);
        let notification = self.messages.control(cx, PacketKind::Request, ends, [0; 2]);
        cx.send(notification);
        self.enqueue(cx, slot);
    }

    /// Gives a short message its place among those that may send.
    pub(super) fn enqueue(&mut self, cx: &mut Context<'_>, slot: u32) {
        if let Some(message) = self.messages.outgoing(slot)
            && !message.queued
            && message.has_segment()
        {
            message.queued = true;
            self.sender.arbiter.ready(slot, message.remaining_bytes());
            cx.wake();
        }
    }

    /// Takes a request for channels.
    pub(super) fn on_request(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        let Some(slot) = self.messages.sent_by(cx, packet) else {
            return;
        };
        let is_first_round = packet.seq >> 32 == 0;
        let order = if is_first_round {
            packet.ack
        } else {
            cx.rng().random()
        };
        self.sender.requests.push(Requested {
            order,
            flow: packet.flow,
            slot,
            links: packet.seq as u32,
        });
        if !self.sender.has_stage_timer {
            self.sender.has_stage_timer = true;
            let (kind, slot) = (SENDER_STAGE, 0);
            let at = self.config.clock.senders(cx.now()).at;
            cx.timer(at, Timer { kind, slot });
        }
    }

    /// Grants the channels that are free to those that asked.
    pub(super) fn on_sender_stage(&mut self, cx: &mut Context<'_>) {
        self.sender.has_stage_timer = false;
        let epoch = self.config.clock.senders(cx.now()).epoch;
        let mut requests = std::mem::take(&mut self.sender.requests);
        requests.sort_unstable_by_key(|each| (each.order, each.flow));
        let channels = self.config.channels;
        let matched = *self.sender.links(epoch);
        let mut free = channels.saturating_sub(matched);
        // Channels of the present data phase that no match has.
        let before = epoch.checked_sub(1).map(|epoch| *self.sender.links(epoch));
        let in_use = before.unwrap_or(0) + matched;
        let mut free_now = channels.saturating_sub(in_use);
        for request in requests.drain(..) {
            let links = request.links.min(free);
            let message = self.messages.outgoing(request.slot);
            let Some(message) = message.filter(|m| m.id == request.flow && !m.done && links > 0)
            else {
                continue;
            };
            free -= links;
            let prompt = links.min(free_now);
            free_now -= prompt;
            let ends = (request.flow, message.dst);
            let words = [u64::from(links) | u64::from(prompt) << 32, epoch];
            let grant = self.messages.control(cx, PacketKind::Grant, ends, words);
            cx.send(grant);
        }
        self.sender.requests = requests;
    }

    /// Takes a receiver's word that it uses a grant.
    pub(super) fn on_accept(&mut self, packet: &Packet) {
        *self.sender.links(packet.ack) += packet.seq as u32;
    }

    /// Takes a token: one packet may leave until the end of its data phase.
    pub(super) fn on_token(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        let Some(slot) = self.messages.sent_by(cx, packet) else {
            return;
        };
        let Some(message) = self.messages.outgoing(slot) else {
            return;
        };
        if message.has_segment() {
            // A short message that has not left: it needs no token.
            return;
        }
        if message.own.tokens == 0 {
            message.own.remaining = message.remaining_bytes();
        }
        message.own.tokens += 1;
        let remaining = message.own.remaining;
        self.sender.arrivals += 1;
        let (first, end, issued) = token_of([packet.seq, packet.ack]);
        self.sender.tokens.push(Reverse(Token {
            prompt: packet.flags.contains(PROMPT),
            remaining,
            number: self.sender.arrivals,
            flow: packet.flow.0,
            slot,
            first,
            end,
            issued,
            expires: self.config.clock.data_ends(packet.stamp) + self.config.token_grace,
        }));
        cx.wake();
    }

    /// Returns the next packet: short messages go first, then the tokens of the shortest.
    pub(super) fn next_packet(&mut self, cx: &mut Context<'_>) -> Pull {
        let open = cx.open_classes();
        let mss_bytes = cx.framing().mss_bytes;
        self.sender.arbiter.release(open);
        while let Turn::Slot(slot) = self.sender.arbiter.next(cx.now()) {
            let Some(message) = self.messages.outgoing(slot) else {
                continue;
            };
            if message.done {
                self.messages.forget(slot);
                continue;
            }
            let class = self
                .config
                .priorities
                .class(message.own.packets, true, false);
            if !open.contains(class.into()) {
                let remaining = message.remaining_bytes();
                self.sender.arbiter.hold(slot, remaining, class);
                continue;
            }
            message.queued = false;
            let Some(segment) = message.segment(mss_bytes) else {
                continue;
            };
            let Some(packet) = self.messages.data(cx, slot, segment, class) else {
                continue;
            };
            if let Some(message) = self.messages.outgoing(slot)
                && message.has_segment()
            {
                message.queued = true;
                let remaining = message.remaining_bytes();
                self.sender.arbiter.again(slot, remaining);
            }
            return Pull::Packet(packet);
        }
        while let Some(&Reverse(token)) = self.sender.tokens.peek() {
            let message = self.messages.outgoing(token.slot);
            let Some(message) = message.filter(|m| m.id.0 == token.flow && !m.done) else {
                self.sender.tokens.pop();
                self.sender.expired += 1;
                continue;
            };
            if cx.now() > token.expires {
                message.own.tokens -= 1;
                self.sender.tokens.pop();
                self.sender.expired += 1;
                continue;
            }
            let own = message.own;
            let priorities = self.config.priorities;
            let class = priorities.class(own.packets, own.is_short, token.prompt);
            if !open.contains(class.into()) {
                return Pull::Nothing;
            }
            message.own.tokens -= 1;
            self.sender.tokens.pop();
            // Of a message that was stopped, its end is what its receiver has to know.
            let first = token.first.min(message.bytes.saturating_sub(1));
            let bytes = token.end.min(message.bytes).saturating_sub(first);
            let segment = MessageSegment {
                seq: first,
                bytes: bytes.clamp(1, mss_bytes.into()) as u16,
                again: first < message.sent_bytes(),
            };
            let Some(mut packet) = self.messages.data(cx, token.slot, segment, class) else {
                continue;
            };
            packet.ack = token.issued;
            self.sender.used += 1;
            return Pull::Packet(packet);
        }
        Pull::Nothing
    }
}
