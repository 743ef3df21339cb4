//! Pass over the rows by one rack each: rate update, F-NORM, threshold and sums.

use std::arch::x86_64::*;

use super::exchange::{deliver, deliver_pairs, fetch, slopes_in, store_pairs};
use super::prefetch::{
    AHEAD, ROWS_AHEAD, TABLES_AHEAD, fetch_ahead, fetch_table_ahead, request_sums, request_table,
};
use super::registers::{
    LookUp, RowSlots, increase, load, load_words, of, of_mut, pod_tables, store,
};
use super::response::Terms;
use super::totals::{TableTotals, leave, leave_four, leave_nothing};
use super::{ALL_LANES, FLOW_LANES, PassSettings, Scratch, Side};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::lanes::{LANES, LinkTable, Pairs};

/// Computes prices and F-NORM scales of the upward halves of the paths.
#[target_feature(enable = "avx512f")]
pub(super) fn up_pairs<const CORE: bool, const EXCEEDS_CACHE: bool>(
    pass: PassSettings,
    block: &FlowBlock,
    side: &Side<'_>,
    pairs: &mut [Pairs],
) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for table in 0..block.up.tables() {
        if pass.shared_links && !EXCEEDS_CACHE {
            request_table(side, table + AHEAD);
        }
        let rows = block.up.rows_of(table);
        if rows.is_empty() {
            continue;
        }
        let pod = pod_tables::<CORE>(side, table);
        let prices = LookUp::<CORE>::load(&side.links.prices[table], pod[0]);
        let norm_scales = LookUp::<CORE>::load(&side.links.norm_scales[table], pod[1]);
        if EXCEEDS_CACHE {
            fetch_table_ahead(&side.links.prices, table + TABLES_AHEAD);
            fetch_table_ahead(&side.links.norm_scales, table + TABLES_AHEAD);
        }
        for &row in rows {
            let row = usize::from(row);
            if EXCEEDS_CACHE {
                fetch_ahead(&block.up.words, row + ROWS_AHEAD);
            }
            let slots = RowSlots::of(load_words(of(&block.up.words, row)));
            let price = slots.price(&prices);
            let norm_scale = slots.norm_scale(&norm_scales);
            let out = of_mut(pairs, row).0.as_flattened_mut().as_mut_ptr();
            // SAFETY: `Pairs` is 128 writable bytes, aligned to 64.
            unsafe {
                // Interleaved, so that the exchange fetches a flow's pair with one load.
                _mm512_store_ps(out, _mm512_permutex2var_ps(price, low, norm_scale));
                _mm512_store_ps(
                    out.add(LANES),
                    _mm512_permutex2var_ps(price, high, norm_scale),
                );
            }
        }
    }
}

/// Passes over the rows in downward order: F-NORM, threshold, new rates and their sums, table by
/// table.
#[target_feature(enable = "avx512f")]
pub(super) fn down_rows<
    const NORMALIZE: bool,
    const RATES: bool,
    const PLAIN: bool,
    const CORE: bool,
    const EXCEEDS_CACHE: bool,
    const DOT: bool,
