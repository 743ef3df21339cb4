//! Prefetch instructions. They have no effect but on speed.
#![allow(
    unsafe_code,
    reason = "the prefetch instruction takes a pointer, which it does not dereference"
)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the first `LINES` cache lines of a value. A value that is not aligned to a line may
/// end in one line more than its size fills; where all of it is wanted, that one is prefetched too.
#[inline(always)]
pub(crate) fn prefetch<T, const LINES: usize>(value: &T) {
    let first = std::ptr::from_ref(value).cast::<i8>();
    let all = size_of::<T>().div_ceil(LINE);
    for line in 0..LINES.min(all) {
        line_at(first.wrapping_add(line * LINE));
    }
    if LINES >= all && align_of::<T>() < LINE {
        line_at(first.wrapping_add(size_of::<T>().saturating_sub(1)));
    }
}

/// Prefetches the cache line at an address, which may be unmapped.
#[inline(always)]
pub(crate) fn prefetch_at<T>(at: *const T) {
    line_at(at.cast());
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn line_at(at: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of x86-64; the instruction is a hint that reads nothing the program sees,
    // and faults for no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line_at(_at: *const i8) {}
