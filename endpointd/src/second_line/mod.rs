//! The second line: what daemons do among themselves while the allocator is lost (dart §III,
//! *direct apportioning of sending rates*).
//!
//! A sender's daemon tells each receiver's daemon that it has flows. The receiver counts its
//! senders and answers with each one's share of its downlink. The sender paces its flows within the
//! shares and its uplink. Every share has the allocator's lease: when shares stop, sockets are
//! plain TCP.
//!
//! | module | what lives there |
//! |---|---|
//! | [`message`] | the two messages |
//! | [`receiver`] | senders of this host and their shares; sans-IO |
//! | [`sender`] | demands, and the shares that came back; sans-IO |
//! | [`apportion`] | rates of flows from shares and uplink |
//! | [`directory`], [`peers`] | who is who, and QUIC between daemons |

pub mod apportion;
pub mod directory;
pub mod message;
pub mod peers;
pub mod receiver;
pub mod sender;

use indexmap::IndexMap;
use ratewright_proto::control::AccessCapacity;
use rustc_hash::FxBuildHasher;
use serde::Serialize;

use crate::samples::Summary;
use crate::telemetry::senders::ActiveSender;
use apportion::{FlowDemand, flow_rates};
use message::PeerMessage;
use peers::PeerCounters;
use receiver::ReceiverShares;
use sender::{LeasedShare, SenderShares};

/// Part of the uplink that flows get, in 64ths.
const UPLINK_USED: u64 = 63;

/// State of the second line for operators.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SecondLineStatus {
    /// The configuration turns it on.
    pub enabled: bool,
    /// The allocator is lost: flows are paced within receivers' shares.
    pub engaged: bool,
    /// Times that it was engaged.
    pub engagements: u64,
    /// Receivers that this host sends to, and those whose share holds; while engaged.
    pub receivers: usize,
    /// Receivers whose share holds.
    pub shares: usize,
    /// Senders that announced themselves to this host.
    pub announced_senders: usize,
    /// All active senders towards this host as the second line counts them.
    pub senders: usize,
    /// Latency from a demand to the share that answers it, in microseconds.
    pub share_us: Summary,
    /// Connections with other daemons.
    pub peers: PeerCounters,
}

/// Both sides of one host. Sans-IO.
#[derive(Debug, Default)]
pub struct SecondLine {
    receiver: ReceiverShares,
    sender: SenderShares,
    uplink_bps: u64,
    engaged: bool,
    engagements: u64,
    /// The present flows are to be set.
    flows_changed: bool,
    /// Rates are to be computed.
    rates_due: bool,
}

impl SecondLine {
    /// Takes what the allocator says at a session's beginning, and disengages. `first_seq` is the
    /// present time of day, in microseconds.
    pub fn on_session(
        &mut self,
        now_ns: u64,
        access: AccessCapacity,
        lease_ns: u64,
        first_seq: u64,
    ) {
        self.uplink_bps = access.uplink_bps / 64 * UPLINK_USED;
        self.receiver.configure(access.downlink_bps, lease_ns);
        self.sender.configure(lease_ns, first_seq);
        self.disengage(now_ns);
    }

    /// Begins to pace by shares: the allocator is lost.
    pub fn engage(&mut self) {
        if !self.engaged {
            self.engaged = true;
            self.engagements += 1;
            self.flows_changed = true;
        }
    }

    /// Gives all shares back.
    pub fn disengage(&mut self, now_ns: u64) {
        self.engaged = false;
        self.rates_due = false;
        self.sender.set_flows(now_ns, &IndexMap::default());
    }

    /// Returns true while the allocator is lost.
    #[must_use]
    pub fn is_engaged(&self) -> bool {
        self.engaged
    }

    /// Notes that a flow began, ended or changed its demand.
    pub fn on_flows_changed(&mut self) {
        self.flows_changed = true;
    }

    /// Returns true once if [`set_flows`](Self::set_flows) is to be called.
    pub fn take_flows_changed(&mut self) -> bool {
        self.engaged && std::mem::take(&mut self.flows_changed)
    }

    /// Sets the present flows.
    pub fn set_flows(&mut self, now_ns: u64, flows: &[FlowDemand]) {
        let mut counts: IndexMap<u32, u32, FxBuildHasher> = IndexMap::default();
        for flow in flows {
            *counts.entry(flow.host).or_default() += 1;
        }
        self.sender.set_flows(now_ns, &counts);
        self.rates_due = true;
    }

    /// Returns true once if the flows' rates are to be [computed](Self::rates) again.
    pub fn take_rates_due(&mut self) -> bool {
        self.engaged && std::mem::take(&mut self.rates_due)
    }

    /// Computes the flows' rates; see [`flow_rates`].
    #[must_use]
    pub fn rates(&self, now_ns: u64, flows: &[FlowDemand]) -> Vec<Option<LeasedShare>> {
        flow_rates(flows, self.uplink_bps, |host| {
            self.sender.share(now_ns, host)
        })
    }

    /// Takes a message of the daemon of `host`.
    pub fn on_message(&mut self, now_ns: u64, host: u32, message: &PeerMessage) {
        match message {
            PeerMessage::Demand { seq, flows } => {
                self.receiver.on_demand(now_ns, host, *seq, *flows);
            }
            PeerMessage::Share(share) => {
                self.rates_due |= self.sender.on_share(now_ns, host, share);
            }
        }
    }

    /// Takes the time from a demand to the share that answered it, if one did since the last call.
    pub fn take_answer_ns(&mut self) -> Option<u64> {
        self.sender.take_answer_ns()
    }

    /// Handles that the daemon of `host` can be reached now.
    pub fn on_reachable(&mut self, now_ns: u64, host: u32) {
        self.sender.on_reachable(now_ns, host);
    }

    /// Takes the active senders as the host's own sockets show them.
    pub fn on_measured(&mut self, now_ns: u64, active: &[ActiveSender]) {
        self.receiver.on_measured(now_ns, active);
    }

    /// Takes the next message, with the host that it goes to.
    pub fn poll(&mut self, now_ns: u64) -> Option<(u32, PeerMessage)> {
        if let Some((host, share)) = self.receiver.poll() {
            return Some((host, PeerMessage::Share(share)));
        }
        let (host, seq, flows) = self.sender.poll(now_ns)?;
        Some((host, PeerMessage::Demand { seq, flows }))
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) or [`poll`](Self::poll) is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let timeouts = [self.receiver.next_timeout(), self.sender.next_timeout()];
        timeouts.into_iter().flatten().min()
    }

    /// Runs the timers.
    pub fn on_timeout(&mut self, now_ns: u64) {
        self.receiver.on_timeout(now_ns);
    }

    /// Returns the state for operators.
    #[must_use]
    pub fn status(&self, now_ns: u64, peers: PeerCounters) -> SecondLineStatus {
        let (receivers, shares) = self.sender.counts(now_ns);
        SecondLineStatus {
            enabled: true,
            engaged: self.engaged,
            engagements: self.engagements,
            receivers,
            shares,
            announced_senders: self.receiver.members(),
            senders: self.receiver.senders(),
            share_us: Summary::default(),
            peers,
        }
    }
}

#[cfg(test)]
mod tests;
