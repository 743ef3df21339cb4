//! The reliable stream: framing, and the messages with their checks.
//!
//! A frame is a varint length and a protobuf `ControlMessage`. The conversion into the types of
//! this module checks every value, so their users can rely on it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;
use prost::Message as _;

use crate::error::SessionError;
use crate::sealed::Cipher;
use crate::telemetry::{SyncTerms, Telemetry};
use crate::wire;

mod convert;
mod frame;
mod shared;

pub use frame::{
    FrameDecoder, MAX_FRAME_BYTES, MAX_HELLO_BYTES, append_frame, encode_frame, frame_of,
};
pub use shared::EncodedTopology;

/// Longest host name, software name, class name or refusal reason.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Shortest lease. A shorter one would expire rates that are under way.
pub const MIN_LEASE_NS: u64 = 10_000_000;

/// Longest lease: as long are sockets paced at their last rates after the allocator was stopped.
pub const MAX_LEASE_NS: u64 = 10_000_000_000;

/// Longest liveness time and acknowledgement delay.
pub const MAX_LIVENESS_NS: u64 = 60_000_000_000;

/// One message of the control stream.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlMessage {
    /// Client → server, first.
    Hello(Hello),
    /// Server → client, the answer.
    Welcome(Welcome),
    /// Server → client: the session is over.
    Refused(Refusal),
    /// Server → client: the topology has changed.
    Topology(TopologySnapshot),
    /// Server → client: the kill switch.
    ReleaseState {
        /// Hosts run plain TCP.
        released: bool,
        /// While released: rates are still to be looked at.
        observe: bool,
        /// Sequence number of the first datagram sent in this state.
        next_seq: u64,
    },
    /// Client → server: a release state was carried out.
    ReleaseAck {
        /// The state.
        released: bool,
        /// Flows that the host still paces.
        paced_flows: u32,
    },
    /// Client → server: measurements.
    Telemetry(Telemetry),
    /// Server → client: hosts have joined or left at run time.
    Members(Members),
}

impl ControlMessage {
    /// Decodes and checks one frame's body.
    pub fn decode(body: &[u8]) -> Result<Self, SessionError> {
        // Hosts measure a hundred times a second and do little else on the stream.
        if let Some(telemetry) = Telemetry::decode_body(body) {
            telemetry.validate()?;
            return Ok(Self::Telemetry(telemetry));
        }
        let message = wire::ControlMessage::decode(body)
            .map_err(|error| SessionError::Decode(error.to_string()))?;
        message
            .body
            // protobuf drops unknown fields, so a message of a later version arrives without a
            // body.
            .ok_or_else(|| SessionError::Decode("empty, or of an unknown kind".to_owned()))?
            .try_into()
    }

    /// Encodes the message as one frame, length included.
    pub fn to_frame(&self) -> Result<Vec<u8>, SessionError> {
        encode_frame(&wire::ControlMessage {
            body: Some(self.into()),
        })
    }
}

/// A client's introduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version.
    pub version: u32,
    /// Name of the host in the topology.
    pub host_name: String,
    /// Grows with every start of the daemon on the host.
    pub incarnation: u64,
    /// Grows with every connection of one incarnation.
    pub attempt: u64,
    /// Name and version of the client's software.
    pub software: String,
    /// Slots of the client's flow table.
    pub max_flows: u32,
    /// Longest delay of the client's acknowledgements.
    pub ack_delay_ns: u64,
    /// Sequence number of the client's first datagram.
    pub first_seq: u32,
    /// The client can send sealed datagrams over UDP.
    pub sealed_udp: bool,
    /// The hosts that the client knows from an earlier session.
    pub known_hosts: Option<HostsDigest>,
    /// The client takes [`Members`].
    pub members: bool,
}

/// Answer to an accepted client.
#[derive(Debug, Clone, PartialEq)]
pub struct Welcome {
    /// Incarnation of the allocator.
    pub epoch: u64,
    /// The session's number, in every datagram's header.
    pub session: u32,
    /// The client's host in the topology.
    pub host_id: u32,
    /// Lifetime of an allocation.
    pub lease_ns: u64,
    /// Liveness time-out, after which either side gives the session up.
    pub liveness_ns: u64,
    /// Slots of the server's flow table for this session.
    pub max_flows: u32,
    /// Longest delay of the server's acknowledgements.
    pub ack_delay_ns: u64,
    /// Sequence number of the server's first datagram.
    pub first_seq: u32,
    /// The kill switch is on.
    pub released: bool,
    /// While released: rates are still to be looked at.
    pub observe: bool,
    /// Relative rate change below which the allocator sends no update.
    pub threshold: f64,
    /// The hosts and how flows are hashed onto paths.
    pub topology: TopologySnapshot,
    /// The flow classes that policies may name.
    pub classes: Vec<ClassInfo>,
    /// Address and cipher of sealed datagrams, if the server takes them.
    pub sealed_udp: Option<SealedUdp>,
    /// Interval at which the client sends [`Telemetry`]; 0 if the
    /// server takes none.
    pub telemetry_interval_ns: u64,
    /// Terms on which the client may tell telemetry as a state; `None`: it repeats everything in
    /// every interval.
    pub telemetry_sync: Option<SyncTerms>,
    /// Capacities of the host's own links.
    pub access: AccessCapacity,
}

