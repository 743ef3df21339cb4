//! The portable kernels, compiled for AVX2 and FMA.
#![allow(unsafe_code)]

use super::{Pass, Scratch, Side, portable};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::link_block::{LinkBlock, Sums, UpdateReport, UpdateRule};

/// See [`super::Kernels::run`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn run(pass: Pass, block: &mut FlowBlock, sides: [Side<'_>; 2], scratch: &mut Scratch) {
    portable::run(pass, block, sides, scratch);
}

/// See [`super::Kernels::update`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn update(
    links: &mut LinkBlock,
    rule: UpdateRule,
    contributions: &[&Sums],
) -> UpdateReport {
    links.update(rule, contributions)
}
