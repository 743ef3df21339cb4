//! The connection to the allocator: QUIC with mutual TLS, sealed datagrams beside it, and
//! reconnects.
//!
//! [`AllocatorConnection::next`] is the one future to wait on: it connects, pauses between
//! attempts, and returns what arrives. It is cancel safe. The entries are tried in order, each with
//! all addresses that its name has then ([`named`](ratewright_io::quic::named)). After a round
//! without success there is a pause, and attempts wait longer ([`backoff`]).

pub mod backoff;
mod connection;
pub mod tls;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{TransportErrorCode, VarInt};
use ratewright_io::quic::client::QuicClient;
use ratewright_io::quic::named::{NamedConnectError, RemoteName};
use ratewright_io::transport::DatagramTransport as _;
use ratewright_proto::control::Welcome;
use ratewright_proto::path::DatagramPath;
use tokio::time::Sleep;

use crate::clock;
use crate::config::{HotTransport, SessionConfig, TransportConfig};
use crate::status::{ConnectionCounters, HotPathKind};
use backoff::{Backoff, Failure, Persistence, PersistenceConfig};
use connection::{Endpoints, LiveConnection, Target, open};

/// Bounds of the pause after a refusal that only an operator can undo: frequent attempts would cost
/// a live allocator time.
const REFUSED_MIN: Duration = Duration::from_secs(1);
const REFUSED_MAX: Duration = Duration::from_secs(10);
/// Longest time for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Failure of an attempt, or of an established connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionFailure {
    /// The name has no address, or no socket could be opened.
    #[error("{address}: {reason}")]
    Address {
        /// As configured.
        address: String,
        /// Description of the failure.
        reason: String,
    },
    /// No answer arrived in time.
    #[error("{address}: no answer within {} ms", waited.as_millis())]
    Timeout {
        /// As configured.
        address: String,
        /// Duration of the wait.
        waited: Duration,
    },
    /// One of the two certificates was refused.
    #[error("{address}: TLS: {reason}")]
    Tls {
        /// As configured.
        address: String,
        /// The TLS alert.
        reason: String,
    },
    /// The allocator has no time for another handshake now.
    #[error("{address}: busy, or without an allocator behind it")]
    Busy {
        /// As configured.
        address: String,
    },
    /// The connection broke or was closed.
    #[error("{address}: {reason}")]
    Lost {
        /// As configured.
        address: String,
        /// Description of the failure.
        reason: String,
    },
}

impl ConnectionFailure {
    /// Returns true if certificates are at fault.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls { .. })
    }

    fn to_connect(address: &str, error: &NamedConnectError) -> Self {
        match error {
            NamedConnectError::Unusable(reason) => Self::Address {
                address: address.to_owned(),
                reason: reason.clone(),
            },
            NamedConnectError::Timeout(waited) => Self::Timeout {
                address: address.to_owned(),
                waited: *waited,
            },
            NamedConnectError::Connection(error) => Self::connection(address, error),
        }
    }

    fn connection(address: &str, error: &quinn::ConnectionError) -> Self {
        let address = address.to_owned();
        let code = match error {
            quinn::ConnectionError::TransportError(error) => u64::from(error.code),
            quinn::ConnectionError::ConnectionClosed(frame) => u64::from(frame.error_code),
            _ => 0,
        };
        // The allocator's admission refuses handshakes with this code while it has no time for
        // them.
        if code == u64::from(TransportErrorCode::CONNECTION_REFUSED) {
            return Self::Busy { address };
        }
        // Codes 0x100 to 0x1ff carry a TLS alert (RFC 9001, section 4.8).
        if (0x100..0x200).contains(&code) {
            Self::Tls {
                address,
                reason: error.to_string(),
            }
        } else {
            Self::Lost {
                address,
                reason: error.to_string(),
            }
        }
    }
}

