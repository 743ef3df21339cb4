//! System calls of the back ends that have no safe wrapper: mapping a BPF array, running a
//! pinned iterator program, and reading the network namespace's cookie.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use libbpf_rs::libbpf_sys;

/// Offset of a 64-bit member in a value. A member has one size, so that no word is ever accessed
/// with two: the types keep them apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word64(pub(super) usize);

/// Offset of a 32-bit member in a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word32(pub(super) usize);

/// BPF array (`BPF_F_MMAPABLE`) mapped into this process: programs see a store without a system
/// call.
#[derive(Debug)]
pub(super) struct MappedArray {
    start: NonNull<u8>,
    bytes: usize,
}

impl MappedArray {
    /// Maps `entries` values of `value_bytes` (a multiple of 8) of the array `map`.
    pub(super) fn new(map: BorrowedFd<'_>, value_bytes: usize, entries: usize) -> io::Result<Self> {
        assert!(
            value_bytes.is_multiple_of(8),
            "array values are padded to 8 bytes in the mapping"
        );
        let bytes = value_bytes * entries;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes })
    }

    /// Returns a member of the value at byte `base`.
    pub(super) fn u64_at(&self, base: usize, Word64(member): Word64) -> &AtomicU64 {
        let offset = base + member;
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.bytes,
            "inside the array"
        );
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned (both asserted);
        // the memory is shared with the kernel, so it is only ever accessed atomically.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Returns a member of the value at byte `base`.
    pub(super) fn u32_at(&self, base: usize, Word32(member): Word32) -> &AtomicU32 {
        let offset = base + member;
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.bytes,
            "inside the array"
        );
        // SAFETY: as in `u64_at`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this start and length, and no reference into
        // it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Attaches an iterator program, and returns its link.
pub(super) fn attach_iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open; without options nothing is read through the pointer.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            std::ptr::null(),
        )
    };
    owned(link)
}

/// Begins a pass of an attached iterator, which reading carries out.
pub(super) fn begin_iteration(link: BorrowedFd<'_>) -> io::Result<File> {
    // SAFETY: the descriptor is open.
    let pass = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    owned(pass).map(File::from)
}

/// Takes a new descriptor, or the error that libbpf left.
fn owned(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call that returned it has just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Reads the cookie of the network namespace that `socket` is in.
pub(super) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).expect("8 fits");
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}
