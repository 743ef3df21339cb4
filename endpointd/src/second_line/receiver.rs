//! The receiver's side: who sends to this host, and the share of each (dart §III-A and B).
//!
//! Senders announce themselves, as RDMA's message starts do in the paper. What the host's own
//! sockets show completes the set: senders that announce nothing hold their place, and a sender
//! that does not use its share leaves the rest to the others. Without that, C/n would waste what a
//! slow sender leaves, and be worse than TCP.
//!
//! Sans-IO. Bounded: one entry per host, at most [`MAX_MEMBERS`].

use std::collections::VecDeque;

use indexmap::IndexMap;
use ratewright_proto::telemetry::SenderName;
use rustc_hash::FxBuildHasher;

use super::message::Share;
use crate::telemetry::senders::ActiveSender;

/// Most senders that have a share; the others are plain TCP.
pub const MAX_MEMBERS: usize = 1_024;
/// Part of the downlink that is handed out, in 64ths: the rest keeps the queue empty.
const HANDED_OUT: u64 = 63;
/// Ethernet bytes for each payload byte of a full segment, as a fraction.
const WIRE: (u64, u64) = (1_514, 1_448);
/// A sender that gets less than this part of its share, in 16ths, does not use it,
const UNUSED: u64 = 12;
/// if that is measured so many times in a row. Fewer would punish one that is starting.
const UNUSED_TIMES: u32 = 5;
/// A limited sender that comes this close to its limit, in 16ths, is not limited any more.
const GROWING: u64 = 14;
/// A share is sent again when it differs by more than one in this many.
const THRESHOLD: u64 = 100;
/// Shortest time between two answers to one sender whose share stays the same.
const ANSWER_EVERY_NS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy)]
struct Member {
    /// Newest demand, and the end of its lease.
    demand_seq: u64,
    expires_ns: u64,
    /// Present share, and the one that was sent.
    share_bps: u64,
    sent_bps: u64,
    answered_ns: u64,
    /// Measurements in a row that show an unused share.
    unused: u32,
    /// Rate that it can use, if that is less than its share.
    limit_bps: Option<u64>,
}

/// Senders towards this host, and their shares.
#[derive(Debug, Default)]
pub struct ReceiverShares {
    capacity_bps: u64,
    lease_ns: u64,
    members: IndexMap<u32, Member, FxBuildHasher>,
    /// Wire rates of active senders that announce nothing.
    others_bps: Vec<u64>,
    /// Active senders, in the newest measurement.
    measured: Vec<ActiveSender>,
    seq: u64,
    outgoing: VecDeque<(u32, Share)>,
}

impl ReceiverShares {
    /// Sets the capacity of the downlink and the lease of a share. Without a capacity nobody gets a
    /// share.
    pub fn configure(&mut self, capacity_bps: u64, lease_ns: u64) {
        self.capacity_bps = capacity_bps;
        self.lease_ns = lease_ns;
    }

    /// Takes a host's demand. One that overtook a newer one is ignored.
    pub fn on_demand(&mut self, now_ns: u64, host: u32, seq: u64, flows: u32) {
        if self.capacity_bps == 0 {
            return;
        }
        self.on_timeout(now_ns);
        let known = self.members.get_mut(&host);
        if known
            .as_ref()
            .is_some_and(|member| member.demand_seq >= seq)
        {
            return;
        }
        if flows == 0 {
            if self.members.swap_remove(&host).is_some() {
                self.apportion(now_ns, None);
            }
            return;
        }
        let expires_ns = now_ns.saturating_add(self.lease_ns);
        if let Some(member) = known {
            member.demand_seq = seq;
            member.expires_ns = expires_ns;
            // The others' shares do not depend on a repeated demand.
            if now_ns.saturating_sub(member.answered_ns) >= ANSWER_EVERY_NS {
                self.answer(now_ns, host);
            }
            return;
        }
        if self.members.len() >= MAX_MEMBERS {
            return;
        }
        let member = Member {
            demand_seq: seq,
            expires_ns,
            share_bps: 0,
            sent_bps: 0,
            answered_ns: 0,
            unused: 0,
            limit_bps: None,
        };
        self.members.insert(host, member);
        self.sort_measured();
        self.apportion(now_ns, Some(host));
    }

    /// Takes the active senders as the host's own sockets show them.
    pub fn on_measured(&mut self, now_ns: u64, active: &[ActiveSender]) {
        self.expire(now_ns);
        self.measured.clear();
        self.measured.extend_from_slice(active);
        if self.members.is_empty() {
            return;
        }
        let fair_bps = self.fair_bps();
        for (&host, member) in &mut self.members {
            let name = SenderName::Host(host);
            let rate_bps = active
                .iter()
                .find(|sender| sender.name == name)
                .map_or(0, |sender| wire_bps(sender.rate_bps));
            member.judge(rate_bps, fair_bps);
        }
        self.sort_measured();
        self.apportion(now_ns, None);
    }

