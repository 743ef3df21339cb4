//! Price update.

use std::arch::x86_64::*;

use super::prefetch::request_line;
use super::registers::{load, of, of_mut, store};
use crate::engine::parallel::lanes::Lanes;
use crate::engine::parallel::link_block::{LinkBlock, LinkBlockCopy};
use crate::engine::parallel::price_update::{
    FIRST_PRICE, IDLE_SCALE, LaneReports, LinkLanes, MOST_PRICE, UpdateReport, UpdateRule,
    safeguard,
};

/// Registers of links by which requests for other workers' lines run ahead.
const AHEAD: usize = 12;

/// Safeguarded step of `price_update` on sixteen links, line by line. Returns the next price,
/// scale, step and excess. A macro, since all operands and results have to stay in registers.
macro_rules! safeguarded_step {
    ($rules:expr, $capacity:expr, [$load:expr, $elastic:expr, $neg_slope:expr], $state:expr, $reports:expr) => {{
        let set = |value: f32| _mm512_set1_ps(value);
        let (zero, one) = (_mm512_setzero_ps(), set(1.0));
        let above = |a: __m512, b: __m512| _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b);
        let negated = |a: __m512| _mm512_sub_ps(zero, a);
        let (rules, load_, elastic, neg_slope) = ($rules, $load, $elastic, $neg_slope);
        let capacity = $capacity;
        let [price, scale_before, length, last] = $state;
        // A load that is not a number makes the scale 0.
        let busy = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(load_, zero);
        let active = busy & above(capacity, zero);
        let steps_on = active & above(elastic, zero) & above(neg_slope, zero);
        let excess = _mm512_sub_ps(load_, capacity);
        let over = above(excess, zero);
        let idle = !above(price, zero) & !over;
        let sign_turn = _mm512_mul_ps(excess, last);
        let shorter = _mm512_max_ps(_mm512_mul_ps(length, set(safeguard::SHRINK)), rules.gamma);
        let longer = _mm512_min_ps(_mm512_mul_ps(length, set(safeguard::GROW)), rules.longest);
        let next_length = _mm512_mask_mov_ps(length, above(zero, sign_turn), shorter);
        let next_length = _mm512_mask_mov_ps(next_length, above(sign_turn, zero), longer);
        let size = _mm512_abs_ps(last);
        let disturbed = above(_mm512_mul_ps(set(safeguard::CALM), capacity), size)
            & above(
                _mm512_abs_ps(excess),
                _mm512_mul_ps(set(safeguard::DISTURBED), size),
            );
        let next_length = _mm512_mask_mov_ps(next_length, disturbed, rules.first);
        let next_length = _mm512_mask_mov_ps(next_length, idle, rules.longest);
        let shared = reciprocal(_mm512_mask_mul_ps(one, steps_on, elastic, neg_slope));
        // In this order, no square can overflow that the product of both would not.
        let mean = _mm512_mask_mul_ps(one, steps_on, _mm512_mul_ps(elastic, shared), elastic);
        let slope = _mm512_mul_ps(neg_slope, shared);
        let inverse_mean = _mm512_mask_mul_ps(one, steps_on, slope, neg_slope);
        let inverse_capacity = _mm512_maskz_mov_ps(above(capacity, zero), reciprocal(capacity));
        let relative = _mm512_mul_ps(excess, inverse_capacity);
        let felt = _mm512_min_ps(_mm512_mul_ps(price, inverse_mean), one);
        let spare = _mm512_maskz_mul_ps(steps_on, negated(relative), felt);
        let off = _mm512_max_ps(relative, spare);
        let whole = _mm512_mask_mul_ps(one, steps_on, elastic, _mm512_add_ps(load_, capacity));
        let bound = _mm512_mul_ps(set(safeguard::LARGEST_SHARE), whole);
        let half = _mm512_mul_ps(_mm512_mul_ps(next_length, load_), excess);
        let half = _mm512_maskz_min_ps(steps_on, _mm512_max_ps(half, negated(bound)), bound);
        let divisor = _mm512_mask_mov_ps(one, busy, load_);
        let rest = _mm512_sub_ps(whole, half);
        let shared = reciprocal(_mm512_mul_ps(rest, divisor));
        let factor = _mm512_mul_ps(_mm512_mul_ps(_mm512_add_ps(whole, half), divisor), shared);
        let scale = _mm512_mul_ps(_mm512_mul_ps(capacity, rest), shared);
        let shift = _mm512_mul_ps(set(safeguard::SHIFT), mean);
        let next = _mm512_fmsub_ps(_mm512_add_ps(price, shift), factor, shift);
        let next = _mm512_max_ps(next, _mm512_mul_ps(price, set(safeguard::LARGEST_FALL)));
        let negligible = above(_mm512_mul_ps(set(safeguard::NEGLIGIBLE), mean), next);
        let next = _mm512_mask_mov_ps(next, negligible, zero);
        let unfelt = _mm512_mask_mul_ps(price, active & !over, price, set(safeguard::UNFELT_FALL));
        let next = _mm512_mask_mov_ps(unfelt, steps_on, next);
        let no_number = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(next, next);
        let next = _mm512_min_ps(next, set(MOST_PRICE));
        let next = _mm512_mask_mov_ps(next, no_number, set(FIRST_PRICE));
        let norm_scale = _mm512_maskz_max_ps(active, scale, zero);
        let norm_scale = _mm512_mask_mov_ps(set(IDLE_SCALE), busy, norm_scale);
        let price_change = _mm512_mul_ps(_mm512_abs_ps(_mm512_sub_ps(next, price)), inverse_mean);
        let scale_change = _mm512_abs_ps(_mm512_sub_ps(norm_scale, scale_before));
        let scale = _mm512_max_ps(_mm512_mul_ps(load_, inverse_capacity), one);
        let change = _mm512_fmadd_ps(scale_change, scale, price_change);
        $reports = [
            _mm512_mask_max_ps($reports[0], active, $reports[0], off),
            _mm512_mask_max_ps($reports[1], active, $reports[1], relative),
            _mm512_mask_max_ps($reports[2], active, $reports[2], change),
            _mm512_mask_add_ps($reports[3], no_number, $reports[3], one),
        ];
        [
            next,
            norm_scale,
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
    copies: &[&LinkBlockCopy],
) -> UpdateReport {
    if rule.safeguarded
        && let Some(mut lanes) = links.direct()
        && let Some((first, rest)) = copies.split_first()
    {
        return if copies.iter().any(|sums| sums.has_elastic) {
            direct::<true>(rule.gamma, &mut lanes, first, rest)
        } else {
            direct::<false>(rule.gamma, &mut lanes, first, rest)
        };
    }
    links.update_by(rule, copies, |gamma, capacities, sums, state, reports| {
        safeguarded_ned_step(gamma, capacities, sums, state, reports);
    })
}

/// Safeguarded step of every link of a LinkBlock without replicas. `ELASTIC` if elastic loads may
/// differ from loads.
#[target_feature(enable = "avx512f")]
fn direct<const ELASTIC: bool>(
    gamma: f32,
    lanes: &mut LinkLanes<'_>,
    first: &LinkBlockCopy,
    rest: &[&LinkBlockCopy],
) -> UpdateReport {
    let mut reports = UpdateReport::NOTHING;
    let mut report_lanes = registers_of(&reports);
    let rules = StepRegisters::new(gamma);
    let (loads, neg_slopes) = (first.load.as_flattened(), first.neg_slope.as_flattened());
    let registers = lanes.capacities.len();
    for i in 0..registers {
        if i + AHEAD < registers {
            request_line(of(lanes.prices, i + AHEAD), true);
            request_line(of(lanes.norm_scales, i + AHEAD), true);
            for sums in rest {
                request_line(of(sums.load.as_flattened(), i + AHEAD), false);
                request_line(of(sums.neg_slope.as_flattened(), i + AHEAD), false);
            }
            request_line(of(loads, i + AHEAD), false);
            request_line(of(neg_slopes, i + AHEAD), false);
        }
        // A rack of 16 hosts has links in two of its four registers.
        if !*of(lanes.linked, i) {
            continue;
        }
        let (mut sum, mut neg_slope) = (load(of(loads, i)), load(of(neg_slopes, i)));
        for sums in rest {
            sum = _mm512_add_ps(sum, load(of(sums.load.as_flattened(), i)));
            neg_slope = _mm512_add_ps(neg_slope, load(of(sums.neg_slope.as_flattened(), i)));
        }
        let mut elastic = sum;
        if ELASTIC {
            elastic = load(of(first.elastic_loads().as_flattened(), i));
            for sums in rest {
                elastic = _mm512_add_ps(elastic, load(of(sums.elastic_loads().as_flattened(), i)));
            }
        }
        let (price, norm_scale) = (of_mut(lanes.prices, i), of_mut(lanes.norm_scales, i));
        let (step, excess) = (of_mut(lanes.steps, i), of_mut(lanes.excesses, i));
        let capacity = load(of(lanes.capacities, i));
        let state = [load(price), load(norm_scale), load(step), load(excess)];
        let next = safeguarded_step!(
            rules,
            capacity,
            [sum, elastic, neg_slope],
            state,
            report_lanes
        );
        store(price, next[0]);
        store(norm_scale, next[1]);
        store(step, next[2]);
        store(excess, next[3]);
    }
    for (lanes, report_lanes) in reports.iter_mut().zip(report_lanes) {
        store(lanes, report_lanes);
    }
    UpdateReport::of(&reports)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn registers_of(reports: &LaneReports) -> [__m512; 4] {
    [
        load(&reports[0]),
        load(&reports[1]),
        load(&reports[2]),
        load(&reports[3]),
    ]
}

/// 1 / x, within 2⁻²⁷ before rounding.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn reciprocal(x: __m512) -> __m512 {
    let guess = _mm512_rcp14_ps(x);
    _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2.0)))
}

/// Constants of the safeguarded step.
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
            longest: _mm512_set1_ps(safeguard::LONGEST_STEP * gamma),
            first: _mm512_set1_ps(safeguard::FIRST_STEP * gamma),
        }
    }
}

/// Safeguarded step on sixteen links.
#[target_feature(enable = "avx512f")]
fn safeguarded_ned_step(
    gamma: f32,
    capacities: &Lanes,
    [loads, neg_slopes, elastics]: [&Lanes; 3],
    [prices, norm_scales, steps, excesses]: [&mut Lanes; 4],
    reports: &mut LaneReports,
) {
    let mut report_lanes = registers_of(reports);
    let sum = load(loads);
    let next = safeguarded_step!(
        StepRegisters::new(gamma),
        load(capacities),
        [sum, load(elastics), load(neg_slopes)],
        [load(prices), load(norm_scales), load(steps), load(excesses)],
        report_lanes
    );
    for (lanes, value) in [prices, norm_scales, steps, excesses].into_iter().zip(next) {
        store(lanes, value);
    }
    for (lanes, report_lanes) in reports.iter_mut().zip(report_lanes) {
        store(lanes, report_lanes);
    }
}
