//! What carries the datagrams of client sessions: one trait, [`DatagramTransport`], for every way there is.
//!
//! | type | way |
//! |---|---|
//! | [`QuicDatagrams`] | datagrams of the QUIC connection on which a session began |
//! | [`SealedPort`] | datagrams that the session seals itself, over UDP: by the kernel's socket, or by any other [`PacketPort`] |
//! | [`HotPath`] | both: sealed as long as that gets through, QUIC otherwise |
//!
//! All of them carry the same bytes of the same [`ClientSession`](ratewright_proto::client::ClientSession).
//! Who drives a session has a [`HotPath`] and knows nothing of what is below it.
//!
//! A [`SealedPort`] serves the sessions that one process has with one allocator: one for a daemon,
//! thousands for a load generator. Each session begins on QUIC; see [`ratewright_proto::path`] for
//! when it changes over and back.
//!
//! Drive it so: [`add`](SealedPort::add) after a Welcome that offers sealed UDP; each datagram of the
//! session goes to [`send`](SealedPort::send), and to QUIC where that says so; then
//! [`flush`](SealedPort::flush). When the socket is readable, call [`receive`](SealedPort::receive);
//! at [`next_timeout`](SealedPort::next_timeout), [`on_timeout`](SealedPort::on_timeout).

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

/// Carries the datagrams of client sessions, without blocking and without a clock.
///
/// After a datagram was handed over, [`flush`](Self::flush). Call [`receive`](Self::receive) when
/// [`descriptor`](Self::descriptor) is readable or the waker was woken, and
/// [`on_timeout`](Self::on_timeout) at [`next_timeout`](Self::next_timeout).
pub trait DatagramTransport {
    /// The largest datagram that may be handed over for a session; nothing if it has no transport.
    fn max_datagram_bytes(&self, session: u32) -> Option<usize>;

    /// Takes a session's datagram, to be sent by the next flush at the latest. False if this transport
    /// cannot carry it now. What was taken may be lost all the same.
    fn send(&mut self, now_ns: u64, session: u32, datagram: &[u8]) -> bool;

    /// Sends what was taken, as far as the network takes it; the rest is dropped, for the protocol
    /// sends the newest state again.
    fn flush(&mut self);

    /// Hands what has arrived to `take`, with its session, and returns how many datagrams were looked
    /// at: at [`BATCH`](crate::udp::BATCH) or more, call again. Below that, `context` is woken when
    /// more arrives, as far as the [`descriptor`](Self::descriptor) does not tell it.
    ///
    /// # Errors
    /// The transport is lost.
    fn receive(
        &mut self,
        now_ns: u64,
        context: &mut Context<'_>,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> io::Result<usize>;

    /// What becomes readable when something arrives, in addition to the waker.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// When [`on_timeout`](Self::on_timeout) is to be called.
    fn next_timeout(&self) -> Option<u64>;

    /// Time has passed.
    fn on_timeout(&mut self, now_ns: u64);

    /// Forgets a session.
    fn remove(&mut self, session: u32);
}

/// The TLS session of a connection gives no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the TLS session gives no keys for sealed datagrams")]
pub struct KeyExportError;

/// The secret that both ends of a QUIC connection share for the sealed datagrams of a session.
///
/// # Errors
/// The handshake is not over.
pub fn secret_of(
    connection: &quinn::Connection,
    epoch: u64,
    session: u32,
) -> Result<Secret, KeyExportError> {
    let mut bytes = [0; Secret::BYTES];
    connection
        .export_keying_material(
            &mut bytes,
            EXPORTER_LABEL,
            &exporter_context(epoch, session),
        )
        .map_err(|_| KeyExportError)?;
    Ok(Secret::new(bytes))
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// It was sealed and waits for the next flush.
    Sealed,
    /// Send it as a QUIC datagram.
    UseQuic,
}

#[derive(Debug)]
struct SealedClient {
    sealed: SealedSession,
    path: PathSelector,
    remote: SocketAddr,
    /// When its newest entry among the timers comes up.
    scheduled_ns: Option<u64>,
}

/// The sealed sessions of this process with one allocator.
#[derive(Debug)]
pub struct SealedPort<P = BatchSocket> {
    socket: P,
    clients: IndexMap<u32, SealedClient, FxBuildHasher>,
    batch: SendBatch,
    counters: SealedCounters,
    path: PathConfig,
    /// When paths want to be looked after, by session.
    timers: Timers<u32>,
}

impl SealedPort {
    /// A port without sessions on a new socket, whose datagrams are marked with `dscp`.
    ///
    /// # Errors
    /// The address cannot be had, or the mark not be set.
    pub fn bind(local: SocketAddr, path: PathConfig, dscp: Dscp) -> io::Result<Self> {
        Ok(Self::over(BatchSocket::bind(local, dscp)?, path))
    }
}

impl<P: PacketPort> SealedPort<P> {
    /// A port without sessions on whatever moves the datagrams.
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

