//! What the workers share, and what each does in an iteration.
//!
//! Every piece of shared state has a lock of its own that is free whenever the [`Barrier`] says that the
//! piece may be taken: locks state the protocol, the barrier enforces it, and a mistake would be a wait
//! and not a race.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

use super::barrier::{Barrier, Closed};
use super::compact::MAX_TABLES;
use super::event_batch::EventBatch;
use super::flow_block::FlowBlock;
use super::kernels::{CoreSide, Kernels, Notification, PassSettings, Scratch, Side};
use super::layout::Layout;
use super::link_block::{LinkBlock, LinkBlockCopy};
use super::phases::{PhaseClock, PhaseTimes};
use super::price_update::{UpdateReport, UpdateRule};
use super::scalar_flows::ScalarFlows;
use super::sync::{lock, read, write};
use crate::num::utility::ClassTable;

/// Rounds of the barrier in an iteration: start, sums are complete, prices are complete, done.
const PHASES: u64 = 4;

/// From so many flows of a worker on, some 12 MB, fetching ahead pays: they have left the caches by
/// the time they are walked over again. With fewer, it costs 6 % and gains nothing.
pub(super) const FLOWS_BEYOND_CACHE: usize = 400_000;
/// If more than one in so many rates passed the threshold in the last walk, as many are expected to do so in
/// the next one: a third of the rows has such a flow then.
const UPDATE_RATIO: usize = 32;
/// And in as many after that one: rates go on to move once they have begun to, but those that were told at once
/// are not told again by the walk after that.
const MANY_UPDATES_PASSES: u32 = 4;

/// What the workers do in the coming iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Pass {
    /// Rates of the last iteration are normalised along with the computation of the next.
    Pipelined = 0,
    /// The problem changed: new rates first, then they are normalised at once.
    UpdateThenNormalize = 1,
    /// Only normalise what is there.
    NormalizeOnly = 2,
    /// New rates and prices, and no rate notified: another pass of the optimiser follows.
    PricesOnly = 3,
    /// Flows go into rows and out of them; no walk.
    ApplyEvents = 4,
    /// The same, and rows are put in order.
    Compact = 5,
    /// The same, with time for looking through more tables.
    CompactMore = 6,
}

/// What a worker leaves for the engine.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Rates that passed the threshold.
    pub(super) updates: Vec<Notification>,
    pub(super) report: UpdateReport,
    /// Rows were put in order.
    pub(super) compacted: bool,
    pub(super) times: PhaseTimes,
}

/// What the workers share.
#[derive(Debug)]
pub(super) struct ParallelState {
    pub(super) workers: usize,
    pub(super) layout: Layout,
    pub(super) classes: ClassTable,
    pub(super) rule: UpdateRule,
    pub(super) threshold: f32,
    /// [`FLOWS_BEYOND_CACHE`], or what a test says.
    pub(super) flows_beyond_cache: usize,
    pub(super) kernels: Kernels,
    /// As the layout numbers them.
    pub(super) flow_blocks: Vec<Mutex<FlowBlock>>,
    /// Upward, then downward, then likewise those of the second level.
    pub(super) link_blocks: Vec<RwLock<LinkBlock>>,
    /// By worker and LinkBlock.
    pub(super) copies: Vec<RwLock<Vec<LinkBlockCopy>>>,
    /// By FlowBlock.
    pub(super) batches: Vec<Mutex<EventBatch>>,
    pub(super) scalar_flows: Vec<Mutex<ScalarFlows>>,
    pub(super) outboxes: Vec<Mutex<Outbox>>,
    pub(super) scalar_count: AtomicU64,
    pub(super) barrier: Barrier,
    pub(super) pass: AtomicU8,
    pub(super) timed: AtomicBool,
}

/// One worker's own buffers.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) iteration: u64,
    scratch: Scratch,
    /// Flows met on the last walk.
    flows_met: usize,
    /// On so many walks to come, many rates are expected to pass the threshold.
    many_updates_left: u32,
    /// The last walk began at the last FlowBlock.
    backwards: bool,
    /// The FlowBlock that was put in order last, among the worker's.
    next_to_compact: usize,
}

impl Worker {
    pub(super) fn new(index: usize) -> Self {
        Self {
            index,
            iteration: 0,
            scratch: Scratch::default(),
            flows_met: 0,
            many_updates_left: 0,
            backwards: false,
            next_to_compact: 0,
        }
    }

