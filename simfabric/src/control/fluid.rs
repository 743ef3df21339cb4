//! A fabric whose data is a fluid and whose control datagrams are real.
//!
//! The control plane's traffic depends on the starts and ends of flowlets, and these on the
//! allocated rates. How packets queue in between hardly matters, because allocated rates fit the
//! links. This fabric therefore keeps the whole control plane (every session, every datagram
//! encoded, lost, acknowledged and decoded, every iteration of the engine), and replaces the
//! packets of a flow by its rate. That takes a network of 2,048 servers from minutes to seconds.
//!
//! | taken | simplified |
//! |---|---|
//! | delay of every link and host, serialisation of every control frame | control frames do not queue behind data; they do queue for the allocator's own links |
//! | a flowlet sends a TCP window before its first rate, doubled every round trip | a window leaves as one burst at line rate |
//! | a flowlet's last byte is acknowledged one round trip after it was sent | data is never lost |
//!
//! The experiments that use it compare it with the packet-level fabric at 128 servers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use ratewright_topology::{HostId, PathChoice, Topology};

use super::agent::{Agent, FlowletStart, Notice};
use super::allocator::{AllocatorCounts, AllocatorNode};
use super::{ControlConfig, ControlError, ControlTraffic, datagram_wire_bytes};

/// A flowlet of the offered load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowletArrival {
    /// Start time.
    pub start_ns: u64,
    /// Source host.
    pub src: u32,
    /// Destination host.
    pub dst: u32,
    /// Payload bytes.
    pub bytes: u64,
    /// Hash by which the switches choose its path.
    pub path_hash: u32,
}

/// Settings of the fluid fabric.
#[derive(Clone, Debug)]
pub struct FluidConfig {
    /// The control plane.
    pub control: ControlConfig,
    /// Time that a packet spends in a host, outbound and inbound (flowtune §5.3: 2 µs).
    pub host_delay_ns: u64,
    /// Propagation to the allocator's node from a spine switch (flowtune §5.3: 1.5 µs).
    pub allocator_delay_ns: u64,
    /// Capacity of each of the allocator's links, one to every spine switch (flowtune §5.3: 40
    /// Gbit/s).
    pub allocator_link_bps: u64,
    /// Bytes that a flowlet may send before its first acknowledgement.
    pub initial_window_bytes: u64,
    /// Payload of a full data packet.
    pub payload_bytes: u64,
    /// Bytes of a full data packet on a link.
    pub packet_wire_bytes: u64,
    /// Share of the control datagrams that is lost, in either direction.
    pub control_loss: f64,
    /// Seed of the losses.
    pub seed: u64,
}

