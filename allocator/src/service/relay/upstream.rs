//! The connection to the allocator.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, IdleTimeout, VarInt};
use ratewright_io::dscp::Dscp;
use ratewright_io::quic::client::QuicClient;
use ratewright_io::quic::named::{self, AttemptSettings, NamedConnectError, RemoteName};
use ratewright_io::tls::{TlsError, client_from_files};
use ratewright_proto::relay;

use super::state::RelayHandle;
use crate::service::config::TlsFiles;
use crate::service::runtime::connection::Datagrams;
use crate::service::runtime::transport::transport_config;
use crate::service::tls::SERVER_NAME;

/// First and longest pause between rounds of attempts, while no allocator answers.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for an address's answer, and for the handshake after it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Idle time-out after which the relay gives an allocator up, in milliseconds; the hosts connect
/// elsewhere.
const IDLE_TIMEOUT_MS: u32 = 1_500;

/// Interval of keep-alives, for a connection whose hosts send nothing.
const KEEP_ALIVE: Duration = Duration::from_millis(300);

/// Makes the QUIC configuration towards the allocator, from the relay's certificate.
pub(super) fn client_config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let tls = client_from_files(&files.ca, &files.cert, &files.key, relay::ALPN)?;
    let quic = QuicClientConfig::try_from(tls).map_err(TlsError::unusable(&files.cert))?;
    let mut transport = transport_config();
    transport
        // Only the relay opens streams, one per host.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE))
        // Large bundles must pass from the first packet on: discovery would begin at 1,200 bytes.
        .initial_mtu(relay::RELAY_MTU_BYTES)
        .min_mtu(relay::RELAY_MTU_BYTES);
    let mut config = ClientConfig::new(Arc::new(quic));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Keeps a connection to one of the allocators while the task runs.
pub(super) async fn keep(
    shared: RelayHandle,
    allocators: Vec<String>,
    client: tokio::sync::watch::Receiver<ClientConfig>,
    dscp: Dscp,
) {
    let allocators: Vec<RemoteName> = allocators
        .iter()
        .map(|name| RemoteName::new(name))
        .collect();
    let mut pause = FIRST_PAUSE;
    let mut is_logged = false;
    loop {
        for name in &allocators {
            let address = name.as_str();
            let config = client.borrow().clone();
            let error = match connect(name, config, dscp).await {
                Ok(connection) => {
                    tracing::info!(allocator = address, "connected to the allocator");
                    pause = FIRST_PAUSE;
                    is_logged = false;
                    shared.lock().connected(&connection, address);
                    let reason = carry(&shared, &connection).await;
                    // Before the next attempt, so that no host stays with sessions that are gone.
                    shared.lock().disconnected();
                    tracing::warn!(allocator = address, reason, "the allocator is lost");
                    continue;
                }
                Err(error) => error.to_string(),
            };
            // One warning per outage: attempts go on every second.
            if is_logged {
                tracing::debug!(allocator = address, error, "no connection to the allocator");
            } else {
                tracing::warn!(
                    allocator = address,
                    error,
                    "no connection to the allocator; hosts are turned away, trying again"
                );
            }
        }
        is_logged = true;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Connects from a socket of its own: a relay has one connection at a time.
async fn connect(
    name: &RemoteName,
    client: ClientConfig,
    dscp: Dscp,
) -> Result<Connection, NamedConnectError> {
    let settings = AttemptSettings {
        client,
        server_name: SERVER_NAME,
        patience: HANDSHAKE_TIMEOUT,
        queue_patience: HANDSHAKE_TIMEOUT,
    };
    let socket = |ipv6: bool| {
        let any: IpAddr = if ipv6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        QuicClient::bind((any, 0).into(), dscp).map_err(|error| error.to_string())
    };
    named::connect(name, &settings, socket).await
}

/// Carries datagrams until the connection is lost; returns the reason.
async fn carry(shared: &RelayHandle, connection: &Connection) -> String {
    tokio::select! {
        error = from_allocator(shared, connection) => error,
        never = to_allocator(shared) => match never {},
    }
}

async fn from_allocator(shared: &RelayHandle, connection: &Connection) -> String {
    let mut batch = Datagrams::default();
    loop {
        if let Err(error) = batch.read(connection).await {
            return error.to_string();
        }
        shared.lock().take_bundles(batch.iter());
    }
}

/// Sends each bundle after all tasks have run that were ready when it was opened, with all
/// datagrams that arrived by then.
async fn to_allocator(shared: &RelayHandle) -> std::convert::Infallible {
    let bundle_opened = shared.lock().bundle_opened();
    loop {
        bundle_opened.notified().await;
        // One turn of the scheduler gathers a bundle without a timer.
        tokio::task::yield_now().await;
        shared.lock().flush_bundle();
    }
}
