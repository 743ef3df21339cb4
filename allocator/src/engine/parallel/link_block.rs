//! LinkBlocks: prices of the links that go up from a block of racks, or down to one.

use super::lanes::{LANES, Lanes, TABLE_LANES, Table, at, at_mut};
use super::layout::LinkBlockShape;

/// The room of a link that carries nothing.
const UNLIMITED: f32 = 1e30;
/// What [`GuardedNed`](crate::num::GuardedNed) has, with its explanations; the tests hold both together.
mod guard {
    pub(super) const SHIFT: f32 = 0.25;
    pub(super) const FIRST_STEP: f32 = 2.5;
    pub(super) const LONGEST_STEP: f32 = 7.5;
    pub(super) const GROW: f32 = 1.2;
    pub(super) const SHRINK: f32 = 0.6;
    pub(super) const DISTURBED: f32 = 4.0;
    pub(super) const CALM: f32 = 0.01;
    pub(super) const LARGEST_SHARE: f32 = 0.75;
    pub(super) const LARGEST_FALL: f32 = 1.0 / 32.0;
    pub(super) const NEGLIGIBLE: f32 = 1e-10;
    pub(super) const UNFELT_FALL: f32 = 0.25;
}

/// The LinkBlock's sums over the flows of one worker.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// Σ x.
    pub(super) load: Vec<Table>,
    /// Σ −∂x/∂p.
    pub(super) reaction: Vec<Table>,
    /// Σ (e − 1) x, with e the elasticity of x in its price: 0 for log flows below their demand.
    pub(super) surplus: Vec<Table>,
    /// Nothing was added since the last [`clear`](Self::clear).
    pub(super) empty: bool,
    /// `surplus` is in use.
    pub(super) has_surplus: bool,
}

impl Sums {
    pub(super) fn new(tables: usize) -> Self {
        let zero = vec![[Lanes::default(); TABLE_LANES]; tables];
        Self {
            load: zero.clone(),
            reaction: zero.clone(),
            surplus: zero,
            empty: true,
            has_surplus: false,
        }
    }

    pub(super) fn clear(&mut self) {
        if !self.empty {
            self.load.fill([Lanes::default(); TABLE_LANES]);
            self.reaction.fill([Lanes::default(); TABLE_LANES]);
            self.empty = true;
        }
        if self.has_surplus {
            self.surplus.fill([Lanes::default(); TABLE_LANES]);
            self.has_surplus = false;
        }
    }

    /// Adds one flow on one link.
    pub(super) fn add(&mut self, index: usize, load: f32, reaction: f32, surplus: f32) {
        self.empty = false;
        *at_mut(self.load.as_flattened_mut(), index) += load;
        *at_mut(self.reaction.as_flattened_mut(), index) += reaction;
        if surplus != 0.0 {
            self.has_surplus = true;
            *at_mut(self.surplus.as_flattened_mut(), index) += surplus;
        }
    }
}

/// Which price update.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateRule {
    /// γ: the step, or the shortest one.
    pub(super) gamma: f32,
    /// The guarded rule; else the paper's.
    pub(super) guarded: bool,
}

/// What a price update met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UpdateReport {
    /// Largest relative excess, or room on a link that charges for it.
    pub(super) residual: f32,
    /// Largest load over capacity.
    pub(super) overload: f32,
    /// Largest change that the new prices and rooms mean for a rate, relative to it, by link.
    pub(super) change: f32,
    /// A link is too full, and no flow on it reacts.
    pub(super) stuck: bool,
}

impl UpdateReport {
    pub(super) fn merge(&mut self, other: Self) {
        self.residual = self.residual.max(other.residual);
        self.overload = self.overload.max(other.overload);
        self.change = self.change.max(other.change);
        self.stuck |= other.stuck;
    }
}

/// A LinkBlock.
#[derive(Debug)]
pub(super) struct LinkBlock {
    pub(super) prices: Vec<Table>,
    /// Capacity over load.
    pub(super) rooms: Vec<Table>,
    capacities: Vec<Lanes>,
    step: Vec<Lanes>,
    excess: Vec<Lanes>,
    load: Vec<Lanes>,
    reaction: Vec<Lanes>,
    surplus: Vec<Lanes>,
    has_surplus: bool,
    copies: Vec<(u32, u32)>,
}

impl LinkBlock {
    pub(super) fn new(shape: &LinkBlockShape, gamma: f32) -> Self {
        let tables = shape.tables;
        let lanes = |value: f32| vec![Lanes([value; LANES]); tables * TABLE_LANES];
        Self {
            prices: vec![[Lanes([1.0; LANES]); TABLE_LANES]; tables],
            rooms: vec![[Lanes([UNLIMITED; LANES]); TABLE_LANES]; tables],
            capacities: lanes(0.0),
            step: lanes(guard::FIRST_STEP * gamma),
            excess: lanes(0.0),
            load: lanes(0.0),
            reaction: lanes(0.0),
            surplus: lanes(0.0),
            has_surplus: false,
            copies: shape.copies.clone(),
        }
    }

