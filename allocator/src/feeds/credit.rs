//! Credit (SIRD, section 4): what receivers grant is the demand of their senders, and credit that
//! piles up at a sender is a share of the downlink that receivers' own scheduling wastes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ratewright_proto::telemetry::CreditState;
use ratewright_topology::HostId;
use rustc_hash::FxHashMap;

/// Maximum number of pairs that one host may report.
const MAX_PAIRS_PER_HOST: u32 = 4_096;

/// Maximum number of pairs that the collector may report.
const MAX_PAIRS_OF_COLLECTOR: u32 = 65_536;

/// Space above the measured rate in which a demand can grow.
pub(super) const HEADROOM: f64 = 1.25;

/// Name of a credit: who tells of it, the two hosts, and the flow at the sender if the allocator
/// schedules it. Both ends may tell of a pair; the counters of each are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PairKey {
    /// A host, or the collector (`None`).
    pub(super) reporter: Option<u32>,
    pub(super) sender: u32,
    pub(super) receiver: u32,
    pub(super) flow: Option<u32>,
}

/// Credit of one pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) at_ns: u64,
    granted_bytes: u64,
    consumed_bytes: u64,
    csn_marked_packets: u64,
    packets: u64,
    granted_bps: f64,
    consumed_bps: f64,
    /// The sender cannot use the credit that it has: its uplink is the bottleneck.
    pub(super) is_congested: bool,
    /// The receiver's grants bound the rate: the sender holds little credit.
    is_receiver_bound: bool,
    is_measured: bool,
}

impl Pair {
    /// Returns the rate that the pair can use of the receiver's downlink, in bit/s; `None` before
    /// two readings.
    pub(super) fn downlink_demand_bps(&self) -> Option<f64> {
        let used_bps = if self.is_congested {
            // What is granted beyond it comes to nothing: others may have that share.
            self.consumed_bps
        } else {
            self.granted_bps.max(self.consumed_bps)
        };
        self.is_measured.then_some(used_bps * HEADROOM)
    }

    /// Returns the maximum demand of a scheduled flow, in bit/s; infinite unless its receiver
    /// bounds it.
    fn flow_demand_bps(&self) -> f64 {
        if self.is_measured && self.is_receiver_bound && !self.is_congested {
            self.granted_bps * HEADROOM
        } else {
            f64::INFINITY
        }
    }
}

/// Credit of all pairs.
#[derive(Debug, Default)]
pub(super) struct Credits {
    pairs: FxHashMap<PairKey, Pair>,
    /// Pairs without a flow that count at a host's links, by that host. What a host tells counts at
    /// its own link alone, so that a lie costs no other one.
    by_sender: BTreeMap<u32, BTreeSet<PairKey>>,
    by_receiver: BTreeMap<u32, BTreeSet<PairKey>>,
    /// Number of pairs by reporter: a host, or the collector (`None`).
    per_reporter: FxHashMap<Option<u32>, u32>,
    /// Times at which to look whether a pair is too old; one entry each.
    due: VecDeque<(u64, PairKey)>,
}

/// Result of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CreditTaken {
    /// A pair that the allocator does not schedule has another demand.
    External,
    /// A scheduled flow has another demand.
    Flow(u32),
    /// Its reporter has too many pairs.
    Full,
}

