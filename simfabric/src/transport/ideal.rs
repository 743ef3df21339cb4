//! Ideal central scheduler: every host knows its flows' rates at once, without a message.
//!
//! | file | what rates are the best ones |
//! |---|---|
//! | `max_min` | max-min fair ones, by progressive filling |
//! | `proportional` | proportionally fair ones, by the production optimiser |
//!
//! Fastpass (SIGCOMM 2014) and Flowtune approximate this scheme, an upper bound on both. Rates are
//! the exact solution for the active flows, computed in no time when one starts or has sent its
//! last byte, known everywhere without delay, and paced from the first packet on. Its distance from
//! Flowtune is the cost of the control plane: notices, iterations and updates. It is no bound for
//! mean completion times under other objectives (shortest flow first finishes the mean flow
//! sooner).

use std::sync::Arc;

use ratewright_allocator::engine::EngineError;
use ratewright_topology::{HostId, PathChoice, Topology};

pub use self::max_min::MaxMin;
pub use self::proportional::Proportional;
use super::paced::{FlowMap, PacedReceiver, PacedSender, SenderConfig};
use super::{Context, TimerId, Transport};
use crate::flow::FlowId;
use crate::packet::{Flags, Packet, PacketKind};

mod max_min;
mod proportional;

/// Settings of the ideal scheme.
#[derive(Clone, Debug)]
pub struct IdealConfig {
    /// Senders; their initial window is not used.
    pub sender: SenderConfig,
    /// Share of every link that is allocated. Acknowledgements take the rest: one of 84 bytes for
    /// every 1,538 bytes of data is 5.5 %.
    pub share: f64,
    /// Objective that the rates maximise.
    pub objective: Objective,
}

impl Default for IdealConfig {
    fn default() -> Self {
        Self {
            sender: SenderConfig::default(),
            share: 0.945,
            objective: Objective::default(),
        }
    }
}

/// Objective of the ideal rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The smallest rate is as large as possible, then the next: [`MaxMin`], Fastpass's objective.
    #[default]
    MaxMin,
    /// The sum of the rates' logarithms is as large as possible: [`Proportional`], Flowtune's
    /// objective.
    Proportional,
}

/// Solver of the active flows' rates, by [`Objective`].
enum Rates {
    MaxMin(MaxMin),
    Proportional(Box<Proportional>),
}

impl Rates {
    fn add(&mut self, flow: FlowId, weight: f64, links: Vec<u32>) -> u32 {
        match self {
            Self::MaxMin(rates) => rates.add(flow, weight, links),
            Self::Proportional(rates) => rates.add(flow, weight, &links),
        }
    }

    fn remove(&mut self, slot: u32) {
        match self {
            Self::MaxMin(rates) => rates.remove(slot),
            Self::Proportional(rates) => rates.remove(slot),
        }
    }

    /// Returns the number of solutions that are not exact.
    fn unsettled(&self) -> u64 {
        match self {
            Self::MaxMin(_) => 0,
            Self::Proportional(rates) => rates.unsettled(),
        }
    }

    fn solve(&mut self) -> &[(FlowId, f64)] {
        match self {
            Self::MaxMin(rates) => rates.solve(),
            Self::Proportional(rates) => rates.solve(),
        }
    }
}

struct IdealFlow {
    sender: PacedSender,
    spec: crate::flow::FlowSpec,
    /// Slot among the active flows; `None` once its last byte was sent.
    slot: Option<u32>,
    timer: Option<TimerId>,
}

/// The ideal scheme; see the [module](self).
pub struct Ideal {
    config: IdealConfig,
    topology: Arc<Topology>,
    rates: Rates,
    senders: FlowMap<IdealFlow>,
    receivers: FlowMap<PacedReceiver>,
    solutions: u64,
    unreachable: u64,
}

impl Ideal {
    /// Makes the scheme on a topology.
    ///
    /// # Errors
    /// Links that the optimiser of proportional rates refuses.
    pub fn new(topology: &Arc<Topology>, config: IdealConfig) -> Result<Self, EngineError> {
        let capacities: Vec<f64> = topology
            .links()
            .iter()
            .map(|link| topology.effective_capacity_bps(link.id) as f64 * config.share)
            .collect();
        let rates = match config.objective {
            Objective::MaxMin => Rates::MaxMin(MaxMin::new(capacities)),
            Objective::Proportional => {
                Rates::Proportional(Box::new(Proportional::new(&capacities)?))
            }
        };
        Ok(Self {
            config,
            topology: Arc::clone(topology),
            rates,
            senders: FlowMap::default(),
            receivers: FlowMap::default(),
            solutions: 0,
            unreachable: 0,
        })
    }

