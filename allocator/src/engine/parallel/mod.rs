//! The engine for many flows and cores: FlowBlocks, LinkBlocks and workers (flowtune §4).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`ParallelEngine`]: events in, iterations, rates out |
//! | `flows` | starts, ends, reroutes, capacities: where a flow goes, and what it takes to move it |
//! | `correction`, `noted`, `touched` | prices that answer events, before the iteration |
//! | `sizing` | how many blocks and workers suit a topology and a machine |
//! | `layout` | which LinkBlock, table and slot each link of a topology is |
//! | `rows` | one side of a FlowBlock, so laid out that links need no gathers and sums no scatters |
//! | `flow_block` | the flows from one block of racks to another, in upward and in downward order |
//! | `pairs`, FlowBlock::compact | rows of flows that share both racks, and what moves flows there |
//! | `link_block` | prices, sums and the price update of a block's links |
//! | `loose` | flows that fit no row, one by one |
//! | `lanes` | sixteen values side by side |
//! | `directory`, `key_index` | flows by key |
//! | `pending` | starts and ends that wait for the worker that has their rows |
//! | `kernels` | the walks over a FlowBlock, by instruction set |
//! | `worker`, `barrier`, `sync` | what each worker does in an iteration, and how they hand over |
//! | `view`, `memory` | what the engine says about itself: loads, optimality; bytes by part |
//!
//! An iteration is one walk over the flows: it normalises the rates of the iteration before (F-NORM)
//! and tells those that moved, and computes new rates from the new prices. Before an iteration that
//! follows an event, prices answer the event; then it computes rates and prices once more, and normalises
//! its own rates at once, so that what is told fits the flows and capacities that there are now, and a new
//! flow has its rate in the iteration after its start. Where the iteration before followed events as well,
//! one walk has to do: newcomers get their rates along with the prices' answers, and touched links the loads
//! that go with them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
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
mod key_index;
mod lanes;
mod layout;
mod link_block;
mod memory;
mod phases;
mod price_correction;
mod price_update;
mod rack_pair_rows;
mod rows;
mod scalar_flows;
mod sizing;
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
use self::directory::FlowDirectory;
use self::event_batch::EventBatch;
use self::flow_block::FlowBlock;
use self::kernels::{Kernels, Notification};
use self::lanes::{HOST_SLOTS, TABLE_SLOTS};
use self::link_block::{LinkBlock, LinkBlockCopy};
use self::phases::PhaseClock;
use self::price_correction::{Corrected, PriceCorrection};
use self::price_update::{UpdateReport, UpdateRule};
use self::scalar_flows::{CAUSES, ScalarFlows};
use self::sync::lock;
use self::worker::{Outbox, ParallelState, Pass, Worker};
use super::affinity::{installed_cores, pin_current_thread};
use super::{
    EngineConfig, EngineError, EngineEvent, Exceptions, IterationReport, Optimality, RateEngine,
    RateUpdate, Scan, StepRule,
};
use crate::num::RATE_UNIT_BPS;

/// The engine rests after this many iterations in which no rate passed the threshold.
const MAX_QUIET_ITERATIONS: u32 = 1000;
/// Updates of a worker that there is always room for.
const KEPT_UPDATES: usize = 1 << 13;
/// While every iteration follows events, a table of rows is looked through once in walks over so many flows: for
/// 49,152 flows in every eleventh iteration, for a million in each. To move a flow costs as much as to walk over two
/// hundred, and those that come find room in the rows that there are: in every iteration, it makes iterations
/// under heavy churn longer by a sixth to a half, and rows no fuller.
const FLOWS_PER_COMPACTION: usize = 1 << 19;
/// Capacities above this, in Gbit/s, count as this.
const MOST_CAPACITY: f64 = 1e12;
/// Most workers: a home of a loose flow has 9 bits for its worker.
pub const MOST_WORKERS: usize = 256;

/// How a [`ParallelEngine`] uses the machine.
#[derive(Clone, Debug)]
pub struct ParallelOptions {
    /// Threads that iterate, the caller's included; at most the square of the blocks.
    pub workers: usize,
    /// Blocks to cut a topology into; if not given, as many as suit it and the workers.
    pub blocks: Option<u32>,
    /// Cores to pin the workers to: the second worker to the second. The first one runs on its caller's
    /// thread, which is the caller's to pin (see [`pin_current_thread`]), to the first.
    pub cores: Vec<usize>,
    /// The instruction set; what the machine does not have is lowered to what it has.
    pub simd: Simd,
    /// An iteration walks over the flows once at most: for a caller that has something to look at between two walks.
    /// First rates after events are those that the prices' answers give, also where the iteration before followed
    /// none, and rates that stand still are normalised in an iteration of its own.
    pub single_pass: bool,
}

