//! Cores: the calling thread's, the machine's, and pinning.
#![allow(unsafe_code)]

use std::io;
use std::mem;

use nix::unistd::{SysconfVar, sysconf};

/// Pins the calling thread to one core.
///
/// # Errors
/// The kernel refuses: the core does not exist, or this process may not use it.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    // `CPU_SET` writes out of bounds from here on.
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `cpu_set_t` is a plain array of integers, for which all-zero is a valid (empty) set;
    // `CPU_SET` writes inside it because `core` is below CPU_SETSIZE; the kernel reads
    // `size_of_val(&set)` bytes from a pointer that outlives the call; pid 0 is the calling thread.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Core that the calling thread runs on at the moment, if the kernel names it.
pub(super) fn current_core() -> Option<usize> {
    // SAFETY: takes nothing and returns a number, or -1.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Number of this machine's cores, whether or not this process may use them, if the kernel names
/// it.
pub(super) fn installed_cores() -> Option<usize> {
    let cores = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten()?;
    usize::try_from(cores).ok()
}
