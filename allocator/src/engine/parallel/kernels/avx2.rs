//! The portable kernels, compiled for AVX2 and FMA.
#![allow(unsafe_code)]

use super::{PassSettings, Scratch, Side, portable};
use crate::engine::parallel::dirty_links::LinkVector;
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::link_block::{LinkBlock, LinkBlockCopy};
use crate::engine::parallel::price_update::{UpdateReport, UpdateRule, safeguarded_ned_step};

/// See [`super::Kernels::run`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn run(
    pass: PassSettings,
    block: &mut FlowBlock,
    sides: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    portable::run(pass, block, sides, scratch);
}

/// See [`super::Kernels::update`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn update(
    links: &mut LinkBlock,
    rule: UpdateRule,
    copies: &[&LinkBlockCopy],
) -> UpdateReport {
    // The closure inherits this function's instruction set. A function passed as the step would be
    // called through one without it.
    links.update_by(rule, copies, |gamma, capacities, sums, state, reports| {
        safeguarded_ned_step(gamma, capacities, sums, state, reports);
    })
}

/// See [`super::Kernels::step_dirty_links`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn step_dirty_links(vectors: &mut [LinkVector], only_newcomers: bool) {
    portable::step_dirty_links(vectors, only_newcomers);
}
