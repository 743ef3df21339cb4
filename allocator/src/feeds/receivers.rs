//! Receiver counts (DART, section III): senders that the allocator does not know hold a share of
//! their receiver's downlink, announced ones before their first byte.

use ratewright_proto::telemetry::ReceiverCount;
use ratewright_topology::HostId;

/// Maximum weight of a receiver's unknown senders, in flows.
const MAX_FLOWS: f64 = 65_536.0;

/// Unknown senders of one receiver.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnknownSenders {
    /// Time of the newest measurement by the allocator's clock, in nanoseconds.
    pub(super) at_ns: u64,
    /// Flows in force.
    pub(super) flows: f64,
    /// Largest count since the flows in force were last lowered.
    candidate: f64,
    /// The last report counted fewer flows than are in force.
    is_lower: bool,
    pub(super) is_known: bool,
    /// Generation of its host in which it was told as a state; 0 if it was not.
    pub(super) generation: u32,
    /// The count leaves out managed traffic, not senders that have managed traffic too.
    pub(super) is_complete: bool,
}

impl UnknownSenders {
    /// Takes a count of a generation. Returns true if flows were added. More flows count at once;
    /// fewer only once two reports in a row have counted fewer, so that a count that flaps stays at
    /// its maximum. The sender of a state has seen to that.
    pub(super) fn take(
        &mut self,
        at_ns: u64,
        generation: u32,
        count: &ReceiverCount,
        is_managed: impl Fn(HostId) -> bool,
    ) -> bool {
        let flows = unknown_flows(count, is_managed);
        let grew = !self.is_known || flows > self.flows;
        self.at_ns = at_ns;
        self.is_known = true;
        self.is_complete = count.excludes_managed;
        self.generation = generation;
        if flows >= self.flows || generation > 0 {
            self.flows = flows;
            self.is_lower = false;
        } else if self.is_lower {
            self.flows = flows.max(self.candidate);
            self.is_lower = self.flows > flows;
            self.candidate = flows;
        } else {
            self.is_lower = true;
            self.candidate = flows;
        }
        grew && flows > 0.0
    }
}

fn unknown_flows(count: &ReceiverCount, is_managed: impl Fn(HostId) -> bool) -> f64 {
    let named = count.senders.len();
    let unnamed = (count.active_senders as usize).saturating_sub(named);
    let mut flows = f64::from(u32::try_from(unnamed).unwrap_or(u32::MAX));
    for (at, &sender) in count.senders.iter().enumerate() {
        if count.excludes_managed || !is_managed(HostId(sender)) {
            let own = count.sender_flows.get(at).copied().unwrap_or(1);
            flows += f64::from(own.max(1));
        }
    }
    flows.min(MAX_FLOWS)
}
