//! Connections between daemons: QUIC with mutual TLS, one for each pair of hosts that talk.
//!
//! A peer is the host that its certificate names. A datagram of anybody else does not open and
//! changes nothing. Connections are made while the allocator lives, so that none has to be made
//! when it is lost.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, Incoming, ServerConfig,
    TransportConfig, VarInt,
};
use ratewright_io::dscp::Dscp;
use ratewright_io::quic;
use ratewright_io::tls::{TlsError, client_from_files, dns_names, server_from_files};
use rustc_hash::FxBuildHasher;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Semaphore, mpsc};

use super::directory::Directory;
use super::message::PeerMessage;
use crate::config::{SecondLineConfig, TlsConfig};

/// Protocol name in TLS (ALPN).
const ALPN: &[u8] = b"ratewright-peer/1";
/// Most hosts with a connection; others cannot exchange shares.
const MAX_PEERS: usize = 512;
/// Handshakes of arriving connections that run at once; more are refused.
const MAX_HANDSHAKES: usize = 32;
/// From so many handshakes on, an address has to prove that it receives.
const VALIDATE_FROM: usize = 8;
/// Messages that wait for the daemon; then QUIC's own buffer drops the oldest.
const EVENTS: usize = 1_024;
/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE: Duration = Duration::from_secs(8);
/// Bytes of datagrams that QUIC keeps for each connection: more would only be old.
const DATAGRAM_BUFFER_BYTES: usize = 16_384;
/// Shortest and longest pause after a failed attempt to connect.
const RETRY_MIN_NS: u64 = 100_000_000;
const RETRY_MAX_NS: u64 = 10_000_000_000;

/// Counters of the connections between daemons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct PeerCounters {
    /// Hosts with a connection now.
    pub connected: u64,
    /// Connections that were established.
    pub established: u64,
    /// Attempts and handshakes that failed, also for want of a valid certificate.
    pub failed: u64,
    /// Connections that were refused: too many, or of a host that the topology does not know.
    pub refused: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Datagrams of peers that are no message.
    pub malformed: u64,
}

/// Event for the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// The host can be reached now.
    Reachable(u32),
    /// A message of the host.
    Message(u32, PeerMessage),
}

enum Arrival {
    Up(u32, Connection),
    Failed(Option<u32>),
    Refused,
    Datagram(u32, Bytes),
    Down(u32, usize),
}

#[derive(Debug, Default)]
struct Peer {
    /// One that this host made, one that the peer made.
    connections: Vec<Connection>,
    connecting: bool,
    retry_ns: u64,
    pause_ns: u64,
    wanted_ns: u64,
}

/// Connections to other daemons.
pub struct Peers {
    endpoint: Endpoint,
    client: ClientConfig,
    port: u16,
    directory: Rc<RefCell<Directory>>,
    peers: IndexMap<u32, Peer, FxBuildHasher>,
    arrivals: mpsc::Receiver<Arrival>,
    arrive: mpsc::Sender<Arrival>,
    counters: PeerCounters,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

/// Reads the certificates for both sides of connections between daemons.
fn tls(files: &TlsConfig) -> Result<(ClientConfig, ServerConfig), TlsError> {
    let client = client_from_files(&files.ca, &files.cert, &files.key, ALPN)?;
    let client = QuicClientConfig::try_from(client).map_err(TlsError::unusable(&files.cert))?;
    let mut client = ClientConfig::new(Arc::new(client));
    client.transport_config(Arc::new(transport(true)));
    let (server, _) = server_from_files(&files.ca, &files.cert, &files.key, &[ALPN])?;
    let server = QuicServerConfig::try_from(server).map_err(TlsError::unusable(&files.cert))?;
    let mut server = ServerConfig::with_crypto(Arc::new(server));
    server.transport_config(Arc::new(transport(false)));
    Ok((client, server))
}

fn transport(keeps_alive: bool) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .initial_rtt(Duration::from_millis(10))
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok())
        .keep_alive_interval(keeps_alive.then_some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
    transport
}

fn bind(config: &SecondLineConfig) -> io::Result<UdpSocket> {
    if let Some(address) = config.bind {
        return UdpSocket::bind((address, config.port));
    }
    // One socket for both families, where the host has IPv6.
    UdpSocket::bind((IpAddr::from(Ipv6Addr::UNSPECIFIED), config.port))
        .or_else(|_| UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), config.port)))
}

