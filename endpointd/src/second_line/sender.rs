//! The sender's side: demands towards receivers, and the shares that come back.
//!
//! A share holds for one lease after this host has *sent* the demand that it echoes, so no clock is
//! shared and a share that was delayed is dead on arrival.
//!
//! Sans-IO. Bounded: one entry per receiver with flows, at most [`MAX_RECEIVERS`].

use std::collections::VecDeque;

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use super::message::Share;

/// Most receivers to which demands go; flows to others are plain TCP.
pub const MAX_RECEIVERS: usize = 256;
/// Demands whose sending times are kept, for each receiver.
const SENT_TIMES: usize = 64;
/// Demands are repeated this often in a lease.
const REPEATS_PER_LEASE: u64 = 4;
/// Least share that is obeyed. A receiver could slow its senders by its TCP window anyway; this
/// keeps a share from being a flow's end.
const MIN_SHARE_BPS: u64 = 1_000_000;

/// A share that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasedShare {
    /// The share at Ethernet level.
    pub rate_bps: u64,
    /// End of its lease on this host's clock.
    pub expires_ns: u64,
}

#[derive(Debug, Default)]
struct Receiver {
    flows: u32,
    /// Newest demand that was sent, and the sending times of the newest ones.
    seq: u64,
    sent: VecDeque<(u64, u64)>,
    /// Time of the next demand.
    due_ns: u64,
    /// Newest share.
    share_seq: u64,
    share: Option<LeasedShare>,
    /// Newest demand that a share has answered.
    answered: u64,
}

/// Demands and shares of this host as a sender.
#[derive(Debug, Default)]
pub struct SenderShares {
    lease_ns: u64,
    receivers: IndexMap<u32, Receiver, FxBuildHasher>,
    /// Receivers that are to learn that this host has nothing more to send.
    ended: VecDeque<(u32, u64)>,
    /// Time that the newest first answer to a demand took.
    answer_ns: Option<u64>,
    /// Demands never repeat a number, also not after a receiver was forgotten.
    seq: u64,
}

impl SenderShares {
    /// Sets the lease of a share, and the number after which demands count. Two daemons of one
    /// host, one after the other, never use one number twice if that is a time.
    pub fn configure(&mut self, lease_ns: u64, first_seq: u64) {
        self.lease_ns = lease_ns;
        self.seq = self.seq.max(first_seq);
    }

    /// Sets the number of flows for each receiver. New receivers get a demand at once, those
    /// without flows an end.
    pub fn set_flows(&mut self, now_ns: u64, flows: &IndexMap<u32, u32, FxBuildHasher>) {
        let (ended, seq) = (&mut self.ended, &mut self.seq);
        self.receivers.retain(|host, _| {
            let stays = flows.contains_key(host);
            if !stays {
                *seq += 1;
                ended.push_back((*host, *seq));
            }
            stays
        });
        for (&host, &count) in flows {
            if let Some(receiver) = self.receivers.get_mut(&host) {
                receiver.flows = count;
            } else if self.receivers.len() < MAX_RECEIVERS {
                let receiver = Receiver {
                    flows: count,
                    due_ns: now_ns,
                    ..Receiver::default()
                };
                self.receivers.insert(host, receiver);
            }
        }
    }

    /// Takes the next demand that is due: receiver, number and flows.
    pub fn poll(&mut self, now_ns: u64) -> Option<(u32, u64, u32)> {
        if let Some((host, seq)) = self.ended.pop_front() {
            return Some((host, seq, 0));
        }
        let due = self.receivers.iter_mut();
        let (&host, receiver) = due
            .filter(|(_, receiver)| receiver.due_ns <= now_ns)
            .min_by_key(|(_, receiver)| receiver.due_ns)?;
        self.seq += 1;
        receiver.seq = self.seq;
        receiver.due_ns = now_ns + (self.lease_ns / REPEATS_PER_LEASE).max(1_000_000);
        if receiver.sent.len() == SENT_TIMES {
            receiver.sent.pop_front();
        }
        receiver.sent.push_back((self.seq, now_ns));
        Some((host, self.seq, receiver.flows))
    }

    /// Returns the time at which [`poll`](Self::poll) has something.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if !self.ended.is_empty() {
            return Some(0);
        }
        self.receivers
            .values()
            .map(|receiver| receiver.due_ns)
            .min()
    }

    /// Sends a demand at once to the receiver `host`, because it can be reached now.
    pub fn on_reachable(&mut self, now_ns: u64, host: u32) {
        if let Some(receiver) = self.receivers.get_mut(&host) {
            receiver.due_ns = now_ns;
        }
    }

    /// Takes a share from the receiver `host`. Returns true if it holds; one that is older than
    /// another, expired, or without a demand, changes nothing.
    pub fn on_share(&mut self, now_ns: u64, host: u32, share: &Share) -> bool {
        let Some(receiver) = self.receivers.get_mut(&host) else {
            return false;
        };
        let sent = receiver.sent.iter().find(|(seq, _)| *seq == share.echo);
        let Some(&(_, sent_ns)) = sent else {
            return false;
        };
        let expires_ns = sent_ns.saturating_add(self.lease_ns);
        if share.seq <= receiver.share_seq || expires_ns <= now_ns {
            return false;
        }
        if share.echo > receiver.answered {
            receiver.answered = share.echo;
            self.answer_ns = Some(now_ns.saturating_sub(sent_ns));
        }
        receiver.share_seq = share.seq;
        receiver.share = Some(LeasedShare {
            rate_bps: share.rate_bps.max(MIN_SHARE_BPS),
            expires_ns,
        });
        true
    }

    /// Takes the time from a demand to the share that answered it, if one did since the last call.
    pub fn take_answer_ns(&mut self) -> Option<u64> {
        self.answer_ns.take()
    }

    /// Returns the share of the receiver `host`, if one holds.
    #[must_use]
    pub fn share(&self, now_ns: u64, host: u32) -> Option<LeasedShare> {
        let share = self.receivers.get(&host)?.share?;
        (share.expires_ns > now_ns).then_some(share)
    }

    /// Returns the numbers of receivers and of shares that hold.
    #[must_use]
    pub fn counts(&self, now_ns: u64) -> (usize, usize) {
        let shares = self.receivers.keys();
        let held = shares.filter(|&&host| self.share(now_ns, host).is_some());
        (self.receivers.len(), held.count())
    }
}

#[cfg(test)]
mod tests;