impl Default for ParallelOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            blocks: None,
            cores: Vec::new(),
            simd: Simd::best(),
            single_pass: false,
        }
    }
}

/// NED, F-NORM and the threshold filter, in single precision, on many cores.
pub struct ParallelEngine {
    config: EngineConfig,
    options: ParallelOptions,
    /// Derated, in Gbit/s, by link.
    capacities: Vec<f32>,
    directory: FlowDirectory,
    shared: Arc<ParallelState>,
    worker: Worker,
    threads: Vec<JoinHandle<()>>,
    /// Events since the last iteration.
    has_new_events: bool,
    /// The last iteration followed events.
    followed_events: bool,
    /// The last iteration's rates wait for their normalisation.
    awaits_normalization: bool,
    /// An iteration that was brief and left the normalisation of its rates to the next one.
    deferred_report: Option<UpdateReport>,
    quiet_iterations: u32,
    /// Updates that wait in the outboxes.
    updates_waiting: usize,
    /// Those that were there when an event came, which may give a flow's number to another one.
    saved_updates: Vec<RateUpdate>,
    phases: PhaseNanos,
    /// Starts and ends wait for the next iteration.
    has_batched_events: bool,
    /// Starts and ends do not wait: something since the last iteration needs flows to be in their cells.
    applies_at_once: bool,
    /// Times in a row that no worker found rows to put in order.
    idle_compactions: usize,
    /// Flows walked over, iteration by iteration, since a table was looked through while events came.
    flows_since_compaction: usize,
    /// [`FLOWS_PER_COMPACTION`], or what a test says.
    flows_per_compaction: usize,
    /// What the prices have to answer, under the guarded rule.
    correction: Option<PriceCorrection>,
    /// What they have answered since the last iteration.
    corrected: Option<Corrected>,
    /// Flows that rows had no room for, in the order in which they are tried again; some have gone since.
    overflow: VecDeque<u32>,
    /// A buffer.
    first_rate_buffer: Vec<(u32, f32)>,
    /// Flows that no row holds, by [`Cause`](scalar_flows::Cause).
    scalar_by_cause: [usize; CAUSES],
    /// Prices that were no number and started anew.
    price_resets: u64,
}

