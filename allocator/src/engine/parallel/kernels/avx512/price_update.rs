//! The price update for AVX-512.

use std::arch::x86_64::*;

use super::prefetch::ask_for;
use super::registers::{load, of, of_mut, store};
use crate::engine::parallel::lanes::Lanes;
use crate::engine::parallel::link_block::{LinkBlock, LinkBlockCopy};
use crate::engine::parallel::price_update::{
    FIRST_PRICE, IDLE_SCALE, LaneReports, LinkLanes, MOST_PRICE, UpdateReport, UpdateRule, guard,
};

/// Registers of links by which requests for other workers' cache lines run ahead.
const AHEAD: usize = 12;

/// The guarded step of `link_block` on sixteen links, line by line; returns the next price, room, step
/// and excess. A macro, since all that goes in and out has to stay in registers.
macro_rules! guarded_step {
    ($rules:expr, $capacity:expr, [$load:expr, $elastic:expr, $reaction:expr], $state:expr, $met:expr) => {{
        let set = |value: f32| _mm512_set1_ps(value);
        let (zero, one) = (_mm512_setzero_ps(), set(1.0));
        let above = |a: __m512, b: __m512| _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b);
        let negated = |a: __m512| _mm512_sub_ps(zero, a);
        let (rules, load_, elastic, reaction) = ($rules, $load, $elastic, $reaction);
        let capacity = $capacity;
        let [price, room_before, length, last] = $state;
        // A load that is no number leaves no room.
        let busy = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(load_, zero);
        let active = busy & above(capacity, zero);
        let steps_on = active & above(elastic, zero) & above(reaction, zero);
        let excess = _mm512_sub_ps(load_, capacity);
        let over = above(excess, zero);
        let idle = !above(price, zero) & !over;
        let turn = _mm512_mul_ps(excess, last);
        let shorter = _mm512_max_ps(_mm512_mul_ps(length, set(guard::SHRINK)), rules.gamma);
        let longer = _mm512_min_ps(_mm512_mul_ps(length, set(guard::GROW)), rules.longest);
        let next_length = _mm512_mask_mov_ps(length, above(zero, turn), shorter);
        let next_length = _mm512_mask_mov_ps(next_length, above(turn, zero), longer);
        let size = _mm512_abs_ps(last);
        let disturbed = above(_mm512_mul_ps(set(guard::CALM), capacity), size)
            & above(
                _mm512_abs_ps(excess),
                _mm512_mul_ps(set(guard::DISTURBED), size),
            );
        let next_length = _mm512_mask_mov_ps(next_length, disturbed, rules.first);
        let next_length = _mm512_mask_mov_ps(next_length, idle, rules.longest);
        let shared = reciprocal(_mm512_mask_mul_ps(one, steps_on, elastic, reaction));
        // In this order, no square is met that a product of both would not be.
        let mean = _mm512_mask_mul_ps(one, steps_on, _mm512_mul_ps(elastic, shared), elastic);
        let slope = _mm512_mul_ps(reaction, shared);
        let inverse_mean = _mm512_mask_mul_ps(one, steps_on, slope, reaction);
        let inverse_capacity = _mm512_maskz_mov_ps(above(capacity, zero), reciprocal(capacity));
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
        let unfelt = _mm512_mask_mul_ps(price, active & !over, price, set(guard::UNFELT_FALL));
        let next = _mm512_mask_mov_ps(unfelt, steps_on, next);
        let no_number = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(next, next);
        let next = _mm512_min_ps(next, set(MOST_PRICE));
        let next = _mm512_mask_mov_ps(next, no_number, set(FIRST_PRICE));
        let room = _mm512_maskz_max_ps(active, fitting, zero);
        let room = _mm512_mask_mov_ps(set(IDLE_SCALE), busy, room);
        let moved = _mm512_mul_ps(_mm512_abs_ps(_mm512_sub_ps(next, price)), inverse_mean);
        let turned = _mm512_abs_ps(_mm512_sub_ps(room, room_before));
        let scale = _mm512_max_ps(_mm512_mul_ps(load_, inverse_capacity), one);
        let change = _mm512_fmadd_ps(turned, scale, moved);
        $met = [
            _mm512_mask_max_ps($met[0], active, $met[0], off),
            _mm512_mask_max_ps($met[1], active, $met[1], relative),
            _mm512_mask_max_ps($met[2], active, $met[2], change),
            _mm512_mask_add_ps($met[3], no_number, $met[3], one),
        ];
        [
            next,
            room,
            _mm512_mask_mov_ps(length, steps_on, next_length),
            _mm512_mask_mov_ps(last, steps_on, excess),
        ]
    }};
}
/// See [`crate::engine::parallel::kernels::Kernels::update`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::engine::parallel::kernels) fn update(
    links: &mut LinkBlock,
    rule: UpdateRule,
    contributions: &[&LinkBlockCopy],
) -> UpdateReport {
    if rule.guarded
        && let Some(mut lists) = links.direct()
        && let Some((first, rest)) = contributions.split_first()
    {
        return if contributions.iter().any(|sums| sums.has_elastic) {
            direct::<true>(rule.gamma, &mut lists, first, rest)
        } else {
            direct::<false>(rule.gamma, &mut lists, first, rest)
        };
    }
    links.update_by(
        rule,
        contributions,
        |gamma, capacities, sums, state, found| {
            guarded(gamma, capacities, sums, state, found);
        },
    )
}

