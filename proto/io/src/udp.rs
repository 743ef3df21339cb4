//! UDP sockets that move many datagrams per system call (`recvmmsg(2)`, `sendmmsg(2)`).
//!
//! Buffers are allocated once; receiving and sending allocate nothing. A socket that is bound to no
//! address tells which one each datagram was sent to, and answers from there (`own_address`).
#![allow(
    unsafe_code,
    reason = "two system calls that the standard library does not have"
)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ratewright_proto::sealed::SealedCounters;

use crate::dscp::Dscp;

use own_address::ControlBuffer;

mod own_address;

/// Maximum number of datagrams per system call.
pub const BATCH: usize = 32;

/// Size of a receive buffer: above any sealed datagram, so that longer ones are noticed.
pub const BUFFER_BYTES: usize = 2_048;

/// Requested size of the kernel's buffers of the socket, in each direction.
const SOCKET_BUFFER_BYTES: libc::c_int = 4 << 20;

/// Two ends of a datagram, as a port sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Address and port of the other end.
    pub peer: SocketAddr,
    /// This end's address; `None` if the port has only one, or its system chooses.
    pub own: Option<IpAddr>,
}

impl From<SocketAddr> for Ends {
    fn from(peer: SocketAddr) -> Self {
        Self { peer, own: None }
    }
}

/// Port that moves UDP datagrams in batches without blocking: a socket of the kernel, or a network
/// interface that is driven from user space.
pub trait PacketPort {
    /// Prepares the calling thread, which is going to use the port. Call once.
    fn on_thread(&mut self) {}

    /// Receives available datagrams, at most [`BATCH`]. Returns their number.
    ///
    /// # Errors
    /// The port is lost. An empty port is no error.
    fn receive(&mut self) -> io::Result<usize>;

    /// Datagram `index` of the last batch, its source and the address that it was sent to.
    fn datagram(&mut self, index: usize) -> (&mut [u8], Option<Ends>);

    /// Reports that datagram `index` of the last batch was authentic, and newer than all before
    /// from its sender. A port that resolves stations by itself may trust its source.
    fn authentic(&mut self, _index: usize) {}

    /// Sends a batch as far as the port takes it; the rest stays in the batch. Returns the number
    /// sent. The others that are gone from the batch are lost.
    ///
    /// # Errors
    /// The port is lost. A full port is no error.
    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent>;

    /// Sends a batch of sealed datagrams and counts them. A lost port takes none.
    fn send_sealed(&mut self, batch: &mut SendBatch, counters: &mut SealedCounters) {
        let all = batch.len();
        let sent = self.send(batch).unwrap_or_else(|_| {
            batch.clear();
            BatchSent::default()
        });
        counters.sealed += sent.datagrams as u64;
        counters.sealed_bytes += sent.bytes;
        // Neither sent nor left in the batch: given up by the port.
        counters.unsent += (all - batch.len() - sent.datagrams) as u64;
    }

    /// Descriptor that becomes readable when datagrams arrive, or `None` if the port must be
    /// polled.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Calls `visit` with the name and the value of each of the port's own counters.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}
}

/// Part of a batch that a port has sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchSent {
    /// Datagrams.
    pub datagrams: usize,
    /// Bytes in them.
    pub bytes: u64,
}

impl BatchSent {
    /// Counts a datagram of `bytes` bytes.
    pub fn count(&mut self, bytes: usize) {
        self.datagrams += 1;
        self.bytes += bytes as u64;
    }
}

/// A non-blocking UDP socket with buffers for one batch.
#[derive(Debug)]
pub struct BatchSocket {
    socket: UdpSocket,
    buffers: Box<[[u8; BUFFER_BYTES]; BATCH]>,
    received: [(usize, Option<Ends>); BATCH],
    /// It is bound to no address, and the kernel tells which one datagrams were sent to.
    is_wildcard: bool,
}

/// Batch of datagrams with their destinations; it reuses its buffers.
#[derive(Debug, Default)]
pub struct SendBatch {
    slots: Vec<(Vec<u8>, Option<Ends>)>,
    used: usize,
}

impl SendBatch {
    /// Number of datagrams.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns true if the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns true if the batch must be sent before another datagram is added.
    pub fn is_full(&self) -> bool {
        self.used >= BATCH
    }

    /// Buffer of the next datagram, which counts once [`push`](Self::push) is called.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.slots.len() == self.used {
            self.slots.push((Vec::with_capacity(BUFFER_BYTES), None));
        }
        &mut self.slots[self.used].0
    }

    /// Adds the buffer's contents as a datagram between these ends.
    pub fn push(&mut self, to: impl Into<Ends>) {
        if let Some(slot) = self.slots.get_mut(self.used) {
            slot.1 = Some(to.into());
            self.used += 1;
        }
    }

    /// Removes the first `count` datagrams.
    fn sent(&mut self, count: usize) {
        let count = count.min(self.used);
        // Rotation keeps the buffers of the removed datagrams for reuse.
        self.slots[..self.used].rotate_left(count);
        self.used -= count;
    }

    /// Passes all datagrams to `sink` with their destinations, in order, and removes them.
    pub fn drain(&mut self, mut sink: impl FnMut(&[u8], SocketAddr)) {
        for (bytes, to) in &self.slots[..std::mem::take(&mut self.used)] {
            if let Some(to) = *to {
                sink(bytes, to.peer);
            }
        }
    }

    /// Removes all datagrams. Returns their number.
    pub fn clear(&mut self) -> usize {
        std::mem::take(&mut self.used)
    }
}

