//! An ideal central scheduler: every host knows its flows' rates at once, without a message.
//!
//! This is what Fastpass (SIGCOMM 2014) and Flowtune strive for, and an upper bound on both: rates are
//! the exact solution for the flows that are active, computed in no time whenever one starts or
//! has sent its last byte, known everywhere without delay, and paced from the first packet
//! on. What it shows is the cost of a control plane: its distance from Flowtune is what notices,
//! iterations and updates take. It is no bound for mean completion times under other objectives
//! (shortest flow first finishes the mean flow sooner).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use ratewright_topology::{HostId, PathChoice, Topology};

use super::paced::{FlowMap, Receiver, Sender, SenderConfig};
use super::{Context, TimerId, Transport};
use crate::flow::FlowId;
use crate::packet::{Flags, Kind, Packet};

/// Settings of the ideal scheme.
#[derive(Clone, Debug)]
pub struct IdealConfig {
    /// The senders; the initial window is not used.
    pub sender: SenderConfig,
    /// The share of every link that is handed out. Acknowledgements take the rest: one of 84 bytes
    /// for every 1,538 bytes of data is 5.5 %.
    pub share: f64,
}

impl Default for IdealConfig {
    fn default() -> Self {
        Self {
            sender: SenderConfig::default(),
            share: 0.945,
        }
    }
}

struct Active {
    flow: FlowId,
    weight: f64,
    links: Vec<u32>,
    /// This flow's place in the list of each of its links.
    places: Vec<u32>,
    rate_bps: f64,
    /// The solution that has fixed the rate.
    fixed_in: u64,
}

/// Weighted max-min fair rates of the active flows: progressive filling, exact.
///
/// Bertsekas and Gallager, *Data Networks*, §6.5.2: the link whose flows get least is filled first; they
/// are fixed there, and what they leave elsewhere is shared by the others.
pub struct MaxMin {
    capacities_bps: Vec<f64>,
    on_link: Vec<Vec<u32>>,
    flows: Vec<Option<Active>>,
    free: Vec<u32>,
    solution: u64,
    left_bps: Vec<f64>,
    weights: Vec<f64>,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    changed: Vec<(FlowId, f64)>,
}

impl MaxMin {
    /// No flows on links of these capacities.
    #[must_use]
    pub fn new(capacities_bps: Vec<f64>) -> Self {
        let links = capacities_bps.len();
        Self {
            capacities_bps,
            on_link: vec![Vec::new(); links],
            flows: Vec::new(),
            free: Vec::new(),
            solution: 0,
            left_bps: Vec::new(),
            weights: Vec::new(),
            heap: BinaryHeap::new(),
            changed: Vec::new(),
        }
    }

    /// Adds a flow over `links` and returns its place.
    pub fn add(&mut self, flow: FlowId, weight: f64, links: Vec<u32>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            (self.flows.len() - 1) as u32
        });
        let places = links
            .iter()
            .map(|&link| {
                let list = &mut self.on_link[link as usize];
                list.push(slot);
                (list.len() - 1) as u32
            })
            .collect();
        self.flows[slot as usize] = Some(Active {
            flow,
            weight,
            links,
            places,
            rate_bps: 0.0,
            fixed_in: 0,
        });
        slot
    }

    /// Takes a flow away.
    pub fn remove(&mut self, slot: u32) {
        let Some(gone) = self.flows[slot as usize].take() else {
            return;
        };
        self.free.push(slot);
        for (&link, &place) in gone.links.iter().zip(&gone.places) {
            let list = &mut self.on_link[link as usize];
            list.swap_remove(place as usize);
            let Some(&moved) = list.get(place as usize) else {
                continue;
            };
            if let Some(moved) = self.flows[moved as usize].as_mut()
                && let Some(at) = moved.links.iter().position(|&l| l == link)
            {
                moved.places[at] = place;
            }
        }
    }

    /// Computes all rates and returns those that changed.
    pub fn solve(&mut self) -> &[(FlowId, f64)] {
        self.solution += 1;
        self.changed.clear();
        self.left_bps.clone_from(&self.capacities_bps);
        self.weights.clear();
        self.weights.resize(self.capacities_bps.len(), 0.0);
        for flow in self.flows.iter().flatten() {
            for &link in &flow.links {
                self.weights[link as usize] += flow.weight;
            }
        }
        self.heap.clear();
        for (link, &weight) in (0u32..).zip(&self.weights) {
            if weight > 0.0 {
                // Positive floats compare like their bits.
                let fill = (self.left_bps[link as usize] / weight).max(0.0);
                self.heap.push(Reverse((fill.to_bits(), link)));
            }
        }
        while let Some(Reverse((fill, link))) = self.heap.pop() {
            let at = link as usize;
            if self.weights[at] <= 1e-9 {
                continue;
            }
            let now = (self.left_bps[at] / self.weights[at]).max(0.0);
            if now.to_bits() > fill {
                // Flows that were fixed elsewhere have left it more: fills only grow.
                self.heap.push(Reverse((now.to_bits(), link)));
                continue;
            }
            for &slot in &self.on_link[at] {
                let Some(flow) = self.flows[slot as usize].as_mut() else {
                    continue;
                };
                if flow.fixed_in == self.solution {
                    continue;
                }
                flow.fixed_in = self.solution;
                let rate_bps = now * flow.weight;
                if (rate_bps - flow.rate_bps).abs() > 1e-9 * rate_bps {
                    flow.rate_bps = rate_bps;
                    self.changed.push((flow.flow, rate_bps));
                }
                for &other in &flow.links {
                    self.left_bps[other as usize] -= rate_bps;
                    self.weights[other as usize] -= flow.weight;
                }
            }
            self.weights[at] = 0.0;
        }
        &self.changed
    }
}

