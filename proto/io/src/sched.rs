//! Scheduler settings of a thread.
#![allow(
    unsafe_code,
    reason = "glibc has no function for it, and nix does not cover it"
)]

use std::io;

/// Time slice of threads on which a datagram waits for nothing but the processor.
pub const HOT_SLICE_NS: u64 = 100_000;

/// Shortest sleep on such a thread: the kernel lets timers of ordinary threads be 50 µs late.
pub const LEAST_SLEEP_NS: u64 = 100_000;

/// Requests time slices of `slice_ns` for the calling thread, instead of the default few
/// milliseconds. Its share does not grow. A thread that wakes up with a shorter slice than the
/// running one preempts it (Linux 6.12 and later; no effect before).
///
/// # Errors
/// The kernel's error, for example of a sandbox that forbids the call. The thread runs on as
/// before.
pub fn ask_for_slices(slice_ns: u64) -> io::Result<()> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: thread 0 is the calling one; the kernel writes at most `size` bytes to a structure of
    // that size that lives through the call.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        // A thread with a real-time policy keeps it.
        return Ok(());
    }
    attributes.size = size;
    // For SCHED_OTHER, the runtime is the requested slice (Linux 6.12).
    attributes.sched_runtime = slice_ns;
    // SAFETY: as above; the kernel only reads.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_ask_for_short_slices_and_stays_what_it_is() {
        // SAFETY: takes a thread and returns a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        ask_for_slices(HOT_SLICE_NS).expect("no privilege is needed");
        assert_eq!(policy(), before);
    }
}
