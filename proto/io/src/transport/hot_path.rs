//! Transport with fallback: sealed datagrams while they get through, QUIC datagrams otherwise.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::Context;

use ratewright_proto::control::Welcome;
use ratewright_proto::path::DatagramPath;

use super::{DatagramTransport, KeyExportError, QuicDatagrams, SealedPort};
use crate::udp::{BatchSocket, PacketPort};

/// Counters by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Datagrams sent by QUIC.
    pub quic_sent: u64,
    /// Datagrams received by QUIC.
    pub quic_received: u64,
    /// Datagrams sealed and sent, probes included.
    pub sealed_sent: u64,
    /// Sealed datagrams received and opened, answers to probes included.
    pub sealed_received: u64,
    /// Received datagrams that did not open: forged, replayed, damaged, of no session.
    pub sealed_dropped: u64,
    /// Datagrams that neither transport took.
    pub unsent: u64,
    /// Number of fallbacks to QUIC.
    pub fallbacks: u64,
}

/// Transport of client sessions. Each session begins on QUIC. It changes to sealed datagrams if the
/// allocator offers them and they get through, and back when they no longer do.
#[derive(Debug)]
pub struct HotPath<P = BatchSocket> {
    quic: QuicDatagrams,
    sealed: Option<SealedPort<P>>,
    /// Fallbacks of sessions that are over.
    fallbacks_before: u64,
}

impl<P: PacketPort> HotPath<P> {
    /// Makes a transport without sessions. Without a sealed port, QUIC carries everything.
    pub fn new(sealed: Option<SealedPort<P>>) -> Self {
        Self {
            quic: QuicDatagrams::default(),
            sealed,
            fallbacks_before: 0,
        }
    }

    /// Adds the session that a Welcome has opened on `connection`. Returns true if it will try
    /// sealed datagrams.
    ///
    /// # Errors
    /// The connection exports no keys for sealed datagrams. QUIC carries the session then.
    pub fn add(
        &mut self,
        now_ns: u64,
        connection: &quinn::Connection,
        welcome: &Welcome,
    ) -> Result<bool, KeyExportError> {
        self.quic.add(welcome.session, connection);
        match &mut self.sealed {
            Some(port) => port.add(now_ns, connection, welcome),
            None => Ok(false),
        }
    }

    /// Path of a session's next datagram.
    pub fn path(&self, session: u32) -> DatagramPath {
        self.sealed
            .as_ref()
            .map_or(DatagramPath::Quic, |port| port.path(session))
    }

    /// Sealed port, if there is one.
    pub fn sealed(&self) -> Option<&SealedPort<P>> {
        self.sealed.as_ref()
    }

    /// Sealed port, if there is one.
    pub fn sealed_mut(&mut self) -> Option<&mut SealedPort<P>> {
        self.sealed.as_mut()
    }

    /// Counters by path, over all sessions.
    pub fn counters(&self) -> PathCounters {
        let mut counters = PathCounters {
            quic_sent: self.quic.sent(),
            quic_received: self.quic.received(),
            unsent: self.quic.unsent(),
            fallbacks: self.fallbacks_before,
            ..PathCounters::default()
        };
        if let Some(port) = &self.sealed {
            let sealed = port.counters();
            counters.sealed_sent = sealed.sealed;
            counters.sealed_received = sealed.opened;
            counters.sealed_dropped = sealed.dropped_total();
            counters.unsent += sealed.unsent;
            counters.fallbacks += port.fallbacks();
        }
        counters
    }
}

impl<P: PacketPort> DatagramTransport for HotPath<P> {
    /// Size that both paths can carry, since a datagram may have to change over.
    fn max_datagram_bytes(&self, session: u32) -> Option<usize> {
        let quic = self.quic.max_datagram_bytes(session)?;
        let sealed = self
            .sealed
            .as_ref()
            .and_then(|port| port.max_datagram_bytes(session));
        Some(sealed.map_or(quic, |sealed| quic.min(sealed)))
    }

    fn send(&mut self, now_ns: u64, session: u32, datagram: &[u8]) -> bool {
        self.sealed
            .as_mut()
            .is_some_and(|port| DatagramTransport::send(port, now_ns, session, datagram))
            // QUIC only if the sealed port declines, so no datagram leaves twice.
            || self.quic.send(now_ns, session, datagram)
    }

    fn flush(&mut self) {
        if let Some(port) = &mut self.sealed {
            port.flush();
        }
        self.quic.flush();
    }

    fn receive(
        &mut self,
        now_ns: u64,
        context: &mut Context<'_>,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> io::Result<usize> {
        let sealed = match &mut self.sealed {
            Some(port) => DatagramTransport::receive(port, now_ns, context, take)?,
            None => 0,
        };
        // Either path at its bound needs another call, so the larger count is the answer.
        Ok(sealed.max(self.quic.receive(now_ns, context, take)?))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.sealed.as_ref()?.descriptor()
    }

    fn next_timeout(&self) -> Option<u64> {
        let sealed = self
            .sealed
            .as_ref()
            .and_then(DatagramTransport::next_timeout);
        [sealed, self.quic.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_timeout(&mut self, now_ns: u64) {
        if let Some(port) = &mut self.sealed {
            port.on_timeout(now_ns);
        }
        self.quic.on_timeout(now_ns);
    }

    fn remove(&mut self, session: u32) {
        if let Some(port) = &mut self.sealed {
            // A removed session's fallbacks would vanish from the port's sum.
            let before = port.fallbacks();
            port.remove(session);
            self.fallbacks_before += before - port.fallbacks();
        }
        self.quic.remove(session);
    }
}
