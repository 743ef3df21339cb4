//! The engine for many flows and cores: FlowBlocks, LinkBlocks and workers (flowtune §4).
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`ParallelEngine`]: events in, iterations, rates out |
//! | `sizing`, `layout` | how many blocks and workers; LinkBlock, table and slot of each link |
//! | `flows`, `placement`, `event_batch` | starts, ends, reroutes, capacities; a flow's place; events queued by FlowBlock |
//! | `price_correction`, `flow_delta`, `dirty_links` | prices corrected for events, before the iteration |
//! | `flow_block`, `rows`, `rack_pair_rows` | a FlowBlock's flows in vector rows: no gathers, no scatters |
//! | `cell`, `lanes` | a flow's place in a row; sixteen values side by side |
//! | `compact` | compaction: fuller rows, flows in the order of their destinations |
//! | `kernels` | passes over a FlowBlock by instruction set: rate update, F-NORM, notification |
//! | `link_block`, `price_update` | aggregation; price update and F-NORM scale of a block's links |
//! | `scalar_flows` | flows that no row holds, one by one in f64 |
//! | `state` | what the next iteration has to do; how events reach the rows |
//! | `shared` | what workers, events and views share, with a lock for each piece |
//! | `worker`, `barrier`, `sync` | each worker's part of an iteration, and the barriers between |
//! | `directory` | locations of flows by number |
//! | `introspect`, `memory`, `phases` | loads and optimality; bytes by part; times by phase |
//!
//! Events (`EngineFlows`), workers (`Worker`) and views (`FlowReader`) know one another by the
//! shared state alone.
//!
//! Without events, an iteration is one pass over the flows: it normalises the last iteration's
//! rates (F-NORM), notifies those that moved, and computes new rates from the new prices.
//!
//! After events, prices are corrected first. A pass then updates rates and prices without
//! notifying. The iteration proper updates both once more and normalises its own rates at once, in
//! a second pass. Notified rates therefore fit the present flows and capacities, and a new flow has
//! its rate in the iteration after its start.
//!
//! One pass has to do if events precede every iteration. New flows take their rates from the
//! price correction, and dirty links their loads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use ratewright_topology::Topology;

mod barrier;
mod cell;
mod compact;
mod directory;
mod dirty_links;
mod event_batch;
mod flow_block;
mod flow_delta;
mod flows;
mod introspect;
mod kernels;
mod lanes;
mod layout;
mod link_block;
mod memory;
mod phases;
mod placement;
mod price_correction;
mod price_update;
mod rack_pair_rows;
mod rows;
mod scalar_flows;
mod shared;
mod sizing;
mod state;
mod sync;
mod worker;

#[cfg(test)]
mod barrier_tests;
#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod compact_tests;
#[cfg(test)]
mod demand_tests;
#[cfg(test)]
mod flow_block_tests;
#[cfg(test)]
mod tests;

pub use kernels::Simd;
pub use layout::{Layout, MOST_BLOCKS};
pub use memory::EngineBytes;
pub use phases::PhaseNanos;
pub use sizing::{default_blocks, default_workers};

use self::barrier::Barrier;
use self::flows::EngineFlows;
use self::introspect::FlowReader;
use self::kernels::{Kernels, Notification};
use self::phases::PhaseClock;
use self::price_correction::Corrected;
use self::price_update::UpdateReport;
use self::shared::ParallelState;
use self::state::{CompactionTurns, EngineState, RowUpdates, WaitingUpdates};
use self::sync::lock;
use self::worker::{Pass, Worker};
use super::affinity::{installed_cores, pin_current_thread};
use super::{
    EngineConfig, EngineError, EngineEvent, Exceptions, FlowNumber, IterationReport, Optimality,
    RateEngine, RateUpdate, Scan,
};
use crate::num::RATE_UNIT_BPS;

/// Iterations without any rate past the threshold after which the engine rests.
const MAX_QUIET_ITERATIONS: u32 = 1000;
/// Updates of a worker for which memory is always kept.
const KEPT_UPDATES: usize = 1 << 13;
/// Flows passed over per compacted table while every iteration follows events: a table in every
/// eleventh iteration with 49,152 flows, in each with a million. Moving a flow costs as much as two
/// hundred rate updates, and new flows fill the rows that exist. Compacting in every iteration
/// makes iterations under heavy churn longer by a sixth to a half, and rows no fuller.
const FLOWS_PER_COMPACTION: usize = 1 << 19;
/// Upper bound of the workers: the location of a scalar flow has 9 bits for its worker.
pub const MOST_WORKERS: usize = 256;

