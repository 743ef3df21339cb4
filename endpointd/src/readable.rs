//! Waiting until a descriptor is readable.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a duplicate of `fd` with the runtime: its owner cannot close it under the runtime.
pub(crate) fn watch(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: the descriptor is owned by the `AsyncFd` from here on, so that it stays open, and the
    // same, for as long as it is registered.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}
