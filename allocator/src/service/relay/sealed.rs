//! Sealed datagrams between the hosts and the relay: the server end, on one socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::Duration;

use ratewright_io::log::LogThrottle;
use ratewright_io::udp::{BATCH, BatchSocket, PacketPort as _, SendBatch};
use ratewright_proto::control::SealedUdp;
use ratewright_proto::sealed::{HEADER_BYTES, SealedConfig, SealedCounters, Secret};
use tokio::io::Interest;

use super::state::RelayHandle;
use crate::service::config::TransportConfig;
use crate::service::sealed_peers::SealedPeers;

/// Sealed sessions of a relay's hosts.
pub(super) struct SealedHosts {
    socket: BatchSocket,
    /// Keys and addresses of the hosts, with their channels.
    peers: SealedPeers<u32>,
    batch: SendBatch,
    offer: SealedUdp,
    counters: SealedCounters,
}

impl SealedHosts {
    pub(super) fn bind(address: SocketAddr, config: &TransportConfig) -> io::Result<Self> {
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

    /// Returns a socket that becomes readable with this one; [`receive`](Self::receive) reads.
    pub(super) fn watch(&self) -> io::Result<tokio::net::UdpSocket> {
        let socket = std::net::UdpSocket::from(self.socket.as_fd().try_clone_to_owned()?);
        tokio::net::UdpSocket::from_std(socket)
    }

    /// Returns the offer for the hosts' Welcomes.
    pub(super) fn offer(&self) -> SealedUdp {
        self.offer
    }

    /// Counts a failed read of the socket.
    pub(super) fn count_receive_error(&mut self) {
        self.counters.receive_errors += 1;
    }

    pub(super) fn counters(&self) -> &SealedCounters {
        &self.counters
    }

    /// Adds the session of a host that may send sealed datagrams from `address`.
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

    /// Receives a batch, answers probes, and passes each opened datagram to `take` with its
    /// channel. Returns the number of datagrams.
    pub(super) fn receive(&mut self, mut take: impl FnMut(u32, &[u8])) -> io::Result<usize> {
        let count = self.socket.receive()?;
        let mut probes = arrayvec::ArrayVec::<u32, BATCH>::new();
        for index in 0..count {
            let (bytes, ends) = self.socket.datagram(index);
            let Some(opened) = self.peers.open(bytes, ends, &mut self.counters) else {
                continue;
            };
            if opened.length == 0 {
                probes.push(opened.session);
            } else {
                let text = &bytes[HEADER_BYTES..][..opened.length];
                take(opened.tag, text);
            }
        }
        // After the loop, which borrows the socket's buffers.
        for session in probes {
            self.send(session, &[]);
        }
        self.flush();
        Ok(count)
    }

    /// Seals a datagram for a host, which the next flush sends at the latest. Returns false if the
    /// host's address is not known, because it has sent no sealed datagram.
    pub(super) fn send(&mut self, session: u32, text: &[u8]) -> bool {
        // One system call sends no more than a batch.
        if self.batch.is_full() {
            self.flush();
        }
        let (out, counters) = (self.batch.buffer(), &mut self.counters);
        let to = self.peers.seal(session, text, out, counters);
        to.inspect(|&to| self.batch.push(to)).is_some()
    }

    /// Sends the sealed datagrams. Drops those that the socket does not accept: sessions send the
    /// newest state again.
    pub(super) fn flush(&mut self) {
        self.socket.send_sealed(&mut self.batch, &mut self.counters);
        self.counters.unsent += self.batch.clear() as u64;
    }
}

/// Rate limit of logged socket errors.
static RECEIVE_ERRORS: LogThrottle = LogThrottle::new(Duration::from_secs(1));

/// Pause after a failed read. Most such errors are transient, and a lasting one must not make the
/// task spin.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Serves the socket; returns the error of a runtime that no longer watches it.
pub(super) async fn serve(shared: RelayHandle, watched: tokio::net::UdpSocket) -> io::Error {
    let take = || {
        let mut state = shared.lock();
        let taken = state.take_sealed();
        if taken.is_err() {
            state.count_receive_error();
        }
        taken
    };
    serve_with(watched, take).await
}

/// Reads the socket by `take`, which returns the number of datagrams.
async fn serve_with(
    watched: tokio::net::UdpSocket,
    mut take: impl FnMut() -> io::Result<usize>,
) -> io::Error {
    loop {
        if let Err(error) = watched.readable().await {
            return error;
        }
        let received = watched.try_io(Interest::READABLE, || {
            match take()? {
                BATCH => Ok(()),
                // A batch that is not full has emptied the socket: the next datagram makes it
                // readable again.
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                if let Some(others) = RECEIVE_ERRORS.now() {
                    tracing::warn!(%error, others, "cannot receive sealed datagrams; trying again");
                }
                tokio::time::sleep(AFTER_ERROR).await;
            }
            _ => tokio::task::yield_now().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn a_socket_that_cannot_be_read_is_read_again_after_a_pause() {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await;
        let socket = socket.expect("a socket");
        let to = socket.local_addr().expect("bound");
        // Never read: the socket stays readable, as with a lasting error.
        socket.send_to(b"one", to).await.expect("sent");
        let reads = RefCell::new(Vec::new());
        let take = || {
            let mut reads = reads.borrow_mut();
            reads.push(tokio::time::Instant::now());
            if reads.len() <= 5 {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            Ok(0)
        };
        let serving = serve_with(socket, take);
        let read = async {
            while reads.borrow().len() < 6 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            error = serving => panic!("gave up: {error}"),
            () = read => {}
        }
        for two in reads.borrow()[..6].windows(2) {
            assert!(two[1] - two[0] >= AFTER_ERROR, "it spins");
        }
    }
}
