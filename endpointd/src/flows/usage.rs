//! From measured use to demand: which flows are looked at when, and what follows from it.

use super::demand::{Meter, Verdict};
use super::{FlowAction, FlowTable, FlowletPhase, SlotIndex};
use crate::backend::Usage;

/// Flows are looked at this often,
const USAGE_INTERVAL_NS: u64 = 20_000_000;
/// or so much more rarely for each flow with a rate, that looking costs a core little.
const USAGE_INTERVAL_PER_FLOW_NS: u64 = 5_000;
/// Demands that are lowered in a second at most. A demand is only raised that was lowered before.
pub(super) const LOWERINGS_PER_S: u32 = 4_096;

impl FlowTable {
    /// Whether flows' demands are measured; without, a flow's demand is what policy and its application say.
    pub fn set_measures_demand(&mut self, measures: bool) {
        self.measures_demand = measures;
    }

    /// When [`FlowTable::on_usage`] wants to hear of all flows with a rate, if ever.
    #[must_use]
    pub fn next_usage_ns(&self) -> Option<u64> {
        (self.measures_demand && self.rated > 0 && !self.released).then_some(self.usage_due_ns)
    }

    /// What the flows with a rate have used so far, as of `now_ns`.
    pub fn on_usage(&mut self, now_ns: u64, usages: &[Usage]) {
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
        if usage.rests_ns > 0
            && now_ns.saturating_sub(usage.rests_ns) >= flowlet.gap_ns(self.idle_gap_ns)
        {
            self.end_flowlet(slot, true);
            return;
        }
        // Without a rate that holds, the kernel measures nothing.
        let Some(rate) = flowlet
            .rate
            .filter(|rate| rate.expires_ns.max(renewed_to_ns) > now_ns)
        else {
            flowlet.meter = None;
            return;
        };
        let Some(meter) = &mut flowlet.meter else {
            flowlet.meter = Some(Meter::new(now_ns, usage));
            return;
        };
        match meter.evaluate(now_ns, usage, rate.bps, flowlet.measured_bps) {
            Verdict::Keep => {}
            Verdict::Lower(_) if self.lowerings_left == 0 => {}
            Verdict::Lower(bps) => {
                flowlet.measured_bps = Some(bps);
                self.lowerings_left -= 1;
                self.counters.demands_lowered += 1;
                self.actions.push_back(FlowAction::Watch(usage.conn));
                self.resolve(slot);
            }
            // A pause has its own timer.
            Verdict::Stalled if flowlet.phase != FlowletPhase::Active => {}
            Verdict::Stalled => {
                self.counters.stalled += 1;
                self.end_flowlet(slot, true);
            }
        }
    }

    /// A watched flow meets its limit: it wants whatever it can get.
    pub(super) fn on_limited(&mut self, slot: SlotIndex, at_ns: u64) {
        let Some(flowlet) = self.entries[slot.0 as usize]
            .connection
            .as_mut()
            .and_then(|connection| connection.flowlet.as_mut())
        else {
            return;
        };
        if let Some(meter) = &mut flowlet.meter {
            meter.on_limited(at_ns);
        }
        if flowlet.measured_bps.take().is_some() {
            self.counters.demands_raised += 1;
            self.resolve(slot);
        }
    }
}
