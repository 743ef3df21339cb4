//! Feeds measured use to the meters of flows, and reports the demands that follow from it.

use super::demand::Verdict;
use super::{FlowAction, FlowTable, FlowletPhase, PacingState, SlotIndex};
use crate::backend::Usage;

/// Use is measured this often,
const USAGE_INTERVAL_NS: u64 = 20_000_000;
/// or, with many flows, once per this time for each flow with a rate: measuring then takes a
/// bounded part of a core.
const USAGE_INTERVAL_PER_FLOW_NS: u64 = 5_000;
/// Most demands lowered in one second. Only a lowered demand is raised, or one that a new flowlet
/// began with, so raises are bounded as well.
pub(super) const LOWERINGS_PER_S: u32 = 4_096;

impl FlowTable {
    /// Turns the measuring of demands on or off; without it, demands come from policy and
    /// application only.
    pub fn set_measures_demand(&mut self, measures: bool) {
        self.measures_demand = measures;
    }

    /// Returns the time at which [`FlowTable::on_usage`] is due, if any flow has a rate.
    #[must_use]
    pub fn next_usage_ns(&self) -> Option<u64> {
        (self.rated > 0 && self.state != PacingState::Release).then_some(self.usage_due_ns)
    }

    /// Takes the use of all flows with a rate, as of `now_ns`.
    pub fn on_usage(&mut self, now_ns: u64, usages: &[Usage]) {
        // The interval grows with the number of rates, so that measuring keeps its share of a core.
        let every_ns = USAGE_INTERVAL_NS.max(u64::from(self.rated) * USAGE_INTERVAL_PER_FLOW_NS);
        self.usage_due_ns = now_ns.saturating_add(every_ns);
        if now_ns.saturating_sub(self.lowerings_since_ns) >= 1_000_000_000 {
            self.lowerings_since_ns = now_ns;
            self.lowerings_left = LOWERINGS_PER_S;
        }
        for usage in usages {
            self.update_demand(now_ns, usage);
        }
    }

    fn update_demand(&mut self, now_ns: u64, usage: &Usage) {
        let slot = usage.conn.slot;
        let renewed_to_ns = self.renewed_to_ns;
        let connection = self
            .entries
            .get_mut(slot.0 as usize)
            .and_then(|entry| entry.connection.as_mut())
            .filter(|connection| connection.conn == usage.conn);
        let Some(flowlet) = connection.and_then(|connection| connection.flowlet.as_mut()) else {
            return;
        };
        // Without a valid rate, the kernel measures nothing: a later rate begins with a fresh
        // meter.
        let Some(rate) = flowlet
            .rate
            .filter(|rate| rate.expires_ns.max(renewed_to_ns) > now_ns)
        else {
            flowlet.meter.stop();
            return;
        };
        let meter = &mut flowlet.meter;
        if meter.begin(now_ns, usage) {
            return;
        }
        meter.set_observes(self.backend_observes);
        let bytes = meter.measured_bytes(now_ns, usage, rate.bps);
        let verdict = meter.evaluate(now_ns, usage, rate.bps, flowlet.measured_bps);
        if let Some(class) = flowlet.class() {
            self.bytes_by_class.add(class, bytes);
        }
        match verdict {
            Verdict::Keep => {}
            // Without measured demands, use is only told to operators.
            _ if !self.measures_demand => {}
            // The meter asks again at the next measurement, when the budget may be full again.
            Verdict::Lower(_) if self.lowerings_left == 0 => {}
            Verdict::Lower(bps) => {
                flowlet.measured_bps = Some(bps);
                self.lowerings_left -= 1;
                self.counters.demands_lowered += 1;
                // Growth must not wait for the next measurement: the kernel reports it as an event.
                self.actions.push_back(FlowAction::Watch(usage.conn));
                self.resolve(slot);
            }
            // A pause sends nothing either, and has its own timer.
            Verdict::Stalled if flowlet.phase != FlowletPhase::Active => {}
            Verdict::Stalled => {
                self.counters.stalled += 1;
                self.end_flowlet(slot, true);
            }
        }
    }

    /// Handles a flow that has used up its rate: its demand grows.
    pub(super) fn on_limited(&mut self, slot: SlotIndex, at_ns: u64) {
        let Some(connection) = &mut self.entries[slot.0 as usize].connection else {
            return;
        };
        let conn = connection.conn;
        let Some(flowlet) = connection.flowlet.as_mut() else {
            return;
        };
        let before = flowlet.measured_bps;
        let Some(rate_bps) = flowlet.rate.map(|rate| rate.bps) else {
            // What an earlier flowlet was watched for: this one is watched from its first rate on.
            return;
        };
        flowlet.measured_bps = flowlet.meter.on_limited(at_ns, before, rate_bps);
        if flowlet.measured_bps.is_some() {
            self.actions.push_back(FlowAction::Watch(conn));
        }
        // The report may cross the flowlet's end and a new start, whose demand was not lowered.
        if flowlet.measured_bps != before {
            self.counters.demands_raised += 1;
            self.resolve(slot);
        }
    }
}
