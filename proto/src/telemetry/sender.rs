//! The reporter's side of telemetry as a state: only what has moved is told.
//!
//! Sans-IO: measurements go in with their time, and a message comes out or not. The control stream
//! is reliable and keeps its order, so what was told counts as known until the session ends.
//!
//! | entry | is told when |
//! |---|---|
//! | `LinkInt` | load or standing queue moved by more than the hysteresis since it was told; its packets were shaped within [`SHAPED_READINGS`] readings |
//! | `ReceiverCount` | it differs; fewer flows, once two measurements in a row have counted fewer |
//! | `CreditState` | always: its counters grow while it exists |
//!
//! A message without entries follows after [`SyncTerms::repeat_ns`] of silence: all stands. All is
//! told anew in the first message of a session, when something is not measured any more, and after
//! [`REFRESH_INTERVALS`] measurements, in case that the server lost it.

use std::collections::BTreeMap;

use super::{LinkInt, ReceiverCount, Telemetry};
use crate::error::SessionError;

/// Readings for which a link is told in any case after its packets were shaped. The server raises a
/// limit below the bandwidth by a twentieth with each.
pub const SHAPED_READINGS: u32 = 64;

/// Measurements after which all is told anew.
pub const REFRESH_INTERVALS: u32 = 1_000;

/// Terms of a server that takes telemetry as a state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyncTerms {
    /// Share of a link's bandwidth by which its load moves before it is told; above 0, below 1.
    pub hysteresis: f64,
    /// Silence after which the client says that all stands, in nanoseconds; at least 1.
    pub repeat_ns: u64,
}

impl SyncTerms {
    /// Checks the terms of a Welcome; a hysteresis of 0 stands for none.
    pub(crate) fn from_wire(hysteresis: f64, repeat_ns: u64) -> Result<Option<Self>, SessionError> {
        if hysteresis == 0.0 {
            return Ok(None);
        }
        // Written so that NaN fails the check as well.
        if hysteresis > 0.0 && hysteresis < 1.0 && repeat_ns > 0 {
            return Ok(Some(Self {
                hysteresis,
                repeat_ns,
            }));
        }
        Err(SessionError::Invalid {
            field: "Welcome.telemetry_hysteresis, telemetry_repeat_ns",
            problem: format!("{hysteresis} and {repeat_ns}"),
        })
    }
}

/// Rates and queue that a reading shows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LinkState {
    /// Load that is not known to be managed, in bit/s.
    load_bps: f64,
    /// Bytes that waited at both ends of the interval.
    standing_bytes: u64,
    knows_managed: bool,
    bandwidth_bps: u64,
}

impl LinkState {
    #[allow(
        clippy::cast_precision_loss,
        reason = "bytes and times of one interval are far below 2^53"
    )]
    fn of(entry: &LinkInt) -> Self {
        let rate_bps = |bytes: f64| bytes * 8e9 / entry.interval_ns.max(1) as f64;
        let growth = entry.queue_bytes as f64 - entry.former_queue_bytes as f64;
        let managed = entry.managed_bytes.unwrap_or(0) as f64;
        let load_bps = rate_bps(entry.tx_bytes as f64 + growth - managed);
        Self {
            // No link carries more than its bandwidth, whatever the counters say.
            load_bps: load_bps.clamp(0.0, entry.bandwidth_bps as f64),
            standing_bytes: entry.queue_bytes.min(entry.former_queue_bytes),
            knows_managed: entry.managed_bytes.is_some(),
            bandwidth_bps: entry.bandwidth_bps,
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "bytes and times of one interval are far below 2^53"
    )]
    fn moved_to(&self, now: &Self, interval_ns: u64, hysteresis: f64) -> bool {
        let slack_bps = hysteresis * now.bandwidth_bps as f64;
        let slack_bytes = slack_bps / 8e9 * interval_ns as f64;
        let queues_apart = now.standing_bytes.abs_diff(self.standing_bytes) as f64;
        now.knows_managed != self.knows_managed
            || now.bandwidth_bps != self.bandwidth_bps
            || (now.load_bps - self.load_bps).abs() > slack_bps
            || queues_apart > slack_bytes
    }
}

