//! Sealed datagrams between the hosts and the relay: the server's end, on one socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;

use indexmap::IndexMap;
use ratewright_common::udp::{BATCH, BatchSocket, SendBatch};
use ratewright_proto::control::SealedUdp;
use ratewright_proto::datagram::Sender;
use ratewright_proto::sealed::{
    Cipher, OpenError, SealedConfig, SealedCounters, SealedHeader, SealedSession, Secret,
};
use rustc_hash::FxBuildHasher;
use tokio::io::Interest;

use super::state::Shared;

struct Peer {
    channel: u32,
    sealed: SealedSession,
    address: IpAddr,
    /// Where its newest datagram came from.
    remote: Option<SocketAddr>,
}

/// The sealed sessions of a relay's hosts.
pub(super) struct SealedHosts {
    socket: BatchSocket,
    peers: IndexMap<u32, Peer, FxBuildHasher>,
    batch: SendBatch,
    offer: SealedUdp,
    counters: SealedCounters,
}

impl SealedHosts {
    pub(super) fn bind(address: SocketAddr, cipher: Cipher) -> io::Result<Self> {
        let socket = BatchSocket::bind(address)?;
        let port = socket.local_addr()?.port();
        Ok(Self {
            socket,
            peers: IndexMap::default(),
            batch: SendBatch::default(),
            offer: SealedUdp {
                address: None,
                port,
                cipher,
            },
            counters: SealedCounters::default(),
        })
    }

    /// What tells when something has arrived. Reading is left to [`receive`](Self::receive).
    pub(super) fn watch(&self) -> io::Result<tokio::net::UdpSocket> {
        let socket = std::net::UdpSocket::from(self.socket.as_fd().try_clone_to_owned()?);
        tokio::net::UdpSocket::from_std(socket)
    }

    /// What hosts are offered.
    pub(super) fn offer(&self) -> SealedUdp {
        self.offer
    }

    pub(super) fn counters(&self) -> &SealedCounters {
        &self.counters
    }

    /// A host that can send sealed datagrams from this address has a session.
    pub(super) fn add(&mut self, session: u32, channel: u32, secret: &Secret, address: IpAddr) {
        let config = SealedConfig {
            cipher: self.offer.cipher,
            ..SealedConfig::default()
        };
        let peer = Peer {
            channel,
            sealed: SealedSession::new(config, Sender::Server, session, secret),
            address: address.to_canonical(),
            remote: None,
        };
        self.peers.insert(session, peer);
    }

    pub(super) fn remove(&mut self, session: u32) {
        self.peers.swap_remove(&session);
    }

    /// Receives a batch, answers probes, and gives what opens to `take` with its channel. Returns how
    /// many datagrams there were.
    pub(super) fn receive(&mut self, mut take: impl FnMut(u32, &[u8])) -> io::Result<usize> {
        let count = self.socket.receive()?;
        let mut probes = arrayvec::ArrayVec::<u32, BATCH>::new();
        for index in 0..count {
            let (bytes, from) = self.socket.datagram(index);
            let length = bytes.len() as u64;
            let header = match SealedHeader::parse(bytes) {
                Ok(header) => header,
                Err(reason) => {
                    self.counters.dropped(reason);
                    continue;
                }
            };
            let Some(peer) = self.peers.get_mut(&header.session) else {
                self.counters.dropped(OpenError::UnknownSession);
                continue;
            };
            let Some(from) = from.filter(|from| from.ip().to_canonical() == peer.address) else {
                self.counters.wrong_address += 1;
                continue;
            };
            let newest = peer.sealed.is_newest(&header);
            let updates = peer.sealed.key_updates();
            match peer.sealed.open(bytes) {
                Ok(text) => {
                    if newest {
                        peer.remote = Some(from);
                    }
                    if text.is_empty() {
                        probes.push(header.session);
                    } else {
                        take(peer.channel, text);
                    }
                    self.counters.opened += 1;
                    self.counters.opened_bytes += length;
                    self.counters.key_updates += peer.sealed.key_updates() - updates;
                }
                Err(reason) => self.counters.dropped(reason),
            }
        }
        for session in probes {
            self.send(session, &[]);
        }
        self.flush();
        Ok(count)
    }

    /// Seals a datagram for a host, to be sent by the next flush at the latest. False if the host has
    /// sent none from anywhere yet.
    pub(super) fn send(&mut self, session: u32, text: &[u8]) -> bool {
        if self.batch.is_full() {
            self.flush();
        }
        let Some(peer) = self.peers.get_mut(&session) else {
            return false;
        };
        let Some(remote) = peer.remote else {
            return false;
        };
        let sealed = peer.sealed.seal(text, self.batch.buffer()).is_ok();
        if sealed {
            self.batch.push(remote);
        }
        sealed
    }

    /// Sends what was sealed. What the socket does not take is dropped: the newest state comes again.
    pub(super) fn flush(&mut self) {
        let all = self.batch.len() as u64;
        let sent = self.socket.send(&mut self.batch).unwrap_or(0) as u64;
        self.batch.clear();
        self.counters.sealed += sent;
        self.counters.unsent += all - sent;
    }
}

/// Serves the socket until it is lost.
pub(super) async fn serve(shared: Shared, watched: tokio::net::UdpSocket) -> io::Error {
    loop {
        if let Err(error) = watched.readable().await {
            return error;
        }
        let received = watched.try_io(Interest::READABLE, || {
            match shared.lock().take_sealed()? {
                BATCH => Ok(()),
                // It is empty: the next datagram makes it readable again.
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return error,
            _ => tokio::task::yield_now().await,
        }
    }
}
