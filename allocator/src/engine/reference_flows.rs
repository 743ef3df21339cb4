//! Flows of the reference engine: dense arrays, over which an iteration passes in the order of
//! memory, and an index by number.
//!
//! Ending a flow moves the last one into its slot. Slots are never handed out: the number names a
//! flow.

use rustc_hash::FxHashMap;

use super::{FlowNumber, FlowSpec, LinkPath};
use crate::num::{FlowArrays, RateLimit};

/// Notified rate of a flow that was notified none.
pub(super) const NEVER_NOTIFIED: f64 = -1.0;

/// All flows, as a structure of arrays in internal units.
#[derive(Debug, Default)]
pub(super) struct ReferenceFlows {
    index: FxHashMap<FlowNumber, u32>,
    pub(super) numbers: Vec<FlowNumber>,
    pub(super) paths: Vec<LinkPath>,
    pub(super) classes: Vec<u8>,
    pub(super) weights: Vec<f64>,
    /// Demand or class bound, whichever is smaller.
    pub(super) demands: Vec<f64>,
    /// `demands` or the path's smallest capacity, whichever is smaller.
    pub(super) limits: Vec<RateLimit>,
    /// Rates at the present prices.
    pub(super) rates: Vec<f64>,
    /// Normalised rates.
    pub(super) normalized: Vec<f64>,
    /// Rates last notified, or [`NEVER_NOTIFIED`].
    pub(super) notified: Vec<f64>,
}

impl ReferenceFlows {
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn find(&self, number: FlowNumber) -> Option<usize> {
        self.index.get(&number).map(|&slot| slot as usize)
    }

    /// Adds a flow, or replaces the one of the same number. In both cases it counts as never
    /// notified. Returns its slot.
    pub(super) fn put(
        &mut self,
        spec: &FlowSpec,
        weight: f64,
        demand: f64,
        limit: RateLimit,
    ) -> usize {
        if let Some(slot) = self.find(spec.number) {
            self.paths[slot].clone_from(&spec.links);
            self.classes[slot] = spec.class;
            self.weights[slot] = weight;
            self.demands[slot] = demand;
            self.limits[slot] = limit;
            self.notified[slot] = NEVER_NOTIFIED;
            return slot;
        }
        // `max_flows` keeps the table far below 2³² slots.
        self.index.insert(spec.number, self.numbers.len() as u32);
        self.numbers.push(spec.number);
        self.paths.push(spec.links.clone());
        self.classes.push(spec.class);
        self.weights.push(weight);
        self.demands.push(demand);
        self.limits.push(limit);
        self.rates.push(0.0);
        self.normalized.push(0.0);
        self.notified.push(NEVER_NOTIFIED);
        self.numbers.len() - 1
    }

    /// Removes the flow at `slot`; the last one takes its place.
    pub(super) fn remove(&mut self, slot: usize) {
        self.index.remove(&self.numbers[slot]);
        self.numbers.swap_remove(slot);
        self.paths.swap_remove(slot);
        self.classes.swap_remove(slot);
        self.weights.swap_remove(slot);
        self.demands.swap_remove(slot);
        self.limits.swap_remove(slot);
        self.rates.swap_remove(slot);
        self.normalized.swap_remove(slot);
        self.notified.swap_remove(slot);
        if let Some(&moved) = self.numbers.get(slot) {
            self.index.insert(moved, slot as u32);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn view(&self) -> FlowArrays<'_> {
        FlowArrays {
            paths: &self.paths,
            classes: &self.classes,
            weights: &self.weights,
            limits: &self.limits,
        }
    }
}
