//! The loop of the engine thread.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indexmap::IndexMap;
use ratewright_common::sched;
use rtrb::{Consumer, Producer, PushError};
use rustc_hash::FxBuildHasher;

use super::{EngineThreadConfig, Interval, LONG_PARK, Shared};
use crate::engine::{
    EngineError, EngineEvent, EngineStats, FlowKey, LinkLoad, RateEngine, RateUpdate, affinity,
    clock,
};

/// Shorter than others' slices, so that a start wakes the engine at once even on a busy core, and longer than
/// those of the threads that carry its rates away, so that they need not wait for it to come to rest.
const SLICE_NS: u64 = 5 * sched::HOT_SLICE_NS;
/// Links in a snapshot.
const TOP_LINKS: usize = 16;
/// Snapshots are at least this far apart, so that a busy engine does not spend itself on them.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// The distance from the optimum is measured at most this often while flows come and go: it looks at every
/// flow, for milliseconds where there are tens of thousands, and a start that comes meanwhile waits.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// Iteration times are looked at over one to two of these.
const WINDOW: Duration = Duration::from_secs(5);
/// Iterations longer than this count as this long.
const LONGEST_NS: u64 = 60_000_000_000;
/// A full update ring is tried again after this long by an engine that has settled.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// The engine with everything around it that lives on its thread.
pub(super) struct Worker<W> {
    engine: Box<dyn RateEngine>,
    config: EngineThreadConfig,
    events: Consumer<EngineEvent>,
    updates: Producer<RateUpdate>,
    shared: Arc<Shared>,
    wake: W,
    /// Newest rates that found no room in the ring, oldest first.
    waiting: IndexMap<FlowKey, f64, FxBuildHasher>,
    stats: EngineStats,
    times: Times,
    published: Instant,
    measured: Instant,
    iterated: Instant,
    /// The snapshot that others see is older than the figures here.
    stale: bool,
    /// Iterations ran since the distance from the optimum was measured.
    unmeasured: bool,
    loads_bps: Vec<f64>,
    capacities_bps: Vec<f64>,
}

