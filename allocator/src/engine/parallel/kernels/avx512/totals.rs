//! Sums over a table's flows: by permutations per row, then into the worker's LinkBlock copy.

use std::arch::x86_64::*;

use super::{SELECT, Side};
use crate::engine::parallel::lanes::LinkTable;
use crate::engine::parallel::rows::PLANE_SHIFT;

const UPPER_HALF: i32 = !0xffff;
/// A pair of bfloat16 numbers: the lower one 1, the upper one 0.
const LOWER_HALF: i32 = 0x3f80;

/// Sums over a table's flows: host slots, then two maps of fabric slots or, with `CORE`, the
/// planes.
pub(super) struct TableTotals<const CORE: bool> {
    pub(super) load: [__m512; 7],
    pub(super) neg_slope: [__m512; 7],
    /// Used without `PLAIN` only.
    pub(super) elastic: [__m512; 7],
}

impl<const CORE: bool> TableTotals<CORE> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new() -> Self {
        Self {
            load: [_mm512_setzero_ps(); 7],
            neg_slope: [_mm512_setzero_ps(); 7],
            elastic: [_mm512_setzero_ps(); 7],
        }
    }

    /// Adds a row. With `PLAIN`, a slope is the square of its rate and every load is elastic;
    /// `slopes` is not read.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add<const PLAIN: bool, const DOT: bool>(
        &mut self,
        words: __m512i,
        rates: __m512,
        slopes: __m512i,
    ) {
        macro_rules! add {
            ($which:literal, $shift:literal) => {
                let lanes = _mm512_srli_epi32::<$shift>(words);
                let rate = _mm512_permutexvar_ps(lanes, rates);
                self.load[$which] = _mm512_add_ps(self.load[$which], rate);
                if PLAIN {
                    self.neg_slope[$which] = _mm512_fmadd_ps(rate, rate, self.neg_slope[$which]);
                } else {
                    let slope = _mm512_permutexvar_epi32(lanes, slopes);
                    let sums = (self.neg_slope[$which], self.elastic[$which]);
                    self.neg_slope[$which] = _mm512_add_ps(sums.0, neg_slope_of(slope));
                    self.elastic[$which] = add_elastic::<DOT>(sums.1, slope);
                }
            };
        }
        add!(0, 4);
        add!(1, 8);
        add!(2, 12);
        if CORE {
            // Written out, so that the totals stay in registers.
            macro_rules! add_plane {
                ($which:literal, $lanes:expr, $rate:ident, $slope:ident) => {
                    let of_plane = $lanes;
                    let (load, sum) = (self.load[$which], self.neg_slope[$which]);
                    self.load[$which] = _mm512_mask_add_ps(load, of_plane, load, $rate);
                    if PLAIN {
                        self.neg_slope[$which] = _mm512_mask3_fmadd_ps($rate, $rate, sum, of_plane);
                    } else {
                        let neg_slope = neg_slope_of($slope);
                        self.neg_slope[$which] = _mm512_mask_add_ps(sum, of_plane, sum, neg_slope);
                        let (sum, elastic) = (self.elastic[$which], elastic_of($slope));
                        self.elastic[$which] = _mm512_mask_add_ps(sum, of_plane, sum, elastic);
                    }
                };
            }
            macro_rules! add_planes {
                ($shift:literal, $planes:ident) => {
                    let lanes = _mm512_srli_epi32::<$shift>(words);
                    let rate = _mm512_permutexvar_ps(lanes, rates);
                    // A comparison per plane: combining masks happens in other registers of the
                    // processor, and moving them there and back takes longer.
                    let planes = _mm512_permutexvar_epi32(lanes, $planes);
                    let of_plane = |plane: i32| {
                        _mm512_cmpeq_epi32_mask(planes, _mm512_set1_epi32(plane << PLANE_SHIFT))
                    };
                    let slope = if PLAIN {
                        slopes
                    } else {
                        _mm512_permutexvar_epi32(lanes, slopes)
                    };
                    add_plane!(3, of_plane(0), rate, slope);
                    add_plane!(4, of_plane(1), rate, slope);
                    add_plane!(5, of_plane(2), rate, slope);
                    add_plane!(6, of_plane(3), rate, slope);
                };
            }
            let planes = _mm512_and_si512(words, _mm512_set1_epi32(3 << PLANE_SHIFT));
            add_planes!(16, planes);
            add_planes!(20, planes);
        } else {
            add!(3, 16);
            add!(4, 20);
        }
    }
}

/// Packs slopes and elastic rates, the upper sixteen bits of each. They determine how far prices
/// step and not where they come to rest, so two digits suffice and half the bytes move.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn slopes_of(neg_slopes: __m512, elastics: __m512) -> __m512i {
    let lower = _mm512_srli_epi32::<16>(_mm512_castps_si512(elastics));
    let upper = _mm512_castps_si512(neg_slopes);
    _mm512_ternarylogic_epi32::<SELECT>(upper, lower, _mm512_set1_epi32(UPPER_HALF))
}

