//! Routing: the port by which a switch forwards a packet.
//!
//! Switches choose among equal paths by the entropy that the sender put into the packet, and by
//! nothing else: a sender that draws it anew for every packet sprays. The choice is that of the
//! topology crate ([`Topology::path`]): a leaf takes the `hash %
//! n`-th of its upward links, an aggregation switch the `(hash / n) % m`-th of its own. A table by
//! (switch, rack) holds the ports of a switch's choices. While anything is down, the table is not
//! used: every choice asks the topology for the links that still lead to the destination.
//!
//! The allocator's node is attached to every switch of the highest tier. It counts as one more
//! rack with one host.

use ratewright_topology::{Direction, HostId, Link, LinkId, Node, PathChoice, SwitchId, Topology};

use crate::cache::prefetch;
use crate::net::FabricError;

/// A route by hand: packets for the hosts of a rack leave a switch by this link, whatever the
/// shortest paths are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaticRoute {
    /// Leaf of the rack that it leads to.
    pub leaf: SwitchId,
    /// First link, between two switches.
    pub link: LinkId,
}

/// The ports that lead from one switch to one rack, or to several.
#[derive(Clone, Copy, Debug, Default)]
struct NextHops {
    /// Index of the first port in [`Routes`]' list.
    first: u32,
    /// Number of ports; 0 for the rack's own leaf, whose ports are found by the host's number.
    count: u16,
    /// Divisor of the hash before the choice.
    divide: u16,
    /// Shift in place of the division, where divisor and count are powers of two: no branch is
    /// needed then, which a processor would often predict wrongly.
    shift: u16,
    /// Mask in place of the remainder; [`DIVIDES`] where they are not.
    mask: u16,
    /// All bits if the host's number is added, no bit otherwise.
    host_mask: u32,
}

/// Stands for no mask: a mask is one less than a power of two that fits 16 bits.
const DIVIDES: u16 = u16::MAX;

impl NextHops {
    fn new(first: usize, count: usize, divide: u16) -> Self {
        let several = count > 1;
        let powers = count.is_power_of_two() && divide.is_power_of_two();
        Self {
            first: first as u32,
            count: count as u16,
            divide,
            shift: divide.trailing_zeros() as u16,
            mask: match (several, powers) {
                (false, _) => 0,
                (true, false) => DIVIDES,
                (true, true) => count as u16 - 1,
            },
            host_mask: if count == 0 { u32::MAX } else { 0 },
        }
    }

    /// Returns the index of the port that a packet takes, by its hash.
    #[inline]
    fn choose(self, key: RouteKey) -> u32 {
        if self.mask == DIVIDES {
            return self.first + u32::from(key.hash / self.divide % self.count);
        }
        // A leaf towards its own rack has mask 0 and adds the host's number instead: `ports` begins
        // with the hosts' ports.
        self.first + (u32::from(key.hash >> self.shift & self.mask) | (key.dst.0 & self.host_mask))
    }
}

/// Fields of a packet that determine its route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteKey {
    pub(crate) src: HostId,
    pub(crate) dst: HostId,
    pub(crate) hash: u16,
}

/// The routing tables of all switches.
#[derive(Debug)]
pub struct Routes {
    hosts: u32,
    /// Number of racks, and one for the allocator.
    columns: usize,
    /// Number of the switch's choice, by switch and column. Two bytes each, because the table is
    /// large and every packet reads it at every switch.
    table: Vec<u16>,
    /// First of each switch's choices.
    first_choice: Vec<u32>,
    /// Distinct choices of all switches.
    choices: Vec<NextHops>,
    /// Ports towards each host, then those of the choices.
    ports: Vec<u32>,
    rack_of: Vec<u32>,
    up_port: Vec<u32>,
    /// Switch at the far end of each port, if there is one.
    far_switch: Vec<Option<u32>>,
    /// Ports of the allocator, one per switch of the highest tier.
    allocator_ports: Vec<u32>,
}

