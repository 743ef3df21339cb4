//! Regions: parts of a fabric that are small enough for a core's cache, and so far from each other
//! that each can go ahead of the others for some time.
//!
//! A packet between two regions arrives after the delay of the link between them, at the earliest.
//! All events of one region within that delay, the *lookahead*, can therefore be handled before
//! those of the next, which cannot affect them. These are the conservative windows of parallel
//! simulation (Chandy and Misra 1979; Nicol 1993), here on one core and for the sake of its cache.
//! Ports of a region are touched many times in a row and not once in a round through the whole
//! fabric.
//!
//! Several threads take a *partition* each: regions that follow one another, with as many ports in
//! all as those of any other. Cores and pods of a data center are alike, so that a fixed share of
//! them is a fair share of the work.

use ratewright_topology::{Node, Topology};

use crate::net::port::{Port, WireSpan};
use crate::net::{FabricConfig, top_switches};
use crate::time::Span;

/// Number of links from which on regions take turns. The ports of fewer links and their packets fit
/// into the caches of a core anyway. It decides about speed alone.
const REGIONS_FROM_PORTS: usize = 1_600;

/// A fabric's partition.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    /// Ports by region, including those that lead out of it and into it.
    ports: Vec<Vec<u32>>,
    of_host: Vec<u16>,
    of_switch: Vec<u16>,
    /// Regions where each port's wire begins and ends.
    of_port: Vec<[u16; 2]>,
    /// Partition of each region.
    partitions: Vec<u16>,
    /// Least delay of a link between two regions.
    pub(crate) lookahead: Span,
}

impl Regions {
    /// Divides a fabric into at most `most` regions beside the allocator, which is one by itself,
    /// and these into at most `threads` partitions. `None` makes as many regions as there can be of
    /// a large fabric and for several threads, and one otherwise. Returns `None` for a single
    /// region, and if parts of the fabric act on each other without a packet: through links without
    /// delay.
    pub(crate) fn new(
        topology: &Topology,
        config: &FabricConfig,
        most: Option<usize>,
        threads: usize,
    ) -> Option<Self> {
        let regions = most.unwrap_or_else(|| {
            let large = topology.links().len() >= REGIONS_FROM_PORTS;
            if large || threads > 1 { usize::MAX } else { 1 }
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
        let mut of_port = Vec::with_capacity(topology.links().len());
        let mut delays = Vec::new();
        for link in topology.links() {
            let (from, to) = (region_of(link.from), region_of(link.to));
            of_port.push([from, to]);
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
                let (node, switch) = (ports.len() as u16, of_switch[switch as usize]);
                of_port.extend([[node, switch], [switch, node]]);
                ports[usize::from(switch)].extend(both);
            }
            of_host.push(ports.len() as u16);
            ports.push(own);
            delays.push(links.delay + links.processing);
        }
        let lookahead = delays
            .into_iter()
            .min()
            .filter(|least| *least > Span::ZERO)?;
        let mut regions = Self {
            ports,
            of_host,
            of_switch,
            of_port,
            partitions: Vec::new(),
            lookahead,
        };
        regions.partitions = partitions(topology, &regions, threads);
        Some(regions)
    }

    /// Returns the number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.partitions
            .last()
            .map_or(1, |last| usize::from(*last) + 1)
    }

    /// Returns the partition that a region belongs to.
    fn partition_of(&self, region: u16) -> usize {
        self.partitions[usize::from(region)].into()
    }

    /// Returns the partitions where a port's wire begins and ends.
    pub(crate) fn partitions_of_port(&self, port: usize) -> [usize; 2] {
        self.of_port[port].map(|region| self.partition_of(region))
    }

    /// Returns the partition of a switch.
    pub(crate) fn partition_of_switch(&self, switch: usize) -> usize {
        self.partition_of(self.of_switch[switch])
    }

    /// Returns the first host of each partition, or the allocator's node.
    pub(crate) fn first_hosts(&self) -> Vec<u32> {
        let of_host = |region: &u16| self.partition_of(*region);
        let first = |number| self.of_host.partition_point(|of| of_host(of) < number) as u32;
        (0..self.partitions()).map(first).collect()
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

    /// Sets the regions of all ports, as one partition sees them.
    pub(crate) fn mark(&self, ports: &mut [Port], partition: usize) {
        for (index, port) in ports.iter_mut().enumerate() {
            let [from, to] = self.of_port[index];
            let [begins, ends] = [from, to].map(|region| self.partition_of(region));
            let span = if begins != ends && begins == partition {
                WireSpan::Leaves
            } else if begins != ends && ends == partition {
                WireSpan::Enters
            } else if from != to {
                WireSpan::Regions
            } else {
                WireSpan::Within
            };
            port.set_region(to, span);
            if begins != partition {
                port.disable_clock();
            }
        }
    }
}

/// Returns the partition of each region, for at most so many partitions.
fn partitions(topology: &Topology, regions: &Regions, threads: usize) -> Vec<u16> {
    let mut weights = vec![0; regions.ports.len()];
    for (port, [_, to]) in regions.of_port.iter().enumerate() {
        // A packet that reaches a host costs about as much again as at a switch.
        let to_host = topology
            .links()
            .get(port)
            .is_some_and(|l| matches!(l.to, Node::Host(_)));
        weights[usize::from(*to)] += 1 + usize::from(to_host);
    }
    // A partition's hosts follow one another, as they do in all fabrics that are numbered rack by
    // rack.
    let threads = if regions.of_host.is_sorted() {
        threads.max(1)
    } else {
        1
    };
    let all: usize = weights.iter().sum();
    let mut before = 0;
    let mut of_region: Vec<u16> = Vec::with_capacity(weights.len());
    for weight in weights {
        // By the middle of the region on the way through all of them; no number is left out.
        let share = (before + weight / 2) * threads / all.max(1);
        let last = of_region.last().map_or(0, |last| last + 1);
        of_region.push((share as u16).min(last));
        before += weight;
    }
    of_region
}
