//! Telemetry messages from what was measured: paced, bounded, and none while nothing happens.
//!
//! Sans-IO: measurements go in with their time, and a message comes out or not.

use indexmap::IndexMap;
use ratewright_proto::control::AccessCapacity;
use ratewright_proto::telemetry::{
    LinkInt, OWN_DOWNLINK, OWN_UPLINK, ReceiverCount, SenderName, SyncTerms, Telemetry,
    TelemetrySender,
};
use rustc_hash::FxBuildHasher;

use super::interface::InterfaceCounters;
use super::senders::ActiveSender;
use crate::backend::{Conn, Usage};

/// Most senders that a message names, so that it fits into two packets.
const MAX_NAMED: usize = 256;
/// A link is busy from this part of its capacity on.
const BUSY_SHARE: u64 = 100;
/// Messages that follow once nothing happens any more. The allocator compares two readings, and
/// one message may be late.
const LAST_WORDS: u32 = 3;

/// Measurements at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkReading {
    /// Time of the reading.
    pub at_ns: u64,
    /// Counters of the interface.
    pub counters: InterfaceCounters,
    /// Bytes sent so far by flows that have a rate.
    pub managed_tx_bytes: u64,
    /// Packets so far that the instance's allowance has held up: arriving and leaving.
    pub shaped_packets: [u64; 2],
}

impl LinkReading {
    /// Returns true if a queue stands, or if one of the host's links carried more than a little of
    /// its capacity since the reading `before`.
    #[must_use]
    pub fn is_busy_since(&self, before: &Self, access: AccessCapacity) -> bool {
        let elapsed_ns = u128::from(self.at_ns.saturating_sub(before.at_ns));
        let carries = |now: u64, before: u64, capacity_bps: u64| {
            let bits = u128::from(now.saturating_sub(before)) * 8_000_000_000;
            capacity_bps > 0 && bits > u128::from(capacity_bps / BUSY_SHARE) * elapsed_ns
        };
        let (now, before) = (&self.counters, &before.counters);
        now.queue_bytes > 0
            || carries(now.tx_bytes, before.tx_bytes, access.uplink_bps)
            || carries(now.rx_bytes, before.rx_bytes, access.downlink_bps)
    }
}

/// Builder of this host's messages.
#[derive(Debug)]
pub struct Reporter {
    own_host: u32,
    access: AccessCapacity,
    before: Option<LinkReading>,
    /// Messages that may still follow although nothing happens.
    words_left: u32,
    sender: TelemetrySender,
}

impl Reporter {
    /// Makes a builder for a session of the host `own_host`, on the allocator's terms for a state.
    /// A link without a capacity is not reported.
    #[must_use]
    pub fn new(own_host: u32, access: AccessCapacity, terms: Option<SyncTerms>) -> Self {
        Self {
            own_host,
            access,
            before: None,
            words_left: 0,
            sender: TelemetrySender::new(terms, own_host),
        }
    }

    /// Replaces the capacities of the host's own links.
    pub fn set_access(&mut self, access: AccessCapacity) {
        self.access = access;
    }

    /// Tells all anew in the next message: the last one was not sent, or the allocator has another
    /// topology.
    pub fn restart(&mut self) {
        self.sender.restart();
    }

    /// Returns the message about the present state, if there is something to tell.
    pub fn report(
        &mut self,
        now_ns: u64,
        measured_ns: u64,
        senders: &[ActiveSender],
        reading: Option<&LinkReading>,
    ) -> Option<Telemetry> {
        let carries = reading
            .zip(self.before.as_ref())
            .is_some_and(|(now, before)| now.is_busy_since(before, self.access));
        self.before = reading.copied();
        let links = reading.map_or_else(Vec::new, |reading| self.links(now_ns, reading));
        let mut measured = Telemetry {
            links,
            ..Telemetry::default()
        };
        if carries || !senders.is_empty() {
            self.words_left = LAST_WORDS;
        } else if self.words_left > 0 {
            self.words_left -= 1;
        } else {
            self.sender.rest(&measured);
            return None;
        }
        measured.receivers = vec![self.count(now_ns, measured_ns, senders)];
        self.sender.measure(now_ns, measured)
    }

