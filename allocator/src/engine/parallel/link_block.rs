//! LinkBlocks: prices, sums and F-NORM scales of the links up from a block of racks, or down to one
//! (flowtune §4).

use super::lanes::{LANES, Lanes, LinkTable, TABLE_LANES, at, at_mut};
use super::layout::{LinkBlockShape, replicas_of};
use super::price_update::{
    FIRST_PRICE, IDLE_SCALE, LaneReports, LinkLanes, UpdateReport, UpdateRule, ned_step, safeguard,
    safeguarded_ned_step, smaller,
};

/// Largest load or slope that one flow adds: sums of a million stay finite.
const MOST_ADDED: f32 = 1e30;

/// A worker's private copy of a LinkBlock's sums, over this worker's flows.
#[derive(Clone, Debug)]
pub(super) struct LinkBlockCopy {
    /// Σ x: load in Gbit/s.
    pub(super) load: Vec<LinkTable>,
    /// Σ −∂x/∂p: −H of the paper.
    pub(super) neg_slope: Vec<LinkTable>,
    /// Σ e x, with e the elasticity of x in its price: the part of the load that responds to
    /// prices. For log flows below their demand it is the load, so it takes no memory until some
    /// flow has another one.
    pub(super) elastic: Vec<LinkTable>,
    /// Nothing was added since the last [`begin`](Self::begin).
    pub(super) empty: bool,
    /// The sums are still the last iteration's.
    stale: bool,
    /// `elastic` is in use.
    pub(super) has_elastic: bool,
}

impl LinkBlockCopy {
    pub(super) fn new(tables: usize) -> Self {
        let zero = vec![[Lanes::default(); TABLE_LANES]; tables];
        Self {
            load: zero.clone(),
            neg_slope: zero,
            elastic: Vec::new(),
            empty: true,
            stale: false,
            has_elastic: false,
        }
    }

    /// Begins an iteration. The first to add either overwrites every table or has the sums cleared.
    pub(super) fn begin(&mut self) {
        self.stale |= !self.empty;
        self.empty = true;
        self.has_elastic = false;
    }

    /// Adds elastic loads apart from here on. The elastic part of the flows so far is their load.
    pub(super) fn split_elastic(&mut self) {
        if std::mem::replace(&mut self.has_elastic, true) {
            return;
        }
        let zero = [Lanes::default(); TABLE_LANES];
        if !self.empty {
            self.elastic.clone_from(&self.load);
        } else if self.stale {
            // Overwritten or cleared as the others are.
            self.elastic.resize(self.load.len(), zero);
        } else {
            self.elastic.clear();
            self.elastic.resize(self.load.len(), zero);
        }
    }

    /// Announces an addition. Returns true if every table has to be overwritten.
    pub(super) fn overwrite(&mut self) -> bool {
        self.empty = false;
        std::mem::take(&mut self.stale)
    }

    /// Zeroes the sums if they are the last iteration's.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.load.fill([Lanes::default(); TABLE_LANES]);
            self.neg_slope.fill([Lanes::default(); TABLE_LANES]);
            if self.has_elastic {
                self.elastic.fill([Lanes::default(); TABLE_LANES]);
            }
        }
    }

    /// Bytes of the sums.
    pub(super) fn bytes(&self) -> usize {
        let tables = self.load.capacity() + self.neg_slope.capacity() + self.elastic.capacity();
        tables * size_of::<LinkTable>()
    }

    /// Load, slope and elastic load of one slot.
    #[inline]
    pub(super) fn at(&self, index: usize) -> [f32; 3] {
        let of = |list: &[LinkTable]| at(list.as_flattened(), index);
        let load = of(&self.load);
        let elastic = if self.has_elastic {
            of(&self.elastic)
        } else {
            load
        };
        [load, of(&self.neg_slope), elastic]
    }

    /// Elastic loads; the loads themselves where no flow differs.
    #[inline]
    pub(super) fn elastic_loads(&self) -> &[LinkTable] {
        if self.has_elastic {
            &self.elastic
        } else {
            &self.load
        }
    }

    /// Adds one flow on one link. Values that are not a number count as 0.
    pub(super) fn add(&mut self, index: usize, load: f32, neg_slope: f32, elastic: f32) {
        debug_assert!(!self.stale);
        // A flow whose elastic load differs from its load needs the third sum from now on.
        if elastic != load {
            self.split_elastic();
        }
        self.empty = false;
        // `max` takes 0 where the other is no number.
        let sound = |value: f32| smaller(value.max(0.0), MOST_ADDED);
        *at_mut(self.load.as_flattened_mut(), index) += sound(load);
        *at_mut(self.neg_slope.as_flattened_mut(), index) += sound(neg_slope);
        if self.has_elastic {
            *at_mut(self.elastic.as_flattened_mut(), index) += sound(elastic);
        }
    }
}