impl ParallelEngine {
    /// An engine for a topology, cut as the options say and as far as it allows, without flows. Workers
    /// that the blocks have no use for are not started.
    ///
    /// # Errors
    /// A setting or a capacity out of range.
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
        // Another topology may have use for them.
        engine.options.workers = wanted;
        Ok(engine)
    }

    /// An engine for the links of a layout, without flows.
    ///
    /// # Errors
    /// A setting or a capacity out of range.
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
        let derating = derating(&config);
        let mut capacities = Vec::with_capacity(capacities_bps.len());
        for &capacity_bps in capacities_bps {
            capacities.push(in_single(derated(capacity_bps, derating)?));
        }
        let shared = Arc::new(share(&config, &options, layout, &capacities));
        let threads = (1..options.workers)
            .map(|index| start_worker(&shared, index, options.cores.get(index).copied()))
            .collect();
        let correction =
            (config.step_rule == StepRule::Guarded).then(|| PriceCorrection::new(&shared.layout));
        Ok(Self {
            directory: FlowDirectory::new(config.max_flows),
            correction,
            corrected: None,
            first_rate_buffer: Vec::new(),
            overflow: VecDeque::new(),
            scalar_by_cause: [0; CAUSES],
            price_resets: 0,
            config,
            options,
            capacities,
            shared,
            worker: Worker::new(0),
            threads,
            has_new_events: true,
            followed_events: false,
            awaits_normalization: false,
            deferred_report: None,
            quiet_iterations: 0,
            updates_waiting: 0,
            saved_updates: Vec::new(),
            phases: PhaseNanos::default(),
            has_batched_events: false,
            applies_at_once: false,
            idle_compactions: 0,
            flows_since_compaction: 0,
            flows_per_compaction: FLOWS_PER_COMPACTION,
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub fn simd(&self) -> Simd {
        self.shared.kernels.simd()
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
        let layout = if capacities_bps.len() == self.capacities.len() {
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

    /// Whether the answers to events give the rates that an iteration tells, and not a walk of its own.
    fn is_single_pass(&self) -> bool {
        self.followed_events || self.options.single_pass
    }

    fn run(&mut self, pass: Pass) -> UpdateReport {
        self.shared.pass.store(pass as u8, Ordering::Relaxed);
        self.shared.barrier.enter(0);
        if self.worker.iterate(&self.shared).is_err() {
            let worker = self.shared.barrier.panicked();
            panic!("worker {worker:?} of the engine panicked");
        }
        let mut report = UpdateReport::default();
        let mut waiting = 0;
        for (index, outbox) in self.shared.outboxes.iter().enumerate() {
            let mut outbox = lock(outbox);
            report.merge(outbox.report);
            self.idle_compactions *= usize::from(!std::mem::take(&mut outbox.compacted));
            if index == 0 && pass == Pass::PricesOnly {
                self.phases.add_extra_pass(&outbox.times);
            } else if index == 0 {
                self.phases.add(&outbox.times);
            }
            waiting += outbox.updates.len();
        }
        self.updates_waiting = waiting;
        self.price_resets += u64::from(report.resets);
        report
    }

    fn has_converged(&self, report: &UpdateReport) -> bool {
        let tolerance = self.config.settle_tolerance as f32;
        report.change <= tolerance && report.residual <= tolerance
    }

    /// What an iteration says of itself.
    fn report(&self, report: &UpdateReport) -> IterationReport {
        let converged =
            self.has_converged(report) && self.updates_waiting == 0 && !self.awaits_normalization;
        let given_up =
            self.quiet_iterations >= MAX_QUIET_ITERATIONS && self.deferred_report.is_none();
        IterationReport {
            flows: self.directory.len(),
            updates: self.updates_waiting,
            max_relative_rate_change: f64::from(report.change),
            max_overload: f64::from(report.overload),
            residual: f64::from(report.residual),
            settled: self.directory.len() == 0 || converged || given_up,
        }
    }

    /// Takes what the last iteration tells out of the outboxes.
    fn take_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        if std::mem::take(&mut self.updates_waiting) == 0 {
            return;
        }
        let directory = &self.directory;
        for outbox in &self.shared.outboxes {
            let updates = &mut lock(outbox).updates;
            let enough = KEPT_UPDATES.max(4 * updates.len());
            for Notification { flow, rate } in updates.drain(..) {
                sink(RateUpdate {
                    key: directory.key(flow),
                    rate_bps: f64::from(rate) * RATE_UNIT_BPS,
                });
            }
            // After a start of all flows at once there is room for one for each.
            updates.shrink_to(enough);
        }
    }

    /// Takes fewer rates than wait.
    fn take_some_updates(&mut self, most: usize, sink: &mut dyn FnMut(RateUpdate)) {
        let mut left = most;
        for outbox in &self.shared.outboxes {
            let updates = &mut lock(outbox).updates;
            let rest = updates.len() - left.min(updates.len());
            left -= updates.len() - rest;
            for Notification { flow, rate } in updates.drain(rest..) {
                sink(RateUpdate {
                    key: self.directory.key(flow),
                    rate_bps: f64::from(rate) * RATE_UNIT_BPS,
                });
            }
        }
        self.updates_waiting -= most - left;
    }

    /// Lets flows that start or end into rows and out of them.
    fn update_rows(&mut self) {
        self.idle_compactions = 0;
        self.run(Pass::ApplyEvents);
        self.collect_batches();
        self.applies_at_once = false;
    }

    /// The same, and puts rows in order, as far as they need it and, where `busy`, it is time for it.
    fn compact_rows(&mut self, busy: bool) {
        if busy && self.flows_since_compaction < self.flows_per_compaction {
            if self.has_batched_events {
                self.update_rows();
            }
            self.applies_at_once = false;
            return;
        }
        self.flows_since_compaction = 0;
        // As often as the worker with the most FlowBlocks needs to look at each.
        let enough = self.shared.flow_blocks.len().div_ceil(self.shared.workers);
        if self.idle_compactions < enough {
            self.idle_compactions += 1;
            self.run(if busy {
                Pass::Compact
            } else {
                Pass::CompactMore
            });
            self.collect_batches();
            if self.idle_compactions == enough {
                for pending in &self.shared.batches {
                    lock(pending).shrink();
                }
            }
        }
        self.applies_at_once = false;
    }
}

impl Drop for ParallelEngine {
    fn drop(&mut self) {
        self.shared.barrier.close();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl RateEngine for ParallelEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        self.quiet_iterations = 0;
        self.has_new_events = true;
        if self.updates_waiting > 0 {
            let mut updates = std::mem::take(&mut self.saved_updates);
            self.take_updates(&mut |update| updates.push(update));
            self.saved_updates = updates;
        }
        match event {
            EngineEvent::Start(spec) => self.start(&spec),
            EngineEvent::End(key) => self.end(key),
            EngineEvent::Reroute { key, links } => self.reroute(key, &links),
            EngineEvent::Capacity { link, capacity_bps } => self.set_capacity(link, capacity_bps),
            EngineEvent::DropSession(session) => {
                self.drop_session(session);
                Ok(())
            }
            EngineEvent::Reset {
                capacities,
                topology,
            } => self.reset(topology.as_deref(), &capacities),
        }
    }

    fn iterate(&mut self) -> IterationReport {
        self.saved_updates.clear();
        self.saved_updates.shrink_to(KEPT_UPDATES);
        self.take_updates(&mut |_| ());
        if let Some(report) = self.deferred_report.take().filter(|_| !self.has_new_events) {
            self.run(Pass::NormalizeOnly);
            self.awaits_normalization = false;
            if self.updates_waiting > 0 {
                self.quiet_iterations = 0;
            }
            return self.report(&report);
        }
        let mut clock = PhaseClock::new(self.shared.timed.load(Ordering::Relaxed));
        let rows_are_current = self.corrected.is_some();
        if !rows_are_current {
            if self.has_new_events {
                self.idle_compactions = 0;
            }
            self.compact_rows(self.has_new_events && self.followed_events);
        } else if self.has_batched_events {
            self.update_rows();
        }
        self.retry_overflow();
        self.phases.compaction += clock.lap();
        let follows_events = std::mem::take(&mut self.has_new_events);
        let corrected = self.correct_prices(follows_events && self.is_single_pass(), None);
        let corrected = corrected.and(self.corrected.take());
        self.phases.price_correction += clock.lap();
        let followed_events = std::mem::replace(&mut self.followed_events, follows_events);
        self.flows_since_compaction = self
            .flows_since_compaction
            .saturating_add(self.directory.len());
        if corrected == Corrected::Prices {
            // The links next to those that events touched answer before rates are notified.
            self.run(Pass::PricesOnly);
        }
        let follows_events = follows_events && corrected != Corrected::Rates;
        let report = self.run(if follows_events {
            Pass::UpdateThenNormalize
        } else {
            Pass::Pipelined
        });
        self.awaits_normalization = !follows_events;
        if self.awaits_normalization
            && self.updates_waiting == 0
            && (self.has_converged(&report) || self.quiet_iterations + 1 >= MAX_QUIET_ITERATIONS)
        {
            if self.options.single_pass {
                self.deferred_report = Some(report);
            } else {
                self.run(Pass::NormalizeOnly);
                self.awaits_normalization = false;
            }
        }
        self.quiet_iterations = if self.updates_waiting == 0 {
            self.quiet_iterations.saturating_add(1)
        } else {
            0
        };
        if rows_are_current && followed_events {
            // Else the next iteration does it, or the one after: nobody waits for it.
            self.compact_rows(true);
        }
        self.report(&report)
    }

    fn first_rates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        if !self.has_new_events {
            return;
        }
        let mut notified = std::mem::take(&mut self.first_rate_buffer);
        self.update_rows();
        let mut notify = |flow, rate| notified.push((flow, rate));
        let corrected = self.correct_prices(self.is_single_pass(), Some(&mut notify));
        self.corrected = Some(corrected.and(self.corrected.take()));
        for (flow, rate) in notified.drain(..) {
            sink(RateUpdate {
                key: self.directory.key(flow),
                rate_bps: f64::from(rate) * RATE_UNIT_BPS,
            });
        }
        self.first_rate_buffer = notified;
    }

    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        self.saved_updates.drain(..).for_each(&mut *sink);
        self.take_updates(sink);
    }

    fn drain_some(&mut self, most: usize, sink: &mut dyn FnMut(RateUpdate)) -> bool {
        let notified = most.min(self.saved_updates.len());
        let rest = self.saved_updates.len() - notified;
        self.saved_updates.drain(rest..).for_each(&mut *sink);
        if rest == 0 && most - notified >= self.updates_waiting {
            self.take_updates(sink);
            return false;
        }
        self.take_some_updates(most - notified, sink);
        true
    }

    fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        self.write_loads(loads_bps);
    }

    fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
        capacities_bps.clear();
        let capacities = self.capacities.iter();
        capacities_bps.extend(capacities.map(|&c| f64::from(c) * RATE_UNIT_BPS));
    }

    fn optimality(&self) -> Optimality {
        let mut scan = Scan::default();
        self.resume_scan(&mut scan, usize::MAX);
        scan.optimality
    }

    fn scan(&self, scan: &mut Scan, flows: usize) -> bool {
        self.resume_scan(scan, flows)
    }

    fn flow_count(&self) -> usize {
        self.directory.len()
    }

    fn exceptions(&self) -> Exceptions {
        let [utility, path, no_room] = self.scalar_by_cause;
        Exceptions {
            flows_of_other_utilities: utility,
            flows_on_other_paths: path,
            flows_without_room: no_room,
            price_resets: self.price_resets,
        }
    }
}

