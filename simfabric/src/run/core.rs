//! State of a run without its transport, and the operations of event loop and transport on it.

use std::sync::Arc;

use rand::RngExt as _;
use ratewright_proto::telemetry::LinkInt;
use ratewright_topology::{HostId, LinkId, PathChoice, Topology};

use crate::event::{Event, MAX_INDEX};
use crate::flow::FlowId;
use crate::host::nic::Nic;
use crate::net::mmu::{Ingress, Mmu, Place};
use crate::net::port::{FarEnd, Port, WireSpan};
use crate::net::queue::{Discipline as _, SharedState};
use crate::net::regions::Regions;
use crate::net::route::RouteKey;
use crate::net::switch::PAUSE_WIRE_BYTES;
use crate::net::{Fabric, Framing, Notice, Tap};
use crate::packet::{Flags, Packet, PacketId, PacketKind};
use crate::rng::{Paths, Purpose, Stream};
use crate::run::census::Census;
use crate::run::mail::Mailbox;
use crate::run::prefetch::Prefetcher;
use crate::run::scheduler::{Scheduler, Window};
use crate::run::timers::{TimerId, TimerOutcome, Timers};
use crate::time::Time;

/// A change of the network during a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A link fails or is repaired.
    Link {
        /// The link.
        link: LinkId,
        /// True if it works from now on.
        up: bool,
    },
    /// A switch fails or is repaired, and with it all its links.
    Switch {
        /// The link.
        switch: ratewright_topology::SwitchId,
        /// True if it works from now on.
        up: bool,
    },
    /// A link gets another rate.
    Rate {
        /// The link.
        link: LinkId,
        /// Rate from now on, in bit/s.
        rate_bps: u64,
    },
    /// A host's interface pauses its switch in all lossless classes, or resumes it. A broken one
    /// does so for ever (Guo et al., SIGCOMM 2016, §4.3). The switch hears it at once.
    Pause {
        /// The host.
        host: HostId,
        /// True if the switch is paused from now on.
        pause: bool,
    },
}

/// Random numbers of flows and hosts.
#[derive(Debug)]
pub(crate) struct Chance {
    pub(crate) paths: Paths,
    /// The streams of the scheme at each node, or of two schemes.
    pub(crate) hosts: Vec<[Stream; 2]>,
    /// The streams from which nodes draw paths; none unless they spray.
    sprays: Vec<Stream>,
}

impl Chance {
    /// Makes the streams of a run with this many nodes.
    pub(crate) fn new(seed: u64, nodes: u64, spraying: bool) -> Self {
        let streams = |purpose| (0..nodes).map(move |node| Stream::new(seed, purpose, node));
        Self {
            paths: Paths::new(seed),
            hosts: streams(Purpose::Host)
                .zip((0..nodes).map(|node| Stream::new(seed, Purpose::Host, node | 1 << 32)))
                .map(<[Stream; 2]>::from)
                .collect(),
            sprays: streams(Purpose::Spraying).filter(|_| spraying).collect(),
        }
    }
}