/// A link's newest reading, and what was told of it.
#[derive(Debug, Clone)]
struct Link {
    reading: LinkInt,
    told: Option<LinkState>,
    /// Readings that are still told because packets were shaped.
    shaped_readings: u32,
    /// It was measured in this call.
    is_measured: bool,
}

/// Last word about a receiver.
#[derive(Debug, Clone)]
struct Count {
    told: ReceiverCount,
    /// The last measurement counted fewer flows.
    is_lower: bool,
    /// It was measured in this call.
    is_measured: bool,
}

/// The reporter's end of one session's telemetry.
#[derive(Debug, Clone)]
pub struct TelemetrySender {
    terms: Option<SyncTerms>,
    links: BTreeMap<u32, Link>,
    counts: BTreeMap<u32, Count>,
    /// Time of the last message.
    told_ns: u64,
    /// Measurements until all is told anew.
    fresh_for: u32,
    /// Measurements from the first message to the first refresh.
    phase: u32,
}

impl TelemetrySender {
    /// Makes the sender of a new session. Without terms it tells everything each time. Hosts of
    /// different numbers refresh at different times.
    pub fn new(terms: Option<SyncTerms>, host: u32) -> Self {
        Self {
            terms,
            links: BTreeMap::new(),
            counts: BTreeMap::new(),
            told_ns: 0,
            fresh_for: 0,
            phase: 1 + host % REFRESH_INTERVALS,
        }
    }

    /// Tells all anew in the next message: the last one was not sent, or the server may have
    /// forgotten what it knew.
    pub fn restart(&mut self) {
        self.fresh_for = 0;
        for link in self.links.values_mut() {
            link.told = None;
        }
    }

    /// Takes what was measured while nothing happens that is worth a message. The next message
    /// tells all anew.
    pub fn rest(&mut self, measured: &Telemetry) {
        if self.terms.is_some() {
            for reading in &measured.links {
                let _ = self.since_last(reading);
            }
            self.restart();
        }
    }

    /// Takes all that was measured in an interval, with counters from any moment on. Returns the
    /// message to send, if there is one; without entries, it says that all stands. Of a link, the
    /// first reading measures nothing yet.
    pub fn measure(&mut self, now_ns: u64, measured: Telemetry) -> Option<Telemetry> {
        let Some(terms) = self.terms else {
            return (!measured.is_empty()).then_some(measured);
        };
        let readings: Vec<LinkInt> = measured
            .links
            .iter()
            .filter_map(|reading| self.since_last(reading))
            .collect();
        for count in &measured.receivers {
            if let Some(known) = self.counts.get_mut(&count.receiver) {
                known.is_measured = true;
            }
        }
        let whole = self.forget_unmeasured() || self.fresh_for <= 1;
        if whole {
            self.fresh_for = if self.fresh_for == 0 {
                self.phase
            } else {
                REFRESH_INTERVALS
            };
            self.counts.clear();
            for link in self.links.values_mut() {
                link.told = None;
            }
        } else {
            self.fresh_for -= 1;
        }
        let mut message = Telemetry {
            receivers: Vec::new(),
            credits: measured.credits,
            links: Vec::new(),
            whole,
            access_use: None,
        };
        for count in measured.receivers {
            if self.tells_count(&count) {
                message.receivers.push(ReceiverCount {
                    stands: true,
                    ..count
                });
            }
        }
        for entry in readings {
            if self.tells_link(&entry, terms.hysteresis) {
                message.links.push(entry);
            }
        }
        let is_due = now_ns.saturating_sub(self.told_ns) >= terms.repeat_ns;
        if !(whole || is_due || !message.is_empty()) {
            return None;
        }
        self.told_ns = now_ns;
        Some(message)
    }

