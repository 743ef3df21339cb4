//! Fetches into the cache what events that are about to happen will touch. It has no effect but on
//! speed.
//!
//! What an event touches is known step by step: its port or timer by its number, the packets by
//! what the port says, the port that the first of them goes on to by what that packet says, and the
//! packets that this port's queue and wire end with when that port is there. Each step asks for
//! memory that the step before it has brought. A step is some events before the event itself, so
//! that memory has the time of these events to come.

use crate::event::Event;
use crate::net::port::FarEnd;
use crate::net::route::RouteKey;
use crate::packet::{Packet, PacketId};
use crate::run::core::Core;
use crate::transport::Transport;

/// Bytes of ports and packets from which on they are fetched ahead. Of fewer, enough stay in the
/// caches of a core by themselves.
const FROM_BYTES: usize = 1 << 21;

/// Events of a window per port from which on everything is fetched region by region.
const PER_PORT: u64 = 4;

/// Events before an event's own at which its port or timer is fetched.
const FIRST: usize = 14;
/// The same for a port's packets, and for what a timer names.
const SECOND: usize = 10;
/// The same for the entry of the routing table that says where a packet goes on.
const THIRD: usize = 8;
/// The same for the port that it goes on to, or for what its transport touches at its host.
const FOURTH: usize = 6;
/// Events after that at which the last packets of that port are fetched.
const THEN: usize = 3;

/// What the fourth step found out lately, latest first, for the fifth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetcher {
    /// Whether anything is fetched ahead, event by event.
    pub(crate) on: bool,
    /// Whether it is fetched region by region instead.
    by_region: bool,
    /// The region whose turn it is, and how many events there had been when the window began.
    region: usize,
    began: u64,
    ports: [u32; THEN],
    arrivals: [PacketId; THEN],
}

impl Default for Prefetcher {
    fn default() -> Self {
        Self {
            on: false,
            by_region: false,
            region: 0,
            began: 0,
            ports: [u32::MAX; THEN],
            arrivals: [PacketId::NONE; THEN],
        }
    }
}

impl Core {
    /// Decides whether to fetch ahead.
    pub(crate) fn review_prefetching(&mut self) {
        let bytes = size_of_val(&*self.fabric.ports)
            + self.shared.packets.high_water() * size_of::<Packet>();
        self.prefetcher.on = bytes >= FROM_BYTES && !self.prefetcher.by_region;
        self.scheduler.set_lookahead(self.prefetcher.on);
    }

    /// A region comes to its turn, after so many events of the run. Where a window has enough
    /// events to touch everything in it several times, all ports of the region after it are
    /// fetched, and of its own, which were fetched the last time, the packets that wires and queues
    /// begin and end with; those that follow are fetched when the ones before them are taken.
    #[inline(never)]
    pub(crate) fn on_region_change(&mut self, events: u64) {
        let Some(regions) = &self.regions else { return };
        let region = self.scheduler.region() as usize;
        if region <= self.prefetcher.region {
            let of_window = events - self.prefetcher.began;
            self.prefetcher.by_region = of_window >= PER_PORT * self.fabric.ports.len() as u64;
            self.prefetcher.on &= !self.prefetcher.by_region;
            self.scheduler.set_lookahead(self.prefetcher.on);
            self.prefetcher.began = events;
        }
        self.prefetcher.region = region;
        if !self.prefetcher.by_region {
            return;
        }
        for port in regions.ports((region + 1) % regions.len()) {
            self.fabric.ports[*port as usize].prefetch_all();
        }
        for port in regions.ports(region) {
            let port = &self.fabric.ports[*port as usize];
            port.prefetch_packets(&self.shared.packets);
            port.prefetch_neighbours(&self.shared.packets);
        }
    }

