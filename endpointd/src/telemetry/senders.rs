//! The active senders towards this host, from its own sockets: DART's set of active unique senders
//! (dart §III-B), for unmodified TCP.
//!
//! RDMA marks a message's start and end, TCP does not. Here a sender is active while it is
//! backlogged, as far as a receiver can tell: while its bytes arrive at no less than a small part
//! of the fair share.
//!
//! Sans-IO: facts about sockets go in with their time, pass by pass.

use std::cmp::Reverse;

use indexmap::IndexMap;
use ratewright_proto::telemetry::{Moved, SendQueue, SenderName};
use rustc_hash::FxBuildHasher;

use super::sockets::SocketFacts;
use crate::flows::NetworkView;

/// Most sockets whose counters are remembered; more are counted and left out.
const MAX_SOCKETS: usize = 65_536;
/// Most senders that are remembered.
const MAX_SENDERS: usize = 4_096;
/// A sender counts from this part of the fair share on. Less would let a chatty sender halve the
/// others' rates; more would miss one that others' paced flows hold down.
const ACTIVE_SHARE: u64 = 16;
/// Least rate of an active sender.
const MIN_ACTIVE_BPS: u64 = 500_000;
/// A sender stays active for this long after its last activity. Bursts of one flow are closer
/// together, and two passes at the usual interval fit.
const HOLD_NS: u64 = 25_000_000;
/// Time over which a rate is smoothed.
const SMOOTHING_NS: u64 = 15_000_000;

/// An active sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveSender {
    /// The sender.
    pub name: SenderName,
    /// Payload rate at which its bytes arrive.
    pub rate_bps: u64,
    /// Its connections through which bytes arrive.
    pub flows: u32,
}

/// Sums over all sockets since the start; see [`SocketFacts`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SocketTotals {
    /// Payload received from other hosts.
    pub received_bytes: u64,
    /// Packets delivered to other hosts.
    pub delivered: u64,
    /// Those of them that came back with a congestion mark.
    pub delivered_ce: u64,
    /// Time with data to send, summed over sockets.
    pub busy_us: u64,
    /// Time in which a peer's receive window kept a socket from sending, likewise.
    pub rwnd_limited_us: u64,
    /// Sockets that were left out, because too many others were remembered.
    pub sockets_beyond_bound: u64,
    /// Senders that were left out, likewise.
    pub senders_beyond_bound: u64,
}

#[derive(Debug, Clone, Copy)]
struct SocketRecord {
    facts: SocketFacts,
    seen_in: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct SenderRecord {
    /// Bytes and connections of the pass under way.
    bytes: u64,
    flows: u32,
    /// Figures of the last pass in which bytes arrived.
    rate_bps: u64,
    last_flows: u32,
    active_ns: u64,
}

/// The sockets and senders of this host.
#[derive(Debug, Default)]
pub struct Senders {
    sockets: IndexMap<u64, SocketRecord, FxBuildHasher>,
    senders: IndexMap<SenderName, SenderRecord, FxBuildHasher>,
    totals: SocketTotals,
    pass: u64,
    /// Time at which the pass before ended; `None` before the first one.
    ended_ns: Option<u64>,
    /// Longest and summed round-trip time, and the number of sockets with one.
    rtts: (u32, u64, u64),
    /// Likewise of the whole pass before.
    pass_rtts: (u32, u64, u64),
}

impl Senders {
    /// Takes one socket of the pass under way. Returns what it moved, if that is known.
    pub fn on_socket(&mut self, facts: &SocketFacts, network: &NetworkView) -> Option<Moved> {
        if facts.peer.is_loopback() {
            return None;
        }
        let name = match network.destinations.host_of(facts.peer) {
            Some(host) if host == network.own_host => return None,
            Some(host) => SenderName::Host(host),
            None => SenderName::Address(facts.peer),
        };
        if facts.rtt_us > 0 {
            let (longest, sum, count) = &mut self.rtts;
            *longest = facts.rtt_us.max(*longest);
            *sum += u64::from(facts.rtt_us);
            *count += 1;
        }
        let remembered = self.sockets.len();
        let before = match self.sockets.get_mut(&facts.cookie) {
            Some(record) => {
                record.seen_in = self.pass;
                Some(std::mem::replace(&mut record.facts, *facts))
            }
            None if remembered >= MAX_SOCKETS => {
                self.totals.sockets_beyond_bound += 1;
                return None;
            }
            None => {
                let record = SocketRecord {
                    facts: *facts,
                    seen_in: self.pass,
                };
                self.sockets.insert(facts.cookie, record);
                // What sockets carried before the first pass was not measured. A later one is new.
                self.ended_ns?;
                None
            }
        };
        let received = self.add(facts, before.as_ref());
        let acked_before = before.map_or(0, |before| before.acked_bytes);
        let moved = Moved {
            name,
            received_bytes: received,
            acked_bytes: facts.acked_bytes.saturating_sub(acked_before),
            queue: before.map_or(SendQueue::Idle, |before| {
                SendQueue::between(&before.sending(), &facts.sending())
            }),
        };
        if received == 0 {
            return Some(moved);
        }
        let known = self.senders.len();
        match self.senders.entry(name) {
            indexmap::map::Entry::Occupied(mut entry) => {
                entry.get_mut().bytes += received;
                entry.get_mut().flows += 1;
            }
            indexmap::map::Entry::Vacant(_) if known >= MAX_SENDERS => {
                self.totals.senders_beyond_bound += 1;
            }
            indexmap::map::Entry::Vacant(entry) => {
                entry.insert(SenderRecord {
                    bytes: received,
                    flows: 1,
                    ..SenderRecord::default()
                });
            }
        }
        Some(moved)
    }

