//! Rates of each class against what its flows achieve: in observe mode, what pacing would have
//! given them.

use std::collections::BTreeMap;

use super::report_status::ReportStatus;
use super::{FlowTable, Flowlet};

/// Present and total figures of one class.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct ClassUse {
    /// Its number.
    pub class: u8,
    /// Its name; empty without a session.
    pub name: String,
    /// Its flowlets with a rate.
    pub flows: u64,
    /// Sum of their rates, in bit/s on the wire.
    pub rate_bps: u64,
    /// Sum of what they sent in their last measuring window, in bit/s on the wire.
    pub achieved_bps: u64,
    /// Bytes on the wire that rates allowed since the start, at most what was sent while the
    /// application had no more.
    pub allowed_bytes: u64,
    /// Bytes that were sent meanwhile.
    pub achieved_bytes: u64,
}

/// Bytes of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MeasuredBytes {
    pub(super) allowed: u64,
    pub(super) achieved: u64,
}

/// Total bytes by class. A class is a number below 128, which bounds the table.
#[derive(Debug, Default)]
pub(super) struct BytesByClass(BTreeMap<u8, MeasuredBytes>);

impl BytesByClass {
    pub(super) fn add(&mut self, class: u8, bytes: MeasuredBytes) {
        let total = self.0.entry(class).or_default();
        total.allowed += bytes.allowed;
        total.achieved += bytes.achieved;
    }
}

impl Flowlet {
    /// Returns the class under which the flowlet was reported.
    pub(super) fn class(&self) -> Option<u8> {
        match &self.report_status {
            ReportStatus::Reported(start) => Some(start.class()),
            _ => None,
        }
    }
}

impl FlowTable {
    /// Returns the figures of every class that has or had a flowlet with a rate, by number. Visits
    /// every flowlet.
    #[must_use]
    pub fn class_use(&self, now_ns: u64) -> Vec<ClassUse> {
        let mut classes: BTreeMap<u8, ClassUse> = BTreeMap::new();
        for (&class, bytes) in &self.bytes_by_class.0 {
            let entry = classes.entry(class).or_default();
            entry.allowed_bytes = bytes.allowed;
            entry.achieved_bytes = bytes.achieved;
        }
        for flowlet in self.flowlets() {
            let (Some(class), Some(rate)) = (flowlet.class(), flowlet.rate) else {
                continue;
            };
            if rate.expires_ns.max(self.renewed_to_ns) <= now_ns {
                continue;
            }
            let entry = classes.entry(class).or_default();
            entry.flows += 1;
            entry.rate_bps += rate.bps;
            entry.achieved_bps += flowlet.meter.used_bps();
        }
        classes
            .into_iter()
            .map(|(class, figures)| ClassUse {
                class,
                name: self
                    .network
                    .as_ref()
                    .and_then(|network| network.class_name(class))
                    .unwrap_or_default()
                    .to_owned(),
                ..figures
            })
            .collect()
    }
}
