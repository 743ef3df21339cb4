//! Congestion controls of RDMA: the rate and the window of a flow.
//!
//! Recovery and pacing are the endpoint's. It tells a control of acknowledgements, notifications,
//! rates and its own clock; the control answers with a rate and a window.
//!
//! | control | feedback | file |
//! |---|---|---|
//! | [`Hpcc`] | telemetry on data, returned by acknowledgements | `hpcc.rs` |
//! | [`Fncc`] | telemetry that acknowledgements collect, number of flows | `fncc.rs` |
//! | [`PowerTcp`], [`ThetaPowerTcp`] | telemetry on data; round-trip times | `power_tcp.rs` |
//! | [`Dcqcn`] | marks, by the receiver's notifications | `dcqcn.rs` |
//! | [`Dart`] | number of the receiver's senders; else as DCQCN | `dart.rs` |
//! | [`Timely`] | round-trip times | `timely.rs` |
//! | [`Rocc`] | rates of switches, by their notices | `rocc.rs` |
//! | [`Rcp`] | rates of switches, by acknowledgements | `rcp.rs` |

pub mod dart;
pub mod dcqcn;
pub mod fncc;
pub mod hpcc;
pub mod power_tcp;
pub mod rcp;
pub mod rocc;
pub mod timely;

pub use dart::{Dart, DartConfig};
pub use dcqcn::{Dcqcn, DcqcnConfig, Reaction};
pub use fncc::{Fncc, FnccConfig, LastHop};
pub use hpcc::{Hpcc, HpccConfig};
pub use power_tcp::{PowerTcp, PowerTcpConfig, ThetaPowerTcp};
pub use rcp::{Rcp, RcpConfig};
pub use rocc::{Rocc, RoccConfig};
pub use timely::{Timely, TimelyConfig};

use ratewright_topology::HostId;

use crate::ext::{IntHop, RcpHeader};
use crate::net::Telemetry;
use crate::time::{Span, Time};

/// Properties of a flow's path that its sender knows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathFacts {
    /// Rate of the sender's link, in bit/s.
    pub line_bps: f64,
    /// Rate of the receiver's link, in bit/s.
    pub receiver_bps: f64,
    /// Round-trip time of the idle path (T in HPCC §3.2).
    pub base_rtt: Span,
    /// Time at which the flow begins.
    pub begins: Time,
}

impl PathFacts {
    /// Returns the bandwidth-delay product, in bytes on the link.
    #[must_use]
    pub fn bdp_bytes(&self) -> f64 {
        self.line_bps * self.base_rtt.as_secs_f64() / 8.0
    }

    /// Returns the window of a rate: what is in flight at that rate on the idle path, at least a
    /// byte.
    #[must_use]
    pub fn window_bytes(&self, rate_bps: f64) -> u64 {
        ((self.bdp_bytes() * rate_bps / self.line_bps) as u64).max(1)
    }
}

/// An acknowledgement, positive or negative.
#[derive(Clone, Copy, Debug)]
pub struct Acked<'a> {
    /// Time of arrival.
    pub now: Time,
    /// Next byte that the receiver expects.
    pub ack: u64,
    /// Next byte that the sender will send.
    pub next: u64,
    /// Time since the answered packet left its sender.
    pub rtt: Span,
    /// True if the answered packet was marked.
    pub marked: bool,
    /// Telemetry, in the order in which it was stamped.
    pub hops: &'a [IntHop],
    /// Number of flows that the receiver receives (FNCC), or by which the sender divides the
    /// receiver's line (Dart); 0 if it does not tell.
    pub flows: u16,
    /// Header that came back, if data has one.
    pub rcp: Option<RcpHeader>,
}

/// A congestion control of one flow.
pub trait Control: std::fmt::Debug + Send + 'static {
    /// Parameters.
    type Config: Clone + std::fmt::Debug + Send + Sync;
    /// True if switches may mark its data.
    const MARKS: bool = false;
    /// Packets that carry telemetry.
    const TELEMETRY: Telemetry = Telemetry::None;

    /// Makes the control of a new flow.
    fn new(config: &Self::Config, path: PathFacts) -> Self;

    /// Takes an acknowledgement.
    fn on_ack(&mut self, acked: &Acked<'_>);

    /// Takes a receiver's notification of congestion.
    fn on_cnp(&mut self, _now: Time) {}

    /// Takes the rate that a switch tells.
    fn on_notice(&mut self, _now: Time, _rate_bps: u64, _from: HostId) {}

    /// Notes that a packet of so many bytes on the link leaves.
    fn on_sent(&mut self, _now: Time, _wire_bytes: u16) {}

    /// Returns the time at which [`on_timer`](Self::on_timer) is to be called; [`Time::MAX`]:
    /// never.
    fn timer(&self) -> Time {
        Time::MAX
    }

    /// Handles the time that [`timer`](Self::timer) gave.
    fn on_timer(&mut self, _now: Time) {}

    /// Returns the rate on the link, in bit/s, above 0. At the line's rate packets are not paced.
    fn rate_bps(&self) -> f64;

    /// Returns true if a change of the rate leaves the time of the next packet as it was set when
    /// the last one left.
    fn keeps_turns(&self) -> bool {
        false
    }

    /// Returns the window, in payload bytes, at least 1. A packet may leave while less is in
    /// flight.
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Returns the header that switches read and write in a data packet, for controls that use one.
    fn header(&self) -> Option<RcpHeader> {
        None
    }
}