>(
    pass: PassSettings,
    block: &mut FlowBlock,
    side: &mut Side<'_>,
    keep: __mmask16,
    scratch: &mut Scratch,
) {
    for table in 0..block.down.tables() {
        if pass.shared_links && !EXCEEDS_CACHE {
            request_table(side, table + AHEAD);
            if RATES {
                request_sums(side, table + AHEAD);
            }
        }
        if block.down.rows_of(table).is_empty() {
            leave_nothing(side, keep, table);
            continue;
        }
        // Two variants of the table's pass, chosen once: the branch would stand in every row.
        if NORMALIZE && pass.many_updates {
            down_table::<NORMALIZE, RATES, PLAIN, CORE, EXCEEDS_CACHE, true>(
                pass, block, side, table, scratch,
            );
        } else {
            down_table::<NORMALIZE, RATES, PLAIN, CORE, EXCEEDS_CACHE, false>(
                pass, block, side, table, scratch,
            );
        }
        if RATES {
            let cells = if EXCEEDS_CACHE {
                scratch.pairs.as_mut_ptr().cast::<u32>()
            } else {
                scratch.rates.as_mut_ptr().cast::<u32>()
            };
            // A loop of its own, over rows that the cache holds by now: totals alone take up to 21
            // registers.
            let mut totals = TableTotals::<CORE>::new();
            for (place, &row) in block.down.rows_of(table).iter().enumerate() {
                let row = usize::from(row);
                let (rates, up_cells) = (of(&block.rate, row), of(&block.up_cell, row));
                let mut slopes = _mm512_setzero_si512();
                if PLAIN {
                    // SAFETY: a FlowBlock's upward cells are cells of its upward rows, and the
                    // scratch was fitted to them, pairs and rates alike.
                    unsafe {
                        deliver::<EXCEEDS_CACHE>(rates, up_cells, cells, scratch.pairs.len());
                    }
                } else {
                    let responses = of(&scratch.responses, place);
                    slopes = slopes_in(responses);
                    // SAFETY: as above.
                    unsafe { deliver_pairs(responses, up_cells, &mut scratch.pairs) };
                }
                let words = load_words(of(&block.down.words, row));
                totals.add::<PLAIN, DOT>(words, load(rates), slopes);
            }
            leave!(CORE, PLAIN, totals, side, keep, table);
        }
    }
}

/// Normalises and updates the rates of one table. `MANY_UPDATES` if many rates are expected to pass
/// the threshold. Where about half of the rows have an update, the branch around the store is
/// mispredicted and costs more than a store per row. Where almost none has, the store costs more.
#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn down_table<
    const NORMALIZE: bool,
    const RATES: bool,
    const PLAIN: bool,
    const CORE: bool,
    const EXCEEDS_CACHE: bool,
    const MANY_UPDATES: bool,
>(
    pass: PassSettings,
    block: &mut FlowBlock,
    side: &Side<'_>,
    table: usize,
    scratch: &mut Scratch,
) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    let pod = pod_tables::<CORE>(side, table);
    let prices = LookUp::<CORE>::load(&side.links.prices[table], pod[0]);
    let norm_scales = LookUp::<CORE>::load(&side.links.norm_scales[table], pod[1]);
    let threshold = _mm512_set1_ps(pass.threshold);
    let terms = Terms {
        common_saturation_price: block.common_saturation_price,
        of_rows: block.terms.as_ref().map(|terms| &terms.down),
    };
    let pairs = scratch.pairs.as_ptr().cast::<f64>();
    if EXCEEDS_CACHE {
        fetch_table_ahead(&side.links.prices, table + TABLES_AHEAD);
        fetch_table_ahead(&side.links.norm_scales, table + TABLES_AHEAD);
        fetch_table_ahead(&side.copy.load, table + TABLES_AHEAD);
        fetch_table_ahead(&side.copy.neg_slope, table + TABLES_AHEAD);
    }
    for (place, &row) in block.down.rows_of(table).iter().enumerate() {
        let row = usize::from(row);
        if EXCEEDS_CACHE {
            fetch_ahead(&block.up_cell, row + ROWS_AHEAD);
            fetch_ahead(&block.down.words, row + ROWS_AHEAD);
            fetch_ahead(&block.rate, row + ROWS_AHEAD);
            fetch_ahead(&block.notified, row + ROWS_AHEAD);
            if let Some(terms) = terms.of_rows.filter(|_| !PLAIN) {
                fetch_ahead(&terms.weight, row + ROWS_AHEAD);
                fetch_ahead(&terms.saturation_price, row + ROWS_AHEAD);
                fetch_ahead(&terms.demand, row + ROWS_AHEAD);
            }
        }
        let terms = terms.of_row::<PLAIN>(row);
        // SAFETY: a FlowBlock's upward cells are cells of its upward rows (see `deliver`).
        let (first, second) = unsafe { fetch(of(&block.up_cell, row), pairs) };
        let slots = RowSlots::of(load_words(of(&block.down.words, row)));
        let rate = of_mut(&mut block.rate, row);
        if NORMALIZE {
            let norm_scale = _mm512_permutex2var_ps(first, odd, second);
            let norm_scale = _mm512_min_ps(norm_scale, slots.norm_scale(&norm_scales));
            let notified = of_mut(&mut block.notified, row);
            let normalized_rates = terms.normalized::<PLAIN>(load(rate), norm_scale);
            let last = load(notified);
            let distance = _mm512_abs_ps(_mm512_sub_ps(normalized_rates, last));
            let far = _mm512_mul_ps(threshold, last);
            let notify = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(distance, far);
            // Only lanes with an update are written; the others keep the rate last notified.
            if MANY_UPDATES || notify != 0 {
                store(notified, _mm512_mask_mov_ps(last, notify, normalized_rates));
            }
            *of_mut(&mut scratch.notify, row) = notify;
        } else {
            // A mask of a former pass must not notify again.
            *of_mut(&mut scratch.notify, row) = 0;
        }
        if RATES {
            let price = _mm512_permutex2var_ps(first, even, second);
            let price = _mm512_add_ps(price, slots.price(&prices));
            let (rates, slopes) = terms.response::<PLAIN>(price);
            store(rate, rates);
            if !PLAIN {
                store_pairs(of_mut(&mut scratch.responses, place), rates, slopes);
            }
        }
    }
}

