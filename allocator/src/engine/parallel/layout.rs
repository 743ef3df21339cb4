//! Layout: LinkBlock, table and slot of each link of a topology.
//!
//! A LinkBlock is a row of link tables. A table is what a rack's flows look up: up to 48 host links
//! and up to 16 fabric links (leaf to spine or aggregation). A rack with more hosts has several
//! tables. Each has replicas of the fabric links, which the LinkBlock sums up and keeps equal.
//!
//! Three tiers have a second level of LinkBlocks, whose tables are those of pods. The flows of all
//! racks of a pod look a pod's table up beside their rack's, and add to it. A flow reaches a core
//! through the aggregation switch of its fabric link, so the core links of a pod form a matrix. In
//! the pod's table, register `plane` lane `slot` is the `plane`-th core link of the aggregation
//! switch that every rack of the pod has at fabric slot `slot`. The LinkBlocks of the second level
//! are those of the blocks if a block is several pods, and those of the pods if a pod is several
//! blocks.
//!
//! Links beyond a table (the 17th fabric link of a rack, the fifth core link of an aggregation
//! switch) have tables without flows. Flows over them take the scalar path.

use arrayvec::ArrayVec;
use ratewright_topology::{Direction, Link, LinkId, Node, Partition, PartitionError, Topology};

use super::cell::{FlowEnd, Slots};
use super::lanes::{FABRIC_SLOTS, HOST_SLOTS, LANES, TABLE_LANES, TABLE_SLOTS};
use crate::engine::{LinkPath, MAX_PATH_LINKS};

/// Upper bound of the blocks: their 64 · 65 FlowBlocks fit 13 bits of a flow's location.
pub const MOST_BLOCKS: u32 = 64;

/// Role of a link in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A host's link.
    Host,
    /// A link between the rack and the fabric.
    Fabric,
    /// A link between a pod and the cores.
    Core,
    /// A link of the scalar path.
    Scalar,
}

/// Place of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkPlace {
    /// Slot, counted through all tables of the LinkBlock.
    pub(super) index: u32,
    /// LinkBlock: first the upward ones by block, then the downward ones, then likewise those of
    /// the second level.
    pub(super) link_block: u16,
    pub(super) role: Role,
}

impl LinkPlace {
    pub(super) fn table(&self) -> usize {
        self.index as usize / TABLE_SLOTS
    }

    pub(super) fn slot(&self) -> u8 {
        (self.index as usize % TABLE_SLOTS) as u8
    }
}

/// Places of all links in four bytes each: index, LinkBlock, role.
#[derive(Clone, Debug)]
struct LinkPlaces {
    packed: Vec<u32>,
    /// Bits of the index; the LinkBlock and two bits of the role are above them.
    index_bits: u32,
}

impl LinkPlaces {
    const NOWHERE: u32 = u32::MAX;
    const ROLES: [Role; 4] = [Role::Host, Role::Fabric, Role::Core, Role::Scalar];

    /// Makes a list of unplaced links. There are at most four LinkBlocks per block.
    fn new(links: usize, blocks: u32) -> Self {
        Self {
            packed: vec![Self::NOWHERE; links],
            // Two bits hold the four roles; LinkBlock and index share the rest.
            index_bits: u32::BITS - 2 - (4 * blocks).next_power_of_two().ilog2(),
        }
    }

    fn set(&mut self, link: usize, place: LinkPlace) {
        let above = (place.role as u32) << (u32::BITS - 2 - self.index_bits);
        let packed = (above | u32::from(place.link_block)) << self.index_bits | place.index;
        assert!(
            place.index >> self.index_bits == 0 && packed != Self::NOWHERE,
            "a LinkBlock has fewer links than four bytes can tell apart"
        );
        self.packed[link] = packed;
    }

    fn get(&self, link: usize) -> Option<LinkPlace> {
        let packed = self.packed[link];
        let role = Self::ROLES[packed as usize >> (u32::BITS - 2)];
        let block_bits = u32::BITS - 2 - self.index_bits;
        (packed != Self::NOWHERE).then_some(LinkPlace {
            index: packed & ((1 << self.index_bits) - 1),
            link_block: (packed >> self.index_bits & ((1 << block_bits) - 1)) as u16,
            role,
        })
    }

