//! TCP sockets of this network namespace, read from the kernel through sock_diag.
//!
//! A dump goes on from read to read, so that one step of it costs a bounded time however many
//! sockets the host has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{MsgFlags, SockProtocol, send};
use ratewright_proto::telemetry::SendFacts;

use crate::netlink::{
    self, NLMSG_HEADER, find_attribute, get_u32, get_u64, message_error, put_u16, put_u32,
};

/// Message type of a request by address family (`linux/sock_diag.h`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Attribute with `struct tcp_info`.
const INET_DIAG_INFO: u16 = 2;
/// States in which data may arrive or wait for an acknowledgement (`TCP_ESTABLISHED`, the two
/// `FIN_WAIT`, `CLOSE_WAIT`, `LAST_ACK`, `CLOSING`).
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// Bytes of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Bytes of `struct inet_diag_msg`, which the attributes follow.
const DIAG_MESSAGE: usize = 72;
/// Bytes of one read; the kernel fills at most 32 KiB of it.
const READ_BYTES: usize = 65_536;

/// Facts about one TCP socket, from `struct tcp_info` (`linux/tcp.h`). Counters run from the
/// connection's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketFacts {
    /// Names the socket as long as the kernel runs.
    pub cookie: u64,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Payload received in order.
    pub received_bytes: u64,
    /// Payload that the peer acknowledged.
    pub acked_bytes: u64,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub rtt_us: u32,
    /// Packets that reached the peer.
    pub delivered: u32,
    /// Those of them that the peer reported with a congestion mark (ECN).
    pub delivered_ce: u32,
    /// Time in which the peer's receive window kept the socket from sending.
    pub rwnd_limited_us: u64,
    /// Time with data to send.
    pub busy_us: u64,
    /// Payload of a segment at most.
    pub segment_bytes: u32,
    /// Payload that was never sent yet.
    pub unsent_bytes: u32,
    /// Segments that were sent again.
    pub retransmitted: u32,
    /// Least round-trip time of the last minutes; `u32::MAX` before the first measurement.
    pub least_rtt_us: u32,
}

impl SocketFacts {
    /// Returns the facts about what it sends.
    #[must_use]
    pub fn sending(&self) -> SendFacts {
        SendFacts {
            acked_bytes: self.acked_bytes,
            unsent_bytes: self.unsent_bytes,
            segment_bytes: self.segment_bytes,
            busy_us: self.busy_us,
            rwnd_limited_us: self.rwnd_limited_us,
            rtt_us: self.rtt_us,
            least_rtt_us: self.least_rtt_us,
            retransmitted: self.retransmitted,
            delivered_ce: self.delivered_ce,
        }
    }
}

/// A dump of all TCP sockets, step by step.
#[derive(Debug)]
pub struct SocketDump {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
    /// Families that were asked for in this pass.
    asked: usize,
    under_way: bool,
}

/// Families of a pass, in order.
const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];

impl SocketDump {
    /// Opens a sock_diag socket in this thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: netlink::open(SockProtocol::NetlinkSockDiag)?,
            buffer: vec![0; READ_BYTES],
            sequence: 0,
            asked: 0,
            under_way: false,
        })
    }

    /// Reads at most `max_reads` pieces of the dump, some hundred sockets each, and passes every
    /// socket to `each`. Returns true if this ended the pass; the next step begins another one.
    ///
    /// # Errors
    /// When the kernel refuses. The dump is then to be opened again.
    pub fn step(
        &mut self,
        max_reads: usize,
        mut each: impl FnMut(&SocketFacts),
    ) -> io::Result<bool> {
        for _ in 0..max_reads {
            if !self.under_way {
                let Some(&family) = FAMILIES.get(self.asked) else {
                    self.asked = 0;
                    return Ok(true);
                };
                self.sequence = self.sequence.wrapping_add(1);
                let request = request(family as u8, self.sequence);
                send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;
                self.asked += 1;
                self.under_way = true;
            }
            // The kernel answers within the system call: there is nothing to wait for.
            let at_once = MsgFlags::MSG_DONTWAIT;
            let answers = netlink::answers(&self.socket, &mut self.buffer, self.sequence, at_once)?;
            for (kind, payload) in answers {
                match i32::from(kind) {
                    libc::NLMSG_DONE => self.under_way = false,
                    libc::NLMSG_ERROR => return Err(message_error(payload).unwrap_or_else(lost)),
                    _ => {
                        if let Some(facts) = facts_in(payload) {
                            each(&facts);
                        }
                    }
                }
            }
        }
        let ended = !self.under_way && self.asked == FAMILIES.len();
        if ended {
            self.asked = 0;
        }
        Ok(ended)
    }
}

