//! Engine on the thread that owns the core. Between two polls of the port it applies the hub's
//! events and hands first rates back to it, or iterates once.
//!
//! Between a start and its first rate no thread is woken and nothing waits in a ring. A start waits
//! at most for the iteration that runs when it arrives, or for a few datagrams that are being sent.
//! For the same reason later rates go to the sessions in small batches.

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine_host::{DrivenEngine, EngineDeathWatch, EngineHost, EngineSignal, dispose};
use super::service_core::ServiceCore;
use crate::engine::driver::{EVENTS_AT_ONCE, cost_of};
use crate::engine::{EngineEvent, RateUpdate, pin_current_thread};
use crate::service::clock;
use crate::service::hub::Hub;

/// Rates that are handed to sessions before the next poll of the port.
const RATES_AT_ONCE: usize = 16;

/// Maximum of rates queued for sessions at which the engine iterates without new events.
const FEW_RATES: usize = 128;

/// Pause between iterations while the engine does not have all flows or all paths, in nanoseconds.
const BEHIND_PAUSE_NS: u64 = 5_000_000;

/// Maximum of rates between engine and sessions. Of those beyond it, the newest of each flow waits
/// in the engine.
const MAX_RATES: usize = 32 * FEW_RATES;

/// Engine, and its rates on their way to the sessions.
pub(super) struct CoLocatedEngine {
    engine: Option<Box<DrivenEngine>>,
    death_watch: EngineDeathWatch,
    /// Loads of the links for the feeds, in bit/s.
    loads_bps: Vec<f64>,
    /// The engine applied events and has not iterated since.
    must_iterate: bool,
    /// Rates for the sessions.
    rates: VecDeque<RateUpdate>,
    /// Earliest time of an iteration without events.
    next_iteration_ns: u64,
    /// Time of the engine's next maintenance.
    maintenance_ns: u64,
}

impl CoLocatedEngine {
    /// Creates it without an engine, on the thread that drives it and on which it is dropped.
    pub(super) fn new(signal: Arc<EngineSignal>) -> Self {
        Self {
            engine: None,
            death_watch: EngineDeathWatch::new(signal),
            loads_bps: Vec::new(),
            must_iterate: false,
            rates: VecDeque::new(),
            next_iteration_ns: 0,
            maintenance_ns: 0,
        }
    }

    /// Announces that the thread ends as it should.
    pub(super) fn expect_end(&mut self) {
        self.death_watch.expect_end();
    }

    /// True if rates wait for sessions.
    pub(super) fn has_rates(&self) -> bool {
        !self.rates.is_empty()
    }

    /// Hands a few later rates to their sessions.
    pub(super) fn hand_over_rates(&mut self, hub: &mut Hub, now_ns: u64) {
        for update in self.rates.drain(..self.rates.len().min(RATES_AT_ONCE)) {
            hub.on_rate(now_ns, update);
        }
    }

    /// Tells the feeds the loads of the links, if they want them.
    pub(super) fn tell_loads(&mut self, hub: &mut Hub, now_ns: u64) {
        if hub.network().wants_link_loads(now_ns)
            && let Some(engine) = &self.engine
        {
            engine.driver.link_loads(&mut self.loads_bps);
            let network = hub.network_mut();
            network.observe_link_loads(now_ns, &mut self.loads_bps);
        }
    }

    /// Takes the new engine, if there is one.
    pub(super) fn take_engine(&mut self, host: &mut EngineHost) {
        let Some(engine) = host.take_engine() else {
            return;
        };
        // The thread that drives the engine is its first worker, for which the core is configured.
        if let Some(core) = engine.pin_core
            && let Err(error) = pin_current_thread(core)
        {
            tracing::warn!(core, %error, "the core's thread, which drives the engine, is not pinned");
        }
        // Freeing a large engine takes long, and no datagram should wait for it.
        if let Some(former) = self.engine.replace(engine) {
            dispose(move || drop(former));
        }
        // Rates of the former engine are for other prices, or another topology.
        self.rates.clear();
        self.must_iterate = false;
        (self.next_iteration_ns, self.maintenance_ns) = (0, 0);
    }

