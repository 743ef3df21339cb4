//! Transports of client sessions' datagrams, behind one trait, [`DatagramTransport`].
//!
//! | type | carries |
//! |---|---|
//! | [`QuicDatagrams`] | datagrams of the QUIC connection on which a session began |
//! | [`SealedPort`] | datagrams that the session seals itself, over UDP: by the kernel's socket, or by any other [`PacketPort`] |
//! | [`HotPath`] | both: sealed as long as that gets through, QUIC otherwise |
//!
//! All of them carry the bytes of one [`ClientSession`](ratewright_proto::client::ClientSession).
//! The driver of a session holds a [`HotPath`] and does not know what is below it.
//!
//! A [`SealedPort`] serves the sessions that one process has with one allocator: one for a daemon,
//! thousands for a load generator. Each session begins on QUIC; see [`ratewright_proto::path`] for
//! when it changes over and back.
//!
//! To drive it, call [`add`](SealedPort::add) after a Welcome that offers sealed UDP. Each datagram
//! of the session goes to [`send`](SealedPort::send), and to QUIC where that says so; then
//! [`flush`](SealedPort::flush). When the socket is readable, call
//! [`receive`](SealedPort::receive); at [`next_timeout`](SealedPort::next_timeout),
//! [`on_timeout`](SealedPort::on_timeout).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Context;

use indexmap::IndexMap;
use ratewright_proto::control::{SealedUdp, Welcome};
use ratewright_proto::datagram::SessionRole;
use ratewright_proto::path::{DatagramPath, PathConfig, PathSelector, is_ack_eliciting};
use ratewright_proto::sealed::keys::{EXPORTER_LABEL, exporter_context};
use ratewright_proto::sealed::{
    MAX_SEALED_BYTES, OVERHEAD_BYTES, OpenError, OpenedDatagram, SealedConfig, SealedCounters,
    SealedSession, Secret,
};
use rustc_hash::FxBuildHasher;

use crate::dscp::Dscp;
use crate::timers::Timers;
use crate::udp::{BatchSocket, PacketPort, SendBatch};

mod hot_path;
mod quic;

pub use hot_path::{HotPath, PathCounters};
pub use quic::QuicDatagrams;

/// The largest datagram that can be sealed.
pub const MAX_DATAGRAM_BYTES: usize = MAX_SEALED_BYTES - OVERHEAD_BYTES;

/// Transport of client sessions' datagrams, without blocking and without a clock.
///
/// After a datagram was handed over, [`flush`](Self::flush). Call [`receive`](Self::receive) when
/// [`descriptor`](Self::descriptor) is readable or the waker was woken, and
/// [`on_timeout`](Self::on_timeout) at [`next_timeout`](Self::next_timeout).
pub trait DatagramTransport {
    /// Size of the largest datagram of a session, or `None` if the session is unknown.
    fn max_datagram_bytes(&self, session: u32) -> Option<usize>;

    /// Takes a session's datagram, to be sent by the next flush at the latest. Returns false if
    /// this transport cannot carry it now. A datagram that was taken may still be lost.
    fn send(&mut self, now_ns: u64, session: u32, datagram: &[u8]) -> bool;

    /// Sends the taken datagrams as far as the network accepts them. The rest is dropped, for the
    /// protocol sends the newest state again.
    fn flush(&mut self);

    /// Passes arrived datagrams to `take`, with their session, and returns the number inspected. At
    /// [`BATCH`](crate::udp::BATCH) or more, call again. Below that, `context` is woken when more
    /// arrives, unless the [`descriptor`](Self::descriptor) reports it.
    ///
    /// # Errors
    /// The transport is lost.
    fn receive(
        &mut self,
        now_ns: u64,
        context: &mut Context<'_>,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> io::Result<usize>;

    /// Descriptor that becomes readable when datagrams arrive, in addition to the waker.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Time of the next [`on_timeout`](Self::on_timeout).
    fn next_timeout(&self) -> Option<u64>;

    /// Handles timers that are due at `now_ns`.
    fn on_timeout(&mut self, now_ns: u64);

    /// Forgets a session.
    fn remove(&mut self, session: u32);
}

/// Error of a connection whose TLS session exports no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the TLS session gives no keys for sealed datagrams")]
pub struct KeyExportError;

/// Exports the secret that both ends of a QUIC connection share for the sealed datagrams of a
/// session.
///
/// # Errors
/// The handshake is not over.
pub fn secret_of(
    connection: &quinn::Connection,
    epoch: u64,
    session: u32,
) -> Result<Secret, KeyExportError> {
    let context = exporter_context(epoch, session);
    Secret::filled(|bytes| connection.export_keying_material(bytes, EXPORTER_LABEL, &context))
        .map_err(|_| KeyExportError)
}

/// Outcome of sending a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// The datagram was sealed and leaves with the next flush.
    Sealed,
    /// The caller must send it as a QUIC datagram.
    UseQuic,
}