impl Routes {
    /// Builds the tables of a topology, whose links are the first ports. The allocator's ports
    /// follow: one towards each switch of `top`, each followed by the port back.
    ///
    /// # Errors
    /// If a static route leads nowhere, or packets in a circle.
    pub(crate) fn new(
        topology: &Topology,
        top: &[u32],
        by_hand: &[StaticRoute],
    ) -> Result<Self, FabricError> {
        let racks = topology.racks().len();
        let columns = racks + 1;
        let first_extra = topology.links().len() as u32;
        let mut routes = Self {
            hosts: topology.hosts().len() as u32,
            columns,
            table: Vec::with_capacity(topology.switches().len() * columns),
            first_choice: Vec::with_capacity(topology.switches().len()),
            choices: Vec::new(),
            ports: topology
                .hosts()
                .iter()
                .map(|h| topology.host_downlink(h.id).0)
                .collect(),
            rack_of: topology
                .hosts()
                .iter()
                .map(|h| h.rack.0)
                .chain([racks as u32])
                .collect(),
            up_port: topology
                .hosts()
                .iter()
                .map(|h| topology.host_uplink(h.id).0)
                .collect(),
            far_switch: topology
                .links()
                .iter()
                .map(|l| match l.to {
                    Node::Switch(s) => Some(s.0),
                    Node::Host(_) => None,
                })
                .collect(),
            allocator_ports: (0..top.len() as u32).map(|i| first_extra + 2 * i).collect(),
        };
        for switch in top {
            routes.far_switch.extend([Some(*switch), None]);
        }
        // Links between switches, by their upper end and by their lower end.
        let mut ups = vec![Vec::new(); topology.switches().len()];
        let mut downs = ups.clone();
        for link in topology.links() {
            if let (Node::Switch(from), Node::Switch(to)) = (link.from, link.to) {
                let side = if link.direction == Direction::Up {
                    &mut ups
                } else {
                    &mut downs
                };
                side[from.index()].push((to, link.id.0));
            }
        }
        for side in ups.iter_mut().chain(&mut downs) {
            side.sort_unstable();
        }
        let leaf_of: Vec<_> = topology.racks().iter().map(|r| r.leaf).collect();
        for switch in topology.switches() {
            let own = switch.id.index();
            let up_ports: Vec<u32> = ups[own].iter().map(|u| u.1).collect();
            let divide = match switch.tier {
                1 => 1,
                // The leaf used the remainder by its number of upward links; this uses the
                // quotient.
                _ => topology
                    .racks()
                    .iter()
                    .map(|r| ups[r.leaf.index()].len())
                    .max()
                    .unwrap_or(1)
                    .max(1) as u16,
            };
            routes.first_choice.push(routes.choices.len() as u32);
            for leaf in &leaf_of {
                if *leaf == switch.id {
                    routes.add(&[], 1);
                    continue;
                }
                let down = downs[own]
                    .iter()
                    .filter(|(next, _)| {
                        next == leaf || downs[next.index()].iter().any(|(n, _)| n == leaf)
                    })
                    .map(|d| d.1)
                    .collect::<Vec<_>>();
                let choice = if down.is_empty() { &up_ports } else { &down };
                routes.add(choice, divide);
            }
            match top.iter().position(|t| *t == switch.id.0) {
                // The second port of the pair leads back to the allocator.
                Some(i) => routes.add(&[first_extra + 2 * i as u32 + 1], 1),
                None => routes.add(&up_ports, divide),
            }
        }
        for route in by_hand {
            routes.set(topology, *route)?;
        }
        // Those of the shortest paths go up and then down, and in no circle.
        if !by_hand.is_empty() {
            routes.check(topology)?;
        }
        Ok(routes)
    }

