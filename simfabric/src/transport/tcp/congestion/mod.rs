//! Congestion controls of the TCP family: the size of the window.
//!
//! Loss recovery and time-outs are the sender's. It notifies a control of acknowledgements and of
//! the reductions that are due; the control determines the window.

pub mod allocated;
pub mod cubic;
pub mod dctcp;
pub mod new_reno;
pub mod pfabric;
pub mod swift;
pub mod xcp;

pub use allocated::{Allocated, AllocatedConfig};
pub use cubic::{Cubic, CubicConfig, CubicGrowth};
pub use dctcp::{Dctcp, DctcpConfig};
pub use new_reno::NewReno;
pub use pfabric::{PFabric, PFabricConfig};
pub use swift::{Swift, SwiftConfig};
pub use xcp::Xcp;

use crate::ext::XcpHeader;
use crate::time::{Span, Time};

/// An acknowledgement that advanced the left edge of the window.
#[derive(Clone, Copy, Debug)]
pub struct AckAdvance {
    /// Time of arrival.
    pub now: Time,
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// Least round-trip time measured.
    pub least_rtt: Span,
    /// The smoothed round-trip time.
    pub smoothed_rtt: Span,
}

/// Delay that an acknowledgement shows.
#[derive(Clone, Copy, Debug)]
pub struct DelaySample {
    /// Time of arrival.
    pub now: Time,
    /// Round-trip time of the packet that it answers.
    pub rtt: Span,
    /// Switches that the packet passed.
    pub switches: u8,
    /// Bytes newly acknowledged.
    pub bytes: u64,
}

/// Reason for a reduction of the window.
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
pub trait Congestion: Copy + Send + std::fmt::Debug + 'static {
    /// Parameters of the control.
    type Config: Copy + Send + Sync + std::fmt::Debug;
    /// True if selective acknowledgements reveal losses, and not only the timer.
    const FAST_RETRANSMIT: bool = true;
    /// Number of time-outs in a row after which an empty packet probes the receiver, in place of
    /// retransmissions.
    const PROBE_AFTER: u32 = u32::MAX;
    /// True if each acknowledgement echoes the mark of the packet that it answers (RFC 8257 §3.2).
    /// Otherwise the echo lasts from a mark to the sender's [`CWR`](crate::Flags::CWR) (RFC 3168
    /// §6.1.3).
    const ECHOES_EACH_MARK: bool = false;
    /// True if the control takes the delay of every packet, and may pace.
    const MEASURES_DELAY: bool = false;

    /// Makes the control of a new flow.
    fn new(config: &Self::Config, mss_bytes: u64, initial_window_bytes: u64) -> Self;

    /// Prepares the control of a connection that stays open for its next flow, whose bytes count
    /// from 0. Window and estimates stay.
    fn begin_next_flow(&mut self) {}

    /// Returns the congestion window. A flow with nothing in flight may send a packet whatever its
    /// window, unless it is 0.
    fn window_bytes(&self) -> u64;

    /// Returns true if the window grows by the acknowledged bytes.
    fn in_slow_start(&self) -> bool;

    /// Takes every acknowledgement, before all else. `echoed` is true if it carries a mark; `una`
    /// and `next` are the sender's edges after it.
    fn on_any_ack(&mut self, _bytes: u64, _echoed: bool, _una: u64, _next: u64) {}

    /// Takes the delay that an acknowledgement shows.
    fn on_delay(&mut self, _sample: &DelaySample) {}

    /// Returns the least time between two packets, of a control that paces; `None` where the window
    /// alone holds.
    fn pacing_gap(&self) -> Option<Span> {
        None
    }

    /// Takes the rate that was allocated to the flow, in bit/s on the link; 0: none. To a control
    /// under a [maximum](super::Maximum) it is nothing.
    fn on_rate(&mut self, _rate_bps: u64, _in_flight_bytes: u64) {}

    /// Returns the header that routers read and write in a data packet, for controls that use one.
    fn congestion_header(&self, _smoothed_rtt: Span) -> Option<XcpHeader> {
        None
    }

    /// Applies the change of the window, in bytes, that routers granted and the receiver returned.
    fn on_feedback(&mut self, _bytes: f64) {}

    /// Grows the window for newly acknowledged data.
    fn on_acked(&mut self, acked: &AckAdvance);

    /// Reduces the window, at most once per window of data; `in_flight_bytes` are in flight.
    fn reduce(&mut self, now: Time, why: Reduction, in_flight_bytes: u64);
}

/// Window with slow start and the threshold where it ends, which all controls here share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The window, in bytes.
    pub bytes: f64,
    /// Slow-start threshold, in bytes.
    pub threshold_bytes: f64,
    /// Payload of a full packet.
    pub mss_bytes: f64,
}

impl Window {
    /// Makes a window before its first loss.
    #[must_use]
    pub fn new(mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            bytes: initial_window_bytes as f64,
            threshold_bytes: f64::INFINITY,
            mss_bytes: mss_bytes as f64,
        }
    }

    /// Returns true if the window grows by the acknowledged bytes.
    #[inline]
    #[must_use]
    pub fn in_slow_start(&self) -> bool {
        self.bytes < self.threshold_bytes
    }

    /// Grows in slow start (RFC 5681 §3.1, counted in bytes with L = 2 packets, RFC 3465).
    #[inline]
    pub fn slow_start(&mut self, acked_bytes: u64) {
        // RFC 3465: at most two packets per acknowledgement, so that one which covers many does not
        // cause a burst.
        self.bytes += (acked_bytes as f64).min(2.0 * self.mss_bytes);
    }

    /// Grows by one packet per window (RFC 5681 §3.1, counted in bytes).
    #[inline]
    pub fn additive_increase(&mut self, acked_bytes: u64) {
        self.bytes += self.mss_bytes * acked_bytes as f64 / self.bytes;
    }

    /// Reduces to `bytes` after a mark or a loss; restarts with that threshold after a time-out.
    pub fn reduce(&mut self, why: Reduction, bytes: f64) {
        if why == Reduction::TimeOut {
            self.restart(bytes);
        } else {
            self.reduce_to(bytes);
        }
    }

    /// Sets window and threshold to `bytes`, of at least two packets.
    pub fn reduce_to(&mut self, bytes: f64) {
        self.threshold_bytes = bytes.max(2.0 * self.mss_bytes);
        self.bytes = self.threshold_bytes;
    }

    /// Restarts after a time-out: the threshold as given, the window one packet (RFC 5681 §3.1).
    pub fn restart(&mut self, threshold_bytes: f64) {
        self.threshold_bytes = threshold_bytes.max(2.0 * self.mss_bytes);
        self.bytes = self.mss_bytes;
    }
}
