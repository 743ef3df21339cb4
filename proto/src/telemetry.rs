//! Measurements of endpoints and the fabric for the allocator's feeds: receiver counts (DART,
//! section III), credit (SIRD, section 4) and in-band telemetry of links (FNCC, section 3). A
//! message is checked as a whole: one impossible value refuses all of it.
//!
//! A reporter repeats its measurements, or tells them as a state that stands: [`TelemetrySender`]
//! leaves out what has not moved, if the server's [`SyncTerms`] allow it.

mod access_meter;
mod access_use;
mod decode;
mod sender;

use crate::error::SessionError;
use crate::wire;

pub use access_meter::{
    ACCESS_INTERVAL_NS, AccessCounters, AccessUseMeter, Moved, SendFacts, SendQueue, SenderName,
};
pub use access_use::{
    AccessUse, HostFaults, LinkUse, MAX_CONGESTED, MAX_IN_PREFIXES_OF, MAX_USERS,
};
pub use sender::{REFRESH_INTERVALS, SHAPED_READINGS, SyncTerms, TelemetrySender};

/// Maximum number of entries of each kind in one message.
pub const MAX_ENTRIES: usize = 4096;

/// [`LinkInt::link`] of the link from the reporting host, whose number the host need not know.
pub const OWN_UPLINK: u32 = u32::MAX - 1;

/// [`LinkInt::link`] of the link to the reporting host.
pub const OWN_DOWNLINK: u32 = u32::MAX;

/// One telemetry message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Sender counts per receiver.
    pub receivers: Vec<ReceiverCount>,
    /// Credit per pair of sender and receiver.
    pub credits: Vec<CreditState>,
    /// Queue and throughput per link.
    pub links: Vec<LinkInt>,
    /// Nothing that was told before stands any more.
    pub whole: bool,
    /// Users of the reporter's own links, if they have changed.
    pub access_use: Option<Box<AccessUse>>,
}

impl Telemetry {
    /// Returns true if the message says what stands, and not only what was measured.
    pub(crate) fn is_of_state(&self) -> bool {
        self.is_empty()
            || self.receivers.iter().any(|count| count.stands)
            || self.links.iter().any(|link| link.interval_ns > 0)
    }

    /// Returns true if the message tells who uses the reporter's links, and nothing else.
    pub fn has_access_use_alone(&self) -> bool {
        self.access_use.is_some()
            && self.receivers.is_empty()
            && self.credits.is_empty()
            && self.links.is_empty()
            && !self.whole
    }

    /// Returns true if the message has no entry. From a host it then says that what it told as a
    /// state still stands.
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty()
            && self.credits.is_empty()
            && self.links.is_empty()
            && self.access_use.is_none()
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
    /// Host ids of the senders, where known; at most `active_senders`.
    pub senders: Vec<u32>,
    /// Active flows by sender, in the order of `senders`; empty if each has one. A sender without
    /// a host id has one.
    pub sender_flows: Vec<u32>,
    /// The set leaves out the traffic that the allocator schedules, because the reporter can tell
    /// it apart. Otherwise the allocator leaves out the senders that have a session.
    pub excludes_managed: bool,
    /// The count stands until another is told, as long as the reporter is heard.
    pub stands: bool,
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
    /// The flow at its sender that the credit is of, if the allocator schedules it. `None` for the
    /// traffic between the two hosts that it does not schedule.
    pub flow: Option<u32>,
    /// Age of the measurement when it was sent.
    pub age_ns: u64,
}

/// In-band telemetry of one link (FNCC, HPCC).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkInt {
    /// The link in the topology, [`OWN_UPLINK`] or [`OWN_DOWNLINK`].
    pub link: u32,
    /// Queue at the sending end at the time of the reading; 0 from a reporter that cannot see it.
    pub queue_bytes: u64,
    /// Bytes that the link carried so far.
    pub tx_bytes: u64,
    /// Bytes among them of flows that the allocator schedules, where the reporter can tell.
    pub managed_bytes: Option<u64>,
    /// Packets so far that a limit below the bandwidth delayed or dropped, such as a virtual
    /// machine's allowance.
    pub shaped_packets: u64,
    /// Time of the reading on the reader's clock. It grows with every reading; its origin does not
    /// matter.
    pub timestamp_ns: u64,
    /// The link's bandwidth, in bit/s.
    pub bandwidth_bps: u64,
    /// Not 0: bytes and packets are those of this time before the reading, in nanoseconds, and the
    /// measurement stands until another is told, as long as the reporter is heard. 0: they count
    /// from any moment, and two readings make a measurement.
    pub interval_ns: u64,
    /// Queue at the beginning of that time.
    pub former_queue_bytes: u64,
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
        if let Some(access_use) = &self.access_use {
            access_use.validate()?;
        }
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
            check(
                count.sender_flows.is_empty() || count.sender_flows.len() == count.senders.len(),
                "ReceiverCount.sender_flows",
                || {
                    format!(
                        "{} entries for {} senders",
                        count.sender_flows.len(),
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
            check(
                link.managed_bytes
                    .is_none_or(|bytes| bytes <= link.tx_bytes),
                "LinkInt.managed_bytes",
                || {
                    format!(
                        "more than the {} bytes of link {}",
                        link.tx_bytes, link.link
                    )
                },
            )?;
            check(
                link.interval_ns <= link.timestamp_ns,
                "LinkInt.interval_ns",
                || {
                    format!(
                        "{} ns on link {}, which began before its clock",
                        link.interval_ns, link.link
                    )
                },
            )?;
        }
        Ok(())
    }
}

impl Telemetry {
    /// Takes the generated types' values as they are.
    fn unchecked(wire: wire::Telemetry) -> Result<Self, SessionError> {
        Ok(Self {
            receivers: wire
                .receivers
                .into_iter()
                .map(|count| ReceiverCount {
                    receiver: count.receiver,
                    active_senders: count.active_senders,
                    lookahead_senders: count.lookahead_senders,
                    senders: count.senders,
                    sender_flows: count.sender_flows,
                    excludes_managed: count.excludes_managed,
                    stands: count.stands,
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
                    flow: credit.flow,
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
                    managed_bytes: link.managed_bytes,
                    shaped_packets: link.shaped_packets,
                    timestamp_ns: link.timestamp_ns,
                    bandwidth_bps: link.bandwidth_bps,
                    interval_ns: link.interval_ns,
                    former_queue_bytes: link.former_queue_bytes,
                    age_ns: link.age_ns,
                })
                .collect(),
            whole: wire.whole,
            access_use: match wire.access_use {
                Some(access_use) => Some(Box::new(access_use.try_into()?)),
                None => None,
            },
        })
    }
}

impl TryFrom<wire::Telemetry> for Telemetry {
    type Error = SessionError;

    fn try_from(wire: wire::Telemetry) -> Result<Self, SessionError> {
        let telemetry = Self::unchecked(wire)?;
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
                    sender_flows: count.sender_flows.clone(),
                    excludes_managed: count.excludes_managed,
                    stands: count.stands,
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
                    flow: credit.flow,
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
                    managed_bytes: link.managed_bytes,
                    shaped_packets: link.shaped_packets,
                    timestamp_ns: link.timestamp_ns,
                    bandwidth_bps: link.bandwidth_bps,
                    interval_ns: link.interval_ns,
                    former_queue_bytes: link.former_queue_bytes,
                    age_ns: link.age_ns,
                })
                .collect(),
            whole: telemetry.whole,
            access_use: telemetry.access_use.as_deref().map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests;
