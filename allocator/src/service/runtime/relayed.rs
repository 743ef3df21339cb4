//! Connections of relays, each of which carries many hosts' sessions ([`ratewright_proto::relay`]).
//!
//! A stream of a relay's connection is to a session what a host's own connection is. The datagrams
//! for all hosts of a relay that are built in one turn of the service leave in as few bundles as
//! hold them. No datagram waits for a bundle to fill.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use ratewright_proto::control::FrameDecoder;
use ratewright_proto::relay::{Attach, Bundle, Bundler};
use rustc_hash::FxBuildHasher;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use tokio::task::JoinSet;

use super::connection::{Datagrams, lost, serve_streams};
use super::core_handle::CoreHandle;
use super::service_core::{Route, ServiceCore};
use crate::service::config::RelayIdentity;
use crate::service::status::RelayCounts;
use crate::service::tls::PeerCertificate;

/// Maximum time from a stream's beginning to its Attach, which names the host.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum of bytes per read of an [`Attach`], which may hold a long certificate chain.
const ATTACH_CHUNK_BYTES: usize = 4 * 1024;

/// Connection of a relay.
struct Relay {
    connection: Connection,
    identity: RelayIdentity,
    /// Session of each channel.
    sessions: IndexMap<u32, u32, FxBuildHasher>,
    bundler: Bundler,
}

/// Connections of all relays, and what is asked of their hosts.
#[derive(Default)]
pub(super) struct Relays {
    /// Verifier of the certificates of relays' hosts.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Maximum number of hosts of a relay.
    max_hosts: u32,
    relays: IndexMap<u32, Relay, FxBuildHasher>,
    last: u32,
    /// Relays with a bundle that is not sent yet.
    begun: Vec<u32>,
}

/// Returns the next number after `last` that is not in use. Numbers come round after 2^32
/// connections, and a connection may stand for as long.
fn number_after(last: u32, in_use: impl Fn(u32) -> bool) -> u32 {
    let mut number = last.wrapping_add(1);
    while in_use(number) {
        number = number.wrapping_add(1);
    }
    number
}

impl Relays {
    /// Sets the verifier for certificates of relays' hosts, and the maximum number of hosts of a
    /// relay.
    pub(super) fn accept(&mut self, verifier: Arc<dyn ClientCertVerifier>, max_hosts: u32) {
        self.verifier = Some(verifier);
        self.max_hosts = max_hosts;
    }

    fn add(&mut self, connection: &Connection, identity: RelayIdentity) -> u32 {
        self.last = number_after(self.last, |number| self.relays.contains_key(&number));
        let relay = Relay {
            connection: connection.clone(),
            identity,
            sessions: IndexMap::default(),
            bundler: Bundler::default(),
        };
        self.relays.insert(self.last, relay);
        self.last
    }

    /// Adds a datagram for a host to its relay's bundle, and sends the bundle if it is full.
    pub(super) fn bundle(
        &mut self,
        counts: &mut RelayCounts,
        relay_id: u32,
        channel: u32,
        datagram: &[u8],
    ) {
        let Some(relay) = self.relays.get_mut(&relay_id) else {
            return;
        };
        // The path's MTU may have changed since the last datagram.
        let max_bytes = relay.connection.max_datagram_size().unwrap_or(0);
        if relay.bundler.is_empty() {
            self.begun.push(relay_id);
        }
        match relay.bundler.push(max_bytes, channel, datagram) {
            Ok(full) => {
                counts.datagrams_sent += 1;
                if let Some(bundle) = full {
                    send(&relay.connection, counts, bundle);
                }
            }
            // The path's MTU has shrunk below what any path has, or the connection is closing.
            Err(_) => counts.rejected.count("too_large_to_send"),
        }
    }

    /// Sends all bundles that wait.
    pub(super) fn flush(&mut self, counts: &mut RelayCounts) {
        for id in self.begun.drain(..) {
            if let Some(relay) = self.relays.get_mut(&id)
                && let Some(bundle) = relay.bundler.take()
            {
                send(&relay.connection, counts, bundle);
            }
        }
    }

    /// Returns the round-trip time to a relay, and its name.
    pub(super) fn facts(&self, id: u32) -> Option<(Duration, &str)> {
        let relay = self.relays.get(&id)?;
        Some((relay.connection.rtt(), &relay.identity.name))
    }
}

fn send(connection: &Connection, counts: &mut RelayCounts, bundle: Vec<u8>) {
    let bytes = bundle.len() as u64;
    match connection.send_datagram(bundle.into()) {
        Ok(()) => {
            counts.bundles_sent += 1;
            counts.bytes_sent += bytes;
        }
        Err(_) => counts.rejected.count("not_sent"),
    }
}

