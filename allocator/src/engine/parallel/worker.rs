//! Each worker's part of an iteration.

use std::sync::atomic::Ordering;

use super::barrier::Closed;
use super::compact::MAX_TABLES;
use super::kernels::{CoreSide, PassSettings, Scratch, Side};
use super::link_block::LinkBlockCopy;
use super::phases::{PhaseClock, PhaseTimes};
use super::price_update::UpdateReport;
use super::shared::{Outbox, ParallelState};
use super::sync::{lock, read, write};

/// Barriers of an iteration: start, sums are complete, prices are complete, done.
const PHASES: u64 = 4;

/// Rates per update from which on a pass expects many updates. One update in 32 rates is one in
/// every third row.
const UPDATE_RATIO: usize = 32;
/// Passes for which many updates are expected after one that had many. Rates that have begun to
/// move go on moving, but a pass right after events notifies few of them again.
const MANY_UPDATES_PASSES: u32 = 4;

/// Kind of pass that the workers make in the coming iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Pass {
    /// Normalises the last iteration's rates along with the computation of the next ones.
    Pipelined = 0,
    /// Computes new rates and prices, then normalises these rates in a second pass.
    UpdateThenNormalize = 1,
    /// Normalises the present rates and computes no others.
    NormalizeOnly = 2,
    /// Computes rates and prices without notifying any: another pass follows.
    PricesOnly = 3,
    /// Inserts and removes flows; no pass over the rows.
    ApplyEvents = 4,
    /// As [`ApplyEvents`](Self::ApplyEvents), and compacts one table of one FlowBlock.
    Compact = 5,
    /// As [`Compact`](Self::Compact), for up to [`MAX_TABLES`] tables.
    CompactMore = 6,
}

/// One worker's own buffers.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) iteration: u64,
    scratch: Scratch,
    /// Flows of the last pass.
    flows_met: usize,
    /// Coming passes that expect many updates.
    many_updates_left: u32,
    /// The last pass began at the last FlowBlock.
    backwards: bool,
    /// FlowBlock that was compacted last, counted from the worker's first.
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

    /// Runs one iteration between its barriers.
    ///
    /// # Errors
    /// The barrier was closed.
    pub(super) fn iterate(&mut self, shared: &ParallelState) -> Result<(), Closed> {
        // Every worker counts iterations alike, so phases need no reset; they wrap after 2⁶²
        // iterations.
        let first = self.iteration * PHASES;
        self.iteration += 1;
        shared.barrier.wait(self.index, first + 1)?;
        // The engine stored the pass before it arrived at this barrier, which orders the two.
        let pass = match shared.pass.load(Ordering::Relaxed) {
            0 => Pass::Pipelined,
            1 => Pass::UpdateThenNormalize,
            2 => Pass::NormalizeOnly,
            3 => Pass::PricesOnly,
            4 => Pass::ApplyEvents,
            5 => Pass::Compact,
            _ => Pass::CompactMore,
        };
        // Held from barrier to barrier: the engine locks outboxes only after the last one.
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
            // No worker waits for phases 2 and 3 of such an iteration, so none has to arrive there:
            // the counters only have to reach the last phase.
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

    /// Applies the events of the worker's FlowBlocks. With `tables` above 0 it also compacts the
    /// next FlowBlock in turn, in at most that many tables.
    ///
    /// Returns whether compaction found something, and the time that events took, in ns.
    fn update_rows(&mut self, shared: &ParallelState, tables: usize) -> (bool, u64) {
        let owned = shared.owned(self.index);
        if owned.is_empty() {
            return (false, 0);
        }
        let mut clock = PhaseClock::new(shared.timed.load(Ordering::Relaxed));
        let mut row_updates_ns = 0;
        // Round robin, so that every FlowBlock is compacted within one turn of all.
        let in_turn = (tables > 0).then(|| {
            self.next_to_compact = (self.next_to_compact + 1) % owned.len();
            owned.start + self.next_to_compact
        });
        let mut compacted = false;
        for index in owned {
            let mut batch = lock(&shared.batches[index]);
            if in_turn == Some(index) || batch.has_events() {
                let mut block = lock(&shared.flow_blocks[index]);
                // Not counted as row updates: the lap only restarts the clock after the locks.
                clock.lap();
                batch.apply(&mut block);
                row_updates_ns += clock.lap();
                if in_turn == Some(index) {
                    compacted = batch.compact(&mut block, tables);
                }
            }
        }
        (compacted, row_updates_ns)
    }

    /// Passes over the worker's flows: normalises the present rates (F-NORM), computes new ones, or
    /// both.
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
        // Alternating directions: the FlowBlocks that the last pass left in the caches come first.
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
            // Only a pass that normalises publishes rates, so first rates wait for one.
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
            // Upward LinkBlocks come before downward ones at either level, as `two` needs it.
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
        // Copies that no FlowBlock of this worker adds to still hold the last iteration's sums.
        copies.iter_mut().for_each(LinkBlockCopy::clear);
        // Scalar flows come last: they add single values, which needs cleared sums.
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

    /// Adds up all workers' copies of the LinkBlocks that this worker owns, and updates their
    /// prices (flowtune fig. 5, one step for its log₂ B).
    fn aggregate_and_update_prices(&self, shared: &ParallelState, report: &mut UpdateReport) {
        let copies: Vec<_> = shared.copies.iter().map(read).collect();
        for index in (self.index..shared.link_blocks.len()).step_by(shared.workers) {
            let mut links = write(&shared.link_blocks[index]);
            let mut list: Vec<&LinkBlockCopy> = copies
                .iter()
                .map(|of_worker| &of_worker[index])
                .filter(|copy| !copy.empty)
                .collect();
            // Without any sum the update still sets the scales of idle links: an empty copy holds
            // zeros.
            if list.is_empty() {
                list.push(&copies[0][index]);
            }
            report.merge(shared.kernels.update(&mut links, shared.rule, &list));
        }
    }
}

/// Two copies at once; the first index is below the second.
fn two(copies: &mut [LinkBlockCopy], [first, second]: [usize; 2]) -> [&mut LinkBlockCopy; 2] {
    let (low, high) = copies.split_at_mut(second);
    [&mut low[first], &mut high[0]]
}
