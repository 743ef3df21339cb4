//! Starts, ends, reroutes and capacities: where a flow goes, and what it takes to move it.

use std::sync::atomic::Ordering;

use super::directory::{Home, MAX_LOOSE_PER_WORKER};
use super::flow_block::{CellState, End, UNTOLD};
use super::layout::{FABRIC_SLOTS, HOST_SLOTS, Place, Role};
use super::loose::LooseFlow;
use super::rows::{Slots, split};
use super::worker::{lock, write};
use super::{ParallelEngine, derated, derating};
use crate::engine::{EngineError, FlowKey, FlowSpec, LinkPath, MAX_PATH_LINKS};
use crate::num::utility::UtilityKind;
use crate::num::{Limit, RATE_UNIT_BPS, path_capacity};

/// A knee beyond which a rate is nothing: of a flow whose path has no capacity.
const CUT_KNEE: f32 = 1e30;

/// What is kept of a flow wherever it lives.
pub(super) struct Terms {
    pub(super) class: u8,
    pub(super) weight: f64,
    pub(super) demand: f64,
    rate: f64,
    told: f64,
}

impl ParallelEngine {
    pub(super) fn start(&mut self, spec: &FlowSpec) -> Result<(), EngineError> {
        self.check_path(spec.key, &spec.links)?;
        let Some(class) = self.config.classes.get(spec.class) else {
            return Err(EngineError::UnknownClass { class: spec.class });
        };
        let weight = class.weight * spec.weight;
        if !(spec.weight > 0.0 && weight.is_finite() && weight > 0.0) {
            return Err(EngineError::BadWeight(spec.weight));
        }
        if spec.demand_bps.is_nan() || spec.demand_bps < 0.0 {
            return Err(EngineError::BadDemand(spec.demand_bps));
        }
        let demand = spec.demand_bps.min(class.max_rate_bps) / RATE_UNIT_BPS;
        let max_flows = self.config.max_flows;
        let known = self.directory.find(spec.key);
        if self.directory.len() >= max_flows && known.is_none() {
            return Err(EngineError::Full { max_flows });
        }
        let flow = match known {
            Some(flow) => {
                self.answer_end(flow);
                self.take_out(flow);
                flow
            }
            None => self.directory.insert(spec.key),
        };
        let terms = Terms {
            class: spec.class,
            weight,
            demand,
            rate: 0.0,
            told: f64::from(UNTOLD),
        };
        self.answer_start(&spec.links, &terms);
        self.put_in(flow, &spec.links, &terms)
    }