fn lost() -> io::Error {
    netlink::invalid("an acknowledgement in place of a dump")
}

/// A dump request: header, then `struct inet_diag_req_v2`.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(NLMSG_HEADER + REQUEST);
    put_u32(&mut out, (NLMSG_HEADER + REQUEST) as u32);
    put_u16(&mut out, SOCK_DIAG_BY_FAMILY);
    put_u16(&mut out, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16);
    put_u32(&mut out, sequence);
    put_u32(&mut out, 0);
    // The third byte asks for extensions, a bit for each attribute counted from 1.
    let extensions = 1 << (INET_DIAG_INFO - 1);
    out.extend_from_slice(&[family, libc::IPPROTO_TCP as u8, extensions, 0]);
    put_u32(&mut out, STATES);
    out.resize(NLMSG_HEADER + REQUEST, 0);
    out
}

/// Decodes one `struct inet_diag_msg` with its attributes.
fn facts_in(message: &[u8]) -> Option<SocketFacts> {
    let attributes = message.get(DIAG_MESSAGE..)?;
    let bytes: [u8; 16] = message.get(24..40)?.try_into().ok()?;
    let peer = match i32::from(*message.first()?) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        libc::AF_INET6 => Ipv6Addr::from(bytes).to_canonical(),
        _ => return None,
    };
    // `struct tcp_info` only ever grows at its end.
    let info = find_attribute(attributes, INET_DIAG_INFO)?;
    Some(SocketFacts {
        cookie: get_u64(message, 44)?,
        peer,
        acked_bytes: get_u64(info, 120)?,
        received_bytes: get_u64(info, 128)?,
        rtt_us: get_u32(info, 68)?,
        delivered: get_u32(info, 192)?,
        delivered_ce: get_u32(info, 196)?,
        busy_us: get_u64(info, 168)?,
        rwnd_limited_us: get_u64(info, 176)?,
        segment_bytes: get_u32(info, 16)?,
        unsent_bytes: get_u32(info, 144)?,
        retransmitted: get_u32(info, 100)?,
        least_rtt_us: get_u32(info, 148)?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pass(dump: &mut SocketDump) -> Vec<SocketFacts> {
        let mut found = Vec::new();
        // Other tests' sockets are in this namespace too: no bound on the reads.
        while !dump.step(1, |facts| found.push(*facts)).unwrap() {}
        found
    }

    #[test]
    fn both_ends_of_a_connection_are_seen_with_what_they_carried() {
        // An address of its own, so that no other test's socket is taken for one of these.
        let listener = TcpListener::bind("127.9.21.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
        let mut dump = SocketDump::open().unwrap();
        for _ in 0..2 {
            let found = pass(&mut dump);
            // The receiver sees the client at the loopback address that the kernel chose for it.
            let sender = found
                .iter()
                .find(|facts| facts.peer.to_string() == "127.9.21.1" && facts.acked_bytes > 0)
                .expect("the sending socket");
            assert!(sender.acked_bytes >= 10_000, "{sender:?}");
            assert!(sender.delivered > 0 && sender.delivered_ce == 0);
            let cookies = |facts: &&SocketFacts| facts.received_bytes == 10_000;
            assert!(found.iter().any(|facts| cookies(&facts)));
        }
        drop((client, server));
    }

    #[test]
    fn what_is_cut_short_is_no_socket() {
        let mut message = vec![0; DIAG_MESSAGE];
        message[0] = libc::AF_INET as u8;
        message[24..28].copy_from_slice(&[10, 0, 2, 1]);
        message[44] = 9;
        let mut info = vec![0; 232];
        info[128] = 5;
        netlink::attribute(&mut message, INET_DIAG_INFO, |out| {
            out.extend_from_slice(&info);
        });
        let facts = facts_in(&message).unwrap();
        assert_eq!((facts.cookie, facts.received_bytes), (9, 5));
        assert_eq!(facts.peer, IpAddr::from([10, 0, 2, 1]));
        for length in 0..message.len() {
            assert_eq!(facts_in(&message[..length]), None, "{length} bytes");
        }
    }
}