/// Capacities of a host's own links, in bit/s; 0: not told. A session begins with them, and another
/// topology brings them anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessCapacity {
    /// From the host to its rack's switch.
    pub uplink_bps: u64,
    /// From the switch to the host.
    pub downlink_bps: u64,
    /// All that the link from the host carries, framing included, as a device tells its speed,
    pub uplink_line_rate_bps: u64,
    /// and the link to it.
    pub downlink_line_rate_bps: u64,
}

impl AccessCapacity {
    /// Makes the capacities of links whose line rates are not told.
    #[must_use]
    pub const fn new(uplink_bps: u64, downlink_bps: u64) -> Self {
        Self {
            uplink_bps,
            downlink_bps,
            uplink_line_rate_bps: 0,
            downlink_line_rate_bps: 0,
        }
    }

    /// Adds the line rates of the links from the host and to it.
    #[must_use]
    pub const fn with_line_rates(self, uplink_bps: u64, downlink_bps: u64) -> Self {
        Self {
            uplink_line_rate_bps: uplink_bps,
            downlink_line_rate_bps: downlink_bps,
            ..self
        }
    }
}

/// Address and cipher of a session's sealed datagrams at the server; see [`crate::sealed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedUdp {
    /// The UDP port.
    pub port: u16,
    /// Address, if it differs from the QUIC session's. A server whose sealed datagrams bypass its
    /// kernel has a network interface of its own for them.
    pub address: Option<Ipv4Addr>,
    /// The AEAD.
    pub cipher: Cipher,
}

/// A flow class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassInfo {
    /// The id in start records, 0 to 127.
    pub id: u8,
    /// The name in policies.
    pub name: String,
}

/// The part of the topology that an endpoint needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologySnapshot {
    /// Raised by every change.
    pub version: u32,
    /// Seed of the fabric's ECMP hash.
    pub ecmp_seed: u32,
    /// Both directions of a connection hash alike.
    pub ecmp_symmetric: bool,
    /// All hosts; empty if they are `known`.
    pub hosts: Arc<[HostInfo]>,
    /// Digest by which the server names these hosts.
    pub digest: Option<HostsDigest>,
    /// The message omits the hosts, since the client knows those of this digest. The session adds
    /// them.
    pub known: bool,
    /// Capacities of the client's own links; `None`: as it was told before. In a Welcome they are
    /// [`Welcome::access`].
    pub access: Option<AccessCapacity>,
}

/// Digest of a topology's hosts. A client that lost its session, for example to a restart of the
/// allocator, reports the hosts that it knows and does not receive them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostsDigest(pub [u8; HOSTS_DIGEST_BYTES]);

/// Bytes of a [`HostsDigest`].
pub const HOSTS_DIGEST_BYTES: usize = 32;

/// Change of the hosts that joined at run time, which no [`TopologySnapshot`] has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// All that the client was told of before are forgotten first.
    pub replaces: bool,
    /// Hosts that have joined, or whose prefixes have changed.
    pub joined: Vec<HostInfo>,
    /// Ids of hosts that have left.
    pub left: Vec<u32>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostInfo {
    /// The id in start records.
    pub id: u32,
    /// The name.
    pub name: String,
    /// The addresses that belong to it.
    pub prefixes: Vec<IpNet>,
}

impl TopologySnapshot {
    /// The host whose prefix holds `addr`, by longest match.
    pub fn host_by_addr(&self, addr: IpAddr) -> Option<&HostInfo> {
        self.hosts
            .iter()
            .flat_map(|host| host.prefixes.iter().map(move |prefix| (prefix, host)))
            .filter(|(prefix, _)| prefix.contains(&addr))
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map(|(_, host)| host)
    }
}

/// Reason for refusing or ending a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// The peers speak different protocol versions.
    VersionMismatch,
    /// The topology has no host of that name.
    UnknownHost,
    /// Another session of the same host is alive.
    DuplicateHost,
    /// The certificate is another host's.
    CertificateMismatch,
    /// The allocator is shutting down.
    Draining,
    /// The allocator's limit of sessions is reached.
    TableFull,
    /// A newer session of the same host has taken over.
    Superseded,
    /// The peer broke the protocol.
    ProtocolError,
    /// The operator denies the host, or its certificate, a session.
    NotAllowed,
    /// A code that this version does not know.
    Unknown(i32),
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind.
    pub code: RefusalCode,
    /// Explanation for people.
    pub reason: String,
    /// Another attempt may succeed without an operator's action.
    pub retry: bool,
}