    fn iter(&self) -> impl Iterator<Item = LinkPlace> + '_ {
        (0..self.packed.len()).filter_map(|link| self.get(link))
    }
}

/// Replicas of a link, out of all (replica, original) in order of the originals.
pub(super) fn replicas_of(replicas: &[(u32, u32)], original: u32) -> impl Iterator<Item = u32> {
    let first = replicas.partition_point(|(_, of)| *of < original);
    let of_link = replicas[first..].iter();
    of_link
        .take_while(move |(_, of)| *of == original)
        .map(|(replica, _)| *replica)
}

/// Shape of a LinkBlock: its tables and their racks.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkBlockShape {
    /// Number of tables, with those without flows.
    pub(super) tables: usize,
    /// (replica, original) of fabric links in further tables of a rack, in order of the originals.
    pub(super) replicas: Vec<(u32, u32)>,
    /// The replicas in order of the replicas.
    originals: Vec<(u32, u32)>,
    /// Fabric slot that stands for no link, by table, if one is free.
    pub(super) empty_slot: Vec<Option<u8>>,
    /// Table of the rack's pod in the second level, by table, if there is one.
    pub(super) pod_tables: Vec<u32>,
    /// Rack by table, or [`NO_RACK`].
    pub(super) racks: Vec<u32>,
}

impl LinkBlockShape {
    /// Slot of the original of a link that may be a replica.
    pub(super) fn original(&self, index: usize) -> usize {
        let of_replica = |&(replica, _): &(u32, u32)| replica as usize;
        match self.originals.binary_search_by_key(&index, of_replica) {
            Ok(found) => self.originals[found].1 as usize,
            Err(_) => index,
        }
    }

    fn bytes(&self) -> usize {
        (self.replicas.capacity() + self.originals.capacity()) * size_of::<(u32, u32)>()
            + self.empty_slot.capacity() * size_of::<Option<u8>>()
            + (self.pod_tables.capacity() + self.racks.capacity()) * size_of::<u32>()
    }
}

/// Rack of a table that belongs to none.
pub(super) const NO_RACK: u32 = u32::MAX;
/// Table of a rack without one.
pub(super) const NO_TABLE: u32 = u32::MAX;
/// Core links of an aggregation switch that fit a pod's table.
pub(super) const PLANES: usize = TABLE_LANES;

/// A topology's links, cut into blocks.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(super) blocks: u32,
    places: LinkPlaces,
    pub(super) shapes: Vec<LinkBlockShape>,
    /// LinkBlock of the second level on either side, by block. Empty in two tiers.
    second: Vec<u32>,
}

/// LinkBlocks that all flows of a FlowBlock share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowBlockShape {
    /// Upward and downward LinkBlock.
    pub(super) links: [usize; 2],
    /// LinkBlocks of the second level, if the flows cross the cores.
    pub(super) core_links: Option<[usize; 2]>,
}

impl Layout {
    /// Cuts a topology into `blocks` = 2^k blocks of whole racks.
    ///
    /// # Errors
    /// The topology cannot be cut into this number of blocks.
    pub fn of(topology: &Topology, blocks: u32) -> Result<Self, PartitionError> {
        let partition = topology.partition(blocks)?;
        let mut layout = Self::empty(topology.links().len(), blocks);
        for rack in topology.racks() {
            let block = partition.block_of_rack(rack.id);
            let hosts: Vec<_> = rack.host_ids().collect();
            for (side, up) in [(0, true), (blocks, false)] {
                let link_block = block + side;
                for chunk in hosts.chunks(HOST_SLOTS) {
                    let first = layout.add_table(link_block, rack.id.0);
                    for (slot, &host) in (0u32..).zip(chunk) {
                        let link = if up {
                            topology.host_uplink(host)
                        } else {
                            topology.host_downlink(host)
                        };
                        layout.places.set(
                            link.index(),
                            LinkPlace {
                                link_block: link_block as u16,
                                index: first + slot,
                                role: Role::Host,
                            },
                        );
                    }
                }
            }
        }
        // Host links first: fabric links go into the tables that these make.
        let fabric = layout.place_fabric(topology);
        layout.place_cores(topology, &partition, &fabric);
        // Whatever found no slot above is left for the scalar path.
        for (index, link) in topology.links().iter().enumerate() {
            if layout.places.get(index).is_none() {
                let of = partition.link_block(link.id);
                let side = if of.direction == Direction::Up {
                    0
                } else {
                    blocks
                };
                layout.place_scalar(index, of.first_block + side);
            }
        }
        Ok(layout)
    }