    /// One iteration, as the barrier allows.
    pub(super) fn iterate(&mut self, shared: &ParallelState) -> Result<(), Closed> {
        let first = self.iteration * PHASES;
        self.iteration += 1;
        shared.barrier.wait(self.index, first + 1)?;
        let pass = match shared.pass.load(Ordering::Relaxed) {
            0 => Pass::Pipelined,
            1 => Pass::UpdateThenNormalize,
            2 => Pass::NormalizeOnly,
            3 => Pass::PricesOnly,
            4 => Pass::ApplyEvents,
            5 => Pass::Compact,
            _ => Pass::CompactMore,
        };
        let mut outbox = lock(&shared.outboxes[self.index]);
        outbox.report = UpdateReport::default();
        outbox.times = PhaseTimes::default();
        let tables = match pass {
            Pass::ApplyEvents => Some(0),
            Pass::Compact => Some(1),
            Pass::CompactMore => Some(MAX_TABLES),
            Pass::Pipelined
            | Pass::UpdateThenNormalize
            | Pass::NormalizeOnly
            | Pass::PricesOnly => None,
        };
        if let Some(tables) = tables {
            (outbox.compacted, outbox.times.row_updates_ns) = self.update_rows(shared, tables);
            drop(outbox);
            // Nobody waits in between, so nobody has to arrive there.
            return shared.barrier.wait(self.index, first + PHASES);
        }
        let mut clock = PhaseClock::new(shared.timed.load(Ordering::Relaxed));
        let mut times = PhaseTimes::default();
        if pass != Pass::NormalizeOnly {
            self.pass_over_flows(shared, pass == Pass::Pipelined, true, &mut outbox);
            times.rates_ns = clock.lap();
            shared.barrier.wait(self.index, first + 2)?;
            times.aggregation_wait_ns = clock.lap();
            self.aggregate_and_update_prices(shared, &mut outbox.report);
            times.prices_ns = clock.lap();
        } else {
            shared.barrier.wait(self.index, first + 2)?;
        }
        shared.barrier.wait(self.index, first + 3)?;
        times.distribution_wait_ns = clock.lap();
        // After events, rates move the most.
        if pass == Pass::UpdateThenNormalize {
            self.many_updates_left = MANY_UPDATES_PASSES;
        }
        if matches!(pass, Pass::UpdateThenNormalize | Pass::NormalizeOnly) {
            self.pass_over_flows(shared, true, false, &mut outbox);
            times.normalization_ns = clock.lap();
        }
        outbox.times = times;
        drop(outbox);
        shared.barrier.wait(self.index, first + 4)
    }

    /// What waits for the worker's FlowBlocks; and, if so many tables may be looked through, one of them is
    /// put in order, another one each time.
    /// Returns whether that moved anything, and how long what waited took, in ns.
    fn update_rows(&mut self, shared: &ParallelState, tables: usize) -> (bool, u64) {
        let owned = shared.owned(self.index);
        if owned.is_empty() {
            return (false, 0);
        }
        let mut clock = PhaseClock::new(shared.timed.load(Ordering::Relaxed));
        let mut row_updates_ns = 0;
        let in_turn = (tables > 0).then(|| {
            self.next_to_compact = (self.next_to_compact + 1) % owned.len();
            owned.start + self.next_to_compact
        });
        let mut compacted = false;
        for index in owned {
            let mut pending = lock(&shared.batches[index]);
            if in_turn == Some(index) || pending.has_events() {
                let mut block = lock(&shared.flow_blocks[index]);
                clock.lap();
                pending.apply(&mut block);
                row_updates_ns += clock.lap();
                if in_turn == Some(index) {
                    compacted = pending.compact(&mut block, tables);
                }
            }
        }
        (compacted, row_updates_ns)
    }