/// Use of the machine by a [`ParallelEngine`].
#[derive(Clone, Debug)]
pub struct ParallelOptions {
    /// Threads that iterate, the caller's included; at most the square of the blocks.
    pub workers: usize,
    /// Blocks to cut a topology into; if not given, a number that suits it and the workers.
    pub blocks: Option<u32>,
    /// Cores to pin the workers to, the second worker to the second core. The first worker runs on
    /// its caller's thread, which the caller pins to the first (see [`pin_current_thread`]).
    pub cores: Vec<usize>,
    /// The instruction set; lowered to the best that the machine has.
    pub simd: Simd,
}

impl Default for ParallelOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            blocks: None,
            cores: Vec::new(),
            simd: Simd::best(),
        }
    }
}

/// NED, F-NORM and the threshold filter, in single precision, on many cores.
pub struct ParallelEngine {
    config: EngineConfig,
    options: ParallelOptions,
    flows: EngineFlows,
    shared: Arc<ParallelState>,
    worker: Worker,
    threads: Vec<JoinHandle<()>>,
    state: EngineState,
    /// The last iteration that computed rates followed events.
    followed_events: bool,
    compaction: CompactionTurns,
    updates: WaitingUpdates,
    phases: PhaseNanos,
    /// Prices that were not a number, and restarted.
    price_resets: u64,
}

impl ParallelEngine {
    /// Makes an engine without flows for a topology, cut as the options say and as far as the
    /// topology allows. Workers beyond the square of the blocks are not started.
    ///
    /// # Errors
    /// A setting or a capacity is out of range.
    pub fn for_topology(
        config: EngineConfig,
        options: ParallelOptions,
        topology: &Topology,
        capacities_bps: &[f64],
    ) -> Result<Self, EngineError> {
        let layout = Layout::fitting(topology, options.blocks, options.workers).map_err(|_| {
            EngineError::BadSetting {
                name: "blocks",
                value: f64::from(options.blocks.unwrap_or_default()),
                expected: "a power of two that the topology can be cut into",
            }
        })?;
        let most = (layout.blocks as usize).pow(2);
        let wanted = options.workers;
        let mut engine = Self::new(
            config,
            ParallelOptions {
                workers: wanted.min(most),
                ..options
            },
            layout,
            capacities_bps,
        )?;
        // A reset may bring a topology that has use for them.
        engine.options.workers = wanted;
        Ok(engine)
    }

