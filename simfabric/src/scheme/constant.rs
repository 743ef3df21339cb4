//! Constant rates: every flow sends its packets at a fixed distance, without feedback. It is the
//! engine's own yardstick: completion times on idle paths have a closed form.

use super::{Built, FabricNeeds, Network, Scheme};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Pull, Side, Turn};
use crate::packet::Packet;
use crate::time::{Span, Time};
use crate::transport::{Context, Transport};
use crate::units::Rate;

crate::parameters! {
    /// Every flow sends at a fixed rate, without feedback; losses are not repaired.
    pub struct Config {
        /// Rate of each flow on the link.
        rate: Rate = Rate(1_000_000_000),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "constant";

    fn build(self, _: &Network<'_>) -> Built {
        Built::new(FabricNeeds::default(), move |_| {
            Ok(ConstantRate::new(self.rate.0))
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct ConstantFlow {
    flow: FlowId,
    sent: u64,
    next_at: Time,
    stopped: bool,
}

/// Scheme of constant rates.
#[derive(Clone, Copy, Debug)]
pub struct ConstantRate {
    /// Rate of each flow on the link; `None`: as fast as the link takes it.
    rate_bps: Option<u64>,
}

impl ConstantRate {
    /// Makes flows of this rate, in bit/s on the link.
    #[must_use]
    pub fn new(rate_bps: u64) -> Self {
        Self {
            rate_bps: Some(rate_bps.max(1)),
        }
    }

    /// Makes flows that send as fast as their host's link takes it.
    #[must_use]
    pub fn blast() -> Self {
        Self { rate_bps: None }
    }
}

/// The scheme at one host.
#[derive(Debug)]
pub struct ConstantHost {
    rate_bps: Option<u64>,
    flows: Vec<ConstantFlow>,
    arbiter: Arbiter,
}

impl Transport for ConstantRate {
    type Shared = ();
    type Endpoint = ConstantHost;

    fn start(self, nodes: u32) -> ((), Vec<ConstantHost>) {
        let host = |_| ConstantHost {
            rate_bps: self.rate_bps,
            flows: Vec::new(),
            arbiter: Arbiter::default(),
        };
        ((), (0..nodes).map(host).collect())
    }
}

impl Endpoint for ConstantHost {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let slot = self.flows.len() as u32;
        self.flows.push(ConstantFlow {
            flow,
            sent: 0,
            next_at: cx.now(),
            stopped: false,
        });
        cx.set_slot(flow, Side::Sender, slot);
        self.arbiter.ready(slot, 0);
        cx.wake();
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let slot = cx.slot(flow, Side::Sender);
        self.flows[slot as usize].stopped = true;
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        cx.count_arrival(packet);
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let open = cx.open_classes();
        self.arbiter.release(open);
        loop {
            let slot = match self.arbiter.next(cx.now()) {
                Turn::Slot(slot) => slot,
                Turn::At(at) => return Pull::At(at),
                Turn::Nothing => return Pull::Nothing,
            };
            let flow = &mut self.flows[slot as usize];
            let spec = cx.flow(flow.flow);
            let (bytes, class) = (spec.bytes, spec.class);
            if flow.stopped || flow.sent >= bytes {
                continue;
            }
            if !open.contains(class.into()) {
                self.arbiter.hold(slot, 0, class);
                continue;
            }
            let packet = cx.next_data(flow.flow, flow.sent);
            flow.sent = packet.end();
            if let Some(rate_bps) = self.rate_bps {
                let bits = u128::from(packet.wire_bytes) * 8_000_000_000_000;
                // From when it was due: what others sent meanwhile does not slow it down.
                flow.next_at += Span((bits / u128::from(rate_bps)) as u64);
                self.arbiter.ready_at(slot, 0, flow.next_at);
            } else {
                self.arbiter.again(slot, 0);
            }
            return Pull::Packet(packet);
        }
    }
}
