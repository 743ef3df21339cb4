//! Settings of a client's session, and the hosts that it remembers.

use std::sync::Arc;

use ipnet::IpNet;

use crate::control::{HostInfo, HostsDigest};

/// A client's settings.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The host's name in the topology and in the certificate.
    pub host_name: String,
    /// Number that grows with every start of the daemon on this host, such as the wall-clock time
    /// of the start.
    pub incarnation: u64,
    /// Name and version of the daemon, for status pages.
    pub software: String,
    /// Slots of the flow table; flows have the slots `0..max_flows`.
    pub max_flows: u32,
    /// Longest delay of an acknowledgement.
    pub ack_delay_ns: u64,
    /// Floor of the retransmission timeout.
    pub min_rto_ns: u64,
    /// Retransmission timeout before the first round trip is measured.
    pub initial_rto_ns: u64,
    /// Ceiling of the retransmission timeout, back-off included.
    pub max_rto_ns: u64,
    /// Ack-eliciting datagrams in flight at most.
    pub max_in_flight: usize,
    /// Time from `connected` to the server's Welcome at most.
    pub handshake_timeout_ns: u64,
    /// Bytes of control messages that may wait to be written.
    pub max_control_bytes: usize,
    /// Sequence number of each session's first datagram, at least 1.
    pub first_seq: u32,
    /// The transport can send sealed datagrams over UDP.
    pub sealed_udp: bool,
    /// Prefixes that the host claims, beside those that the topology file gives it; at most 64.
    pub prefixes: Vec<IpNet>,
    /// Rack in which the host stands, if it knows.
    pub rack: Option<String>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            host_name: String::new(),
            incarnation: 0,
            software: concat!("ratewright ", env!("CARGO_PKG_VERSION")).to_owned(),
            max_flows: 16_384,
            ack_delay_ns: 20_000_000,
            min_rto_ns: 2_000_000,
            initial_rto_ns: 20_000_000,
            max_rto_ns: 200_000_000,
            max_in_flight: 256,
            handshake_timeout_ns: 10_000_000_000,
            max_control_bytes: 1 << 20,
            first_seq: 1,
            sealed_udp: false,
            prefixes: Vec::new(),
            rack: None,
        }
    }
}

/// Hosts of a topology, with the digest by which a server names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHosts {
    /// Digest of the hosts.
    pub digest: HostsDigest,
    /// The hosts.
    pub hosts: Arc<[HostInfo]>,
}
