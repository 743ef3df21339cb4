//! State of the relay's tasks: its hosts, its connection to the allocator, and the open bundle.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use indexmap::IndexMap;
use quinn::{Connection, VarInt};
use ratewright_proto::relay::{Bundle, Bundler};
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use tokio::sync::Notify;

use super::sealed::SealedHosts;
use crate::service::clock;
use crate::service::runtime::OVERTAKEN_NS;
use crate::service::status::{Reasons, RelayCounts};

/// Totals since the relay's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayTotals {
    /// Bundles between the relay and the allocator.
    pub bundles: RelayCounts,
    /// Hosts' connections that became a stream to the allocator.
    pub hosts_opened: u64,
    /// Hosts' connections that ended or were refused, by reason.
    pub hosts_closed: Reasons,
    /// Datagrams from hosts.
    pub datagrams_from_hosts: u64,
    /// Datagrams to hosts.
    pub datagrams_to_hosts: u64,
    /// Connections to an allocator.
    pub connects: u64,
}

/// A host with a connection to the relay.
struct RelayedHost {
    connection: Connection,
    /// Number of its sealed session, once a Welcome has passed.
    session: Option<u32>,
    /// Time of its newest sealed datagram. Datagrams to it are sealed while this is set; the
    /// host's QUIC datagrams clear it, unless sealed ones have overtaken them.
    sealed_ns: Option<u64>,
}

/// Connection to the allocator.
struct Upstream {
    connection: Connection,
    address: String,
}

/// State of the relay.
pub(super) struct RelayState {
    hosts: IndexMap<u32, RelayedHost, FxBuildHasher>,
    upstream: Option<Upstream>,
    bundler: Bundler,
    /// Wakes the task that sends the open bundle.
    bundle_opened: Arc<Notify>,
    pub(super) sealed: Option<SealedHosts>,
    pub(super) counts: RelayTotals,
}

/// Handle to the state, for the relay's tasks.
#[derive(Clone)]
pub(super) struct RelayHandle(Arc<Mutex<RelayState>>);

/// Body of a relay's `GET /status`.
#[derive(Debug, Clone, Serialize)]
pub struct RelayStatus {
    /// Version of this binary.
    pub version: &'static str,
    /// Address of the allocator that it is connected to.
    pub allocator: Option<String>,
    /// Round-trip time to it, in microseconds.
    pub rtt_us: u64,
    /// Hosts with a connection.
    pub hosts: Vec<HostStatus>,
}

/// One host in a relay's `GET /status`.
#[derive(Debug, Clone, Serialize)]
pub struct HostStatus {
    /// Remote address of its connection.
    pub address: SocketAddr,
    /// `udp` while sealed datagrams carry its session, otherwise `quic`.
    pub hot: &'static str,
    /// Round-trip time of its connection, in microseconds.
    pub rtt_us: u64,
}

fn rtt_us(connection: &Connection) -> u64 {
    u64::try_from(connection.rtt().as_micros()).unwrap_or(u64::MAX)
}

impl RelayHandle {
    pub(super) fn new(sealed: Option<SealedHosts>) -> Self {
        Self(Arc::new(Mutex::new(RelayState {
            hosts: IndexMap::default(),
            upstream: None,
            bundler: Bundler::default(),
            bundle_opened: Arc::new(Notify::new()),
            sealed,
            counts: RelayTotals::default(),
        })))
    }

    /// Locks the state. Poison is ignored: a task that panicked ends the process anyway.
    pub(super) fn lock(&self) -> MutexGuard<'_, RelayState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RelayState {
    /// Sets the connection to an allocator.
    pub(super) fn connected(&mut self, connection: &Connection, address: &str) {
        self.upstream = Some(Upstream {
            connection: connection.clone(),
            address: address.to_owned(),
        });
        self.counts.connects += 1;
    }

    /// Clears the connection to the allocator, and closes all hosts' connections: their sessions
    /// are lost, and they are to connect to another server at once.
    pub(super) fn disconnected(&mut self) {
        self.upstream = None;
        // An open bundle is of sessions that no longer exist.
        self.bundler.take();
        for host in self.hosts.values() {
            host.connection
                .close(VarInt::from_u32(2), b"the relay has lost the allocator");
        }
    }

    pub(super) fn upstream(&self) -> Option<Connection> {
        Some(self.upstream.as_ref()?.connection.clone())
    }

    /// Returns the notification of an open bundle.
    pub(super) fn bundle_opened(&self) -> Arc<Notify> {
        Arc::clone(&self.bundle_opened)
    }

    pub(super) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn add_host(&mut self, channel: u32, connection: &Connection) {
        let host = RelayedHost {
            connection: connection.clone(),
            session: None,
            sealed_ns: None,
        };
        self.hosts.insert(channel, host);
        self.counts.hosts_opened += 1;
    }

    /// Removes a host, unless its channel is another's by now: channels are streams of the
    /// connection to the allocator, so a new connection numbers them from 0 again.
    pub(super) fn remove_host(&mut self, channel: u32, connection: &Connection) {
        let is_of = |host: &RelayedHost| host.connection.stable_id() == connection.stable_id();
        if !self.hosts.get(&channel).is_some_and(is_of) {
            return;
        }
        if let Some(host) = self.hosts.swap_remove(&channel)
            && let (Some(session), Some(sealed)) = (host.session, &mut self.sealed)
        {
            sealed.remove(session);
        }
    }

