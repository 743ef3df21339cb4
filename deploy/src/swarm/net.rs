//! The QUIC connections of a swarm, on a thread of their own: what arrives on them goes into the
//! [`Inbox`] of the players' thread, which sends datagrams itself.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use nix::sys::eventfd::{EfdFlags, EventFd};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, TokioRuntime};
use ratewright_allocator::service::shard::transport::transport_config;
use ratewright_common::tls::client;
use ratewright_common::udp::widen_buffers;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::certs::{ALLOCATOR_NAME, Pair};

/// Handshakes at a time: more would only make each of them last longer.
const HANDSHAKES: usize = 16;
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// How long connections may take to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// What comes from the network to a player.
#[derive(Debug)]
pub enum Arrival {
    /// A connection is up. Frames for its control stream go to the sender.
    Up(usize, Connection, UnboundedSender<Vec<u8>>),
    /// Bytes of the control stream.
    Control(usize, Bytes),
    /// A datagram.
    Datagram(usize, Bytes),
    /// The connection is gone; another one is on its way.
    Down(usize, String),
}

/// Where arrivals wait for the players' thread.
#[derive(Debug)]
pub struct Inbox {
    queue: Mutex<Vec<Arrival>>,
    /// The queue is not empty: spares its reader, who asks all the time, a lock and a system call.
    filled: AtomicBool,
    event: EventFd,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self {
            queue: Mutex::default(),
            filled: AtomicBool::new(false),
            event: EventFd::from_value_and_flags(0, flags)
                .context("creating an event descriptor")?,
        })
    }

    fn put(&self, arrival: Arrival) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = queue.is_empty();
        queue.push(arrival);
        self.filled.store(true, Ordering::Release);
        drop(queue);
        if was_empty {
            // Fails only when the count is at its limit, and then the reader wakes anyway.
            let _ = self.event.write(1);
        }
    }

    /// Takes everything that waits, into an empty `arrivals`.
    pub fn take(&self, arrivals: &mut Vec<Arrival>) {
        if !self.filled.load(Ordering::Acquire) {
            return;
        }
        let _ = self.event.read();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.filled.store(false, Ordering::Release);
        std::mem::swap(&mut *queue, arrivals);
    }

    /// Readable when something waits.
    #[must_use]
    pub fn event(&self) -> &EventFd {
        &self.event
    }
}

/// The thread with the connections; they are closed when this is dropped.
#[derive(Debug)]
pub struct Net {
    endpoint: Endpoint,
    thread: Option<JoinHandle<()>>,
}

impl Net {
    /// Connects to `allocator` once with each of `identities`.
    ///
    /// # Errors
    /// When certificates are no good or there is no socket.
    pub fn start(
        allocator: SocketAddr,
        authority: &str,
        identities: &[Pair],
        inbox: &Arc<Inbox>,
    ) -> Result<Self> {
        let configs = identities
            .iter()
            .map(|identity| client_config(authority, identity))
            .collect::<Result<Vec<_>>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let local = if allocator.ip().is_loopback() && allocator.is_ipv4() {
            SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
        } else if allocator.is_ipv4() {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
        } else {
            SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0))
        };
        let guard = runtime.enter();
        let binding = || format!("binding {local}");
        let socket = UdpSocket::bind(local).with_context(binding)?;
        widen_buffers(&socket);
        let settings = EndpointConfig::default();
        let endpoint =
            Endpoint::new(settings, None, socket, Arc::new(TokioRuntime)).with_context(binding)?;
        drop(guard);
        let (connector, inbox) = (endpoint.clone(), Arc::clone(inbox));
        let thread = std::thread::Builder::new()
            .name("swarm-quic".to_owned())
            .spawn(move || {
                runtime.block_on(serve_all(connector, allocator, configs, inbox));
            })
            .context("starting a thread")?;
        Ok(Self {
            endpoint,
            thread: Some(thread),
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.endpoint.close(0u32.into(), b"the swarm is over");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn client_config(authority: &str, identity: &Pair) -> Result<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority.as_bytes())
        .context("the authority's certificate is not PEM")?;
    roots
        .add(authority)
        .context("the authority's certificate cannot be used")?;
    let chain = CertificateDer::from_pem_slice(identity.certificate.as_bytes())
        .context("a host's certificate is not PEM")?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .context("a host's private key is not PEM")?;
    let mut tls = client(roots, vec![chain], key, ratewright_proto::ALPN)
        .context("a host's certificate and key do not fit")?;
    // Nobody connects twice with it, and its store would be large for thousands.
    tls.resumption = rustls::client::Resumption::disabled();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(Arc::new(transport_config()));
    Ok(config)
}