/// Event of [`AllocatorConnection::next`].
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A connection is up; nothing has been sent yet.
    Connected,
    /// Datagrams have arrived; see [`AllocatorConnection::take_datagrams`].
    Datagrams,
    /// A frame of the control stream has arrived, without its length.
    Control(Vec<u8>),
    /// An attempt failed or the connection broke; the next attempt is planned.
    Down(ConnectionFailure),
}

type ConnectFuture = Pin<Box<dyn Future<Output = Result<LiveConnection, ConnectionFailure>>>>;

enum ConnectionPhase {
    Waiting(Pin<Box<Sleep>>),
    Connecting(ConnectFuture),
    Up(Box<LiveConnection>),
}

impl std::fmt::Debug for AllocatorConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AllocatorConnection")
            .field("address", &self.address())
            .field("up", &self.is_up())
            .finish_non_exhaustive()
    }
}

/// The connection to the allocator, across attempts and pauses.
pub struct AllocatorConnection {
    config: SessionConfig,
    transport: TransportConfig,
    client: Arc<QuicClientConfig>,
    server_name: String,
    addresses: Vec<Arc<RemoteName>>,
    /// Address to try next, and addresses tried in this round.
    next_address: usize,
    tried: usize,
    persistence: Persistence,
    /// An allocator was busy in this round.
    busy: bool,
    /// Pauses after rounds with a refusal, and the mark of such a round.
    refusals: Backoff,
    refused: bool,
    endpoints: Endpoints,
    phase: ConnectionPhase,
    counters: ConnectionCounters,
}

impl AllocatorConnection {
    /// Makes a connection that first connects in [`AllocatorConnection::next`].
    #[must_use]
    pub fn new(
        addresses: &[String],
        server_name: &str,
        client: Arc<QuicClientConfig>,
        config: &SessionConfig,
        transport: TransportConfig,
        seed: u64,
    ) -> Self {
        let ms = Duration::from_millis;
        let bounds = PersistenceConfig {
            min_patience: ms(config.handshake_timeout_ms),
            max_patience: ms(config.handshake_timeout_max_ms),
            min_pause: ms(config.retry_min_ms),
            max_pause: ms(config.retry_max_ms),
        };
        Self {
            persistence: Persistence::new(bounds, seed),
            busy: false,
            refusals: Backoff::new(REFUSED_MIN, REFUSED_MAX, seed),
            refused: false,
            config: config.clone(),
            transport,
            client,
            server_name: server_name.to_owned(),
            addresses: addresses
                .iter()
                .map(|address| Arc::new(RemoteName::new(address)))
                .collect(),
            next_address: 0,
            tried: 0,
            endpoints: [None, None],
            phase: ConnectionPhase::Waiting(Box::pin(tokio::time::sleep_until(
                clock::instant_now(),
            ))),
            counters: ConnectionCounters::default(),
        }
    }