    /// Applies the hub's events. Hands it the first rates of new flows, if sessions may have rates,
    /// so that none of them waits for an iteration.
    pub(super) fn apply_events(&mut self, hub: &mut Hub, rates_open: bool) {
        let events = hub.engine_events();
        let Some(engine) = self.engine.as_mut().filter(|_| !events.is_empty()) else {
            return;
        };
        // Ends alone need no first rates: they wait for the iteration, or for a start before it.
        let mut starts = false;
        let mut cost = 0;
        while cost < EVENTS_AT_ONCE
            && let Some(event) = events.pop_front()
        {
            cost += cost_of(&event);
            starts |= matches!(event, EngineEvent::Start(_));
            engine.driver.apply(event);
        }
        self.must_iterate = true;
        if rates_open && starts {
            // As of the end of the price correction, which comes before the first of them.
            let mut now_ns = None;
            engine.driver.first_rates(|update| {
                hub.on_rate(*now_ns.get_or_insert_with(clock::now_ns), update);
            });
        }
    }

    /// Iterates unless the engine rests. True if there was something to do.
    pub(super) fn iterate_if_due(&mut self, core: &ServiceCore, now_ns: u64) -> bool {
        let Some(engine) = &mut self.engine else {
            return false;
        };
        let (rates_open, is_rerouting) = (core.rates_open(), core.hub.is_rerouting());
        let driver = &mut engine.driver;
        // Rates that a sweep is about to change are worth few iterations, each of them short. First
        // rates do not wait for them.
        let must_iterate = self.must_iterate && !(is_rerouting && now_ns < self.next_iteration_ns);
        let left = driver.has_undrained();
        // An engine that has settled gives the same rates until an event comes.
        let wants =
            left || must_iterate || (!driver.is_settled() && self.next_iteration_ns <= now_ns);
        // Sessions first: an engine that is faster than they are would only fill the queue. Events
        // do not wait for that. Rates of a whole network that are being handed over go first, some
        // each time.
        let iterates = !left && (must_iterate || (wants && self.rates.len() <= FEW_RATES));
        if iterates {
            self.must_iterate = false;
            driver.iterate(clock::instant_at(now_ns));
            // From the end of the iteration, so that sweep and port get their time however long it
            // took.
            self.next_iteration_ns = if is_rerouting {
                clock::now_ns() + BEHIND_PAUSE_NS
            } else {
                now_ns + engine.interval_ns.unwrap_or(0)
            };
        }
        // Rates that the engine had to keep are offered again once the sessions have taken all
        // others.
        if iterates || left || (rates_open && driver.has_backlog() && self.rates.is_empty()) {
            // A batch, if the engine had to keep rates: each attempt to hand them over has a fixed
            // cost.
            let open = rates_open && (self.rates.len() <= FEW_RATES || !driver.has_backlog());
            let rates = &mut self.rates;
            driver.drain_into(|update| {
                // False leaves the rate with the engine, which keeps the newest one of each flow.
                let room = open && rates.len() < MAX_RATES;
                if room {
                    rates.push_back(update);
                }
                room
            });
        }
        if iterates || self.maintenance_ns <= now_ns {
            let pause = driver.maintain(clock::instant_at(now_ns));
            let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
            self.maintenance_ns = now_ns.saturating_add(pause_ns);
        }
        wants
    }

    /// Returns the time of the engine's next task if no event comes before.
    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        let left = self
            .engine
            .as_ref()
            .is_some_and(|engine| engine.driver.has_undrained());
        if left || !self.rates.is_empty() {
            return Some(0);
        }
        let next_iteration_ns = match &self.engine {
            Some(engine) if !engine.driver.is_settled() => Some(self.next_iteration_ns),
            _ => None,
        };
        let maintenance_ns = self.engine.is_some().then_some(self.maintenance_ns);
        [next_iteration_ns, maintenance_ns]
            .into_iter()
            .flatten()
            .min()
    }
}
