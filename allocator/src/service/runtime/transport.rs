//! QUIC endpoint and its settings.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};

use ratewright_io::dscp::Dscp;
use ratewright_io::quic;
use ratewright_io::udp::widen_buffers;
use ratewright_proto::control::MAX_HELLO_BYTES;

use super::window::ControlWindowConfig;

/// Ack-eliciting bytes in flight on one connection. A host's whole flow table fits several times.
const WINDOW_BYTES: u64 = 8 << 20;

/// Bytes of datagrams that wait for a slow reader or sender. Beyond it the oldest are dropped,
/// which the protocol repairs with newer state.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Round-trip time before the first measurement. Datacenter round trips are far below; this covers
/// the handshake's cryptography on a busy core.
const INITIAL_RTT: Duration = Duration::from_millis(20);

/// Idle time-out of a connection. The session's own liveness time-out is shorter.
const IDLE_TIMEOUT_MS: u32 = 12_000;

/// Keep-alive interval, for connections whose session uses sealed datagrams or is idle.
const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// Maximum of connection attempts that wait for their turn or have not been read yet.
const MAX_INCOMING: usize = 16_384;

/// Bytes that an attempt may hold beyond its first packet: one retransmission.
const INCOMING_BUFFER_BYTES: u64 = 2 << 10;

/// Bytes of control streams that a peer may send before its Hello is accepted.
const PRE_HELLO_WINDOW_BYTES: u32 = MAX_HELLO_BYTES as u32 + 16;

/// Bytes of control streams in flight once the Hello is accepted.
pub(in crate::service) const SESSION_WINDOW_BYTES: u32 = 4 << 20;

/// Lifetime of a proof of address. Hosts return it at once.
const RETRY_TOKEN_LIFETIME: Duration = Duration::from_secs(5);

/// Returns the settings of every connection.
pub fn transport_config() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(INITIAL_RTT)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
        .congestion_controller_factory(Arc::new(ControlWindowConfig {
            window_bytes: WINDOW_BYTES,
        }));
    transport
}

/// Returns the settings with which the endpoint serves new connections.
pub fn server_config(tls: Arc<QuicServerConfig>) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(tls);
    let mut transport = transport_config();
    transport.receive_window(VarInt::from_u32(PRE_HELLO_WINDOW_BYTES));
    config
        .transport_config(Arc::new(transport))
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BUFFER_BYTES * MAX_INCOMING as u64)
        .retry_token_lifetime(RETRY_TOKEN_LIFETIME);
    config
}

/// Binds the endpoint, whose datagrams are marked with `dscp`. Must be called on the service
/// thread's runtime.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(
    listen: SocketAddr,
    tls: Arc<QuicServerConfig>,
    dscp: Dscp,
) -> std::io::Result<quinn::Endpoint> {
    let socket = UdpSocket::bind(listen)?;
    // After a restart all hosts connect at once, and each gets the whole topology.
    widen_buffers(&socket);
    let server = Some(server_config(tls));
    quic::endpoint(socket, EndpointConfig::default(), server, dscp)
}