    /// Sets the number of a host's session, for its sealed datagrams.
    pub(super) fn set_session(&mut self, channel: u32, session: u32) {
        if let Some(host) = self.hosts.get_mut(&channel) {
            host.session = Some(session);
        }
    }

    /// Puts a host's QUIC datagrams into the bundle.
    pub(super) fn take_quic<'a>(
        &mut self,
        channel: u32,
        datagrams: impl Iterator<Item = &'a Bytes>,
    ) {
        let now_ns = clock::now_ns();
        if let Some(host) = self.hosts.get_mut(&channel)
            // A datagram that sealed ones have overtaken does not mean that the host changed to
            // QUIC.
            && host
                .sealed_ns
                .is_some_and(|at_ns| now_ns.saturating_sub(at_ns) > OVERTAKEN_NS)
        {
            host.sealed_ns = None;
        }
        for datagram in datagrams {
            self.bundle(channel, datagram);
        }
    }

    /// Counts a failed read of the socket of sealed datagrams.
    pub(super) fn count_receive_error(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.count_receive_error();
        }
    }

    /// Receives a batch of sealed datagrams into the bundle; returns their number.
    pub(super) fn take_sealed(&mut self) -> std::io::Result<usize> {
        // Taken out while it calls back into the state, which it is a part of.
        let Some(mut sealed) = self.sealed.take() else {
            return Ok(0);
        };
        let now_ns = clock::now_ns();
        let received = sealed.receive(|channel, text| {
            if let Some(host) = self.hosts.get_mut(&channel) {
                host.sealed_ns = Some(now_ns);
            }
            self.bundle(channel, text);
        });
        self.sealed = Some(sealed);
        received
    }

    /// Puts a host's datagram into the bundle for the allocator.
    fn bundle(&mut self, channel: u32, datagram: &[u8]) {
        self.counts.datagrams_from_hosts += 1;
        let Some(upstream) = &self.upstream else {
            self.counts.bundles.rejected.count("no_allocator");
            return;
        };
        let max_bytes = upstream.connection.max_datagram_size().unwrap_or(0);
        if self.bundler.is_empty() {
            self.bundle_opened.notify_one();
        }
        match self.bundler.push(max_bytes, channel, datagram) {
            Ok(full) => {
                self.counts.bundles.datagrams_sent += 1;
                if let Some(bundle) = full {
                    self.send(bundle);
                }
            }
            Err(_) => self.counts.bundles.rejected.count("too_large_to_send"),
        }
    }

    /// Sends the open bundle, if there is one.
    pub(super) fn flush_bundle(&mut self) {
        if let Some(bundle) = self.bundler.take() {
            self.send(bundle);
        }
    }

    fn send(&mut self, bundle: Vec<u8>) {
        let counts = &mut self.counts.bundles;
        let bytes = bundle.len() as u64;
        match &self.upstream {
            Some(upstream) if upstream.connection.send_datagram(bundle.into()).is_ok() => {
                counts.bundles_sent += 1;
                counts.bytes_sent += bytes;
            }
            _ => counts.rejected.count("not_sent"),
        }
    }

    /// Sends the datagrams of the allocator's bundles to their hosts.
    pub(super) fn take_bundles<'a>(&mut self, bundles: impl Iterator<Item = &'a Bytes>) {
        for bytes in bundles {
            let counts = &mut self.counts.bundles;
            counts.bundles_received += 1;
            counts.bytes_received += bytes.len() as u64;
            let Ok(bundle) = Bundle::parse(bytes) else {
                counts.rejected.count("malformed_bundle");
                continue;
            };
            for (channel, datagram) in bundle.entries() {
                self.counts.bundles.datagrams_received += 1;
                self.forward(channel, datagram);
            }
        }
        // Once for all bundles, so that the system call's cost is shared.
        if let Some(sealed) = &mut self.sealed {
            sealed.flush();
        }
    }

    fn forward(&mut self, channel: u32, datagram: &[u8]) {
        let Some(host) = self.hosts.get(&channel) else {
            // The host left while the bundle was in flight.
            self.counts.bundles.rejected.count("unknown_channel");
            return;
        };
        let sealed = match (host.sealed_ns, host.session, &mut self.sealed) {
            // Sealed only after a sealed datagram came: until then the path is not proven.
            (Some(_), Some(session), Some(sealed)) => sealed.send(session, datagram),
            _ => false,
        };
        let sent = sealed
            || host
                .connection
                .send_datagram(Bytes::copy_from_slice(datagram))
                .is_ok();
        if sent {
            self.counts.datagrams_to_hosts += 1;
        } else {
            self.counts.bundles.rejected.count("host_not_reached");
        }
    }

    /// Makes the body of `/status`.
    pub(super) fn status(&self) -> RelayStatus {
        let upstream = self.upstream.as_ref();
        RelayStatus {
            version: env!("CARGO_PKG_VERSION"),
            allocator: upstream.map(|upstream| upstream.address.clone()),
            rtt_us: upstream.map_or(0, |upstream| rtt_us(&upstream.connection)),
            hosts: self
                .hosts
                .values()
                .map(|host| HostStatus {
                    address: host.connection.remote_address(),
                    hot: if host.sealed_ns.is_some() {
                        "udp"
                    } else {
                        "quic"
                    },
                    rtt_us: rtt_us(&host.connection),
                })
                .collect(),
        }
    }
}
