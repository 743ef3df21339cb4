//! The walk over rows for both racks.
//!
//! Nothing moves between orders here. The downward table of a row stays in registers, the upward one is
//! looked up, and added to, where it lies in memory.

use std::arch::x86_64::*;

use super::{
    ALL_LANES, FLOW_LANES, Pass, Registers, Scratch, Side, host_slots, increase, load, load_words,
    of, of_mut, store,
};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::joint::JointRows;
use crate::engine::parallel::lanes::{Lanes, Table};

/// Works on every joint row of a FlowBlock.
#[target_feature(enable = "avx512f")]
pub(super) fn joint_rows<const PLAIN: bool>(
    pass: Pass,
    block: &mut FlowBlock,
    [up, down]: [&mut Side<'_>; 2],
    scratch: &mut Scratch,
) {
    // Without `PLAIN`, there are such lists.
    let (weights, knees) = match &block.terms {
        Some(terms) => (&terms.joint_weight[..], &terms.joint_knee[..]),
        None => (&[][..], &[][..]),
    };
    let terms = Terms {
        common_knee: block.common_knee,
        weights,
        knees,
    };
    let joint = &mut block.joint;
    for table in 0..joint.down.tables() {
        if joint.down.rows_of(table).is_empty() {
            continue;
        }
        let links = [&*up, &*down];
        macro_rules! rates {
            ($normalize:literal, $rates:literal, $plain:expr, $moving:literal) => {
                rates::<$normalize, $rates, { $plain }, $moving>(
                    pass, joint, terms, links, table, scratch,
                )
            };
        }
        match (pass.normalize, pass.rates, pass.moving) {
            (true, true, false) => rates!(true, true, PLAIN, false),
            (true, true, true) => rates!(true, true, PLAIN, true),
            (false, true, _) => rates!(false, true, PLAIN, false),
            (_, false, false) => rates!(true, false, true, false),
            (_, false, true) => rates!(true, false, true, true),
        }
        if pass.rates {
            sums::<PLAIN>(joint, [&mut *up, &mut *down], table, scratch);
        }
    }
}

/// Weights and knees by row.
#[derive(Clone, Copy)]
struct Terms<'a> {
    common_knee: f32,
    weights: &'a [Lanes],
    knees: &'a [Lanes],
}

/// F-NORM, threshold and new rates of the flows to a rack. `MOVING` as for the other rows.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn rates<const NORMALIZE: bool, const RATES: bool, const PLAIN: bool, const MOVING: bool>(
    pass: Pass,
    joint: &mut JointRows,
    terms: Terms<'_>,
    [up, down]: [&Side<'_>; 2],
    table: usize,
    scratch: &mut Scratch,
) {
    let (prices, rooms) = (
        Registers::load(&down.links.prices[table]),
        Registers::load(&down.links.rooms[table]),
    );
    let (two, threshold) = (_mm512_set1_ps(2.0), _mm512_set1_ps(pass.threshold));
    let common_knee = _mm512_set1_ps(terms.common_knee);
    for &row in joint.down.rows_of(table) {
        let source = joint.source(row);
        let row = usize::from(row);
        let up_words = load_words(of(&joint.up.words, row));
        let down_words = load_words(of(&joint.down.words, row));
        let (up_hosts, up_third) = host_slots(up_words);
        let (down_hosts, down_third) = host_slots(down_words);
        let rate = of_mut(&mut joint.rate, row);
        if NORMALIZE {
            let of_source = Registers::load(&up.links.rooms[source]);
            let (host, fabric) = of_source.look_up(up_hosts, up_words, up_third);
            let room = _mm512_min_ps(host, fabric);
            let (host, fabric) = rooms.look_up(down_hosts, down_words, down_third);
            let room = _mm512_min_ps(room, _mm512_min_ps(host, fabric));
            let told = of_mut(&mut joint.told, row);
            let fits = _mm512_mul_ps(load(rate), room);
            let last = load(told);
            let distance = _mm512_abs_ps(_mm512_sub_ps(fits, last));
            let moved = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(distance, _mm512_mul_ps(threshold, last));
            if MOVING || moved != 0 {
                store(told, _mm512_mask_mov_ps(last, moved, fits));
            }
            *of_mut(&mut scratch.joint_moved, row) = moved;
        }
        if RATES {
            let of_source = Registers::load(&up.links.prices[source]);
            let (host, fabric) = of_source.look_up(up_hosts, up_words, up_third);
            let price = _mm512_add_ps(host, fabric);
            let (host, fabric) = prices.look_up(down_hosts, down_words, down_third);
            let price = _mm512_add_ps(price, _mm512_add_ps(host, fabric));
            let knee = if PLAIN {
                common_knee
            } else {
                load(of(terms.knees, row))
            };
            let price = _mm512_max_ps(price, knee);
            let guess = _mm512_rcp14_ps(price);
            let share = _mm512_mul_ps(guess, _mm512_fnmadd_ps(price, guess, two));
            if PLAIN {
                store(rate, _mm512_maskz_mov_ps(FLOW_LANES, share));
            } else {
                let rates = _mm512_mul_ps(load(of(terms.weights, row)), share);
                store(rate, rates);
                store(
                    of_mut(&mut scratch.joint_reactions, row),
                    _mm512_mul_ps(rates, share),
                );
            }
        }
    }
}

