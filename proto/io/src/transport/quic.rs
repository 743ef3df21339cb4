//! Transport over the QUIC connections on which sessions began.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use indexmap::IndexMap;
use quinn::{Connection, ConnectionError};
use rustc_hash::FxBuildHasher;

use super::DatagramTransport;
use crate::udp::BATCH;

/// The next datagram of one connection.
type Read = Pin<Box<dyn Future<Output = (u32, Result<Bytes, ConnectionError>)> + Send>>;

/// QUIC datagrams of any number of sessions, each with its own connection.
///
/// quinn's driver sends and receives, once the calling task yields. The loss of a connection shows
/// on its control stream and is not reported here.
#[derive(Default)]
pub struct QuicDatagrams {
    connections: IndexMap<u32, Connection, FxBuildHasher>,
    /// One pending read per connection, so that only connections with datagrams are polled.
    reads: FuturesUnordered<Read>,
    sent: u64,
    received: u64,
    unsent: u64,
}

impl std::fmt::Debug for QuicDatagrams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuicDatagrams")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

fn next_of(session: u32, connection: Connection) -> Read {
    Box::pin(async move { (session, connection.read_datagram().await) })
}

/// Takes a datagram that a connection has buffered.
fn at_hand(connection: &Connection) -> Option<Bytes> {
    let read = pin!(connection.read_datagram());
    match read.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(datagram)) => Some(datagram),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

impl QuicDatagrams {
    /// Adds a session. Earlier datagrams wait in the connection.
    pub fn add(&mut self, session: u32, connection: &Connection) {
        self.connections.insert(session, connection.clone());
        self.reads.push(next_of(session, connection.clone()));
    }

    /// Datagrams taken to be sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Datagrams received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Datagrams that quinn did not take.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }
}

impl DatagramTransport for QuicDatagrams {
    fn max_datagram_bytes(&self, session: u32) -> Option<usize> {
        self.connections.get(&session)?.max_datagram_size()
    }

    fn send(&mut self, _now_ns: u64, session: u32, datagram: &[u8]) -> bool {
        let Some(connection) = self.connections.get(&session) else {
            return false;
        };
        // quinn refuses datagrams that are too large or unsupported by the peer, and those of lost
        // connections.
        let taken = connection
            .send_datagram(Bytes::copy_from_slice(datagram))
            .is_ok();
        if taken {
            self.sent += 1;
        } else {
            self.unsent += 1;
        }
        taken
    }

    fn flush(&mut self) {}

    fn receive(
        &mut self,
        _now_ns: u64,
        context: &mut Context<'_>,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> io::Result<usize> {
        let mut count = 0;
        while count < BATCH
            && let Poll::Ready(Some((session, read))) = self.reads.poll_next_unpin(context)
        {
            count += 1;
            // A lost connection, or one of a removed session, gets no further read.
            let (Ok(datagram), Some(connection)) = (read, self.connections.get(&session)) else {
                continue;
            };
            self.received += 1;
            take(session, &datagram);
            // Draining the connection here saves one boxed future per datagram.
            while count < BATCH
                && let Some(datagram) = at_hand(connection)
            {
                count += 1;
                self.received += 1;
                take(session, &datagram);
            }
            self.reads.push(next_of(session, connection.clone()));
        }
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout(&self) -> Option<u64> {
        None
    }

    fn on_timeout(&mut self, _now_ns: u64) {}

    fn remove(&mut self, session: u32) {
        self.connections.swap_remove(&session);
    }
}
