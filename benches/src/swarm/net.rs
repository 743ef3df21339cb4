//! The QUIC connections of a swarm, on a thread of their own: what arrives on them goes into the
//! [`Inbox`] of the players' thread, which sends datagrams itself.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use indexmap::IndexMap;
use nix::sys::eventfd::{EfdFlags, EventFd};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, TransportErrorCode};
use ratewright_allocator::service::runtime::transport::transport_config;
use ratewright_cli::certs::{ALLOCATOR_NAME, CertificatePair};
use ratewright_cli::clock;
use ratewright_endpointd::config::SessionConfig;
use ratewright_endpointd::session_io::backoff::{Failure, Persistence, PersistenceConfig};
use ratewright_endpointd::session_io::tls;
use ratewright_io::dscp::Dscp;
use ratewright_io::quic::client::QuicClient;
use ratewright_io::tls::client;
use ratewright_io::udp::widen_buffers;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};

/// Handshakes at a time: more would only make each of them last longer.
const HANDSHAKES: usize = 16;
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// Time-out for connections to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Input from the network to a host's session. The number is the host's index.
#[derive(Debug)]
pub enum SessionInput {
    /// A connection is up. Frames for its control stream go to the sender.
    Up(usize, Connection, UnboundedSender<Vec<u8>>),
    /// Bytes of the control stream.
    Control(usize, Bytes),
    /// A datagram.
    Datagram(usize, Bytes),
    /// The connection is gone; another attempt follows.
    Down(usize, String),
}

/// Queue of inputs for the sessions' thread.
#[derive(Debug)]
pub struct Inbox {
    queue: Mutex<Vec<SessionInput>>,
    /// True if the queue is not empty; spares its reader, which polls all the time, a lock and a
    /// system call.
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

    fn put(&self, arrival: SessionInput) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = queue.is_empty();
        queue.push(arrival);
        // Inside the lock: `take` clears it under the same lock, so no arrival stays unseen.
        self.filled.store(true, Ordering::Release);
        drop(queue);
        if was_empty {
            // Fails only when the count is at its limit, and then the reader wakes anyway.
            let _ = self.event.write(1);
        }
    }

    /// Takes everything that waits, into an empty `arrivals`.
    pub fn take(&self, arrivals: &mut Vec<SessionInput>) {
        if !self.filled.load(Ordering::Acquire) {
            return;
        }
        // Read before the queue is emptied, so that the event of a later arrival is never
        // swallowed.
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

/// Order in which hosts connect.
#[derive(Debug, Clone)]
pub enum Manner {
    /// A few at a time, as patiently as it takes.
    InTurn,
    /// All at once, with the daemon's own time-outs and pauses; attempts are counted there.
    Stampede(Arc<Attempts>),
    /// As `InTurn`, but the last hosts connect once at each call.
    OnCall(Arc<[Notify]>),
}

/// Counts of a stampede's attempts, by their result.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Attempts that were made.
    pub made: AtomicU64,
    /// Attempts that the allocator refused as busy.
    pub busy: AtomicU64,
    /// Attempts without a connection, or without a Welcome, in time.
    pub unanswered: AtomicU64,
    /// Others that failed, by reason.
    pub failed: Mutex<IndexMap<String, u64>>,
}

