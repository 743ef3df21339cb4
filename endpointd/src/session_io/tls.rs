//! Certificates and the QUIC client's configuration.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionId, IdleTimeout, TransportConfig, VarInt};
use ratewright_io::random;
use ratewright_io::tls::{TlsError, check_name, client_from_files, read_certificates};
use ratewright_proto::handshake_timeout::{self, RANDOM_BYTES};

use crate::config::{SessionConfig, TlsConfig};

/// Bytes of datagrams that wait to be sent or read. Beyond, QUIC drops the oldest, and the protocol
/// repeats what still matters.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Transit time of an answer that leaves at the end of the wait.
const WAY_MS: u64 = 1_000;

/// Checks that the certificate carries the host's name, without which the allocator refuses it.
///
/// # Errors
/// When it does not, or cannot be read.
pub fn check_host_name(tls: &TlsConfig, host: &str) -> Result<(), TlsError> {
    let expected = format!("the allocator expects the DNS name {host:?} (the key `host`)");
    check_name(&tls.cert, &read_certificates(&tls.cert)?, host, &expected)
}

/// Reads the certificates and builds the client's side of TLS 1.3 with both sides authenticated.
///
/// # Errors
/// When a file is missing, unreadable or does not fit the others.
pub fn client_config(tls: &TlsConfig) -> Result<Arc<QuicClientConfig>, TlsError> {
    let config = client_from_files(&tls.ca, &tls.cert, &tls.key, ratewright_proto::ALPN)?;
    let crypto = QuicClientConfig::try_from(config).map_err(TlsError::unusable(&tls.cert))?;
    Ok(Arc::new(crypto))
}

/// Builds the settings of one attempt to connect. The longer it waits for an answer, the more
/// rarely it repeats its packets. It announces how long it waits after a first answer.
#[must_use]
pub fn attempt(
    crypto: &Arc<QuicClientConfig>,
    session: &SessionConfig,
    patience: Duration,
    queue_patience: Duration,
) -> ClientConfig {
    let mut transport = TransportConfig::default();
    // The protocol keeps the session alive a few times per lease, but not this connection while
    // sealed datagrams carry the session. While the host waits for its turn, nothing arrives
    // either.
    let waits_ms = u64::try_from(queue_patience.as_millis()).unwrap_or(u64::MAX);
    let idle_ms = session.idle_timeout_ms.max(waits_ms.saturating_add(WAY_MS));
    let idle = u32::try_from(idle_ms).unwrap_or(u32::MAX);
    let first = Duration::from_millis(session.handshake_timeout_ms);
    // QUIC repeats a lost packet after a few initial round trips (RFC 9002, §6.2). Scaled with the
    // wait, every attempt sends equally few packets.
    let slower = patience.div_duration_f64(first).max(1.0);
    transport
        .initial_rtt(Duration::from_micros(session.initial_rtt_us).mul_f64(slower))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(Duration::from_millis(session.idle_timeout_ms / 3)))
        // The allocator opens no streams: this side opens the one control stream.
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
    let mut config = ClientConfig::new(Arc::clone(crypto) as Arc<dyn quinn::crypto::ClientConfig>);
    config.transport_config(Arc::new(transport));
    say_patience(&mut config, queue_patience);
    config
}

/// Makes a connection's first packet announce its handshake time-out: the destination connection ID
/// carries it.
pub fn say_patience(config: &mut ClientConfig, patience: Duration) {
    let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    config.initial_dst_cid_provider(Arc::new(move || {
        let random = random::bytes::<RANDOM_BYTES>();
        ConnectionId::new(&handshake_timeout::connection_id(random, patience_ns))
    }));
}
