//! One host's end of the control plane: its session, and the flows on the session's slots.

use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::{AccessCapacity, FrameDecoder};
use ratewright_proto::records::{FlowId, FlowPath, StartRecord};
use ratewright_proto::telemetry::Telemetry;
use ratewright_proto::{Counters, RateCode, WeightCode};

use super::{ControlConfig, ControlTraffic, MAX_DATAGRAM_BYTES};

/// Mark of a slot without a flow.
const NO_FLOW: u32 = u32::MAX;

/// Rate that the allocator allocated to one of the host's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateGrant {
    /// The caller's number of the flow.
    pub flow: u32,
    /// Rate, in bit/s; 0 if the flow has no allocation and runs by its window alone.
    pub rate_bps: u64,
}

/// Notice of an agent to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A flow has a rate.
    Rate(RateGrant),
    /// The session is lost: rates expire with the lease, and the host must connect again.
    Lost,
}

/// A flowlet as its host describes it to the allocator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowletStart {
    /// The caller's number of the flow.
    pub flow: u32,
    /// The destination host.
    pub dst: u32,
    /// The hash that the switches choose its path by.
    pub path_hash: u32,
    /// Class of the flow.
    pub class: u8,
    /// Multiplies the class's weight.
    pub weight: f64,
}

/// One host's end of the control plane.
#[derive(Debug)]
pub struct Agent {
    session: ClientSession,
    /// Slots without a flow, the latest freed on top.
    free: Vec<u32>,
    /// Newest id of each slot, and the caller's number of the flow on it.
    slots: Vec<(FlowId, u32)>,
    max_slots: u32,
    /// Capacities of the host's own links, as the allocator told them.
    access: AccessCapacity,
    /// Datagrams sent towards the allocator.
    sent: ControlTraffic,
    refused: u64,
}

impl Agent {
    /// Makes the agent of the host of this name, without a connection.
    #[must_use]
    pub fn new(host: &str, config: &ControlConfig) -> Self {
        Self {
            session: ClientSession::new(ClientConfig {
                host_name: host.to_owned(),
                incarnation: 1,
                max_flows: config.max_flows_per_host,
                ack_delay_ns: config.ack_delay_ns,
                min_rto_ns: config.min_rto_ns,
                initial_rto_ns: config.initial_rto_ns,
                max_rto_ns: config.max_rto_ns,
                ..ClientConfig::default()
            }),
            free: Vec::new(),
            slots: Vec::new(),
            max_slots: config.max_flows_per_host,
            access: AccessCapacity::default(),
            sent: ControlTraffic::default(),
            refused: 0,
        }
    }