    /// Makes a layout of links without a known topology: every flow takes the scalar path.
    #[must_use]
    pub fn unknown(links: usize) -> Self {
        let mut layout = Self::empty(links, 1);
        (0..links).for_each(|link| layout.place_scalar(link, 0));
        layout
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.places.packed.len()
    }

    /// Rack of a host's link or a fabric link.
    pub(super) fn rack_of(&self, place: &LinkPlace) -> u32 {
        self.shapes[usize::from(place.link_block)].racks[place.table()]
    }

    /// Place of a link.
    pub(super) fn place(&self, link: u32) -> LinkPlace {
        let place = self.places.get(link as usize);
        place.expect("every link of a layout has a place")
    }

    /// Places of all links, in order of the links.
    pub(super) fn places(&self) -> impl Iterator<Item = LinkPlace> + '_ {
        (0..self.links() as u32).map(|link| self.place(link))
    }

    /// Bytes of places and shapes.
    pub(super) fn bytes(&self) -> usize {
        let shapes = self.shapes.iter().map(LinkBlockShape::bytes);
        self.places.packed.capacity() * size_of::<u32>() + shapes.sum::<usize>()
    }

    fn empty(links: usize, blocks: u32) -> Self {
        Self {
            blocks,
            places: LinkPlaces::new(links, blocks),
            shapes: vec![LinkBlockShape::default(); 2 * blocks as usize],
            second: Vec::new(),
        }
    }

    /// Number of FlowBlocks: from each block to each block and, in three tiers, one more per block
    /// for flows to another pod of the block. Either all flows of a FlowBlock cross the cores, or
    /// none does.
    pub(super) fn flow_blocks(&self) -> usize {
        self.blocks as usize * self.flow_blocks_from()
    }

    fn flow_blocks_from(&self) -> usize {
        self.blocks as usize + usize::from(!self.second.is_empty())
    }

    /// FlowBlock of the flows from one block to another.
    pub(super) fn flow_block(&self, from: u32, to: u32, over_cores: bool) -> Option<usize> {
        let first = from as usize * self.flow_blocks_from();
        let within = self.second.get(from as usize) == self.second.get(to as usize);
        match (over_cores, within) {
            (false, true) | (true, false) => Some(first + to as usize),
            (true, true) if from == to && !self.second.is_empty() => {
                Some(first + self.blocks as usize)
            }
            _ => None,
        }
    }

    /// LinkBlocks of a FlowBlock's flows.
    pub(super) fn flow_block_shape(&self, index: usize) -> FlowBlockShape {
        let blocks = self.blocks as usize;
        let (from, to) = (
            index / self.flow_blocks_from(),
            index % self.flow_blocks_from(),
        );
        // The last FlowBlock of a block is that between its own pods.
        let (to, own) = if to == blocks {
            (from, true)
        } else {
            (to, false)
        };
        let sides = (self.shapes.len() - 2 * blocks) / 2;
        let core_links = match (self.second.get(from), self.second.get(to)) {
            (Some(&up), Some(&down)) if own || up != down => {
                let first = 2 * blocks;
                Some([first + up as usize, first + sides + down as usize])
            }
            _ => None,
        };
        FlowBlockShape {
            links: [from, blocks + to],
            core_links,
        }
    }

    /// Appends a table; returns the index of its first slot.
    fn add_table(&mut self, link_block: u32, rack: u32) -> u32 {
        let shape = &mut self.shapes[link_block as usize];
        shape.tables += 1;
        shape.empty_slot.push(Some(FABRIC_SLOTS as u8 - 1));
        shape.pod_tables.push(NO_TABLE);
        shape.racks.push(rack);
        (shape.tables as u32 - 1) * TABLE_SLOTS as u32
    }

    /// Places the links between leaves and the tier above in the tables of their racks.
    fn place_fabric(&mut self, topology: &Topology) -> Fabric {
        let racks = topology.racks().len();
        // Tables, and fabric links so far, by side and rack.
        let mut tables: Vec<Vec<u32>> = vec![Vec::new(); 2 * racks];
        let mut fabric = vec![0usize; 2 * racks];
        let mut slots = vec![SwitchSlot::Unknown; 2 * topology.switches().len()];
        for place in self.places.iter().filter(|place| place.role == Role::Host) {
            let side = usize::from(u32::from(place.link_block) >= self.blocks);
            let rack = self.rack_of(&place) as usize;
            let list = &mut tables[side * racks + rack];
            let table = place.table() as u32;
            // The racks' tables stand in the order of their hosts, so a table repeats only in a
            // row.
            if list.last() != Some(&table) {
                list.push(table);
            }
        }
        for (index, link) in topology.links().iter().enumerate() {
            let (Node::Switch(leaf), Node::Switch(above)) = lower_and_upper(link) else {
                continue;
            };
            let Some(rack) = topology.switches()[leaf.index()].rack else {
                continue;
            };
            let side = usize::from(link.direction == Direction::Down);
            let of_rack = side * racks + rack.index();
            // The slot of a link is its number among the rack's fabric links, in both directions
            // alike.
            let number = fabric[of_rack];
            slots[2 * above.index() + side].meet(number);
            let Some(&first) = tables[of_rack].first().filter(|_| number < FABRIC_SLOTS) else {
                continue;
            };
            fabric[of_rack] += 1;
            let host = topology.racks()[rack.index()].host_ids().next();
            let Some(host) = host else { continue };
            let host_link = if side == 0 {
                topology.host_uplink(host)
            } else {
                topology.host_downlink(host)
            };
            let link_block = self.place(host_link.0).link_block;
            let slot = |table: u32| table * TABLE_SLOTS as u32 + (HOST_SLOTS + number) as u32;
            self.places.set(
                index,
                LinkPlace {
                    link_block,
                    index: slot(first),
                    role: Role::Fabric,
                },
            );
            let shape = &mut self.shapes[link_block as usize];
            for &table in &tables[of_rack] {
                // A table of further hosts of the rack has a replica in the same slot.
                if table != first {
                    shape.replicas.push((slot(table), slot(first)));
                }
                if number == FABRIC_SLOTS - 1 {
                    shape.empty_slot[table as usize] = None;
                }
            }
        }
        for shape in &mut self.shapes {
            let by_original = |&(replica, original): &(u32, u32)| (original, replica);
            shape.replicas.sort_unstable_by_key(by_original);
            shape.originals.clone_from(&shape.replicas);
            shape.originals.sort_unstable();
        }
        Fabric { tables, slots }
    }

    /// Places the links between aggregation switches and cores in the tables of their pods.
    fn place_cores(&mut self, topology: &Topology, partition: &Partition, fabric: &Fabric) {
        let is_core = |link: &Link| match lower_and_upper(link) {
            (Node::Switch(lower), Node::Switch(_)) => {
                topology.switches()[lower.index()].rack.is_none()
            }
            _ => false,
        };
        let cores: Vec<&Link> = topology.links().iter().filter(|l| is_core(l)).collect();
        if cores.is_empty() {
            return;
        }
        let second_of = |link: LinkId| {
            let of = partition.link_block(link);
            (of.first_block / of.blocks, of.blocks)
        };
        let blocks_per_pod = second_of(cores[0].id).1;
        self.second = (0..self.blocks).map(|b| b / blocks_per_pod).collect();
        let sides = self.blocks / blocks_per_pod;
        let first = self.shapes.len();
        self.shapes
            .resize_with(first + 2 * sides as usize, LinkBlockShape::default);
        let racks = topology.racks();
        let pods = racks.iter().map(|rack| rack.pod + 1).max().unwrap_or(0) as usize;
        let mut pod_tables = vec![NO_TABLE; 2 * pods];
        let mut planes = vec![0usize; fabric.slots.len()];
        for link in cores {
            let (Node::Switch(switch), _) = lower_and_upper(link) else {
                continue;
            };
            let side = usize::from(link.direction == Direction::Down);
            let of_switch = 2 * switch.index() + side;
            let plane = planes[of_switch];
            planes[of_switch] += 1;
            let pod = topology.switches()[switch.index()].pod;
            // The aggregation switch stands at one slot for all racks of its pod, or rows cannot
            // address its core links.
            let (SwitchSlot::Same(slot), Some(pod)) = (fabric.slots[of_switch], pod) else {
                continue;
            };
            if slot >= FABRIC_SLOTS || plane >= PLANES {
                continue;
            }
            let link_block = first as u32 + side as u32 * sides + second_of(link.id).0;
            let table = &mut pod_tables[2 * pod as usize + side];
            // A pod's table has no hosts: all its slots are planes, so none is left to stand for no
            // link.
            if *table == NO_TABLE {
                *table = self.add_table(link_block, NO_RACK) / TABLE_SLOTS as u32;
                self.shapes[link_block as usize].empty_slot[*table as usize] = None;
            }
            self.places.set(
                link.id.index(),
                LinkPlace {
                    link_block: link_block as u16,
                    index: *table * TABLE_SLOTS as u32 + (plane * LANES + slot) as u32,
                    role: Role::Core,
                },
            );
        }
        for side in 0..2 {
            for rack in racks {
                let link_block = side * self.blocks + partition.block_of_rack(rack.id);
                let shape = &mut self.shapes[link_block as usize];
                for &table in &fabric.tables[side as usize * racks.len() + rack.id.index()] {
                    shape.pod_tables[table as usize] =
                        pod_tables[2 * rack.pod as usize + side as usize];
                }
            }
        }
    }

    /// Appends a link to the LinkBlock's tables without flows.
    fn place_scalar(&mut self, link: usize, link_block: u32) {
        let last = (0..link)
            .rev()
            .filter_map(|earlier| self.places.get(earlier))
            .find(|p| p.role == Role::Scalar && u32::from(p.link_block) == link_block)
            .map(|place| place.index + 1)
            .filter(|index| !(*index as usize).is_multiple_of(TABLE_SLOTS));
        let index = match last {
            Some(index) => index,
            None => {
                let index = self.add_table(link_block, NO_RACK);
                let shape = &mut self.shapes[link_block as usize];
                shape.empty_slot[shape.tables - 1] = None;
                index
            }
        };
        self.places.set(
            link,
            LinkPlace {
                link_block: link_block as u16,
                index,
                role: Role::Scalar,
            },
        );
    }
}