    /// Does every step of the event that it is the turn of.
    #[inline]
    pub(crate) fn prefetch_ahead<T: Transport>(&mut self, transport: &T) {
        match self.scheduler.upcoming(FIRST) {
            Some(Event::Port(index)) => self.fabric.ports[index as usize].prefetch_wire(),
            Some(Event::Timer(index)) => self.timers.prefetch(index),
            _ => {}
        }
        match self.scheduler.upcoming(SECOND) {
            Some(Event::Port(index)) => {
                self.fabric.ports[index as usize].prefetch_packets(&self.shared.packets);
            }
            Some(Event::Timer(index)) => self.prefetch_for_timer(transport, index, 0),
            _ => {}
        }
        match self.scheduler.upcoming(THIRD) {
            Some(Event::Port(index)) => self.prefetch_route(index),
            Some(Event::Timer(index)) => self.prefetch_for_timer(transport, index, 1),
            _ => {}
        }
        self.prefetch_last(transport);
        self.prefetcher.ports.copy_within(0..THEN - 1, 1);
        self.prefetcher.arrivals.copy_within(0..THEN - 1, 1);
        self.prefetcher.ports[0] = u32::MAX;
        self.prefetcher.arrivals[0] = PacketId::NONE;
        match self.scheduler.upcoming(FOURTH) {
            Some(Event::Port(index)) => self.prefetch_next_port(transport, index),
            Some(Event::Timer(index)) => self.prefetch_for_timer(transport, index, 2),
            _ => {}
        }
    }

    /// The first packet of a port's wire, and the switch that it comes to.
    fn first_of(&self, port: u32) -> Option<(PacketId, FarEnd)> {
        let port = &self.fabric.ports[port as usize];
        let first = port.first_on_wire();
        first.is_some().then_some((first, port.far()))
    }

    #[inline]
    fn prefetch_route(&self, port: u32) {
        if let Some((first, FarEnd::Switch(switch))) = self.first_of(port) {
            let dst = self.shared.packets[first].dst;
            self.fabric.routes.prefetch(switch, dst);
        }
    }

    #[inline]
    fn prefetch_next_port<T: Transport>(&mut self, transport: &T, port: u32) {
        let Some((first, far)) = self.first_of(port) else {
            return;
        };
        let packet = &self.shared.packets[first];
        let next = match far {
            FarEnd::Switch(switch) => {
                let key = RouteKey {
                    src: packet.src,
                    dst: packet.dst,
                    hash: packet.path_hash,
                };
                self.fabric
                    .routes
                    .predicted_next_hop(&self.topology, switch, key)
            }
            FarEnd::Host(host) => {
                self.shared.flows.prefetch(packet.flow);
                transport.prefetch(packet);
                self.prefetcher.arrivals[0] = first;
                self.fabric.routes.host_uplink(host)
            }
        };
        self.prefetch_port(next);
    }

    #[inline]
    fn prefetch_port(&mut self, port: Option<u32>) {
        if let Some(index) = port
            && let Some(port) = self.fabric.ports.get(index as usize)
        {
            port.prefetch();
            self.prefetcher.ports[0] = index;
        }
    }

    /// What a timer's event touches, if the timer fires then and is not postponed.
    fn prefetch_for_timer<T: Transport>(&mut self, transport: &T, timer: u32, step: u32) {
        if let Some(token) = self.timers.due(timer)
            && let Some(host) = transport.prefetch_timer(token, step)
        {
            self.prefetch_port(self.fabric.routes.host_uplink(host.0));
        }
    }

    /// The last packets of the port that a packet goes on to, and what its transport found out.
    #[inline]
    fn prefetch_last<T: Transport>(&self, transport: &T) {
        if let Some(port) = self
            .fabric
            .ports
            .get(self.prefetcher.ports[THEN - 1] as usize)
        {
            port.prefetch_neighbours(&self.shared.packets);
        }
        let arrival = self.prefetcher.arrivals[THEN - 1];
        if arrival.is_some()
            && let Some(timer) = transport.prefetch_again(&self.shared.packets[arrival])
        {
            self.timers.prefetch(timer.index());
        }
    }
}