    /// Replaces the TLS client and the server's name for later connections.
    pub fn set_client(&mut self, client: Arc<QuicClientConfig>, server_name: &str) {
        self.client = client;
        server_name.clone_into(&mut self.server_name);
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next(&mut self) -> ConnectionEvent {
        loop {
            match &mut self.phase {
                ConnectionPhase::Waiting(pause) => {
                    pause.await;
                    self.connect();
                }
                ConnectionPhase::Connecting(attempt) => match attempt.await {
                    Ok(up) => {
                        self.phase = ConnectionPhase::Up(Box::new(up));
                        return ConnectionEvent::Connected;
                    }
                    Err(error) => {
                        self.counters.connect_failures += 1;
                        self.busy |= matches!(error, ConnectionFailure::Busy { .. });
                        self.retry();
                        return ConnectionEvent::Down(error);
                    }
                },
                ConnectionPhase::Up(up) => match up.next().await {
                    Ok(event) => return event,
                    Err(error) => {
                        self.retry();
                        return ConnectionEvent::Down(error);
                    }
                },
            }
        }
    }

    /// Carries the session that a Welcome has opened. Before that there are no datagrams.
    pub fn carry(&mut self, now_ns: u64, welcome: &Welcome) {
        if let ConnectionPhase::Up(up) = &mut self.phase {
            let sealed = self.transport.hot == HotTransport::Udp;
            let dscp = self.transport.control_dscp;
            up.carry(now_ns, welcome, sealed, self.config.bind, dscp);
        }
    }

    /// Passes each arrived datagram to `take`.
    pub fn take_datagrams(&mut self, take: impl FnMut(&[u8])) {
        if let ConnectionPhase::Up(up) = &mut self.phase {
            up.take_datagrams(take);
        }
    }

    /// Passes a datagram to the transport, which sends it at the next [`flush`](Self::flush).
    pub fn send_datagram(&mut self, now_ns: u64, datagram: &[u8]) {
        if let ConnectionPhase::Up(up) = &mut self.phase {
            up.send_datagram(now_ns, datagram);
        }
    }

    /// Sends the datagrams that the transport holds.
    pub fn flush(&mut self) {
        if let ConnectionPhase::Up(up) = &mut self.phase {
            up.hot.flush();
        }
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let ConnectionPhase::Up(up) = &self.phase else {
            return None;
        };
        up.hot.next_timeout()
    }

    /// Runs the transport's timers.
    pub fn on_timeout(&mut self, now_ns: u64) {
        if let ConnectionPhase::Up(up) = &mut self.phase {
            up.hot.on_timeout(now_ns);
        }
    }

    /// Returns the present transport of datagrams.
    #[must_use]
    pub fn hot(&self) -> HotPathKind {
        match &self.phase {
            ConnectionPhase::Up(up) if up.path() == DatagramPath::Sealed => HotPathKind::Udp,
            _ => HotPathKind::Quic,
        }
    }

    /// Queues a frame for the control stream.
    pub fn send_control(&mut self, frame: Vec<u8>) {
        if let ConnectionPhase::Up(up) = &self.phase {
            // Fails only after the writer has seen the connection break; `next` reports that too.
            let _ = up.outgoing.send(frame);
        }
    }

    /// Returns the time that a Hello may wait for its answer.
    #[must_use]
    pub fn welcome_timeout(&self) -> Duration {
        self.persistence.welcome_patience(clock::now_ns())
    }

    /// Returns true if the peer accepts QUIC datagrams.
    #[must_use]
    pub fn takes_datagrams(&self) -> bool {
        matches!(&self.phase, ConnectionPhase::Up(up) if up.connection.max_datagram_size().is_some())
    }

    /// Returns the size of the largest datagram, while a session is carried.
    #[must_use]
    pub fn max_datagram_bytes(&self) -> Option<usize> {
        let ConnectionPhase::Up(up) = &self.phase else {
            return None;
        };
        up.max_datagram_bytes()
    }

    /// Closes the connection and connects again after a pause.
    pub fn disconnect(&mut self, reason: &str) {
        if let ConnectionPhase::Up(up) = &self.phase {
            up.connection.close(VarInt::from_u32(1), reason.as_bytes());
            self.retry();
        }
    }

    /// Closes a connection on which the allocator has refused this host until an operator acts. If
    /// no other address accepts it, the pause is longer.
    pub fn disconnect_refused(&mut self) {
        self.refused = true;
        self.disconnect("refused");
    }

    /// Notes that the session is established: the next failure starts with a short pause.
    pub fn confirm(&mut self) {
        self.persistence.succeeded();
        self.busy = false;
        self.refusals.reset();
        self.refused = false;
        self.tried = 0;
        self.counters.sessions_established += 1;
    }

    /// Closes the connection, and waits for a bounded time until the close is sent.
    pub async fn close(&mut self) {
        if let ConnectionPhase::Up(up) = &self.phase {
            // quinn's driver task sends queued frames only when this task yields; the close would
            // overtake them.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            up.connection
                .close(VarInt::from_u32(0), b"the daemon stops");
            for client in self.endpoints.iter().flatten().flatten() {
                let idle = client.endpoint().wait_idle();
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, idle).await;
            }
        }
    }