impl Default for FluidConfig {
    fn default() -> Self {
        Self {
            control: ControlConfig::default(),
            host_delay_ns: 2_000,
            allocator_delay_ns: 1_500,
            allocator_link_bps: 40_000_000_000,
            initial_window_bytes: 10 * 1_460,
            payload_bytes: 1_460,
            packet_wire_bytes: 1_538,
            control_loss: 0.0,
            seed: 1,
        }
    }
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct FluidTotals {
    /// Traffic from the hosts to the allocator.
    pub to_allocator: ControlTraffic,
    /// Traffic from the allocator to the hosts.
    pub from_allocator: ControlTraffic,
    /// Counters of the allocator.
    pub allocator: AllocatorCounts,
    /// Flowlets that started.
    pub started: u64,
    /// Flowlets that were acknowledged whole.
    pub finished: u64,
    /// Payload bytes of the finished ones.
    pub finished_bytes: u64,
    /// Flowlets that were over before their first rate came.
    pub finished_unallocated: u64,
    /// Control datagrams lost.
    pub lost: u64,
    /// Active flowlets, summed over iterations.
    pub active_sum: u64,
    /// Largest load over capacity of any link in any iteration.
    pub max_link_load: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FluidEvent {
    Arrival,
    ToAllocator {
        host: u32,
        payload: u32,
    },
    ToHost {
        host: u32,
        payload: u32,
    },
    Tick,
    HostTimer {
        host: u32,
    },
    ServerTimer {
        host: u32,
    },
    /// A round trip has passed without a rate: the next, doubled window leaves.
    Round {
        flow: u32,
        version: u32,
    },
    /// The last byte was sent.
    Drained {
        flow: u32,
        version: u32,
    },
    /// The last byte was acknowledged.
    Finished {
        flow: u32,
        version: u32,
    },
    Reconnect {
        host: u32,
    },
}

struct FluidFlow {
    src: u32,
    id: Option<ratewright_proto::FlowId>,
    bytes: u64,
    remaining_bytes: f64,
    window_bytes: u64,
    round_trip_ns: u64,
    rate_bps: u64,
    /// True once a rate has come before the last byte was sent.
    allocated: bool,
    since_ns: u64,
    /// Version of the flow's events; it rises to invalidate those that are scheduled.
    version: u32,
}

struct FluidHost {
    endpoint: Agent,
    /// Earliest scheduled timer, so that later ones need no event.
    timer_ns: u64,
    server_timer_ns: u64,
    line_rate_bps: u64,
    to_allocator_ns: u64,
}

/// The fluid fabric; see the [module](self).
pub struct FluidFabric<A> {
    config: FluidConfig,
    topology: Arc<Topology>,
    allocator: AllocatorNode,
    hosts: Vec<FluidHost>,
    flows: Vec<FluidFlow>,
    free_flows: Vec<u32>,
    active: u64,
    events: BinaryHeap<Reverse<(u64, u64, FluidEvent)>>,
    sequence: u64,
    payloads: Vec<Vec<u8>>,
    free_payloads: Vec<u32>,
    /// Time until which each of the allocator's links is busy: in, then out.
    links_busy_ns: Vec<[u64; 2]>,
    tick_planned: bool,
    arrivals: A,
    next_arrival: Option<FlowletArrival>,
    rng: Pcg64,
    now_ns: u64,
    totals: FluidTotals,
    scratch: Vec<u8>,
    outbox: Vec<(u32, u32)>,
    rearm: Vec<(u32, Option<u64>)>,
    loads: (Vec<f64>, Vec<f64>),
}

impl<A: Iterator<Item = FlowletArrival>> FluidFabric<A> {
    /// Makes a fabric at time 0 with all hosts connected and `arrivals` in order of start.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn new(
        topology: Arc<Topology>,
        config: FluidConfig,
        mut arrivals: A,
    ) -> Result<Self, ControlError> {
        let mut allocator = AllocatorNode::new(Arc::clone(&topology), &config.control)?;
        let spines = topology
            .switches()
            .iter()
            .filter(|switch| switch.tier == 2)
            .count()
            .max(1);
        let fabric_delay_ns = topology
            .links()
            .iter()
            .find(|link| link.level == 2)
            .map_or(0, |link| link.delay_ns);
        let mut hosts = Vec::with_capacity(topology.hosts().len());
        for host in topology.hosts() {
            let mut endpoint = Agent::new(host.id.0, &config.control);
            allocator.connect(0, host.id.0, &mut endpoint)?;
            let uplink = &topology.links()[topology.host_uplink(host.id).index()];
            hosts.push(FluidHost {
                endpoint,
                timer_ns: u64::MAX,
                server_timer_ns: u64::MAX,
                line_rate_bps: uplink.capacity_bps,
                // Processing at the host and at the allocator.
                to_allocator_ns: 2 * config.host_delay_ns
                    + uplink.delay_ns
                    + fabric_delay_ns
                    + config.allocator_delay_ns,
            });
        }
        let next_arrival = arrivals.next();
        let mut fabric = Self {
            rng: Pcg64::seed_from_u64(config.seed),
            config,
            topology,
            allocator,
            hosts,
            flows: Vec::new(),
            free_flows: Vec::new(),
            active: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            payloads: Vec::new(),
            free_payloads: Vec::new(),
            links_busy_ns: vec![[0; 2]; spines],
            tick_planned: false,
            arrivals,
            next_arrival,
            now_ns: 0,
            totals: FluidTotals::default(),
            scratch: Vec::new(),
            outbox: Vec::new(),
            rearm: Vec::new(),
            loads: (Vec::new(), Vec::new()),
        };
        for host in 0..fabric.hosts.len() as u32 {
            fabric.drive_endpoint(host);
        }
        if let Some(first) = fabric.next_arrival {
            fabric.schedule(first.start_ns, FluidEvent::Arrival);
        }
        Ok(fabric)
    }

    /// Runs until `until_ns`, or until no event is left.
    ///
    /// # Errors
    /// A handshake that fails after a session was lost.
    pub fn run_until(&mut self, until_ns: u64) -> Result<(), ControlError> {
        while let Some(&Reverse((at_ns, _, event))) = self.events.peek() {
            if at_ns > until_ns {
                break;
            }
            self.events.pop();
            self.now_ns = at_ns;
            self.handle(event)?;
        }
        self.now_ns = self.now_ns.max(until_ns);
        Ok(())
    }

    /// Returns the counters.
    #[must_use]
    pub fn totals(&self) -> FluidTotals {
        let mut totals = self.totals;
        totals.from_allocator = *self.allocator.sent();
        totals.allocator = *self.allocator.counts();
        for host in &self.hosts {
            totals.to_allocator = totals.to_allocator.plus(host.endpoint.sent());
        }
        totals
    }

    /// Returns the allocator.
    #[must_use]
    pub fn allocator(&self) -> &AllocatorNode {
        &self.allocator
    }

    /// Returns the endpoint of a host.
    #[must_use]
    pub fn endpoint(&self, host: u32) -> &Agent {
        &self.hosts[host as usize].endpoint
    }

    /// Returns the number of flowlets whose last byte is not acknowledged.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.active
    }

