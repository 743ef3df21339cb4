//! Flows that came or went since the last iteration, as the answers to them walk them.

use arrayvec::ArrayVec;

use super::answers::Sum;
use crate::num::arrivals::FlowView;
use crate::num::utility::ClassTable;
use crate::num::{Limit, MAX_PATH_LINKS};

/// How many of the newest flows are searched for one that goes again.
const LOOK_BACK: usize = 256;

/// What a flow wants at a price.
#[derive(Clone, Debug)]
pub(super) enum Wants {
    /// That of a log flow: weight / price, and at prices below the knee what it wants there.
    Log { weight: f32, knee: f32 },
    /// That of a flow of some class, with a weight and a limit.
    Other {
        class: u8,
        weight: f64,
        limit: Limit,
    },
}

/// Where the links of a flow are in the lists of those that events touch.
pub(super) type Places = ArrayVec<u32, MAX_PATH_LINKS>;

/// A list of flows.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Numbers, apart, for they are all that a search looks at.
    flows: Vec<u32>,
    wants: Vec<(Places, Wants)>,
}

impl Noted {
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn push(&mut self, flow: u32, links: Places, wants: Wants) {
        self.flows.push(flow);
        self.wants.push((links, wants));
    }

    /// Takes a flow off the list; returns whether it was there. Where so many came that it is not found,
    /// its end is taken for an older flow's: the next iteration puts that right.
    pub(super) fn forget(&mut self, flow: u32) -> bool {
        let first = self.flows.len().saturating_sub(LOOK_BACK);
        let found = self.flows[first..].iter().rposition(|&other| other == flow);
        if let Some(index) = found {
            self.flows.swap_remove(first + index);
            self.wants.swap_remove(first + index);
        }
        found.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.wants.clear();
    }

    /// Says of each flow where its links are, and what it answers to their prices.
    #[inline]
    pub(super) fn answer(
        &self,
        classes: &ClassTable,
        prices: &[f32],
        mut take: impl FnMut(&[u32], Sum),
    ) {
        for (links, wants) in &self.wants {
            let price = links.iter().map(|&link| prices[link as usize]).sum();
            take(links, wants.at(classes, price));
        }
    }
}

impl Wants {
    #[inline]
    fn at(&self, classes: &ClassTable, price: f32) -> Sum {
        match self {
            Self::Log { weight, knee } => {
                let inverse = if price > *knee { price } else { *knee }.recip();
                let load = weight * inverse;
                Sum {
                    load,
                    reaction: load * inverse,
                    surplus: 0.0,
                }
            }
            Self::Other {
                class,
                weight,
                limit,
            } => {
                let flow = FlowView {
                    path: &[],
                    utility: classes.utility(*class),
                    weight: *weight,
                    limit: *limit,
                };
                let answer = flow.answer_at(f64::from(price));
                Sum {
                    load: answer.rate as f32,
                    reaction: answer.reaction as f32,
                    surplus: (answer.elastic - answer.rate) as f32,
                }
            }
        }
    }
}
