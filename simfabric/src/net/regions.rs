//! Regions: parts of a fabric that are small enough for a core's cache, and so far from each other
//! that each can go ahead of the others for some time.
//!
//! A packet between two regions arrives after the delay of the link between them, at the earliest.
//! All events of one region within that delay, the *lookahead*, can therefore be handled before
//! those of the next, which cannot affect them. These are the conservative windows of parallel
//! simulation (Chandy and Misra 1979; Nicol 1993), here on one core and for the sake of its cache.
//! Ports of a region are touched many times in a row and not once in a round through the whole
//! fabric.

use ratewright_topology::{Node, Topology};

use crate::net::port::{FarEnd, Port};
use crate::net::{FabricConfig, top_switches};
use crate::time::Span;

/// Number of links from which on regions take turns. The ports of fewer links and their packets fit
/// into the caches of a core anyway. It decides about speed alone.
const REGIONS_FROM_PORTS: usize = 1_600;

/// A fabric's partition.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Ports by region, including those that lead out of it and into it.
    ports: Vec<Vec<u32>>,
    of_host: Vec<u16>,
    of_switch: Vec<u16>,
    /// Least delay of a link between two regions.
    pub(crate) lookahead: Span,
}

impl Regions {
    /// Partitions a fabric into at most `most` regions beside the allocator, which is one by
    /// itself. `None` makes as many as there can be of a large fabric, and one of any other.
    /// Returns `None` for a single region, and if parts of the fabric act on each other without a
    /// packet: through links without delay.
    pub(crate) fn new(
        topology: &Topology,
        config: &FabricConfig,
        most: Option<usize>,
    ) -> Option<Self> {
        let regions = most.unwrap_or_else(|| {
            let large = topology.links().len() >= REGIONS_FROM_PORTS;
            if large { usize::MAX } else { 1 }
        });
        if regions < 2 {
            return None;
        }
        let mut pod_of_leaf = vec![None; topology.switches().len()];
        for rack in topology.racks() {
            pod_of_leaf[rack.leaf.index()] = Some(rack.pod);
        }
        // A rack's hosts and their leaf together, every other switch by itself, pod by pod.
        let key_of = |node: Node| {
            let (pod, switch) = match node {
                Node::Host(host) => {
                    let rack = &topology.racks()[topology.hosts()[host.index()].rack.index()];
                    (Some(rack.pod), rack.leaf)
                }
                Node::Switch(switch) => (topology.switches()[switch.index()].pod, switch),
            };
            // Racks have a pod also where there are none.
            (
                pod_of_leaf[switch.index()].or(pod).unwrap_or(u32::MAX),
                switch,
            )
        };
        let nodes = (topology.hosts().iter().map(|h| Node::Host(h.id)))
            .chain(topology.switches().iter().map(|s| Node::Switch(s.id)));
        let mut keys: Vec<_> = nodes.map(key_of).collect();
        keys.sort_unstable();
        keys.dedup();
        // Regions are numbered in 16 bits, and an allocator takes one number more.
        if keys.len() < 2 || keys.len() >= usize::from(u16::MAX) {
            return None;
        }
        let regions = keys.len().min(regions);
        let region_of = |node: Node| {
            let place = keys.binary_search(&key_of(node)).unwrap_or_default();
            // Neighbours go together where there are fewer regions than could be.
            (place * regions / keys.len()) as u16
        };
        let mut ports = vec![Vec::new(); regions];
        let mut delays = Vec::new();
        for link in topology.links() {
            let (from, to) = (region_of(link.from), region_of(link.to));
            ports[usize::from(to)].push(link.id.0);
            if from != to {
                ports[usize::from(from)].push(link.id.0);
                delays.push(Span::from_ns(link.delay_ns));
            }
        }
        let of_hosts = topology.hosts().iter();
        let mut of_host: Vec<u16> = of_hosts.map(|h| region_of(Node::Host(h.id))).collect();
        let of_switches = topology.switches().iter();
        let of_switch: Vec<u16> = of_switches.map(|s| region_of(Node::Switch(s.id))).collect();
        if let Some(links) = config.allocator {
            let mut own = Vec::new();
            let first = topology.links().len() as u32;
            for (port, switch) in (first..).step_by(2).zip(top_switches(topology)) {
                let both = [port, port + 1];
                own.extend(both);
                ports[usize::from(of_switch[switch as usize])].extend(both);
            }
            of_host.push(ports.len() as u16);
            ports.push(own);
            delays.push(links.delay + links.processing);
        }
        let lookahead = delays
            .into_iter()
            .min()
            .filter(|least| *least > Span::ZERO)?;
        Some(Self {
            ports,
            of_host,
            of_switch,
            lookahead,
        })
    }

    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns the region of a host.
    #[inline]
    pub(crate) fn of_host(&self, host: u32) -> u32 {
        self.of_host.get(host as usize).copied().unwrap_or(0).into()
    }

    /// Returns the ports of a region.
    #[inline]
    pub(crate) fn ports(&self, region: usize) -> &[u32] {
        self.ports.get(region).map_or(&[], Vec::as_slice)
    }

    /// Sets the regions of all ports.
    pub(crate) fn mark(&self, ports: &mut [Port]) {
        let mut regions = vec![0; ports.len()];
        // A port is listed once per region that it touches: twice if its wire crosses from one to
        // another.
        for port in self.ports.iter().flatten() {
            regions[*port as usize] += 1;
        }
        for (port, regions) in ports.iter_mut().zip(regions) {
            let region = match port.far() {
                FarEnd::Host(host) => self.of_host[host as usize],
                FarEnd::Switch(switch) => self.of_switch[switch as usize],
            };
            port.set_region(region, regions > 1);
        }
    }
}