/// Slopes of packed words. The lower half stays: it adds less than a hundredth.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn neg_slope_of(slopes: __m512i) -> __m512 {
    _mm512_castsi512_ps(slopes)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn elastic_of(slopes: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(slopes))
}

/// True if the processor adds up products of bfloat16 pairs. That extracts the lower halves of
/// packed words and adds them at once, without a shift: a pass is bound by permutations and shifts.
pub(super) fn has_dot() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Adds the elastic rates of packed words to a sum; `DOT` only on a processor that [`has_dot`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn add_elastic<const DOT: bool>(sum: __m512, slopes: __m512i) -> __m512 {
    if !DOT {
        return _mm512_add_ps(sum, elastic_of(slopes));
    }
    let mut sum = sum;
    // SAFETY: arithmetic on registers, which the processor knows: `has_dot` chose this. Written as
    // assembly, since a function with this feature is not inlined into those without.
    unsafe {
        std::arch::asm!(
            "vdpbf16ps {sum}, {slopes}, {lower}",
            sum = inout(zmm_reg) sum,
            slopes = in(zmm_reg) slopes,
            lower = in(zmm_reg) _mm512_set1_epi32(LOWER_HALF),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds totals to four registers of a LinkBlock copy. A macro, written out, since otherwise all
/// totals would go through memory.
macro_rules! leave_four {
    ($table:expr, $keep:expr, $first:expr, $second:expr, $third:expr, $fourth:expr) => {
        let table: &mut LinkTable = $table;
        increase(&mut table[0], $keep, $first);
        increase(&mut table[1], $keep, $second);
        increase(&mut table[2], $keep, $third);
        increase(&mut table[3], $keep, $fourth);
    };
}

/// Adds totals to a worker's LinkBlock copy.
macro_rules! leave {
    ($core:ident, $plain:ident, $totals:expr, $side:expr, $keep:expr, $table:expr) => {
        leave!(of $core, $totals.load, load, $side, $keep, $table);
        leave!(of $core, $totals.neg_slope, neg_slope, $side, $keep, $table);
        if !$plain {
            leave!(of $core, $totals.elastic, elastic, $side, $keep, $table);
        }
    };
    (of $core:ident, $sums:expr, $list:ident, $side:expr, $keep:expr, $table:expr) => {
        let mut fabric = _mm512_add_ps($sums[3], $sums[4]);
        if $core {
            // Every plane of a fabric slot is load on the fabric link too.
            fabric = _mm512_add_ps(fabric, _mm512_add_ps($sums[5], $sums[6]));
        }
        let table = &mut $side.copy.$list[$table];
        leave_four!(table, $keep, $sums[0], $sums[1], $sums[2], fabric);
        if $core && let Some(core) = &mut $side.core {
            let pod = &mut core.copy.$list[core.tables[$table] as usize];
            leave_four!(pod, ALL_LANES, $sums[3], $sums[4], $sums[5], $sums[6]);
        }
    };
}

pub(super) use {leave, leave_four};

/// Zeroes the sums of a table without flows, if they are the last iteration's.
pub(super) fn leave_nothing(side: &mut Side<'_>, keep: __mmask16, table: usize) {
    if keep == 0 {
        side.copy.load[table] = LinkTable::default();
        side.copy.neg_slope[table] = LinkTable::default();
        if side.copy.has_elastic {
            side.copy.elastic[table] = LinkTable::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::detected;
    use super::super::registers::{load, load_words, store};
    use super::*;
    use crate::engine::parallel::lanes::{LANES, Lanes, Words};

    #[test]
    fn elastic_rates_add_up_to_the_same_with_and_without_the_dot_product() {
        if !(detected() && has_dot()) {
            assert!(
                std::env::var_os("CI").is_none(),
                "this runner has no bfloat16 dot product, so nothing is shown of it; take one that has"
            );
            eprintln!("NOT SHOWN: this machine has no bfloat16 dot product");
            return;
        }
        // SAFETY: both features were found.
        unsafe { compare() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn compare() {
        let mut sums = [Lanes::default(), Lanes::default()];
        let mut seed = 1u32;
        for row in 0..1000 {
            let mut slopes = Words([0; LANES]);
            for word in &mut slopes.0 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // A rate of any size beside a reaction of any size; some flows have neither.
                let rate = (f64::from(seed >> 16) / 65_536.0 * 60.0 - 40.0).exp2() as f32;
                let neg_slope = (f64::from(seed & 0xffff) / 65_536.0 * 120.0 - 60.0).exp2() as f32;
                if row % 7 != seed % 7 {
                    *word = neg_slope.to_bits() & 0xffff_0000 | rate.to_bits() >> 16;
                }
            }
            let slopes = load_words(&slopes);
            let plain = add_elastic::<false>(load(&sums[0]), slopes);
            let dot = add_elastic::<true>(load(&sums[1]), slopes);
            store(&mut sums[0], plain);
            store(&mut sums[1], dot);
            assert_eq!(sums[0].0.map(f32::to_bits), sums[1].0.map(f32::to_bits));
        }
        assert!(sums[0].0.iter().all(|sum| sum.is_finite() && *sum > 0.0));
    }
}
