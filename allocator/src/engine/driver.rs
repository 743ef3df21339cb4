//! Driver of an engine: applies events, iterates, keeps rates that found no space, publishes
//! figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use hdrhistogram::Histogram;

use super::{
    DurationHistogram, EngineError, EngineEvent, EngineStats, LinkLoad, RateEngine, RateUpdate,
    Scan, clock,
};
use backlog::RateBacklog;

mod backlog;

/// Cost of the events that the engine's thread applies before an iteration, in starts (see
/// [`cost_of`]). Without the bound, other work would wait for a flood of events.
pub const EVENTS_AT_ONCE: usize = 1 << 13;

/// Links in a snapshot.
const TOP_LINKS: usize = 16;
/// Least time between two snapshots, so that a busy engine does not spend itself on them.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// Parts of time of which one goes into scans while flows come and go. A scan of every flow finds
/// links' loads and the distance from the optimum.
const SCAN_SHARE: u32 = 1_000;
/// Longest time that a step of a scan counts for. What takes longer is an interruption of the
/// thread, after which the figures would stand still for [`SCAN_SHARE`] times as long.
const LONGEST_STEP: Duration = Duration::from_millis(5);
/// Flows per step of a scan: some ten microseconds, since a start that comes meanwhile waits.
const FLOWS_PER_SCAN_STEP: usize = 32;
/// Iteration times count for one to two of these.
const WINDOW: Duration = Duration::from_secs(5);
/// Upper bound of a recorded iteration.
const LONGEST_NS: u64 = 60_000_000_000;
/// Rates that are handed over at once: a millisecond or so, since leases wait meanwhile.
pub const RATES_AT_ONCE: usize = 1 << 12;
/// Interval at which a settled engine offers rates again that found no space.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Longest pause of a settled engine that has work left for later.
const LONG_PAUSE: Duration = Duration::from_secs(3_600);

/// Returns the cost of an event to an engine, in starts. A reroute takes the flow out of its row
/// and inserts it into another. A capacity applies all queued events first, then visits the link's
/// flows.
#[must_use]
pub fn cost_of(event: &EngineEvent) -> usize {
    match event {
        EngineEvent::Start(_) | EngineEvent::End(_) => 1,
        EngineEvent::Reroute { .. } => 16,
        EngineEvent::EndAll(numbers) => numbers.len().max(1),
        EngineEvent::Capacity { .. } => EVENTS_AT_ONCE / 4,
        EngineEvent::Reset { .. } => EVENTS_AT_ONCE,
    }
}

/// Published figures of an engine, for readers on other threads.
pub type Snapshot = Arc<ArcSwap<EngineStats>>;

/// An engine and its driver's state. A thread that does other work besides drives it.
///
/// Call [`apply`](Self::apply) with events, and [`iterate`](Self::iterate) until
/// [`is_settled`](Self::is_settled). Call [`drain_into`](Self::drain_into) after each iteration,
/// and [`maintain`](Self::maintain) when it asks for it.
pub struct EngineDriver {
    engine: Box<dyn RateEngine>,
    snapshot: Snapshot,
    /// Newest rates that found no space, oldest first.
    backlog: RateBacklog,
    /// The engine has handed over a part of its rates only.
    undrained: bool,
    stats: EngineStats,
    times: IterationTimes,
    /// Durations of iterations, without the events before them.
    histogram: Arc<DurationHistogram>,
    published: Instant,
    /// Scan of all flows; `scans` is true while it runs.
    scan: Scan,
    scans: bool,
    /// Begin of the last scan, and its duration so far.
    scan_began: Instant,
    scan_time: Duration,
    iterated: Instant,
    /// The published snapshot is older than `stats`.
    stale: bool,
    /// Iterations have run since the distance from the optimum was measured.
    unmeasured: bool,
    capacities_bps: Vec<f64>,
    prices: Vec<f64>,
}

impl EngineDriver {
    /// Makes a driver of a settled engine, whose iterations' durations go into `histogram`.
    #[must_use]
    pub fn new(engine: Box<dyn RateEngine>, histogram: Arc<DurationHistogram>) -> Self {
        let now = clock::now();
        Self {
            engine,
            snapshot: Snapshot::default(),
            backlog: RateBacklog::default(),
            undrained: false,
            stats: EngineStats {
                settled: true,
                ..EngineStats::default()
            },
            times: IterationTimes::new(now),
            histogram,
            published: now,
            scan: Scan::default(),
            scans: false,
            scan_began: now,
            scan_time: Duration::ZERO,
            iterated: now,
            stale: true,
            unmeasured: false,
            capacities_bps: Vec::new(),
            prices: Vec::new(),
        }
    }

