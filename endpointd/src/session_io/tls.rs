//! Certificates and the QUIC client's configuration.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, IdleTimeout, TransportConfig, VarInt};
use ratewright_common::tls::{TlsError, check_name, client_from_files, read_certificates};

use crate::config::{SessionConfig, TlsConfig};

/// Datagrams that wait to be sent or read; older ones are dropped beyond it, and sent anew by the
/// protocol as far as they still matter.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Whether the certificate carries the host's name, without which the allocator refuses it.
///
/// # Errors
/// When it does not, or cannot be read.
pub fn check_host_name(tls: &TlsConfig, host: &str) -> Result<(), TlsError> {
    let expected = format!("the allocator expects the DNS name {host:?} (the key `host`)");
    check_name(&tls.cert, &read_certificates(&tls.cert)?, host, &expected)
}

/// Reads the certificates and builds the client's configuration: TLS 1.3 with both sides
/// authenticated, timers for a network of a few hundred microseconds.
///
/// # Errors
/// When a file is missing, unreadable or does not fit the others.
pub fn client_config(tls: &TlsConfig, session: &SessionConfig) -> Result<ClientConfig, TlsError> {
    let config = client_from_files(&tls.ca, &tls.cert, &tls.key, ratewright_proto::ALPN)?;
    let crypto = QuicClientConfig::try_from(config).map_err(TlsError::unusable(&tls.cert))?;

    let mut transport = TransportConfig::default();
    // The protocol keeps the session alive itself, a few times per lease, but not this connection while
    // sealed datagrams carry it.
    let idle = u32::try_from(session.idle_timeout_ms).unwrap_or(u32::MAX);
    transport
        .initial_rtt(Duration::from_micros(session.initial_rtt_us))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(Duration::from_millis(session.idle_timeout_ms / 3)))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}
