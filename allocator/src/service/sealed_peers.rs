//! The ends of sealed sessions that a socket serves: their keys, and where each peer is.

use std::net::{IpAddr, SocketAddr};

use indexmap::IndexMap;
use ratewright_proto::datagram::SessionRole;
use ratewright_proto::sealed::{OpenError, SealedConfig, SealedCounters, SealedSession, Secret};
use rustc_hash::FxBuildHasher;

/// A peer, which its user calls `T`.
struct SealedPeer<T> {
    known_as: T,
    sealed: SealedSession,
    /// Its connection's, without which nobody seals for it.
    address: IpAddr,
    /// Where its newest datagram came from.
    remote: Option<SocketAddr>,
}

/// What opened.
pub(super) struct OpenedDatagram<T> {
    pub(super) session: u32,
    pub(super) known_as: T,
    /// How much of the datagram, behind its header, is plain text now. None at all is a probe, to
    /// be answered in kind.
    pub(super) length: usize,
    /// Nothing that the session sent later has come before it.
    pub(super) newest: bool,
}

/// The server's ends of sealed sessions, by the session's number.
pub(super) struct SealedPeers<T>(IndexMap<u32, Box<SealedPeer<T>>, FxBuildHasher>);

impl<T: Copy> SealedPeers<T> {
    pub(super) fn new() -> Self {
        Self(IndexMap::default())
    }

    /// A peer that can send sealed datagrams from this address has a session.
    pub(super) fn add(
        &mut self,
        session: u32,
        known_as: T,
        config: SealedConfig,
        secret: &Secret,
        address: IpAddr,
    ) {
        let peer = SealedPeer {
            known_as,
            sealed: SealedSession::new(config, SessionRole::Server, session, secret),
            address: address.to_canonical(),
            remote: None,
        };
        self.0.insert(session, Box::new(peer));
    }

    pub(super) fn remove(&mut self, session: u32) {
        self.0.swap_remove(&session);
    }

    /// Opens a datagram in place and counts it, or what was wrong with it.
    pub(super) fn open(
        &mut self,
        bytes: &mut [u8],
        from: Option<SocketAddr>,
        counters: &mut SealedCounters,
    ) -> Option<OpenedDatagram<T>> {
        let header = counters.header_of(bytes)?;
        let Some(peer) = self.0.get_mut(&header.session) else {
            counters.dropped(OpenError::UnknownSession);
            return None;
        };
        let Some(from) = from.filter(|from| from.ip().to_canonical() == peer.address) else {
            counters.wrong_address += 1;
            return None;
        };
        let opened = peer.sealed.open_counted(header, bytes, counters)?;
        if opened.newest {
            peer.remote = Some(from);
        }
        Some(OpenedDatagram {
            session: header.session,
            known_as: peer.known_as,
            length: opened.text.len(),
            newest: opened.newest,
        })
    }

    /// Seals a datagram for a peer. Nothing if there is no such session, it has sent nothing from
    /// anywhere yet, or its keys are spent; otherwise where to send it.
    pub(super) fn seal(
        &mut self,
        session: u32,
        text: &[u8],
        into: &mut Vec<u8>,
        counters: &mut SealedCounters,
    ) -> Option<SocketAddr> {
        let peer = self.0.get_mut(&session)?;
        let remote = peer.remote?;
        peer.sealed.seal_counted(text, into, counters).ok()?;
        Some(remote)
    }
}
