//! A constant window: every flow keeps a fixed number of packets in flight, one acknowledgement per
//! packet. Losses are not repaired. It measures the engine rather than a scheme: the work per
//! packet is the least that a closed loop takes.

use ratewright_topology::HostId;

use crate::flow::{FlowId, FlowSpec};
use crate::packet::{Flags, Packet, PacketKind};
use crate::transport::{Context, Transport};

#[derive(Clone, Copy, Debug, Default)]
struct WindowFlow {
    sent: u64,
    received: u64,
}

/// Scheme of a constant window.
#[derive(Debug)]
pub struct ConstantWindow {
    packets: u32,
    flows: Vec<WindowFlow>,
}

impl ConstantWindow {
    /// Makes flows that keep `packets` packets in flight.
    #[must_use]
    pub fn new(packets: u32) -> Self {
        Self {
            packets,
            flows: Vec::new(),
        }
    }

    fn send_next(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let FlowSpec {
            src, dst, bytes, ..
        } = *cx.flow(flow);
        let state = &mut self.flows[flow.index()];
        if state.sent >= bytes {
            return;
        }
        let framing = cx.framing();
        let payload = (bytes - state.sent).min(u64::from(framing.mss_bytes)) as u16;
        let packet = Packet {
            kind: PacketKind::Data,
            flow,
            src,
            dst,
            seq: state.sent,
            payload_bytes: payload,
            wire_bytes: framing.wire_bytes(payload),
            flags: Flags::ECT,
            path_hash: cx.path_hash(flow, false),
            stamp: cx.now(),
            ..Packet::default()
        };
        state.sent += u64::from(payload);
        cx.send(src, packet);
    }
}

impl Transport for ConstantWindow {
    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.flows.push(WindowFlow::default());
        for _ in 0..self.packets {
            self.send_next(cx, flow);
        }
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, host: HostId, packet: Packet) {
        if packet.kind == PacketKind::Ack {
            self.send_next(cx, packet.flow);
            return;
        }
        let state = &mut self.flows[packet.flow.index()];
        // Nothing is retransmitted, so that each byte arrives at most once and a count is enough.
        state.received += u64::from(packet.payload_bytes);
        cx.delivered(packet.flow, u64::from(packet.payload_bytes));
        if state.received == cx.flow(packet.flow).bytes {
            cx.complete(packet.flow);
        }
        let reply = cx.reply(&packet);
        cx.send(host, reply);
    }

    fn on_timer(&mut self, _cx: &mut Context<'_>, _token: u64) {}
}
