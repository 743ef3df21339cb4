//! Asks a host's kernel how its TCP sockets are paced (what `ss -ti` prints), through sock_diag.

#![allow(unsafe_code)] // netlink structures of libc

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::FromRawFd;

use anyhow::{Context, Result};

use crate::net::ns::Netns;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const TCP_ESTABLISHED: u32 = 1 << 1;
const NLMSG_HEADER: usize = 16;
/// `struct inet_diag_msg` without attributes.
const DIAG_MESSAGE: usize = 72;
/// Offset of `tcpi_pacing_rate` in `struct tcp_info`.
const PACING_AT: usize = 104;
/// Offset of `tcpi_data_segs_out` in it.
const SENT_AT: usize = 156;
/// Offset of the destination port in `struct inet_diag_msg` (`id.idiag_dport`).
const DPORT_AT: usize = 6;

/// One connection as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paced {
    /// What the kernel would pace by: a rate that was handed out, or one that follows the window.
    pub rate_bps: f64,
    /// Data segments sent so far.
    pub segments_sent: u32,
}

/// A sock_diag socket inside a host.
#[derive(Debug)]
pub struct SockDiag {
    socket: File,
}

impl SockDiag {
    /// Opens it.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the kernel refuses.
    pub fn open(host: &Netns) -> Result<SockDiag> {
        let socket = host.within(|| {
            // SAFETY: plain system call; a non-negative result is a descriptor that nobody else owns.
            unsafe {
                let fd = libc::socket(
                    libc::AF_NETLINK,
                    libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                    libc::NETLINK_SOCK_DIAG,
                );
                if fd < 0 {
                    Err(io::Error::last_os_error())
                } else {
                    Ok(File::from_raw_fd(fd))
                }
            }
        })?;
        Ok(SockDiag {
            socket: socket.context("opening a sock_diag socket")?,
        })
    }

    /// The established connections towards one of `ports`.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn connections(&mut self, ports: std::ops::RangeInclusive<u16>) -> Result<Vec<Paced>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.socket
                .write_all(&request(family as u8))
                .context("asking sock_diag")?;
            let mut buffer = vec![0u8; 64 * 1024];
            'answer: loop {
                let length = self
                    .socket
                    .read(&mut buffer)
                    .context("reading from sock_diag")?;
                let mut at = 0;
                while at + NLMSG_HEADER <= length {
                    let message = &buffer[at..length];
                    let size = word(message, 0) as usize;
                    let kind = i32::from(u16::from_ne_bytes([message[4], message[5]]));
                    if kind == libc::NLMSG_DONE
                        || kind == libc::NLMSG_ERROR
                        || size < NLMSG_HEADER
                        || size > message.len()
                    {
                        break 'answer;
                    }
                    found.extend(paced_in(&message[NLMSG_HEADER..size], &ports));
                    at += size.next_multiple_of(4);
                }
            }
        }
        Ok(found)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A dump request: header, then `struct inet_diag_req_v2`.
fn request(family: u8) -> Vec<u8> {
    const REQUEST: usize = 56;
    let mut out = Vec::with_capacity(NLMSG_HEADER + REQUEST);
    out.extend_from_slice(&((NLMSG_HEADER + REQUEST) as u32).to_ne_bytes());
    out.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[
        family,
        libc::IPPROTO_TCP as u8,
        1 << (INET_DIAG_INFO - 1),
        0,
    ]);
    out.extend_from_slice(&TCP_ESTABLISHED.to_ne_bytes());
    out.resize(NLMSG_HEADER + REQUEST, 0);
    out
}

/// The connection in one `inet_diag_msg`, if its destination port is in range.
fn paced_in(message: &[u8], ports: &std::ops::RangeInclusive<u16>) -> Option<Paced> {
    let port = u16::from_be_bytes([*message.get(DPORT_AT)?, *message.get(DPORT_AT + 1)?]);
    if !ports.contains(&port) {
        return None;
    }
    let mut at = DIAG_MESSAGE;
    while at + 4 <= message.len() {
        let size = usize::from(u16::from_ne_bytes([message[at], message[at + 1]]));
        let kind = u16::from_ne_bytes([message[at + 2], message[at + 3]]);
        if kind == INET_DIAG_INFO {
            let info = &message[at + 4..];
            let rate = info.get(PACING_AT..PACING_AT + 8)?;
            let sent = info.get(SENT_AT..SENT_AT + 4)?;
            return Some(Paced {
                rate_bps: u64::from_ne_bytes(rate.try_into().ok()?) as f64 * 8.0,
                segments_sent: u32::from_ne_bytes(sent.try_into().ok()?),
            });
        }
        at += size.max(4).next_multiple_of(4);
    }
    None
}
