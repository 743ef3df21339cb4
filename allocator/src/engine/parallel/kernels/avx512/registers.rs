//! Rows and link tables in registers: loads, stores and look-ups.

use std::arch::x86_64::*;

use super::{SELECT, Side};
use crate::engine::parallel::lanes::{Lanes, LinkTable, Words};

/// Bit of a host slot that selects the table's third register.
const THIRD_REGISTER: i32 = 32;
/// Bit of a slot in a pod's table that selects the upper two registers.
const HIGH_PLANES: i32 = 32;

/// Entry of a list by row, without a bounds check.
#[inline(always)]
pub(super) fn of<T>(list: &[T], row: usize) -> &T {
    debug_assert!(row < list.len());
    // SAFETY: rows are those of a FlowBlock's `FlowRows`, which numbers them below its length.
    // Before each pass `FlowBlock::check_lists` has found every list by row at least as long, and
    // the scratch was fitted to it.
    unsafe { list.get_unchecked(row) }
}

#[inline(always)]
pub(super) fn of_mut<T>(list: &mut [T], row: usize) -> &mut T {
    debug_assert!(row < list.len());
    // SAFETY: as in `of`.
    unsafe { list.get_unchecked_mut(row) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(lanes: &Lanes) -> __m512 {
    // SAFETY: `Lanes` is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_ps(lanes.0.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(lanes: &mut Lanes, value: __m512) {
    // SAFETY: `Lanes` is 64 writable bytes, aligned to 64.
    unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_words(words: &Words) -> __m512i {
    // SAFETY: `Words` is 64 readable bytes, aligned to 64.
    unsafe { _mm512_load_si512(words.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_words(words: &mut Words, value: __m512i) {
    // SAFETY: `Words` is 64 writable bytes, aligned to 64.
    unsafe { _mm512_store_si512(words.0.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn increase(lanes: &mut Lanes, keep: __mmask16, by: __m512) {
    // SAFETY: `Lanes` is 64 readable bytes, aligned to 64.
    let before = unsafe { _mm512_maskz_load_ps(keep, lanes.0.as_ptr()) };
    store(lanes, _mm512_add_ps(before, by));
}

/// A link table in registers.
#[derive(Clone, Copy)]
pub(super) struct Registers([__m512; 4]);

impl Registers {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(table: &LinkTable) -> Self {
        Self([
            load(&table[0]),
            load(&table[1]),
            load(&table[2]),
            load(&table[3]),
        ])
    }

    /// Values at the host slots `hosts`, and at the fabric slots in the low bits of `words`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn look_up(
        &self,
        hosts: __m512i,
        words: __m512i,
        third: __mmask16,
    ) -> (__m512, __m512) {
        // A permutation of two registers reads five bits of each index; `third` replaces the lanes
        // whose sixth bit is set.
        let host = _mm512_permutex2var_ps(self.0[0], hosts, self.0[1]);
        (
            _mm512_mask_permutexvar_ps(host, third, hosts, self.0[2]),
            _mm512_permutexvar_ps(words, self.0[3]),
        )
    }
}

impl Registers {
    /// Values at slots of a pod's table.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn look_up_core(&self, slots: &RowSlots) -> __m512 {
        // Two registers at once: the low and the high planes, of which each lane keeps one.
        let low = _mm512_permutex2var_ps(self.0[0], slots.cores, self.0[1]);
        let high = _mm512_permutex2var_ps(self.0[2], slots.cores, self.0[3]);
        _mm512_mask_mov_ps(low, slots.high_planes, high)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn host_slots(words: __m512i) -> (__m512i, __mmask16) {
    let hosts = _mm512_srli_epi32::<26>(words);
    (
        hosts,
        _mm512_test_epi32_mask(hosts, _mm512_set1_epi32(THIRD_REGISTER)),
    )
}

/// Prices or F-NORM scales of a table's flows: the rack's table and, with `CORE`, the pod's.
#[derive(Clone, Copy)]
pub(super) struct LookUp<const CORE: bool> {
    pub(super) rack: Registers,
    pub(super) pod: Registers,
}

impl<const CORE: bool> LookUp<CORE> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(rack: &LinkTable, pod: &LinkTable) -> Self {
        Self {
            rack: Registers::load(rack),
            pod: Registers::load(pod),
        }
    }
}

/// Prices and scales of the pod of a table; without `CORE` any tables, which are not read.
#[inline(always)]
pub(super) fn pod_tables<'a, const CORE: bool>(
    side: &'a Side<'_>,
    table: usize,
) -> [&'a LinkTable; 2] {
    match &side.core {
        Some(core) if CORE => {
            let pod = core.tables[table] as usize;
            [&core.links.prices[pod], &core.links.norm_scales[pod]]
        }
        _ => [&side.links.prices[table], &side.links.norm_scales[table]],
    }
}

/// Slots of a row's flows, as look-ups need them.
pub(super) struct RowSlots {
    pub(super) words: __m512i,
    pub(super) hosts: __m512i,
    pub(super) third: __mmask16,
    /// Slot in the pod's table, in the low six bits.
    pub(super) cores: __m512i,
    pub(super) high_planes: __mmask16,
}

impl RowSlots {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn of(words: __m512i) -> Self {
        let (hosts, third) = host_slots(words);
        // Fabric slot in bits 0 to 3, plane in bits 4 and 5.
        let cores = _mm512_ternarylogic_epi32::<SELECT>(
            words,
            _mm512_srli_epi32::<20>(words),
            _mm512_set1_epi32(0xf),
        );
        Self {
            words,
            hosts,
            third,
            cores,
            high_planes: _mm512_test_epi32_mask(cores, _mm512_set1_epi32(HIGH_PLANES)),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn price<const CORE: bool>(&self, prices: &LookUp<CORE>) -> __m512 {
        let (host, fabric) = prices.rack.look_up(self.hosts, self.words, self.third);
        let price = _mm512_add_ps(host, fabric);
        if CORE {
            _mm512_add_ps(price, prices.pod.look_up_core(self))
        } else {
            price
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn norm_scale<const CORE: bool>(&self, norm_scales: &LookUp<CORE>) -> __m512 {
        let (host, fabric) = norm_scales.rack.look_up(self.hosts, self.words, self.third);
        let norm_scale = _mm512_min_ps(host, fabric);
        if CORE {
            _mm512_min_ps(norm_scale, norm_scales.pod.look_up_core(self))
        } else {
            norm_scale
        }
    }
}
