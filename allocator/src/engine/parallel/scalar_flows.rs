//! Scalar path: flows that no row holds (see [`Cause`]), computed one by one in f64 like the
//! reference's.

use std::collections::VecDeque;

use super::cell::{NO_FLOW, Terms};
use super::kernels::{Notification, at_demand};
use super::layout::Layout;
use super::link_block::{LinkBlock, LinkBlockCopy};
use crate::engine::LinkPath;
use crate::num::RateLimit;
use crate::num::utility::{ClassTable, Utility};

/// Reason why no row holds a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its utility is not log.
    Utility,
    /// Its path has links that fit no table.
    Path,
    /// The rows of its FlowBlock had no space.
    NoRoom,
}

/// Number of causes.
const CAUSES: usize = 3;

/// Flows of the scalar path over all workers.
#[derive(Debug, Default)]
pub(super) struct ScalarTally {
    /// Flows by [`Cause`].
    pub(super) by_cause: [usize; CAUSES],
    /// Flows for which rows had no space, in the order of their next attempts; some have ended
    /// since.
    pub(super) overflow: VecDeque<u32>,
}

/// A flow of the scalar path.
#[derive(Clone, Debug)]
pub(super) struct ScalarFlow {
    pub(super) flow: u32,
    pub(super) class: u8,
    pub(super) links: LinkPath,
    pub(super) weight: f64,
    pub(super) demand: f64,
    pub(super) limit: RateLimit,
    pub(super) rate: f64,
    pub(super) notified: f64,
    pub(super) cause: Cause,
}

/// Scalar flows of one worker.
#[derive(Debug, Default)]
pub(super) struct ScalarFlows {
    pub(super) flows: Vec<ScalarFlow>,
    /// Rates that passed the threshold, in Gbit/s.
    pub(super) updates: Vec<Notification>,
}

impl ScalarFlow {
    pub(super) fn terms(&self) -> Terms {
        Terms {
            class: self.class,
            weight: self.weight,
            demand: self.demand,
            rate: self.rate,
            notified: self.notified,
        }
    }

    /// Recomputes cap and saturation price after a change of the path or a capacity.
    pub(super) fn set_limit(&mut self, classes: &ClassTable, capacity: f64) {
        self.limit = RateLimit::new(
            classes.utility(self.class),
            self.weight,
            self.demand,
            capacity,
        );
    }

    fn price(&self, layout: &Layout, blocks: &[impl std::ops::Deref<Target = LinkBlock>]) -> f64 {
        let price = |&link: &u32| {
            let place = layout.place(link);
            f64::from(blocks[place.link_block as usize].price(place.index as usize))
        };
        self.links.iter().map(price).sum()
    }

    /// Rate, slope and elastic load at a path price.
    fn respond(&self, classes: &ClassTable, price: f64) -> (f64, f64, f64) {
        let limit = &self.limit;
        if limit.cap <= 0.0 {
            return (0.0, 0.0, 0.0);
        }
        // Above its saturation price a flow of any utility follows its marginal utility.
        if price >= limit.saturation_price {
            let utility = classes.utility(self.class);
            let scaled = price / self.weight;
            let rate = utility.rate_at(scaled).min(limit.cap);
            let neg_slope = -utility.rate_slope_at(scaled) / self.weight;
            // A utility may be flat or infinitely steep at its ends; such a flow adds load only.
            return if neg_slope.is_finite() {
                (rate, neg_slope, neg_slope * price)
            } else {
                (rate, 0.0, 0.0)
            };
        }
        let elastic = limit.neg_slope * limit.saturation_price;
        // Bounded by its path and not by its demand: it responds as it does at the saturation
        // price.
        if !limit.by_demand {
            return (limit.cap, limit.neg_slope, elastic);
        }
        let share = at_demand((price / limit.saturation_price) as f32);
        let elastic = elastic * f64::from(share);
        (limit.cap, limit.neg_slope * f64::from(share), elastic)
    }
}

impl ScalarFlows {
    /// Computes new rates, and adds them to the sums.
    pub(super) fn rates(
        &mut self,
        layout: &Layout,
        classes: &ClassTable,
        blocks: &[impl std::ops::Deref<Target = LinkBlock>],
        copies: &mut [LinkBlockCopy],
    ) {
        for flow in &mut self.flows {
            let (rate, neg_slope, elastic) = flow.respond(classes, flow.price(layout, blocks));
            flow.rate = rate;
            for &link in &flow.links {
                let place = layout.place(link);
                copies[place.link_block as usize].add(
                    place.index as usize,
                    rate as f32,
                    neg_slope as f32,
                    elastic as f32,
                );
            }
        }
    }

    /// Normalises the rates (F-NORM) and collects those that passed the threshold.
    pub(super) fn normalize(
        &mut self,
        layout: &Layout,
        blocks: &[impl std::ops::Deref<Target = LinkBlock>],
        threshold: f64,
    ) {
        for flow in &mut self.flows {
            let normalized_rate = flow.normalized_rate(layout, blocks);
            // Negative only before the first notification.
            if flow.notified < 0.0
                || (normalized_rate - flow.notified).abs() > threshold * flow.notified
            {
                flow.notified = normalized_rate;
                debug_assert_ne!(flow.flow, NO_FLOW);
                self.updates.push(Notification {
                    flow: flow.flow,
                    rate: normalized_rate as f32,
                });
            }
        }
    }
}

impl ScalarFlow {
    /// Normalised rate: the rate times the least F-NORM scale of its path, at most its cap.
    pub(super) fn normalized_rate(
        &self,
        layout: &Layout,
        blocks: &[impl std::ops::Deref<Target = LinkBlock>],
    ) -> f64 {
        if self.rate <= 0.0 || self.limit.cap <= 0.0 {
            return 0.0;
        }
        let norm_scale = |&link: &u32| {
            let place = layout.place(link);
            f64::from(blocks[place.link_block as usize].norm_scale(place.index as usize))
        };
        let least = self
            .links
            .iter()
            .map(norm_scale)
            .fold(f64::INFINITY, f64::min);
        (self.rate * least).min(self.limit.cap)
    }

    pub(super) fn path(&self) -> &LinkPath {
        &self.links
    }
}
