//! Responses of a row's flows: rates at their path prices, and normalised rates.

use std::arch::x86_64::*;

use super::registers::{load, of};
use super::totals::slopes_of;
use super::{FLOW_LANES, LEAST_ELASTIC};
use crate::engine::parallel::flow_block::RowTerms;

/// Terms of a list of rows, or common ones if there are no lists.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) common_saturation_price: f32,
    pub(super) of_rows: Option<&'a RowTerms>,
}

/// Terms of a row's flows.
pub(super) struct LaneTerms {
    pub(super) weights: __m512,
    /// Saturation prices without their signs.
    pub(super) saturation_prices: __m512,
    pub(super) demand_bound: __mmask16,
    pub(super) demands: __m512,
}

impl Terms<'_> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn of_row<const PLAIN: bool>(&self, row: usize) -> LaneTerms {
        let common = LaneTerms {
            weights: _mm512_set1_ps(1.0),
            saturation_prices: _mm512_set1_ps(self.common_saturation_price),
            demand_bound: 0,
            demands: _mm512_set1_ps(f32::INFINITY),
        };
        let Some(terms) = self.of_rows.filter(|_| !PLAIN) else {
            return common;
        };
        let saturation_prices = load(of(&terms.saturation_price, row));
        let sign = _mm512_set1_epi32(i32::MIN);
        LaneTerms {
            weights: load(of(&terms.weight, row)),
            saturation_prices: _mm512_abs_ps(saturation_prices),
            demand_bound: _mm512_test_epi32_mask(_mm512_castps_si512(saturation_prices), sign),
            demands: load(of(&terms.demand, row)),
        }
    }
}

impl LaneTerms {
    /// Rates at path prices, and their slopes; `PLAIN` has no slopes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn response<const PLAIN: bool>(&self, prices: __m512) -> (__m512, __m512i) {
        let above = _mm512_max_ps(prices, self.saturation_prices);
        // The reciprocal of 14 bits and one Newton step: an error of 2⁻²⁷ before rounding, at less
        // cost than a division.
        let guess = _mm512_rcp14_ps(above);
        let two = _mm512_set1_ps(2.0);
        let share = _mm512_mul_ps(guess, _mm512_fnmadd_ps(above, guess, two));
        if PLAIN {
            // Lane 15 holds no flow, but its slots name links: its rate has to be 0.
            let rates = _mm512_maskz_mov_ps(FLOW_LANES, share);
            return (rates, _mm512_setzero_si512());
        }
        let rates = _mm512_maskz_mul_ps(FLOW_LANES, self.weights, share);
        // The fourth power of `at_demand`, without a branch.
        let nearness = _mm512_mul_ps(prices, share);
        let squared = _mm512_mul_ps(nearness, nearness);
        let least = _mm512_set1_ps(LEAST_ELASTIC);
        let part = _mm512_max_ps(_mm512_mul_ps(squared, squared), least);
        let elastics = _mm512_mask_mul_ps(rates, self.demand_bound, rates, part);
        (rates, slopes_of(_mm512_mul_ps(elastics, share), elastics))
    }

    /// Normalised rates: at most the demand of flows that have one (F-NORM).
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn normalized<const PLAIN: bool>(
        &self,
        rates: __m512,
        norm_scales: __m512,
    ) -> __m512 {
        let normalized_rates = _mm512_mul_ps(rates, norm_scales);
        if PLAIN {
            return normalized_rates;
        }
        _mm512_min_ps(normalized_rates, self.demands)
    }
}