    /// Returns the sum of the rates of flowlets from `host`, in bit/s on the wire.
    #[must_use]
    pub fn sending_bps(&self, host: u32) -> u64 {
        self.flows
            .iter()
            .filter(|flow| flow.src == host && flow.remaining_bytes > 0.0)
            .map(|flow| flow.rate_bps)
            .sum()
    }

    /// Sets the share of control datagrams that is lost from now on.
    pub fn set_control_loss(&mut self, share: f64) {
        self.config.control_loss = share;
    }

    fn schedule(&mut self, at_ns: u64, event: FluidEvent) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    fn handle(&mut self, event: FluidEvent) -> Result<(), ControlError> {
        let now_ns = self.now_ns;
        match event {
            FluidEvent::Arrival => self.arrive(),
            FluidEvent::ToAllocator { host, payload } => {
                let bytes = std::mem::take(&mut self.payloads[payload as usize]);
                self.allocator.on_datagram(now_ns, host, &bytes);
                self.recycle(payload, bytes);
                self.drive_allocator();
            }
            FluidEvent::ToHost { host, payload } => {
                let bytes = std::mem::take(&mut self.payloads[payload as usize]);
                let endpoint = &mut self.hosts[host as usize].endpoint;
                endpoint.on_datagram(now_ns, &bytes);
                self.recycle(payload, bytes);
                self.drive_endpoint(host);
            }
            FluidEvent::Tick => {
                self.tick_planned = false;
                self.totals.active_sum += self.active;
                self.allocator.iterate(now_ns);
                self.note_loads();
                self.drive_allocator();
            }
            FluidEvent::HostTimer { host } => {
                // An event of a timer that was set to an earlier time since is void.
                if self.hosts[host as usize].timer_ns == now_ns {
                    self.hosts[host as usize].timer_ns = u64::MAX;
                    self.hosts[host as usize].endpoint.on_timeout(now_ns);
                    self.drive_endpoint(host);
                }
            }
            FluidEvent::ServerTimer { host } => {
                if self.hosts[host as usize].server_timer_ns == now_ns {
                    self.hosts[host as usize].server_timer_ns = u64::MAX;
                    self.allocator.on_timeout(now_ns, host);
                    self.drive_allocator();
                }
            }
            FluidEvent::Round { flow, version } => {
                if self.flows[flow as usize].version == version {
                    self.send_window(flow);
                }
            }
            FluidEvent::Drained { flow, version } => {
                let entry = &mut self.flows[flow as usize];
                if entry.version == version {
                    entry.remaining_bytes = 0.0;
                    entry.rate_bps = 0;
                    entry.version += 1;
                    let at_ns = now_ns + entry.round_trip_ns;
                    let version = entry.version;
                    self.schedule(at_ns, FluidEvent::Finished { flow, version });
                }
            }
            FluidEvent::Finished { flow, version } => {
                if self.flows[flow as usize].version == version {
                    self.finish(flow);
                }
            }
            FluidEvent::Reconnect { host } => {
                let endpoint = &mut self.hosts[host as usize].endpoint;
                self.allocator.connect(now_ns, host, endpoint)?;
                self.drive_endpoint(host);
            }
        }
        Ok(())
    }

