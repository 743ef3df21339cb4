//! Ground truth of a fabric that an allocator shares with others. What its own flows send over each
//! link is *managed*; all else on the link is external to it.

use ratewright_topology::HostId;

use crate::flow::{FlowId, FlowStore};
use crate::host::Side;
use crate::host::pair::PairHost;
use crate::packet::{Packet, PacketKind};
use crate::time::Time;
use crate::transport::NO_SLOT;

/// Bytes by link at its far end, and by pair of hosts.
#[derive(Debug)]
pub(crate) struct Census {
    /// Number of the managed flows' part of a [pair](crate::host::pair); 0 without one.
    part: u8,
    /// Bytes of managed flows' data, by port.
    managed_bytes: Vec<u64>,
    /// Port that leads to each host.
    downlinks: Vec<u32>,
    /// Bytes of external data that reached its host, by sender and receiver.
    pair_bytes: Vec<u64>,
}

impl Census {
    /// Begins to count on so many ports, some of which lead to the hosts.
    pub(crate) fn new(part: u8, ports: usize, downlinks: Vec<u32>) -> Self {
        Self {
            part,
            managed_bytes: vec![0; ports],
            pair_bytes: vec![0; downlinks.len() * downlinks.len()],
            downlinks,
        }
    }

    /// Counts a packet that arrives at a link's far end. A copy whose sender has forgotten the flow
    /// is external: no rate is held for it.
    #[inline]
    pub(crate) fn count(&mut self, port: u32, packet: &Packet, flows: &FlowStore) {
        if packet.kind != PacketKind::Data {
            return;
        }
        let bytes = u64::from(packet.wire_bytes);
        if self.manages(packet.flow, flows) {
            self.managed_bytes[port as usize] += bytes;
        } else if self.downlinks.get(packet.dst.index()) == Some(&port) {
            let pair = self.pair(packet.src, packet.dst);
            self.pair_bytes[pair] += bytes;
        }
    }

    fn pair(&self, src: HostId, dst: HostId) -> usize {
        src.index() * self.downlinks.len() + dst.index()
    }

    /// Returns true if the allocator knows a flow, as its sender sees it.
    fn manages(&self, flow: FlowId, flows: &FlowStore) -> bool {
        let slot = flows.slot(flow, Side::Sender);
        slot != NO_SLOT && (slot >> PairHost::SLOT_BIT) as u8 == self.part
    }

    /// Returns the bytes of managed flows' data that have arrived by a link.
    pub(crate) fn managed_bytes(&self, port: u32) -> u64 {
        self.managed_bytes[port as usize]
    }

    /// Returns the bytes of external data that a host has got from another.
    pub(crate) fn external_bytes(&self, src: HostId, dst: HostId) -> u64 {
        self.pair_bytes[self.pair(src, dst)]
    }

    /// Counts the hosts with external flows to a host that have begun and are not complete.
    pub(crate) fn senders(&self, dst: HostId, flows: &FlowStore) -> usize {
        let mut senders: Vec<u32> = flows
            .iter()
            .filter(|(flow, spec, progress)| {
                spec.dst == dst && progress.finished == Time::MAX && !self.manages(*flow, flows)
            })
            .map(|(_, spec, _)| spec.src.0)
            .collect();
        senders.sort_unstable();
        senders.dedup();
        senders.len()
    }
}