/// The simulated fabric and its scheduler: all of a run but the transport. Where several threads
/// simulate it, each has a core of all ports and uses those of its partition.
#[derive(Debug)]
pub(crate) struct Core {
    /// Time of the present event. Where regions take turns, it goes back when the region changes.
    pub(crate) now: Time,
    /// Latest time of any event so far.
    pub(crate) latest: Time,
    pub(crate) scheduler: Scheduler,
    /// Regions that take turns, if any do.
    pub(crate) regions: Option<Regions>,
    pub(crate) shared: SharedState,
    pub(crate) fabric: Fabric,
    pub(crate) topology: Topology,
    pub(crate) timers: Timers,
    pub(crate) chance: Chance,
    /// Interfaces of hosts, and of the allocator.
    pub(crate) nics: Vec<Nic>,
    /// The present endpoint has something to send.
    pub(crate) woken: bool,
    /// Endpoints that others poked in the present call.
    pub(crate) poked: Vec<HostId>,
    pub(crate) framing: Framing,
    pub(crate) allocator: Option<HostId>,
    /// Groups of senders, by number from 1 on.
    pub(crate) groups: Arc<[Vec<HostId>]>,
    pub(crate) symmetric: bool,
    pub(crate) events: u64,
    pub(crate) packet_hops: u64,
    /// Flows that completed.
    pub(crate) completed: u64,
    /// Networks before each change of their links, with its time, where switches deflect: messages
    /// on their way are dropped if it gives them another route.
    pub(crate) former: Vec<(Time, Topology)>,
    /// Packets that a switch had no route for, or that were on their way as their route changed.
    pub(crate) no_route: crate::flow::PacketCount,
    /// State of prefetching.
    pub(crate) prefetcher: Prefetcher,
    /// Traffic with other partitions.
    pub(crate) mailbox: Mailbox,
    /// Bytes of the flows that an allocator manages, if they are counted.
    pub(crate) census: Option<Box<Census>>,
}

impl Core {
    /// Returns the first port of a host or of the allocator.
    pub(crate) fn nic(&self, host: HostId) -> &Port {
        // The allocator's ports all have one rate, so any of them answers for the node.
        let key = RouteKey {
            src: host,
            dst: HostId(0),
            hash: 0,
        };
        let port = self
            .fabric
            .routes
            .first_hop(&self.topology, host, key)
            .unwrap_or(0);
        &self.fabric.ports[port as usize]
    }

    #[inline]
    pub(crate) fn send(&mut self, host: HostId, mut packet: Packet) {
        // Counted before the queue may drop it: sent = arrived + dropped + in the fabric.
        self.shared
            .flows
            .progress_mut(packet.flow)
            .sent
            .add(packet.wire_bytes);
        if let Some(spray) = self.chance.sprays.get_mut(host.index()) {
            packet.path_hash = spray.random();
        }
        if let Some(deflection) = &self.fabric.deflection
            && packet.flow != FlowId::NONE
        {
            let bytes = self.shared.flows.spec(packet.flow).bytes;
            deflection.give_tokens(&mut packet, bytes);
        }
        let key = RouteKey {
            src: host,
            dst: packet.dst,
            hash: packet.path_hash,
        };
        let port = self.fabric.routes.first_hop(&self.topology, host, key);
        let id = self.shared.packets.insert(packet);
        self.forward(port, id);
    }

    /// Offers a packet to a port, or drops it if there is none.
    #[inline(always)]
    fn forward(&mut self, port: Option<u32>, id: PacketId) {
        let Some(index) = port else {
            return self.drop_unroutable(id);
        };
        let port = &mut self.fabric.ports[index as usize];
        port.accept(self.now, id, &mut self.shared, &mut self.fabric.switches);
        // A pending event stays right whatever joins the queue behind it.
        if port.needs_scheduling() {
            self.schedule(index);
        }
    }

    /// Offers a packet to a port of a switch with a shared buffer.
    #[inline(never)]
    fn forward_by_buffer(&mut self, switch: u32, port: Option<u32>, id: PacketId) {
        let Some(route) = port else {
            return self.drop_unroutable(id);
        };
        let index = self.deflect(switch, route, id).unwrap_or(route);
        let now = self.now;
        let (shared, switches) = (&mut self.shared, &mut self.fabric.switches);
        let port = &mut self.fabric.ports[index as usize];
        if let (Some(deflector), Some((_, to))) =
            (&switches[switch as usize].deflector, port.near_switch())
        {
            let packet = &mut shared.packets[id];
            let from = packet.ingress.port();
            deflector.turn(packet, from, to);
        }
        port.advance(now, shared, switches);
        let mut is_taken = true;
        if !port.takes_no_buffer(now)
            && let Some((_, egress)) = port.near_switch()
            && let Some(mmu) = &mut switches[switch as usize].mmu
        {
            let place = mmu.place(&shared.packets[id], egress);
            if mmu.is_certain(place) {
                mmu.admit(now, place);
            } else {
                is_taken = self.admit_exactly(switch, place);
            }
        }
        let (shared, switches) = (&mut self.shared, &mut self.fabric.switches);
        let port = &mut self.fabric.ports[index as usize];
        if is_taken {
            port.accept(now, id, shared, switches);
        } else {
            port.refuse(id, shared);
        }
        if port.needs_scheduling() {
            self.schedule(index);
        }
        if let Some(mmu) = &mut self.fabric.switches[switch as usize].mmu {
            // If not, the counters may be too high, but not above it.
            if mmu.exceeds_max() {
                mmu.note_max();
            }
            if mmu.wants_settling() {
                self.catch_up(switch);
            }
            self.send_pauses(switch);
        }
    }