    /// Makes the slot of a table that stands for no link cost nothing.
    pub(super) fn empty_slot(&mut self, index: usize) {
        *at_mut(self.prices.as_flattened_mut(), index) = 0.0;
    }

    pub(super) fn capacity(&self, index: usize) -> f32 {
        at(&self.capacities, index)
    }

    /// Sets the capacity of a link, in Gbit/s. Does not touch rooms: the next update does.
    pub(super) fn set_capacity(&mut self, index: usize, capacity: f32) {
        *at_mut(&mut self.capacities, index) = capacity;
        for &(copy, original) in &self.copies {
            if original as usize == index {
                *at_mut(&mut self.capacities, copy as usize) = capacity;
            }
        }
    }

    pub(super) fn price(&self, index: usize) -> f32 {
        at(self.prices.as_flattened(), index)
    }

    pub(super) fn add_price(&mut self, index: usize, lift: f32) {
        *at_mut(self.prices.as_flattened_mut(), index) += lift;
        for &(copy, original) in &self.copies {
            if original as usize == index {
                *at_mut(self.prices.as_flattened_mut(), copy as usize) += lift;
            }
        }
    }

    pub(super) fn room(&self, index: usize) -> f32 {
        at(self.rooms.as_flattened(), index)
    }

    /// Whether a link was too full in the last update, with no flow that reacts.
    pub(super) fn is_stuck(&self, index: usize) -> bool {
        let (load, capacity) = (at(&self.load, index), self.capacity(index));
        let elastic = load + at(&self.surplus, index);
        load > capacity && capacity > 0.0 && !(elastic > 0.0 && at(&self.reaction, index) > 0.0)
    }

    /// The price update, and the rooms for F-NORM, from the sums of every worker.
    #[inline(always)]
    pub(super) fn update(&mut self, rule: UpdateRule, contributions: &[&Sums]) -> UpdateReport {
        let lanes = self.capacities.len();
        let surplus = contributions.iter().any(|sums| sums.has_surplus);
        let (first, rest) = match contributions.split_first() {
            Some(split) => split,
            None => return UpdateReport::default(),
        };
        self.load.copy_from_slice(first.load.as_flattened());
        self.reaction.copy_from_slice(first.reaction.as_flattened());
        for sums in rest {
            add(&mut self.load, sums.load.as_flattened());
            add(&mut self.reaction, sums.reaction.as_flattened());
        }
        if surplus | self.has_surplus {
            self.surplus.fill(Lanes::default());
            self.has_surplus = surplus;
            for sums in contributions.iter().filter(|sums| sums.has_surplus) {
                add(&mut self.surplus, sums.surplus.as_flattened());
            }
        }
        for &(copy, original) in &self.copies {
            for list in [&mut self.load, &mut self.reaction, &mut self.surplus] {
                let part = std::mem::take(at_mut(list, copy as usize));
                *at_mut(list, original as usize) += part;
            }
        }
        let mut found = [Lanes::default(); 4];
        let (prices, rooms) = (
            self.prices.as_flattened_mut(),
            self.rooms.as_flattened_mut(),
        );
        for i in 0..lanes {
            let sums = [&self.load[i], &self.reaction[i], &self.surplus[i]];
            if rule.guarded {
                guarded(
                    rule.gamma,
                    &self.capacities[i],
                    sums,
                    [
                        &mut prices[i],
                        &mut rooms[i],
                        &mut self.step[i],
                        &mut self.excess[i],
                    ],
                    &mut found,
                );
            } else {
                paper(
                    rule.gamma,
                    &self.capacities[i],
                    sums,
                    [&mut prices[i], &mut rooms[i]],
                    &mut found,
                );
            }
        }
        for &(copy, original) in &self.copies {
            *at_mut(prices, copy as usize) = at(prices, original as usize);
            *at_mut(rooms, copy as usize) = at(rooms, original as usize);
        }
        let largest = |lanes: &Lanes| lanes.0.iter().copied().fold(0.0, f32::max);
        UpdateReport {
            residual: largest(&found[0]),
            overload: largest(&found[1]),
            change: largest(&found[2]),
            stuck: largest(&found[3]) > 0.0,
        }
    }
}

#[inline(always)]
fn add(into: &mut [Lanes], from: &[Lanes]) {
    for (into, from) in into.iter_mut().zip(from) {
        for (into, from) in into.0.iter_mut().zip(&from.0) {
            *into += from;
        }
    }
}

