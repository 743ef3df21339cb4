//! Audit of the feeds: each reading, when the allocator takes it, against what is true then.
//!
//! | reading | truth | unit |
//! |---|---|---|
//! | receiver's count | hosts with unmanaged flows to it that are not complete | senders |
//! | credit consumed since the reading before | unmanaged data that came from this sender since then | bit/s |
//! | queue of a link | bytes that wait there | bytes |
//! | bytes sent since the reading before, less the managed rate of the last iteration | all bytes that the link carried since then but managed data | bit/s |
//!
//! An error is the distance of the reading from the truth, an age the time from the measurement to
//! its taking.

use std::collections::BTreeMap;

use ratewright_proto::telemetry::{CreditState, LinkInt, ReceiverCount, Telemetry};
use ratewright_topology::HostId;

use crate::run::core::Core;
use crate::time::Time;

/// Errors and ages of one kind of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ReadingErrors {
    readings: u64,
    /// Sum of the distances from the truth.
    error: f64,
    /// Sum of what was true.
    truth: f64,
    /// Sum of the ages, in nanoseconds.
    age_ns: u64,
}

impl ReadingErrors {
    fn add(&mut self, reading: f64, truth: f64, age_ns: u64) {
        self.readings += 1;
        self.error += (reading - truth).abs();
        self.truth += truth;
        self.age_ns += age_ns;
    }
}

/// Last reading of a counter, with the truth at the moment at which it was taken.
#[derive(Clone, Copy, Debug)]
struct Before {
    measured_ns: u64,
    bytes: u64,
    taken_at: Time,
    true_bytes: u64,
}

impl Before {
    /// Returns the rates by the readings and by the truth since this one, in bit/s.
    fn rates(&self, now: &Self) -> Option<(f64, f64)> {
        let read_ns = now.measured_ns.checked_sub(self.measured_ns)?;
        let bytes = now.bytes.checked_sub(self.bytes)?;
        let seconds = now.taken_at.since(self.taken_at).as_secs_f64();
        if read_ns == 0 || seconds == 0.0 {
            return None;
        }
        let truth = now.true_bytes.saturating_sub(self.true_bytes);
        Some((
            bytes as f64 * 8e9 / read_ns as f64,
            truth as f64 * 8.0 / seconds,
        ))
    }
}

/// Errors of all readings.
#[derive(Debug, Default)]
pub(super) struct Audit {
    counts: ReadingErrors,
    credit: ReadingErrors,
    queues: ReadingErrors,
    loads: ReadingErrors,
    credit_before: BTreeMap<(u32, u32), Before>,
    links_before: BTreeMap<u32, Before>,
}

impl Audit {
    /// Returns the sums by kind of reading.
    pub(super) fn summary(&self) -> Vec<(&'static str, f64)> {
        macro_rules! named {
            ($($name:literal: $errors:expr),*) => {
                vec![$(
                    (concat!("feed_", $name, "_readings"), $errors.readings as f64),
                    (concat!("feed_", $name, "_error"), $errors.error),
                    (concat!("feed_", $name, "_truth"), $errors.truth),
                    (concat!("feed_", $name, "_age_ns"), $errors.age_ns as f64),
                )*]
            };
        }
        named!(
            "receivers": self.counts,
            "credit": self.credit,
            "queue": self.queues,
            "load": self.loads
        )
    }

    /// Takes a message at the moment at which the allocator takes it. `handed_out_bps` is what
    /// it handed out last to its flows, by link; hosts measured at `sent_at`.
    pub(super) fn take(
        &mut self,
        core: &mut Core,
        telemetry: &Telemetry,
        sent_at: Time,
        handed_out_bps: impl Fn(u32) -> f64,
    ) {
        let age_ns = core.now.since(sent_at).as_ns();
        for count in &telemetry.receivers {
            self.take_count(core, count, age_ns);
        }
        for credit in &telemetry.credits {
            self.take_credit(core, credit, age_ns);
        }
        for link in &telemetry.links {
            self.take_link(core, link, handed_out_bps(link.link));
        }
    }

    fn take_count(&mut self, core: &Core, count: &ReceiverCount, age_ns: u64) {
        let Some(census) = &core.census else { return };
        let truth = census.senders(HostId(count.receiver), &core.shared.flows);
        let reading = f64::from(count.active_senders);
        self.counts.add(reading, truth as f64, age_ns);
    }

    fn take_credit(&mut self, core: &Core, credit: &CreditState, age_ns: u64) {
        let Some(census) = &core.census else { return };
        let (src, dst) = (HostId(credit.sender), HostId(credit.receiver));
        let now = Before {
            measured_ns: core.now.as_ns().saturating_sub(age_ns),
            bytes: credit.consumed_bytes,
            taken_at: core.now,
            true_bytes: census.external_bytes(src, dst),
        };
        let before = self.credit_before.insert((src.0, dst.0), now);
        if let Some((reading, truth)) = before.and_then(|before| before.rates(&now))
            && (reading > 0.0 || truth > 0.0)
        {
            self.credit.add(reading, truth, age_ns);
        }
    }

    fn take_link(&mut self, core: &mut Core, link: &LinkInt, managed_bps: f64) {
        let true_queue = core.read_port(link.link).queue_bytes;
        let age_ns = core.now.as_ns().saturating_sub(link.timestamp_ns);
        let queue = link.queue_bytes as f64;
        self.queues.add(queue, true_queue as f64, age_ns);
        if link.interval_ns > 0 {
            // Its bytes are those of its own interval, whose truth nobody kept.
            return;
        }
        let Some(census) = &core.census else { return };
        let arrived = core.fabric.ports[link.link as usize].arrived().bytes;
        let now = Before {
            measured_ns: link.timestamp_ns,
            bytes: link.tx_bytes,
            taken_at: core.now,
            true_bytes: arrived.saturating_sub(census.managed_bytes(link.link)),
        };
        let before = self.links_before.insert(link.link, now);
        if let Some((sent_bps, truth)) = before.and_then(|before| before.rates(&now)) {
            let reading = (sent_bps - managed_bps).max(0.0);
            self.loads.add(reading, truth, age_ns);
        }
    }
}