/// Error of opening the connections between daemons.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The port cannot be had.
    #[error("port {port}: {source}")]
    Port {
        /// The port.
        port: u16,
        /// The error of the system.
        source: io::Error,
    },
}

impl Peers {
    /// Listens on the configured port. Must run within a `LocalRuntime` or a `LocalSet`.
    ///
    /// # Errors
    /// The certificates or the port cannot be used.
    pub fn open(
        config: &SecondLineConfig,
        files: &TlsConfig,
        dscp: Dscp,
    ) -> Result<Self, PeersError> {
        let (client, server) = tls(files)?;
        let port = config.port;
        let endpoint = bind(config)
            .and_then(|socket| {
                quic::endpoint(socket, EndpointConfig::default(), Some(server), dscp)
            })
            .map_err(|source| PeersError::Port { port, source })?;
        let (arrive, arrivals) = mpsc::channel(EVENTS);
        let directory = Rc::new(RefCell::new(Directory::default()));
        let accepting = accept(endpoint.clone(), directory.clone(), arrive.clone());
        tokio::task::spawn_local(accepting);
        Ok(Self {
            endpoint,
            client,
            port,
            directory,
            peers: IndexMap::default(),
            arrivals,
            arrive,
            counters: PeerCounters::default(),
        })
    }

    /// Reads the certificates again, for later connections.
    ///
    /// # Errors
    /// They cannot be used; those of before stay in force.
    pub fn reload(&mut self, files: &TlsConfig) -> Result<(), TlsError> {
        let (client, server) = tls(files)?;
        self.client = client;
        self.endpoint.set_server_config(Some(server));
        Ok(())
    }

    /// Replaces the hosts. Connections end if a host's name or number has changed.
    pub fn set_directory(&mut self, directory: Directory) {
        if *self.directory.borrow() == directory {
            return;
        }
        for peer in self.peers.values() {
            for connection in &peer.connections {
                connection.close(VarInt::from_u32(0), b"the topology has changed");
            }
        }
        self.peers.clear();
        self.directory.replace(directory);
    }

    /// Notes that the host at `address` is needed, and connects to it unless it is reachable.
    pub fn want(&mut self, now_ns: u64, host: u32, address: IpAddr) {
        if !self.peers.contains_key(&host) && self.peers.len() >= MAX_PEERS {
            return;
        }
        let peer = self.peers.entry(host).or_default();
        peer.wanted_ns = now_ns;
        if peer.connecting || !peer.connections.is_empty() || now_ns < peer.retry_ns {
            return;
        }
        let directory = self.directory.borrow();
        let Some(name) = directory.name(host) else {
            return;
        };
        peer.pause_ns = (peer.pause_ns * 2).clamp(RETRY_MIN_NS, RETRY_MAX_NS);
        peer.retry_ns = now_ns + peer.pause_ns;
        let to = SocketAddr::new(address, self.port);
        let Ok(connecting) = self.endpoint.connect_with(self.client.clone(), to, name) else {
            self.counters.failed += 1;
            return;
        };
        peer.connecting = true;
        let arrive = self.arrive.clone();
        tokio::task::spawn_local(async move {
            match tokio::time::timeout(HANDSHAKE, connecting).await {
                // The name was verified by TLS: the peer is the host that was meant.
                Ok(Ok(connection)) => read(host, connection, arrive).await,
                _ => drop(arrive.send(Arrival::Failed(Some(host))).await),
            }
        });
    }

    /// Closes connections that this host has not needed since `since_ns`.
    pub fn close_unneeded(&mut self, since_ns: u64) {
        for peer in self.peers.values() {
            if peer.wanted_ns < since_ns {
                for connection in peer.connections.iter().filter(|made| is_own(made)) {
                    connection.close(VarInt::from_u32(0), b"not needed");
                }
            }
        }
    }