    /// Returns the port that a packet is deflected to, if it is.
    fn deflect(&mut self, switch: u32, route: u32, id: PacketId) -> Option<u32> {
        let deflector = self.fabric.switches[switch as usize].deflector.as_mut()?;
        let packet = &mut self.shared.packets[id];
        if let Some(port) = deflector.follow(packet) {
            return Some(port);
        }
        if !deflector.may_begin(packet) {
            return None;
        }
        let lanes = deflector.lanes(packet);
        // Ports are lazy: this makes the queue that of now.
        self.advance(route);
        let ports = &self.fabric.ports;
        let queue = &ports[route as usize].queue;
        let queue_bytes = lanes.map(|lane| queue.bytes_of(lane)).sum();
        let works = |port: u32| ports[port as usize].is_up();
        let deflector = self.fabric.switches[switch as usize].deflector.as_mut()?;
        deflector.begin(&mut self.shared.packets[id], route, queue_bytes, works)
    }

    /// Decides on a packet with exact counters.
    #[cold]
    fn admit_exactly(&mut self, switch: u32, place: Place) -> bool {
        self.catch_up(switch);
        let mmu = self.fabric.switches[switch as usize].mmu.as_mut();
        mmu.is_none_or(|mmu| mmu.admit(self.now, place))
    }

    /// Simulates all departures of a switch until now, so that its counters are exact.
    fn catch_up(&mut self, switch: u32) {
        for i in 0..self.fabric.switches[switch as usize].egress.len() {
            let index = self.fabric.switches[switch as usize].egress[i];
            self.advance(index);
        }
        if let Some(mmu) = &mut self.fabric.switches[switch as usize].mmu {
            mmu.settle(self.now);
        }
    }

    /// Simulates all departures of a port until now.
    fn advance(&mut self, index: u32) {
        let port = &mut self.fabric.ports[index as usize];
        port.advance(self.now, &mut self.shared, &mut self.fabric.switches);
        if port.needs_scheduling() {
            self.schedule(index);
        }
    }

    /// Sends the pauses and resumes that are due at a switch, and makes its departures events while
    /// it pauses anyone.
    fn send_pauses(&mut self, switch: u32) {
        loop {
            let at = &mut self.fabric.switches[switch as usize];
            let Some(mmu) = &mut at.mmu else { return };
            if let Some(signal) = mmu.take_signal() {
                let ingress = usize::from(signal.ingress);
                let (by, to) = (at.egress[ingress], at.ingress[ingress]);
                self.advance(by);
                let port = &mut self.fabric.ports[by as usize];
                let sent_at = port.occupy(self.now, PAUSE_WIRE_BYTES);
                let heard_at = sent_at + self.fabric.pauses.delay(to);
                if port.span() == WireSpan::Leaves {
                    self.mail_pause(by, heard_at, to, signal.class, signal.pause);
                } else {
                    self.pause_later(heard_at, to, signal.class, signal.pause);
                }
                // What waits there may have to wait longer.
                self.schedule(by);
            } else if at.is_eager != mmu.is_pausing() {
                at.is_eager = !at.is_eager;
                let is_eager = at.is_eager;
                for i in 0..at.egress.len() {
                    let index = self.fabric.switches[switch as usize].egress[i];
                    self.fabric.ports[index as usize].set_eager(is_eager);
                    // Past departures first, which may resume someone.
                    self.advance(index);
                }
            } else {
                return;
            }
        }
    }