/// A LinkBlock: the state of its links between iterations.
#[derive(Debug)]
pub(super) struct LinkBlock {
    pub(super) prices: Vec<LinkTable>,
    /// F-NORM scales, capacity over load.
    pub(super) norm_scales: Vec<LinkTable>,
    capacities: Vec<Lanes>,
    /// Registers that have a link.
    linked: Vec<bool>,
    step: Vec<Lanes>,
    excess: Vec<Lanes>,
    /// Sums over the workers, empty unless the block has replicas: without them the price update
    /// adds the copies itself.
    load: Vec<Lanes>,
    neg_slope: Vec<Lanes>,
    elastic: Vec<Lanes>,
    replicas: Vec<(u32, u32)>,
    /// Slots that stand for no link.
    empty_slots: Vec<u32>,
}

impl LinkBlock {
    pub(super) fn new(shape: &LinkBlockShape, gamma: f32) -> Self {
        let tables = shape.tables;
        let lanes = |value: f32| vec![Lanes([value; LANES]); tables * TABLE_LANES];
        Self {
            prices: vec![[Lanes([FIRST_PRICE; LANES]); TABLE_LANES]; tables],
            norm_scales: vec![[Lanes([IDLE_SCALE; LANES]); TABLE_LANES]; tables],
            capacities: lanes(0.0),
            linked: vec![false; tables * TABLE_LANES],
            step: lanes(safeguard::FIRST_STEP * gamma),
            excess: lanes(0.0),
            load: Vec::new(),
            neg_slope: Vec::new(),
            elastic: Vec::new(),
            replicas: shape.replicas.clone(),
            empty_slots: Vec::new(),
        }
    }

    /// Bytes of all lists.
    pub(super) fn bytes(&self) -> usize {
        let tables = self.prices.capacity() + self.norm_scales.capacity();
        let lists = [
            &self.capacities,
            &self.step,
            &self.excess,
            &self.load,
            &self.neg_slope,
            &self.elastic,
        ];
        let lanes: usize = lists.into_iter().map(Vec::capacity).sum();
        let slots = self.empty_slots.capacity() * size_of::<u32>();
        tables * size_of::<LinkTable>()
            + lanes * size_of::<Lanes>()
            + self.linked.capacity()
            + slots
    }

    /// Makes a slot stand for no link: its price is 0, and its F-NORM scale that of an idle link.
    pub(super) fn empty_slot(&mut self, index: usize) {
        *at_mut(self.prices.as_flattened_mut(), index) = 0.0;
        self.empty_slots.push(index as u32);
    }

    #[inline]
    pub(super) fn capacity(&self, index: usize) -> f32 {
        at(&self.capacities, index)
    }

    /// Sets the capacity of a link in Gbit/s, with its replicas. F-NORM scales follow with the next
    /// update.
    pub(super) fn set_capacity(&mut self, index: usize, capacity: f32) {
        let of_link = replicas_of(&self.replicas, index as u32);
        for at in std::iter::once(index).chain(of_link.map(|replica| replica as usize)) {
            *at_mut(&mut self.capacities, at) = capacity;
            self.linked[at / LANES] = true;
        }
    }

    #[inline]
    pub(super) fn price(&self, index: usize) -> f32 {
        at(self.prices.as_flattened(), index)
    }

    /// Sets the price of a link and of its replicas.
    #[inline]
    pub(super) fn set_price(&mut self, index: usize, price: f32) {
        let of_link = replicas_of(&self.replicas, index as u32);
        for index in std::iter::once(index).chain(of_link.map(|replica| replica as usize)) {
            *at_mut(self.prices.as_flattened_mut(), index) = price;
        }
    }

    /// Sets the F-NORM scale of a link and of its replicas.
    #[inline]
    pub(super) fn set_norm_scale(&mut self, index: usize, norm_scale: f32) {
        let of_link = replicas_of(&self.replicas, index as u32);
        for index in std::iter::once(index).chain(of_link.map(|replica| replica as usize)) {
            *at_mut(self.norm_scales.as_flattened_mut(), index) = norm_scale;
        }
    }

    pub(super) fn norm_scale(&self, index: usize) -> f32 {
        at(self.norm_scales.as_flattened(), index)
    }

    /// Updates prices and F-NORM scales from the sums of every worker.
    pub(super) fn update(&mut self, rule: UpdateRule, copies: &[&LinkBlockCopy]) -> UpdateReport {
        self.update_by(rule, copies, safeguarded_ned_step)
    }