    fn arrive(&mut self) {
        let Some(arrival) = self.next_arrival.take() else {
            return;
        };
        self.next_arrival = self.arrivals.next();
        if let Some(next) = self.next_arrival {
            self.schedule(next.start_ns.max(self.now_ns), FluidEvent::Arrival);
        }
        let index = self
            .free_flows
            .pop()
            .unwrap_or_else(|| u32::try_from(self.flows.len()).unwrap_or(u32::MAX));
        let start = FlowletStart {
            flow: index,
            dst: arrival.dst,
            path_hash: arrival.path_hash,
            class: 0,
            weight: 1.0,
        };
        let endpoint = &mut self.hosts[arrival.src as usize].endpoint;
        let id = endpoint.start(self.now_ns, &start);
        // A reused entry goes on from its old version: events of the flow before it are still
        // scheduled.
        let version = self
            .flows
            .get(index as usize)
            .map_or(0, |old| old.version + 1);
        let flow = FluidFlow {
            src: arrival.src,
            id,
            bytes: arrival.bytes,
            remaining_bytes: arrival.bytes as f64,
            window_bytes: self.config.initial_window_bytes,
            round_trip_ns: self.round_trip_ns(&arrival),
            rate_bps: 0,
            allocated: false,
            since_ns: self.now_ns,
            version,
        };
        if index as usize == self.flows.len() {
            self.flows.push(flow);
        } else {
            self.flows[index as usize] = flow;
        }
        self.active += 1;
        self.totals.started += 1;
        self.send_window(index);
        self.drive_endpoint(arrival.src);
    }

    fn round_trip_ns(&self, arrival: &FlowletArrival) -> u64 {
        let path = self.topology.path(
            HostId(arrival.src),
            HostId(arrival.dst),
            PathChoice::Hash(arrival.path_hash),
        );
        let one_way_ns: u64 = path
            .iter()
            .flatten()
            .map(|&link| self.topology.links()[link.index()].delay_ns)
            .sum();
        // Two hosts process each of two packets.
        2 * one_way_ns + 4 * self.config.host_delay_ns
    }

    fn wire_ns(&self, payload_bytes: f64, rate_bps: u64) -> u64 {
        let overhead = self.config.packet_wire_bytes as f64 / self.config.payload_bytes as f64;
        let ns = payload_bytes * overhead * 8e9 / rate_bps as f64;
        // A rate is at least 1 kbit/s and a flow below 2^50 bytes.
        ns.ceil() as u64
    }

