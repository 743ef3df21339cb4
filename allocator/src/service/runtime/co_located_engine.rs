//! The engine on a shard's thread: between two looks at the port it answers the starts that have
//! come, and iterates once.
//!
//! On the way from a start to its first rate nobody is woken and nothing waits in a ring. What a
//! start waits for is the iteration that runs when it arrives, or a few datagrams that are being
//! sent. Rates are handed to the sessions a few hundred at a time for the same reason.

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine_host::{EngineDeathWatch, EngineSignal, WorkerEngine, dispose};
use super::service_core::ServiceCore;
use crate::engine::thread::{EVENTS_AT_ONCE, cost_of};
use crate::engine::{EngineEvent, RateUpdate, pin_current_thread};
use crate::service::clock;

/// Rates that are handed to the sessions before the port is looked at again.
const RATES_AT_ONCE: usize = 16;

/// Rates that may wait for the sessions while the engine iterates without having been told
/// anything.
const FEW_RATES: usize = 128;

/// Time from an iteration's end to the next one's beginning while the engine does not know all
/// flows, or all paths.
const BEHIND_PAUSE_NS: u64 = 5_000_000;

/// Rates that lie between the engine and the sessions at most. Of those that do not fit, the newest
/// of each flow waits with the engine.
const MOST_RATES: usize = 32 * FEW_RATES;

/// An engine and what lies between it and the sessions.
pub(super) struct CoLocatedEngine {
    engine: Option<Box<WorkerEngine>>,
    death_watch: EngineDeathWatch,
    /// What the sessions have brought about and the engine is yet to be told.
    events: VecDeque<EngineEvent>,
    /// First rates that the engine has told before it iterates.
    firsts: Vec<RateUpdate>,
    /// The engine was told something and has not iterated since.
    asked: bool,
    /// What the engine has told and the sessions are yet to be.
    rates: VecDeque<RateUpdate>,
    /// Rates may be handed out.
    open: bool,
    /// The engine is yet to be told of flows that the one before it knew, or of other paths.
    behind: bool,
    /// The earliest of the sessions' timers.
    timer_ns: Option<u64>,
    /// When the engine may iterate again without an event.
    tick_ns: u64,
    /// When the engine wants its chores done.
    chores_ns: u64,
}

impl CoLocatedEngine {
    /// Without an engine yet. To be dropped on the thread.
    pub(super) fn new(signal: &Arc<EngineSignal>) -> Self {
        Self {
            engine: None,
            death_watch: EngineDeathWatch::new(Arc::clone(signal)),
            events: VecDeque::new(),
            firsts: Vec::new(),
            asked: false,
            rates: VecDeque::new(),
            open: false,
            behind: false,
            timer_ns: None,
            tick_ns: 0,
            chores_ns: 0,
        }
    }

    /// The thread is going to end as it should.
    pub(super) fn expect_end(&self) {
        self.death_watch.expect_end();
    }

    /// Whether the sessions have brought something about that the engine is yet to be told.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether there is something to be exchanged with the state, which serves timers as of
    /// `timers_ns`.
    pub(super) fn is_due(&self, timers_ns: u64) -> bool {
        !self.rates.is_empty() || self.timer_ns.is_some_and(|timer_ns| timer_ns <= timers_ns)
    }

    /// Hands first rates to the sessions; if it tells others too, also a few of these, and serves
    /// timers as of `timers_ns`. True if more rates wait.
    pub(super) fn exchange(
        &mut self,
        core: &mut ServiceCore,
        now_ns: u64,
        timers_ns: u64,
        tells: bool,
    ) -> bool {
        for update in self.firsts.drain(..) {
            core.hub.on_rate(now_ns, update);
        }
        if !tells {
            return !self.rates.is_empty();
        }
        core.on_timers(timers_ns);
        for update in self.rates.drain(..self.rates.len().min(RATES_AT_ONCE)) {
            core.hub.on_rate(now_ns, update);
        }
        !self.rates.is_empty()
    }

