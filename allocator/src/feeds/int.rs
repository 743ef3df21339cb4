//! In-band telemetry of links (HPCC; FNCC, section 3): external load and standing queues.
//!
//! Two readings of one interface give what arrived at it between them: bytes sent and growth of the
//! queue. Less what managed flows used, or what the allocator handed out, this is the external
//! load.
//!
//! A reading that is told as a state is a measurement by itself, and stands. If its host can tell
//! managed traffic apart, it is taken as it is: no loop passes through it. Otherwise what was
//! handed out is looked at again from time to time
//! ([`Feeds::read_again`](super::Feeds::read_again)).

use ratewright_proto::telemetry::LinkInt;

use super::gain;

/// Share of a link that its drain may take.
const MAX_DRAIN_SHARE: f64 = 0.1;

/// Part of the maximum delay whose bytes are no standing queue.
const QUEUE_FLOOR: f64 = 0.1;

/// Growth per reading of a limit below the bandwidth, once nothing is shaped.
const LIMIT_GROWTH: f64 = 1.05;

/// Measured state of a link by one reporter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reading {
    /// Time of the newest measurement by the allocator's clock, in nanoseconds.
    pub(super) at_ns: u64,
    stamp_ns: u64,
    tx_bytes: u64,
    managed_bytes: Option<u64>,
    queue_bytes: u64,
    shaped_packets: u64,
    /// Readings since the counters began.
    readings: u32,
    /// External load, smoothed, in bit/s.
    pub(super) external_bps: f64,
    /// Rate at which the standing queue is to be drained, in bit/s.
    pub(super) drain_bps: f64,
    /// Capacity below the nominal one, in bit/s; 0 if there is none.
    limit_bps: f64,
    /// Generation of its host in which it was told as a state; 0 if it was not.
    pub(super) generation: u32,
    /// Rate of all that arrived in the newest interval, in bit/s.
    pub(super) arrived_bps: f64,
    /// Time of the last change of the external load.
    pub(super) changed_ns: u64,
}

/// Facts of a link at a reading.
#[derive(Clone, Copy)]
pub(super) struct LinkFacts<'a> {
    pub(super) capacity_bps: f64,
    /// Mean of what was handed out between two times, in bit/s.
    pub(super) handed_out_bps: &'a dyn Fn(u64, u64) -> f64,
    /// Present generation of a host that tells a state, 0 of any other reporter.
    pub(super) generation: u32,
    /// The reporter sees the queue, since it stands at the sending end.
    pub(super) sees_queue: bool,
    pub(super) max_delay_ns: u64,
}

impl Reading {
    /// Returns true once it has measured a load.
    pub(super) fn is_measured(&self) -> bool {
        self.readings > 1
    }

    /// Returns the capacity that a limit below the nominal one takes, in bit/s.
    pub(super) fn lost_bps(&self, capacity_bps: f64) -> f64 {
        if self.limit_bps > 0.0 {
            (capacity_bps - self.limit_bps).max(0.0)
        } else {
            0.0
        }
    }

    /// Returns true if it stands in this generation of its host.
    pub(super) fn stands(&self, generation: u32) -> bool {
        self.generation > 0 && self.generation == generation
    }

    /// Returns true if it holds managed traffic that its reporter cannot tell apart.
    pub(super) fn holds_managed(&self) -> bool {
        self.managed_bytes.is_none()
    }

