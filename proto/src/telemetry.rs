//! Measurements of endpoints and the fabric for the allocator's feeds: receiver counts (DART,
//! section III), credit (SIRD, section 4) and in-band telemetry of links (FNCC, section 3). A
//! message is checked as a whole: one impossible value refuses all of it.

use crate::error::SessionError;
use crate::wire;

/// Maximum number of entries of each kind in one message.
pub const MAX_ENTRIES: usize = 4096;

/// One telemetry message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Sender counts per receiver.
    pub receivers: Vec<ReceiverCount>,
    /// Credit per pair of sender and receiver.
    pub credits: Vec<CreditState>,
    /// Queue and throughput per link.
    pub links: Vec<LinkInt>,
}

impl Telemetry {
    /// Returns true if the message has no entry.
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty() && self.credits.is_empty() && self.links.is_empty()
    }
}

/// The active unique senders of one receiver (DART's AUSS).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiverCount {
    /// The receiving host.
    pub receiver: u32,
    /// Size of the active unique sender set.
    pub active_senders: u32,
    /// Senders among them that only a look-ahead notice has announced.
    pub lookahead_senders: u32,
    /// Host ids of the senders, where known.
    pub senders: Vec<u32>,
    /// Age of the measurement when it was sent.
    pub age_ns: u64,
}

/// Credit between one sender and one receiver (SIRD).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CreditState {
    /// The sending host.
    pub sender: u32,
    /// The receiving host.
    pub receiver: u32,
    /// Credit granted so far.
    pub granted_bytes: u64,
    /// Credit that came back as scheduled data so far.
    pub consumed_bytes: u64,
    /// Credit that the sender holds unused.
    pub accumulated_bytes: u64,
    /// Data packets with the congested-sender mark.
    pub csn_marked_packets: u64,
    /// All data packets.
    pub packets: u64,
    /// Size of the receiver's bucket for this sender.
    pub sender_bucket_bytes: u64,
    /// Size of the receiver's global bucket.
    pub global_bucket_bytes: u64,
    /// Age of the measurement when it was sent.
    pub age_ns: u64,
}

/// In-band telemetry of one link (FNCC, HPCC).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkInt {
    /// The link in the topology.
    pub link: u32,
    /// Standing queue.
    pub queue_bytes: u64,
    /// Bytes sent so far.
    pub tx_bytes: u64,
    /// The switch's time of the reading.
    pub timestamp_ns: u64,
    /// The link's bandwidth.
    pub bandwidth_bps: u64,
    /// Age of the measurement when it was sent.
    pub age_ns: u64,
}

fn check(
    holds: bool,
    field: &'static str,
    problem: impl FnOnce() -> String,
) -> Result<(), SessionError> {
    if holds {
        return Ok(());
    }
    Err(SessionError::Invalid {
        field,
        problem: problem(),
    })
}

fn check_count(field: &'static str, count: usize) -> Result<(), SessionError> {
    check(count <= MAX_ENTRIES, field, || {
        format!("{count} entries; the bound is {MAX_ENTRIES}")
    })
}

impl Telemetry {
    /// Checks every value against what it can be.
    pub fn validate(&self) -> Result<(), SessionError> {
        check_count("Telemetry.receivers", self.receivers.len())?;
        check_count("Telemetry.credits", self.credits.len())?;
        check_count("Telemetry.links", self.links.len())?;
        for count in &self.receivers {
            check_count("ReceiverCount.senders", count.senders.len())?;
            check(
                // Look-ahead senders are part of the active set (DART, section III), and so are the
                // named ones.
                count.lookahead_senders <= count.active_senders
                    && count.senders.len() <= count.active_senders as usize,
                "ReceiverCount.active_senders",
                || {
                    format!(
                        "{}, but {} are announced and {} named",
                        count.active_senders,
                        count.lookahead_senders,
                        count.senders.len()
                    )
                },
            )?;
        }
        for credit in &self.credits {
            check(
                credit
                    .consumed_bytes
                    .checked_add(credit.accumulated_bytes)
                    .is_some_and(|used| used <= credit.granted_bytes),
                "CreditState.granted_bytes",
                || {
                    format!(
                        "{}, but {} are consumed and {} accumulated",
                        credit.granted_bytes, credit.consumed_bytes, credit.accumulated_bytes
                    )
                },
            )?;
            check(
                credit.csn_marked_packets <= credit.packets,
                "CreditState.csn_marked_packets",
                || format!("{} of {}", credit.csn_marked_packets, credit.packets),
            )?;
        }
        for link in &self.links {
            check(link.bandwidth_bps > 0, "LinkInt.bandwidth_bps", || {
                format!("zero on link {}", link.link)
            })?;
        }
        Ok(())
    }
}

impl TryFrom<wire::Telemetry> for Telemetry {
    type Error = SessionError;

    fn try_from(wire: wire::Telemetry) -> Result<Self, SessionError> {
        let telemetry = Self {
            receivers: wire
                .receivers
                .into_iter()
                .map(|count| ReceiverCount {
                    receiver: count.receiver,
                    active_senders: count.active_senders,
                    lookahead_senders: count.lookahead_senders,
                    senders: count.senders,
                    age_ns: count.age_ns,
                })
                .collect(),
            credits: wire
                .credits
                .iter()
                .map(|credit| CreditState {
                    sender: credit.sender,
                    receiver: credit.receiver,
                    granted_bytes: credit.granted_bytes,
                    consumed_bytes: credit.consumed_bytes,
                    accumulated_bytes: credit.accumulated_bytes,
                    csn_marked_packets: credit.csn_marked_packets,
                    packets: credit.packets,
                    sender_bucket_bytes: credit.sender_bucket_bytes,
                    global_bucket_bytes: credit.global_bucket_bytes,
                    age_ns: credit.age_ns,
                })
                .collect(),
            links: wire
                .links
                .iter()
                .map(|link| LinkInt {
                    link: link.link,
                    queue_bytes: link.queue_bytes,
                    tx_bytes: link.tx_bytes,
                    timestamp_ns: link.timestamp_ns,
                    bandwidth_bps: link.bandwidth_bps,
                    age_ns: link.age_ns,
                })
                .collect(),
        };
        telemetry.validate()?;
        Ok(telemetry)
    }
}

impl From<&Telemetry> for wire::Telemetry {
    fn from(telemetry: &Telemetry) -> Self {
        Self {
            receivers: telemetry
                .receivers
                .iter()
                .map(|count| wire::ReceiverCount {
                    receiver: count.receiver,
                    active_senders: count.active_senders,
                    lookahead_senders: count.lookahead_senders,
                    senders: count.senders.clone(),
                    age_ns: count.age_ns,
                })
                .collect(),
            credits: telemetry
                .credits
                .iter()
                .map(|credit| wire::CreditState {
                    sender: credit.sender,
                    receiver: credit.receiver,
                    granted_bytes: credit.granted_bytes,
                    consumed_bytes: credit.consumed_bytes,
                    accumulated_bytes: credit.accumulated_bytes,
                    csn_marked_packets: credit.csn_marked_packets,
                    packets: credit.packets,
                    sender_bucket_bytes: credit.sender_bucket_bytes,
                    global_bucket_bytes: credit.global_bucket_bytes,
                    age_ns: credit.age_ns,
                })
                .collect(),
            links: telemetry
                .links
                .iter()
                .map(|link| wire::LinkInt {
                    link: link.link,
                    queue_bytes: link.queue_bytes,
                    tx_bytes: link.tx_bytes,
                    timestamp_ns: link.timestamp_ns,
                    bandwidth_bps: link.bandwidth_bps,
                    age_ns: link.age_ns,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
