//! Asks for memory before it is needed. It has no effect but on speed.
#![allow(
    unsafe_code,
    reason = "the prefetch instruction takes a pointer, which it does not dereference"
)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Fetches the first `LINES` cache lines of a value into the cache. A value that does not begin
/// with a line may end in one more than it has room for: that one is fetched too, if all of it is
/// asked for.
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

/// Fetches the cache line at an address, which need not be anybody's.
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