    /// Takes a reading. Returns the external load since the one before, in bit/s, if it measures
    /// one.
    #[allow(
        clippy::cast_precision_loss,
        reason = "bytes and times of one interval are far below 2^53"
    )]
    pub(super) fn take(
        &mut self,
        at_ns: u64,
        entry: &LinkInt,
        facts: &LinkFacts<'_>,
    ) -> Option<f64> {
        if self.readings > 0 && entry.timestamp_ns == self.stamp_ns {
            // The same reading again is no measurement, and must not keep an old one fresh.
            return None;
        }
        let is_state = entry.interval_ns > 0;
        let before = if is_state {
            // It has its former reading with it.
            Self {
                at_ns: at_ns.saturating_sub(entry.interval_ns),
                stamp_ns: entry.timestamp_ns.saturating_sub(entry.interval_ns),
                tx_bytes: 0,
                managed_bytes: entry.managed_bytes.map(|_| 0),
                queue_bytes: entry.former_queue_bytes,
                shaped_packets: 0,
                readings: self.readings.max(1),
                ..*self
            }
        } else if self.generation > 0 {
            // Its counters were those of one interval.
            Self {
                readings: 0,
                ..*self
            }
        } else {
            *self
        };
        self.at_ns = at_ns;
        self.stamp_ns = entry.timestamp_ns;
        self.tx_bytes = entry.tx_bytes;
        self.managed_bytes = entry.managed_bytes;
        self.queue_bytes = entry.queue_bytes;
        self.shaped_packets = entry.shaped_packets;
        self.generation = if is_state { facts.generation } else { 0 };
        let began_anew = entry.timestamp_ns < before.stamp_ns || entry.tx_bytes < before.tx_bytes;
        if before.readings == 0 || began_anew {
            self.readings = 1;
            return None;
        }
        self.readings = before.readings.saturating_add(1);
        let interval_ns = entry.timestamp_ns - before.stamp_ns;
        let seconds = interval_ns as f64 / 1e9;
        // A link cannot carry more than its capacity, whatever the counters say.
        let carried_bps =
            ((entry.tx_bytes - before.tx_bytes) as f64 * 8.0 / seconds).min(facts.capacity_bps);
        let (queue, former) = if facts.sees_queue {
            (entry.queue_bytes as f64, before.queue_bytes as f64)
        } else {
            (0.0, 0.0)
        };
        let arrived_bps = carried_bps + (queue - former) * 8.0 / seconds;
        let managed_bps = match (entry.managed_bytes, before.managed_bytes) {
            (Some(now), Some(then)) if now >= then => (now - then) as f64 * 8.0 / seconds,
            _ => (facts.handed_out_bps)(before.at_ns, at_ns),
        };
        let external_bps = (arrived_bps - managed_bps).clamp(0.0, facts.capacity_bps);
        let gain = if is_state && entry.managed_bytes.is_some() {
            1.0
        } else {
            gain::steady(facts.max_delay_ns, interval_ns)
        };
        self.arrived_bps = arrived_bps;
        self.changed_ns = at_ns;
        self.external_bps += gain * (external_bps - self.external_bps);
        // What stood at both ends of the interval stands.
        let standing = queue.min(former);
        let floor = facts.capacity_bps / 8e9 * facts.max_delay_ns as f64 * QUEUE_FLOOR;
        self.drain_bps = if standing > floor {
            let drain_s = gain::drain_ns(facts.max_delay_ns, interval_ns) / 1e9;
            (standing * 8.0 / drain_s).min(MAX_DRAIN_SHARE * facts.capacity_bps)
        } else {
            0.0
        };
        self.limit_bps = limit(&before, entry, carried_bps, facts.capacity_bps);
        Some(external_bps)
    }
}

/// Returns the capacity that a link has shown, if it is below the nominal one; otherwise 0.
#[allow(
    clippy::cast_precision_loss,
    reason = "bandwidths are far below 2^53 bit/s"
)]
fn limit(before: &Reading, entry: &LinkInt, carried_bps: f64, capacity_bps: f64) -> f64 {
    let bandwidth_bps = (entry.bandwidth_bps as f64).min(capacity_bps);
    let limit_bps = if entry.shaped_packets > before.shaped_packets {
        carried_bps.min(bandwidth_bps)
    } else if before.limit_bps > 0.0 {
        (before.limit_bps * LIMIT_GROWTH).min(bandwidth_bps)
    } else {
        bandwidth_bps
    };
    if limit_bps < capacity_bps {
        limit_bps.max(1.0)
    } else {
        0.0
    }
}
