//! Kernels for AVX-512.
//!
//! A pass over a FlowBlock has three parts. The first computes prices and F-NORM scales of the
//! upward halves of the paths, in upward order. The second does the rest in downward order: it
//! fetches those pairs flow by flow, and delivers rates flow by flow to their upward cells. The
//! third sums these rates, in upward order. Apart from the two exchanges, everything is arithmetic
//! on whole registers (see `rows`).
//!
//! | file | contents |
//! |---|---|
//! | `rate_update` | the three parts: prices and scales; rates, F-NORM, threshold; sums |
//! | `rack_pair_rows` | the pass over rack-pair rows |
//! | `registers`, `response`, `totals` | look-ups; rates at prices; sums of a table |
//! | `exchange`, `prefetch` | moves between the two orders; requests for cache lines |
//! | `notify` | notifications |
//! | `price_update`, `dirty_links` | price update of a LinkBlock; price correction |
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
/// Truth table of a bitwise select: the first operand where the third is set, the second elsewhere.
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

/// Compiled for each size of a worker's flows: `EXCEEDS_CACHE` if they exceed its caches, so that
/// prefetching pays.
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
            pass_over_block::<true, false, EXCEEDS_CACHE, false>(pass, block, sides, scratch);
        }
        (true, true, _) => {
            pass_over_block::<true, true, EXCEEDS_CACHE, false>(pass, block, sides, scratch);
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

/// The pass over a FlowBlock. `PLAIN`: all flows have weight 1, the same saturation price and no
/// demand, and no sum has elastic loads apart from loads. `CORE`: the flows cross the cores. `DOT`:
/// [`add_elastic`](totals::add_elastic) uses its dot product.
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
    // The sums are taken over before anything adds to them.
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
    // Rows over the cores have no rack-pair rows, so those kernels exist for one case only.
    if !CORE {
        rack_pair_rows::pass_over_pairs::<PLAIN, DOT>(pass, block, [&mut up, &mut down], scratch);
    }
}

/// Mask for the first addition to a side's sums: all lanes, or none if the sums are the last
/// iteration's.
fn keep_first(side: &mut Side<'_>) -> __mmask16 {
    if let Some(core) = &mut side.core {
        // Racks of a pod share its table, so no table of a rack is the first to add to it.
        core.copy.clear();
        core.copy.overwrite();
    }
    if side.copy.overwrite() { 0 } else { ALL_LANES }
}