    /// Begins to probe for the session that a Welcome has opened on `connection`. True if the Welcome
    /// offers sealed datagrams.
    ///
    /// # Errors
    /// The connection gives no keys.
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
            // The form that a socket of both families takes.
            (Some(address), IpAddr::V6(_)) => address.to_ipv6_mapped().into(),
        };
        let remote = SocketAddr::new(ip, offer.port);
        self.add_with(now_ns, welcome.session, remote, offer, &secret);
        Ok(true)
    }

    /// As [`add`](Self::add), with the pieces that it finds out.
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
        let client = self.clients.entry(session).insert_entry(client).into_mut();
        schedule(&mut self.timers, now_ns, session, client);
    }

    /// Forgets a session.
    pub fn remove(&mut self, session: u32) {
        self.clients.swap_remove(&session);
    }

    /// Where a session's next datagram goes.
    pub fn path(&self, session: u32) -> DatagramPath {
        self.clients
            .get(&session)
            .map_or(DatagramPath::Quic, |client| client.path.path())
    }

    /// Asks for a key update of what a session sends.
    pub fn request_key_update(&mut self, session: u32) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.sealed.request_key_update();
        }
    }

    /// Seals a session's datagram, unless it has to go by QUIC.
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
            Err(_) => SendOutcome::UseQuic,
        }
    }

    /// Hands to the socket what was sealed. What it does not take is dropped: the protocol sends the
    /// newest state again.
    pub fn flush(&mut self) {
        flush(&mut self.socket, &mut self.batch, &mut self.counters);
    }

    /// Receives what is there, at most a batch, and calls `take` with the session and the plain text
    /// of what opens. Returns how many datagrams there were; if [`BATCH`](crate::udp::BATCH), call
    /// again.
    ///
    /// # Errors
    /// Of the socket.
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
            if from != Some(client.remote) {
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
            if !text.is_empty() {
                take(header.session, text);
            }
            if newest {
                self.socket.authentic(index);
            }
        }
        Ok(count)
    }

    /// When [`on_timeout`](Self::on_timeout) is to be called; it may have nothing to do then.
    pub fn next_timeout(&self) -> Option<u64> {
        self.timers.next_ns()
    }

    /// Sends the probes that are due, and gives up paths that no longer answer.
    pub fn on_timeout(&mut self, now_ns: u64) {
        while let Some((at_ns, session)) = self.timers.pop_due(now_ns) {
            let Some(client) = self.clients.get_mut(&session) else {
                continue;
            };
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

    /// Times that a sealed path was given up, over the sessions that there are.
    pub fn fallbacks(&self) -> u64 {
        self.clients
            .values()
            .map(|client| client.path.fallbacks())
            .sum()
    }

    /// What was counted.
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

/// Puts a session among the timers, unless an entry comes up before its path wants it anyway.
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
    counters.unsent += batch.clear() as u64;
}

#[cfg(test)]
mod tests;