    /// Sends what departures of a port made due at its switch.
    #[inline]
    fn send_pauses_of(&mut self, index: u32) {
        if let Some((switch, _)) = self.fabric.ports[index as usize].near_switch() {
            self.send_pauses(switch);
        }
    }

    /// Lets a port hear a pause or resume.
    pub(crate) fn pause_later(&mut self, at: Time, port: u32, class: u8, pause: bool) {
        self.fabric.pauses.send(port, class, pause);
        let region = self.region_at_begin(port);
        self.scheduler.push(at, region, Event::Pause(port));
    }

    /// Returns the region where a port's wire begins: there the other direction ends.
    fn region_at_begin(&self, port: u32) -> u32 {
        let reverse = self.fabric.reverse[port as usize];
        self.fabric.ports[reverse as usize].region()
    }

    /// Handles the arrival of a pause or resume at a port.
    pub(crate) fn pause_event(&mut self, index: u32) {
        let Some((class, pause)) = self.fabric.pauses.arrive(index) else {
            return;
        };
        self.advance(index);
        let port = &mut self.fabric.ports[index as usize];
        port.set_paused(self.now, class, pause);
        // What has waited for this goes now.
        self.advance(index);
        self.schedule(index);
        self.send_pauses_of(index);
    }

    /// Returns the host whose interface a port is.
    pub(crate) fn host_of(&self, port: u32) -> Option<HostId> {
        // The other direction of its link ends there.
        let reverse = self.fabric.reverse[port as usize];
        match self.fabric.ports[reverse as usize].far() {
            FarEnd::Host(host) if (host as usize) < self.topology.hosts().len() => {
                Some(HostId(host))
            }
            _ => None,
        }
    }

    /// Drops a packet that has no route.
    #[cold]
    fn drop_unroutable(&mut self, id: PacketId) {
        let packet = self.shared.discard(id);
        self.no_route.add(packet.wire_bytes);
    }

    /// Schedules the port's next event unless one is pending, at the near end of its wire.
    #[inline(never)]
    pub(crate) fn schedule(&mut self, index: u32) {
        let port = &mut self.fabric.ports[index as usize];
        let arrival = port.next_arrival();
        if !*port.scheduled()
            && let Some(at) = arrival
        {
            *port.scheduled() = true;
            if port.span() == WireSpan::Leaves {
                self.mailbox.activate(index);
            } else {
                self.scheduler.push(at, port.region(), Event::Port(index));
            }
        }
        // Otherwise the arrival is soon enough for the departures that precede it.
        let mut departure = None;
        if (port.is_eager() || arrival.is_none()) && !*port.departure_scheduled() {
            departure = port.next_departure();
            *port.departure_scheduled() = departure.is_some();
        }
        let tick = port.start_clock();
        if departure.is_none() && tick.is_none() {
            return;
        }
        // Both belong to the near end.
        let region = self.region_at_begin(index);
        if let Some(at) = departure {
            self.scheduler.push(at, region, Event::Departure(index));
        }
        if let Some(at) = tick {
            self.scheduler.push(at, region, Event::Tick(index));
        }
    }