/// Result of placing the fabric links.
struct Fabric {
    /// Tables by side and rack.
    tables: Vec<Vec<u32>>,
    /// Fabric slot by switch and side.
    slots: Vec<SwitchSlot>,
}

/// Fabric slot at which racks have a switch of the tier above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwitchSlot {
    Unknown,
    /// All racks so far have it at this slot.
    Same(usize),
    Different,
}

impl SwitchSlot {
    fn meet(&mut self, slot: usize) {
        *self = match *self {
            Self::Unknown => Self::Same(slot),
            Self::Same(known) if known == slot => Self::Same(slot),
            _ => Self::Different,
        };
    }
}

fn lower_and_upper(link: &Link) -> (Node, Node) {
    if link.direction == Direction::Up {
        (link.from, link.to)
    } else {
        (link.to, link.from)
    }
}

/// Index of a flow's core link in its pod's LinkBlock, if the flow crosses the cores.
pub(super) fn pod_index(shape: &LinkBlockShape, table: usize, slots: Slots) -> Option<usize> {
    let slot = usize::from(slots.plane?) * LANES + usize::from(slots.fabric);
    Some(shape.pod_tables[table] as usize * TABLE_SLOTS + slot)
}

/// FlowBlock and ends of a path that rows can hold: up its host's link, at most one fabric link
/// and one core link on either side, down its host's link.
pub(super) fn row_ends(layout: &Layout, links: &LinkPath) -> Option<(usize, [FlowEnd; 2])> {
    let blocks = layout.blocks;
    let place = |i: usize| layout.place(links[i]);
    let (source, destination) = (place(0), place(links.len() - 1));
    let hosts = source.role == Role::Host && destination.role == Role::Host;
    let [from, to] = [source, destination].map(|place| u32::from(place.link_block));
    // The layout numbers upward LinkBlocks below `blocks` and downward ones above.
    if !hosts || from >= blocks || to < blocks {
        return None;
    }
    let to = to - blocks;
    let over_cores = links.len() == 6;
    let index = layout.flow_block(from, to, over_cores)?;
    let shape = layout.flow_block_shape(index);
    let (fabric, cores) = match links.len() {
        2 => ([None; 2], [None; 2]),
        4 => ([Some(place(1)), Some(place(2))], [None; 2]),
        6 => (
            [Some(place(1)), Some(place(4))],
            [Some(place(2)), Some(place(3))],
        ),
        _ => return None,
    };
    let end = |side: usize, host: LinkPlace| {
        let table = host.table();
        let of_block = &layout.shapes[host.link_block as usize];
        let slot = match fabric[side] {
            Some(place) => {
                // The fabric link has to be of this rack: a row's flows share one table.
                let of_rack = place.link_block == host.link_block
                    && layout.rack_of(&place) == layout.rack_of(&host);
                if place.role != Role::Fabric || !of_rack {
                    return None;
                }
                place.slot() - HOST_SLOTS as u8
            }
            None => of_block.empty_slot[table]?,
        };
        debug_assert!(usize::from(slot) < FABRIC_SLOTS);
        let plane = match (cores[side], shape.core_links) {
            (Some(place), Some(core_links)) => {
                // In a pod's table the lane is the fabric slot, so the core link has to be of
                // the switch that the fabric link leads to.
                let of_pod = place.link_block as usize == core_links[side]
                    && place.table() == of_block.pod_tables[table] as usize;
                let of_switch = place.slot() % LANES as u8 == slot;
                if place.role != Role::Core || !of_pod || !of_switch {
                    return None;
                }
                Some(place.slot() / LANES as u8)
            }
            _ => None,
        };
        Some(FlowEnd {
            table: table as u16,
            slots: Slots {
                host: host.slot(),
                fabric: slot,
                no_fabric: fabric[side].is_none(),
                plane,
            },
        })
    };
    Some((index, [end(0, source)?, end(1, destination)?]))
}