/// Sums the rates in upward order.
#[target_feature(enable = "avx512f")]
pub(super) fn up_rates<
    const PLAIN: bool,
    const CORE: bool,
    const EXCEEDS_CACHE: bool,
    const DOT: bool,
>(
    pass: PassSettings,
    block: &FlowBlock,
    side: &mut Side<'_>,
    keep: __mmask16,
    scratch: &Scratch,
) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    for table in 0..block.up.tables() {
        if pass.shared_links && !EXCEEDS_CACHE {
            request_sums(side, table + AHEAD);
        }
        let rows = block.up.rows_of(table);
        if rows.is_empty() {
            leave_nothing(side, keep, table);
            continue;
        }
        let mut totals = TableTotals::<CORE>::new();
        if EXCEEDS_CACHE {
            fetch_table_ahead(&side.copy.load, table + TABLES_AHEAD);
            fetch_table_ahead(&side.copy.neg_slope, table + TABLES_AHEAD);
        }
        for &row in rows {
            let row = usize::from(row);
            if EXCEEDS_CACHE {
                fetch_ahead(&block.up.words, row + ROWS_AHEAD);
            }
            let words = load_words(of(&block.up.words, row));
            let mut slopes = _mm512_setzero_si512();
            let rates = if EXCEEDS_CACHE || !PLAIN {
                let pairs = of(&scratch.pairs, row).0.as_flattened().as_ptr();
                // SAFETY: `Pairs` is 128 readable bytes, aligned to 64.
                let (first, second) =
                    unsafe { (_mm512_load_ps(pairs), _mm512_load_ps(pairs.add(LANES))) };
                // The last lane stands for no flow, but its pair is that of some links.
                if !PLAIN {
                    let of_flows = _mm512_maskz_permutex2var_ps(FLOW_LANES, first, odd, second);
                    slopes = _mm512_castps_si512(of_flows);
                }
                _mm512_maskz_permutex2var_ps(FLOW_LANES, first, even, second)
            } else {
                load(of(&scratch.rates, row))
            };
            totals.add::<PLAIN, DOT>(words, rates, slopes);
        }
        leave!(CORE, PLAIN, totals, side, keep, table);
    }
}