    /// Handles a port's event. A packet that reached a switch is forwarded; one that reached a host
    /// is returned.
    #[inline]
    pub(crate) fn port_event(&mut self, index: u32) -> Option<(HostId, PacketId)> {
        let port = &mut self.fabric.ports[index as usize];
        let arrived = port.arrive(self.now, &self.shared.packets);
        let is_lost = arrived.is_some() && port.loses();
        let far = port.far();
        let (tap, ingress) = (port.tap(), port.far_ingress());
        match port.next_arrival() {
            // The flag stays set: the event of the next arrival replaces this one.
            Some(at) => self.scheduler.push(at, port.region(), Event::Port(index)),
            None => self.refill_wire(index),
        }
        let id = arrived?;
        self.packet_hops += 1;
        if let Some(census) = &mut self.census {
            census.count(index, &self.shared.packets[id], &self.shared.flows);
        }
        if is_lost {
            self.lose(index, id);
            return None;
        }
        if !self.former.is_empty() && self.was_rerouted(id) {
            self.drop_unroutable(id);
            return None;
        }
        match far {
            FarEnd::Switch(switch) => {
                if tap != Tap::None && self.shared.packets[id].kind == PacketKind::Ack {
                    self.write_into_ack(tap, index, id);
                }
                let packet = &mut self.shared.packets[id];
                let key = RouteKey {
                    src: packet.src,
                    dst: packet.dst,
                    hash: packet.path_hash,
                };
                if let Some(port) = ingress {
                    packet.ingress = Ingress::new(port, packet.class);
                }
                let next = self.fabric.routes.next_hop(&self.topology, switch, key);
                if ingress.is_some() {
                    self.forward_by_buffer(switch, next, id);
                } else {
                    self.forward(next, id);
                }
                None
            }
            FarEnd::Host(host) => Some((HostId(host), id)),
        }
    }

    /// Returns true if a data packet was sent before a change of the network by which its route is
    /// another one, or before any change if it was deflected.
    #[cold]
    #[inline(never)]
    fn was_rerouted(&self, id: PacketId) -> bool {
        let packet = &self.shared.packets[id];
        if packet.kind != PacketKind::Data {
            return false;
        }
        let route = |topology: &Topology| {
            let choice = PathChoice::Hash(packet.path_hash.into());
            topology.path(packet.src, packet.dst, choice).ok()
        };
        let since = (self.former).partition_point(|(at, _)| *at < packet.stamp);
        let mut of_packet = self.former[since..].iter().map(|(_, topology)| topology);
        let Some(first) = of_packet.next() else {
            return false;
        };
        let own = route(first);
        packet.flags.contains(Flags::DEFLECTED)
            || of_packet
                .chain([&self.topology])
                .any(|later| route(later) != own)
    }

    /// Loses a packet that has reached the far end of its link.
    #[cold]
    #[inline(never)]
    fn lose(&mut self, index: u32, id: PacketId) {
        let packet = self.shared.discard(id);
        self.fabric.ports[index as usize].count_loss(packet.wire_bytes);
    }

    /// Writes into an acknowledgement that came by a link what the switch knows of the other
    /// direction, by which the data left.
    #[inline(never)]
    fn write_into_ack(&mut self, tap: Tap, link: u32, id: PacketId) {
        let index = self.fabric.reverse[link as usize];
        // Ports are lazy: this makes the queue that of now.
        self.advance(index);
        let ack = &mut self.shared.packets[id];
        let port = &mut self.fabric.ports[index as usize];
        if tap == Tap::Int {
            self.shared.extensions.stamp(ack, port.telemetry(self.now));
        } else if port.queue.take_mark(self.now, ack.flow) {
            ack.flags.insert(Flags::ECE);
        }
        self.send_pauses_of(index);
    }

    /// Takes a packet that reached its host out of the fabric.
    #[inline]
    pub(crate) fn take_packet(&mut self, id: PacketId) -> Packet {
        let packet = self.shared.packets.remove(id);
        self.shared.flows.arrived(packet.flow, packet.wire_bytes);
        packet
    }

    /// Lets the port's due packets depart, after an event that left its wire empty.
    #[inline(never)]
    fn refill_wire(&mut self, index: u32) {
        let port = &mut self.fabric.ports[index as usize];
        // Cleared before `schedule`, which otherwise would not schedule the next event.
        *port.scheduled() = false;
        if port.span() == WireSpan::Enters {
            return;
        }
        if port.span() == WireSpan::Regions
            && let Some(Window { ends, .. }) = self.scheduler.end_of_window()
        {
            // The queue of a port that comes from another region may know of less than has
            // happened here, and what reaches this end in the present window was sent before it.
            let known_until = self.scheduler.settled_until(self.now);
            port.advance(known_until, &mut self.shared, &mut self.fabric.switches);
            // Whatever departs in this window arrives in a later one.
            let waits = || port.next_departure().map(|_| ends);
            if let Some(at) = port.next_arrival().or_else(waits) {
                *port.scheduled() = true;
                self.scheduler.push(at, port.region(), Event::Port(index));
            }
            return;
        }
        port.advance(self.now, &mut self.shared, &mut self.fabric.switches);
        self.schedule(index);
        self.send_pauses_of(index);
    }