/// Adds up what comes to a rack, and to what goes from each. Rows from the same rack follow one another:
/// their sums stay in registers.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn sums<const PLAIN: bool>(
    joint: &JointRows,
    [up, down]: [&mut Side<'_>; 2],
    table: usize,
    scratch: &Scratch,
) {
    let zero = _mm512_setzero_ps();
    let mut totals = Totals([[zero; 2]; 4]);
    let mut rows = joint.down.rows_of(table);
    while let Some(&first) = rows.first() {
        let source = joint.source(first);
        let mut of_source = Totals([[zero; 2]; 4]);
        while let Some((&row, rest)) = rows.split_first() {
            if joint.source(row) != source {
                break;
            }
            rows = rest;
            let row = usize::from(row);
            let up_words = load_words(of(&joint.up.words, row));
            let down_words = load_words(of(&joint.down.words, row));
            let rates = load(of(&joint.rate, row));
            let reactions = if PLAIN {
                rates
            } else {
                load(of(&scratch.joint_reactions, row))
            };
            macro_rules! add {
                ($totals:ident, $which:literal, $words:expr, $shift:literal) => {{
                    let lanes = _mm512_srli_epi32::<$shift>($words);
                    let rate = _mm512_permutexvar_ps(lanes, rates);
                    let [load, sum] = $totals.0[$which];
                    $totals.0[$which] = [
                        _mm512_add_ps(load, rate),
                        if PLAIN {
                            _mm512_fmadd_ps(rate, rate, sum)
                        } else {
                            _mm512_add_ps(sum, _mm512_permutexvar_ps(lanes, reactions))
                        },
                    ];
                }};
            }
            add!(totals, 0, down_words, 4);
            add!(totals, 1, down_words, 8);
            add!(totals, 2, down_words, 12);
            add!(of_source, 0, up_words, 4);
            add!(of_source, 1, up_words, 8);
            add!(of_source, 2, up_words, 12);
            // Both sides have the same fabric slots.
            add!(of_source, 3, down_words, 16);
            add!(of_source, 3, down_words, 20);
        }
        for which in 0..2 {
            let sum = _mm512_add_ps(totals.0[3][which], of_source.0[3][which]);
            totals.0[3][which] = sum;
        }
        of_source.leave(&mut up.sums.load[source], &mut up.sums.reaction[source]);
    }
    totals.leave(&mut down.sums.load[table], &mut down.sums.reaction[table]);
}

/// Loads and reactions of a table's registers.
struct Totals([[__m512; 2]; 4]);

impl Totals {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn leave(&self, loads: &mut Table, reactions: &mut Table) {
        let [first, second, third, fourth] = self.0;
        for (i, total) in [first, second, third, fourth].into_iter().enumerate() {
            increase(&mut loads[i], ALL_LANES, total[0]);
            increase(&mut reactions[i], ALL_LANES, total[1]);
        }
    }
}
