//! The reference engine: f64, one thread, every step spelled out.

use super::reference_flows::{NEVER_NOTIFIED, ReferenceFlows};
use super::{
    EngineConfig, EngineError, EngineEvent, FlowNumber, FlowSpec, IterationReport, LinkPath,
    MAX_PATH_LINKS, Optimality, RateEngine, RateUpdate, StepRule,
};
use crate::num::utility::ClassTable;
use crate::num::{
    FNorm, FlowView, Ned, Normalizer, Optimizer, Problem, RATE_UNIT_BPS, RateLimit, SafeguardedNed,
    optimality, path_capacity,
};

/// Iterations without any rate past the threshold after which the engine rests, converged or not:
/// no endpoint would notice what still moves.
const MAX_QUIET_ITERATIONS: u32 = 1000;

/// NED, F-NORM and the threshold filter over one flow table.
pub struct ReferenceEngine {
    config: EngineConfig,
    /// Derated capacities, in internal units.
    capacities: Vec<f64>,
    flows: ReferenceFlows,
    optimizer: Box<dyn Optimizer>,
    normalizer: FNorm,
    previous: Vec<f64>,
    /// Capacities changed since the flows' limits were computed.
    limits_stale: bool,
    /// Iterations since the problem changed or a rate last passed the threshold.
    quiet_iterations: u32,
    /// Rates that passed the threshold in the last iteration.
    moved: Vec<RateUpdate>,
}

impl ReferenceEngine {
    /// Makes an engine without flows for links of these capacities.
    ///
    /// # Errors
    /// A setting or a capacity is out of range.
    pub fn new(config: EngineConfig, capacities_bps: &[f64]) -> Result<Self, EngineError> {
        config.check()?;
        let mut engine = Self {
            optimizer: match config.step_rule {
                StepRule::Safeguarded => Box::new(SafeguardedNed::new(config.gamma, 0)),
                StepRule::Ned => Box::new(Ned::new(config.gamma, 0)),
            },
            normalizer: FNorm::default(),
            config,
            capacities: Vec::new(),
            flows: ReferenceFlows::default(),
            previous: Vec::new(),
            limits_stale: false,
            quiet_iterations: 0,
            moved: Vec::new(),
        };
        engine.reset(capacities_bps)?;
        Ok(engine)
    }

    /// Share of a link that is allocated.
    #[must_use]
    pub fn derating(&self) -> f64 {
        (1.0 - self.config.threshold) * (1.0 - self.config.mice_reserve)
    }

    /// Rate of a flow after the last iteration, notified or not.
    #[must_use]
    pub fn rate_bps(&self, number: FlowNumber) -> Option<f64> {
        self.flows
            .find(number)
            .map(|slot| self.flows.normalized[slot] * RATE_UNIT_BPS)
    }

    /// Prices by link, in utility per Gbit/s.
    #[must_use]
    pub fn prices(&self) -> &[f64] {
        self.optimizer.prices()
    }

    fn derated(&self, capacity_bps: f64) -> Result<f64, EngineError> {
        if capacity_bps.is_finite() && capacity_bps >= 0.0 {
            Ok(capacity_bps * self.derating() / RATE_UNIT_BPS)
        } else {
            Err(EngineError::BadCapacity(capacity_bps))
        }
    }

    fn reset(&mut self, capacities_bps: &[f64]) -> Result<(), EngineError> {
        let capacities = capacities_bps
            .iter()
            .map(|&c| self.derated(c))
            .collect::<Result<Vec<_>, _>>()?;
        self.optimizer.reset(capacities.len());
        self.capacities = capacities;
        self.flows.clear();
        self.limits_stale = false;
        self.moved.clear();
        Ok(())
    }

    fn check_path(&self, number: FlowNumber, links: &LinkPath) -> Result<(), EngineError> {
        if links.is_empty() || links.len() > MAX_PATH_LINKS {
            return Err(EngineError::BadPath(number));
        }
        for (i, &link) in links.iter().enumerate() {
            if link as usize >= self.capacities.len() {
                return Err(EngineError::UnknownLink {
                    link,
                    links: self.capacities.len(),
                });
            }
            if links[..i].contains(&link) {
                return Err(EngineError::BadPath(number));
            }
        }
        Ok(())
    }

    fn start(&mut self, spec: &FlowSpec) -> Result<(), EngineError> {
        self.check_path(spec.number, &spec.links)?;
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
        let max_flows = self.config.max_flows;
        if self.flows.len() >= max_flows && self.flows.find(spec.number).is_none() {
            return Err(EngineError::Full { max_flows });
        }
        let demand = spec.demand_bps.min(class.max_rate_bps) / RATE_UNIT_BPS;
        let path_capacity = path_capacity(&spec.links, &self.capacities);
        let limit = RateLimit::new(&class.utility, weight, demand, path_capacity);
        // A restart replaces the flow, so its former part leaves the sums first.
        if let Some(slot) = self.flows.find(spec.number) {
            let old = view(&self.flows, &self.config.classes, slot);
            self.optimizer.flow_ended(&old);
        }
        let slot = self.flows.put(spec, weight, demand, limit);
        let new = view(&self.flows, &self.config.classes, slot);
        self.optimizer.flow_started(&new);
        Ok(())
    }

    fn update_limit(&mut self, slot: usize) {
        let flows = &mut self.flows;
        let utility = self.config.classes.utility(flows.classes[slot]);
        let capacity = path_capacity(&flows.paths[slot], &self.capacities);
        flows.limits[slot] =
            RateLimit::new(utility, flows.weights[slot], flows.demands[slot], capacity);
    }

