//! Server's ends of sealed sessions on a socket: their keys and the addresses of the peers.

use std::net::IpAddr;

use ratewright_io::udp::Ends;
use ratewright_proto::datagram::SessionRole;
use ratewright_proto::sealed::{OpenError, SealedConfig, SealedCounters, SealedSession, Secret};

use super::session_table::SessionTable;

/// Peer of a sealed session, with the user's tag `T`.
struct SealedPeer<T> {
    tag: T,
    sealed: SealedSession,
    /// IP address of its connection, from which alone datagrams are taken.
    address: IpAddr,
    /// Source of its newest datagram, and the address that this was sent to.
    ends: Option<Ends>,
}

/// Opened datagram.
pub(super) struct OpenedDatagram<T> {
    pub(super) session: u32,
    pub(super) tag: T,
    /// Bytes of plain text in the datagram behind its header. Zero is a probe, which an empty
    /// datagram answers.
    pub(super) length: usize,
    /// It is newer than all datagrams of the session so far.
    pub(super) newest: bool,
}

/// Server's ends of sealed sessions by session number.
pub(super) struct SealedPeers<T>(SessionTable<Box<SealedPeer<T>>>);

impl<T: Copy> SealedPeers<T> {
    pub(super) fn new() -> Self {
        Self(SessionTable::default())
    }

    /// Adds a session whose peer sends sealed datagrams from this address.
    pub(super) fn add(
        &mut self,
        session: u32,
        tag: T,
        config: SealedConfig,
        secret: &Secret,
        address: IpAddr,
    ) {
        let peer = SealedPeer {
            tag,
            sealed: SealedSession::new(config, SessionRole::Server, session, secret),
            address: address.to_canonical(),
            ends: None,
        };
        self.0.insert(session, Box::new(peer));
    }

    pub(super) fn remove(&mut self, session: u32) {
        self.0.remove(session);
    }

    /// Opens a datagram in place and counts it, or its fault.
    pub(super) fn open(
        &mut self,
        bytes: &mut [u8],
        ends: Option<Ends>,
        counters: &mut SealedCounters,
    ) -> Option<OpenedDatagram<T>> {
        let header = counters.header_of(bytes)?;
        let Some(peer) = self.0.get_mut(header.session) else {
            counters.dropped(OpenError::UnknownSession);
            return None;
        };
        // Before the cipher: a spoofed source costs no decryption.
        let Some(ends) = ends.filter(|ends| ends.peer.ip().to_canonical() == peer.address) else {
            counters.wrong_address += 1;
            return None;
        };
        let opened = peer.sealed.open_counted(header, bytes, counters)?;
        // A replayed or late datagram must not move the peer back to a former port.
        if opened.newest {
            peer.ends = Some(ends);
        }
        Some(OpenedDatagram {
            session: header.session,
            tag: peer.tag,
            length: opened.text.len(),
            newest: opened.newest,
        })
    }

    /// Seals a datagram for a peer and returns the ends that it goes between. `None` if there is no
    /// such session, it has not sent anything yet, or its keys are used up.
    pub(super) fn seal(
        &mut self,
        session: u32,
        text: &[u8],
        into: &mut Vec<u8>,
        counters: &mut SealedCounters,
    ) -> Option<Ends> {
        let peer = self.0.get_mut(session)?;
        let ends = peer.ends?;
        peer.sealed.seal_counted(text, into, counters).ok()?;
        Some(ends)
    }
}