    fn solve(&mut self, cx: &mut Context<'_>) {
        self.solutions += 1;
        // Copied, because transmitting needs the whole scheme.
        let changed: Vec<_> = self.rates.solve().to_vec();
        for (flow, rate_bps) in changed {
            if let Some(entry) = self.senders.get_mut(flow) {
                // At least 1: a rate of 0 would hand the flow to its window.
                entry.sender.set_rate(cx.now(), (rate_bps as u64).max(1));
                self.transmit(cx, flow);
            }
        }
    }

    /// Sends the packets that may leave now. Returns true once the last byte has left for the first
    /// time.
    fn transmit(&mut self, cx: &mut Context<'_>, id: FlowId) -> bool {
        let Some(flow) = self.senders.get_mut(id) else {
            return false;
        };
        let (framing, now) = (cx.framing(), cx.now());
        let mut last = false;
        let wire = |payload| framing.wire_bytes(payload);
        while let Some(segment) = flow.sender.poll(&self.config.sender, now, wire) {
            let mut flags = Flags::NONE;
            if segment.retransmit {
                flags.insert(Flags::RETRANSMIT);
                cx.retransmitted(id);
            }
            if segment.last {
                flags.insert(Flags::FIN);
                // A retransmission of the last byte sets it again; the slot is released only once.
                last = true;
            }
            let packet = Packet {
                kind: PacketKind::Data,
                flow: id,
                src: flow.spec.src,
                dst: flow.spec.dst,
                path_hash: cx.path_hash(id, false),
                seq: segment.seq,
                stamp: now,
                payload_bytes: segment.payload_bytes,
                wire_bytes: framing.wire_bytes(segment.payload_bytes),
                flags,
                ..Packet::default()
            };
            cx.send(flow.spec.src, packet);
        }
        if let Some(at) = flow.sender.deadline(&self.config.sender) {
            let moved = flow.timer.and_then(|timer| cx.move_timer(timer, at));
            flow.timer = Some(moved.unwrap_or_else(|| cx.timer(at, u64::from(id.0))));
        }
        last
    }

    /// Releases the flow's rate to the others, because its last byte has left.
    fn release(&mut self, cx: &mut Context<'_>, id: FlowId) {
        if let Some(slot) = self.senders.get_mut(id).and_then(|flow| flow.slot.take()) {
            self.rates.remove(slot);
            self.solve(cx);
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, id: FlowId) {
        if self.transmit(cx, id) {
            self.release(cx, id);
        }
        let done = self
            .senders
            .get(id)
            .is_some_and(|flow| flow.sender.is_done(&self.config.sender));
        if done {
            self.release(cx, id);
            if let Some(timer) = self.senders.remove(id).and_then(|flow| flow.timer) {
                cx.cancel(timer);
            }
        }
    }
}

impl Transport for Ideal {
    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let spec = *cx.flow(flow);
        let choice = PathChoice::Hash(cx.path_hash(flow, false).into());
        let path = self
            .topology
            .path(HostId(spec.src.0), HostId(spec.dst.0), choice);
        let Ok(path) = path else {
            self.unreachable += 1;
            return;
        };
        let links = path.iter().map(|link| link.0).collect();
        let slot = self.rates.add(flow, f64::from(spec.weight), links);
        let config = SenderConfig {
            // No packet leaves before the rate, which comes in the same call.
            initial_window: 0,
            ..self.config.sender.clone()
        };
        let entry = IdealFlow {
            sender: PacedSender::new(&config, spec.bytes),
            spec,
            slot: Some(slot),
            timer: None,
        };
        self.senders.insert(flow, entry);
        // Rates first: the others give up capacity before this flow's first packet leaves.
        self.solve(cx);
        self.advance(cx, flow);
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        if let Some(entry) = self.senders.get_mut(flow) {
            entry.sender.stop(&self.config.sender);
            self.release(cx, flow);
            self.advance(cx, flow);
        }
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, host: HostId, packet: Packet) {
        match packet.kind {
            PacketKind::Data => {
                let reply = super::paced::receive(cx, &mut self.receivers, &packet);
                cx.send(host, reply);
            }
            PacketKind::Ack => {
                if let Some(flow) = self.senders.get_mut(packet.flow) {
                    let now = cx.now();
                    flow.sender.on_ack(
                        &self.config.sender,
                        now,
                        packet.ack,
                        packet.seq,
                        packet.stamp,
                    );
                    self.advance(cx, packet.flow);
                }
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        let id = FlowId(token as u32);
        if let Some(flow) = self.senders.get_mut(id) {
            flow.timer = None;
            flow.sender.on_timeout(&self.config.sender, cx.now());
            self.advance(cx, id);
        }
    }

    fn summary(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("solutions", self.solutions as f64),
            ("unreachable_flows", self.unreachable as f64),
            ("solutions_cut_short", self.rates.unsettled() as f64),
        ]
    }
}