impl ServiceCore {
    /// Takes the connection of a relay.
    ///
    /// # Errors
    /// The peer is no trusted relay. The text goes into the relay's log as the reason of the close.
    fn open_relay(
        &mut self,
        connection: &Connection,
        certificate: &PeerCertificate,
    ) -> Result<u32, String> {
        match self
            .hub
            .trust()
            .relay(&certificate.names, &certificate.fingerprint)
        {
            Ok(identity) => {
                tracing::info!(relay = identity.name, address = %connection.remote_address(), "relay connected");
                Ok(self.relays.add(connection, identity))
            }
            Err(distrust) => {
                let counts = self.hub.counts_mut();
                counts.connections_rejected.count("no_relay");
                tracing::warn!(%distrust, address = %connection.remote_address(), "relay refused");
                Err(distrust.to_string())
            }
        }
    }

    /// Opens a session for the host of a channel; `None` if the limit is reached or the relay is
    /// gone.
    fn attach(
        &mut self,
        now_ns: u64,
        relay_id: u32,
        channel: u32,
        address: SocketAddr,
        certificate: PeerCertificate,
    ) -> Option<(u32, Arc<tokio::sync::Notify>)> {
        let identity = self.relays.relays.get(&relay_id)?.identity.clone();
        let route = Route::Relay {
            relay: relay_id,
            channel,
            address,
        };
        let opened = self.open_through(now_ns, route, certificate, Some(identity))?;
        let relay = self.relays.relays.get_mut(&relay_id)?;
        relay.sessions.insert(channel, opened.0);
        Some(opened)
    }

    /// Closes the session of a channel whose stream is over.
    fn detach(
        &mut self,
        now_ns: u64,
        relay_id: u32,
        channel: u32,
        session: u32,
        reason: &'static str,
    ) {
        if let Some(relay) = self.relays.relays.get_mut(&relay_id) {
            relay.sessions.swap_remove(&channel);
        }
        self.close(now_ns, session, reason);
    }

    /// Removes a relay whose connection is over, and closes all its sessions.
    fn close_relay(&mut self, now_ns: u64, relay_id: u32, reason: &'static str) {
        let Some(relay) = self.relays.relays.swap_remove(&relay_id) else {
            return;
        };
        // Their hosts may be well, but no datagram reaches them any more; they connect again
        // elsewhere.
        for session in relay.sessions.into_values() {
            self.close(now_ns, session, "relay_lost");
        }
        tracing::warn!(relay = relay.identity.name, reason, "relay gone");
    }

    /// Takes a bundle of a relay.
    fn on_bundle(&mut self, now_ns: u64, relay_id: u32, bytes: &[u8]) {
        let Some(relay) = self.relays.relays.get(&relay_id) else {
            return;
        };
        let counts = &mut self.hub.counts_mut().relay;
        counts.bundles_received += 1;
        counts.bytes_received += bytes.len() as u64;
        let Ok(bundle) = Bundle::parse(bytes) else {
            counts.rejected.count("malformed_bundle");
            return;
        };
        for (channel, datagram) in bundle.entries() {
            match relay.sessions.get(&channel) {
                Some(&session) => {
                    self.hub.counts_mut().relay.datagrams_received += 1;
                    self.hub.on_datagram(now_ns, session, datagram);
                }
                // The channel has no host, or one whose session is over.
                None => self
                    .hub
                    .counts_mut()
                    .relay
                    .rejected
                    .count("unknown_channel"),
            }
        }
    }

    /// Closes the connections of relays that are no longer trusted.
    pub(super) fn close_distrusted_relays(&mut self) {
        for relay in self.relays.relays.values() {
            let RelayIdentity { name, certificate } = &relay.identity;
            let names = std::slice::from_ref(name);
            if let Err(distrust) = self.hub.trust().relay(names, certificate) {
                let reason = distrust.to_string();
                relay
                    .connection
                    .close(VarInt::from_u32(1), reason.as_bytes());
            }
        }
    }

    /// True if a relay's connection has no more use: the service stops and its last host is gone.
    fn relay_may_go(&self, relay_id: u32) -> bool {
        let relay = self.relays.relays.get(&relay_id);
        self.is_draining() && relay.is_none_or(|relay| relay.sessions.is_empty())
    }
}

/// Serves a relay's connection to its end.
pub(super) async fn serve(core: CoreHandle, connection: Connection, certificate: PeerCertificate) {
    let opened = connection.clone();
    let opened = core.call(move |core, _| {
        let id = core.open_relay(&opened, &certificate)?;
        Ok::<_, String>((id, core.relays.max_hosts))
    });
    let (relay_id, max_streams) = match opened.await {
        Ok(opened) => opened,
        Err(reason) => return connection.close(VarInt::from_u32(1), reason.as_bytes()),
    };
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(max_streams));
    let reason = tokio::select! {
        reason = take_bundles(&core, relay_id, &connection) => reason,
        reason = take_streams(&core, relay_id, &connection) => reason,
    };
    connection.close(VarInt::from_u32(0), reason.as_bytes());
    core.call(move |core, now_ns| core.close_relay(now_ns, relay_id, reason))
        .await;
}

