//! Flowtune's control plane: the production sessions and the production engine, without a network.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | settings, and the sizes of control frames on the wire |
//! | [`agent`] | one host's end: a [`ClientSession`] and the host's flow ids |
//! | [`allocator`] | the allocator: a [`ServerSession`] per host and a [`RateEngine`] |
//!
//! This module has no packets and no queues: datagrams go in and come out as bytes, and time is an
//! argument. The transport (`transport::flowtune`) drives both ends.
//!
//! Paper: Flowtune (NSDI 2017), §5.1 *Protocol*, §5.3 *Model*.
//!
//! [`ClientSession`]: ratewright_proto::client::ClientSession
//! [`ServerSession`]: ratewright_proto::server::ServerSession
//! [`RateEngine`]: ratewright_allocator::engine::RateEngine

use ratewright_allocator::engine::{EngineConfig, StepRule};
use ratewright_allocator::num::utility::ClassTable;

pub mod agent;
pub mod allocator;

#[cfg(test)]
mod tests;

/// IPv4 and UDP headers of a control datagram.
const IP_UDP_BYTES: u32 = 20 + 8;
/// IPv4 and TCP headers of a control segment, with time stamps (RFC 7323 appendix A).
const IP_TCP_BYTES: u32 = 20 + 20 + 12;
/// Ethernet header and frame check sequence.
pub const ETHERNET_BYTES: u32 = 14 + 4;
/// The smallest Ethernet frame.
const MIN_FRAME_BYTES: u32 = 64;
/// Preamble, start delimiter and inter-frame gap, which a link spends on every frame.
pub const PREAMBLE_AND_GAP_BYTES: u32 = 20;
/// The largest control datagram: what an Ethernet MTU of 1,500 bytes leaves behind IPv4 and UDP.
pub const MAX_DATAGRAM_BYTES: usize = 1_500 - IP_UDP_BYTES as usize;

/// Returns the bytes of link time of a control datagram: Ethernet, IPv4 and UDP headers, the
/// minimum frame, preamble and gap. A bare rate update costs 84 bytes and more (flowtune §6).
#[must_use]
pub fn datagram_wire_bytes(payload_bytes: usize) -> u32 {
    // Half the range leaves room for the headers below.
    let payload_bytes = u32::try_from(payload_bytes).unwrap_or(u32::MAX / 2);
    (ETHERNET_BYTES + IP_UDP_BYTES + payload_bytes).max(MIN_FRAME_BYTES) + PREAMBLE_AND_GAP_BYTES
}

/// Returns the bytes of link time of a TCP segment with time stamps and `blocks` blocks of a
/// selective acknowledgement (RFC 2018 §3: 8 bytes each, and 4 with padding).
#[must_use]
pub fn segment_wire_bytes(payload_bytes: usize, blocks: usize) -> u32 {
    // Two bytes of kind and length, two of padding (RFC 2018 §3).
    let option_bytes = if blocks == 0 { 0 } else { 4 + 8 * blocks };
    let payload_bytes = u32::try_from(payload_bytes + option_bytes).unwrap_or(u32::MAX / 2);
    (ETHERNET_BYTES + IP_TCP_BYTES + payload_bytes).max(MIN_FRAME_BYTES) + PREAMBLE_AND_GAP_BYTES
}

/// Transport of control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// Datagrams, as production endpoints send them; sessions repair a loss with the newest state.
    #[default]
    Datagram,
    /// A TCP connection per host, as in the paper's simulations (flowtune §5.3): bytes arrive in
    /// order, and TCP retransmits lost ones.
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
    /// for 384 servers and 30.71 µs for 4,608 (§6); its simulations name none (§5.3).
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
    /// Bytes on the link, by [`datagram_wire_bytes`] or [`segment_wire_bytes`].
    pub wire_bytes: u64,
    /// Datagrams without records: bare acknowledgements and keep-alives.
    pub bare_datagrams: u64,
    /// Wire bytes of the bare ones.
    pub bare_wire_bytes: u64,
}

impl ControlTraffic {
    /// Counts a TCP segment of `wire_bytes` bytes on the link, `bare` if it only acknowledges.
    pub fn count_segment(&mut self, wire_bytes: u32, bare: bool) {
        self.datagrams += 1;
        self.wire_bytes += u64::from(wire_bytes);
        if bare {
            self.bare_datagrams += 1;
            self.bare_wire_bytes += u64::from(wire_bytes);
        }
    }

    /// Counts a datagram.
    pub fn count(&mut self, payload: &[u8]) {
        let wire_bytes = u64::from(datagram_wire_bytes(payload.len()));
        self.datagrams += 1;
        self.wire_bytes += wire_bytes;
        if payload.len() <= ratewright_proto::datagram::HEADER_BYTES {
            self.bare_datagrams += 1;
            self.bare_wire_bytes += wire_bytes;
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            datagrams: self.datagrams + other.datagrams,
            wire_bytes: self.wire_bytes + other.wire_bytes,
            bare_datagrams: self.bare_datagrams + other.bare_datagrams,
            bare_wire_bytes: self.bare_wire_bytes + other.bare_wire_bytes,
        }
    }

    /// Returns the difference from `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            datagrams: self.datagrams - earlier.datagrams,
            wire_bytes: self.wire_bytes - earlier.wire_bytes,
            bare_datagrams: self.bare_datagrams - earlier.bare_datagrams,
            bare_wire_bytes: self.bare_wire_bytes - earlier.bare_wire_bytes,
        }
    }
}
