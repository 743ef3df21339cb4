//! The reference engine: f64, one thread, every step spelled out.

use super::flows::{FlowTable, UNTOLD, path_capacity};
use super::{
    EngineError, EngineEvent, FlowKey, FlowSpec, IterationReport, LinkPath, MAX_PATH_LINKS,
    Optimality, RateEngine, RateUpdate,
};
use crate::num::ned::Ned;
use crate::num::normalize::{FNorm, Normalizer};
use crate::num::utility::ClassTable;
use crate::num::{Optimizer, Problem, RATE_UNIT_BPS, optimality};

/// How the engine allocates.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// NED's step (flowtune §2, (4)).
    pub gamma: f64,
    /// A rate is told again when it has moved by more than this share (flowtune §5.3.2). All
    /// capacities are derated by the same share, so that rates not yet told never overfill a link.
    pub threshold: f64,
    /// The share of every link that is kept for flowlets that never ask (flowtune §6).
    pub mice_reserve: f64,
    /// The bound of the flow table.
    pub max_flows: usize,
    /// What rates are worth.
    pub classes: ClassTable,
    /// The engine has settled when no rate moves by more than this share in an iteration.
    pub settle_tolerance: f64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            gamma: 0.4,
            threshold: 0.01,
            mice_reserve: 0.0,
            max_flows: 1 << 20,
            classes: ClassTable::default(),
            settle_tolerance: 1e-6,
        }
    }
}

impl EngineConfig {
    fn check(&self) -> Result<(), EngineError> {
        let within = |name, value: f64, ok: bool, expected| {
            if ok { Ok(()) } else { Err(EngineError::BadSetting { name, value, expected }) }
        };
        within("gamma", self.gamma, self.gamma > 0.0 && self.gamma < 2.0, "above 0 and below 2")?;
        let share = |v: f64| (0.0..=0.5).contains(&v);
        within("threshold", self.threshold, share(self.threshold), "0 to 0.5")?;
        within("mice_reserve", self.mice_reserve, share(self.mice_reserve), "0 to 0.5")?;
        let tolerance = self.settle_tolerance;
        within("settle_tolerance", tolerance, tolerance > 0.0 && tolerance < 0.1, "above 0 and below 0.1")?;
        let bound = self.max_flows;
        within("max_flows", bound as f64, bound > 0 && bound <= 1 << 30, "1 to 2^30")
    }
}

/// NED, F-NORM and the threshold filter over one flow table.
#[derive(Debug)]
pub struct ReferenceEngine {
    config: EngineConfig,
    /// Derated, in internal units.
    capacities: Vec<f64>,
    flows: FlowTable,
    optimizer: Ned,
    normalizer: FNorm,
    previous: Vec<f64>,
    /// Capacities changed since caps were computed.
    caps_stale: bool,
    /// Slots whose rate has passed the threshold in the last iteration.
    moved: Vec<RateUpdate>,
}

impl ReferenceEngine {
    /// An engine for links of these capacities, without flows.
    ///
    /// # Errors
    /// A setting or a capacity out of range.
    pub fn new(config: EngineConfig, capacities_bps: &[f64]) -> Result<Self, EngineError> {
        config.check()?;
        let mut engine = Self {
            optimizer: Ned::new(config.gamma, 0),
            normalizer: FNorm::default(),
            config,
            capacities: Vec::new(),
            flows: FlowTable::default(),
            previous: Vec::new(),
            caps_stale: false,
            moved: Vec::new(),
        };
        engine.reset(capacities_bps)?;
        Ok(engine)
    }

    /// The share of a link that is handed out.
    #[must_use]
    pub fn derating(&self) -> f64 {
        (1.0 - self.config.threshold) * (1.0 - self.config.mice_reserve)
    }

    /// The rate of a flow after the last iteration, whether it was told or not.
    #[must_use]
    pub fn rate_bps(&self, key: FlowKey) -> Option<f64> {
        self.flows.find(key).map(|slot| self.flows.normalized[slot] * RATE_UNIT_BPS)
    }