    /// Handles a departure that is an event.
    pub(crate) fn departure_event(&mut self, index: u32) {
        let port = &mut self.fabric.ports[index as usize];
        port.advance(self.now, &mut self.shared, &mut self.fabric.switches);
        self.schedule(index);
        self.send_pauses_of(index);
    }

    /// Handles a tick of the clock of a switch's queue.
    pub(crate) fn tick_event(&mut self, index: u32) {
        let reverse = self.fabric.reverse[index as usize];
        let FarEnd::Switch(switch) = self.fabric.ports[reverse as usize].far() else {
            return;
        };
        let mut notices = std::mem::take(&mut self.fabric.switches[switch as usize].notices);
        let (shared, switches) = (&mut self.shared, &mut self.fabric.switches);
        let port = &mut self.fabric.ports[index as usize];
        port.tick(self.now, shared, switches, &mut notices);
        self.schedule(index);
        for notice in notices.drain(..) {
            self.send_notice(switch, notice);
        }
        // Its memory is used again.
        self.fabric.switches[switch as usize].notices = notices;
        self.send_pauses_of(index);
    }

    /// Sends a packet that a switch originates.
    fn send_notice(&mut self, switch: u32, notice: Notice) {
        let packet = notice.packet(self.address_of(switch), self.now);
        self.originate(switch, packet);
    }

    /// Returns the address of a switch, for packets that it originates. They follow those of hosts
    /// and allocator.
    pub(crate) fn address_of(&self, switch: u32) -> HostId {
        HostId(self.nics.len() as u32 + switch)
    }

    /// Returns the switch of an address.
    pub(crate) fn switch_at(&self, address: HostId) -> Option<u32> {
        let switch = address.0.checked_sub(self.nics.len() as u32)?;
        ((switch as usize) < self.fabric.switches.len()).then_some(switch)
    }

    /// Sends a packet without a flow by the switch that originates it.
    pub(crate) fn originate(&mut self, switch: u32, mut packet: Packet) {
        let own = self.fabric.switches[switch as usize].mmu.as_deref();
        let own = own.map(Mmu::own_ingress);
        packet.ingress = Ingress::new(own.unwrap_or_default(), packet.class);
        let control = self.shared.flows.progress_mut(FlowId::NONE);
        control.sent.add(packet.wire_bytes);
        let key = RouteKey {
            src: packet.src,
            dst: packet.dst,
            hash: packet.path_hash,
        };
        let next = self.fabric.routes.next_hop(&self.topology, switch, key);
        let id = self.shared.packets.insert(packet);
        if own.is_some() {
            self.forward_by_buffer(switch, next, id);
        } else {
            self.forward(next, id);
        }
    }

    /// Reads a port as it is now, as a switch's agent does.
    pub(crate) fn read_port(&mut self, index: u32) -> LinkInt {
        // Ports are lazy: this makes the queue that of now.
        self.advance(index);
        let port = &self.fabric.ports[index as usize];
        let reading = LinkInt {
            link: index,
            queue_bytes: port.queue.bytes(),
            tx_bytes: port.sent_bytes(),
            timestamp_ns: self.now.as_ns(),
            bandwidth_bps: port.rate_bps(),
            ..LinkInt::default()
        };
        self.send_pauses_of(index);
        reading
    }

    /// Returns the region of a host; 0 where the whole fabric is simulated at once.
    pub(crate) fn region_of(&self, host: HostId) -> u32 {
        let regions = self.regions.as_ref();
        regions.map_or(0, |regions| regions.of_host(host.0))
    }

