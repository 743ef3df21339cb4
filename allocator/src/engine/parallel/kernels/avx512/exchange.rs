//! Exchange of values between the upward and the downward order, flow by flow.

use std::arch::x86_64::*;

use crate::engine::parallel::lanes::{CellIndex, Cells, LANES, Lanes, Pairs};
use crate::engine::parallel::rows::ROW_FLOWS;

const LOW_CELL: u64 = CellIndex::MAX as u64;

/// Fetches the pairs at sixteen cells, as two registers of eight.
///
/// # Safety
/// Every cell must be one of `pairs`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fetch(cells: &Cells, pairs: *const f64) -> (__m512, __m512) {
    macro_rules! four {
        ($four:expr) => {{
            let [first, second] = [two_cells(cells, 2 * $four), two_cells(cells, 2 * $four + 1)];
            let at = |cell: u64| pairs.wrapping_add(cell as usize);
            // SAFETY: the caller's promise; a pair is eight bytes.
            let (low, high) = unsafe {
                let low = _mm_load_sd(at(first & LOW_CELL));
                let high = _mm_load_sd(at(second & LOW_CELL));
                (
                    _mm_loadh_pd(low, at(first >> CellIndex::BITS)),
                    _mm_loadh_pd(high, at(second >> CellIndex::BITS)),
                )
            };
            _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high)
        }};
    }
    macro_rules! eight {
        ($i:expr) => {{
            let low = _mm512_castpd256_pd512(four!($i / 4));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, four!($i / 4 + 1)))
        }};
    }
    (eight!(0), eight!(8))
}

/// Delivers the rates of a row to their upward cells. As integers: the processor stores two of
/// those in a cycle, but one floating-point number.
///
/// With `EXCEEDS_CACHE` a rate takes the place of the price that was fetched from its cell. A
/// worker beyond that bound has FlowBlocks with enough sources to fill the first-level cache with
/// one line each. Lines for rates alone would evict those with prices. `up_rates` then needs a
/// permutation more per row, which would cost 1 % where both fit.
///
/// # Safety
/// `cells` begins a list of the rates of `rows` rows, or with `EXCEEDS_CACHE` of their pairs, that
/// nothing else refers to; every cell of `up_cells` is one of those rows'. Row 0 exists always
/// (`FlowRows::new`), and empty cells point into it.
#[inline(always)]
pub(super) unsafe fn deliver<const EXCEEDS_CACHE: bool>(
    rates: &Lanes,
    up_cells: &Cells,
    cells: *mut u32,
    rows: usize,
) {
    let rates = rates.0.as_ptr().cast::<u32>();
    for two in 0..LANES / 2 {
        let mut cells_of = two_cells(up_cells, two);
        for lane in 2 * two..(2 * two + 2).min(ROW_FLOWS as usize) {
            let cell = (cells_of & LOW_CELL) as usize;
            cells_of >>= CellIndex::BITS;
            debug_assert!(cell / LANES < rows);
            // SAFETY: the caller's promise. A row of rates has more lanes than a row has flows.
            unsafe {
                let place = if EXCEEDS_CACHE {
                    cells.cast::<[u32; 2]>().add(cell).cast::<u32>()
                } else {
                    cells.add(cell)
                };
                *place = *rates.add(lane);
            }
        }
    }
}

/// Stores rates and slopes flow by flow. Of each four lanes, the first two pairs are in the first
/// register, the others in the second.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_pairs(pairs: &mut Pairs, rates: __m512, slopes: __m512i) {
    let slopes = _mm512_castsi512_ps(slopes);
    let out = pairs.0.as_flattened_mut().as_mut_ptr();
    // SAFETY: `Pairs` is 128 writable bytes, aligned to 64.
    unsafe {
        _mm512_store_ps(out, _mm512_unpacklo_ps(rates, slopes));
        _mm512_store_ps(out.add(LANES), _mm512_unpackhi_ps(rates, slopes));
    }
}

/// Slopes among pairs of `store_pairs`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn slopes_in(pairs: &Pairs) -> __m512i {
    let from = pairs.0.as_flattened().as_ptr();
    // SAFETY: `Pairs` is 128 readable bytes, aligned to 64.
    let (first, second) = unsafe { (_mm512_load_ps(from), _mm512_load_ps(from.add(LANES))) };
    _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(first, second))
}

/// Delivers pairs as [`deliver`] does rates, in the places of the pairs that were fetched.
///
/// # Safety
/// Every cell of `up_cells` is one of `pairs`.
#[inline(always)]
pub(super) unsafe fn deliver_pairs(from: &Pairs, up_cells: &Cells, pairs: &mut [Pairs]) {
    let from = from.0.as_ptr().cast::<u64>();
    let rows = pairs.len();
    let to = pairs.as_mut_ptr().cast::<u64>();
    for two in 0..LANES / 2 {
        let mut cells_of = two_cells(up_cells, two);
        for lane in 2 * two..(2 * two + 2).min(ROW_FLOWS as usize) {
            let cell = (cells_of & LOW_CELL) as usize;
            cells_of >>= CellIndex::BITS;
            debug_assert!(cell / LANES < rows);
            // SAFETY: the caller's promise. A pair is eight bytes, aligned to eight, and there are
            // sixteen.
            unsafe { *to.add(cell) = *from.add(lane / 4 * 2 + lane % 2 + lane % 4 / 2 * 8) };
        }
    }
}

/// Two cells in one register: fewer loads, of which a row has many others. A volatile read, since
/// the compiler makes two loads of any other.
#[inline(always)]
pub(super) fn two_cells(cells: &Cells, two: usize) -> u64 {
    debug_assert!(two < LANES / 2);
    let first = cells.0.as_ptr().cast::<u64>();
    // SAFETY: `Cells` is 64 readable bytes, aligned to 64, thus eight times these eight.
    unsafe { first.add(two).read_volatile() }
}