    /// Makes an engine without flows for the links of a layout.
    ///
    /// # Errors
    /// A setting or a capacity is out of range.
    pub fn new(
        config: EngineConfig,
        options: ParallelOptions,
        layout: Layout,
        capacities_bps: &[f64],
    ) -> Result<Self, EngineError> {
        config.check()?;
        let most = (layout.blocks as usize).pow(2).min(MOST_WORKERS);
        if options.workers == 0 || options.workers > most {
            return Err(EngineError::BadSetting {
                name: "workers",
                value: options.workers as f64,
                expected: "1 to the square of the number of blocks, and to 256",
            });
        }
        if layout.blocks > MOST_BLOCKS {
            return Err(EngineError::BadSetting {
                name: "blocks",
                value: f64::from(layout.blocks),
                expected: "at most 64",
            });
        }
        if layout.links() != capacities_bps.len() {
            return Err(EngineError::BadSetting {
                name: "capacities",
                value: capacities_bps.len() as f64,
                expected: "one for each link of the layout",
            });
        }
        let flows = EngineFlows::new(&config, &layout, capacities_bps)?;
        let workers = options.workers;
        let shared = Arc::new(ParallelState::new(
            &config,
            layout,
            &flows.capacities,
            Kernels::new(options.simd),
            workers,
            Barrier::new(workers, cores_of(&options)),
        ));
        let threads = (1..workers)
            .map(|index| start_worker(&shared, index, options.cores.get(index).copied()))
            .collect();
        Ok(Self {
            price_resets: 0,
            config,
            options,
            flows,
            shared,
            worker: Worker::new(0),
            threads,
            state: EngineState::Disturbed,
            followed_events: false,
            compaction: CompactionTurns {
                idle: 0,
                flows_since: 0,
                flows_between: FLOWS_PER_COMPACTION,
            },
            updates: WaitingUpdates::default(),
            phases: PhaseNanos::default(),
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn simd(&self) -> Simd {
        self.shared.kernels.simd()
    }

    /// Times the parts of iterations from now on, or no longer. Resets the sums.
    pub fn time_phases(&mut self, timed: bool) {
        self.shared.timed.store(timed, Ordering::Relaxed);
        self.phases = PhaseNanos::default();
    }

    /// Times since [`time_phases`](Self::time_phases).
    #[must_use]
    pub fn phases(&self) -> PhaseNanos {
        self.phases
    }

    /// Normalised rates of all flows after the last iteration.
    #[must_use]
    pub fn rates_bps(&self) -> Vec<(FlowNumber, f64)> {
        self.reader().rates_bps()
    }

    /// Normalised rate of a flow after the last iteration, notified or not.
    #[must_use]
    pub fn rate_bps(&self, key: FlowNumber) -> Option<f64> {
        self.reader().rate_bps(key)
    }

    /// Prices by link, in utility per Gbit/s.
    #[must_use]
    pub fn prices(&self) -> Vec<f64> {
        self.reader().prices()
    }

    /// Number of flows in rows; the others are on the scalar path.
    #[must_use]
    pub fn flows_in_rows(&self) -> usize {
        self.flow_count() - self.shared.scalar_count.load(Ordering::Relaxed) as usize
    }

    /// Counts the engine's bytes. Locks every part once.
    #[must_use]
    pub fn bytes(&self) -> EngineBytes {
        EngineBytes::count(&self.shared, &self.flows)
    }

    fn reader(&self) -> FlowReader<'_> {
        FlowReader {
            shared: &self.shared,
            directory: &self.flows.directory,
            capacities: &self.flows.capacities,
        }
    }

    fn reset(
        &mut self,
        topology: Option<&Topology>,
        capacities_bps: &[f64],
    ) -> Result<(), EngineError> {
        let (config, mut options) = (self.config.clone(), self.options.clone());
        if let Some(topology) = topology {
            *self =
                match Self::for_topology(config.clone(), options.clone(), topology, capacities_bps)
                {
                    // This topology cannot be cut into the blocks that were asked for.
                    Err(EngineError::BadSetting { name: "blocks", .. }) => {
                        let any = ParallelOptions {
                            blocks: None,
                            ..options.clone()
                        };
                        let mut engine = Self::for_topology(config, any, topology, capacities_bps)?;
                        engine.options.blocks = options.blocks;
                        engine
                    }
                    made => made?,
                };
            return Ok(());
        }
        let layout = if capacities_bps.len() == self.flows.capacities.len() {
            self.shared.layout.clone()
        } else {
            Layout::unknown(capacities_bps.len())
        };
        let wanted = options.workers;
        options.workers = wanted.min((layout.blocks as usize).pow(2));
        *self = Self::new(config, options, layout, capacities_bps)?;
        self.options.workers = wanted;
        Ok(())
    }

    /// Corrects prices for the events since the last correction. With `notify`, lists new flows'
    /// rates.
    fn correct_prices(&mut self, notify: bool) -> Corrected {
        self.flows.correct_prices(&self.shared, notify)
    }

    fn run(&mut self, pass: Pass) -> UpdateReport {
        // Relaxed is enough: the barrier orders the store before the workers' loads.
        self.shared.pass.store(pass as u8, Ordering::Relaxed);
        self.shared.barrier.enter(0);
        if self.worker.iterate(&self.shared).is_err() {
            // A worker that panicked closed the barrier, and its FlowBlocks are in an unknown
            // state.
            let worker = self.shared.barrier.panicked();
            panic!("worker {worker:?} of the engine panicked");
        }
        let mut report = UpdateReport::default();
        let mut waiting = 0;
        for (index, outbox) in self.shared.outboxes.iter().enumerate() {
            let mut outbox = lock(outbox);
            report.merge(outbox.report);
            // One worker that found something is enough to go on compacting.
            self.compaction.idle *= usize::from(!std::mem::take(&mut outbox.compacted));
            // Phase times are the first worker's: the sums of all would count waits several times.
            if index == 0 && pass == Pass::PricesOnly {
                self.phases.add_extra_pass(&outbox.times);
            } else if index == 0 {
                self.phases.add(&outbox.times);
            }
            waiting += outbox.updates.len();
        }
        self.updates.in_outboxes = waiting;
        self.price_resets += u64::from(report.resets);
        report
    }

    fn has_converged(&self, report: &UpdateReport) -> bool {
        let tolerance = self.config.settle_tolerance as f32;
        report.change <= tolerance && report.residual <= tolerance
    }

    /// Makes an iteration's pass, which normalises the last one's rates and computes new ones.
    ///
    /// The next pass normalises these. If no next pass is due, because prices stand still, they are
    /// normalised in an iteration of their own: a caller polls between two passes.
    fn iterate_once(&mut self, quiet: u32) -> IterationReport {
        let report = self.run(Pass::Pipelined);
        let iterations = self.quiet_after(quiet);
        let stands_still = self.has_converged(&report) || iterations >= MAX_QUIET_ITERATIONS;
        if self.updates.in_outboxes > 0 || !stands_still {
            return self.conclude(iterations, false, &report);
        }
        self.state = EngineState::Unnormalized { iterations, report };
        self.report(&report, false)
    }

    /// Makes an iteration's passes after events whose prices were corrected to this extent.
    fn iterate_after_events(&mut self, corrected: Corrected) -> IterationReport {
        match corrected {
            // New flows have rates, and the loads of all are known.
            Corrected::Rates => return self.iterate_once(0),
            // More events than the correction takes: the links respond before any rate is notified.
            Corrected::Overrun => {
                self.run(Pass::PricesOnly);
            }
            Corrected::Nothing => {}
        }
        let report = self.run(Pass::UpdateThenNormalize);
        self.conclude(self.quiet_after(0), true, &report)
    }

    /// Iterations in a row without a rate past the threshold, after the present one.
    fn quiet_after(&self, before: u32) -> u32 {
        if self.updates.in_outboxes == 0 {
            before.saturating_add(1)
        } else {
            0
        }
    }

    /// Ends an iteration, whose rates are normalised or wait for the next pass.
    fn conclude(&mut self, quiet: u32, normalized: bool, report: &UpdateReport) -> IterationReport {
        self.state = EngineState::Quiet { iterations: quiet };
        let converged = normalized && self.updates.in_outboxes == 0 && self.has_converged(report);
        // Prices may oscillate below the threshold for ever; no endpoint would notice, so the
        // engine rests.
        let given_up = quiet >= MAX_QUIET_ITERATIONS;
        self.report(report, converged || given_up)
    }

    /// The iteration's report.
    fn report(&self, report: &UpdateReport, settled: bool) -> IterationReport {
        IterationReport {
            flows: self.flow_count(),
            updates: self.updates.in_outboxes,
            max_relative_rate_change: f64::from(report.change),
            max_overload: f64::from(report.overload),
            residual: f64::from(report.residual),
            settled: self.flow_count() == 0 || settled,
        }
    }

    /// Drains the updates of the last iteration from the outboxes.
    fn take_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        if std::mem::take(&mut self.updates.in_outboxes) == 0 {
            return;
        }
        let directory = &self.flows.directory;
        for outbox in &self.shared.outboxes {
            let updates = &mut lock(outbox).updates;
            let enough = KEPT_UPDATES.max(4 * updates.len());
            for Notification { flow, rate } in updates.drain(..) {
                sink(RateUpdate {
                    number: directory.number(flow),
                    rate_bps: f64::from(rate) * RATE_UNIT_BPS,
                });
            }
            // After a start of all flows at once, each outbox has capacity for an update per flow.
            updates.shrink_to(enough);
        }
    }

    /// Drains `most` updates, of which more are waiting.
    fn take_some_updates(&mut self, most: usize, sink: &mut dyn FnMut(RateUpdate)) {
        let mut left = most;
        for outbox in &self.shared.outboxes {
            let updates = &mut lock(outbox).updates;
            let rest = updates.len() - left.min(updates.len());
            left -= updates.len() - rest;
            // From the end, so that nothing has to move within the outbox.
            for Notification { flow, rate } in updates.drain(rest..) {
                sink(RateUpdate {
                    number: self.flows.directory.number(flow),
                    rate_bps: f64::from(rate) * RATE_UNIT_BPS,
                });
            }
        }
        self.updates.in_outboxes -= most - left;
    }

    /// Applies the queued starts and ends.
    fn update_rows(&mut self) {
        self.compaction.idle = 0;
        self.run(Pass::ApplyEvents);
        self.flows.collect_batches(&self.shared);
        self.flows.row_updates = RowUpdates::Current;
    }

    /// Applies the queued starts and ends, and compacts rows as far as they need it. While `busy`,
    /// it compacts only when [`FLOWS_PER_COMPACTION`] flows have been passed over.
    fn compact_rows(&mut self, busy: bool) {
        if busy && self.compaction.flows_since < self.compaction.flows_between {
            if self.flows.row_updates == RowUpdates::Queued {
                self.update_rows();
            }
            self.flows.row_updates = RowUpdates::Current;
            return;
        }
        self.compaction.flows_since = 0;
        // One turn of the worker with the most FlowBlocks: then every FlowBlock has been examined.
        let enough = self.shared.flow_blocks.len().div_ceil(self.shared.workers);
        if self.compaction.idle < enough {
            self.compaction.idle += 1;
            self.run(if busy {
                Pass::Compact
            } else {
                Pass::CompactMore
            });
            self.flows.collect_batches(&self.shared);
            // A whole turn found nothing: the queues stay empty for a while.
            if self.compaction.idle == enough {
                for batch in &self.shared.batches {
                    lock(batch).shrink();
                }
            }
        }
        self.flows.row_updates = RowUpdates::Current;
    }

    /// Counts the flows that an iteration passes over.
    fn count_flows_passed(&mut self) {
        self.compaction.flows_since =
            (self.compaction.flows_since).saturating_add(self.flow_count());
    }
}

impl Drop for ParallelEngine {
    fn drop(&mut self) {
        self.shared.barrier.close();
        for thread in self.threads.drain(..) {
            // A panic was reported on the worker's thread already.
            let _ = thread.join();
        }
    }
}

impl RateEngine for ParallelEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        self.state = self.state.after_event();
        // An end frees its flow's number for the next start, so updates need their generations now.
        if self.updates.in_outboxes > 0 {
            let mut updates = std::mem::take(&mut self.updates.saved);
            self.take_updates(&mut |update| updates.push(update));
            self.updates.saved = updates;
        }
        match event {
            EngineEvent::Start(spec) => self.flows.start(&self.shared, &spec),
            EngineEvent::End(number) => self.flows.end(&self.shared, number),
            EngineEvent::Reroute { number, links } => {
                self.flows.reroute(&self.shared, number, &links)
            }
            EngineEvent::Capacity { link, capacity_bps } => {
                self.flows.set_capacity(&self.shared, link, capacity_bps)
            }
            EngineEvent::EndAll(numbers) => {
                for number in numbers {
                    let _ = self.flows.end(&self.shared, number);
                }
                Ok(())
            }
            EngineEvent::Reset {
                capacities,
                topology,
            } => self.reset(topology.as_deref(), &capacities),
        }
    }

    fn iterate(&mut self) -> IterationReport {
        // The caller has had its chance to drain them (see `RateEngine::drain_some`).
        self.updates.saved.clear();
        self.updates.saved.shrink_to(KEPT_UPDATES);
        self.take_updates(&mut |_| ());
        let mut clock = PhaseClock::new(self.shared.timed.load(Ordering::Relaxed));
        match self.state {
            EngineState::Unnormalized { iterations, report } => {
                self.run(Pass::NormalizeOnly);
                let quiet = if self.updates.in_outboxes > 0 {
                    0
                } else {
                    iterations
                };
                self.conclude(quiet, true, &report)
            }
            EngineState::Quiet { iterations } => {
                self.compact_rows(false);
                self.flows.retry_overflow(&self.shared);
                self.phases.compaction += clock.lap();
                self.followed_events = false;
                self.count_flows_passed();
                self.iterate_once(iterations)
            }
            EngineState::Disturbed => {
                self.compaction.idle = 0;
                self.compact_rows(self.followed_events);
                self.flows.retry_overflow(&self.shared);
                self.phases.compaction += clock.lap();
                let corrected = self.correct_prices(false);
                self.phases.price_correction += clock.lap();
                self.followed_events = true;
                self.count_flows_passed();
                self.iterate_after_events(corrected)
            }
            EngineState::Corrected(before) => {
                // Rows are as `first_rates` left them: compaction would delay the rates.
                if self.flows.row_updates == RowUpdates::Queued {
                    self.update_rows();
                }
                self.flows.retry_overflow(&self.shared);
                self.phases.compaction += clock.lap();
                let corrected = self.correct_prices(false);
                self.phases.price_correction += clock.lap();
                let is_busy = std::mem::replace(&mut self.followed_events, true);
                self.count_flows_passed();
                let report = self.iterate_after_events(corrected.and(before));
                if is_busy {
                    // Otherwise the next iteration compacts, or the one after: no flow waits for
                    // it.
                    self.compact_rows(true);
                }
                report
            }
        }
    }

    fn first_rates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        let before = match self.state {
            EngineState::Quiet { .. } | EngineState::Unnormalized { .. } => return,
            EngineState::Disturbed => Corrected::Nothing,
            // Rates are corrected only if they were each time.
            EngineState::Corrected(before) => before,
        };
        self.update_rows();
        let corrected = self.correct_prices(true);
        self.state = EngineState::Corrected(corrected.and(before));
        let EngineFlows {
            correction: Some(correction),
            directory,
            ..
        } = &mut self.flows
        else {
            return;
        };
        for (flow, rate) in correction.first_rates.drain(..) {
            sink(RateUpdate {
                number: directory.number(flow),
                rate_bps: f64::from(rate) * RATE_UNIT_BPS,
            });
        }
    }

    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        self.updates.saved.drain(..).for_each(&mut *sink);
        self.take_updates(sink);
    }

    fn drain_some(&mut self, most: usize, sink: &mut dyn FnMut(RateUpdate)) -> bool {
        let notified = most.min(self.updates.saved.len());
        let rest = self.updates.saved.len() - notified;
        self.updates.saved.drain(rest..).for_each(&mut *sink);
        if rest == 0 && most - notified >= self.updates.in_outboxes {
            self.take_updates(sink);
            return false;
        }
        self.take_some_updates(most - notified, sink);
        true
    }

    fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        self.reader().write_loads(loads_bps);
    }

    fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
        capacities_bps.clear();
        let capacities = self.flows.capacities.iter();
        capacities_bps.extend(capacities.map(|&c| f64::from(c) * RATE_UNIT_BPS));
    }

    fn link_prices(&self, prices: &mut Vec<f64>) {
        *prices = self.prices();
    }

    fn optimality(&self) -> Optimality {
        let mut scan = Scan::default();
        self.reader().resume_scan(&mut scan, usize::MAX);
        scan.optimality
    }

    fn scan(&self, scan: &mut Scan, flows: usize) -> bool {
        self.reader().resume_scan(scan, flows)
    }

    fn flow_count(&self) -> usize {
        self.flows.directory.len()
    }

    fn exceptions(&self) -> Exceptions {
        let [utility, path, no_room] = self.flows.scalars.by_cause;
        Exceptions {
            flows_of_other_utilities: utility,
            flows_on_other_paths: path,
            flows_without_room: no_room,
            price_resets: self.price_resets,
        }
    }
}

/// Number of cores that the workers may run on. Pinned cores count whatever the caller's thread is
/// restricted to, if the machine has them. A worker that cannot be pinned shares the others' cores.
fn cores_of(options: &ParallelOptions) -> usize {
    let installed = installed_cores().unwrap_or(usize::MAX);
    let wanted = options.cores.iter().take(options.workers);
    let pinned: BTreeSet<_> = wanted.filter(|&&core| core < installed).collect();
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    usable.max(pinned.len())
}

fn start_worker(shared: &Arc<ParallelState>, index: usize, core: Option<usize>) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        // Without this the other workers, and the caller, would wait at the barrier for ever.
        struct Guard<'a>(&'a Barrier, usize);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.close_after_panic(self.1);
                }
            }
        }
        let _guard = Guard(&shared.barrier, index);
        if let Some(core) = core
            && let Err(error) = pin_current_thread(core)
        {
            tracing::warn!(core, %error, "an engine worker runs unpinned");
        }
        // Registered before its first wait: an arrival that finds no thread wakes nothing.
        shared.barrier.enter(index);
        let mut worker = Worker::new(index);
        while worker.iterate(&shared).is_ok() {}
    })
}
