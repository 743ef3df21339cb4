//! Correction step of dirty links.

use std::arch::x86_64::*;

use super::price_update::reciprocal;
use super::registers::{load, store};
use crate::engine::parallel::dirty_links::LinkVector;
use crate::num::price_correction::{LARGEST_FALL, LARGEST_GROWTH, SHIFT};

/// See [`crate::engine::parallel::kernels::Kernels::step_dirty_links`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::engine::parallel::kernels) fn step(vectors: &mut [LinkVector], only_newcomers: bool) {
    let (zero, one) = (_mm512_setzero_ps(), _mm512_set1_ps(1.0));
    let (fall, shift) = (
        _mm512_set1_ps(LARGEST_FALL as f32),
        _mm512_set1_ps(SHIFT as f32),
    );
    let growth = _mm512_set1_ps(LARGEST_GROWTH as f32);
    let every = if only_newcomers { 0 } else { !0 };
    let above_zero = |a: __m512| _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, zero);
    for vector in vectors {
        let (price, capacity) = (load(&vector.price), load(&vector.capacity));
        let (sum, neg_slope) = (
            load(&vector.remaining.load),
            load(&vector.remaining.neg_slope),
        );
        let (new, new_neg_slope) = (
            load(&vector.newcomers.load),
            load(&vector.newcomers.neg_slope),
        );
        // The order of `LinkVector::step_log`, operation by operation; only reciprocals differ, by
        // 2⁻²⁷.
        let reacts = above_zero(sum) & above_zero(neg_slope);
        let mean = _mm512_mask_mul_ps(one, reacts, sum, reciprocal(neg_slope));
        let shifted = _mm512_add_ps(mean, _mm512_sub_ps(price, load(&vector.base_price)));
        let inverse = reciprocal(_mm512_max_ps(shifted, _mm512_mul_ps(mean, fall)));
        let stays = _mm512_mul_ps(_mm512_mul_ps(sum, mean), inverse);
        let joins = above_zero(new) & above_zero(new_neg_slope);
        let new_mean = _mm512_mask_mul_ps(one, joins, new, reciprocal(new_neg_slope));
        let felt = _mm512_min_ps(_mm512_fmadd_ps(shift, new_mean, price), new_mean);
        let sum = _mm512_add_ps(stays, new);
        let new_felt = _mm512_maskz_mul_ps(above_zero(new), new, reciprocal(felt));
        let neg_slope = _mm512_fmadd_ps(stays, inverse, new_felt);
        let solvable = above_zero(sum) & above_zero(neg_slope) & above_zero(capacity);
        let mean = _mm512_mul_ps(sum, reciprocal(neg_slope));
        let fill = _mm512_mul_ps(sum, reciprocal(capacity));
        let grown = _mm512_sub_ps(_mm512_min_ps(fill, growth), one);
        let next = _mm512_max_ps(
            _mm512_fmadd_ps(mean, grown, price),
            _mm512_mul_ps(price, fall),
        );
        // Instead of branches: a lane without a response or capacity keeps its price.
        let moves = solvable & (every | above_zero(new));
        store(&mut vector.price, _mm512_mask_mov_ps(price, moves, next));
    }
}
