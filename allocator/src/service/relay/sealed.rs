//! Sealed datagrams between the hosts and the relay: the server's end, on one socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;

use ratewright_common::udp::{BATCH, BatchSocket, PacketPort as _, SendBatch};
use ratewright_proto::control::SealedUdp;
use ratewright_proto::sealed::{HEADER_BYTES, SealedConfig, SealedCounters, Secret};
use tokio::io::Interest;

use super::state::Shared;
use crate::service::config::Transport;
use crate::service::sealed_peers::SealedPeers;

/// The sealed sessions of a relay's hosts.
pub(super) struct SealedHosts {
    socket: BatchSocket,
    /// With their channels.
    peers: SealedPeers<u32>,
    batch: SendBatch,
    offer: SealedUdp,
    counters: SealedCounters,
}

impl SealedHosts {
    pub(super) fn bind(address: SocketAddr, config: &Transport) -> io::Result<Self> {
        let socket = BatchSocket::bind(address, config.control_dscp)?;
        let port = socket.local_addr()?.port();
        Ok(Self {
            socket,
            peers: SealedPeers::new(),
            batch: SendBatch::default(),
            offer: SealedUdp {
                address: None,
                port,
                cipher: config.cipher,
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
        self.peers.add(session, channel, config, secret, address);
    }

    pub(super) fn remove(&mut self, session: u32) {
        self.peers.remove(session);
    }

    /// Receives a batch, answers probes, and gives what opens to `take` with its channel. Returns how
    /// many datagrams there were.
    pub(super) fn receive(&mut self, mut take: impl FnMut(u32, &[u8])) -> io::Result<usize> {
        let count = self.socket.receive()?;
        let mut probes = arrayvec::ArrayVec::<u32, BATCH>::new();
        for index in 0..count {
            let (bytes, from) = self.socket.datagram(index);
            let Some(opened) = self.peers.open(bytes, from, &mut self.counters) else {
                continue;
            };
            if opened.length == 0 {
                probes.push(opened.session);
            } else {
                let text = &bytes[HEADER_BYTES..][..opened.length];
                take(opened.known_as, text);
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
        let (out, counters) = (self.batch.buffer(), &mut self.counters);
        let to = self.peers.seal(session, text, out, counters);
        to.inspect(|&to| self.batch.push(to)).is_some()
    }

    /// Sends what was sealed. What the socket does not take is dropped: the newest state comes again.
    pub(super) fn flush(&mut self) {
        self.socket.send_sealed(&mut self.batch, &mut self.counters);
        self.counters.unsent += self.batch.clear() as u64;
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