#[derive(Debug)]
struct SealedClient {
    sealed: SealedSession,
    path: PathSelector,
    remote: SocketAddr,
    /// Deadline of its newest timer entry.
    scheduled_ns: Option<u64>,
}

/// Sealed sessions of this process with one allocator.
#[derive(Debug)]
pub struct SealedPort<P = BatchSocket> {
    socket: P,
    clients: IndexMap<u32, SealedClient, FxBuildHasher>,
    batch: SendBatch,
    counters: SealedCounters,
    path: PathConfig,
    /// Deadlines of the sessions' paths.
    timers: Timers<u32>,
}

impl SealedPort {
    /// Makes a port without sessions on a new socket, whose datagrams are marked with `dscp`.
    ///
    /// # Errors
    /// The address cannot be bound, or the mark cannot be set.
    pub fn bind(local: SocketAddr, path: PathConfig, dscp: Dscp) -> io::Result<Self> {
        Ok(Self::over(BatchSocket::bind(local, dscp)?, path))
    }
}

impl<P: PacketPort> SealedPort<P> {
    /// Makes a port without sessions on top of any packet port.
    pub fn over(port: P, path: PathConfig) -> Self {
        Self {
            socket: port,
            clients: IndexMap::default(),
            batch: SendBatch::default(),
            counters: SealedCounters::default(),
            path,
            timers: Timers::new(),
        }
    }

    /// Begins to probe for the session that a Welcome has opened on `connection`. Returns true if
    /// the Welcome offers sealed datagrams.
    ///
    /// # Errors
    /// The connection exports no keys.
    pub fn add(
        &mut self,
        now_ns: u64,
        connection: &quinn::Connection,
        welcome: &Welcome,
    ) -> Result<bool, KeyExportError> {
        let Some(offer) = welcome.sealed_udp else {
            return Ok(false);
        };
        let secret = secret_of(connection, welcome.epoch, welcome.session)?;
        let quic = connection.remote_address().ip();
        let ip = match (offer.address, quic) {
            (None, _) => quic,
            (Some(address), IpAddr::V4(_)) => address.into(),
            // A dual-stack socket needs the mapped form.
            (Some(address), IpAddr::V6(_)) => address.to_ipv6_mapped().into(),
        };
        let remote = SocketAddr::new(ip, offer.port);
        self.add_with(now_ns, welcome.session, remote, offer, &secret);
        Ok(true)
    }

    /// Adds a session like [`add`](Self::add), from its parts.
    pub fn add_with(
        &mut self,
        now_ns: u64,
        session: u32,
        remote: SocketAddr,
        offer: SealedUdp,
        secret: &Secret,
    ) {
        let config = SealedConfig {
            cipher: offer.cipher,
            ..SealedConfig::default()
        };
        let client = SealedClient {
            sealed: SealedSession::new(config, SessionRole::Client, session, secret),
            path: PathSelector::new(now_ns, self.path),
            remote,
            scheduled_ns: None,
        };
        // A session number is new within an epoch; after a restart it replaces the old epoch's.
        let client = self.clients.entry(session).insert_entry(client).into_mut();
        schedule(&mut self.timers, now_ns, session, client);
    }

    /// Removes a session.
    pub fn remove(&mut self, session: u32) {
        self.clients.swap_remove(&session);
    }

    /// Path of a session's next datagram.
    pub fn path(&self, session: u32) -> DatagramPath {
        self.clients
            .get(&session)
            .map_or(DatagramPath::Quic, |client| client.path.path())
    }

