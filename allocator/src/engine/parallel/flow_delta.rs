//! Flows that joined or left since the last iteration, for the price correction.

use arrayvec::ArrayVec;
use rustc_hash::FxHashMap;

use super::cell::SaturationPrice;
use super::dirty_links::LinkResponse;
use super::kernels::at_demand;
use crate::num::price_correction::FlowView;
use crate::num::utility::ClassTable;
use crate::num::{MAX_PATH_LINKS, RateLimit};

/// Newest flows that are searched for one that ends again.
const SEARCH_DEPTH: usize = 256;

/// Demand curve of a flow: its rate by path price.
#[derive(Clone, Copy, Debug)]
pub(super) enum DemandCurve {
    /// Curve of a log flow: weight over price, constant below the saturation price.
    Log {
        weight: f32,
        saturation_price: SaturationPrice,
    },
    /// Curve at this index among the [`GeneralCurve`]s.
    General(u32),
}

/// Demand curve of a flow of any class.
#[derive(Clone, Copy, Debug)]
pub(super) struct GeneralCurve {
    pub(super) class: u8,
    pub(super) weight: f64,
    pub(super) limit: RateLimit,
}

/// Links of a flow: their codes, and after [`FlowDelta::resolve_links`] their numbers among the
/// dirty links.
pub(super) type PathLinks = ArrayVec<u32, MAX_PATH_LINKS>;

/// A known flow that comes back with other terms.
#[derive(Clone, Copy, Debug)]
struct KnownFlow {
    /// Its index in the lists.
    place: u32,
    /// It is notified of its rate like a flow that starts.
    notify: bool,
}

/// Flows that joined, or flows that left.
#[derive(Debug, Default)]
pub(super) struct FlowDelta {
    /// Flow numbers in a list of their own, since a search reads nothing else.
    flows: Vec<u32>,
    demand: Vec<(PathLinks, DemandCurve)>,
    general: Vec<GeneralCurve>,
    /// Rates in the last iteration's sums of flows that left, in Gbit/s; empty for flows that
    /// joined, until their first rates are computed.
    rates: Vec<f32>,
    /// Known flows with another demand or path, found whatever number of flows follow them.
    known: FxHashMap<u32, KnownFlow>,
}

impl FlowDelta {
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Adds a log flow.
    pub(super) fn push(
        &mut self,
        flow: u32,
        links: PathLinks,
        weight: f32,
        saturation_price: SaturationPrice,
    ) {
        self.flows.push(flow);
        self.demand.push((
            links,
            DemandCurve::Log {
                weight,
                saturation_price,
            },
        ));
    }

    pub(super) fn push_general(&mut self, flow: u32, links: PathLinks, curve: GeneralCurve) {
        self.flows.push(flow);
        self.demand
            .push((links, DemandCurve::General(self.general.len() as u32)));
        self.general.push(curve);
    }

    /// Marks the flow that was added last as a known one.
    pub(super) fn mark_known(&mut self, flow: u32, notify: bool) {
        let place = self.flows.len() as u32 - 1;
        self.known.insert(flow, KnownFlow { place, notify });
    }

    /// True if a flow is notified of its rate before the iteration.
    pub(super) fn is_notified(&self, flow: u32) -> bool {
        self.known.is_empty() || self.known.get(&flow).is_none_or(|known| known.notify)
    }

    /// Removes a known flow from the list; returns true if it was on it.
    pub(super) fn forget_known(&mut self, flow: u32) -> bool {
        if self.known.is_empty() {
            return false;
        }
        let known = self.known.remove(&flow);
        if let Some(known) = known {
            self.take(known.place as usize);
        }
        known.is_some()
    }

    fn take(&mut self, place: usize) {
        self.flows.swap_remove(place);
        self.demand.swap_remove(place);
        // The last flow takes the index, and a known one is found by it.
        if let Some(moved) = self.flows.get(place)
            && let Some(known) = self.known.get_mut(moved)
        {
            known.place = place as u32;
        }
    }

    /// Appends the rate of the next flow in order.
    pub(super) fn push_rate(&mut self, rate: f32) {
        self.rates.push(rate);
    }

    /// Replaces all links' codes by their numbers. At once, since events one by one would each wait
    /// for the cache lines of the numbering.
    pub(super) fn resolve_links(&mut self, mut place_of: impl FnMut(u32) -> u32) {
        for link in self.demand.iter_mut().flat_map(|(links, _)| links) {
            *link = place_of(*link);
        }
    }

    /// Rates of the flows.
    pub(super) fn rates(&self) -> &[f32] {
        &self.rates
    }

    /// Numbers of the flows.
    pub(super) fn flows(&self) -> &[u32] {
        &self.flows
    }

    /// Removes a flow from the list; returns true if it was found. A flow with too many successors
    /// is not found: its end counts as an older flow's, which the next iteration puts right.
    pub(super) fn forget(&mut self, flow: u32) -> bool {
        if self.forget_known(flow) {
            return true;
        }
        let first = self.flows.len().saturating_sub(SEARCH_DEPTH);
        let found = self.flows[first..].iter().rposition(|&other| other == flow);
        if let Some(index) = found {
            self.take(first + index);
        }
        found.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.demand.clear();
        self.general.clear();
        self.rates.clear();
        self.known.clear();
    }

    /// Links and demand curve of a flow.
    pub(super) fn at(&self, index: usize) -> &(PathLinks, DemandCurve) {
        &self.demand[index]
    }

    /// Links and demand curves of all flows.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(PathLinks, DemandCurve)> {
        self.demand.iter()
    }

    /// Response of a flow to a path price.
    #[inline]
    pub(super) fn response(
        &self,
        demand: &DemandCurve,
        classes: &ClassTable,
        price: f32,
    ) -> LinkResponse {
        match *demand {
            DemandCurve::Log {
                weight,
                saturation_price,
            } => {
                let at_saturation = saturation_price.price();
                let inverse = if price > at_saturation {
                    price
                } else {
                    at_saturation
                }
                .recip();
                let load = weight * inverse;
                let mut elastic = load;
                // A flow at its demand hardly responds to prices far below its saturation price.
                if saturation_price.is_demand_bound() {
                    elastic *= at_demand(price * inverse);
                }
                LinkResponse {
                    load,
                    neg_slope: elastic * inverse,
                    elastic_excess: elastic - load,
                }
            }
            DemandCurve::General(number) => {
                let other = &self.general[number as usize];
                let flow = FlowView {
                    path: &[],
                    utility: classes.utility(other.class),
                    weight: other.weight,
                    limit: other.limit,
                };
                let response = flow.response_at(f64::from(price));
                LinkResponse {
                    load: response.rate as f32,
                    neg_slope: response.neg_slope as f32,
                    elastic_excess: (response.elastic - response.rate) as f32,
                }
            }
        }
    }
}
