//! Switches segmentation offload of an interface off: the kernel then splits what TCP builds just
//! before it leaves, as a NIC does, and packets reach the next switch one by one.

#![allow(unsafe_code)] // SIOCETHTOOL

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};

use super::ns::Netns;

/// `SIOCETHTOOL` and `ETHTOOL_STSO` (linux/sockios.h, linux/ethtool.h).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_STSO: u32 = 0x1f;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Has the interface `device` of a host split large segments of TCP.
///
/// # Errors
/// When there is no such interface, or the kernel refuses.
pub fn split_at(host: &Netns, device: &str) -> Result<()> {
    host.within(|| tso_off(device))?
        .with_context(|| format!("switching segmentation offload of {device} off"))
}

fn tso_off(device: &str) -> io::Result<()> {
    // Any socket of the namespace will do; nothing is sent.
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    let mut value = EthtoolValue {
        command: ETHTOOL_STSO,
        data: 0,
    };
    // SAFETY: an ifreq of zeroes is valid: a name without characters and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero, which ends the name.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the descriptor is open; the request and the value that it points to live for the
    // call's duration, and the value is what the command says.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