    /// Returns the session, for the handshake.
    pub(super) fn session_mut(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &ClientSession {
        &self.session
    }

    /// Reports a flowlet's start. Returns `None` if the table is full; then the flow stays unknown
    /// to the allocator.
    pub fn start(&mut self, now_ns: u64, start: &FlowletStart) -> Option<FlowId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.max_slots as usize => {
                let slot = self.slots.len() as u32;
                self.slots.push((FlowId::new(slot, 0), NO_FLOW));
                slot
            }
            None => {
                self.refused += 1;
                return None;
            }
        };
        let entry = &mut self.slots[slot as usize];
        let id = entry.0;
        let mut record = StartRecord::new(id, start.dst, FlowPath::Hash(start.path_hash))
            .with_class(start.class);
        if start.weight != 1.0 {
            record = record.with_weight(WeightCode::encode(start.weight));
        }
        if self.session.start(now_ns, record).is_err() {
            self.free.push(slot);
            self.refused += 1;
            return None;
        }
        entry.1 = start.flow;
        Some(id)
    }

    /// Reports the most that an active flow can use, in bit/s; `None`: all that it gets.
    pub fn demand(&mut self, now_ns: u64, id: FlowId, demand_bps: Option<u64>) {
        let state = self.session.flows().find(|of| of.record.flow() == id);
        if let Some(state) = state {
            let code = demand_bps.map_or(RateCode::NONE, RateCode::encode);
            // It was started, so the session has it.
            let _ = self.session.start(now_ns, state.record.with_demand(code));
        }
    }

    /// Reports a flowlet's end. An id that [`start`](Self::start) did not return, or that was ended
    /// before, changes nothing.
    pub fn end(&mut self, now_ns: u64, id: FlowId) {
        let slot = id.slot();
        let Some(entry) = self.slots.get_mut(slot as usize) else {
            return;
        };
        if entry.0 != id || entry.1 == NO_FLOW {
            return;
        }
        // The next flow on this slot has another id, so that a late rate for this one does not
        // match it.
        *entry = (id.next_generation(), NO_FLOW);
        self.free.push(slot);
        // It was started, so the session has it.
        let _ = self.session.end(now_ns, id);
    }

    /// Takes one datagram from the allocator; an invalid one changes only a counter.
    pub fn on_datagram(&mut self, now_ns: u64, bytes: &[u8]) {
        let _ = self.session.on_datagram(now_ns, bytes);
    }

    /// Runs the session's timers.
    pub fn on_timeout(&mut self, now_ns: u64) {
        self.session.on_timeout(now_ns);
    }

    /// Returns the time at which to call [`on_timeout`](Self::on_timeout) and poll again.
    #[must_use]
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.session.next_timeout()
    }

    /// Reports measurements to the allocator. A session that is lost reports none, and a full queue
    /// counts what it drops; both return false.
    pub fn report(&mut self, telemetry: Telemetry) -> bool {
        self.session.send_telemetry(telemetry).is_ok()
    }

    /// Returns the capacities of the host's own links, as the allocator told them.
    #[must_use]
    pub fn access(&self) -> AccessCapacity {
        self.access
    }

    /// Builds the next message of the control stream to the allocator: a frame's body. Returns
    /// false if there is none.
    pub fn poll_message(&mut self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let Some(frame) = self.session.poll_control() else {
            return false;
        };
        let mut frames = FrameDecoder::new();
        frames.push(&frame);
        if let Ok(Some(body)) = frames.next_frame() {
            out.extend_from_slice(body);
            self.sent.count_message(out);
        }
        true
    }

    /// Builds the next datagram to the allocator. Returns false if there is none.
    pub fn poll_datagram(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let built = self.session.poll_datagram(now_ns, MAX_DATAGRAM_BYTES, out);
        if built {
            self.sent.count_datagram(out);
        }
        built
    }

    /// Takes the next notice for the host.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        loop {
            match self.session.poll_event()? {
                ClientEvent::Rate { flow, rate_bps, .. } => {
                    let (id, owner) = self.slots[flow.slot() as usize];
                    // The rate may be for a flow that ended while it was in flight.
                    if id == flow && owner != NO_FLOW {
                        return Some(Notice::Rate(RateGrant {
                            flow: owner,
                            rate_bps,
                        }));
                    }
                }
                ClientEvent::SessionLost(_) | ClientEvent::Refused(_) => return Some(Notice::Lost),
                ClientEvent::Released(_) => {
                    // The simulated allocator has no kill switch.
                    let _ = self.session.confirm_release(0);
                }
                ClientEvent::Established(welcome) => self.access = welcome.access,
                ClientEvent::Topology(_)
                | ClientEvent::Members(_)
                | ClientEvent::LeaseRenewed { .. } => {}
            }
        }
    }

    /// Iterates over the caller's numbers of the active flows, by slot.
    pub fn flows(&self) -> impl Iterator<Item = u32> + '_ {
        let owners = self.slots.iter().map(|&(_, owner)| owner);
        owners.filter(|&owner| owner != NO_FLOW)
    }

    /// Returns the time at which this session's rates expire; 0 before the first.
    #[must_use]
    pub fn lease_expires_ns(&self) -> u64 {
        self.session.lease_expires_ns()
    }

    /// Returns the datagrams sent towards the allocator so far.
    #[must_use]
    pub fn sent(&self) -> &ControlTraffic {
        &self.sent
    }

    /// Returns the number of flowlets that found no slot.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the session's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.session.counters()
    }

    /// Returns the flows of this host and the rates that it holds for them, by flow id.
    #[must_use]
    pub fn view(&self) -> Vec<(FlowId, u64)> {
        let mut view: Vec<_> = self
            .session
            .flows()
            .map(|f| (f.record.flow(), f.rate_bps.unwrap_or(0)))
            .collect();
        view.sort_unstable_by_key(|&(id, _)| id);
        view
    }
}