async fn serve_all(
    endpoint: Endpoint,
    allocator: SocketAddr,
    configs: Vec<ClientConfig>,
    inbox: Arc<Inbox>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    for (player, config) in configs.into_iter().enumerate() {
        let (endpoint, inbox) = (endpoint.clone(), Arc::clone(&inbox));
        let handshakes = Arc::clone(&handshakes);
        tokio::spawn(async move {
            loop {
                // Nobody closes it.
                let Ok(turn) = handshakes.acquire().await else {
                    return;
                };
                let opened = open(&endpoint, config.clone(), allocator).await;
                let reason = match opened {
                    Ok((connection, send, receive)) => {
                        serve(player, connection, send, receive, &inbox, turn).await
                    }
                    Err(reason) => {
                        drop(turn);
                        reason
                    }
                };
                inbox.put(Arrival::Down(player, reason));
                tokio::time::sleep(RETRY).await;
            }
        });
    }
    // Ends when the endpoint is closed; the tasks end with the runtime.
    let closed = async { while endpoint.accept().await.is_some() {} };
    closed.await;
    let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
}

async fn open(
    endpoint: &Endpoint,
    config: ClientConfig,
    allocator: SocketAddr,
) -> Result<(Connection, quinn::SendStream, quinn::RecvStream), String> {
    let connection = endpoint
        .connect_with(config, allocator, ALLOCATOR_NAME)
        .map_err(|error| error.to_string())?
        .await
        .map_err(|error| error.to_string())?;
    let (send, receive) = connection
        .open_bi()
        .await
        .map_err(|error| error.to_string())?;
    Ok((connection, send, receive))
}

/// Serves one connection until it ends; returns why it did.
async fn serve(
    player: usize,
    connection: Connection,
    send: quinn::SendStream,
    mut receive: quinn::RecvStream,
    inbox: &Inbox,
    turn: SemaphorePermit<'_>,
) -> String {
    let (frames, waiting) = unbounded_channel();
    inbox.put(Arrival::Up(player, connection.clone(), frames));
    let datagrams = async {
        loop {
            match connection.read_datagram().await {
                Ok(bytes) => inbox.put(Arrival::Datagram(player, bytes)),
                Err(error) => return error.to_string(),
            }
        }
    };
    let control = async {
        // The Welcome with its topology costs as much as the handshake: both are of one turn.
        let mut turn = Some(turn);
        while let Ok(Some(chunk)) = receive.read_chunk(65_536, true).await {
            drop(turn.take());
            inbox.put(Arrival::Control(player, chunk.bytes));
        }
        // The allocator has said its last word; the close follows.
        connection.closed().await.to_string()
    };
    tokio::select! {
        reason = datagrams => reason,
        reason = control => reason,
        reason = write(send, waiting, &connection) => reason,
    }
}

async fn write(
    mut send: quinn::SendStream,
    mut frames: UnboundedReceiver<Vec<u8>>,
    connection: &Connection,
) -> String {
    while let Some(frame) = frames.recv().await {
        if send.write_all(&frame).await.is_err() {
            break;
        }
    }
    connection.closed().await.to_string()
}