fn storage_of(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all bits zero is a valid sockaddr_storage (family AF_UNSPEC).
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is larger than and as aligned as every sockaddr.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which sockaddr the kernel wrote; storage is large and aligned
            // enough.
            let raw = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Requests socket buffers for the bursts of many hosts. The kernel may give less; smaller buffers
/// only drop more.
pub fn widen_buffers(socket: &UdpSocket) {
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        // SAFETY: the pointer and the length are those of a c_int that lives through the call.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                std::ptr::from_ref(&SOCKET_BUFFER_BYTES).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
    }
}

impl BatchSocket {
    /// Binds a socket whose datagrams are marked with `dscp`.
    ///
    /// # Errors
    /// The address cannot be bound, or the mark cannot be set.
    pub fn bind(address: SocketAddr, dscp: Dscp) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        dscp.mark(&socket)?;
        let is_wildcard = address.ip().is_unspecified();
        if is_wildcard {
            own_address::ask(&socket)?;
        }
        socket.set_nonblocking(true)?;
        widen_buffers(&socket);
        Ok(Self {
            socket,
            buffers: Box::new([[0; BUFFER_BYTES]; BATCH]),
            received: [(0, None); BATCH],
            is_wildcard,
        })
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Receives available datagrams, at most [`BATCH`]. Returns their number.
    ///
    /// # Errors
    /// Errors of `recvmmsg(2)`; an empty socket is no error.
    pub fn receive(&mut self) -> io::Result<usize> {
        // SAFETY: all bits zero is a valid value of these types of plain integers and null
        // pointers.
        let (mut headers, mut names): ([libc::mmsghdr; BATCH], [libc::sockaddr_storage; BATCH]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut parts = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: BUFFER_BYTES,
        }; BATCH];
        let mut controls = [ControlBuffer::default(); BATCH];
        for index in 0..BATCH {
            parts[index].iov_base = self.buffers[index].as_mut_ptr().cast();
            let header = &mut headers[index].msg_hdr;
            header.msg_iov = &raw mut parts[index];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            if self.is_wildcard {
                controls[index].attach(header);
            }
        }
        // SAFETY: each header points to one buffer, one name and at most one control buffer that
        // live through the call, with their lengths; the socket is open.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            // ICMP's refusal concerns an earlier datagram, not the socket.
            return match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionRefused => Ok(0),
                _ => Err(error),
            };
        };
        for index in 0..count {
            let length = headers[index].msg_len as usize;
            let own = controls[index].own_address(headers[index].msg_hdr.msg_controllen);
            let ends = address_of(&names[index]).map(|peer| Ends { peer, own });
            self.received[index] = (length.min(BUFFER_BYTES), ends);
        }
        Ok(count)
    }

    /// Datagram `index` of the last batch, its source and the address that it was sent to.
    pub fn datagram(&mut self, index: usize) -> (&mut [u8], Option<Ends>) {
        let (length, from) = self.received[index];
        (&mut self.buffers[index][..length], from)
    }

    /// Sends a batch as far as the socket takes it; the rest stays in the batch. A datagram whose
    /// destination is at fault is dropped. Returns the number sent.
    ///
    /// # Errors
    /// Errors of `sendmmsg(2)`; a full socket is no error.
    pub fn send(&self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        let mut sent = BatchSent::default();
        while !batch.is_empty() {
            // SAFETY: as in `receive`.
            let (mut headers, mut names): (
                [libc::mmsghdr; BATCH],
                [libc::sockaddr_storage; BATCH],
            ) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
            let mut parts = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; BATCH];
            let mut controls = [ControlBuffer::default(); BATCH];
            let mut filled = 0;
            for (bytes, to) in batch.slots[..batch.used].iter_mut().take(BATCH) {
                let Some(to) = *to else { break };
                parts[filled].iov_base = bytes.as_mut_ptr().cast();
                parts[filled].iov_len = bytes.len();
                let (name, length) = storage_of(to.peer);
                names[filled] = name;
                let header = &mut headers[filled].msg_hdr;
                header.msg_iov = &raw mut parts[filled];
                header.msg_iovlen = 1;
                header.msg_name = (&raw mut names[filled]).cast();
                header.msg_namelen = length;
                if let Some(own) = to.own {
                    controls[filled].send_from(own, header);
                }
                filled += 1;
            }
            // SAFETY: the first `filled` headers point to buffers, names and control messages that
            // live through the call.
            let count = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    headers.as_mut_ptr(),
                    filled as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            match usize::try_from(count) {
                Ok(count) => {
                    for (bytes, _) in batch.slots.iter().take(count) {
                        sent.count(bytes.len());
                    }
                    batch.sent(count);
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        // The queue of the socket or of the device is full; the caller decides
                        // about the rest.
                        Some(libc::EAGAIN | libc::ENOBUFS) => return Ok(sent),
                        Some(libc::EINTR) => {}
                        // Unreachable, filtered, too large for the path or from an address that is
                        // gone: a fault of the first datagram alone.
                        Some(
                            libc::ECONNREFUSED
                            | libc::EADDRNOTAVAIL
                            | libc::EHOSTUNREACH
                            | libc::ENETUNREACH
                            | libc::EPERM
                            | libc::EACCES
                            | libc::EMSGSIZE
                            | libc::EINVAL,
                        ) => batch.sent(1),
                        _ => return Err(error),
                    }
                }
            }
        }
        Ok(sent)
    }
}