/// The share of a link that is handed out.
fn derating(config: &EngineConfig) -> f64 {
    (1.0 - config.threshold) * (1.0 - config.mice_reserve)
}

fn derated(capacity_bps: f64, derating: f64) -> Result<f64, EngineError> {
    if capacity_bps.is_finite() && capacity_bps >= 0.0 {
        Ok(capacity_bps * derating / RATE_UNIT_BPS)
    } else {
        Err(EngineError::BadCapacity(capacity_bps))
    }
}

/// A capacity that is no larger than what sums in single precision hold.
fn in_single(capacity: f64) -> f32 {
    capacity.min(MOST_CAPACITY) as f32
}

fn share(
    config: &EngineConfig,
    options: &ParallelOptions,
    layout: Layout,
    capacities: &[f32],
) -> ParallelState {
    let gamma = config.gamma as f32;
    let mut links: Vec<LinkBlock> = layout
        .shapes
        .iter()
        .map(|shape| LinkBlock::new(shape, gamma))
        .collect();
    for (block, shape) in links.iter_mut().zip(&layout.shapes) {
        for (table, slot) in shape.empty_slot.iter().enumerate() {
            if let Some(slot) = slot {
                let slot = HOST_SLOTS + usize::from(*slot);
                block.empty_slot(table * TABLE_SLOTS + slot);
            }
        }
    }
    for (place, &capacity) in layout.places().zip(capacities) {
        links[place.link_block as usize].set_capacity(place.index as usize, capacity);
    }
    let copies: Vec<LinkBlockCopy> = layout
        .shapes
        .iter()
        .map(|shape| LinkBlockCopy::new(shape.tables))
        .collect();
    let tables = |block: usize| layout.shapes[block].tables;
    let flow_blocks = (0..layout.flow_blocks())
        .map(|index| {
            let shape = layout.flow_block_shape(index);
            Mutex::new(FlowBlock::new(shape, shape.links.map(tables)))
        })
        .collect();
    let each = |_| Mutex::new(ScalarFlows::default());
    ParallelState {
        workers: options.workers,
        classes: config.classes.clone(),
        rule: UpdateRule {
            gamma,
            safeguarded: config.step_rule == StepRule::Guarded,
        },
        threshold: config.threshold as f32,
        flows_beyond_cache: worker::FLOWS_BEYOND_CACHE,
        kernels: Kernels::new(options.simd),
        flow_blocks,
        link_blocks: links.into_iter().map(RwLock::new).collect(),
        copies: (0..options.workers)
            .map(|_| RwLock::new(copies.clone()))
            .collect(),
        batches: (0..layout.flow_blocks())
            .map(|_| Mutex::new(EventBatch::default()))
            .collect(),
        scalar_flows: (0..options.workers).map(each).collect(),
        outboxes: (0..options.workers)
            .map(|_| Mutex::new(Outbox::default()))
            .collect(),
        scalar_count: AtomicU64::new(0),
        barrier: Barrier::new(options.workers, cores_of(options)),
        pass: AtomicU8::new(0),
        timed: AtomicBool::new(false),
        layout,
    }
}

/// Cores that the workers may run on. Those that they are pinned to count whatever the caller's thread is
/// restricted to, if the machine has them: a worker that cannot be pinned shares the others'.
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
        shared.barrier.enter(index);
        let mut worker = Worker::new(index);
        while worker.iterate(&shared).is_ok() {}
    })
}