/// The guarded step of every link of a LinkBlock whose sums are those of the workers; with `ELASTIC` if elastic
/// loads may be others than loads.
#[target_feature(enable = "avx512f")]
fn direct<const ELASTIC: bool>(
    gamma: f32,
    lists: &mut LinkLanes<'_>,
    first: &LinkBlockCopy,
    rest: &[&LinkBlockCopy],
) -> UpdateReport {
    let mut found = UpdateReport::NOTHING;
    let mut met = registers_of(&found);
    let rules = StepRegisters::new(gamma);
    let (loads, reactions) = (first.load.as_flattened(), first.reaction.as_flattened());
    let registers = lists.capacities.len();
    for i in 0..registers {
        if i + AHEAD < registers {
            ask_for(of(lists.prices, i + AHEAD), true);
            ask_for(of(lists.rooms, i + AHEAD), true);
            for sums in rest {
                ask_for(of(sums.load.as_flattened(), i + AHEAD), false);
                ask_for(of(sums.reaction.as_flattened(), i + AHEAD), false);
            }
            ask_for(of(loads, i + AHEAD), false);
            ask_for(of(reactions, i + AHEAD), false);
        }
        // A rack of 16 hosts has links in two registers of four.
        if !*of(lists.linked, i) {
            continue;
        }
        let (mut sum, mut reaction) = (load(of(loads, i)), load(of(reactions, i)));
        for sums in rest {
            sum = _mm512_add_ps(sum, load(of(sums.load.as_flattened(), i)));
            reaction = _mm512_add_ps(reaction, load(of(sums.reaction.as_flattened(), i)));
        }
        let mut elastic = sum;
        if ELASTIC {
            elastic = load(of(first.elastic_loads().as_flattened(), i));
            for sums in rest {
                elastic = _mm512_add_ps(elastic, load(of(sums.elastic_loads().as_flattened(), i)));
            }
        }
        let (price, room) = (of_mut(lists.prices, i), of_mut(lists.rooms, i));
        let (step, excess) = (of_mut(lists.steps, i), of_mut(lists.excesses, i));
        let capacity = load(of(lists.capacities, i));
        let state = [load(price), load(room), load(step), load(excess)];
        let next = guarded_step!(rules, capacity, [sum, elastic, reaction], state, met);
        store(price, next[0]);
        store(room, next[1]);
        store(step, next[2]);
        store(excess, next[3]);
    }
    for (lanes, met) in found.iter_mut().zip(met) {
        store(lanes, met);
    }
    UpdateReport::of(&found)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn registers_of(found: &LaneReports) -> [__m512; 4] {
    [
        load(&found[0]),
        load(&found[1]),
        load(&found[2]),
        load(&found[3]),
    ]
}

/// 1 / x, within 2⁻²⁷.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn reciprocal(x: __m512) -> __m512 {
    let guess = _mm512_rcp14_ps(x);
    _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2.0)))
}

/// The constants of the guarded step.
#[derive(Clone, Copy)]
struct StepRegisters {
    gamma: __m512,
    longest: __m512,
    first: __m512,
}

impl StepRegisters {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(gamma: f32) -> Self {
        Self {
            gamma: _mm512_set1_ps(gamma),
            longest: _mm512_set1_ps(guard::LONGEST_STEP * gamma),
            first: _mm512_set1_ps(guard::FIRST_STEP * gamma),
        }
    }
}

/// The guarded step on sixteen links.
#[target_feature(enable = "avx512f")]
fn guarded(
    gamma: f32,
    capacities: &Lanes,
    [loads, reactions, elastics]: [&Lanes; 3],
    [prices, rooms, steps, excesses]: [&mut Lanes; 4],
    found: &mut LaneReports,
) {
    let mut met = registers_of(found);
    let sum = load(loads);
    let next = guarded_step!(
        StepRegisters::new(gamma),
        load(capacities),
        [sum, load(elastics), load(reactions)],
        [load(prices), load(rooms), load(steps), load(excesses)],
        met
    );
    for (lanes, value) in [prices, rooms, steps, excesses].into_iter().zip(next) {
        store(lanes, value);
    }
    for (lanes, met) in found.iter_mut().zip(met) {
        store(lanes, met);
    }
}
