//! QUIC endpoints whose datagrams are marked as control traffic.
//!
//! quinn sets every datagram's type of service, for ECN (RFC 9000 §13.4). That overrides the
//! socket's DSCP and priority: the kernel computes the priority of such a datagram from its type of
//! service. These endpoints therefore send by themselves, without ECN. Each end may decide that
//! (RFC 9000 §13.4.1), and marked datagrams have a queue of their own.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, UdpPoller};
use tokio::io::Interest;

use crate::dscp::Dscp;

use self::client::ConnectAttempts;

pub mod client;
pub mod named;

/// Makes an endpoint on `socket`, whose datagrams are marked with `dscp`. Must run on a tokio
/// runtime.
///
/// # Errors
/// The socket cannot be used.
pub fn endpoint(
    socket: UdpSocket,
    settings: EndpointConfig,
    server: Option<ServerConfig>,
    dscp: Dscp,
) -> io::Result<Endpoint> {
    endpoint_with(socket, settings, server, dscp, None)
}

fn endpoint_with(
    socket: UdpSocket,
    settings: EndpointConfig,
    server: Option<ServerConfig>,
    dscp: Dscp,
    attempts: Option<Arc<ConnectAttempts>>,
) -> io::Result<Endpoint> {
    dscp.mark(&socket)?;
    let state = UdpSocketState::new((&socket).into())?;
    let socket = Arc::new(MarkedSocket {
        segments: AtomicUsize::new(state.max_gso_segments()),
        state,
        io: tokio::net::UdpSocket::from_std(socket)?,
        attempts,
    });
    Endpoint::new_with_abstract_socket(settings, server, socket, Arc::new(TokioRuntime))
}

/// Socket that sends with its own type of service.
#[derive(Debug)]
struct MarkedSocket {
    io: tokio::net::UdpSocket,
    /// Receives.
    state: UdpSocketState,
    /// Datagrams per system call (`UDP_SEGMENT`).
    segments: AtomicUsize,
    /// Attempts that wait for a Retry.
    attempts: Option<Arc<ConnectAttempts>>,
}

impl AsyncUdpSocket for MarkedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable {
            socket: self,
            wait: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.io.try_io(Interest::WRITABLE, || {
            send(self.io.as_raw_fd(), transmit).map_err(io::Error::from)
        });
        let Err(error) = sent else { return Ok(()) };
        if error.kind() == io::ErrorKind::WouldBlock {
            return Err(error);
        }
        // A device that does not segment says so in one of these ways (udp(7)).
        let unsegmented = matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL));
        if unsegmented && transmit.segment_size.is_some() {
            self.segments.store(1, Ordering::Relaxed);
        }
        // Treated as lost: QUIC sends its contents again. Probes of the path's MTU may be too long.
        if error.raw_os_error() != Some(libc::EMSGSIZE) {
            tracing::debug!(%error, to = %transmit.destination, "a datagram was not sent");
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let readable = self.io.poll_recv_ready(context);
            if readable.is_pending()
                && let Some(attempts) = &self.attempts
            {
                // Pending means that the socket was read empty: an answer that is not here has not
                // arrived.
                attempts.emptied();
            }
            ready!(readable)?;
            let received = self.io.try_io(Interest::READABLE, || {
                self.state.recv((&self.io).into(), buffers, meta)
            });
            if let Ok(count) = received {
                if let Some(attempts) = &self.attempts {
                    for (buffer, meta) in buffers.iter().zip(&meta[..count]) {
                        // GRO joins datagrams of one length; `chunks` panics on 0.
                        let datagrams = buffer[..meta.len].chunks(meta.stride.max(1));
                        datagrams.for_each(|datagram| attempts.see(datagram));
                    }
                }
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments.load(Ordering::Relaxed)
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// Sends without a type of service per datagram.
fn send(socket: i32, transmit: &Transmit<'_>) -> nix::Result<()> {
    let segment_bytes = transmit
        .segment_size
        .filter(|&bytes| bytes < transmit.contents.len())
        .and_then(|bytes| u16::try_from(bytes).ok());
    let (mut v4, mut v6) = (None, None);
    match transmit.src_ip {
        Some(IpAddr::V4(ip)) => {
            v4 = Some(libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            });
        }
        Some(IpAddr::V6(ip)) => v6 = Some(source_v6(ip)),
        None => {}
    }
    let mut messages: ArrayVec<ControlMessage<'_>, 2> = ArrayVec::new();
    messages.extend(segment_bytes.as_ref().map(ControlMessage::UdpGsoSegments));
    messages.extend(v4.as_ref().map(ControlMessage::Ipv4PacketInfo));
    messages.extend(v6.as_ref().map(ControlMessage::Ipv6PacketInfo));
    let to = SockaddrStorage::from(transmit.destination);
    let parts = [IoSlice::new(transmit.contents)];
    loop {
        match sendmsg(socket, &parts, &messages, MsgFlags::empty(), Some(&to)) {
            Err(Errno::EINTR) => {}
            sent => return sent.map(drop),
        }
    }
}

fn source_v6(ip: Ipv6Addr) -> libc::in6_pktinfo {
    libc::in6_pktinfo {
        ipi6_ifindex: 0,
        ipi6_addr: libc::in6_addr {
            s6_addr: ip.octets(),
        },
    }
}

type Wait = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Poller that wakes one task when the socket becomes writable.
struct Writable {
    socket: Arc<MarkedSocket>,
    wait: Option<Wait>,
}

impl std::fmt::Debug for Writable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let socket = &this.socket;
        let wait = this.wait.get_or_insert_with(|| {
            let socket = Arc::clone(socket);
            Box::pin(async move { socket.io.writable().await })
        });
        let result = ready!(wait.as_mut().poll(context));
        this.wait = None;
        Poll::Ready(result)
    }
}

#[cfg(test)]
mod tests;
