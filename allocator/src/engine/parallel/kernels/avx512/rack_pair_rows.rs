//! Pass over rack-pair rows.
//!
//! No value moves between orders here. A row's downward table stays in registers; its upward table
//! is read, and added to, where it lies in memory.

use std::arch::x86_64::*;

use super::registers::{
    Registers, host_slots, increase, load, load_words, of, of_mut, store, store_words,
};
use super::response::Terms;
use super::totals::{add_elastic, neg_slope_of};
use super::{ALL_LANES, PassSettings, Scratch, Side};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::link_block::LinkBlockCopy;
use crate::engine::parallel::rack_pair_rows::RackPairRows;

/// Passes over every rack-pair row of a FlowBlock.
#[target_feature(enable = "avx512f")]
pub(super) fn pass_over_pairs<const PLAIN: bool, const DOT: bool>(
    pass: PassSettings,
    block: &mut FlowBlock,
    [up, down]: [&mut Side<'_>; 2],
    scratch: &mut Scratch,
) {
    let terms = Terms {
        common_saturation_price: block.common_saturation_price,
        of_rows: block.terms.as_ref().map(|terms| &terms.pairs),
    };
    let pairs = &mut block.pairs;
    for table in 0..pairs.down.tables() {
        if pairs.down.rows_of(table).is_empty() {
            continue;
        }
        let links = [&*up, &*down];
        macro_rules! rates {
            ($normalize:literal, $rates:literal, $plain:expr, $moving:literal) => {
                rates::<$normalize, $rates, { $plain }, $moving>(
                    pass, pairs, terms, links, table, scratch,
                )
            };
        }
        match (pass.normalize, pass.rates, pass.many_updates) {
            (true, true, false) => rates!(true, true, PLAIN, false),
            (true, true, true) => rates!(true, true, PLAIN, true),
            (false, true, _) => rates!(false, true, PLAIN, false),
            (_, false, false) => rates!(true, false, PLAIN, false),
            (_, false, true) => rates!(true, false, PLAIN, true),
        }
        if pass.rates {
            sums::<PLAIN, DOT>(pairs, [&mut *up, &mut *down], table, scratch);
        }
    }
}

/// Normalises and updates the rates of the flows to a rack. `MANY_UPDATES` as for the other rows.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn rates<const NORMALIZE: bool, const RATES: bool, const PLAIN: bool, const MANY_UPDATES: bool>(
    pass: PassSettings,
    pairs: &mut RackPairRows,
    terms: Terms<'_>,
    [up, down]: [&Side<'_>; 2],
    table: usize,
    scratch: &mut Scratch,
) {
    let (prices, norm_scales) = (
        Registers::load(&down.links.prices[table]),
        Registers::load(&down.links.norm_scales[table]),
    );
    let threshold = _mm512_set1_ps(pass.threshold);
    for (place, &row) in pairs.down.rows_of(table).iter().enumerate() {
        let source = pairs.source(row);
        let row = usize::from(row);
        let terms = terms.of_row::<PLAIN>(row);
        let up_words = load_words(of(&pairs.up.words, row));
        let down_words = load_words(of(&pairs.down.words, row));
        let (up_hosts, up_third) = host_slots(up_words);
        let (down_hosts, down_third) = host_slots(down_words);
        let rate = of_mut(&mut pairs.rate, row);
        if NORMALIZE {
            let of_source = Registers::load(&up.links.norm_scales[source]);
            let (host, fabric) = of_source.look_up(up_hosts, up_words, up_third);
            let norm_scale = _mm512_min_ps(host, fabric);
            let (host, fabric) = norm_scales.look_up(down_hosts, down_words, down_third);
            let norm_scale = _mm512_min_ps(norm_scale, _mm512_min_ps(host, fabric));
            let notified = of_mut(&mut pairs.notified, row);
            let normalized_rates = terms.normalized::<PLAIN>(load(rate), norm_scale);
            let last = load(notified);
            let distance = _mm512_abs_ps(_mm512_sub_ps(normalized_rates, last));
            let notify = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(distance, _mm512_mul_ps(threshold, last));
            if MANY_UPDATES || notify != 0 {
                store(notified, _mm512_mask_mov_ps(last, notify, normalized_rates));
            }
            *of_mut(&mut scratch.pair_notify, row) = notify;
        }
        if RATES {
            let of_source = Registers::load(&up.links.prices[source]);
            let (host, fabric) = of_source.look_up(up_hosts, up_words, up_third);
            let price = _mm512_add_ps(host, fabric);
            let (host, fabric) = prices.look_up(down_hosts, down_words, down_third);
            let price = _mm512_add_ps(price, _mm512_add_ps(host, fabric));
            let (rates, slopes) = terms.response::<PLAIN>(price);
            store(rate, rates);
            if !PLAIN {
                store_words(of_mut(&mut scratch.slopes, place), slopes);
            }
        }
    }
}

/// Sums the rates to a rack, and those from each source. Rows of a source follow one another, so
/// their sums stay in registers.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn sums<const PLAIN: bool, const DOT: bool>(
    pairs: &RackPairRows,
    [up, down]: [&mut Side<'_>; 2],
    table: usize,
    scratch: &Scratch,
) {
    let zero = _mm512_setzero_ps();
    let mut totals = PairTotals([[zero; 3]; 4]);
    let mut rows = pairs.down.rows_of(table);
    let mut places = scratch.slopes.iter();
    while let Some(&first) = rows.first() {
        let source = pairs.source(first);
        let mut of_source = PairTotals([[zero; 3]; 4]);
        while let Some((&row, rest)) = rows.split_first() {
            if pairs.source(row) != source {
                break;
            }
            rows = rest;
            let row = usize::from(row);
            let up_words = load_words(of(&pairs.up.words, row));
            let down_words = load_words(of(&pairs.down.words, row));
            let rates = load(of(&pairs.rate, row));
            let mut slopes = _mm512_setzero_si512();
            // Terms are by position in the table, which both loops count alike.
            if !PLAIN && let Some(of_row) = places.next() {
                slopes = load_words(of_row);
            }
            macro_rules! add {
                ($totals:ident, $which:literal, $words:expr, $shift:literal) => {{
                    let lanes = _mm512_srli_epi32::<$shift>($words);
                    let rate = _mm512_permutexvar_ps(lanes, rates);
                    let [load, sum, elastic] = $totals.0[$which];
                    let load = _mm512_add_ps(load, rate);
                    $totals.0[$which] = if PLAIN {
                        [load, _mm512_fmadd_ps(rate, rate, sum), elastic]
                    } else {
                        let slope = _mm512_permutexvar_epi32(lanes, slopes);
                        [
                            load,
                            _mm512_add_ps(sum, neg_slope_of(slope)),
                            add_elastic::<DOT>(elastic, slope),
                        ]
                    };
                }};
            }
            add!(totals, 0, down_words, 4);
            add!(totals, 1, down_words, 8);
            add!(totals, 2, down_words, 12);
            add!(of_source, 0, up_words, 4);
            add!(of_source, 1, up_words, 8);
            add!(of_source, 2, up_words, 12);
            // Both sides have the same fabric slots, so one map serves both tables.
            add!(of_source, 3, down_words, 16);
            add!(of_source, 3, down_words, 20);
        }
        // The fabric links carry the flows of all sources.
        for which in 0..3 {
            let sum = _mm512_add_ps(totals.0[3][which], of_source.0[3][which]);
            totals.0[3][which] = sum;
        }
        of_source.leave::<PLAIN>(up.copy, source);
    }
    totals.leave::<PLAIN>(down.copy, table);
}

/// Loads, slopes and, without `PLAIN`, elastic loads of a table's registers.
struct PairTotals([[__m512; 3]; 4]);

impl PairTotals {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn leave<const PLAIN: bool>(&self, copy: &mut LinkBlockCopy, table: usize) {
        let [first, second, third, fourth] = self.0;
        for (i, total) in [first, second, third, fourth].into_iter().enumerate() {
            increase(&mut copy.load[table][i], ALL_LANES, total[0]);
            increase(&mut copy.neg_slope[table][i], ALL_LANES, total[1]);
            if !PLAIN {
                increase(&mut copy.elastic[table][i], ALL_LANES, total[2]);
            }
        }
    }
}
