//! Flowtune's control plane: the production's sessions, hub and engine, without a network.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | settings, and the sizes of control frames on the wire |
//! | [`agent`] | one host's end: a [`ClientSession`] and the host's flow ids |
//! | [`allocator`] | the allocator: the service's [`Hub`] and a [`RateEngine`] |
//! | [`link_check`] | findings of its check of told capacities |
//!
//! This module has no packets and no queues: datagrams go in and come out as bytes, and time is an
//! argument. The transport (`transport::flowtune`) drives both ends.
//!
//! Paper: Flowtune (NSDI 2017), §5.1 *Protocol*, §5.3 *Model*.
//!
//! [`ClientSession`]: ratewright_proto::client::ClientSession
//! [`Hub`]: ratewright_allocator::service::hub::Hub
//! [`RateEngine`]: ratewright_allocator::engine::RateEngine

use ratewright_allocator::engine::{EngineConfig, StepRule};
use ratewright_allocator::feeds::FeedsConfig;
use ratewright_allocator::num::utility::ClassTable;

use self::link_check::CheckSettings;
use crate::net::Framing;

pub mod agent;
pub mod allocator;
pub mod link_check;

#[cfg(test)]
mod tests;

/// IPv4 and UDP headers of a control datagram.
const IP_UDP_BYTES: u16 = 20 + 8;
/// Ethernet header and frame check sequence.
const ETHERNET_BYTES: u32 = 14 + 4;
/// The smallest Ethernet frame.
const MIN_FRAME_BYTES: u32 = 64;
/// Preamble, start delimiter and inter-frame gap, which a link spends on every frame.
const PREAMBLE_AND_GAP_BYTES: u32 = 20;
/// The largest control datagram: what an Ethernet MTU of 1,500 bytes leaves behind IPv4 and UDP.
pub const MAX_DATAGRAM_BYTES: usize = (1_500 - IP_UDP_BYTES) as usize;

/// Returns the bytes of the IPv4 packet of a control datagram.
#[must_use]
pub fn datagram_ip_bytes(payload_bytes: usize) -> u16 {
    ip_bytes(IP_UDP_BYTES, payload_bytes)
}

/// Returns the bytes of the IPv4 packet of a control segment, whose headers are those of data and
/// its acknowledgements (flowtune §5.3: "the standard TCP/IP overheads").
#[must_use]
pub fn segment_ip_bytes(payload_bytes: usize) -> u16 {
    ip_bytes(Framing::IP_TCP_BYTES, payload_bytes)
}

fn ip_bytes(header_bytes: u16, payload_bytes: usize) -> u16 {
    let payload_bytes = u16::try_from(payload_bytes).unwrap_or(u16::MAX);
    header_bytes.saturating_add(payload_bytes)
}

/// Returns the bytes of link time that an IPv4 packet takes on Ethernet, with the minimum frame,
/// preamble and gap. A bare rate update costs 84 bytes and more (flowtune §6).
#[must_use]
pub fn ethernet_bytes(ip_bytes: u16) -> u32 {
    (ETHERNET_BYTES + u32::from(ip_bytes)).max(MIN_FRAME_BYTES) + PREAMBLE_AND_GAP_BYTES
}

/// Transport of control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Datagrams, as production endpoints send them; sessions repair a loss with the newest state.
    Datagram,
    /// A TCP connection per host, as in the paper's simulations (flowtune §5.3): bytes arrive in
    /// order, and TCP retransmits lost ones.
    #[default]
    Tcp,
}

/// Engine that computes the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// Double precision, one thread: the same bytes on every machine.
    #[default]
    Reference,
    /// The vector engine on this many blocks of racks, all worked on by the caller's thread.
    Parallel {
        /// Blocks, a power of two.
        blocks: u32,
    },
}