    /// Takes what the engine is to be told, at the end of an exchange.
    pub(super) fn take_events(&mut self, core: &mut ServiceCore) {
        if let Some(engine) = core.take_engine_work(&mut self.events) {
            if let Some(core) = engine.pin_core
                && let Err(error) = pin_current_thread(core)
            {
                tracing::warn!(core, %error, "the shard's thread, which drives the engine, is not pinned");
            }
            if let Some(former) = self.engine.replace(engine) {
                dispose(move || drop(former));
            }
            self.rates.clear();
            self.asked = false;
            (self.tick_ns, self.chores_ns) = (0, 0);
        }
        self.timer_ns = core.next_timer_ns();
        self.open = core.rates_open();
        self.behind = core.hub.is_rerouting();
    }

    /// Tells the engine what has come, and asks it for the first rates of what has started: nobody
    /// who waits for one waits for an iteration.
    pub(super) fn answer(&mut self) {
        let Some(engine) = self.engine.as_mut().filter(|_| !self.events.is_empty()) else {
            return;
        };
        // Ends alone wait for the iteration, or for a start that may come before it.
        let mut starts = false;
        let mut cost = 0;
        while cost < EVENTS_AT_ONCE
            && let Some(event) = self.events.pop_front()
        {
            cost += cost_of(&event);
            starts |= matches!(event, EngineEvent::Start(_));
            engine.driver.apply(event);
        }
        self.asked = true;
        if self.open && starts {
            let firsts = &mut self.firsts;
            engine.driver.first_rates(|update| firsts.push(update));
        }
    }

    /// Iterates unless the engine rests. True if there was something to do.
    pub(super) fn iterate_if_due(&mut self, now_ns: u64) -> bool {
        let Some(engine) = &mut self.engine else {
            return false;
        };
        let driver = &mut engine.driver;
        // Rates that are about to change again are worth few iterations: as many as keep each of
        // them short. First rates do not wait for them.
        let asked = self.asked && !(self.behind && now_ns < self.tick_ns);
        let left = driver.has_undrained();
        let wants = left || asked || (!driver.is_settled() && self.tick_ns <= now_ns);
        // The sessions first: an engine that is faster than they are would only pile rates up. What
        // was asked does not wait for that. Rates of a whole network that are being taken over are
        // taken over first, some each time.
        let iterates = !left && (asked || (wants && self.rates.len() <= FEW_RATES));
        if iterates {
            self.asked = false;
            driver.iterate(clock::instant_at(now_ns));
            self.tick_ns = if self.behind {
                clock::now_ns() + BEHIND_PAUSE_NS
            } else {
                now_ns + engine.interval_ns.unwrap_or(0)
            };
        }
        if iterates || left || (self.open && driver.has_backlog() && self.rates.is_empty()) {
            // Many at a time where the engine has to keep some, which costs more the more often it
            // is done.
            let open = self.open && (self.rates.len() <= FEW_RATES || !driver.has_backlog());
            let rates = &mut self.rates;
            driver.drain_into(|update| {
                let room = open && rates.len() < MOST_RATES;
                if room {
                    rates.push_back(update);
                }
                room
            });
        }
        if iterates || self.chores_ns <= now_ns {
            let pause = driver.maintain(clock::instant_at(now_ns));
            let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
            self.chores_ns = now_ns.saturating_add(pause_ns);
        }
        wants
    }

    /// When there will be something to do if nothing comes.
    pub(super) fn wakes_ns(&self) -> Option<u64> {
        let left = self
            .engine
            .as_ref()
            .is_some_and(|engine| engine.driver.has_undrained());
        if left || !self.rates.is_empty() || !self.events.is_empty() {
            return Some(0);
        }
        let tick_ns = match &self.engine {
            Some(engine) if !engine.driver.is_settled() => Some(self.tick_ns),
            _ => None,
        };
        let chores_ns = self.engine.is_some().then_some(self.chores_ns);
        [tick_ns, self.timer_ns, chores_ns]
            .into_iter()
            .flatten()
            .min()
    }
}