async fn take_bundles(core: &CoreHandle, relay_id: u32, connection: &Connection) -> &'static str {
    loop {
        let mut batch = Datagrams::default();
        if let Err(error) = batch.read(connection).await {
            return lost(&error);
        }
        let take = core.call(move |core, now_ns| {
            for bundle in batch.iter() {
                core.on_bundle(now_ns, relay_id, bundle);
            }
        });
        take.await;
    }
}

async fn take_streams(core: &CoreHandle, relay_id: u32, connection: &Connection) -> &'static str {
    // Aborted with the connection's task.
    let mut hosts = JoinSet::new();
    loop {
        tokio::select! {
            stream = connection.accept_bi() => match stream {
                Ok((send, receive)) => {
                    hosts.spawn_local(serve_host(core.clone(), relay_id, send, receive));
                }
                Err(error) => return lost(&error),
            },
            Some(ended) = hosts.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    // A panic must reach the service, which ends by it, and not only this host.
                    std::panic::resume_unwind(error.into_panic());
                }
                if core.call(move |core, _| core.relay_may_go(relay_id)).await {
                    return "draining";
                }
            }
        }
    }
}

/// Serves one host's stream to its end.
async fn serve_host(
    core: CoreHandle,
    relay_id: u32,
    mut send: SendStream,
    mut receive: RecvStream,
) {
    let attached = async {
        let mut decoder = FrameDecoder::new();
        let attach = tokio::time::timeout(ATTACH_TIMEOUT, read_attach(&mut receive, &mut decoder))
            .await
            .map_err(|_| "no_attach")??;
        // The relay only forwards the certificate: the allocator verifies it itself.
        let verifier = core.call(|core, _| core.relays.verifier.clone()).await;
        let certificate = verifier
            .and_then(|verifier| verified(&*verifier, &attach))
            .ok_or("bad_certificate")?;
        // Only a relay that had opened 2^32 streams would get here.
        let channel = u32::try_from(receive.id().index()).map_err(|_| "too_many_streams")?;
        let address = attach.address;
        let attached = core
            .call(move |core, now_ns| core.attach(now_ns, relay_id, channel, address, certificate));
        let (id, outbox_ready) = attached.await.ok_or("no_room")?;
        Ok::<_, &'static str>((decoder, channel, id, outbox_ready))
    };
    let (decoder, channel, id, outbox_ready) = match attached.await {
        Ok(attached) => attached,
        Err(reason) => {
            core.call(move |core, _| core.hub.counts_mut().relay.rejected.count(reason))
                .await;
            // The relay sees only that its host's stream is over.
            let _ = send.reset(VarInt::from_u32(1));
            return;
        }
    };
    let control = (send, receive, decoder);
    let reason = serve_streams(&core, id, control, None, &outbox_ready).await;
    core.call(move |core, now_ns| core.detach(now_ns, relay_id, channel, id, reason))
        .await;
}

async fn read_attach(
    receive: &mut RecvStream,
    decoder: &mut FrameDecoder,
) -> Result<Attach, &'static str> {
    let mut read = 0;
    loop {
        match decoder.next_frame() {
            Ok(Some(body)) => return Attach::decode(body).map_err(|_| "malformed_attach"),
            Ok(None) if read > ratewright_proto::relay::MAX_ATTACH_BYTES => {
                return Err("malformed_attach");
            }
            Ok(None) => {}
            Err(_) => return Err("malformed_attach"),
        }
        match receive.read_chunk(ATTACH_CHUNK_BYTES, true).await {
            Ok(Some(chunk)) => {
                read += chunk.bytes.len();
                decoder.push(&chunk.bytes);
            }
            Ok(None) | Err(_) => return Err("no_attach"),
        }
    }
}

/// Returns the certificate of a host, if it would be valid on a connection of its own.
fn verified(verifier: &dyn ClientCertVerifier, attach: &Attach) -> Option<PeerCertificate> {
    let certificate = CertificateDer::from(attach.certificate.as_slice());
    let between: Vec<_> = attach
        .intermediates
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    verifier
        .verify_client_cert(&certificate, &between, UnixTime::now())
        .ok()?;
    Some(PeerCertificate::of(&certificate))
}

#[cfg(test)]
mod tests {
    use super::number_after;

    #[test]
    fn numbers_come_round_and_pass_over_those_in_use() {
        assert_eq!(number_after(7, |_| false), 8);
        assert_eq!(number_after(u32::MAX, |_| false), 0);
        assert_eq!(number_after(u32::MAX - 1, |number| number != 2), 2);
    }
}
