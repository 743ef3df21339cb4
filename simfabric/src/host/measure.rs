//! Knowledge of a host's endpoints of it as a receiver: the source of receiver counts (Dart §III-B)
//! and credit (SIRD §4) for the allocator's feeds, and of received bytes for its check of links.
//!
//! | endpoint | counts | credit | received bytes |
//! |---|---|---|---|
//! | TCP of any kind | senders of flows that have begun and not ended | none | payload by sender |
//! | Flowtune, Ratewright | none: the allocator knows their flows | none | payload by sender |
//! | RDMA | as TCP | none | none |
//! | Dart | its set of active senders, with those that look-ahead announced (§III-D) | none | none |
//! | Homa, ExpressPass, dcPIM | senders of incomplete messages | none: their grants are for messages, without a ledger by sender | none |
//! | SIRD | senders of incomplete messages | its ledger by sender | none |

use std::collections::BTreeMap;

use ratewright_proto::telemetry::{CreditState, ReceiverCount};
use ratewright_topology::HostId;

use super::Timer;

/// Measurements of a host as a receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Senders, in any order and more than once; true for those that were only announced.
    senders: Vec<(HostId, bool)>,
    /// Credit by sender; `receiver` is the host's own.
    credits: Vec<CreditState>,
    /// Payload that arrived in order so far, by sender; `None` if nobody asks.
    received: Option<BTreeMap<u32, u64>>,
}

impl Measured {
    /// Begins the measurements of a timer of kind [`Timer::MEASURE`].
    #[must_use]
    pub fn at(timer: Timer) -> Self {
        Self {
            received: (timer.slot == Timer::RECEIVED).then(BTreeMap::new),
            ..Self::default()
        }
    }

    /// Returns true if the payload by sender is asked for.
    #[must_use]
    pub fn wants_received(&self) -> bool {
        self.received.is_some()
    }

    /// Adds payload that arrived in order from a sender so far, if that is asked for.
    pub fn received(&mut self, sender: HostId, bytes: u64) {
        if let Some(received) = &mut self.received {
            *received.entry(sender.0).or_default() += bytes;
        }
    }

    /// Takes the payload that arrived so far, by sender, if that was asked for.
    #[must_use]
    pub fn into_received(self) -> Option<BTreeMap<u32, u64>> {
        self.received
    }

    /// Adds a sender that has sent.
    pub fn sender(&mut self, host: HostId) {
        self.senders.push((host, false));
    }

    /// Adds a sender that others told of and that has not sent.
    pub fn announced(&mut self, host: HostId) {
        self.senders.push((host, true));
    }

    /// Adds the credit of a sender.
    pub fn credit(&mut self, credit: CreditState) {
        self.credits.push(credit);
    }

    /// Returns the count of the host's senders, with the flows of each. One that has sent to any
    /// endpoint is not announced.
    #[must_use]
    pub fn count(&self, receiver: HostId) -> ReceiverCount {
        let mut senders = self.senders.clone();
        // Of one host, the entries of flows that have sent come first.
        senders.sort_unstable_by_key(|&(host, announced)| (host.0, announced));
        let mut count = ReceiverCount {
            receiver: receiver.0,
            excludes_managed: true,
            ..ReceiverCount::default()
        };
        for of_sender in senders.chunk_by(|one, other| one.0 == other.0) {
            let (host, announced) = of_sender[0];
            let sent = of_sender.iter().filter(|(_, announced)| !announced);
            count.active_senders += 1;
            count.lookahead_senders += u32::from(announced);
            count.senders.push(host.0);
            count.sender_flows.push(sent.count().max(1) as u32);
        }
        count
    }

    /// Takes the credit by sender.
    #[must_use]
    pub fn into_credits(self) -> Vec<CreditState> {
        self.credits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AUSS is a set (Dart §III-B): a sender of several flows, or under two schemes, counts once.
    #[test]
    fn a_sender_counts_once_and_one_that_has_sent_is_not_announced() {
        let mut measured = Measured::default();
        for host in [7, 3, 7] {
            measured.sender(HostId(host));
        }
        for host in [3, 9] {
            measured.announced(HostId(host));
        }
        let count = measured.count(HostId(1));
        assert_eq!(count.senders, [3, 7, 9]);
        assert_eq!(count.sender_flows, [1, 2, 1]);
        assert_eq!((count.active_senders, count.lookahead_senders), (3, 1));
    }
}