    /// Returns what a link did since its last reading, if the two measure something.
    fn since_last(&mut self, reading: &LinkInt) -> Option<LinkInt> {
        let Some(link) = self.links.get_mut(&reading.link) else {
            let link = Link {
                reading: *reading,
                told: None,
                shaped_readings: 0,
                is_measured: true,
            };
            self.links.insert(reading.link, link);
            return None;
        };
        link.is_measured = true;
        let before = std::mem::replace(&mut link.reading, *reading);
        let managed_bytes = match (reading.managed_bytes, before.managed_bytes) {
            // More than the link carried: the two counters were not read at one moment.
            (Some(now), Some(then)) => Some(
                now.checked_sub(then)?
                    .min(reading.tx_bytes.checked_sub(before.tx_bytes)?),
            ),
            _ => None,
        };
        // A counter that fell began anew, and so did a clock.
        Some(LinkInt {
            tx_bytes: reading.tx_bytes.checked_sub(before.tx_bytes)?,
            managed_bytes,
            shaped_packets: reading.shaped_packets.checked_sub(before.shaped_packets)?,
            interval_ns: reading
                .timestamp_ns
                .checked_sub(before.timestamp_ns)
                .filter(|&interval_ns| interval_ns > 0)?,
            former_queue_bytes: before.queue_bytes,
            ..*reading
        })
    }

    /// Forgets what is not measured any more. Returns true if something was that had been told.
    fn forget_unmeasured(&mut self) -> bool {
        let mut forgot = false;
        self.links.retain(|_, link| {
            let stays = std::mem::take(&mut link.is_measured);
            forgot |= !stays && link.told.is_some();
            stays
        });
        self.counts.retain(|_, count| {
            let stays = std::mem::take(&mut count.is_measured);
            forgot |= !stays;
            stays
        });
        forgot
    }

    fn tells_count(&mut self, count: &ReceiverCount) -> bool {
        let tells = match self.counts.get_mut(&count.receiver) {
            Some(known) => {
                let is_lower = flows(count) < flows(&known.told);
                let was_lower = std::mem::replace(&mut known.is_lower, is_lower);
                (!is_lower || was_lower) && !says_the_same(count, &known.told)
            }
            None => true,
        };
        if tells {
            let known = Count {
                told: count.clone(),
                is_lower: false,
                is_measured: false,
            };
            self.counts.insert(count.receiver, known);
        }
        tells
    }

    fn tells_link(&mut self, entry: &LinkInt, hysteresis: f64) -> bool {
        let Some(link) = self.links.get_mut(&entry.link) else {
            return false;
        };
        link.shaped_readings = if entry.shaped_packets > 0 {
            SHAPED_READINGS
        } else {
            link.shaped_readings.saturating_sub(1)
        };
        let state = LinkState::of(entry);
        let stands = |told: LinkState| !told.moved_to(&state, entry.interval_ns, hysteresis);
        if link.shaped_readings == 0 && link.told.is_some_and(stands) {
            return false;
        }
        link.told = Some(state);
        true
    }
}

/// Returns the flows that a count stands for.
fn flows(count: &ReceiverCount) -> u64 {
    let unnamed = u64::from(count.active_senders).saturating_sub(count.senders.len() as u64);
    let named = if count.sender_flows.is_empty() {
        count.senders.len() as u64
    } else {
        let flows = count.sender_flows.iter();
        flows.map(|&flows| u64::from(flows.max(1))).sum()
    };
    unnamed + named
}

fn says_the_same(one: &ReceiverCount, other: &ReceiverCount) -> bool {
    one.active_senders == other.active_senders
        && one.lookahead_senders == other.lookahead_senders
        && one.excludes_managed == other.excludes_managed
        && one.senders == other.senders
        && one.sender_flows == other.sender_flows
}

#[cfg(test)]
mod tests;