    /// Sends a window at line rate; without a rate one leaves every round trip (TCP's slow start).
    fn send_window(&mut self, index: u32) {
        let now_ns = self.now_ns;
        let flow = &mut self.flows[index as usize];
        let line_rate_bps = self.hosts[flow.src as usize].line_rate_bps;
        let burst = flow.remaining_bytes.min(flow.window_bytes as f64);
        flow.remaining_bytes -= burst;
        flow.window_bytes *= 2;
        flow.since_ns = now_ns;
        flow.version += 1;
        let version = flow.version;
        let round_trip_ns = flow.round_trip_ns;
        let done = flow.remaining_bytes <= 0.0;
        let burst_ns = self.wire_ns(burst, line_rate_bps);
        if done {
            self.schedule(
                now_ns + burst_ns + round_trip_ns,
                FluidEvent::Finished {
                    flow: index,
                    version,
                },
            );
        } else {
            self.schedule(
                now_ns + burst_ns.max(round_trip_ns),
                FluidEvent::Round {
                    flow: index,
                    version,
                },
            );
        }
    }

    fn set_rate(&mut self, index: u32, rate_bps: u64) {
        let now_ns = self.now_ns;
        let overhead = self.config.packet_wire_bytes as f64 / self.config.payload_bytes as f64;
        let flow = &mut self.flows[index as usize];
        if flow.remaining_bytes <= 0.0 {
            return;
        }
        let sent = flow.rate_bps as f64 * (now_ns - flow.since_ns) as f64 / (8e9 * overhead);
        // What is due within this nanosecond is left to the event that is due.
        flow.remaining_bytes = (flow.remaining_bytes - sent).max(f64::MIN_POSITIVE);
        flow.since_ns = now_ns;
        flow.rate_bps = rate_bps;
        flow.allocated |= rate_bps > 0;
        flow.version += 1;
        let (version, remaining) = (flow.version, flow.remaining_bytes);
        let event = if rate_bps == 0 {
            // Allocation withdrawn: the window again.
            (
                now_ns,
                FluidEvent::Round {
                    flow: index,
                    version,
                },
            )
        } else {
            let at_ns = now_ns + self.wire_ns(remaining, rate_bps);
            (
                at_ns,
                FluidEvent::Drained {
                    flow: index,
                    version,
                },
            )
        };
        self.schedule(event.0, event.1);
    }

    fn finish(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        // Invalidates all scheduled events of the flow before its entry is used again.
        flow.version += 1;
        let (src, id, bytes) = (flow.src, flow.id.take(), flow.bytes);
        self.totals.finished += 1;
        self.totals.finished_bytes += bytes;
        self.totals.finished_unallocated += u64::from(!flow.allocated);
        self.active -= 1;
        self.free_flows.push(index);
        if let Some(id) = id {
            self.hosts[src as usize].endpoint.end(self.now_ns, id);
            self.drive_endpoint(src);
        }
    }