    /// Puts a static route in the place of a switch's own.
    fn set(&mut self, topology: &Topology, route: StaticRoute) -> Result<(), FabricError> {
        let wrong = FabricError::StaticRoute(route);
        let racks = topology.racks();
        let rack = racks.iter().position(|rack| rack.leaf == route.leaf);
        let link = topology.links().get(route.link.index());
        let (Some(rack), Some(Link { from, to, .. })) = (rack, link) else {
            return Err(wrong);
        };
        let (Node::Switch(from), Node::Switch(_)) = (from, to) else {
            return Err(wrong);
        };
        if *from == route.leaf {
            return Err(wrong);
        }
        // A choice of its own behind all others, which the columns of its switch count from theirs.
        let own = self.first_choice[from.index()] as usize;
        let first = self.ports.len();
        self.ports.push(route.link.0);
        self.choices.push(NextHops::new(first, 1, 1));
        let column = u16::try_from(self.choices.len() - 1 - own).map_err(|_| wrong)?;
        self.table[from.index() * self.columns + rack] = column;
        Ok(())
    }

    /// Follows all packets for all racks from all switches.
    fn check(&self, topology: &Topology) -> Result<(), FabricError> {
        for (rack, leaf) in topology.racks().iter().map(|rack| rack.leaf).enumerate() {
            // Switches from which no packet comes back, from the leaf on backwards.
            let mut arrives = vec![false; topology.switches().len()];
            arrives[leaf.index()] = true;
            loop {
                let leads = |switch: &usize| {
                    let next = self.ports_of(self.next_hops(*switch as u32, rack as u32));
                    let mut far = next.iter().map(|port| self.far_switch[*port as usize]);
                    // A switch that leads nowhere drops packets, which is no circle.
                    !arrives[*switch] && far.all(|far| far.is_none_or(|far| arrives[far as usize]))
                };
                let found: Vec<usize> = (0..arrives.len()).filter(leads).collect();
                if found.is_empty() {
                    break;
                }
                found.into_iter().for_each(|switch| arrives[switch] = true);
            }
            if let Some(switch) = arrives.iter().position(|arrives| !arrives) {
                let switch = SwitchId(switch as u32);
                return Err(FabricError::RouteLoop { switch, leaf });
            }
        }
        Ok(())
    }

    /// Adds the next column of the last switch.
    fn add(&mut self, ports: &[u32], divide: u16) {
        let own = self.first_choice.last().map_or(0, |c| *c as usize);
        // Racks of one pod share their choices, so that most columns refer to the same few entries.
        let same = |c: &NextHops| c.divide == divide && self.ports_of(*c) == ports;
        let known = self.choices[own..].iter().position(same);
        let choice = known.unwrap_or_else(|| {
            let first = if ports.is_empty() {
                0
            } else {
                self.ports.len()
            };
            self.choices.push(NextHops::new(first, ports.len(), divide));
            self.ports.extend(ports);
            self.choices.len() - 1 - own
        });
        self.table.push(choice as u16);
    }

    fn ports_of(&self, choice: NextHops) -> &[u32] {
        let first = choice.first as usize;
        &self.ports[first..first + choice.count as usize]
    }

    /// Returns the choices of a switch for a rack.
    #[inline]
    fn next_hops(&self, switch: u32, rack: u32) -> NextHops {
        let column = self.table[switch as usize * self.columns + rack as usize];
        self.choices[self.first_choice[switch as usize] as usize + usize::from(column)]
    }

    /// Returns the port by which a switch forwards a packet. Inlined for packets that arrive, of
    /// which each takes this way; there are few others.
    #[inline(always)]
    pub(crate) fn next_hop(&self, topology: &Topology, switch: u32, key: RouteKey) -> Option<u32> {
        if !topology.is_whole() {
            return self.next_hop_degraded(topology, switch, key);
        }
        let next = self.next_hops(switch, self.rack_of[key.dst.index()]);
        self.ports.get(next.choose(key) as usize).copied()
    }