    /// Returns the counters for changing.
    pub fn counters_mut(&mut self) -> &mut ConnectionCounters {
        &mut self.counters
    }

    /// Returns the counters over all connections.
    #[must_use]
    pub fn counters(&self) -> ConnectionCounters {
        let mut counters = self.counters.clone();
        if let ConnectionPhase::Up(up) = &self.phase {
            counters.add(&up.hot.counters());
        }
        counters
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn address_count(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the address of the connection, or of the attempt under way.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        match &self.phase {
            ConnectionPhase::Waiting(_) => None,
            ConnectionPhase::Connecting(_) => self
                .addresses
                .get(self.next_address)
                .map(|name| name.as_str()),
            ConnectionPhase::Up(up) => Some(&up.address),
        }
    }

    /// Returns true while a connection is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Up(_))
    }

    /// Returns the round-trip time, while a connection is up.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        let ConnectionPhase::Up(up) = &self.phase else {
            return None;
        };
        Some(up.connection.rtt())
    }

    /// Plans an attempt at the next address: at once within a round, after a pause behind it.
    fn retry(&mut self) {
        if let ConnectionPhase::Up(up) = &self.phase {
            // The connection's own counters end with it.
            self.counters.add(&up.hot.counters());
        }
        // `Config::check` refuses an empty list, so the divisor is not 0.
        self.next_address = (self.next_address + 1) % self.addresses.len();
        self.tried += 1;
        let mut pause = Duration::ZERO;
        if self.tried >= self.addresses.len() {
            self.tried = 0;
            let busy = std::mem::take(&mut self.busy);
            // Refusals have pauses of their own: the allocator is present, so short ones gain
            // nothing.
            pause = if std::mem::take(&mut self.refused) {
                self.refusals.next_pause()
            } else {
                let failure = if busy { Failure::Busy } else { Failure::Lost };
                self.persistence.failed(clock::now_ns(), failure)
            };
        }
        self.phase = ConnectionPhase::Waiting(Box::pin(tokio::time::sleep(pause)));
    }

    fn connect(&mut self) {
        self.counters.connect_attempts += 1;
        let now_ns = clock::now_ns();
        // One reading of the clock for both: the queue's time must not be shorter than the
        // attempt's.
        let patience = self.persistence.patience(now_ns);
        let queue_patience = self.persistence.queue_patience(now_ns);
        let name = Arc::clone(&self.addresses[self.next_address]);
        let endpoints = self.endpoints_for(name.as_str());
        let target = Target {
            name,
            server_name: self.server_name.clone(),
            client: tls::attempt(&self.client, &self.config, patience, queue_patience),
            patience,
            queue_patience,
        };
        self.phase = ConnectionPhase::Connecting(Box::pin(open(endpoints, target)));
    }

    /// Makes the sockets that the address may need, at their first use.
    fn endpoints_for(&mut self, address: &str) -> Endpoints {
        let literal = address.parse::<SocketAddr>().ok();
        let unspecified = [
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::from(Ipv6Addr::UNSPECIFIED),
        ];
        for (endpoint, any) in self.endpoints.iter_mut().zip(unspecified) {
            let local = self.config.bind.unwrap_or(any);
            let wanted = local.is_ipv4() == any.is_ipv4()
                && literal.is_none_or(|literal| literal.is_ipv4() == any.is_ipv4());
            // A name may resolve to either family. A socket that failed is tried again: addresses
            // come and go.
            if wanted && !matches!(endpoint, Some(Ok(_))) {
                *endpoint = Some(
                    QuicClient::bind(SocketAddr::new(local, 0), self.transport.control_dscp)
                        .map_err(|error| error.to_string()),
                );
            }
        }
        self.endpoints.clone()
    }
}