    /// The worker's flows: F-NORM of the rates that there are, new rates, or both.
    fn pass_over_flows(
        &mut self,
        shared: &ParallelState,
        normalize: bool,
        rates: bool,
        outbox: &mut Outbox,
    ) {
        let flows = std::mem::take(&mut self.flows_met);
        let pass = PassSettings {
            normalize,
            rates,
            threshold: shared.threshold,
            exceeds_cache: flows >= shared.flows_beyond_cache,
            shared_links: shared.workers > 1,
            many_updates: self.many_updates_left > 0,
        };
        let mut copies = write(&shared.copies[self.index]);
        if rates {
            copies.iter_mut().for_each(LinkBlockCopy::begin);
        }
        // There and back: what the last walk left in the caches is met first.
        let owned = shared.owned(self.index);
        self.backwards = !self.backwards;
        for step in 0..owned.len() {
            let index = if self.backwards {
                owned.end - 1 - step
            } else {
                owned.start + step
            };
            let mut block = lock(&shared.flow_blocks[index]);
            if block.flows() == 0 {
                continue;
            }
            self.flows_met += block.flows();
            if normalize {
                lock(&shared.batches[index]).apply_first_rates(&mut block);
            }
            let layout = &shared.layout;
            let links = [block.up_block, block.down_block];
            let cores = block.core_blocks;
            let [up, down] = links.map(|index| read(&shared.link_blocks[index]));
            let core_links =
                cores.map(|indices| indices.map(|index| read(&shared.link_blocks[index])));
            let first_level = 2 * layout.blocks as usize;
            let (first, second) = copies.split_at_mut(first_level);
            let [up_copy, down_copy] = two(first, links);
            let mut side = [
                Side {
                    links: &up,
                    copy: up_copy,
                    core: None,
                },
                Side {
                    links: &down,
                    copy: down_copy,
                    core: None,
                },
            ];
            if let (Some(indices), Some(core_links)) = (cores, &core_links) {
                let core_copies = two(second, indices.map(|index| index - first_level));
                for (i, copy) in core_copies.into_iter().enumerate() {
                    side[i].core = Some(CoreSide {
                        links: &core_links[i],
                        copy,
                        tables: &layout.shapes[links[i]].pod_tables,
                    });
                }
            }
            shared
                .kernels
                .run(pass, &mut block, side, &mut self.scratch);
            if normalize {
                shared
                    .kernels
                    .collect(&block, &self.scratch, &mut outbox.updates);
            }
        }
        if normalize {
            self.many_updates_left = match outbox.updates.len() * UPDATE_RATIO > self.flows_met {
                true => MANY_UPDATES_PASSES,
                false => self.many_updates_left.saturating_sub(1),
            };
        }
        // Those that no FlowBlock of this worker adds to.
        copies.iter_mut().for_each(LinkBlockCopy::clear);
        if shared.scalar_count.load(Ordering::Relaxed) > 0 {
            let mut scalar = lock(&shared.scalar_flows[self.index]);
            let blocks: Vec<_> = shared.link_blocks.iter().map(read).collect();
            if normalize {
                scalar.normalize(&shared.layout, &blocks, f64::from(shared.threshold));
                outbox.updates.append(&mut scalar.updates);
            }
            if rates {
                scalar.rates(&shared.layout, &shared.classes, &blocks, &mut copies);
            }
        }
    }

    /// The price updates of the worker's LinkBlocks, from the sums of all workers.
    fn aggregate_and_update_prices(&self, shared: &ParallelState, report: &mut UpdateReport) {
        let copies: Vec<_> = shared.copies.iter().map(read).collect();
        for index in (self.index..shared.link_blocks.len()).step_by(shared.workers) {
            let mut links = write(&shared.link_blocks[index]);
            let mut list: Vec<&LinkBlockCopy> = copies
                .iter()
                .map(|of_worker| &of_worker[index])
                .filter(|copy| !copy.empty)
                .collect();
            if list.is_empty() {
                list.push(&copies[0][index]);
            }
            report.merge(shared.kernels.update(&mut links, shared.rule, &list));
        }
    }
}

/// Two sums at once, the first one's index below the second one's.
fn two(copies: &mut [LinkBlockCopy], [first, second]: [usize; 2]) -> [&mut LinkBlockCopy; 2] {
    let (low, high) = copies.split_at_mut(second);
    [&mut low[first], &mut high[0]]
}

impl ParallelState {
    /// The FlowBlocks of a worker: consecutive ones, so that few workers share a LinkBlock.
    fn owned(&self, worker: usize) -> std::ops::Range<usize> {
        let blocks = self.flow_blocks.len();
        worker * blocks / self.workers..(worker + 1) * blocks / self.workers
    }
}