struct Sending {
    sender: Sender,
    spec: crate::flow::FlowSpec,
    /// Its place among the active; none once its last byte was sent.
    slot: Option<u32>,
    timer: Option<TimerId>,
}

/// The ideal scheme; see the [module](self).
pub struct Ideal {
    config: IdealConfig,
    topology: Arc<Topology>,
    rates: MaxMin,
    senders: FlowMap<Sending>,
    receivers: FlowMap<Receiver>,
    solutions: u64,
    unreachable: u64,
}

impl Ideal {
    /// The scheme on a topology.
    #[must_use]
    pub fn new(topology: &Arc<Topology>, config: IdealConfig) -> Self {
        let capacities = topology
            .links()
            .iter()
            .map(|link| topology.effective_capacity_bps(link.id) as f64 * config.share)
            .collect();
        Self {
            config,
            topology: Arc::clone(topology),
            rates: MaxMin::new(capacities),
            senders: FlowMap::default(),
            receivers: FlowMap::default(),
            solutions: 0,
            unreachable: 0,
        }
    }

    fn solve(&mut self, cx: &mut Context<'_>) {
        self.solutions += 1;
        let changed: Vec<_> = self.rates.solve().to_vec();
        for (flow, rate_bps) in changed {
            if let Some(entry) = self.senders.get_mut(flow) {
                entry.sender.set_rate(cx.now(), (rate_bps as u64).max(1));
                self.pump(cx, flow);
            }
        }
    }

    /// Sends what a flow may send now; true once its last byte has left for the first time.
    fn pump(&mut self, cx: &mut Context<'_>, id: FlowId) -> bool {
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
                last = true;
            }
            let packet = Packet {
                kind: Kind::Data,
                flow: id,
                src: flow.spec.src,
                dst: flow.spec.dst,
                path_hash: flow.spec.path_hash,
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

    /// The last byte has left: the others share what the flow had.
    fn release(&mut self, cx: &mut Context<'_>, id: FlowId) {
        if let Some(slot) = self.senders.get_mut(id).and_then(|flow| flow.slot.take()) {
            self.rates.remove(slot);
            self.solve(cx);
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, id: FlowId) {
        if self.pump(cx, id) {
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
        let choice = PathChoice::Hash(spec.path_hash);
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
            initial_window: 0,
            ..self.config.sender.clone()
        };
        let entry = Sending {
            sender: Sender::new(&config, spec.bytes),
            spec,
            slot: Some(slot),
            timer: None,
        };
        self.senders.insert(flow, entry);
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
            Kind::Data => {
                let reply = super::paced::receive(cx, &mut self.receivers, &packet);
                cx.send(host, reply);
            }
            Kind::Ack => {
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
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_textbook_example_of_max_min_fairness() {
        // Three links of 1, 2 and 1: one flow over all, others over one each.
        let mut rates = MaxMin::new(vec![1e9, 2e9, 1e9]);
        rates.add(FlowId(0), 1.0, vec![0, 1, 2]);
        rates.add(FlowId(1), 1.0, vec![0]);
        rates.add(FlowId(2), 1.0, vec![1]);
        let third = rates.add(FlowId(3), 1.0, vec![2]);
        rates.add(FlowId(4), 2.0, vec![2]);
        let of = |changed: &[(FlowId, f64)], flow| {
            changed
                .iter()
                .find(|c| c.0 == FlowId(flow))
                .map(|c| (c.1 / 1e6).round())
        };
        let changed = rates.solve();
        // Link 2 has weight 4 on 1 Gbit/s; what flow 0 leaves goes to the others.
        let expected = [250.0, 750.0, 1750.0, 250.0, 500.0];
        for (flow, &rate) in (0..).zip(&expected) {
            assert_eq!(of(changed, flow), Some(rate), "flow {flow}");
        }
        rates.remove(third);
        let changed = rates.solve();
        assert_eq!(of(changed, 0), Some(333.0));
        assert_eq!(of(changed, 1), Some(667.0));
        assert_eq!(of(changed, 4), Some(667.0));
    }
}
