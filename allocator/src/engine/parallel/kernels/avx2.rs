//! The portable kernels, compiled for AVX2 and FMA.
#![allow(unsafe_code)]

use super::{Pass, Scratch, portable};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::link_block::{LinkBlock, Sums, UpdateReport, UpdateRule};

/// See [`super::Kernels::run`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn run(
    pass: Pass,
    block: &mut FlowBlock,
    links: [&LinkBlock; 2],
    sums: [&mut Sums; 2],
    scratch: &mut Scratch,
) {
    portable::run(pass, block, links, sums, scratch);
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
