//! Congestion controls of the TCP family: how large the window is.
//!
//! Loss recovery and time-outs are the sender's; a control is told of acknowledgements and of the
//! reductions that are due, and says what the window is.

pub mod cubic;
pub mod dctcp;
pub mod new_reno;
pub mod pfabric;
pub mod xcp;

pub use cubic::{Cubic, CubicConfig, CubicGrowth};
pub use dctcp::{Dctcp, DctcpConfig};
pub use new_reno::NewReno;
pub use pfabric::{PFabric, PFabricConfig};
pub use xcp::Xcp;

use crate::ext::XcpHeader;
use crate::time::{Span, Time};

/// An acknowledgement that advanced the left edge of the window.
#[derive(Clone, Copy, Debug)]
pub struct AckAdvance {
    /// When it arrived.
    pub now: Time,
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// The least round-trip time measured.
    pub least_rtt: Span,
    /// The smoothed round-trip time.
    pub smoothed_rtt: Span,
}

/// Why a window shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// A queue marked a packet (RFC 3168 §6.1.2).
    Mark,
    /// A packet was lost and is being sent again (RFC 6675 §5).
    Loss,
    /// The retransmission timer expired (RFC 5681 §3.1).
    TimeOut,
}

/// A congestion control.
pub trait Congestion: Copy + std::fmt::Debug {
    /// What it is set up with.
    type Config: Copy + std::fmt::Debug;
    /// Selective acknowledgements show losses; otherwise only the timer does.
    const FAST_RETRANSMIT: bool = true;
    /// After so many time-outs in a row an empty packet asks whether the receiver is there, instead
    /// of sending everything again.
    const PROBE_AFTER: u32 = u32::MAX;

    /// The control of a new flow.
    fn new(config: &Self::Config, mss_bytes: u64, initial_window_bytes: u64) -> Self;

    /// The congestion window.
    fn window_bytes(&self) -> u64;

    /// Whether the window grows by what is acknowledged.
    fn in_slow_start(&self) -> bool;

    /// Every acknowledgement, before anything else: `echoed` tells whether it carries a mark, `una`
    /// and `next` are the sender's edges after it.
    fn on_any_ack(&mut self, _bytes: u64, _echoed: bool, _una: u64, _next: u64) {}

    /// What routers are to read and write in a data packet, for controls that ask them.
    fn congestion_header(&self, _smoothed_rtt: Span) -> Option<XcpHeader> {
        None
    }

    /// The change of the window, in bytes, that routers granted and the receiver returned.
    fn on_feedback(&mut self, _bytes: f64) {}

    /// New data was acknowledged while the window may grow.
    fn on_acked(&mut self, acked: &AckAdvance);

    /// The window shrinks, at most once per window of data; `in_flight_bytes` are under way.
    fn reduce(&mut self, now: Time, why: Reduction, in_flight_bytes: u64);
}

/// Slow start and the threshold where it ends, which all controls here share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The window, in bytes.
    pub bytes: f64,
    /// Where slow start ends.
    pub threshold_bytes: f64,
    /// Payload of a full packet.
    pub mss_bytes: f64,
}

impl Window {
    /// A window before its first loss.
    #[must_use]
    pub fn new(mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            bytes: initial_window_bytes as f64,
            threshold_bytes: f64::INFINITY,
            mss_bytes: mss_bytes as f64,
        }
    }

    /// Whether the window grows by what is acknowledged.
    #[inline]
    #[must_use]
    pub fn in_slow_start(&self) -> bool {
        self.bytes < self.threshold_bytes
    }

    /// Slow start (RFC 5681 §3.1 with L = 1 packet per acknowledgement of one packet, RFC 3465).
    #[inline]
    pub fn slow_start(&mut self, acked_bytes: u64) {
        self.bytes += (acked_bytes as f64).min(2.0 * self.mss_bytes);
    }

    /// Additive increase: one packet per window (RFC 5681 §3.1, counted in bytes).
    #[inline]
    pub fn additive_increase(&mut self, acked_bytes: u64) {
        self.bytes += self.mss_bytes * acked_bytes as f64 / self.bytes;
    }

    /// Sets window and threshold to `bytes`, of at least two packets.
    pub fn reduce_to(&mut self, bytes: f64) {
        self.threshold_bytes = bytes.max(2.0 * self.mss_bytes);
        self.bytes = self.threshold_bytes;
    }

    /// After a time-out: the threshold as given, the window one packet (RFC 5681 §3.1).
    pub fn restart(&mut self, threshold_bytes: f64) {
        self.threshold_bytes = threshold_bytes.max(2.0 * self.mss_bytes);
        self.bytes = self.mss_bytes;
    }
}
