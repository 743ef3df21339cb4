//! A socket option that an application sets; no crate at hand wraps it.
#![allow(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// `SO_MAX_PACING_RATE`.
pub fn set_max_pacing_rate(stream: &TcpStream, bytes_per_s: u32) {
    // SAFETY: the kernel reads four bytes from `bytes_per_s`.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_s).cast(),
            4,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
