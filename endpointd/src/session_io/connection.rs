//! One QUIC connection with its control stream, and the transport of its session's datagrams.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quinn::{ClientConfig, Connection, ConnectionError, ReadError, RecvStream, SendStream};
use ratewright_io::dscp::Dscp;
use ratewright_io::quic::client::QuicClient;
use ratewright_io::quic::named::{self, AttemptSettings, RemoteName};
use ratewright_io::transport::{DatagramTransport as _, HotPath, SealedPort};
use ratewright_io::udp::BATCH;
use ratewright_proto::control::{FrameDecoder, Welcome};
use ratewright_proto::path::{DatagramPath, PathConfig};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::readable;

use super::{ConnectionEvent, ConnectionFailure};

/// Most bytes of one read from the control stream.
const READ_BYTES: usize = 64 * 1024;

/// One socket per address family (IPv4, IPv6) in use, or the reason why it could not be opened.
pub(super) type Endpoints = [Option<Result<QuicClient, String>>; 2];

/// Target and settings of one attempt.
pub(super) struct Target {
    pub(super) name: Arc<RemoteName>,
    pub(super) server_name: String,
    pub(super) client: ClientConfig,
    /// Time to wait for any answer, and for the handshake after the first answer.
    pub(super) patience: Duration,
    pub(super) queue_patience: Duration,
}

/// A connection that is up.
pub(super) struct LiveConnection {
    pub(super) address: String,
    pub(super) connection: Connection,
    pub(super) outgoing: mpsc::UnboundedSender<Vec<u8>>,
    incoming: RecvStream,
    decoder: FrameDecoder,
    frames: VecDeque<Vec<u8>>,
    pub(super) hot: HotPath,
    /// Session whose datagrams it carries.
    session: Option<u32>,
    /// Descriptor of the sealed transport.
    readable: Option<AsyncFd<OwnedFd>>,
    arrivals: DatagramBuffer,
}

/// Received datagrams, back to back; the memory is reused.
#[derive(Default)]
struct DatagramBuffer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl DatagramBuffer {
    fn push(&mut self, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.ends.push(self.bytes.len());
    }
}

/// Resolves the name, shakes hands with one of its addresses and opens the control stream.
pub(super) async fn open(
    endpoints: Endpoints,
    target: Target,
) -> Result<LiveConnection, ConnectionFailure> {
    let address = target.name.as_str().to_owned();
    let settings = AttemptSettings {
        client: target.client,
        server_name: &target.server_name,
        patience: target.patience,
        queue_patience: target.queue_patience,
    };
    let socket = |ipv6: bool| {
        let none = || Err("no address of a family that this host can use".to_owned());
        endpoints[usize::from(ipv6)].clone().unwrap_or_else(none)
    };
    let connection = named::connect(&target.name, &settings, socket)
        .await
        .map_err(|error| ConnectionFailure::to_connect(&address, &error))?;
    let failed = |error: ConnectionError| ConnectionFailure::connection(&address, &error);
    let (send, incoming) = connection.open_bi().await.map_err(failed)?;
    let (outgoing, queue) = mpsc::unbounded_channel();
    // A task of its own: a full stream must not hold up receiving, and `next` may be cancelled.
    tokio::task::spawn_local(write_all(send, queue));
    Ok(LiveConnection {
        address,
        connection,
        outgoing,
        incoming,
        decoder: FrameDecoder::new(),
        frames: VecDeque::new(),
        hot: HotPath::new(None),
        session: None,
        readable: None,
        arrivals: DatagramBuffer::default(),
    })
}

/// Writes the queued frames in order, until the connection is dropped or breaks.
async fn write_all(mut stream: SendStream, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        if stream.write_all(&frame).await.is_err() {
            return;
        }
    }
}