/// Settings of the control plane (flowtune §5.3, *Flowtune allocator* and *control connections*).
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Time between iterations; the paper's 10 µs.
    pub interval_ns: u64,
    /// Time that an iteration takes: rates leave that much after it began. The paper has 8.29 µs
    /// for 384 servers and 30.71 µs for 4,608 (§8); its simulations name none (§5.3).
    pub iteration_ns: u64,
    /// NED's γ; the paper's 0.4.
    pub gamma: f64,
    /// Relative change from which a rate is notified again; the paper's 0.01.
    pub threshold: f64,
    /// Rule of the price update.
    pub step_rule: StepRule,
    /// Share of every link that is kept for traffic that the allocator does not see: flowlets
    /// before their first rate, acknowledgements, control traffic (flowtune §6, *mice and
    /// elephants*).
    pub reserve: f64,
    /// Engine.
    pub engine: EngineChoice,
    /// Utility classes.
    pub classes: ClassTable,
    /// Lifetime of an allocation that the allocator does not renew.
    pub lease_ns: u64,
    /// Liveness time-out of a session.
    pub liveness_ns: u64,
    /// Longest delay of an acknowledgement that has no datagram to travel in.
    pub ack_delay_ns: u64,
    /// Floor of the retransmission timeout; the paper's control TCP has 20 µs.
    pub min_rto_ns: u64,
    /// Retransmission timeout before the first round trip is measured.
    pub initial_rto_ns: u64,
    /// Ceiling of the retransmission timeout.
    pub max_rto_ns: u64,
    /// Slots of each host's flow table.
    pub max_flows_per_host: u32,
    /// Time from the loss of a session to its successor's handshake.
    pub reconnect_ns: u64,
    /// Feeds that the allocator heeds, if any.
    pub feeds: Option<FeedsConfig>,
    /// Check of told capacities, if the allocator has one.
    pub link_check: Option<CheckSettings>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            interval_ns: 10_000,
            iteration_ns: 0,
            gamma: 0.4,
            threshold: 0.01,
            step_rule: StepRule::default(),
            reserve: 0.0,
            engine: EngineChoice::default(),
            classes: ClassTable::default(),
            lease_ns: 300_000_000,
            liveness_ns: 1_500_000_000,
            // The paper's TCP acknowledges every segment. Our acknowledgements are delayed: at
            // these loads rate updates and flowlet notices carry them for free.
            ack_delay_ns: 50_000,
            // RTO = srtt + 4 rttvar + the peer's ack delay; the floor only bounds it from below.
            min_rto_ns: 20_000,
            initial_rto_ns: 200_000,
            // The paper's 30 µs would be below the acknowledgement delay: every datagram would be
            // declared lost. Back-off still ends early, as there.
            max_rto_ns: 1_000_000,
            max_flows_per_host: 1 << 16,
            reconnect_ns: 1_000_000,
            feeds: None,
            link_check: None,
        }
    }
}

impl ControlConfig {
    /// Adapts the sessions to TCP, to which they leave repair and prompt acknowledgement. Their own
    /// acknowledgements only say that a message was processed.
    #[must_use]
    pub fn over_tcp(self) -> Self {
        Self {
            ack_delay_ns: 1_000_000,
            min_rto_ns: 5_000_000,
            initial_rto_ns: 10_000_000,
            max_rto_ns: 50_000_000,
            ..self
        }
    }

    fn engine_config(&self) -> EngineConfig {
        EngineConfig {
            gamma: self.gamma,
            threshold: self.threshold,
            step_rule: self.step_rule,
            mice_reserve: self.reserve,
            max_flows: 1 << 24,
            classes: self.classes.clone(),
            ..EngineConfig::default()
        }
    }
}

/// Reason that a control plane cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The engine refused its settings.
    #[error("the allocator's engine: {0}")]
    Engine(#[from] ratewright_allocator::engine::EngineError),
    /// The topology cannot be cut into blocks for the parallel engine.
    #[error("the parallel engine's blocks: {0}")]
    Partition(#[from] ratewright_topology::PartitionError),
    /// A session refused a message of the handshake.
    #[error("the handshake of host {host}: {reason}")]
    Handshake {
        /// The host.
        host: u32,
        /// Reason of the session.
        reason: String,
    },
}

/// Traffic in one direction: datagrams or TCP segments, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ControlTraffic {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of IPv4 packets, as ns-2 counts.
    pub ip_bytes: u64,
    /// Bytes of link time on Ethernet, by [`ethernet_bytes`].
    pub wire_bytes: u64,
    /// Datagrams without records: bare acknowledgements and keep-alives.
    pub bare_datagrams: u64,
    /// Bytes of the IPv4 packets of the bare ones.
    pub bare_ip_bytes: u64,
}

impl ControlTraffic {
    /// Counts a TCP segment, which is bare if it only acknowledges.
    pub fn count_segment(&mut self, payload_bytes: usize) {
        self.count(segment_ip_bytes(payload_bytes), payload_bytes == 0);
    }

    /// Counts a message of the control stream that travels by itself.
    pub fn count_message(&mut self, payload: &[u8]) {
        self.count(datagram_ip_bytes(payload.len()), false);
    }

    /// Counts a datagram.
    pub fn count_datagram(&mut self, payload: &[u8]) {
        let bare = payload.len() <= ratewright_proto::datagram::HEADER_BYTES;
        self.count(datagram_ip_bytes(payload.len()), bare);
    }

    fn count(&mut self, ip_bytes: u16, bare: bool) {
        self.datagrams += 1;
        self.ip_bytes += u64::from(ip_bytes);
        self.wire_bytes += u64::from(ethernet_bytes(ip_bytes));
        if bare {
            self.bare_datagrams += 1;
            self.bare_ip_bytes += u64::from(ip_bytes);
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            datagrams: self.datagrams + other.datagrams,
            ip_bytes: self.ip_bytes + other.ip_bytes,
            wire_bytes: self.wire_bytes + other.wire_bytes,
            bare_datagrams: self.bare_datagrams + other.bare_datagrams,
            bare_ip_bytes: self.bare_ip_bytes + other.bare_ip_bytes,
        }
    }

    /// Returns the difference from `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            datagrams: self.datagrams - earlier.datagrams,
            ip_bytes: self.ip_bytes - earlier.ip_bytes,
            wire_bytes: self.wire_bytes - earlier.wire_bytes,
            bare_datagrams: self.bare_datagrams - earlier.bare_datagrams,
            bare_ip_bytes: self.bare_ip_bytes - earlier.bare_ip_bytes,
        }
    }
}