    /// Its published figures.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.snapshot)
    }

    /// Writes the allocated load of every link after the last iteration, in bit/s, by link index.
    pub fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        self.engine.link_loads(loads_bps);
    }

    /// True if another iteration changes nothing until the next event.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.stats.settled
    }

    /// Applies an event, and counts refusals.
    pub fn apply(&mut self, event: EngineEvent) {
        // Rates of these flows that still wait are obsolete, or would name another flow.
        match &event {
            EngineEvent::Start(spec) => {
                self.backlog.forget(spec.number);
            }
            EngineEvent::End(number) => {
                self.backlog.forget(*number);
            }
            EngineEvent::EndAll(numbers) => {
                (numbers.iter()).for_each(|&number| self.backlog.forget(number));
            }
            EngineEvent::Reset { .. } => {
                self.backlog.clear();
                self.undrained = false;
                // The scan so far was of other links.
                self.scan.restart();
            }
            EngineEvent::Reroute { .. } | EngineEvent::Capacity { .. } => {}
        }
        self.stats.settled = false;
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

    /// Hands over first rates of new flows, after events and before the iteration.
    pub fn first_rates(&mut self, mut take: impl FnMut(RateUpdate)) {
        self.engine.first_rates(&mut take);
    }

    /// Iterates once. Its duration counts from `began`, when the events before it were begun with.
    pub fn iterate(&mut self, began: Instant) {
        if std::mem::take(&mut self.undrained) {
            // Only a caller that did not drain in parts pays for all of them at once.
            let (backlog, stats) = (&mut self.backlog, &mut self.stats);
            let mut keep = |update| stats.updates_superseded += u64::from(backlog.put(update));
            self.engine.drain_updates(&mut keep);
        }
        let iterates = clock::now();
        let report = self.engine.iterate();
        let whole_ns = |since: Instant| u64::try_from(since.elapsed().as_nanos());
        self.histogram
            .record(whole_ns(iterates).unwrap_or(u64::MAX));
        self.stats.last_report = report;
        self.stats.settled = report.settled;
        self.stats.iterations += 1;
        self.stats.last_iteration_ns = whole_ns(began).unwrap_or(u64::MAX);
        self.times.record(began, self.stats.last_iteration_ns);
        self.stale = true;
        self.unmeasured = true;
        self.iterated = began;
    }

    /// Offers waiting and new rates to `take`, which returns true if it has space. A refused rate
    /// waits, the newest of each flow. Offers at most [`RATES_AT_ONCE`] and returns the number
    /// taken. While [`has_undrained`](Self::has_undrained), call it again before the engine
    /// iterates.
    pub fn drain_into(&mut self, mut take: impl FnMut(RateUpdate) -> bool) -> usize {
        let (backlog, stats) = (&mut self.backlog, &mut self.stats);
        let mut sent = 0;
        let mut room = true;
        if backlog.is_empty() {
            self.undrained = self.engine.drain_some(RATES_AT_ONCE, &mut |update| {
                room = room && take(update);
                if room {
                    sent += 1;
                } else {
                    backlog.put(update);
                }
            });
        } else {
            // Waiting rates go first: they are the oldest, and a newer one of the same flow
            // replaces them.
            self.undrained = self.engine.drain_some(RATES_AT_ONCE, &mut |update| {
                stats.updates_superseded += u64::from(backlog.put(update));
            });
            for _ in 0..RATES_AT_ONCE {
                let Some(update) = backlog.first() else { break };
                if !take(update) {
                    break;
                }
                backlog.forget(update.number);
                sent += 1;
            }
        }
        if sent > 0 {
            stats.updates_sent += sent as u64;
            self.stale = true;
        }
        stats.updates_waiting = backlog.len();
        sent
    }

    /// True if rates wait that found no space.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.undrained || !self.backlog.is_empty()
    }

    /// True while the engine has to hand over rates before it may iterate.
    #[must_use]
    pub fn has_undrained(&self) -> bool {
        self.undrained
    }

    /// Publishes figures when due, after a scan of all flows when due, a step per call. Returns the
    /// pause after which to call it again if the engine rests meanwhile.
    pub fn maintain(&mut self, now: Instant) -> Duration {
        if self.scans {
            if !self.scan() {
                return Duration::ZERO;
            }
            self.publish(now);
        }
        let since = now.duration_since(self.published);
        let quiet = now.duration_since(self.iterated) >= PUBLISH_EVERY;
        if self.stale && since >= PUBLISH_EVERY {
            // A scan in proportion to its own duration; one that follows the last iteration comes
            // at once.
            let pause = if self.unmeasured && quiet {
                Duration::ZERO
            } else {
                SCAN_SHARE * self.scan_time
            };
            if now.duration_since(self.scan_began) >= pause {
                (self.scan_began, self.scan_time) = (now, Duration::ZERO);
                (self.scans, self.unmeasured) = (true, false);
                self.scan.restart();
                return Duration::ZERO;
            }
            self.publish(now);
        }
        if !self.stats.settled {
            return PUBLISH_EVERY;
        }
        match (!self.has_backlog(), self.stale) {
            (false, _) => RETRY_EVERY,
            // Due later: it is called again then.
            (true, true) if since < PUBLISH_EVERY => PUBLISH_EVERY - since,
            (true, true) => PUBLISH_EVERY,
            (true, false) => LONG_PAUSE,
        }
    }

    /// Makes a step of the scan; returns true if it is complete.
    fn scan(&mut self) -> bool {
        let began = clock::now();
        let done = self.engine.scan(&mut self.scan, FLOWS_PER_SCAN_STEP);
        if done {
            self.scans = false;
            self.stats.optimality = self.scan.optimality;
            self.stats.links = self.all_links();
            self.stats.top_links = top_links(&self.stats.links);
        }
        self.scan_time += began.elapsed().min(LONGEST_STEP);
        done
    }

    fn publish(&mut self, now: Instant) {
        self.stats.flows = self.engine.flow_count();
        self.stats.exceptions = self.engine.exceptions();
        self.stats.p50_iteration_ns = self.times.quantile(0.5);
        self.stats.p99_iteration_ns = self.times.quantile(0.99);
        self.snapshot.store(Arc::new(self.stats.clone()));
        self.published = now;
        // Still stale if a scan is due: its results have to be published, too.
        self.stale = self.unmeasured;
    }

    fn all_links(&mut self) -> Arc<[LinkLoad]> {
        self.engine.link_capacities(&mut self.capacities_bps);
        self.engine.link_prices(&mut self.prices);
        (0u32..)
            .zip(self.scan.loads_bps.iter().zip(&self.capacities_bps))
            .map(|(link, (&load_bps, &capacity_bps))| LinkLoad {
                link,
                load_bps,
                capacity_bps,
                price: self.prices.get(link as usize).copied().unwrap_or(0.0),
            })
            .collect()
    }
}