    /// Adds what a socket did since the pass before. Returns the bytes that it received.
    fn add(&mut self, now: &SocketFacts, before: Option<&SocketFacts>) -> u64 {
        let totals = &mut self.totals;
        let since = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
        // Packet counters have 32 bits and wrap.
        let packets =
            |now: u32, before: Option<u32>| u64::from(now.wrapping_sub(before.unwrap_or(0)));
        totals.delivered += packets(now.delivered, before.map(|facts| facts.delivered));
        totals.delivered_ce += packets(now.delivered_ce, before.map(|facts| facts.delivered_ce));
        totals.busy_us += since(now.busy_us, before.map(|facts| facts.busy_us));
        totals.rwnd_limited_us += since(
            now.rwnd_limited_us,
            before.map(|facts| facts.rwnd_limited_us),
        );
        let received = since(now.received_bytes, before.map(|facts| facts.received_bytes));
        totals.received_bytes += received;
        received
    }

    /// Ends the pass: rates and activity follow from what arrived since the pass before.
    /// `capacity_bps` is that of the link to this host, 0 if unknown.
    pub fn end_pass(&mut self, now_ns: u64, capacity_bps: u64) {
        let pass = self.pass;
        self.sockets.retain(|_, record| record.seen_in == pass);
        self.pass += 1;
        self.pass_rtts = std::mem::take(&mut self.rtts);
        let elapsed_ns = self
            .ended_ns
            .map_or(0, |ended_ns| now_ns.saturating_sub(ended_ns));
        self.ended_ns = Some(now_ns);
        if elapsed_ns == 0 {
            return;
        }
        for record in self.senders.values_mut() {
            let bits = u128::from(std::mem::take(&mut record.bytes)) * 8_000_000_000;
            let rate_bps = u64::try_from(bits / u128::from(elapsed_ns)).unwrap_or(u64::MAX);
            record.rate_bps = smoothed(record.rate_bps, rate_bps, elapsed_ns);
            let flows = std::mem::take(&mut record.flows);
            if flows > 0 {
                record.last_flows = flows;
            }
        }
        let least_bps = self.least_active_bps(capacity_bps);
        for record in self.senders.values_mut() {
            if record.rate_bps >= least_bps {
                record.active_ns = now_ns;
            }
        }
        self.senders.retain(|_, record| {
            record.rate_bps >= MIN_ACTIVE_BPS / 8
                || now_ns.saturating_sub(record.active_ns) < HOLD_NS
        });
    }

    /// Finds the rate from which a sender counts. The set is the largest one whose slowest member
    /// has a certain part of that set's fair share.
    fn least_active_bps(&self, capacity_bps: u64) -> u64 {
        let mut rates: Vec<u64> = self
            .senders
            .values()
            .map(|record| record.rate_bps)
            .collect();
        rates.sort_unstable_by_key(|&rate_bps| Reverse(rate_bps));
        let enough = |index: usize, rate_bps: u64| {
            let fair_bps = capacity_bps / (index as u64 + 1);
            rate_bps >= (fair_bps / ACTIVE_SHARE).max(MIN_ACTIVE_BPS)
        };
        let last = (0..rates.len())
            .rev()
            .find(|&index| enough(index, rates[index]));
        last.map_or(u64::MAX, |index| rates[index])
    }

    /// Returns the active senders at `now_ns`, the fastest first.
    #[must_use]
    pub fn active(&self, now_ns: u64) -> Vec<ActiveSender> {
        let mut active: Vec<ActiveSender> = self
            .senders
            .iter()
            .filter(|(_, record)| {
                record.active_ns > 0 && now_ns.saturating_sub(record.active_ns) < HOLD_NS
            })
            .map(|(&name, record)| ActiveSender {
                name,
                rate_bps: record.rate_bps,
                flows: record.last_flows.max(1),
            })
            .collect();
        active.sort_unstable_by_key(|sender| (Reverse(sender.rate_bps), sender.name));
        active
    }

    /// Returns the sums over all sockets.
    #[must_use]
    pub fn totals(&self) -> SocketTotals {
        self.totals
    }

    /// Returns the longest and the mean round-trip time of the last pass, in microseconds.
    #[must_use]
    pub fn rtt_us(&self) -> (u32, u64) {
        let (longest, sum, count) = self.pass_rtts;
        (longest, sum.checked_div(count).unwrap_or(0))
    }

    /// Returns the number of sockets with another host.
    #[must_use]
    pub fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    /// Forgets everything but the sums, because the measuring pauses.
    pub fn pause(&mut self) {
        let totals = self.totals;
        *self = Self {
            totals,
            ..Self::default()
        };
    }
}

/// Smooths a rate over [`SMOOTHING_NS`]: arrivals come in bursts.
fn smoothed(before_bps: u64, now_bps: u64, elapsed_ns: u64) -> u64 {
    let weight = u128::from(elapsed_ns.min(SMOOTHING_NS));
    let rest = u128::from(SMOOTHING_NS) - weight;
    let sum = u128::from(before_bps) * rest + u128::from(now_bps) * weight;
    u64::try_from(sum / u128::from(SMOOTHING_NS)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