    pub(crate) fn set_timer(&mut self, at: Time, token: u64) -> TimerId {
        // A deadline in the past fires now; the scheduler takes no earlier event.
        let at = at.max(self.now);
        let id = self.timers.set(at, token);
        assert!(
            id.index() <= MAX_INDEX,
            "fewer than {MAX_INDEX} timers are pending"
        );
        if at < Time::MAX {
            self.scheduler.push_here(at, Event::Timer(id.index()));
        }
        id
    }

    pub(crate) fn move_timer(&mut self, timer: TimerId, at: Time) -> Option<TimerId> {
        let at = at.max(self.now);
        Some(match self.timers.postpone(timer, at)? {
            Ok(()) => timer,
            Err(token) => self.set_timer(at, token),
        })
    }

    pub(crate) fn timer_event(&mut self, index: u32) -> Option<u64> {
        match self.timers.fire(index, self.now) {
            TimerOutcome::Token(token) => Some(token),
            // A postponed timer keeps its one event and moves it when it comes.
            TimerOutcome::Later(at) => {
                self.scheduler.push_here(at, Event::Timer(index));
                None
            }
            TimerOutcome::Nothing => None,
        }
    }

    #[inline]
    pub(crate) fn delivered(&mut self, flow: FlowId, bytes: u64) {
        self.shared.flows.progress_mut(flow).delivered_bytes += bytes;
    }

    pub(crate) fn complete(&mut self, flow: FlowId) {
        if self.shared.flows.finished(flow, self.now) {
            self.completed += 1;
        }
    }

    /// Applies a change of the network.
    pub(crate) fn change(&mut self, change: Change) {
        if let Change::Link { .. } | Change::Switch { .. } = change
            && self.fabric.deflection.is_some()
        {
            self.former.push((self.now, self.topology.clone()));
        }
        let (shared, switches) = (&mut self.shared, &mut self.fabric.switches);
        match change {
            Change::Link { link, up } => {
                self.topology.set_link_up(link, up);
            }
            Change::Switch { switch, up } => {
                self.topology.set_switch_up(switch, up);
            }
            Change::Rate { link, rate_bps } => {
                let port = &mut self.fabric.ports[link.index()];
                port.advance(self.now, shared, switches);
                self.topology.set_capacity_bps(link, rate_bps);
                port.set_rate(rate_bps);
            }
            Change::Pause { host, pause } => {
                let port = self.topology.host_downlink(host);
                let port = &mut self.fabric.ports[port.index()];
                port.advance(self.now, shared, switches);
                let classes = port.queue.classes();
                for class in self.fabric.lossless.iter().filter(|class| *class < classes) {
                    port.set_paused(self.now, class as u8, pause);
                }
            }
        }
        if let Change::Link { .. } | Change::Switch { .. } = change {
            // Any link may have become unusable: that of a failed switch fails with it.
            for link in self.topology.links() {
                let port = &mut self.fabric.ports[link.id.index()];
                port.advance(self.now, shared, switches);
                port.set_up(self.now, self.topology.is_usable(link.id), shared, switches);
            }
        }
        for index in 0..self.fabric.ports.len() as u32 {
            self.schedule(index);
        }
        // What a failed link dropped may resume someone.
        for switch in 0..self.fabric.switches.len() as u32 {
            self.send_pauses(switch);
        }
    }

    /// Advances all ports to the present, so that their counters are those of now.
    pub(crate) fn settle(&mut self) {
        for index in 0..self.fabric.ports.len() as u32 {
            let port = &mut self.fabric.ports[index as usize];
            port.advance(self.now, &mut self.shared, &mut self.fabric.switches);
            port.account(self.now);
            self.schedule(index);
        }
        for switch in 0..self.fabric.switches.len() as u32 {
            if let Some(mmu) = &mut self.fabric.switches[switch as usize].mmu {
                mmu.settle(self.now);
            }
            self.send_pauses(switch);
        }
    }
}