    fn count(&self, now_ns: u64, measured_ns: u64, senders: &[ActiveSender]) -> ReceiverCount {
        let named = senders.iter().filter_map(|sender| match sender.name {
            SenderName::Host(host) => Some((host, sender.flows)),
            SenderName::Address(_) => None,
        });
        let (hosts, flows) = named.take(MAX_NAMED).unzip();
        ReceiverCount {
            receiver: self.own_host,
            active_senders: u32::try_from(senders.len()).unwrap_or(u32::MAX),
            senders: hosts,
            sender_flows: flows,
            age_ns: now_ns.saturating_sub(measured_ns),
            ..ReceiverCount::default()
        }
    }

    fn links(&self, now_ns: u64, reading: &LinkReading) -> Vec<LinkInt> {
        let counters = &reading.counters;
        let [shaped_in, shaped_out] = reading.shaped_packets;
        let uplink = LinkInt {
            link: OWN_UPLINK,
            queue_bytes: u64::from(counters.queue_bytes),
            tx_bytes: counters.tx_bytes,
            managed_bytes: Some(reading.managed_tx_bytes.min(counters.tx_bytes)),
            shaped_packets: shaped_out,
            timestamp_ns: reading.at_ns,
            bandwidth_bps: self.access.uplink_bps,
            age_ns: now_ns.saturating_sub(reading.at_ns),
            ..LinkInt::default()
        };
        // The queue of the downlink is in the switch, where this host cannot see it.
        let downlink = LinkInt {
            link: OWN_DOWNLINK,
            queue_bytes: 0,
            tx_bytes: counters.rx_bytes,
            managed_bytes: None,
            shaped_packets: shaped_in,
            bandwidth_bps: self.access.downlink_bps,
            ..uplink
        };
        [uplink, downlink]
            .into_iter()
            .filter(|link| link.bandwidth_bps > 0)
            .collect()
    }
}

/// Sum of the bytes that flows with a rate have sent.
#[derive(Debug, Default)]
pub struct ManagedBytes {
    sent: IndexMap<Conn, (u64, u64), FxBuildHasher>,
    total: u64,
    reading: u64,
}