    pub(super) fn end(&mut self, key: FlowKey) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(key)
            .ok_or(EngineError::UnknownFlow(key))?;
        self.answer_end(flow);
        self.take_out(flow);
        self.directory.remove(flow);
        Ok(())
    }

    pub(super) fn drop_session(&mut self, session: u32) {
        let of_session = |&flow: &u32| self.directory.key(flow).session() == session;
        let flows: Vec<u32> = self.directory.flows().filter(of_session).collect();
        for flow in flows {
            self.answer_end(flow);
            self.take_out(flow);
            self.directory.remove(flow);
        }
    }

    pub(super) fn reroute(&mut self, key: FlowKey, links: &LinkPath) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(key)
            .ok_or(EngineError::UnknownFlow(key))?;
        self.check_path(key, links)?;
        self.answer_end(flow);
        let terms = self.take_out(flow);
        self.answer_start(links, &terms);
        self.put_in(flow, links, &terms)
    }

    pub(super) fn set_capacity(&mut self, link: u32, capacity_bps: f64) -> Result<(), EngineError> {
        let capacity = derated(capacity_bps, derating(&self.config))?;
        let links = self.capacities.len();
        let Some(known) = self.capacities.get_mut(link as usize) else {
            return Err(EngineError::UnknownLink { link, links });
        };
        *known = capacity;
        let place = self.shared.layout.places[link as usize];
        write(&self.shared.link_blocks[place.link_block as usize])
            .set_capacity(place.index as usize, capacity as f32);
        self.renew_knees(link, place);
        self.answer_capacity(link);
        for loose in &self.shared.loose {
            for flow in &mut lock(loose).flows {
                if flow.path().contains(&link) {
                    let capacity = path_capacity(&flow.links, &self.capacities);
                    flow.set_limit(&self.config.classes, capacity);
                }
            }
        }
        Ok(())
    }

    fn check_path(&self, key: FlowKey, links: &LinkPath) -> Result<(), EngineError> {
        if links.is_empty() || links.len() > MAX_PATH_LINKS {
            return Err(EngineError::BadPath(key));
        }
        for (i, &link) in links.iter().enumerate() {
            if link as usize >= self.capacities.len() {
                return Err(EngineError::UnknownLink {
                    link,
                    links: self.capacities.len(),
                });
            }
            if links[..i].contains(&link) {
                return Err(EngineError::BadPath(key));
            }
        }
        Ok(())
    }

    /// The two ends of a path that rows can hold: up its host's link, at most one fabric link on
    /// either side, down its host's link.
    fn ends(&self, links: &LinkPath) -> Option<(usize, [End; 2])> {
        let layout = &self.shared.layout;
        let blocks = layout.blocks;
        let place = |i: usize| layout.places[links[i] as usize];
        let is_up = |place: &Place| place.link_block < blocks;
        let (source, destination) = (place(0), place(links.len() - 1));
        let hosts = source.role == Role::Host && destination.role == Role::Host;
        if !hosts || !is_up(&source) || is_up(&destination) {
            return None;
        }
        let fabric = match links.len() {
            2 => [None, None],
            4 => {
                let (up, down) = (place(1), place(2));
                let fabric = up.role == Role::Fabric && down.role == Role::Fabric;
                let of_racks = up.rack == source.rack && down.rack == destination.rack;
                if !fabric || !of_racks || !is_up(&up) || is_up(&down) {
                    return None;
                }
                [Some(up), Some(down)]
            }
            _ => return None,
        };
        let end = |host: Place, fabric: Option<Place>| {
            let table = host.table();
            let slot = match fabric {
                Some(place) => place.slot() - HOST_SLOTS as u8,
                None => layout.shapes[host.link_block as usize].empty_slot[table]?,
            };
            debug_assert!(usize::from(slot) < FABRIC_SLOTS);
            Some(End {
                table: table as u16,
                slots: Slots {
                    host: host.slot(),
                    fabric: slot,
                    no_fabric: fabric.is_none(),
                },
            })
        };
        let ends = [end(source, fabric[0])?, end(destination, fabric[1])?];
        let block = source.link_block * blocks + (destination.link_block - blocks);
        Some((block as usize, ends))
    }

    fn put_in(&mut self, flow: u32, links: &LinkPath, terms: &Terms) -> Result<(), EngineError> {
        let capacity = path_capacity(links, &self.capacities);
        let is_log = matches!(self.config.classes.utility(terms.class), UtilityKind::Log);
        if is_log
            && terms.class == 0
            && terms.demand == f64::INFINITY
            && let Some((block, ends)) = self.ends(links)
        {
            let state = CellState {
                flow,
                weight: terms.weight as f32,
                knee: knee(terms.weight, capacity),
                rate: terms.rate as f32,
                told: terms.told as f32,
            };
            if let Some(cell) = lock(&self.shared.flow_blocks[block]).insert(ends, state) {
                let block = block as u16;
                self.directory.set_home(flow, Home::Cell { block, cell });
                return Ok(());
            }
        }
        let utility = self.config.classes.utility(terms.class);
        let loose = LooseFlow {
            flow,
            class: terms.class,
            links: links.clone(),
            weight: terms.weight,
            demand: terms.demand,
            limit: Limit::new(utility, terms.weight, terms.demand, capacity),
            rate: terms.rate,
            told: terms.told,
        };
        let worker = flow as usize % self.shared.workers;
        let mut list = lock(&self.shared.loose[worker]);
        if list.flows.len() >= MAX_LOOSE_PER_WORKER {
            drop(list);
            self.directory.remove(flow);
            return Err(EngineError::Full {
                max_flows: MAX_LOOSE_PER_WORKER,
            });
        }
        let home = Home::Loose {
            worker: worker as u16,
            index: list.flows.len() as u32,
        };
        list.flows.push(loose);
        self.directory.set_home(flow, home);
        self.shared.loose_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a flow out of where it lives; its number stays.
    fn take_out(&mut self, flow: u32) -> Terms {
        match self.directory.home(flow) {
            Home::Cell { block, cell } => {
                let mut cells = lock(&self.shared.flow_blocks[usize::from(block)]);
                let state = cells.state(cell);
                cells.remove(cell);
                Terms {
                    class: 0,
                    weight: f64::from(state.weight),
                    demand: f64::INFINITY,
                    rate: f64::from(state.rate),
                    told: f64::from(state.told),
                }
            }
            Home::Loose { worker, index } => {
                let mut list = lock(&self.shared.loose[usize::from(worker)]);
                let old = list.flows.swap_remove(index as usize);
                if let Some(moved) = list.flows.get(index as usize) {
                    self.directory
                        .set_home(moved.flow, Home::Loose { worker, index });
                }
                self.shared.loose_count.fetch_sub(1, Ordering::Relaxed);
                Terms {
                    class: old.class,
                    weight: old.weight,
                    demand: old.demand,
                    rate: old.rate,
                    told: old.told,
                }
            }
        }
    }

    /// Computes the knees of the flows over a link anew: of those that share its table, if it has any.
    fn renew_knees(&self, link: u32, place: Place) {
        let layout = &self.shared.layout;
        if place.role == Role::Loose {
            return;
        }
        let blocks = layout.blocks as usize;
        let up = (place.link_block as usize) < blocks;
        let slot = place.slot();
        let capacity_of = |link_block: usize, table: usize, slots: Slots| {
            let links = super::worker::read(&self.shared.link_blocks[link_block]);
            let no_link = layout.shapes[link_block].empty_slot[table];
            let base = table * super::layout::TABLE_SLOTS;
            let host = links.capacity(base + usize::from(slots.host));
            if no_link == Some(slots.fabric) {
                return host;
            }
            host.min(links.capacity(base + HOST_SLOTS + usize::from(slots.fabric)))
        };
        let _ = link;
        let tables: Vec<usize> = std::iter::once(place.table())
            .chain(self.copies_of(place))
            .collect();
        let list: Vec<usize> = (0..blocks)
            .map(|other| {
                let own = place.link_block as usize % blocks;
                if up {
                    own * blocks + other
                } else {
                    other * blocks + own
                }
            })
            .collect();
        for index in list {
            let mut block = lock(&self.shared.flow_blocks[index]);
            for &table in &tables {
                let side = if up { &block.up } else { &block.down };
                let mut cells = Vec::new();
                for &row in &side.rows[table] {
                    for lane in 0..16 {
                        let cell = row * 16 + lane;
                        let slots = side.slots(cell);
                        let over = if usize::from(slot) < HOST_SLOTS {
                            slots.host == slot
                        } else {
                            usize::from(slots.fabric) == usize::from(slot) - HOST_SLOTS
                        };
                        if side.used[usize::from(row)] >> lane & 1 == 1 && over {
                            cells.push(cell);
                        }
                    }
                }
                for cell in cells {
                    let (row, lane) = split(cell);
                    let (up_cell, down_cell) = if up {
                        (cell, block.back[row].0[lane])
                    } else {
                        (block.mate[row].0[lane], cell)
                    };
                    let capacity = capacity_of(
                        block.up_block,
                        block.up.table_of(up_cell),
                        block.up.slots(up_cell),
                    )
                    .min(capacity_of(
                        block.down_block,
                        block.down.table_of(down_cell),
                        block.down.slots(down_cell),
                    ));
                    let weight = block.state(down_cell).weight;
                    block.set_terms(
                        down_cell,
                        weight,
                        knee(f64::from(weight), f64::from(capacity)),
                    );
                }
            }
        }
    }

    /// The tables of the rack of a fabric link besides the first.
    fn copies_of(&self, place: Place) -> Vec<usize> {
        self.shared.layout.shapes[place.link_block as usize]
            .copies
            .iter()
            .filter(|(_, original)| *original == place.index)
            .map(|(copy, _)| *copy as usize / super::layout::TABLE_SLOTS)
            .collect()
    }
}

/// The path price below which a log flow has its path's whole capacity.
fn knee(weight: f64, capacity: f64) -> f32 {
    ((weight / capacity) as f32).min(CUT_KNEE)
}
