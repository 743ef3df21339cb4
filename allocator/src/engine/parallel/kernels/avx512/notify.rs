//! Notification without a branch per flow: which flows are notified is unpredictable, and a
//! misprediction costs as much as a whole row.

use std::arch::x86_64::*;

use super::super::notify::{Notification, Rows};
use super::registers::{load, of};
use crate::engine::parallel::lanes::LANES;

/// See [`crate::engine::parallel::kernels::Kernels::collect`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(in crate::engine::parallel::kernels) fn collect(rows: Rows<'_>, out: &mut Vec<Notification>) {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for rows in rows.busy() {
        let lanes = rows.notify.iter().zip(rows.used);
        let count: u32 = lanes
            .map(|(notify, used)| (notify & used).count_ones())
            .sum();
        // Every row writes sixteen entries, of which only those of notified flows count.
        out.reserve(count as usize + LANES);
        let mut len = out.len();
        for row in 0..rows.used.len() {
            let lanes = of(rows.notify, row) & of(rows.used, row);
            // SAFETY: sixteen `u32` are 64 readable bytes.
            let flows = unsafe { _mm512_loadu_si512(of(rows.flow, row).as_ptr().cast()) };
            let flows = _mm512_maskz_compress_epi32(lanes, flows);
            let rates = _mm512_castps_si512(load(of(rows.notified, row)));
            let rates = _mm512_maskz_compress_epi32(lanes, rates);
            let first = _mm512_permutex2var_epi32(flows, low, rates);
            let second = _mm512_permutex2var_epi32(flows, high, rates);
            // SAFETY: `len` is at most `count` more than the list had, so that there is room for
            // sixteen more, which are 128 bytes; a `Notification` is eight of them, the flow's
            // number first.
            unsafe {
                let end = out.as_mut_ptr().add(len).cast::<__m512i>();
                _mm512_storeu_si512(end, first);
                _mm512_storeu_si512(end.add(1), second);
            }
            len += lanes.count_ones() as usize;
        }
        // SAFETY: the first `len` entries were reserved, and written.
        unsafe { out.set_len(len) };
    }
}