/// The thread with the connections; they are closed when this is dropped.
#[derive(Debug)]
pub struct Net {
    client: QuicClient,
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
        identities: &[CertificatePair],
        inbox: &Arc<Inbox>,
        manner: Manner,
    ) -> Result<Self> {
        let configs = identities
            .iter()
            .map(|identity| crypto(authority, identity))
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
        // The endpoint registers its socket with the runtime of the current context.
        let guard = runtime.enter();
        let binding = || format!("binding {local}");
        let socket = UdpSocket::bind(local).with_context(binding)?;
        // All hosts share one socket: a burst of hand-shakes must fit its buffers.
        widen_buffers(&socket);
        let client = QuicClient::on(socket, Dscp::CS6).with_context(binding)?;
        drop(guard);
        let (connector, inbox) = (client.clone(), Arc::clone(inbox));
        let thread = std::thread::Builder::new()
            .name("swarm-quic".to_owned())
            .spawn(move || {
                runtime.block_on(serve_all(connector, allocator, configs, inbox, manner));
            })
            .context("starting a thread")?;
        Ok(Self {
            client,
            thread: Some(thread),
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let endpoint = self.client.endpoint();
        endpoint.close(0u32.into(), b"the swarm is over");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn crypto(authority: &str, identity: &CertificatePair) -> Result<Arc<QuicClientConfig>> {
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
    // No host connects twice with it, and its store would be large for thousands.
    tls.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(QuicClientConfig::try_from(tls)?))
}

async fn serve_all(
    client: QuicClient,
    allocator: SocketAddr,
    configs: Vec<Arc<QuicClientConfig>>,
    inbox: Arc<Inbox>,
    manner: Manner,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    let desk = Arc::new(Semaphore::new(1));
    let all = configs.len();
    for (host, crypto) in configs.into_iter().enumerate() {
        let (client, inbox) = (client.clone(), Arc::clone(&inbox));
        if let Manner::Stampede(attempts) = &manner {
            let host = ConnectingHost {
                host,
                client,
                allocator,
                crypto,
                inbox,
                attempts: Arc::clone(attempts),
                desk: Arc::clone(&desk),
            };
            tokio::spawn(host.run());
            continue;
        }
        let mut config = ClientConfig::new(crypto);
        config.transport_config(Arc::new(transport_config()));
        let handshakes = Arc::clone(&handshakes);
        let calls = match &manner {
            Manner::OnCall(calls) => (host + calls.len())
                .checked_sub(all)
                .map(|at| (Arc::clone(calls), at)),
            Manner::InTurn | Manner::Stampede(_) => None,
        };
        tokio::spawn(async move {
            loop {
                if let Some((calls, at)) = &calls {
                    calls[*at].notified().await;
                }
                // The semaphore is never closed.
                let Ok(turn) = handshakes.acquire().await else {
                    return;
                };
                let patience = (Duration::MAX, Duration::MAX);
                let opened = open(&client, config.clone(), allocator, patience).await;
                let reason = match opened {
                    // The Welcome with its topology costs as much as the handshake: both are of one
                    // turn.
                    Ok(up) => serve(host, up, &inbox, || drop(turn)).await,
                    Err(error) => {
                        drop(turn);
                        error.to_string()
                    }
                };
                inbox.put(SessionInput::Down(host, reason));
                // A turned-away host must not come back at once and fill the queue.
                tokio::time::sleep(RETRY).await;
            }
        });
    }
    // Ends when the endpoint is closed; the tasks end with the runtime.
    let endpoint = client.endpoint();
    let closed = async { while endpoint.accept().await.is_some() {} };
    closed.await;
    let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
}

/// A host that connects as its daemon would.
struct ConnectingHost {
    host: usize,
    client: QuicClient,
    allocator: SocketAddr,
    crypto: Arc<QuicClientConfig>,
    inbox: Arc<Inbox>,
    attempts: Arc<Attempts>,
    /// Permit to begin an attempt. On machines of their own all hosts would begin at once. Here the
    /// first packet of one leaves before the next one's is made, so that no host's time-out runs
    /// while this machine makes others' packets.
    desk: Arc<Semaphore>,
}

impl ConnectingHost {
    async fn run(self) {
        let mut persistence = Persistence::new(PersistenceConfig::default(), self.host as u64);
        loop {
            let (failure, reason) = self.attempt(&mut persistence).await;
            if reason == quinn::ConnectError::EndpointStopping.to_string() {
                return;
            }
            self.inbox.put(SessionInput::Down(self.host, reason));
            let pause = persistence.failed(clock::now_ns(), failure);
            tokio::time::sleep(pause).await;
        }
    }

    /// Counts a failure that is neither of the usual ones.
    fn failed(&self, reason: String) -> String {
        let failed = &self.attempts.failed;
        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        *failed.entry(reason.clone()).or_insert(0) += 1;
        reason
    }

    /// One attempt, and the session that comes of it: why it is over.
    async fn attempt(&self, persistence: &mut Persistence) -> (Failure, String) {
        let now_ns = clock::now_ns();
        // As a daemon: it grows with each failure, so that a slow allocator is not given up on.
        let patience = persistence.patience(now_ns);
        let queue_patience = persistence.queue_patience(now_ns);
        let session = SessionConfig::default();
        let config = tls::attempt(&self.crypto, &session, patience, queue_patience);
        self.attempts.made.fetch_add(1, Ordering::Relaxed);
        let patience = (patience, queue_patience);
        // The semaphore is never closed.
        let Ok(desk) = self.desk.acquire().await else {
            return (
                Failure::Lost,
                quinn::ConnectError::EndpointStopping.to_string(),
            );
        };
        let opening = open(&self.client, config, self.allocator, patience);
        let sent = async {
            tokio::task::yield_now().await;
            drop(desk);
            std::future::pending::<()>().await;
        };
        let up = tokio::select! {
            biased;
            up = opening => up,
            () = sent => return (Failure::Lost, "no answer".to_owned()),
        };
        let up = match up {
            Ok(up) => up,
            // CONNECTION_REFUSED (RFC 9000, section 20.1) is the allocator's word for busy.
            Err(OpenError::Connection(ConnectionError::ConnectionClosed(close)))
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                self.attempts.busy.fetch_add(1, Ordering::Relaxed);
                return (Failure::Busy, "busy".to_owned());
            }
            Err(OpenError::Timeout) => {
                self.attempts.unanswered.fetch_add(1, Ordering::Relaxed);
                return (Failure::Lost, "no answer".to_owned());
            }
            Err(error) => return (Failure::Lost, self.failed(error.to_string())),
        };
        let connection = up.0.clone();
        let welcomed = Notify::new();
        let serving = serve(self.host, up, &self.inbox, || welcomed.notify_one());
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            reason = &mut serving => return (Failure::Lost, self.failed(reason)),
            () = welcomed.notified() => {}
            () = tokio::time::sleep(persistence.welcome_patience(now_ns)) => {
                self.attempts.unanswered.fetch_add(1, Ordering::Relaxed);
                // Closed, so that the allocator does not go on serving it.
                connection.close(1_u32.into(), b"no welcome");
                return (Failure::Lost, "no welcome".to_owned());
            }
        }
        persistence.succeeded();
        (Failure::Lost, serving.await)
    }
}