    /// Returns the port by which a switch will forward a packet, unless something is down; a hint
    /// for prefetching.
    #[inline]
    pub(crate) fn predicted_next_hop(
        &self,
        topology: &Topology,
        switch: u32,
        key: RouteKey,
    ) -> Option<u32> {
        if !topology.is_whole() {
            return None;
        }
        let next = self.next_hops(switch, self.rack_of[key.dst.index()]);
        self.ports.get(next.choose(key) as usize).copied()
    }

    /// Prefetches the table entry that routes a packet.
    #[inline]
    pub(crate) fn prefetch(&self, switch: u32, dst: HostId) {
        let rack = self.rack_of[dst.index()];
        let entry = switch as usize * self.columns + rack as usize;
        if let Some(entry) = self.table.get(entry) {
            prefetch::<u16, 1>(entry);
        }
    }

    /// Returns the port of a host; `None` for the allocator, which has several.
    #[inline]
    pub(crate) fn host_uplink(&self, host: u32) -> Option<u32> {
        self.up_port.get(host as usize).copied()
    }

    /// Returns the port by which a switch forwards a packet while something is down.
    #[cold]
    fn next_hop_degraded(&self, topology: &Topology, switch: u32, key: RouteKey) -> Option<u32> {
        // The topology has paths between hosts and none to the allocator.
        if key.src.0 < self.hosts && key.dst.0 < self.hosts {
            let path = topology.path(key.src, key.dst, PathChoice::Hash(key.hash.into()));
            let own = |l: &&_| {
                topology.links()[LinkId::index(**l)].from == Node::Switch(SwitchId(switch))
            };
            if let Ok(path) = path
                && let Some(link) = path.iter().find(own)
            {
                return Some(link.0);
            }
        }
        // Traffic of the allocator, and packets that were beyond the failure's fork already: any
        // port that still leads there.
        let rack = self.rack_of[key.dst.index()];
        let next = self.next_hops(switch, rack);
        if next.count == 0 {
            return self.ports.get(key.dst.index()).copied();
        }
        let usable: Vec<u32> = self.usable_ports(topology, switch, rack).collect();
        let choice = usize::from(key.hash / next.divide).checked_rem(usable.len())?;
        usable.get(choice).copied()
    }

    /// Iterates over the ports of a switch that lead to a rack over links that are up.
    fn usable_ports<'a>(
        &'a self,
        topology: &'a Topology,
        switch: u32,
        rack: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        self.ports_of(self.next_hops(switch, rack))
            .iter()
            .copied()
            .filter(move |port| self.reaches(topology, *port, rack))
    }

    /// Returns true if a port, and a path behind it, leads to a rack.
    fn reaches(&self, topology: &Topology, port: u32, rack: u32) -> bool {
        if let Some(link) = topology.links().get(port as usize)
            && !topology.is_usable(link.id)
        {
            return false;
        }
        match self.far_switch[port as usize] {
            None => true,
            Some(switch) => {
                // A link to a host is not checked here: its port drops the packet if it is down.
                let own_leaf = self.next_hops(switch, rack).count == 0;
                own_leaf || self.usable_ports(topology, switch, rack).next().is_some()
            }
        }
    }

    /// Returns the port by which a host, or the allocator, sends a packet.
    #[inline]
    pub(crate) fn first_hop(
        &self,
        topology: &Topology,
        host: HostId,
        key: RouteKey,
    ) -> Option<u32> {
        if let Some(port) = self.up_port.get(host.index()) {
            return Some(*port);
        }
        let rack = self.rack_of[key.dst.index()];
        let n = self.allocator_ports.len() as u32;
        // The allocator spreads its packets over the top switches by the hash, as a leaf does.
        if topology.is_whole() {
            return self
                .allocator_ports
                .get(u32::from(key.hash).checked_rem(n)? as usize)
                .copied();
        }
        let usable: Vec<u32> = self
            .allocator_ports
            .iter()
            .copied()
            .filter(|port| self.reaches(topology, *port, rack))
            .collect();
        usable
            .get(usize::from(key.hash).checked_rem(usable.len())?)
            .copied()
    }
}
