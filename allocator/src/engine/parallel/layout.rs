//! Where each link of a topology lives in the engine: its LinkBlock, its table, its slot.
//!
//! A LinkBlock is a row of link tables. A table is what a rack's flows look up: up to 48 host links
//! and up to 16 fabric links (leaf to spine or aggregation). A rack with more hosts has several
//! tables, each with its own copies of the fabric links, which are summed up and handed out within the
//! LinkBlock. Links that no table has room for (core links, the 17th fabric link of a rack) have
//! tables without flows; flows over them are worked on one by one.

use ratewright_topology::{Direction, Node, PartitionError, Topology};

/// Host links of a table.
pub(super) const HOST_SLOTS: usize = 48;
/// Fabric links of a table.
pub(super) const FABRIC_SLOTS: usize = 16;
/// Slots of a table.
pub(super) const TABLE_SLOTS: usize = HOST_SLOTS + FABRIC_SLOTS;

/// What a link is to the flows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The link of a host.
    Host,
    /// A link between the rack and the fabric.
    Fabric,
    /// One that is worked on flow by flow.
    Loose,
}

/// Where a link lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its LinkBlock: first the upward ones by block, then the downward ones.
    pub(super) link_block: u32,
    /// Its slot, counted through all tables of the LinkBlock.
    pub(super) index: u32,
    /// The rack that it belongs to.
    pub(super) rack: u32,
    pub(super) role: Role,
}

impl Place {
    pub(super) fn table(&self) -> usize {
        self.index as usize / TABLE_SLOTS
    }

    pub(super) fn slot(&self) -> u8 {
        (self.index as usize % TABLE_SLOTS) as u8
    }
}

/// What a LinkBlock is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkBlockShape {
    /// Tables, those without flows included.
    pub(super) tables: usize,
    /// (copy, original) of fabric links in further tables of a rack.
    pub(super) copies: Vec<(u32, u32)>,
    /// By table: the fabric slot that stands for no link, if there is room for one.
    pub(super) empty_slot: Vec<Option<u8>>,
}

/// A topology's links, cut into blocks.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(super) blocks: u32,
    pub(super) places: Vec<Place>,
    pub(super) shapes: Vec<LinkBlockShape>,
}

impl Layout {
    /// Cuts a topology into `blocks` = 2^k blocks of whole racks.
    ///
    /// # Errors
    /// If the topology cannot be cut so.
    pub fn of(topology: &Topology, blocks: u32) -> Result<Self, PartitionError> {
        let partition = topology.partition(blocks)?;
        let mut layout = Self::empty(topology.links().len(), blocks);
        for rack in topology.racks() {
            let block = partition.block_of_rack(rack.id);
            let hosts: Vec<_> = rack.host_ids().collect();
            for (side, up) in [(0, true), (blocks, false)] {
                let link_block = block + side;
                for chunk in hosts.chunks(HOST_SLOTS) {
                    let first = layout.add_table(link_block);
                    for (slot, &host) in (0u32..).zip(chunk) {
                        let link = if up {
                            topology.host_uplink(host)
                        } else {
                            topology.host_downlink(host)
                        };
                        layout.places[link.index()] = Place {
                            link_block,
                            index: first + slot,
                            rack: rack.id.0,
                            role: Role::Host,
                        };
                    }
                }
            }
        }
        layout.place_fabric(topology);
        for (index, link) in topology.links().iter().enumerate() {
            if layout.places[index].index == u32::MAX {
                let of = partition.link_block(link.id);
                let side = if of.direction == Direction::Up {
                    0
                } else {
                    blocks
                };
                layout.place_loose(index, of.first_block + side);
            }
        }
        Ok(layout)
    }

    /// A layout of links of which nothing is known: every flow is worked on by itself.
    #[must_use]
    pub fn unknown(links: usize) -> Self {
        let mut layout = Self::empty(links, 1);
        (0..links).for_each(|link| layout.place_loose(link, 0));
        layout
    }

    /// Blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.places.len()
    }

    fn empty(links: usize, blocks: u32) -> Self {
        Self {
            blocks,
            places: vec![
                Place {
                    link_block: 0,
                    index: u32::MAX,
                    rack: u32::MAX,
                    role: Role::Loose,
                };
                links
            ],
            shapes: vec![LinkBlockShape::default(); 2 * blocks as usize],
        }
    }

    /// Appends a table; returns the index of its first slot.
    fn add_table(&mut self, link_block: u32) -> u32 {
        let shape = &mut self.shapes[link_block as usize];
        shape.tables += 1;
        shape.empty_slot.push(Some(FABRIC_SLOTS as u8 - 1));
        (shape.tables as u32 - 1) * TABLE_SLOTS as u32
    }

    /// Places the links between leaves and the tier above in the tables of their racks.
    fn place_fabric(&mut self, topology: &Topology) {
        let racks = topology.racks().len();
        // Tables and fabric links so far, by side and rack.
        let mut tables: Vec<Vec<u32>> = vec![Vec::new(); 2 * racks];
        let mut fabric = vec![0usize; 2 * racks];
        for place in self.places.iter().filter(|place| place.role == Role::Host) {
            let side = usize::from(place.link_block >= self.blocks);
            let list = &mut tables[side * racks + place.rack as usize];
            let table = place.table() as u32;
            if list.last() != Some(&table) {
                list.push(table);
            }
        }
        for (index, link) in topology.links().iter().enumerate() {
            let lower = if link.direction == Direction::Up {
                link.from
            } else {
                link.to
            };
            let Node::Switch(leaf) = lower else { continue };
            let Some(rack) = topology.switches()[leaf.index()].rack else {
                continue;
            };
            let side = usize::from(link.direction == Direction::Down);
            let of_rack = side * racks + rack.index();
            let number = fabric[of_rack];
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
            let link_block = self.places[host_link.index()].link_block;
            let slot = |table: u32| table * TABLE_SLOTS as u32 + (HOST_SLOTS + number) as u32;
            self.places[index] = Place {
                link_block,
                index: slot(first),
                rack: rack.0,
                role: Role::Fabric,
            };
            let shape = &mut self.shapes[link_block as usize];
            for &table in &tables[of_rack] {
                if table != first {
                    shape.copies.push((slot(table), slot(first)));
                }
                if number == FABRIC_SLOTS - 1 {
                    shape.empty_slot[table as usize] = None;
                }
            }
        }
    }

    /// Appends a link to the tables without flows of a LinkBlock.
    fn place_loose(&mut self, link: usize, link_block: u32) {
        let last = self.places[..link]
            .iter()
            .rev()
            .find(|p| p.role == Role::Loose && p.index != u32::MAX && p.link_block == link_block)
            .map(|place| place.index + 1)
            .filter(|index| !(*index as usize).is_multiple_of(TABLE_SLOTS));
        let index = match last {
            Some(index) => index,
            None => self.add_table(link_block),
        };
        self.places[link] = Place {
            link_block,
            index,
            rack: u32::MAX,
            role: Role::Loose,
        };
    }
}
