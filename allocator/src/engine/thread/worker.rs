//! Loop of the engine thread.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ratewright_io::sched;
use rtrb::{Consumer, Producer};

use super::{EVENTS_AT_ONCE, EngineDriver, EngineThreadConfig, Interval, ThreadFlags, cost_of};
use crate::engine::{EngineEvent, RateUpdate, affinity, clock};

/// Time slice of the thread. Shorter than others', so that a start wakes the engine at once even on
/// a busy core. Longer than those of the threads that carry its rates away, so that these need not
/// wait for it to rest.
const SLICE_NS: u64 = 5 * sched::HOT_SLICE_NS;

/// The engine between its rings.
pub(super) struct Worker<W> {
    driver: EngineDriver,
    config: EngineThreadConfig,
    events: Consumer<EngineEvent>,
    updates: Producer<RateUpdate>,
    shared: Arc<ThreadFlags>,
    wake: W,
}

impl<W: Fn() + Send + 'static> Worker<W> {
    pub(super) fn new(
        driver: EngineDriver,
        config: EngineThreadConfig,
        events: Consumer<EngineEvent>,
        updates: Producer<RateUpdate>,
        shared: Arc<ThreadFlags>,
        wake: W,
    ) -> Self {
        Self {
            driver,
            config,
            events,
            updates,
            shared,
            wake,
        }
    }

    pub(super) fn run(mut self) {
        if let Some(core) = self.config.pin_core
            && let Err(error) = affinity::pin_current_thread(core)
        {
            tracing::warn!(core, %error, "the engine thread is not pinned");
        }
        if let Err(error) = sched::ask_for_slices(SLICE_NS) {
            tracing::debug!(%error, "the engine thread keeps its time slices");
        }
        let mut next_tick = clock::now();
        while !self.stopping() {
            let now = clock::now();
            self.tell_loads();
            if self.events.is_empty() {
                if self.driver.is_settled() {
                    self.rest(now);
                    continue;
                }
                if now < next_tick {
                    self.park(next_tick - now);
                    continue;
                }
            }
            self.step(now);
            // A timer is measured from the begin of a step, so its duration does not add to the
            // interval.
            if let Interval::Timer(ns) = self.config.interval {
                next_tick = now + Duration::from_nanos(ns);
            }
        }
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    /// Hands over the links' loads, if they are asked for. O(links).
    fn tell_loads(&self) {
        if self.shared.loads_wanted.swap(false, Ordering::Relaxed) {
            let mut loads_bps = Vec::new();
            self.driver.link_loads(&mut loads_bps);
            let told = self.shared.loads_bps.lock();
            *told.unwrap_or_else(PoisonError::into_inner) = Some(loads_bps);
        }
    }

    /// Applies queued events, iterates once, sends the updates.
    fn step(&mut self, now: Instant) {
        // A bounded batch: neither a flood of events nor a link's failure keeps the iteration from
        // happening.
        let mut cost = 0;
        while cost < EVENTS_AT_ONCE
            && let Ok(event) = self.events.pop()
        {
            cost += cost_of(&event);
            self.driver.apply(event);
        }
        self.driver.iterate(now);
        self.send();
        if !self.driver.is_settled() {
            self.driver.maintain(now);
        }
    }

    /// Sends waiting and new rates as far as the ring has space.
    fn send(&mut self) {
        let updates = &mut self.updates;
        let mut sent = 0;
        loop {
            sent += self
                .driver
                .drain_into(|update| updates.push(update).is_ok());
            if !self.driver.has_undrained() {
                break;
            }
        }
        // Once for all updates: `wake` may cost a system call.
        if sent > 0 {
            (self.wake)();
        }
    }

    /// Parks until an event comes, for `pause` at most.
    fn park(&self, pause: Duration) {
        self.shared.idle.store(true, Ordering::Relaxed);
        // The flag goes up before the ring is checked; `EngineHandle::push` fences likewise. Either
        // this sees the event, or the producer sees the flag and unparks.
        fence(Ordering::SeqCst);
        let is_asked = self.shared.loads_wanted.load(Ordering::Relaxed);
        if self.events.is_empty() && !is_asked && !self.stopping() {
            thread::park_timeout(pause);
        }
        self.shared.idle.store(false, Ordering::Relaxed);
    }

    /// Does deferred work of a settled engine, then parks until an event comes.
    fn rest(&mut self, now: Instant) {
        if self.driver.has_backlog() {
            self.send();
        }
        let pause = self.driver.maintain(now);
        self.park(pause);
    }
}