impl ManagedBytes {
    /// Adds what the flows have sent since the reading before. Returns the sum so far. A flow of
    /// less than one interval is missed and counts as external.
    pub fn add(&mut self, usages: &[Usage]) -> u64 {
        self.reading += 1;
        for usage in usages {
            let entry = (usage.sent_bytes, self.reading);
            // What a connection sent before it had a rate was not managed.
            if let Some((before, _)) = self.sent.insert(usage.conn, entry) {
                self.total += usage.sent_bytes.saturating_sub(before);
            }
        }
        // As many entries as the back end has flows with a rate.
        let reading = self.reading;
        self.sent.retain(|_, (_, seen_in)| *seen_in == reading);
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SlotIndex;

    const MS: u64 = 1_000_000;
    const ACCESS: AccessCapacity = AccessCapacity::new(1_000_000_000, 1_000_000_000);

    fn sender(name: SenderName) -> ActiveSender {
        ActiveSender {
            name,
            rate_bps: 1,
            flows: 3,
        }
    }

    fn reading(at_ms: u64, rx_bytes: u64) -> LinkReading {
        LinkReading {
            at_ns: at_ms * MS,
            counters: InterfaceCounters {
                rx_bytes,
                tx_bytes: 40,
                ..InterfaceCounters::default()
            },
            managed_tx_bytes: 50,
            shaped_packets: [6, 7],
        }
    }

    #[test]
    fn an_idle_host_says_nothing() {
        let mut reporter = Reporter::new(1, ACCESS, None);
        for at_ms in (0..1_000).step_by(10) {
            // Keep-alives: well below a hundredth of the capacity.
            let reading = reading(at_ms, at_ms * 100);
            let told = reporter.report(at_ms * MS, at_ms * MS, &[], Some(&reading));
            assert_eq!(told, None, "{at_ms} ms");
        }
    }

    #[test]
    fn a_busy_host_reports_each_time_and_a_little_beyond() {
        let mut reporter = Reporter::new(1, ACCESS, None);
        let mut told = 0;
        for at_ms in (0..300).step_by(10) {
            // A tenth of the capacity until 100 ms.
            let reading = reading(at_ms, at_ms.min(100) * 12_500);
            let message = reporter.report(at_ms * MS, at_ms * MS, &[], Some(&reading));
            told += u32::from(message.is_some());
        }
        assert_eq!(told, 10 + LAST_WORDS);
    }

    #[test]
    fn senders_of_the_topology_are_named_and_others_counted() {
        let mut reporter = Reporter::new(1, ACCESS, None);
        let senders = [
            sender(SenderName::Host(4)),
            sender(SenderName::Address([192, 0, 2, 1].into())),
            sender(SenderName::Host(9)),
        ];
        let message = reporter.report(30 * MS, 28 * MS, &senders, None).unwrap();
        assert_eq!(message.validate(), Ok(()));
        let count = &message.receivers[0];
        assert_eq!((count.receiver, count.active_senders), (1, 3));
        assert_eq!(
            (&count.senders[..], &count.sender_flows[..]),
            (&[4, 9][..], &[3, 3][..])
        );
        assert_eq!(count.age_ns, 2 * MS);
        assert!(message.links.is_empty());
    }

    #[test]
    fn a_message_is_valid_and_bounded_with_any_number_of_senders() {
        let mut reporter = Reporter::new(1, ACCESS, None);
        let senders: Vec<_> = (0..5_000).map(|id| sender(SenderName::Host(id))).collect();
        let message = reporter
            .report(30 * MS, 30 * MS, &senders, Some(&reading(30, 9)))
            .unwrap();
        assert_eq!(message.validate(), Ok(()));
        assert_eq!(message.receivers[0].active_senders, 5_000);
        assert_eq!(message.receivers[0].senders.len(), MAX_NAMED);
    }

    #[test]
    fn both_links_are_told_with_their_counters() {
        let mut reporter = Reporter::new(1, ACCESS, None);
        let senders = [sender(SenderName::Host(4))];
        let message = reporter
            .report(31 * MS, 30 * MS, &senders, Some(&reading(30, 9)))
            .unwrap();
        let [uplink, downlink] = &message.links[..] else {
            panic!("two links: {:?}", message.links);
        };
        assert_eq!((uplink.link, uplink.tx_bytes), (OWN_UPLINK, 40));
        // Never more than was sent, whatever the two counters' origins.
        assert_eq!(uplink.managed_bytes, Some(40));
        assert_eq!((downlink.link, downlink.tx_bytes), (OWN_DOWNLINK, 9));
        assert_eq!((downlink.shaped_packets, uplink.shaped_packets), (6, 7));
        assert_eq!((uplink.age_ns, downlink.timestamp_ns), (MS, 30 * MS));
    }

    #[test]
    fn a_link_of_unknown_capacity_is_left_out() {
        let mut reporter = Reporter::new(
            1,
            AccessCapacity {
                uplink_bps: 0,
                ..ACCESS
            },
            None,
        );
        let senders = [sender(SenderName::Host(4))];
        let message = reporter
            .report(30 * MS, 30 * MS, &senders, Some(&reading(30, 9)))
            .unwrap();
        assert_eq!(message.links.len(), 1);
        assert_eq!(message.validate(), Ok(()));
    }

    #[test]
    fn bytes_count_as_managed_while_their_flow_has_a_rate() {
        let usage = |slot, sent_bytes| Usage {
            conn: Conn {
                slot: SlotIndex(slot),
                use_count: 1,
            },
            sent_bytes,
            acked_bytes: 0,
            limited_ns: 0,
            round_trip_ns: 0,
        };
        let mut managed = ManagedBytes::default();
        assert_eq!(managed.add(&[usage(1, 1_000)]), 0);
        assert_eq!(managed.add(&[usage(1, 1_500), usage(2, 70)]), 500);
        // Without a rate in between: what it sent then was not managed.
        assert_eq!(managed.add(&[usage(2, 100)]), 530);
        assert_eq!(managed.add(&[usage(1, 9_000), usage(2, 100)]), 530);
        assert_eq!(managed.add(&[usage(1, 9_010), usage(2, 100)]), 540);
    }
}
