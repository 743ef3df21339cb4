//! An application's own limit of its sending rate.

#![allow(unsafe_code)] // a socket option that neither std nor socket2 has

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Sets SO_MAX_PACING_RATE to `limit_bps` bit/s, or takes the limit away.
///
/// # Errors
/// When the kernel refuses.
pub fn set(stream: &TcpStream, limit_bps: Option<u64>) -> io::Result<()> {
    // All ones is the kernel's value for no maximum.
    let bytes_per_s: u64 = limit_bps.map_or(u64::MAX, |bps| bps / 8);
    // SAFETY: the descriptor is open for the call's duration; the value is a u64 of the length
    // given.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_s).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