    /// The prices by link, in utility per Gbit/s.
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
        let capacities =
            capacities_bps.iter().map(|&c| self.derated(c)).collect::<Result<Vec<_>, _>>()?;
        self.optimizer.reset(capacities.len());
        self.capacities = capacities;
        self.flows.clear();
        self.moved.clear();
        Ok(())
    }

    fn check_path(&self, key: FlowKey, links: &LinkPath) -> Result<(), EngineError> {
        if links.is_empty() || links.len() > MAX_PATH_LINKS {
            return Err(EngineError::BadPath(key));
        }
        for (i, &link) in links.iter().enumerate() {
            if link as usize >= self.capacities.len() {
                return Err(EngineError::UnknownLink { link, links: self.capacities.len() });
            }
            if links[..i].contains(&link) {
                return Err(EngineError::BadPath(key));
            }
        }
        Ok(())
    }

    fn start(&mut self, spec: &FlowSpec) -> Result<(), EngineError> {
        self.check_path(spec.key, &spec.links)?;
        let Some(class) = self.config.classes.get(spec.class) else {
            return Err(EngineError::UnknownClass { class: spec.class });
        };
        let weight = class.weight * spec.weight;
        if !(spec.weight > 0.0 && weight.is_finite() && weight > 0.0) {
            return Err(EngineError::BadWeight(spec.weight));
        }
        if !(spec.demand_bps >= 0.0) {
            return Err(EngineError::BadDemand(spec.demand_bps));
        }
        let max_flows = self.config.max_flows;
        if self.flows.len() >= max_flows && self.flows.find(spec.key).is_none() {
            return Err(EngineError::Full { max_flows });
        }
        let demand = spec.demand_bps.min(class.max_rate_bps) / RATE_UNIT_BPS;
        let cap = demand.min(path_capacity(&spec.links, &self.capacities));
        self.flows.put(spec, weight, demand, cap);
        Ok(())
    }

    fn slot_of(&self, key: FlowKey) -> Result<usize, EngineError> {
        self.flows.find(key).ok_or(EngineError::UnknownFlow(key))
    }

    fn filter(&mut self) {
        self.moved.clear();
        let threshold = self.config.threshold;
        let flows = &mut self.flows;
        for ((&key, &rate), told) in flows.keys.iter().zip(&flows.normalized).zip(&mut flows.told) {
            if *told == UNTOLD || (rate - *told).abs() > threshold * *told {
                *told = rate;
                self.moved.push(RateUpdate { key, rate_bps: rate * RATE_UNIT_BPS });
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

impl RateEngine for ReferenceEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        match event {
            EngineEvent::Start(spec) => self.start(&spec),
            EngineEvent::End(key) => {
                let slot = self.slot_of(key)?;
                self.flows.remove(slot);
                Ok(())
            }
            EngineEvent::Reroute { key, links } => {
                let slot = self.slot_of(key)?;
                self.check_path(key, &links)?;
                let capacity = path_capacity(&links, &self.capacities);
                self.flows.caps[slot] = self.flows.demands[slot].min(capacity);
                self.flows.paths[slot] = links;
                Ok(())
            }
            EngineEvent::Capacity { link, capacity_bps } => {
                let links = self.capacities.len();
                let capacity = self.derated(capacity_bps)?;
                *self
                    .capacities
                    .get_mut(link as usize)
                    .ok_or(EngineError::UnknownLink { link, links })? = capacity;
                self.caps_stale = true;
                Ok(())
            }
            EngineEvent::DropSession(session) => {
                self.flows.remove_session(session);
                Ok(())
            }
            EngineEvent::Reset { capacities } => self.reset(&capacities),
        }
    }

    fn iterate(&mut self) -> IterationReport {
        if std::mem::take(&mut self.caps_stale) {
            let flows = &mut self.flows;
            for ((cap, path), &demand) in flows.caps.iter_mut().zip(&flows.paths).zip(&flows.demands) {
                *cap = demand.min(path_capacity(path, &self.capacities));
            }
        }
        let mut rates = std::mem::take(&mut self.flows.rates);
        let mut normalized = std::mem::take(&mut self.flows.normalized);
        self.previous.clone_from(&normalized);
        let problem = Problem {
            capacities: &self.capacities,
            classes: &self.config.classes,
            flows: self.flows.view(),
        };
        self.optimizer.iterate(&problem, &mut rates);
        let max_overload = self.normalizer.normalize(&problem, &rates, &mut normalized);
        let change = self.previous.iter().zip(&normalized).fold(0.0, |m: f64, (&old, &new)| {
            if old == new { m } else { m.max((new - old).abs() / new.max(old)) }
        });
        self.flows.rates = rates;
        self.flows.normalized = normalized;
        self.filter();
        IterationReport {
            flows: self.flows.len(),
            updates: self.moved.len(),
            max_relative_rate_change: change,
            max_overload,
            settled: change <= self.config.settle_tolerance,
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