impl Credits {
    /// Takes an entry of `reporter`, a host or a collector (`None`).
    #[allow(
        clippy::cast_precision_loss,
        reason = "bytes and times of one interval are far below 2^53"
    )]
    pub(super) fn take(
        &mut self,
        at_ns: u64,
        reporter: Option<HostId>,
        entry: &CreditState,
        max_age_ns: u64,
    ) -> CreditTaken {
        let reporter = reporter.map(|host| host.0);
        let key = PairKey {
            reporter,
            sender: entry.sender,
            receiver: entry.receiver,
            flow: entry.flow,
        };
        let taken = entry.flow.map_or(CreditTaken::External, CreditTaken::Flow);
        let Some(pair) = self.pairs.get_mut(&key) else {
            let most = reporter.map_or(MAX_PAIRS_OF_COLLECTOR, |_| MAX_PAIRS_PER_HOST);
            let count = self.per_reporter.entry(reporter).or_insert(0);
            if *count >= most {
                return CreditTaken::Full;
            }
            *count += 1;
            self.due.push_back((at_ns + max_age_ns, key));
            if entry.flow.is_none() {
                if reporter.is_none_or(|host| host == key.sender) {
                    self.by_sender.entry(key.sender).or_default().insert(key);
                }
                if reporter.is_none_or(|host| host == key.receiver) {
                    self.by_receiver
                        .entry(key.receiver)
                        .or_default()
                        .insert(key);
                }
            }
            self.pairs.insert(key, begun(at_ns, entry));
            return taken;
        };
        if at_ns <= pair.at_ns {
            return taken;
        }
        let fell = entry.granted_bytes < pair.granted_bytes
            || entry.consumed_bytes < pair.consumed_bytes
            || entry.packets < pair.packets
            || entry.csn_marked_packets < pair.csn_marked_packets;
        if fell {
            *pair = begun(at_ns, entry);
            return taken;
        }
        let seconds = (at_ns - pair.at_ns) as f64 / 1e9;
        let packets = entry.packets - pair.packets;
        let marked = entry.csn_marked_packets - pair.csn_marked_packets;
        let bucket = entry.sender_bucket_bytes;
        *pair = Pair {
            granted_bps: (entry.granted_bytes - pair.granted_bytes) as f64 * 8.0 / seconds,
            consumed_bps: (entry.consumed_bytes - pair.consumed_bytes) as f64 * 8.0 / seconds,
            // Half of the packets marked, or half of the bucket unused (SThr in SIRD's terms).
            is_congested: (packets > 0 && marked >= packets.div_ceil(2))
                || (bucket > 0 && entry.accumulated_bytes >= bucket / 2),
            is_receiver_bound: bucket > 0 && entry.accumulated_bytes < bucket / 8,
            is_measured: true,
            ..begun(at_ns, entry)
        };
        taken
    }

    /// Returns the unscheduled pairs towards a receiver, as the receiver or a collector tells of
    /// them.
    pub(super) fn to(&self, receiver: u32) -> impl Iterator<Item = &Pair> {
        self.told(self.by_receiver.get(&receiver), receiver)
    }

    /// Returns the unscheduled pairs from a sender, as the sender or a collector tells of them.
    pub(super) fn from(&self, sender: u32) -> impl Iterator<Item = &Pair> {
        self.told(self.by_sender.get(&sender), sender)
    }

    /// Returns pairs of a host. A collector's word counts where the host says nothing of a pair.
    fn told<'a>(
        &'a self,
        keys: Option<&'a BTreeSet<PairKey>>,
        host: u32,
    ) -> impl Iterator<Item = &'a Pair> {
        let is_second = move |key: &PairKey| {
            let own = PairKey {
                reporter: Some(host),
                ..*key
            };
            key.reporter.is_none() && self.pairs.contains_key(&own)
        };
        let keys = keys.into_iter().flatten();
        keys.filter(move |key| !is_second(key))
            .filter_map(|key| self.pairs.get(key))
    }

    /// Returns true if no pair is known.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the maximum demand of a scheduled flow, in bit/s, and the time of the measurement.
    pub(super) fn flow_demand(&self, key: PairKey) -> Option<(f64, u64)> {
        let pair = self.pairs.get(&key)?;
        Some((pair.flow_demand_bps(), pair.at_ns))
    }

    /// Removes pairs whose newest measurement is too old, and calls `gone` for each.
    pub(super) fn expire(&mut self, now_ns: u64, max_age_ns: u64, mut gone: impl FnMut(PairKey)) {
        while let Some(&(due_ns, key)) = self.due.front()
            && due_ns <= now_ns
        {
            self.due.pop_front();
            let Some(pair) = self.pairs.get(&key) else {
                continue;
            };
            let expiry_ns = pair.at_ns + max_age_ns;
            if expiry_ns > now_ns {
                self.due.push_back((expiry_ns, key));
                continue;
            }
            self.pairs.remove(&key);
            if let Some(count) = self.per_reporter.get_mut(&key.reporter) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.per_reporter.remove(&key.reporter);
                }
            }
            remove(&mut self.by_sender, key.sender, key);
            remove(&mut self.by_receiver, key.receiver, key);
            gone(key);
        }
    }
}

fn begun(at_ns: u64, entry: &CreditState) -> Pair {
    Pair {
        at_ns,
        granted_bytes: entry.granted_bytes,
        consumed_bytes: entry.consumed_bytes,
        csn_marked_packets: entry.csn_marked_packets,
        packets: entry.packets,
        granted_bps: 0.0,
        consumed_bps: 0.0,
        is_congested: false,
        is_receiver_bound: false,
        is_measured: false,
    }
}

fn remove(index: &mut BTreeMap<u32, BTreeSet<PairKey>>, host: u32, key: PairKey) {
    if let Some(keys) = index.get_mut(&host) {
        keys.remove(&key);
        if keys.is_empty() {
            index.remove(&host);
        }
    }
}
