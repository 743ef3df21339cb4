//! Asks a host's kernel how its TCP sockets are paced (what `ss -ti` prints), through sock_diag.

#![allow(unsafe_code)] // netlink structures of libc

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::FromRawFd;

use anyhow::{Context, Result};

use crate::net::ns::Netns;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
/// States in which data may be in flight: established, and those of a sender that has closed.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;
const NLMSG_HEADER: usize = 16;
/// `struct inet_diag_msg` without attributes.
const DIAG_MESSAGE: usize = 72;
/// Offsets in `struct inet_diag_msg`: `idiag_family`, `idiag_state`, `id.idiag_sport`,
/// `id.idiag_dport`.
const FAMILY_AT: usize = 0;
const STATE_AT: usize = 1;
const ESTABLISHED: u8 = 1;
const SPORT_AT: usize = 4;
const DPORT_AT: usize = 6;

/// Offsets in `struct tcp_info`, whose beginning is the same in all kernels.
mod info {
    pub(super) const PROBES: usize = 3;
    pub(super) const BACKOFF: usize = 4;
    pub(super) const UNACKED: usize = 24;
    pub(super) const TOTAL_RETRANS: usize = 100;
    pub(super) const MAX_PACING_RATE: usize = 112;
    pub(super) const SEGS_OUT: usize = 136;
    pub(super) const NOTSENT_BYTES: usize = 144;
    pub(super) const DATA_SEGS_OUT: usize = 156;
    pub(super) const BYTES_RETRANS: usize = 208;
    /// The last of them and its size.
    pub(super) const END: usize = BYTES_RETRANS + 8;
}

/// One connection as the kernel sees it (`struct tcp_info`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SocketState {
    /// Address family and local port, which identify the connection within the host.
    pub id: (u8, u16),
    /// True if established; if not, the application has closed its side.
    pub established: bool,
    /// Maximum pacing rate in bytes per second, if the socket has one: one that was handed out, or
    /// its application's own.
    pub maximum_bytes_per_s: Option<u64>,
    /// Data segments sent so far, retransmissions included.
    pub data_segments_sent: u32,
    /// Segments sent so far, those without data included.
    pub segments_sent: u32,
    /// Segments retransmitted so far.
    pub segments_retransmitted: u32,
    /// Bytes retransmitted so far.
    pub bytes_retransmitted: u64,
    /// Bytes that were not sent yet.
    pub unsent_bytes: u32,
    /// Segments that wait for an acknowledgement.
    pub unacked: u32,
    /// Number of times that the retransmission timer was doubled.
    pub backoff: u8,
    /// Window probes that were not answered.
    pub probes: u8,
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
            // SAFETY: plain system call; a non-negative result is a descriptor without an owner.
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

    /// The connections towards one of `ports`.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn connections(
        &mut self,
        ports: std::ops::RangeInclusive<u16>,
    ) -> Result<Vec<SocketState>> {
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
                    // A size that does not fit would make the loop stand still or read beyond the
                    // message.
                    if kind == libc::NLMSG_DONE
                        || kind == libc::NLMSG_ERROR
                        || size < NLMSG_HEADER
                        || size > message.len()
                    {
                        break 'answer;
                    }
                    found.extend(connection_in(&message[NLMSG_HEADER..size], &ports));
                    // Netlink aligns messages to four bytes (NLMSG_ALIGN).
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
        // The extensions that are asked for, a bit for each attribute counted from 1.
        1 << (INET_DIAG_INFO - 1),
        0,
    ]);
    out.extend_from_slice(&STATES.to_ne_bytes());
    out.resize(NLMSG_HEADER + REQUEST, 0);
    out
}

/// The connection in one `inet_diag_msg`, if its destination port is in range.
fn connection_in(message: &[u8], ports: &std::ops::RangeInclusive<u16>) -> Option<SocketState> {
    let port = |at: usize| {
        Some(u16::from_be_bytes([
            *message.get(at)?,
            *message.get(at + 1)?,
        ]))
    };
    if !ports.contains(&port(DPORT_AT)?) {
        return None;
    }
    let id = (*message.get(FAMILY_AT)?, port(SPORT_AT)?);
    let mut at = DIAG_MESSAGE;
    while at + 4 <= message.len() {
        let size = usize::from(u16::from_ne_bytes([message[at], message[at + 1]]));
        let kind = u16::from_ne_bytes([message[at + 2], message[at + 3]]);
        if kind == INET_DIAG_INFO {
            let established = *message.get(STATE_AT)? == ESTABLISHED;
            return connection(id, established, message.get(at + 4..)?);
        }
        // Attributes are aligned likewise; `max` keeps a broken length of 0 from looping for ever.
        at += size.max(4).next_multiple_of(4);
    }
    None
}

fn connection(id: (u8, u16), established: bool, tcp_info: &[u8]) -> Option<SocketState> {
    let tcp_info = tcp_info.get(..info::END)?;
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&tcp_info[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Some(SocketState {
        id,
        established,
        // All ones is the kernel's value for no maximum.
        maximum_bytes_per_s: Some(long(info::MAX_PACING_RATE)).filter(|rate| *rate != u64::MAX),
        data_segments_sent: word(tcp_info, info::DATA_SEGS_OUT),
        segments_sent: word(tcp_info, info::SEGS_OUT),
        segments_retransmitted: word(tcp_info, info::TOTAL_RETRANS),
        bytes_retransmitted: long(info::BYTES_RETRANS),
        unsent_bytes: word(tcp_info, info::NOTSENT_BYTES),
        unacked: word(tcp_info, info::UNACKED),
        backoff: tcp_info[info::BACKOFF],
        probes: tcp_info[info::PROBES],
    })
}
