//! Constant rates: every flow sends its packets at a fixed distance, without feedback. It is the
//! engine's own yardstick: completion times on idle paths have a closed form.

use ratewright_topology::HostId;

use crate::flow::{FlowId, FlowSpec};
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::Span;
use crate::transport::{Context, Transport};

#[derive(Clone, Copy, Debug, Default)]
struct ConstantFlow {
    sent: u64,
    received: u64,
    stopped: bool,
}

/// Scheme of constant rates.
#[derive(Debug)]
pub struct ConstantRate {
    /// Rate of each flow on the link; `None`: everything at once.
    rate_bps: Option<u64>,
    flows: Vec<ConstantFlow>,
}

impl ConstantRate {
    /// Makes flows of this rate, in bit/s on the link.
    #[must_use]
    pub fn new(rate_bps: u64) -> Self {
        Self {
            rate_bps: Some(rate_bps.max(1)),
            flows: Vec::new(),
        }
    }

    /// Makes flows that hand everything to the NIC at once.
    #[must_use]
    pub fn blast() -> Self {
        Self {
            rate_bps: None,
            flows: Vec::new(),
        }
    }

    fn send_next(&mut self, cx: &mut Context<'_>, flow: FlowId) -> Option<u16> {
        let FlowSpec {
            src, dst, bytes, ..
        } = *cx.flow(flow);
        let state = &mut self.flows[flow.index()];
        if state.sent >= bytes || state.stopped {
            return None;
        }
        let framing = cx.framing();
        let payload = (bytes - state.sent).min(u64::from(framing.mss_bytes)) as u16;
        let wire_bytes = framing.wire_bytes(payload);
        let mut flags = Flags::NONE;
        if state.sent + u64::from(payload) == bytes {
            flags.insert(Flags::FIN);
        }
        let packet = Packet {
            kind: PacketKind::Data,
            flow,
            src,
            dst,
            seq: state.sent,
            payload_bytes: payload,
            wire_bytes,
            flags,
            path_hash: cx.path_hash(flow, false),
            stamp: cx.now(),
            ..Packet::default()
        };
        state.sent += u64::from(payload);
        cx.send(src, packet);
        Some(wire_bytes)
    }

    fn send_paced(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        match self.rate_bps {
            None => while self.send_next(cx, flow).is_some() {},
            Some(rate_bps) => {
                if let Some(wire_bytes) = self.send_next(cx, flow) {
                    let bits = u128::from(wire_bytes) * 8_000_000_000_000;
                    let gap = Span((bits / u128::from(rate_bps)) as u64);
                    cx.timer_in(gap, u64::from(flow.0));
                }
            }
        }
    }
}

impl Transport for ConstantRate {
    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        // Flows start in the order of their numbers: the scheme is not local.
        self.flows.push(ConstantFlow::default());
        self.send_paced(cx, flow);
    }

    fn on_stop(&mut self, _cx: &mut Context<'_>, flow: FlowId) {
        self.flows[flow.index()].stopped = true;
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, _host: HostId, packet: Packet) {
        let state = &mut self.flows[packet.flow.index()];
        // Nothing is retransmitted, so that each byte arrives at most once and a count is enough.
        state.received += u64::from(packet.payload_bytes);
        cx.delivered(packet.flow, u64::from(packet.payload_bytes));
        if state.received == cx.flow(packet.flow).bytes {
            cx.complete(packet.flow);
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        self.send_paced(cx, FlowId(token as u32));
    }
}