#[inline(always)]
fn select(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// The guarded step of [`GuardedNed`](crate::num::GuardedNed) on sixteen links, without branches.
#[inline(always)]
fn guarded(
    gamma: f32,
    capacities: &Lanes,
    [loads, reactions, surpluses]: [&Lanes; 3],
    [prices, rooms, steps, excesses]: [&mut Lanes; 4],
    [residuals, overloads, changes, stuck]: &mut [Lanes; 4],
) {
    let (grow, shrink) = (guard::GROW, guard::SHRINK);
    let longest = guard::LONGEST_STEP * gamma;
    for i in 0..LANES {
        let (load, capacity, reaction) = (loads.0[i], capacities.0[i], reactions.0[i]);
        let elastic = load + surpluses.0[i];
        let price = prices.0[i];
        let busy = load > 0.0;
        let active = busy & (capacity > 0.0);
        let reacts = (elastic > 0.0) & (reaction > 0.0);
        let steps_on = active & reacts;
        let excess = load - capacity;
        let idle = (price == 0.0) & (excess <= 0.0);
        let last = excesses.0[i];
        let turn = excess * last;
        let length = steps.0[i];
        let length = select(turn < 0.0, (steps.0[i] * shrink).max(gamma), length);
        let length = select(turn > 0.0, (steps.0[i] * grow).min(longest), length);
        let calm = last.abs() < guard::CALM * capacity;
        let disturbed = calm & (excess.abs() > guard::DISTURBED * last.abs());
        let length = select(disturbed, guard::FIRST_STEP * gamma, length);
        let length = select(idle, longest, length);
        steps.0[i] = select(steps_on, length, steps.0[i]);
        excesses.0[i] = select(steps_on, excess, last);
        let mean = select(steps_on, elastic / reaction, 1.0);
        let relative = select(active, excess / capacity, 0.0);
        let felt = (price / mean).min(1.0);
        let off = relative.max(-relative * felt);
        // (y / c)^(g y / E), to second order.
        let whole = select(steps_on, elastic * (load + capacity), 1.0);
        let bound = guard::LARGEST_SHARE * whole;
        let half = select(steps_on, length * load * excess, 0.0);
        let half = half.max(-bound).min(bound);
        let factor = (whole + half) / (whole - half);
        let shift = guard::SHIFT * mean;
        let next = ((price + shift) * factor - shift).max(price * guard::LARGEST_FALL);
        let next = select(next < guard::NEGLIGIBLE * mean, 0.0, next);
        let unfelt = select(active & (excess <= 0.0), price * guard::UNFELT_FALL, price);
        let next = select(steps_on, next, unfelt);
        prices.0[i] = next;
        let room = select(busy, select(active, capacity / load, 0.0), UNLIMITED);
        let moved = select(active, (next - price).abs() / mean, 0.0);
        let turned = select(active, (room - rooms.0[i]).abs() / room.min(1.0), 0.0);
        rooms.0[i] = room;
        residuals.0[i] = residuals.0[i].max(select(steps_on, off, relative.max(0.0)));
        overloads.0[i] = overloads.0[i].max(relative + 1.0);
        changes.0[i] = changes.0[i].max(moved + turned);
        stuck.0[i] = stuck.0[i].max(select(active & !reacts & (excess > 0.0), 1.0, 0.0));
    }
}

/// The step of [`Ned`](crate::num::Ned) on sixteen links.
#[inline(always)]
fn paper(
    gamma: f32,
    capacities: &Lanes,
    [loads, reactions, _]: [&Lanes; 3],
    [prices, rooms]: [&mut Lanes; 2],
    [residuals, overloads, changes, _]: &mut [Lanes; 4],
) {
    for i in 0..LANES {
        let (load, capacity, reaction) = (loads.0[i], capacities.0[i], reactions.0[i]);
        let price = prices.0[i];
        let busy = load > 0.0;
        let active = busy & (capacity > 0.0);
        let excess = load - capacity;
        let reacts = reaction > 0.0;
        let step = gamma * excess / select(reacts, reaction, capacity * capacity);
        let falls = !reacts & (excess <= 0.0);
        let next = select(
            falls,
            price * (1.0 - gamma).max(0.0),
            (price + step).max(0.0),
        );
        let next = select(active, next, price);
        prices.0[i] = next;
        let room = select(busy, select(active, capacity / load, 0.0), UNLIMITED);
        let turned = select(active, (room - rooms.0[i]).abs() / room.min(1.0), 0.0);
        rooms.0[i] = room;
        let counts = active & ((excess > 0.0) | (price > 0.0));
        residuals.0[i] = residuals.0[i].max(select(counts, excess.abs() / capacity, 0.0));
        overloads.0[i] = overloads.0[i].max(select(active, load / capacity, 0.0));
        let moved = select(active, (next - price).abs() * reaction / load, 0.0);
        changes.0[i] = changes.0[i].max(moved + turned);
    }
}