/// A connection with its control stream.
type Open = (Connection, quinn::SendStream, quinn::RecvStream);

/// Reason of a failed attempt.
#[derive(Debug)]
enum OpenError {
    Address(quinn::ConnectError),
    Connection(ConnectionError),
    Timeout,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(error) => error.fmt(f),
            Self::Connection(error) => error.fmt(f),
            Self::Timeout => f.write_str("no answer"),
        }
    }
}

async fn open(
    client: &QuicClient,
    config: ClientConfig,
    allocator: SocketAddr,
    (patience, queue_patience): (Duration, Duration),
) -> Result<Open, OpenError> {
    let connection = client
        .connect(config, allocator, ALLOCATOR_NAME)
        .map_err(OpenError::Address)?
        .within(patience, queue_patience)
        .await
        .ok_or(OpenError::Timeout)?
        .map_err(OpenError::Connection)?;
    let (send, receive) = connection.open_bi().await.map_err(OpenError::Connection)?;
    Ok((connection, send, receive))
}

/// Serves one connection until it ends; returns the reason. Calls `welcomed` at the Welcome's first
/// bytes.
async fn serve(
    host: usize,
    (connection, send, mut receive): Open,
    inbox: &Inbox,
    welcomed: impl FnOnce(),
) -> String {
    let (frames, waiting) = unbounded_channel();
    inbox.put(SessionInput::Up(host, connection.clone(), frames));
    let datagrams = async {
        loop {
            match connection.read_datagram().await {
                Ok(bytes) => inbox.put(SessionInput::Datagram(host, bytes)),
                Err(error) => return error.to_string(),
            }
        }
    };
    let control = async {
        let mut welcomed = Some(welcomed);
        while let Ok(Some(chunk)) = receive.read_chunk(65_536, true).await {
            if let Some(welcomed) = welcomed.take() {
                welcomed();
            }
            inbox.put(SessionInput::Control(host, chunk.bytes));
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