    fn slot_of(&self, number: FlowNumber) -> Result<usize, EngineError> {
        self.flows
            .find(number)
            .ok_or(EngineError::UnknownFlow(number))
    }

    fn end(&mut self, number: FlowNumber) -> Result<(), EngineError> {
        let slot = self.slot_of(number)?;
        let old = view(&self.flows, &self.config.classes, slot);
        self.optimizer.flow_ended(&old);
        self.flows.remove(slot);
        Ok(())
    }

    fn filter(&mut self) {
        self.moved.clear();
        let threshold = self.config.threshold;
        let flows = &mut self.flows;
        for ((&number, &rate), notified) in flows
            .numbers
            .iter()
            .zip(&flows.normalized)
            .zip(&mut flows.notified)
        {
            // A flow never notified passes whatever its rate.
            if *notified == NEVER_NOTIFIED || (rate - *notified).abs() > threshold * *notified {
                *notified = rate;
                self.moved.push(RateUpdate {
                    number,
                    rate_bps: rate * RATE_UNIT_BPS,
                });
            }
        }
    }

    fn problem(&self) -> Problem<'_> {
        Problem {
            capacities: &self.capacities,
            classes: &self.config.classes,
            flows: self.flows.view(),
        }
    }
}

/// View of the flow at `slot`, for the optimiser.
fn view<'a>(flows: &'a ReferenceFlows, classes: &'a ClassTable, slot: usize) -> FlowView<'a> {
    FlowView {
        path: &flows.paths[slot],
        utility: classes.utility(flows.classes[slot]),
        weight: flows.weights[slot],
        limit: flows.limits[slot],
    }
}

impl RateEngine for ReferenceEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        self.quiet_iterations = 0;
        match event {
            EngineEvent::Start(spec) => self.start(&spec),
            EngineEvent::End(number) => self.end(number),
            EngineEvent::Reroute { number, links } => {
                let slot = self.slot_of(number)?;
                self.check_path(number, &links)?;
                let old = view(&self.flows, &self.config.classes, slot);
                self.optimizer.flow_ended(&old);
                self.flows.paths[slot] = links;
                self.update_limit(slot);
                let new = view(&self.flows, &self.config.classes, slot);
                self.optimizer.flow_started(&new);
                Ok(())
            }
            EngineEvent::Capacity { link, capacity_bps } => {
                let links = self.capacities.len();
                let capacity = self.derated(capacity_bps)?;
                *self
                    .capacities
                    .get_mut(link as usize)
                    .ok_or(EngineError::UnknownLink { link, links })? = capacity;
                // Limits depend on capacities; one pass over the flows serves many events.
                self.limits_stale = true;
                Ok(())
            }
            EngineEvent::EndAll(numbers) => {
                for number in numbers {
                    let _ = self.end(number);
                }
                Ok(())
            }
            EngineEvent::Reset { capacities, .. } => self.reset(&capacities),
        }
    }

    fn iterate(&mut self) -> IterationReport {
        if std::mem::take(&mut self.limits_stale) {
            (0..self.flows.len()).for_each(|slot| self.update_limit(slot));
        }
        // Taken out, since the problem borrows the flows' other arrays.
        let mut rates = std::mem::take(&mut self.flows.rates);
        let mut normalized = std::mem::take(&mut self.flows.normalized);
        self.previous.clone_from(&normalized);
        let problem = Problem {
            capacities: &self.capacities,
            classes: &self.config.classes,
            flows: self.flows.view(),
        };
        let residual = self.optimizer.iterate(&problem, &mut rates);
        let max_overload = self.normalizer.normalize(&problem, &rates, &mut normalized);
        let change = self
            .previous
            .iter()
            .zip(&normalized)
            .fold(0.0, |m: f64, (&old, &new)| {
                if old == new {
                    m
                } else {
                    m.max((new - old).abs() / new.max(old))
                }
            });
        self.flows.rates = rates;
        self.flows.normalized = normalized;
        self.filter();
        self.quiet_iterations = if self.moved.is_empty() {
            self.quiet_iterations.saturating_add(1)
        } else {
            0
        };
        let tolerance = self.config.settle_tolerance;
        let converged = change <= tolerance && residual <= tolerance && self.moved.is_empty();
        IterationReport {
            flows: self.flows.len(),
            updates: self.moved.len(),
            max_relative_rate_change: change,
            max_overload,
            residual,
            settled: self.flows.len() == 0
                || converged
                || self.quiet_iterations >= MAX_QUIET_ITERATIONS,
        }
    }

    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        for update in self.moved.drain(..) {
            sink(update);
        }
    }

    fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        loads_bps.clear();
        loads_bps.resize(self.capacities.len(), 0.0);
        self.problem().loads(&self.flows.normalized, loads_bps);
        loads_bps.iter_mut().for_each(|load| *load *= RATE_UNIT_BPS);
    }

    fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
        capacities_bps.clear();
        capacities_bps.extend(self.capacities.iter().map(|c| c * RATE_UNIT_BPS));
    }

    fn link_prices(&self, prices: &mut Vec<f64>) {
        prices.clear();
        prices.extend(self.optimizer.prices());
    }

    fn optimality(&self) -> Optimality {
        optimality::measure(
            &self.problem(),
            self.optimizer.prices(),
            &self.flows.normalized,
            &mut Vec::new(),
        )
    }

    fn flow_count(&self) -> usize {
        self.flows.len()
    }
}