    /// Sends a message, if the host can be reached.
    pub fn send(&mut self, host: u32, message: &PeerMessage) {
        let Some(connection) = self
            .peers
            .get(&host)
            .and_then(|peer| peer.connections.last())
        else {
            return;
        };
        // The state machines repeat what is lost.
        if connection.send_datagram(message.encode().into()).is_ok() {
            self.counters.sent += 1;
        }
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next(&mut self) -> PeerEvent {
        loop {
            let Some(arrival) = self.arrivals.recv().await else {
                // This struct holds a sender.
                return std::future::pending().await;
            };
            if let Some(event) = self.on_arrival(arrival) {
                return event;
            }
        }
    }

    fn on_arrival(&mut self, arrival: Arrival) -> Option<PeerEvent> {
        match arrival {
            Arrival::Up(host, connection) => {
                let full = self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&host);
                if full || self.directory.borrow().name(host).is_none() {
                    self.counters.refused += 1;
                    connection.close(VarInt::from_u32(2), b"too many peers");
                    return None;
                }
                self.counters.established += 1;
                let peer = self.peers.entry(host).or_default();
                if is_own(&connection) {
                    peer.connecting = false;
                    peer.pause_ns = 0;
                }
                // At most one of each direction: a newer one replaces it.
                let own = is_own(&connection);
                peer.connections.retain(|before| {
                    let stays = is_own(before) != own;
                    if !stays {
                        before.close(VarInt::from_u32(0), b"replaced");
                    }
                    stays
                });
                peer.connections.push(connection);
                Some(PeerEvent::Reachable(host))
            }
            Arrival::Failed(host) => {
                self.counters.failed += 1;
                if let Some(peer) = host.and_then(|host| self.peers.get_mut(&host)) {
                    peer.connecting = false;
                }
                None
            }
            Arrival::Refused => {
                self.counters.refused += 1;
                None
            }
            Arrival::Datagram(host, bytes) => match PeerMessage::decode(&bytes) {
                Some(message) => {
                    self.counters.received += 1;
                    Some(PeerEvent::Message(host, message))
                }
                None => {
                    self.counters.malformed += 1;
                    None
                }
            },
            Arrival::Down(host, id) => {
                if let Some(peer) = self.peers.get_mut(&host) {
                    peer.connections
                        .retain(|connection| connection.stable_id() != id);
                    if peer.connections.is_empty() && !peer.connecting {
                        self.peers.swap_remove(&host);
                    }
                }
                None
            }
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> PeerCounters {
        let peers = self.peers.values();
        let connected = peers.filter(|peer| !peer.connections.is_empty()).count();
        PeerCounters {
            connected: connected as u64,
            ..self.counters
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.endpoint
            .close(VarInt::from_u32(0), b"the daemon stops");
    }
}

fn is_own(connection: &Connection) -> bool {
    connection.side().is_client()
}

async fn accept(
    endpoint: Endpoint,
    directory: Rc<RefCell<Directory>>,
    arrive: mpsc::Sender<Arrival>,
) {
    let places = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    while let Some(incoming) = endpoint.accept().await {
        let Ok(place) = places.clone().try_acquire_owned() else {
            incoming.refuse();
            // Counted if the daemon has time; it is flooded.
            let _ = arrive.try_send(Arrival::Refused);
            continue;
        };
        let busy = MAX_HANDSHAKES - places.available_permits() > VALIDATE_FROM;
        if busy && !incoming.remote_address_validated() {
            let _ = incoming.retry();
            continue;
        }
        let (directory, arrive) = (directory.clone(), arrive.clone());
        tokio::task::spawn_local(async move {
            let identified = identify(incoming, &directory).await;
            drop(place);
            match identified {
                Ok((host, connection)) => read(host, connection, arrive).await,
                Err(arrival) => drop(arrive.send(arrival).await),
            }
        });
    }
}

/// Completes a handshake and finds out whose certificate the peer has.
async fn identify(
    incoming: Incoming,
    directory: &RefCell<Directory>,
) -> Result<(u32, Connection), Arrival> {
    let Ok(Ok(connection)) = tokio::time::timeout(HANDSHAKE, incoming.into_future()).await else {
        return Err(Arrival::Failed(None));
    };
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    let names = chain.and_then(|chain| chain.first().map(dns_names));
    match directory.borrow().host_of(&names.unwrap_or_default()) {
        Some(host) => Ok((host, connection)),
        None => {
            connection.close(VarInt::from_u32(1), b"no host of the topology");
            Err(Arrival::Refused)
        }
    }
}

/// Passes a connection and its datagrams to the daemon, until it ends.
async fn read(host: u32, connection: Connection, arrive: mpsc::Sender<Arrival>) {
    let id = connection.stable_id();
    if arrive
        .send(Arrival::Up(host, connection.clone()))
        .await
        .is_err()
    {
        return;
    }
    while let Ok(bytes) = connection.read_datagram().await {
        if arrive.send(Arrival::Datagram(host, bytes)).await.is_err() {
            return;
        }
    }
    let _ = arrive.send(Arrival::Down(host, id)).await;
}