    /// Requests a key update of a session's outgoing direction.
    pub fn request_key_update(&mut self, session: u32) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.sealed.request_key_update();
        }
    }

    /// Seals a session's datagram, unless it must go by QUIC.
    pub fn send(&mut self, now_ns: u64, session: u32, datagram: &[u8]) -> SendOutcome {
        let Some(client) = self.clients.get_mut(&session) else {
            return SendOutcome::UseQuic;
        };
        if client.path.path() == DatagramPath::Quic {
            return SendOutcome::UseQuic;
        }
        if self.batch.is_full() {
            flush(&mut self.socket, &mut self.batch, &mut self.counters);
        }
        let (out, counters) = (self.batch.buffer(), &mut self.counters);
        match client.sealed.seal_counted(datagram, out, counters) {
            Ok(()) => {
                self.batch.push(client.remote);
                client.path.sent(now_ns, is_ack_eliciting(datagram));
                schedule(&mut self.timers, now_ns, session, client);
                SendOutcome::Sealed
            }
            // The key is used up, or the datagram is too large: QUIC carries it.
            Err(_) => SendOutcome::UseQuic,
        }
    }

    /// Passes the sealed datagrams to the socket. It drops those that the socket does not take, for
    /// the protocol sends the newest state again.
    pub fn flush(&mut self) {
        flush(&mut self.socket, &mut self.batch, &mut self.counters);
    }

    /// Receives available datagrams, at most a batch, and calls `take` with the session and the
    /// plain text of each that opens. Returns the number received; if [`BATCH`](crate::udp::BATCH),
    /// call again.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn receive(&mut self, now_ns: u64, mut take: impl FnMut(u32, &[u8])) -> io::Result<usize> {
        let count = self.socket.receive()?;
        for index in 0..count {
            let (bytes, from) = self.socket.datagram(index);
            let Some(header) = self.counters.header_of(bytes) else {
                continue;
            };
            let Some(client) = self.clients.get_mut(&header.session) else {
                self.counters.dropped(OpenError::UnknownSession);
                continue;
            };
            // Before the cipher: the server's whole address is known, a client's at the server only
            // up to its port.
            if from.map(|ends| ends.peer) != Some(client.remote) {
                self.counters.wrong_address += 1;
                continue;
            }
            let opened = client
                .sealed
                .open_counted(header, bytes, &mut self.counters);
            let Some(OpenedDatagram { text, newest }) = opened else {
                continue;
            };
            client.path.heard(now_ns);
            // An empty text answers a probe and has done its work with `heard`.
            if !text.is_empty() {
                take(header.session, text);
            }
            // Only the newest datagram's source is believed: a late copy may come from an old
            // station.
            if newest {
                self.socket.authentic(index);
            }
        }
        Ok(count)
    }

    /// Time of the next [`on_timeout`](Self::on_timeout), which may have nothing to do then.
    pub fn next_timeout(&self) -> Option<u64> {
        self.timers.next_ns()
    }

    /// Sends the probes that are due, and falls back on paths that no longer answer.
    pub fn on_timeout(&mut self, now_ns: u64) {
        while let Some((at_ns, session)) = self.timers.pop_due(now_ns) {
            let Some(client) = self.clients.get_mut(&session) else {
                continue;
            };
            // Entries are not removed from the wheel: an obsolete one has another time.
            if client.scheduled_ns != Some(at_ns) {
                continue;
            }
            client.scheduled_ns = None;
            let probes = client.path.on_timeout(now_ns);
            schedule(&mut self.timers, now_ns, session, client);
            if !probes {
                continue;
            }
            if self.batch.is_full() {
                flush(&mut self.socket, &mut self.batch, &mut self.counters);
            }
            let (out, counters) = (self.batch.buffer(), &mut self.counters);
            if client.sealed.seal_counted(&[], out, counters).is_ok() {
                self.batch.push(client.remote);
            }
        }
        self.flush();
    }

    /// Number of fallbacks to QUIC, over the present sessions.
    pub fn fallbacks(&self) -> u64 {
        self.clients
            .values()
            .map(|client| client.path.fallbacks())
            .sum()
    }

    /// Counters of the port.
    pub fn counters(&self) -> &SealedCounters {
        &self.counters
    }
}

impl<P: PacketPort> DatagramTransport for SealedPort<P> {
    fn max_datagram_bytes(&self, session: u32) -> Option<usize> {
        self.clients
            .contains_key(&session)
            .then_some(MAX_DATAGRAM_BYTES)
    }

    fn send(&mut self, now_ns: u64, session: u32, datagram: &[u8]) -> bool {
        Self::send(self, now_ns, session, datagram) == SendOutcome::Sealed
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn receive(
        &mut self,
        now_ns: u64,
        _context: &mut Context<'_>,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> io::Result<usize> {
        Self::receive(self, now_ns, take)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    fn next_timeout(&self) -> Option<u64> {
        Self::next_timeout(self)
    }

    fn on_timeout(&mut self, now_ns: u64) {
        Self::on_timeout(self, now_ns);
    }

    fn remove(&mut self, session: u32) {
        Self::remove(self, session);
    }
}

impl AsFd for SealedPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Schedules a session's timer, unless an entry expires before its path needs it.
fn schedule(timers: &mut Timers<u32>, now_ns: u64, session: u32, client: &mut SealedClient) {
    if let Some(next_ns) = client.path.next_timeout()
        && client.scheduled_ns.is_none_or(|at_ns| next_ns < at_ns)
    {
        client.scheduled_ns = Some(next_ns);
        timers.insert(now_ns, next_ns, session);
    }
}

fn flush<P: PacketPort>(socket: &mut P, batch: &mut SendBatch, counters: &mut SealedCounters) {
    socket.send_sealed(batch, counters);
    // The socket is full. Keeping them would delay newer state behind older.
    counters.unsent += batch.clear() as u64;
}

#[cfg(test)]
mod tests;
