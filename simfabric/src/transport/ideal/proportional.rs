//! Exact proportionally fair rates from the production reference optimiser, iterated to
//! convergence.

use ratewright_allocator::engine::{
    EngineConfig, EngineError, EngineEvent, FlowNumber, FlowSpec, RateEngine as _, ReferenceEngine,
};

use crate::flow::FlowId;

/// Relative tolerance: a solution is exact once no iteration moves a rate by more. A rate that
/// moved by less is not reported.
const TOLERANCE: f64 = 1e-6;
/// Largest number of iterations per solution. F-NORM makes the last one feasible in any case.
const MOST_ITERATIONS: u32 = 10_000;

/// Weighted proportionally fair rates of the active flows, which maximise Σ w log x (flowtune §2).
pub struct Proportional {
    engine: ReferenceEngine,
    /// Flow, rate, and whether the rate is new, by slot.
    flows: Vec<(FlowId, f64, bool)>,
    changed_slots: Vec<u32>,
    free: Vec<u32>,
    changed: Vec<(FlowId, f64)>,
    unsettled: u64,
}

impl Proportional {
    /// Makes a solver without flows on links of these capacities.
    ///
    /// # Errors
    /// Capacities that the engine refuses.
    pub fn new(capacities_bps: &[f64]) -> Result<Self, EngineError> {
        let config = EngineConfig {
            threshold: TOLERANCE,
            settle_tolerance: TOLERANCE,
            ..EngineConfig::default()
        };
        Ok(Self {
            engine: ReferenceEngine::new(config, capacities_bps)?,
            flows: Vec::new(),
            changed_slots: Vec::new(),
            free: Vec::new(),
            changed: Vec::new(),
            unsettled: 0,
        })
    }

    /// Adds a flow over `links` and returns its slot.
    pub fn add(&mut self, flow: FlowId, weight: f64, links: &[u32]) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push((flow, 0.0, false));
            (self.flows.len() - 1) as u32
        });
        self.flows[slot as usize] = (flow, 0.0, false);
        let spec = FlowSpec {
            number: FlowNumber::first(slot),
            links: links.iter().copied().collect(),
            class: 0,
            weight,
            demand_bps: f64::INFINITY,
        };
        // A path of the topology is one of the engine's.
        let _ = self.engine.apply(EngineEvent::Start(spec));
        slot
    }

    /// Removes a flow.
    pub fn remove(&mut self, slot: u32) {
        if self
            .engine
            .apply(EngineEvent::End(FlowNumber::first(slot)))
            .is_ok()
        {
            self.free.push(slot);
        }
    }

    /// Computes all rates and returns those that changed.
    pub fn solve(&mut self) -> &[(FlowId, f64)] {
        let (flows, changed_slots) = (&mut self.flows, &mut self.changed_slots);
        let engine = &mut self.engine;
        // An iteration drops the updates of the one before it.
        let settled = (0..MOST_ITERATIONS).any(|_| {
            let report = engine.iterate();
            engine.drain_updates(&mut |update| {
                let slot = update.number.index();
                let flow = &mut flows[slot as usize];
                flow.1 = update.rate_bps;
                if !std::mem::replace(&mut flow.2, true) {
                    changed_slots.push(slot);
                }
            });
            report.settled
        });
        self.unsettled += u64::from(!settled);
        self.changed.clear();
        for slot in changed_slots.drain(..) {
            let (flow, rate_bps, new) = &mut flows[slot as usize];
            *new = false;
            self.changed.push((*flow, *rate_bps));
        }
        &self.changed
    }

    /// Returns the number of solutions that were cut short.
    #[must_use]
    pub fn unsettled(&self) -> u64 {
        self.unsettled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kelly, *Charging and rate control for elastic traffic* (1997), on a line of n links: the
    /// flow over all of them gets 1 / (n + 1), each flow over one of them n / (n + 1).
    #[test]
    fn on_a_line_of_links_the_long_flow_gets_its_closed_form() {
        for links in [1_u32, 2, 3, 4] {
            let mut rates = Proportional::new(&vec![1e10; links as usize]).unwrap();
            let all: Vec<u32> = (0..links).collect();
            rates.add(FlowId(0), 1.0, &all);
            for link in 0..links {
                rates.add(FlowId(1 + link), 1.0, &[link]);
            }
            let n = f64::from(links);
            let solution = rates.solve().to_vec();
            assert_eq!(solution.len(), links as usize + 1);
            for (flow, rate_bps) in solution {
                let share = if flow.0 == 0 { 1.0 } else { n } / (n + 1.0);
                assert!(
                    (rate_bps / (1e10 * share) - 1.0).abs() < 1e-4,
                    "{flow:?} {rate_bps}"
                );
            }
            assert_eq!(rates.unsettled(), 0);
        }
    }

    /// A free slot is used again for another flow.
    #[test]
    fn what_a_flow_leaves_goes_to_the_others() {
        let mut rates = Proportional::new(&[1e10]).unwrap();
        let first = rates.add(FlowId(7), 1.0, &[0]);
        rates.add(FlowId(8), 3.0, &[0]);
        let close = |found: &[(FlowId, f64)], expected: &[(u32, f64)]| {
            let mut found = found.to_vec();
            found.sort_by_key(|&(flow, _)| flow.0);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for ((flow, rate_bps), (id, share)) in found.iter().zip(expected) {
                assert_eq!(flow.0, *id);
                assert!(
                    (rate_bps / 1e10 - share).abs() < 1e-4,
                    "{flow:?} {rate_bps}"
                );
            }
        };
        close(rates.solve(), &[(7, 0.25), (8, 0.75)]);
        rates.remove(first);
        close(rates.solve(), &[(8, 1.0)]);
        assert_eq!(rates.add(FlowId(9), 3.0, &[0]), first);
        close(rates.solve(), &[(8, 0.5), (9, 0.5)]);
    }
}