    /// Polls a host's endpoint for notices and datagrams.
    fn drive_endpoint(&mut self, host: u32) {
        let now_ns = self.now_ns;
        let mut lost = false;
        while let Some(notice) = self.hosts[host as usize].endpoint.poll_notice() {
            match notice {
                Notice::Rate(granted) => self.set_rate(granted.flow, granted.rate_bps),
                Notice::Lost => lost = true,
            }
        }
        if lost {
            let at_ns = now_ns + self.config.control.reconnect_ns;
            self.schedule(at_ns, FluidEvent::Reconnect { host });
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        while self.hosts[host as usize]
            .endpoint
            .poll_datagram(now_ns, &mut scratch)
        {
            let payload = store(&mut self.payloads, &mut self.free_payloads, &scratch);
            self.carry(host, 0, payload);
        }
        self.scratch = scratch;
        let entry = &mut self.hosts[host as usize];
        if let Some(at_ns) = entry.endpoint.next_timeout_ns() {
            // A timer that is due now would otherwise be scheduled for now, for ever.
            let at_ns = at_ns.max(now_ns + 1);
            if at_ns < entry.timer_ns {
                entry.timer_ns = at_ns;
                self.schedule(at_ns, FluidEvent::HostTimer { host });
            }
        }
    }

    /// Polls the allocator for datagrams, and schedules the next iteration if one is needed.
    fn drive_allocator(&mut self) {
        let now_ns = self.now_ns;
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut rearm = std::mem::take(&mut self.rearm);
        {
            let (payloads, free) = (&mut self.payloads, &mut self.free_payloads);
            self.allocator.poll_datagrams(
                now_ns,
                &mut scratch,
                &mut |host, bytes| outbox.push((host, store(payloads, free, bytes))),
                &mut |host, timeout| rearm.push((host, timeout)),
            );
        }
        self.scratch = scratch;
        for (host, payload) in outbox.drain(..) {
            self.carry(host, 1, payload);
        }
        for (host, timeout) in rearm.drain(..) {
            let Some(at_ns) = timeout.map(|at_ns| at_ns.max(now_ns + 1)) else {
                continue;
            };
            let entry = &mut self.hosts[host as usize];
            if at_ns < entry.server_timer_ns {
                entry.server_timer_ns = at_ns;
                self.schedule(at_ns, FluidEvent::ServerTimer { host });
            }
        }
        self.outbox = outbox;
        self.rearm = rearm;
        if !self.tick_planned && !self.allocator.is_settled() {
            self.tick_planned = true;
            let interval_ns = self.config.control.interval_ns;
            // Iterations run on a fixed grid, as the paper's do every 10 µs.
            self.schedule((now_ns / interval_ns + 1) * interval_ns, FluidEvent::Tick);
        }
    }

    fn note_loads(&mut self) {
        let (loads, capacities) = &mut self.loads;
        self.allocator.engine().link_loads(loads);
        self.allocator.engine().link_capacities(capacities);
        let worst = loads
            .iter()
            .zip(capacities.iter())
            .filter(|&(_, &capacity)| capacity > 0.0)
            .fold(0.0, |worst: f64, (&load, &capacity)| {
                worst.max(load / capacity)
            });
        self.totals.max_link_load = self.totals.max_link_load.max(worst);
    }

    /// Sends a stored datagram, over the allocator's link in (direction 0) or out (1).
    fn carry(&mut self, host: u32, direction: usize, payload: u32) {
        if self.config.control_loss > 0.0 && self.rng.random_bool(self.config.control_loss) {
            self.totals.lost += 1;
            let bytes = std::mem::take(&mut self.payloads[payload as usize]);
            self.recycle(payload, bytes);
            return;
        }
        let bits = u64::from(datagram_wire_bytes(self.payloads[payload as usize].len())) * 8;
        let of = |bps: u64| (bits * 1_000_000_000).div_ceil(bps.max(1));
        let at_link_ns = of(self.config.allocator_link_bps);
        // Hosts are spread over the allocator's links; ECMP does that in the packet fabric.
        let link = host as usize % self.links_busy_ns.len();
        let entry = &self.hosts[host as usize];
        let edge_ns = of(entry.line_rate_bps);
        let way_ns = entry.to_allocator_ns;
        let busy_ns = &mut self.links_busy_ns[link][direction];
        let at_ns = if direction == 0 {
            // At the spine after the edge link and the path there; then the allocator's own link.
            let ready_ns = self.now_ns + edge_ns;
            let start_ns = ready_ns.max(*busy_ns);
            *busy_ns = start_ns + at_link_ns;
            *busy_ns + way_ns
        } else {
            let start_ns = self.now_ns.max(*busy_ns);
            *busy_ns = start_ns + at_link_ns;
            *busy_ns + way_ns + edge_ns
        };
        let event = if direction == 0 {
            FluidEvent::ToAllocator { host, payload }
        } else {
            FluidEvent::ToHost { host, payload }
        };
        self.schedule(at_ns, event);
    }

    fn recycle(&mut self, payload: u32, mut bytes: Vec<u8>) {
        bytes.clear();
        self.payloads[payload as usize] = bytes;
        self.free_payloads.push(payload);
    }
}

fn store(payloads: &mut Vec<Vec<u8>>, free: &mut Vec<u32>, bytes: &[u8]) -> u32 {
    let index = free.pop().unwrap_or_else(|| {
        payloads.push(Vec::new());
        (payloads.len() - 1) as u32
    });
    payloads[index as usize].extend_from_slice(bytes);
    index
}