/// Returns the fullest links with a load, fullest first.
fn top_links(links: &[LinkLoad]) -> Vec<LinkLoad> {
    fullest_links(links, TOP_LINKS)
}

/// Returns at most `most` links with a load, fullest first.
#[must_use]
pub fn fullest_links(links: &[LinkLoad], most: usize) -> Vec<LinkLoad> {
    let loaded = links.iter().filter(|link| link.load_bps > 0.0);
    let mut links: Vec<LinkLoad> = loaded.copied().collect();
    let fullest = |a: &LinkLoad, b: &LinkLoad| {
        b.utilization()
            .total_cmp(&a.utilization())
            .then(a.link.cmp(&b.link))
    };
    // Selection before sorting: a network has many more links than the answer.
    if most == 0 {
        return Vec::new();
    }
    if links.len() > most {
        links.select_nth_unstable_by(most - 1, fullest);
        links.truncate(most);
    }
    links.sort_unstable_by(fullest);
    links
}

/// Iteration times of this window and the one before.
struct IterationTimes {
    current: Histogram<u64>,
    previous: Histogram<u64>,
    began: Instant,
}

impl IterationTimes {
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
        // From the durations of two windows: one that has just begun holds too few.
        let mut both = self.previous.clone();
        if both.add(&self.current).is_err() {
            return self.current.value_at_quantile(q);
        }
        both.value_at_quantile(q)
    }
}

#[cfg(test)]
mod tests;
