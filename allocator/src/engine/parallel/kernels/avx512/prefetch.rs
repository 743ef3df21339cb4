//! Prefetching: requests for cache lines ahead of their use.

use std::arch::x86_64::*;

use super::Side;
use crate::engine::parallel::lanes::{Lanes, LinkTable, TABLE_LANES};

/// Tables by which requests for other workers' lines run ahead.
pub(super) const AHEAD: usize = 2;
/// Rows by which prefetching from beyond the second-level cache runs ahead.
pub(super) const ROWS_AHEAD: usize = 32;
/// Link tables by which it runs ahead.
pub(super) const TABLES_AHEAD: usize = 4;

/// Requests a cache line that another worker had last, to be read or written.
#[inline(always)]
pub(super) fn request_line(lanes: &Lanes, to_write: bool) {
    let line = lanes.0.as_ptr();
    // SAFETY: these only move a cache line; every processor with AVX-512 knows both.
    unsafe {
        if to_write {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        } else {
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
    }
}

/// Requests prices and scales of a table. The other worker has had half of these lines.
#[inline(always)]
pub(super) fn request_table(side: &Side<'_>, table: usize) {
    if table < side.links.prices.len() {
        for lanes in &side.links.prices[table] {
            request_line(lanes, false);
        }
        for lanes in &side.links.norm_scales[table] {
            request_line(lanes, false);
        }
    }
}

/// Requests the sums of a table, for writing.
#[inline(always)]
pub(super) fn request_sums(side: &Side<'_>, table: usize) {
    if table < side.copy.load.len() {
        for lanes in &side.copy.load[table] {
            request_line(lanes, true);
        }
        for lanes in &side.copy.neg_slope[table] {
            request_line(lanes, true);
        }
    }
}

/// Prefetches an entry of a row to come. The processor's own prefetching ends with each page. Not
/// past the caches (`prefetchnta`), although the line is not used again before the next pass: an
/// Intel processor would then not leave it in the third-level cache.
#[inline(always)]
pub(super) fn fetch_ahead<T>(list: &[T], row: usize) {
    let there = list.as_ptr().wrapping_add(row).cast::<i8>();
    // SAFETY: a hint, which reads nothing wherever it points.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(there) }
}

/// Prefetches a link table to come.
#[inline(always)]
pub(super) fn fetch_table_ahead(tables: &[LinkTable], table: usize) {
    let lanes = tables.as_flattened();
    for lane in 0..TABLE_LANES {
        fetch_ahead(lanes, table * TABLE_LANES + lane);
    }
}