impl<W: Fn() + Send + 'static> Worker<W> {
    pub(super) fn new(
        engine: Box<dyn RateEngine>,
        config: EngineThreadConfig,
        events: Consumer<EngineEvent>,
        updates: Producer<RateUpdate>,
        shared: Arc<Shared>,
        wake: W,
    ) -> Self {
        let now = clock::now();
        Self {
            engine,
            config,
            events,
            updates,
            shared,
            wake,
            waiting: IndexMap::default(),
            stats: EngineStats {
                settled: true,
                ..EngineStats::default()
            },
            times: Times::new(now),
            published: now,
            measured: now,
            iterated: now,
            stale: true,
            unmeasured: false,
            loads_bps: Vec::new(),
            capacities_bps: Vec::new(),
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
            if self.events.is_empty() {
                if self.stats.settled {
                    self.rest(now);
                    continue;
                }
                if now < next_tick {
                    self.park(next_tick - now);
                    continue;
                }
            }
            self.step(now);
            if let Interval::Timer(ns) = self.config.interval {
                next_tick = now + Duration::from_nanos(ns);
            }
        }
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    /// Applies what waits, iterates once, sends what moved.
    fn step(&mut self, now: Instant) {
        // A bounded batch: a flood of events must not keep the iteration from happening.
        for _ in 0..self.events.slots() {
            match self.events.pop() {
                Ok(event) => self.apply(event),
                Err(_) => break,
            }
        }
        let report = self.engine.iterate();
        self.stats.last_report = report;
        self.stats.settled = report.settled;
        self.stats.iterations += 1;
        self.stats.last_iteration_ns = u64::try_from(now.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.times.record(now, self.stats.last_iteration_ns);
        self.stale = true;
        self.unmeasured = true;
        self.iterated = now;
        self.send();
        if now.duration_since(self.published) >= PUBLISH_EVERY {
            // The rates go out before the figures, even where both threads share a core.
            thread::yield_now();
            self.publish(now, MEASURE_EVERY);
        }
    }

    fn apply(&mut self, event: EngineEvent) {
        match &event {
            EngineEvent::Start(spec) => {
                self.waiting.swap_remove(&spec.key);
            }
            EngineEvent::End(key) => {
                self.waiting.swap_remove(key);
            }
            EngineEvent::DropSession(session) => {
                self.waiting.retain(|key, _| key.session() != *session);
            }
            EngineEvent::Reset { .. } => self.waiting.clear(),
            EngineEvent::Reroute { .. } | EngineEvent::Capacity { .. } => {}
        }
        match self.engine.apply(event) {
            Ok(()) => self.stats.events_applied += 1,
            Err(EngineError::Full { .. }) => self.stats.events_refused_full += 1,
            Err(EngineError::UnknownFlow(_)) => self.stats.events_refused_unknown_flow += 1,
            Err(error) => {
                self.stats.events_refused_invalid += 1;
                tracing::debug!(%error, "the engine refused an event");
            }
        }
    }

    /// Sends what waited and what moved, as far as the ring has room.
    fn send(&mut self) {
        let (waiting, stats) = (&mut self.waiting, &mut self.stats);
        self.engine.drain_updates(&mut |update| {
            if waiting.insert(update.key, update.rate_bps).is_some() {
                stats.updates_superseded += 1;
            }
        });
        let mut sent = 0;
        for (&key, &rate_bps) in waiting.iter() {
            match self.updates.push(RateUpdate { key, rate_bps }) {
                Ok(()) => sent += 1,
                Err(PushError::Full(_)) => break,
            }
        }
        if sent > 0 {
            waiting.drain(..sent);
            stats.updates_sent += sent as u64;
            self.stale = true;
            (self.wake)();
        }
        stats.updates_waiting = waiting.len();
    }

    /// Sleeps until an event comes, for `pause` at most.
    fn park(&self, pause: Duration) {
        self.shared.idle.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.events.is_empty() && !self.stopping() {
            thread::park_timeout(pause);
        }
        self.shared.idle.store(false, Ordering::Relaxed);
    }

    /// Nothing moves and nothing waits: does what was put off, or sleeps until an event comes.
    fn rest(&mut self, now: Instant) {
        if !self.waiting.is_empty() {
            self.send();
        }
        let since = now.duration_since(self.published);
        if self.stale && since >= PUBLISH_EVERY {
            let quiet = now.duration_since(self.iterated) >= PUBLISH_EVERY;
            let measure_after = if quiet { PUBLISH_EVERY } else { MEASURE_EVERY };
            self.publish(now, measure_after);
        }
        let pause = match (self.waiting.is_empty(), self.stale) {
            (false, _) => RETRY_EVERY,
            (true, true) => PUBLISH_EVERY.saturating_sub(since),
            (true, false) => LONG_PARK,
        };
        self.park(pause);
    }

    fn publish(&mut self, now: Instant, measure_after: Duration) {
        if self.unmeasured && now.duration_since(self.measured) >= measure_after {
            self.stats.optimality = self.engine.optimality();
            self.measured = now;
            self.unmeasured = false;
        }
        self.stats.flows = self.engine.flow_count();
        self.stats.p50_iteration_ns = self.times.quantile(0.5);
        self.stats.p99_iteration_ns = self.times.quantile(0.99);
        self.stats.top_links = self.top_links();
        self.shared.stats.store(Arc::new(self.stats.clone()));
        self.published = now;
        // It comes back for the measurement.
        self.stale = self.unmeasured;
    }

    fn top_links(&mut self) -> Vec<LinkLoad> {
        self.engine.link_loads(&mut self.loads_bps);
        self.engine.link_capacities(&mut self.capacities_bps);
        let mut links: Vec<LinkLoad> = (0u32..)
            .zip(self.loads_bps.iter().zip(&self.capacities_bps))
            .map(|(link, (&load_bps, &capacity_bps))| LinkLoad {
                link,
                load_bps,
                capacity_bps,
            })
            .filter(|link| link.load_bps > 0.0)
            .collect();
        let fullest = |a: &LinkLoad, b: &LinkLoad| {
            b.utilization()
                .total_cmp(&a.utilization())
                .then(a.link.cmp(&b.link))
        };
        if links.len() > TOP_LINKS {
            links.select_nth_unstable_by(TOP_LINKS - 1, fullest);
            links.truncate(TOP_LINKS);
        }
        links.sort_unstable_by(fullest);
        links
    }
}

/// Iteration times of this window and the one before.
struct Times {
    current: Histogram<u64>,
    previous: Histogram<u64>,
    began: Instant,
}

impl Times {
    fn new(now: Instant) -> Self {
        // A fixed range: `saturating_record` does not widen a histogram that resizes.
        let empty =
            Histogram::new_with_max(LONGEST_NS, 2).expect("two digits over a minute are valid");
        Self {
            current: empty.clone(),
            previous: empty,
            began: now,
        }
    }

    fn record(&mut self, now: Instant, ns: u64) {
        if now.duration_since(self.began) >= WINDOW {
            std::mem::swap(&mut self.current, &mut self.previous);
            self.current.reset();
            self.began = now;
        }
        self.current.saturating_record(ns);
    }

    fn quantile(&self, q: f64) -> u64 {
        let mut both = self.previous.clone();
        if both.add(&self.current).is_err() {
            return self.current.value_at_quantile(q);
        }
        both.value_at_quantile(q)
    }
}