impl LiveConnection {
    /// Waits for the next arrival; control frames come before datagrams, which may build on them.
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Result<ConnectionEvent, ConnectionFailure> {
        let lost = |reason: String| ConnectionFailure::Lost {
            address: self.address.clone(),
            reason,
        };
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Ok(ConnectionEvent::Control(frame));
            }
            tokio::select! {
                // Control frames first: a datagram may build on the message that was sent before
                // it.
                biased;
                chunk = self.incoming.read_chunk(READ_BYTES, true) => match chunk {
                    Ok(Some(chunk)) => {
                        self.decoder.push(&chunk.bytes);
                        while let Some(frame) = self.decoder.next_frame().map_err(|error| lost(error.to_string()))? {
                            self.frames.push_back(frame.to_vec());
                        }
                    }
                    Ok(None) => return Err(lost("the allocator closed the control stream".to_owned())),
                    Err(ReadError::ConnectionLost(error)) => {
                        return Err(ConnectionFailure::connection(&self.address, &error));
                    }
                    Err(error) => return Err(lost(error.to_string())),
                },
                arrived = receive(&mut self.hot, self.readable.as_ref(), &mut self.arrivals) => {
                    return arrived
                        .map(|()| ConnectionEvent::Datagrams)
                        .map_err(|error| lost(format!("the socket of sealed datagrams: {error}")));
                }
            }
        }
    }

    /// Carries the datagrams of the session that a Welcome opened.
    pub(super) fn carry(
        &mut self,
        now_ns: u64,
        welcome: &Welcome,
        sealed: bool,
        bind: Option<IpAddr>,
        dscp: Dscp,
    ) {
        if sealed && welcome.sealed_udp.is_some() {
            match self.sealed_port(bind, dscp) {
                Ok((port, readable)) => {
                    self.hot = HotPath::new(Some(port));
                    self.readable = Some(readable);
                }
                Err(error) => {
                    tracing::warn!(%error, "no socket for sealed datagrams; QUIC carries them");
                }
            }
        }
        if let Err(error) = self.hot.add(now_ns, &self.connection, welcome) {
            tracing::warn!(%error, "QUIC carries the session's datagrams");
        }
        self.session = Some(welcome.session);
    }

    fn sealed_port(
        &self,
        bind: Option<IpAddr>,
        dscp: Dscp,
    ) -> io::Result<(SealedPort, AsyncFd<OwnedFd>)> {
        // The sealed port faces the same address as QUIC does, so it needs that address's family.
        let any = match self.connection.remote_address() {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let local = SocketAddr::new(bind.unwrap_or(any), 0);
        let port = SealedPort::bind(local, PathConfig::default(), dscp)?;
        let readable = readable::watch(std::os::fd::AsFd::as_fd(&port))?;
        Ok((port, readable))
    }

    /// Passes each arrived datagram to `take`.
    pub(super) fn take_datagrams(&mut self, mut take: impl FnMut(&[u8])) {
        let mut start = 0;
        for end in self.arrivals.ends.drain(..) {
            take(&self.arrivals.bytes[start..end]);
            start = end;
        }
        self.arrivals.bytes.clear();
    }

    pub(super) fn send_datagram(&mut self, now_ns: u64, datagram: &[u8]) {
        if let Some(session) = self.session {
            // The transport counts a datagram that it does not take; the protocol repeats what
            // still matters.
            let _ = self.hot.send(now_ns, session, datagram);
        }
    }

    pub(super) fn max_datagram_bytes(&self) -> Option<usize> {
        self.hot.max_datagram_bytes(self.session?)
    }

    pub(super) fn path(&self) -> DatagramPath {
        self.session
            .map_or(DatagramPath::Quic, |session| self.hot.path(session))
    }
}

/// Waits until datagrams have arrived. Cancel safe: they stay in `arrivals`.
async fn receive(
    hot: &mut HotPath,
    readable: Option<&AsyncFd<OwnedFd>>,
    arrivals: &mut DatagramBuffer,
) -> io::Result<()> {
    poll_fn(|context| {
        loop {
            // Cleared before the socket is read: a datagram that arrives after the read wakes the
            // task again.
            let is_readable = match readable.map(|fd| fd.poll_read_ready(context)) {
                Some(Poll::Ready(ready)) => {
                    ready?.clear_ready();
                    true
                }
                Some(Poll::Pending) | None => false,
            };
            let count = hot.receive(crate::clock::now_ns(), context, &mut |_, datagram| {
                arrivals.push(datagram);
            })?;
            if !arrivals.ends.is_empty() {
                return Poll::Ready(Ok(()));
            }
            // A full batch may have left datagrams in the socket, and nothing would announce those.
            if count < BATCH && !is_readable {
                return Poll::Pending;
            }
        }
    })
    .await
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        // Also where the connection is simply dropped: the allocator learns of it at once.
        self.connection.close(1_u32.into(), b"given up");
    }
}
