//! Everything that one phase (with or without Ratewright) of a scenario measured.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use ratewright_cli::clock::{NS_PER_S, now_ns};

use crate::traffic::protocol::{BIN_NS, Report};

/// One flow as its two ends saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowRecord {
    /// Name in the legend.
    pub label: String,
    /// Time at which the sender began to connect.
    pub started_ns: Option<u64>,
    /// Time at which the receiver had read everything.
    pub ended_ns: Option<u64>,
    /// Reason of a broken connection.
    pub failed: Option<String>,
    /// True if the lab made the sender reset the connection.
    pub aborted: bool,
    /// Payload bytes that the receiver read in all, once it had the sender's end of stream.
    pub received_bytes: Option<u64>,
    /// Payload bytes that the sender wrote in all, once it saw the receiver's end of stream.
    pub written_bytes: Option<u64>,
    /// Of a traced flow: times of writes and the bytes before them.
    pub marks: Vec<(u64, u64)>,
    /// Of a traced flow: times of reads and the bytes until then.
    pub arrivals: Vec<(u64, u64)>,
    /// Number of the first bin of `bins`.
    pub first_bin: u64,
    /// Payload bytes per bin.
    pub bins: Vec<u64>,
}

impl FlowRecord {
    fn count(&mut self, bin: u64, bytes: u64) {
        if self.bins.is_empty() {
            self.first_bin = bin;
        }
        // Reports may come out of order: an earlier bin after a later one.
        let before = self.first_bin.saturating_sub(bin) as usize;
        if before > 0 {
            self.bins.splice(0..0, std::iter::repeat_n(0, before));
            self.first_bin = bin;
        }
        let at = (bin - self.first_bin) as usize;
        if self.bins.len() <= at {
            self.bins.resize(at + 1, 0);
        }
        self.bins[at] += bytes;
    }

    /// Records a report about the flow; returns an event to show, if there is one.
    fn take(&mut self, report: Report) -> Option<(u64, String)> {
        match report {
            Report::Started { at_ns, .. } => self.started_ns = Some(at_ns),
            Report::Received { at_ns, bytes, .. } => {
                self.ended_ns = Some(at_ns);
                self.received_bytes = Some(bytes);
            }
            Report::Finished { bytes, .. } => self.written_bytes = Some(bytes),
            // Both ends report the reset; the first one is the end.
            Report::Failed { at_ns, .. } | Report::Lost { at_ns, .. } if self.aborted => {
                self.ended_ns = self.ended_ns.or(Some(at_ns));
            }
            Report::Failed { at_ns, error, .. } | Report::Lost { at_ns, error, .. } => {
                let text = format!("{}: {error}", self.label);
                return self
                    // Both ends may report one break: only the first is shown.
                    .failed
                    .replace(error)
                    .is_none()
                    .then_some((at_ns, text));
            }
            Report::Marks { marks, .. } => self.marks.extend(marks),
            Report::Arrivals { arrivals, .. } => self.arrivals.extend(arrivals),
            Report::Accepted { .. } | Report::Bins(_) | Report::Listening => {}
        }
        None
    }

    /// Payload bytes from `from_ns` to `to_ns`, both on bin borders.
    #[must_use]
    pub fn bytes(&self, from_ns: u64, to_ns: u64) -> u64 {
        let index =
            // Bins outside the record are empty, so the index is clamped and not refused.
            |ns: u64| ((ns / BIN_NS).saturating_sub(self.first_bin) as usize).min(self.bins.len());
        self.bins[index(from_ns)..index(to_ns)].iter().sum()
    }

    /// Payload bit/s from `from_ns` to `to_ns`, both on bin borders.
    #[must_use]
    pub fn rate_bps(&self, from_ns: u64, to_ns: u64) -> f64 {
        self.bytes(from_ns, to_ns) as f64 * 8.0 * NS_PER_S as f64
            // At least 1, so that an empty interval is a rate of 0 and not a division by 0.
            / to_ns.saturating_sub(from_ns).max(1) as f64
    }
}

/// One switch port: (time, bytes sent since the beginning).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortRecord {
    /// Name in messages.
    pub name: String,
    /// Its capacity.
    pub capacity_bps: u64,
    /// Samples in order of time.
    pub samples: Vec<(u64, u64)>,
}

impl PortRecord {
    /// Bytes sent until `at_ns`, interpolated between samples.
    #[must_use]
    pub fn bytes_at(&self, at_ns: u64) -> f64 {
        // Samples are in order of time, as one thread appends them.
        let after = self.samples.partition_point(|(t, _)| *t < at_ns);
        let bytes = |i: usize| self.samples[i].1 as f64;
        match (after.checked_sub(1), self.samples.get(after)) {
            (None, Some(first)) => first.1 as f64,
            (Some(last), None) => bytes(last),
            (None, None) => 0.0,
            (Some(i), Some((t1, b1))) => {
                let t0 = self.samples[i].0;
                bytes(i) + (*b1 as f64 - bytes(i)) * (at_ns - t0) as f64 / (t1 - t0).max(1) as f64
            }
        }
    }

