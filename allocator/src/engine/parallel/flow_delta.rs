//! Flows that came or went since the last iteration, as the answers to them walk them.

use arrayvec::ArrayVec;
use rustc_hash::FxHashMap;

use super::cell::SaturationPrice;
use super::dirty_links::LinkResponse;
use super::kernels::at_demand;
use crate::num::price_correction::FlowView;
use crate::num::utility::ClassTable;
use crate::num::{MAX_PATH_LINKS, RateLimit};

/// How many of the newest flows are searched for one that goes again.
const SEARCH_DEPTH: usize = 256;

/// What a flow wants at a price.
#[derive(Clone, Copy, Debug)]
pub(super) enum DemandCurve {
    /// That of a log flow: weight / price, and at prices below the saturation price what it wants there.
    Log {
        weight: f32,
        saturation_price: SaturationPrice,
    },
    /// That of the flow of this number among the [`GeneralCurve`]s.
    General(u32),
}

/// A flow of any class.
#[derive(Clone, Copy, Debug)]
pub(super) struct GeneralCurve {
    pub(super) class: u8,
    pub(super) weight: f64,
    pub(super) limit: RateLimit,
}

/// The links of a flow: their codes, and once [`FlowDelta::resolve_links`] has looked them up, where they are among
/// those that events touch.
pub(super) type PathLinks = ArrayVec<u32, MAX_PATH_LINKS>;

/// A flow that was there before and comes back.
#[derive(Clone, Copy, Debug)]
struct KnownFlow {
    /// Its place in the lists.
    place: u32,
    /// It is told its rate like one that starts.
    notify: bool,
}

/// A list of flows.
#[derive(Debug, Default)]
pub(super) struct FlowDelta {
    /// Numbers, apart, for they are all that a search looks at.
    flows: Vec<u32>,
    demand: Vec<(PathLinks, DemandCurve)>,
    general: Vec<GeneralCurve>,
    /// What flows that go had in the last iteration's sums, in Gbit/s; nothing for those that come.
    rates: Vec<f32>,
    /// Flows that were there before, in another way: with another demand, or on another path. They are found however
    /// many come after them.
    known: FxHashMap<u32, KnownFlow>,
}

impl FlowDelta {
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// A log flow.
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

    /// The last one was there before.
    pub(super) fn mark_known(&mut self, flow: u32, notify: bool) {
        let place = self.flows.len() as u32 - 1;
        self.known.insert(flow, KnownFlow { place, notify });
    }

    /// Whether a flow is told its rate before all others.
    pub(super) fn is_notified(&self, flow: u32) -> bool {
        self.known.is_empty() || self.known.get(&flow).is_none_or(|known| known.notify)
    }

    /// Takes a flow that was there before off the list; returns whether it was on it.
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
        if let Some(moved) = self.flows.get(place)
            && let Some(known) = self.known.get_mut(moved)
        {
            known.place = place as u32;
        }
    }

    /// The next flow in order has, or had in the sums, this rate.
    pub(super) fn push_rate(&mut self, rate: f32) {
        self.rates.push(rate);
    }

    /// Looks up where all links are that flows have codes for. At once, since events that come one by one
    /// would each wait for the cache lines where that stands.
    pub(super) fn resolve_links(&mut self, mut place_of: impl FnMut(u32) -> u32) {
        for link in self.demand.iter_mut().flat_map(|(links, _)| links) {
            *link = place_of(*link);
        }
    }

    /// What each flow had.
    pub(super) fn rates(&self) -> &[f32] {
        &self.rates
    }

    /// The flows' numbers.
    pub(super) fn flows(&self) -> &[u32] {
        &self.flows
    }

    /// Takes a flow off the list; returns whether it was there. Where so many came that it is not found,
    /// its end is taken for an older flow's: the next iteration puts that right.
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

    /// A flow: where its links are, and what it wants.
    pub(super) fn at(&self, index: usize) -> &(PathLinks, DemandCurve) {
        &self.demand[index]
    }

    /// Every flow: where its links are, and what it wants.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(PathLinks, DemandCurve)> {
        self.demand.iter()
    }

    /// What a flow answers to a path price.
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
                let answer = flow.response_at(f64::from(price));
                LinkResponse {
                    load: answer.rate as f32,
                    neg_slope: answer.neg_slope as f32,
                    elastic_excess: (answer.elastic - answer.rate) as f32,
                }
            }
        }
    }
}