/// LinkBlocks and slots of a path's links, in the order in which the flow crosses them.
pub(super) fn slots_of(
    layout: &Layout,
    shape: &FlowBlockShape,
    ends: &[FlowEnd; 2],
) -> ArrayVec<(usize, usize), MAX_PATH_LINKS> {
    let mut path = ArrayVec::new();
    let link_blocks = shape.links;
    for (side, end) in ends.iter().enumerate() {
        let link_block = link_blocks[side];
        let (table, slots) = (usize::from(end.table), end.slots);
        let base = table * TABLE_SLOTS;
        let host = (link_block, base + usize::from(slots.host));
        let of_fabric = base + HOST_SLOTS + usize::from(slots.fabric);
        let fabric = (!end.slots.no_fabric).then_some((link_block, of_fabric));
        let core = shape.core_links.and_then(|cores| {
            let index = pod_index(&layout.shapes[link_block], table, slots)?;
            Some((cores[side], index))
        });
        if side == 0 {
            path.push(host);
            path.extend(fabric);
            path.extend(core);
        } else {
            // Downward, a flow meets its core link first and its host's last.
            path.extend(core);
            path.extend(fabric);
            path.push(host);
        }
    }
    path
}

/// Link numbers by LinkBlock and slot, replicas included.
pub(super) fn links_by_slot(layout: &Layout) -> Vec<Vec<u32>> {
    let mut links: Vec<Vec<u32>> = layout
        .shapes
        .iter()
        .map(|shape| vec![u32::MAX; shape.tables * TABLE_SLOTS])
        .collect();
    for (link, place) in (0u32..).zip(layout.places()) {
        links[place.link_block as usize][place.index as usize] = link;
    }
    for (links, shape) in links.iter_mut().zip(&layout.shapes) {
        for &(replica, original) in &shape.replicas {
            links[replica as usize] = links[original as usize];
        }
    }
    links
}
