//! Prefetching for events that are about to happen. It has no effect but on speed.
//!
//! The memory of an event is found step by step. The event names its port or timer. The port names
//! the packets on its wire, the first packet the port that it goes on to, and that port the last
//! packets of its queue and wire. Each step reads memory that the step before it has fetched. Steps
//! are some events apart, which is the time that memory takes.

use crate::cache::prefetch;
use crate::event::Event;
use crate::net::port::FarEnd;
use crate::net::route::RouteKey;
use crate::packet::{Packet, PacketId};
use crate::run::core::Core;

/// Bytes of ports and packets from which on memory is prefetched. Fewer stay in a core's caches by
/// themselves.
const FROM_BYTES: usize = 1 << 21;

/// Events per window and port from which on whole regions are prefetched.
const PER_PORT: u64 = 4;

// Leads are measured ones: docs/notebook/2026-11-simfabric-speed.md.
/// Lead, in events, of the prefetch of a port or timer.
const FIRST: usize = 14;
/// Lead of a port's packets.
const SECOND: usize = 10;
/// Lead of the routing table's entry for the first packet.
const THIRD: usize = 8;
/// Lead of the port that the packet goes on to, or of its endpoint.
const FOURTH: usize = 6;
/// Delay, in events, from there to the prefetch of that port's last packets.
const THEN: usize = 3;

/// State of prefetching: the last findings of the fourth step, latest first, which the fifth uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetcher {
    /// True if memory is prefetched event by event.
    pub(crate) on: bool,
    /// True if memory is prefetched region by region instead.
    by_region: bool,
    /// The present region, and the number of events when its window began.
    region: usize,
    began: u64,
    ports: [u32; THEN],
}

impl Default for Prefetcher {
    fn default() -> Self {
        Self {
            on: false,
            by_region: false,
            region: 0,
            began: 0,
            ports: [u32::MAX; THEN],
        }
    }
}

impl Core {
    /// Decides whether memory is prefetched, by the size of ports and packets.
    pub(crate) fn review_prefetching(&mut self) {
        let bytes = size_of_val(&*self.fabric.ports)
            + self.shared.packets.high_water() * size_of::<Packet>();
        self.prefetcher.on = bytes >= FROM_BYTES && !self.prefetcher.by_region;
        self.scheduler.set_lookahead(self.prefetcher.on);
    }

    /// Handles the change of region. If a window has enough
    /// events to touch all of a region several times, the ports of the region after it are
    /// prefetched. Of the present region, whose ports came with the last change, the first and last
    /// packets of wires and queues are prefetched; each later packet is when the one before it is
    /// taken.
    #[inline(never)]
    pub(crate) fn on_region_change(&mut self) {
        let Some(regions) = &self.regions else { return };
        let region = self.scheduler.region() as usize;
        // Regions of a window come in ascending order, so this is the first of a new window.
        if region <= self.prefetcher.region {
            let of_window = self.events - self.prefetcher.began;
            self.prefetcher.by_region = of_window * regions.partitions() as u64
                >= PER_PORT * self.fabric.ports.len() as u64;
            // Both at once would fetch everything twice.
            self.prefetcher.on &= !self.prefetcher.by_region;
            self.scheduler.set_lookahead(self.prefetcher.on);
            self.prefetcher.began = self.events;
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

    /// Does each step for the event that is at its distance. Endpoints are those of the hosts from
    /// `first` on.
    #[inline]
    pub(crate) fn prefetch_ahead<E>(&mut self, endpoints: &[E], first: u32) {
        match self.scheduler.upcoming(FIRST) {
            Some(Event::Port(index)) => self.fabric.ports[index as usize].prefetch_wire(),
            Some(Event::Timer(index)) => self.timers.prefetch(index),
            _ => {}
        }
        if let Some(Event::Port(index)) = self.scheduler.upcoming(SECOND) {
            self.fabric.ports[index as usize].prefetch_packets(&self.shared.packets);
        }
        if let Some(Event::Port(index)) = self.scheduler.upcoming(THIRD) {
            self.prefetch_route(index);
        }
        // Before the shift: the last entry is the finding of `THEN` events ago.
        self.prefetch_last();
        self.prefetcher.ports.copy_within(0..THEN - 1, 1);
        self.prefetcher.ports[0] = u32::MAX;
        match self.scheduler.upcoming(FOURTH) {
            Some(Event::Port(index)) => self.prefetch_next_port(endpoints, first, index),
            Some(Event::Pull(host)) => {
                let place = host.wrapping_sub(first);
                endpoints.get(place as usize).map(prefetch::<E, 2>);
                self.prefetch_port(self.fabric.routes.host_uplink(host));
            }
            _ => {}
        }
    }

    /// Returns the first packet of a port's wire, and the node where it arrives.
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
    fn prefetch_next_port<E>(&mut self, endpoints: &[E], first: u32, port: u32) {
        let Some((packet, far)) = self.first_of(port) else {
            return;
        };
        let packet = &self.shared.packets[packet];
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
                let place = host.wrapping_sub(first);
                endpoints.get(place as usize).map(prefetch::<E, 2>);
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

    /// Prefetches the last packets of the port that a packet goes on to.
    #[inline]
    fn prefetch_last(&self) {
        // `u32::MAX` stands for no finding and is out of range.
        if let Some(port) = self
            .fabric
            .ports
            .get(self.prefetcher.ports[THEN - 1] as usize)
        {
            port.prefetch_neighbours(&self.shared.packets);
        }
    }
}
