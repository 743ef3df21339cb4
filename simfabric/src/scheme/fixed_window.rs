//! A constant window: every flow keeps a fixed number of packets in flight, one acknowledgement per
//! packet. Losses are not repaired. It measures the engine rather than a scheme: the work per
//! packet is the least that a closed loop takes.

use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Pull, Side, Turn};
use crate::packet::{Flags, Packet, PacketKind};
use crate::parameters::ParamError;
use crate::transport::{Context, Transport};

crate::parameters! {
    /// Every flow keeps a fixed number of packets in flight; losses are not repaired.
    pub struct Config {
        /// Packets in flight.
        packets: u32 = 10,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "fixed-window";

    fn check(&self) -> Result<(), ParamError> {
        if self.packets == 0 {
            let message = "a window of 0 packets sends nothing";
            return Err(ParamError::of("packets", message));
        }
        tcp::window("packets", self.packets)
    }

    fn build(self, _: &Network<'_>) -> Built {
        Built::new(FabricNeeds::default(), move |_| {
            Ok(ConstantWindow::new(self.packets))
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct WindowFlow {
    flow: FlowId,
    sent: u64,
    /// Packets that the window still allows.
    allowed: u32,
}

/// Scheme of a constant window.
#[derive(Clone, Copy, Debug)]
pub struct ConstantWindow {
    packets: u32,
}

impl ConstantWindow {
    /// Makes flows that keep `packets` packets in flight.
    #[must_use]
    pub fn new(packets: u32) -> Self {
        Self { packets }
    }
}

/// The scheme at one host.
#[derive(Debug)]
pub struct WindowHost {
    packets: u32,
    flows: Vec<WindowFlow>,
    arbiter: Arbiter,
}

impl Transport for ConstantWindow {
    type Shared = ();
    type Endpoint = WindowHost;

    fn start(self, nodes: u32) -> ((), Vec<WindowHost>) {
        let host = |_| WindowHost {
            packets: self.packets,
            flows: Vec::new(),
            arbiter: Arbiter::default(),
        };
        ((), (0..nodes).map(host).collect())
    }
}

impl Endpoint for WindowHost {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let slot = self.flows.len() as u32;
        self.flows.push(WindowFlow {
            flow,
            sent: 0,
            allowed: self.packets,
        });
        cx.set_slot(flow, Side::Sender, slot);
        self.arbiter.ready(slot, 0);
        cx.wake();
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let id = packet.flow;
        if packet.kind == PacketKind::Ack {
            let slot = cx.slot(id, Side::Sender);
            let flow = &mut self.flows[slot as usize];
            flow.allowed += 1;
            if flow.allowed == 1 && flow.sent < cx.flow(id).bytes {
                self.arbiter.ready(slot, 0);
                cx.wake();
            }
            return;
        }
        cx.count_arrival(packet);
        let reply = cx.reply(packet);
        cx.send(reply);
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let open = cx.open_classes();
        self.arbiter.release(open);
        let slot = loop {
            let Turn::Slot(slot) = self.arbiter.next(cx.now()) else {
                return Pull::Nothing;
            };
            let class = cx.flow(self.flows[slot as usize].flow).class;
            if open.contains(class.into()) {
                break slot;
            }
            self.arbiter.hold(slot, 0, class);
        };
        let flow = &mut self.flows[slot as usize];
        let mut packet = cx.next_data(flow.flow, flow.sent);
        packet.flags.insert(Flags::ECT);
        flow.sent = packet.end();
        flow.allowed -= 1;
        if flow.sent < cx.flow(flow.flow).bytes && flow.allowed > 0 {
            self.arbiter.again(slot, 0);
        }
        Pull::Packet(packet)
    }
}
