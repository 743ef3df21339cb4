//! Ratewright's control protocol: hot-path records, control messages and the
//! sans-IO session state machines of both ends (flowtune §5.1, §6).
//!
//! # Map
//!
//! | module | what is in it |
//! |---|---|
//! | [`client`] | [`ClientSession`](client::ClientSession), the endpoint daemon's end, and its [events](client::ClientEvent) |
//! | [`server`] | [`ServerSession`](server::ServerSession), the allocator's end, one per connection, and its [events](server::ServerEvent) |
//! | [`server::registry`] | the one session of each host, and its succession |
//! | [`records`] | the fixed records: [`StartRecord`] 16 B, [`EndRecord`] 4 B, [`RateRecord`] 6 B, and [`FlowId`] |
//! | [`codes`] | [`RateCode`] (16 bits, rounds down) and [`WeightCode`] (8 bits) |
//! | [`datagram`] | the datagram's header and the check of its layout |
//! | [`sealed`] | datagrams sealed by keys of the session, for transports other than QUIC |
//! | [`path`] | choice of a client's datagram path: sealed UDP or QUIC |
//! | [`handshake_timeout`] | the time for which a client waits for its handshake, carried by its first packet |
//! | [`relay`] | many hosts' sessions over one connection, between a relay and the allocator |
//! | [`control`] | messages of the reliable stream and their framing |
//! | [`wire`] | generated protobuf messages, below [`control`], [`telemetry`] and [`relay`] |
//! | [`telemetry`] | measurements for the allocator's feeds |
//! | [`sequence`], [`recovery`] | sequence numbers, acknowledgements, loss detection |
//! | [`error`], [`counters`] | reasons for refusals and drops, and their counts |
//!
//! # State synchronisation
//!
//! No code here reads a clock, opens a socket or starts a thread: every method
//! takes `now_ns`, nanoseconds of the caller's monotonic clock. A session runs
//! over one reliable stream (control frames) and an unreliable datagram path.
//!
//! Each end holds the **newest state** of each flow and the state that the peer
//! is known to hold. When a datagram is lost, the session checks the slots of
//! its records again. It sends a slot's newest state only if that differs from
//! the state that the peer acknowledged. Each slot remembers the datagram that
//! its state came from, so an older one that arrives late changes nothing. Once
//! the network is quiet, both ends hold equal flows and rates.
//!
//! **Lifetimes** need no synchronised clocks: see [`Header::ack`]. A server's
//! datagram names the newest client datagram that the server had received. Its
//! contents hold for one lease after the client sent that one.
//!
//! Every table, queue and message has a bound. At the bound, the session
//! refuses with a typed error or counts a drop.
//!
//! # Driving a session
//!
//! After every call that hands something in, and after every timeout:
//! `poll_control` until `None`, `poll_datagram` until `false`, `poll_event`
//! until `None`; then wait until `next_timeout` and call `on_timeout`. A start
//! or a rate is in the very next datagram; only bare acknowledgements are
//! delayed: not at all for a keep-alive, by [`prompt_ack_delay_ns`] for a start
//! and for a flow's first rate, by `ack_delay_ns` for all else.
//!
//! [`Header::ack`]: datagram::Header::ack
//! [`prompt_ack_delay_ns`]: datagram::prompt_ack_delay_ns

pub mod client;
pub mod codes;
pub mod control;
pub mod counters;
pub mod datagram;
pub mod error;
pub mod handshake_timeout;
mod packet_space;
pub mod path;
mod queue;
pub mod records;
pub mod recovery;
pub mod relay;
pub mod sealed;
pub mod sequence;
pub mod server;
pub mod telemetry;
pub mod wire;

pub use codes::{RateCode, WeightCode};
pub use counters::Counters;
pub use error::{DatagramError, SessionError};
pub use records::{EndRecord, FlowId, FlowPath, RateRecord, StartRecord};

/// The protocol's version: the first byte of every datagram and a field of
/// Hello and Welcome. Peers of different versions refuse each other.
pub const VERSION: u8 = 2;

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"ratewright/2";