impl PacketPort for BatchSocket {
    fn receive(&mut self) -> io::Result<usize> {
        Self::receive(self)
    }

    fn datagram(&mut self, index: usize) -> (&mut [u8], Option<Ends>) {
        Self::datagram(self, index)
    }

    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        Self::send(self, batch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl AsFd for BatchSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{getsockopt, sockopt};

    #[test]
    fn a_batch_arrives_with_its_lengths_and_its_sender() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().expect("an address");
            let sender = BatchSocket::bind(any, Dscp::CS6).expect("a socket");
            assert_eq!(getsockopt(&sender, sockopt::Ipv4Tos), Ok(0xc0));
            assert_eq!(getsockopt(&sender, sockopt::Priority), Ok(6));
            let mut receiver = BatchSocket::bind(any, Dscp::CS6).expect("a socket");
            let to = receiver.local_addr().expect("bound");
            assert_eq!(receiver.receive().expect("nothing is no error"), 0);
            let mut batch = SendBatch::default();
            let lengths = [0, 1, 1_200, BUFFER_BYTES + 1];
            for length in lengths {
                let buffer = batch.buffer();
                buffer.clear();
                buffer.resize(length, length as u8);
                batch.push(to);
            }
            let sent = BatchSent {
                datagrams: lengths.len(),
                bytes: lengths.iter().sum::<usize>() as u64,
            };
            assert_eq!(sender.send(&mut batch).expect("sent"), sent);
            assert!(batch.is_empty());
            // Loopback delivers within the call.
            assert_eq!(receiver.receive().expect("received"), lengths.len());
            for (index, length) in lengths.into_iter().enumerate() {
                let (bytes, from) = receiver.datagram(index);
                assert_eq!(bytes.len(), length.min(BUFFER_BYTES));
                assert!(bytes.iter().all(|&byte| byte == length as u8));
                assert_eq!(from, Some(sender.local_addr().expect("bound").into()));
            }
        }
    }

    /// A host of several addresses asks from outside; loopback has all of 127.0.0.0/8.
    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        for (wildcard, from, asked) in [
            ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.9"),
            ("[::]:0", "127.0.0.1:0", "127.0.0.9"),
            ("[::]:0", "[::1]:0", "::1"),
        ] {
            let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
            let mut server = BatchSocket::bind(parse(wildcard), Dscp::CS6).expect("a socket");
            let mut host = BatchSocket::bind(parse(from), Dscp::CS6).expect("a socket");
            let port = server.local_addr().expect("bound").port();
            let asked = SocketAddr::new(asked.parse().expect("an address"), port);
            let mut batch = SendBatch::default();
            for _ in 0..3 {
                batch.buffer().resize(20, 1);
                batch.push(asked);
            }
            host.send(&mut batch).expect("sent");
            assert_eq!(server.receive().expect("received"), 3);
            for index in 0..3 {
                let ends = server.datagram(index).1.expect("a source");
                assert_eq!(ends.own.map(|own| own.to_canonical()), Some(asked.ip()));
                batch.buffer().resize(20, 2);
                batch.push(ends);
            }
            // One that no interface has any more does not stop the others.
            batch.buffer().resize(20, 3);
            let gone = if asked.is_ipv4() {
                "192.0.2.1"
            } else {
                "2001:db8::1"
            };
            let peer = server.datagram(0).1.expect("a source").peer;
            batch.push(Ends {
                peer,
                own: Some(gone.parse().expect("an address")),
            });
            let sent = server.send(&mut batch).expect("sent");
            assert_eq!((sent.datagrams, batch.len()), (3, 0), "{wildcard} {asked}");
            assert_eq!(host.receive().expect("received"), 3);
            for index in 0..3 {
                assert_eq!(host.datagram(index).1, Some(asked.into()));
            }
        }
    }
}