    /// Share of the capacity that was used from `from_ns` to `to_ns`.
    #[must_use]
    pub fn utilization(&self, from_ns: u64, to_ns: u64) -> f64 {
        let seconds = to_ns.saturating_sub(from_ns) as f64 / NS_PER_S as f64;
        if seconds == 0.0 {
            return 0.0;
        }
        (self.bytes_at(to_ns) - self.bytes_at(from_ns)) * 8.0 / seconds / self.capacity_bps as f64
    }
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// Beginning of the recording.
    pub begin_ns: u64,
    /// Flows by number, in order of their announcement.
    pub flows: IndexMap<u32, FlowRecord>,
    /// Ports that are watched; the first is the scenario's bottleneck.
    pub ports: Vec<PortRecord>,
    /// Events with their times.
    pub events: Vec<(u64, String)>,
    /// Number of sinks that listen.
    pub listening: usize,
}

impl Recording {
    /// An empty recording that begins now.
    #[must_use]
    pub fn new() -> Recording {
        Recording {
            begin_ns: now_ns(),
            flows: IndexMap::new(),
            ports: Vec::new(),
            events: Vec::new(),
            listening: 0,
        }
    }

    /// Announces a flow under a name.
    pub fn announce(&mut self, flow: u32, label: impl Into<String>) {
        self.flows.entry(flow).or_default().label = label.into();
    }

    /// Records a traffic program's report.
    pub fn take(&mut self, report: Report) {
        match report {
            Report::Bins(bins) => {
                for (flow, bin, bytes) in bins {
                    if let Some(record) = self.flows.get_mut(&flow) {
                        record.count(bin, bytes);
                    }
                }
            }
            Report::Listening => self.listening += 1,
            Report::Started { flow, .. }
            | Report::Finished { flow, .. }
            | Report::Failed { flow, .. }
            | Report::Accepted { flow, .. }
            | Report::Received { flow, .. }
            | Report::Lost { flow, .. }
            | Report::Marks { flow, .. }
            | Report::Arrivals { flow, .. } => {
                // A flow that the lab has forgotten may have its last word.
                if let Some(record) = self.flows.get_mut(&flow) {
                    self.events.extend(record.take(report));
                }
            }
        }
    }

    /// Returns the number of broken connections.
    #[must_use]
    pub fn connections_lost(&self) -> usize {
        self.flows
            .values()
            .filter(|flow| flow.failed.is_some())
            .count()
    }
}

impl Default for Recording {
    fn default() -> Self {
        Recording::new()
    }
}

/// A recording that the lab's threads fill together.
#[derive(Debug, Clone, Default)]
pub struct SharedRecording(Arc<Mutex<Recording>>);

impl SharedRecording {
    /// Exclusive access; a thread that panicked while it held the lock leaves valid counts behind.
    pub fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something happened now.
    pub fn event(&self, text: impl Into<String>) {
        self.lock().events.push((now_ns(), text.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_counters_are_interpolated() {
        let port = PortRecord {
            name: "p".into(),
            capacity_bps: 8_000,
            samples: vec![(0, 0), (NS_PER_S, 1_000)],
        };
        assert!((port.bytes_at(NS_PER_S / 2) - 500.0).abs() < 1e-9);
        assert!((port.utilization(0, NS_PER_S) - 1.0).abs() < 1e-9);
        assert_eq!(port.bytes_at(2 * NS_PER_S), 1_000.0);
    }

    #[test]
    fn what_the_lab_aborted_is_not_lost_and_what_it_forgot_stays_forgotten() {
        let mut recording = Recording::new();
        recording.announce(1, "one");
        recording.announce(2, "two");
        recording.flows[&2].aborted = true;
        for flow in 1..=3 {
            recording.take(Report::Lost {
                flow,
                at_ns: 7,
                error: "reset".to_owned(),
            });
        }
        assert_eq!(recording.flows.len(), 2);
        assert_eq!(recording.connections_lost(), 1);
        assert_eq!(recording.flows[&2].ended_ns, Some(7));
        assert_eq!(recording.events.len(), 1);
    }

    #[test]
    fn bins_add_up_to_rates() {
        let mut recording = Recording::new();
        recording.announce(1, "one");
        recording.take(Report::Bins(vec![
            (1, 102, 10),
            (1, 104, 20),
            (1, 104, 5),
            (1, 100, 1),
        ]));
        let flow = &recording.flows[&1];
        let rate = flow.rate_bps(100 * BIN_NS, 105 * BIN_NS);
        assert!((rate - 36.0 * 8.0 / 0.05).abs() < 1e-6);
        assert_eq!(flow.bytes(101 * BIN_NS, 103 * BIN_NS), 10);
        assert_eq!(flow.rate_bps(105 * BIN_NS, 110 * BIN_NS), 0.0);
        assert_eq!(flow.rate_bps(0, 100 * BIN_NS), 0.0);
    }
}
