//! Parameters that all TCP schemes share.

use crate::host::Policy;
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::tcp::TcpConfig;
use crate::units::Delay;

/// Largest window, in packets. Without losses a window of every flow is in memory at once.
pub(super) const MAX_WINDOW_PACKETS: u32 = 1 << 20;
/// Least time-out: one of 0 would expire for ever at the same moment.
const LEAST_TIME_OUT: Span = Span::from_us(1);

crate::parameters! {
    /// TCP with selective acknowledgements.
    pub struct TcpFamily {
        /// Packets before the first acknowledgement (RFC 6928: 10).
        initial_window_packets: u32 = 10,
        /// Least retransmission time-out (Linux: 200 ms).
        min_rto: Delay = Delay::from_ms(200),
        /// Retransmission time-out before the first measurement (RFC 6298 §2: 1 s).
        initial_rto: Delay = Delay::from_ms(1_000),
        /// Retransmission time-out that replaces measurement and back-off; none unless given.
        fixed_rto: Option<Delay> = None,
        /// Flows begin with SYN and SYN-ACK; otherwise connections are kept open.
        handshake: bool = false,
        /// Step of the clock that measures round trips; 0 is exact, Linux and ns-3 step by 1 ms.
        stamp_step: Delay = Delay::from_us(0),
        /// Packets may be marked instead of dropped (RFC 3168).
        ecn: bool = false,
        /// Idle connections that a pair of hosts keeps, with window and round-trip time; 0: all
        /// cold.
        warm_connections: u32 = 0,
        /// Order in which a host's flows send: "fifo", "round-robin", "srpt" or "half" of both.
        arbiter: Policy = Policy::RoundRobin,
    }
}

impl TcpFamily {
    pub(super) fn check(&self) -> Result<(), ParamError> {
        window("initial_window_packets", self.initial_window_packets)?;
        time_out("min_rto", self.min_rto)?;
        time_out("initial_rto", self.initial_rto)?;
        self.fixed_rto
            .map_or(Ok(()), |fixed| time_out("fixed_rto", fixed))
    }

    /// The configuration of a transport with this congestion control.
    pub(super) fn config<C>(&self, control: C) -> TcpConfig<C> {
        TcpConfig {
            initial_window_packets: self.initial_window_packets,
            min_rto: self.min_rto.0,
            initial_rto: self.initial_rto.0,
            fixed_rto: self.fixed_rto.map(|fixed| fixed.0),
            handshake: self.handshake,
            stamp_step: self.stamp_step.0,
            ecn: self.ecn,
            warm_connections: self.warm_connections,
            arbiter: self.arbiter,
            class: 0,
            maximum: None,
            control,
        }
    }
}

/// Checks a window that sends something.
pub(super) fn window(key: &str, packets: u32) -> Result<(), ParamError> {
    if packets == 0 {
        return Err(ParamError::of(key, "it must be at least 1 packet"));
    }
    bounded_window(key, packets)
}

/// Checks a window against memory.
pub(super) fn bounded_window(key: &str, packets: u32) -> Result<(), ParamError> {
    if packets > MAX_WINDOW_PACKETS {
        let message = format!("it must be at most {MAX_WINDOW_PACKETS} packets");
        return Err(ParamError::of(key, message));
    }
    Ok(())
}

/// Checks a time-out.
pub(super) fn time_out(key: &str, time: Delay) -> Result<(), ParamError> {
    if time.0 < LEAST_TIME_OUT {
        return Err(ParamError::of(key, "a time-out must be at least 1us"));
    }
    Ok(())
}

/// Checks the capacity of a queue.
pub(super) fn buffer(key: &str, length: u64) -> Result<(), ParamError> {
    if length == 0 {
        return Err(ParamError::of(key, "a queue's length must not be 0"));
    }
    Ok(())
}
