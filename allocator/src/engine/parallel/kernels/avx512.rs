//! The kernels for AVX-512.
//!
//! A FlowBlock's share of an iteration is three walks: prices and rooms of the upward halves of the
//! paths, in upward order; the rest, in downward order, which fetches those pairs flow by flow and
//! leaves the rates flow by flow at their upward places; and the sums of those, in upward order. Apart from
//! the two transports, everything is arithmetic on whole registers (see `rows`).
#![allow(unsafe_code)]

mod dirty_links;
mod exchange;
mod notify;
mod prefetch;
mod price_update;
mod rack_pair_rows;
mod rate_update;
mod registers;
mod response;
mod totals;

pub(super) use dirty_links::step as step_dirty_links;
pub(super) use notify::collect;
pub(super) use price_update::update;

use std::arch::x86_64::*;

use self::rate_update::{down_rows, up_pairs, up_rates};
use self::totals::has_dot;
use super::{LEAST_ELASTIC, PassSettings, Scratch, Side};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::rows::ROW_FLOWS;

const ALL_LANES: __mmask16 = !0;
/// Lanes that may hold a flow.
const FLOW_LANES: __mmask16 = (1 << ROW_FLOWS) - 1;
/// Bitwise: of the first where the third is set, else of the second.
const SELECT: i32 = 0xe4;

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("popcnt")
}

/// See [`super::Kernels::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn run(
    pass: PassSettings,
    plain: bool,
    block: &mut FlowBlock,
    sides: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    if pass.exceeds_cache {
        run_at::<true>(pass, plain, block, sides, scratch);
    } else {
        run_at::<false>(pass, plain, block, sides, scratch);
    }
}

/// `EXCEEDS_CACHE` if the worker's flows are beyond its caches, so that fetching ahead pays.
#[target_feature(enable = "avx512f")]
fn run_at<const EXCEEDS_CACHE: bool>(
    pass: PassSettings,
    plain: bool,
    block: &mut FlowBlock,
    sides: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    let of_cores = block.core_blocks.is_some();
    match (plain, of_cores, !plain && has_dot()) {
        (true, false, _) => {
            pass_over_block::<true, false, EXCEEDS_CACHE, false>(pass, block, sides, scratch)
        }
        (true, true, _) => {
            pass_over_block::<true, true, EXCEEDS_CACHE, false>(pass, block, sides, scratch)
        }
        (false, false, false) => {
            pass_over_block::<false, false, EXCEEDS_CACHE, false>(pass, block, sides, scratch);
        }
        (false, false, true) => {
            pass_over_block::<false, false, EXCEEDS_CACHE, true>(pass, block, sides, scratch);
        }
        (false, true, false) => {
            pass_over_block::<false, true, EXCEEDS_CACHE, false>(pass, block, sides, scratch);
        }
        (false, true, true) => {
            pass_over_block::<false, true, EXCEEDS_CACHE, true>(pass, block, sides, scratch);
        }
    }
}

/// The walks over a FlowBlock; `PLAIN` if all flows have weight 1, the same saturation price and no demand, and no sum has elastic
/// loads apart from loads; `CORE` if they go over the cores; `DOT` if elastic loads are added by [`add_elastic`]'s dot
/// product.
#[target_feature(enable = "avx512f")]
fn pass_over_block<
    const PLAIN: bool,
    const CORE: bool,
    const EXCEEDS_CACHE: bool,
    const DOT: bool,
>(
    pass: PassSettings,
    block: &mut FlowBlock,
    [mut up, mut down]: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    let mut keep = [ALL_LANES; 2];
    if pass.rates {
        keep = [keep_first(&mut up), keep_first(&mut down)];
    }
    up_pairs::<CORE, EXCEEDS_CACHE>(pass, block, &up, &mut scratch.pairs);
    match (pass.normalize, pass.rates) {
        (true, true) => {
            down_rows::<true, true, PLAIN, CORE, EXCEEDS_CACHE, DOT>(
                pass, block, &mut down, keep[1], scratch,
            );
        }
        (false, true) => {
            down_rows::<false, true, PLAIN, CORE, EXCEEDS_CACHE, DOT>(
                pass, block, &mut down, keep[1], scratch,
            );
        }
        (_, false) => {
            down_rows::<true, false, PLAIN, CORE, EXCEEDS_CACHE, DOT>(
                pass, block, &mut down, keep[1], scratch,
            );
        }
    }
    if pass.rates {
        up_rates::<PLAIN, CORE, EXCEEDS_CACHE, DOT>(pass, block, &mut up, keep[0], scratch);
    }
    if !CORE {
        rack_pair_rows::pass_over_pairs::<PLAIN, DOT>(pass, block, [&mut up, &mut down], scratch);
    }
}

/// The lanes of a side's sums that are added to: all, or none if they are the last iteration's.
fn keep_first(side: &mut Side<'_>) -> __mmask16 {
    if let Some(core) = &mut side.core {
        // Racks of a pod share its table, so nobody is the first.
        core.copy.clear();
        core.copy.overwrite();
    }
    if side.copy.overwrite() { 0 } else { ALL_LANES }
}
