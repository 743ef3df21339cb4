//! The price update for AVX-512.

use std::arch::x86_64::*;

use super::{load, store};
use crate::engine::parallel::lanes::Lanes;
use crate::engine::parallel::link_block::{
    LinkBlock, Sums, UNLIMITED, UpdateReport, UpdateRule, guard,
};

/// See [`crate::engine::parallel::kernels::Kernels::update`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::engine::parallel::kernels) fn update(
    links: &mut LinkBlock,
    rule: UpdateRule,
    contributions: &[&Sums],
) -> UpdateReport {
    links.update_by(
        rule,
        contributions,
        |gamma, capacities, sums, state, found| {
            guarded(gamma, capacities, sums, state, found);
        },
    )
}

/// 1 / x, within 2⁻²⁷.
#[inline]
#[target_feature(enable = "avx512f")]
fn reciprocal(x: __m512) -> __m512 {
    let guess = _mm512_rcp14_ps(x);
    _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2.0)))
}

/// The guarded step of `link_block` on sixteen links, line by line.
#[inline]
#[target_feature(enable = "avx512f")]
fn guarded(
    gamma: f32,
    [capacities, inverse_capacities]: [&Lanes; 2],
    [loads, reactions, surpluses]: [&Lanes; 3],
    [prices, rooms, steps, excesses]: [&mut Lanes; 4],
    [residuals, excesses_met, changes]: &mut [Lanes; 3],
) {
    let set = |value: f32| _mm512_set1_ps(value);
    let (zero, one) = (_mm512_setzero_ps(), set(1.0));
    let above = |a: __m512, b: __m512| _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b);
    let negated = |a: __m512| _mm512_sub_ps(zero, a);
    let (load_, capacity, reaction) = (load(loads), load(capacities), load(reactions));
    let inverse_capacity = load(inverse_capacities);
    let elastic = _mm512_add_ps(load_, load(surpluses));
    let price = load(prices);
    let busy = above(load_, zero);
    let active = busy & above(capacity, zero);
    let steps_on = active & above(elastic, zero) & above(reaction, zero);
    let excess = _mm512_sub_ps(load_, capacity);
    let idle = !above(price, zero) & !above(excess, zero);
    let last = load(excesses);
    let turn = _mm512_mul_ps(excess, last);
    let (length, longest) = (load(steps), set(guard::LONGEST_STEP * gamma));
    let shorter = _mm512_max_ps(_mm512_mul_ps(length, set(guard::SHRINK)), set(gamma));
    let longer = _mm512_min_ps(_mm512_mul_ps(length, set(guard::GROW)), longest);
    let next_length = _mm512_mask_mov_ps(length, above(zero, turn), shorter);
    let next_length = _mm512_mask_mov_ps(next_length, above(turn, zero), longer);
    let size = _mm512_abs_ps(last);
    let disturbed = above(_mm512_mul_ps(set(guard::CALM), capacity), size)
        & above(
            _mm512_abs_ps(excess),
            _mm512_mul_ps(set(guard::DISTURBED), size),
        );
    let next_length = _mm512_mask_mov_ps(next_length, disturbed, set(guard::FIRST_STEP * gamma));
    let next_length = _mm512_mask_mov_ps(next_length, idle, longest);
    store(steps, _mm512_mask_mov_ps(length, steps_on, next_length));
    store(excesses, _mm512_mask_mov_ps(last, steps_on, excess));
    let shared = reciprocal(_mm512_mask_mul_ps(one, steps_on, elastic, reaction));
    let mean = _mm512_mask_mul_ps(one, steps_on, _mm512_mul_ps(elastic, elastic), shared);
    let inverse_mean = _mm512_mask_mul_ps(one, steps_on, _mm512_mul_ps(reaction, reaction), shared);
    let relative = _mm512_mul_ps(excess, inverse_capacity);
    let felt = _mm512_min_ps(_mm512_mul_ps(price, inverse_mean), one);
    let room_left = _mm512_maskz_mul_ps(steps_on, negated(relative), felt);
    let off = _mm512_max_ps(relative, room_left);
    let whole = _mm512_mask_mul_ps(one, steps_on, elastic, _mm512_add_ps(load_, capacity));
    let bound = _mm512_mul_ps(set(guard::LARGEST_SHARE), whole);
    let half = _mm512_mul_ps(_mm512_mul_ps(next_length, load_), excess);
    let half = _mm512_maskz_min_ps(steps_on, _mm512_max_ps(half, negated(bound)), bound);
    let divisor = _mm512_mask_mov_ps(one, busy, load_);
    let rest = _mm512_sub_ps(whole, half);
    let shared = reciprocal(_mm512_mul_ps(rest, divisor));
    let factor = _mm512_mul_ps(_mm512_mul_ps(_mm512_add_ps(whole, half), divisor), shared);
    let fitting = _mm512_mul_ps(_mm512_mul_ps(capacity, rest), shared);
    let shift = _mm512_mul_ps(set(guard::SHIFT), mean);
    let next = _mm512_fmsub_ps(_mm512_add_ps(price, shift), factor, shift);
    let next = _mm512_max_ps(next, _mm512_mul_ps(price, set(guard::LARGEST_FALL)));
    let negligible = above(_mm512_mul_ps(set(guard::NEGLIGIBLE), mean), next);
    let next = _mm512_mask_mov_ps(next, negligible, zero);
    let falls = active & !above(excess, zero);
    let unfelt = _mm512_mask_mul_ps(price, falls, price, set(guard::UNFELT_FALL));
    let next = _mm512_mask_mov_ps(unfelt, steps_on, next);
    store(prices, next);
    let room = _mm512_mask_mov_ps(set(UNLIMITED), busy, _mm512_maskz_mov_ps(active, fitting));
    let moved = _mm512_mul_ps(_mm512_abs_ps(_mm512_sub_ps(next, price)), inverse_mean);
    let turned = _mm512_abs_ps(_mm512_sub_ps(room, load(rooms)));
    let scale = _mm512_max_ps(_mm512_mul_ps(load_, inverse_capacity), one);
    let change = _mm512_fmadd_ps(turned, scale, moved);
    store(rooms, room);
    store(
        residuals,
        _mm512_mask_max_ps(load(residuals), active, load(residuals), off),
    );
    let met = load(excesses_met);
    store(excesses_met, _mm512_mask_max_ps(met, active, met, relative));
    store(
        changes,
        _mm512_mask_max_ps(load(changes), active, load(changes), change),
    );
}
