//! State that the workers, the event path and the views share.
//!
//! Every piece of it has a lock of its own. The lock is free whenever the [`Barrier`] lets a worker
//! take the piece: locks state the protocol, the barrier enforces it. A mistake would be a wait and
//! not a data race.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Mutex, RwLock};

use super::barrier::Barrier;
use super::event_batch::EventBatch;
use super::flow_block::FlowBlock;
use super::kernels::{Kernels, Notification};
use super::lanes::{HOST_SLOTS, TABLE_SLOTS};
use super::layout::Layout;
use super::link_block::{LinkBlock, LinkBlockCopy};
use super::phases::PhaseTimes;
use super::price_update::{UpdateReport, UpdateRule};
use super::scalar_flows::ScalarFlows;
use crate::engine::{EngineConfig, StepRule};
use crate::num::utility::ClassTable;

/// Flows of a worker from which on prefetching pays: some 12 MB, which have left the caches before
/// the next pass. With fewer flows it costs 6 % and gains nothing.
const FLOWS_BEYOND_CACHE: usize = 400_000;

/// Results that a worker leaves for the engine's caller.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Rates that passed the threshold.
    pub(super) updates: Vec<Notification>,
    pub(super) report: UpdateReport,
    /// Compaction found something to do.
    pub(super) compacted: bool,
    pub(super) times: PhaseTimes,
}

/// State that the workers share.
#[derive(Debug)]
pub(super) struct ParallelState {
    pub(super) workers: usize,
    pub(super) layout: Layout,
    pub(super) classes: ClassTable,
    pub(super) rule: UpdateRule,
    pub(super) threshold: f32,
    /// [`FLOWS_BEYOND_CACHE`], or a test's value.
    pub(super) flows_beyond_cache: usize,
    pub(super) kernels: Kernels,
    /// FlowBlocks in the layout's order.
    pub(super) flow_blocks: Vec<Mutex<FlowBlock>>,
    /// LinkBlocks: upward, downward, then likewise those of the second level.
    pub(super) link_blocks: Vec<RwLock<LinkBlock>>,
    /// Private LinkBlock copies, by worker and LinkBlock (flowtune §4).
    pub(super) copies: Vec<RwLock<Vec<LinkBlockCopy>>>,
    /// Queued events, by FlowBlock.
    pub(super) batches: Vec<Mutex<EventBatch>>,
    pub(super) scalar_flows: Vec<Mutex<ScalarFlows>>,
    pub(super) outboxes: Vec<Mutex<Outbox>>,
    pub(super) scalar_count: AtomicU64,
    pub(super) barrier: Barrier,
    pub(super) pass: AtomicU8,
    pub(super) timed: AtomicBool,
}

impl ParallelState {
    /// Makes the state of workers that meet at `barrier`, without flows, for links of these derated
    /// capacities in Gbit/s.
    pub(super) fn new(
        config: &EngineConfig,
        layout: Layout,
        capacities: &[f32],
        kernels: Kernels,
        workers: usize,
        barrier: Barrier,
    ) -> Self {
        let gamma = config.gamma as f32;
        let mut links: Vec<LinkBlock> = layout
            .shapes
            .iter()
            .map(|shape| LinkBlock::new(shape, gamma))
            .collect();
        // The slot that stands for no link costs nothing, so flows within a rack need no branch.
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
        Self {
            workers,
            classes: config.classes.clone(),
            rule: UpdateRule {
                gamma,
                safeguarded: config.step_rule == StepRule::Safeguarded,
            },
            threshold: config.threshold as f32,
            flows_beyond_cache: FLOWS_BEYOND_CACHE,
            kernels,
            flow_blocks,
            link_blocks: links.into_iter().map(RwLock::new).collect(),
            copies: (0..workers).map(|_| RwLock::new(copies.clone())).collect(),
            batches: (0..layout.flow_blocks())
                .map(|_| Mutex::new(EventBatch::default()))
                .collect(),
            scalar_flows: (0..workers)
                .map(|_| Mutex::new(ScalarFlows::default()))
                .collect(),
            outboxes: (0..workers)
                .map(|_| Mutex::new(Outbox::default()))
                .collect(),
            scalar_count: AtomicU64::new(0),
            barrier,
            pass: AtomicU8::new(0),
            timed: AtomicBool::new(false),
            layout,
        }
    }

    /// FlowBlocks of a worker: consecutive ones, so that few workers share a LinkBlock.
    pub(super) fn owned(&self, worker: usize) -> std::ops::Range<usize> {
        let blocks = self.flow_blocks.len();
        worker * blocks / self.workers..(worker + 1) * blocks / self.workers
    }
}