    /// Lists of links, if their sums are the workers' sums alone. Only LinkBlocks with replicas
    /// need more.
    pub(super) fn direct(&mut self) -> Option<LinkLanes<'_>> {
        self.replicas.is_empty().then(|| LinkLanes {
            capacities: &self.capacities,
            linked: &self.linked,
            prices: self.prices.as_flattened_mut(),
            norm_scales: self.norm_scales.as_flattened_mut(),
            steps: &mut self.step,
            excesses: &mut self.excess,
        })
    }

    /// Adds up the sums of all workers, and those of links and their replicas.
    fn add_up(&mut self, copies: &[&LinkBlockCopy]) {
        let lanes = self.capacities.len();
        for list in [&mut self.load, &mut self.neg_slope, &mut self.elastic] {
            list.clear();
            list.resize(lanes, Lanes::default());
        }
        for sums in copies {
            add(&mut self.load, sums.load.as_flattened());
            add(&mut self.neg_slope, sums.neg_slope.as_flattened());
            add(&mut self.elastic, sums.elastic_loads().as_flattened());
        }
        for &(replica, original) in &self.replicas {
            for list in [&mut self.load, &mut self.neg_slope, &mut self.elastic] {
                // Taken out of the replica, which would report the residual of its share alone.
                let part = std::mem::take(at_mut(list, replica as usize));
                *at_mut(list, original as usize) += part;
            }
        }
    }

    /// As [`update`](Self::update), with the safeguarded step by `step`. The vector kernels pass
    /// their own.
    #[inline(always)]
    pub(super) fn update_by(
        &mut self,
        rule: UpdateRule,
        copies: &[&LinkBlockCopy],
        step: impl Fn(f32, &Lanes, [&Lanes; 3], [&mut Lanes; 4], &mut LaneReports),
    ) -> UpdateReport {
        let lanes = self.capacities.len();
        let (first, rest) = match copies.split_first() {
            Some(split) => split,
            None => return UpdateReport::default(),
        };
        let has_elastic = copies.iter().any(|sums| sums.has_elastic);
        // Without replicas, the price update adds the copies register by register, which saves a
        // pass over them.
        let direct = self.replicas.is_empty();
        if !direct {
            self.add_up(copies);
        }
        let mut reports = UpdateReport::NOTHING;
        let (prices, norm_scales) = (
            self.prices.as_flattened_mut(),
            self.norm_scales.as_flattened_mut(),
        );
        for i in 0..lanes {
            let added = if direct {
                let mut load = first.load.as_flattened()[i];
                let mut neg_slope = first.neg_slope.as_flattened()[i];
                for sums in rest {
                    plus(&mut load, &sums.load.as_flattened()[i]);
                    plus(&mut neg_slope, &sums.neg_slope.as_flattened()[i]);
                }
                let mut elastic = load;
                if has_elastic {
                    elastic = first.elastic_loads().as_flattened()[i];
                    for sums in rest {
                        plus(&mut elastic, &sums.elastic_loads().as_flattened()[i]);
                    }
                }
                [load, neg_slope, elastic]
            } else {
                [self.load[i], self.neg_slope[i], self.elastic[i]]
            };
            let sums = [&added[0], &added[1], &added[2]];
            if rule.safeguarded {
                step(
                    rule.gamma,
                    &self.capacities[i],
                    sums,
                    [
                        &mut prices[i],
                        &mut norm_scales[i],
                        &mut self.step[i],
                        &mut self.excess[i],
                    ],
                    &mut reports,
                );
            } else {
                ned_step(
                    rule.gamma,
                    &self.capacities[i],
                    sums,
                    [&mut prices[i], &mut norm_scales[i]],
                    &mut reports,
                );
            }
        }
        // Passes look up replicas, so these need the new values of the original.
        for &(replica, original) in &self.replicas {
            *at_mut(prices, replica as usize) = at(prices, original as usize);
            *at_mut(norm_scales, replica as usize) = at(norm_scales, original as usize);
        }
        // The portable kernels add every flow to its fabric slot, for a branch per flow costs them
        // 9 %. A slot with a load and no capacity would have the scale 0.
        for &slot in &self.empty_slots {
            *at_mut(norm_scales, slot as usize) = IDLE_SCALE;
        }
        UpdateReport::of(&reports)
    }
}

#[inline(always)]
fn add(into: &mut [Lanes], from: &[Lanes]) {
    for (into, from) in into.iter_mut().zip(from) {
        plus(into, from);
    }
}

#[inline(always)]
fn plus(into: &mut Lanes, from: &Lanes) {
    for (into, from) in into.0.iter_mut().zip(&from.0) {
        *into += from;
    }
}