    /// Separates the measured senders that announce nothing.
    fn sort_measured(&mut self) {
        let members = &self.members;
        let others = self.measured.iter().filter(|sender| match sender.name {
            SenderName::Host(host) => !members.contains_key(&host),
            SenderName::Address(_) => true,
        });
        self.others_bps = others.map(|sender| wire_bps(sender.rate_bps)).collect();
    }

    /// Returns the size of the active unique sender set.
    #[must_use]
    pub fn senders(&self) -> usize {
        self.members.len() + self.others_bps.len()
    }

    /// Returns the number of senders with a share.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Takes the next message, with the host that it goes to.
    pub fn poll(&mut self) -> Option<(u32, Share)> {
        self.outgoing.pop_front()
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let members = self.members.values();
        members.map(|member| member.expires_ns).min()
    }

    /// Removes senders whose demand has expired.
    pub fn on_timeout(&mut self, now_ns: u64) {
        if self.expire(now_ns) {
            self.apportion(now_ns, None);
        }
    }

    fn expire(&mut self, now_ns: u64) -> bool {
        let before = self.members.len();
        self.members.retain(|_, member| member.expires_ns > now_ns);
        before != self.members.len()
    }

    fn handed_out_bps(&self) -> u64 {
        self.capacity_bps / 64 * HANDED_OUT
    }

    /// C/n.
    fn fair_bps(&self) -> u64 {
        self.handed_out_bps() / self.senders().max(1) as u64
    }

    /// Computes the shares, and sends those that changed, and that of `answered`.
    fn apportion(&mut self, now_ns: u64, answered: Option<u32>) {
        let unlimited = u64::MAX;
        let demands = self
            .members
            .values()
            .map(|member| member.limit_bps.unwrap_or(unlimited))
            // Others send what they can get. A little more than they have lets them grow.
            .chain(self.others_bps.iter().map(|&bps| bps + bps / 8));
        let level_bps = water_level(self.handed_out_bps(), demands.collect());
        // A limited sender keeps C/n: it may use that at once.
        let share_bps = level_bps.max(self.fair_bps());
        let mut changed = Vec::new();
        for (&host, member) in &mut self.members {
            member.share_bps = share_bps;
            let difference_bps = share_bps.abs_diff(member.sent_bps);
            if difference_bps > member.sent_bps / THRESHOLD || answered == Some(host) {
                changed.push(host);
            }
        }
        for host in changed {
            self.answer(now_ns, host);
        }
    }

    fn answer(&mut self, now_ns: u64, host: u32) {
        let senders = u32::try_from(self.senders()).unwrap_or(u32::MAX);
        let Some(member) = self.members.get_mut(&host) else {
            return;
        };
        self.seq += 1;
        member.sent_bps = member.share_bps;
        member.answered_ns = now_ns;
        let share = Share {
            seq: self.seq,
            echo: member.demand_seq,
            rate_bps: member.share_bps,
            senders,
        };
        // A share that still waits is replaced: the queue holds one for each host at most.
        self.outgoing.retain(|(waiting, _)| *waiting != host);
        self.outgoing.push_back((host, share));
    }
}

impl Member {
    /// Judges whether the sender uses its share, from the rate at which its bytes arrive.
    fn judge(&mut self, rate_bps: u64, fair_bps: u64) {
        let granted_bps = self.sent_bps;
        if let Some(limit_bps) = self.limit_bps
            && rate_bps >= limit_bps / 16 * GROWING
        {
            self.limit_bps = None;
            self.unused = 0;
            return;
        }
        if rate_bps >= granted_bps / 16 * UNUSED {
            self.unused = 0;
            self.limit_bps = None;
            return;
        }
        self.unused = self.unused.saturating_add(1);
        if self.unused >= UNUSED_TIMES {
            // Room to grow: a sender that fills it is not limited any more.
            self.limit_bps = Some((rate_bps + rate_bps / 4).max(fair_bps / 8));
        }
    }
}

fn wire_bps(payload_bps: u64) -> u64 {
    let (wire, payload) = WIRE;
    payload_bps.saturating_mul(wire) / payload
}

/// Returns the max-min level: no demand gets more than it, and what is left is nothing, or every
/// demand is met and the level is all that a further one could have.
pub(super) fn water_level(capacity_bps: u64, mut demands_bps: Vec<u64>) -> u64 {
    demands_bps.sort_unstable();
    let mut left_bps = capacity_bps;
    let count = demands_bps.len();
    for (index, demand_bps) in demands_bps.into_iter().enumerate() {
        let level_bps = left_bps / (count - index) as u64;
        if demand_bps >= level_bps {
            return level_bps;
        }
        left_bps -= demand_bps;
    }
    capacity_bps
}

#[cfg(test)]
mod tests;
