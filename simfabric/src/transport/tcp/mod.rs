//! TCP: a window per flow, selective acknowledgements, one acknowledgement per packet.
//!
//! | file | what |
//! |---|---|
//! | `host` | the flows of one host: what it sends in turn, what it receives |
//! | `sender` | both sides of a flow: window, scoreboard, recovery; reassembly |
//! | [`rtt`] | round-trip time and time-out (RFC 6298) |
//! | [`stream`] | a connection that carries real bytes |
//! | [`congestion`] | how large the window is: NewReno, CUBIC, DCTCP, XCP, pFabric |
//!
//! There is no handshake unless one is asked for: a flow's first packets leave when it starts, as
//! on a connection that is kept open, which is how the papers' flowlets run (flowtune §1). A
//! connection knows its window and round-trip time from flow to flow only if
//! [`TcpConfig::warm_connections`] lets it. It closes without packets of its own.

pub mod congestion;
mod host;
pub mod rtt;
mod sender;
pub mod stream;

use std::sync::Arc;

use self::congestion::Congestion;
pub use self::host::{Acknowledged, RateUse, Socket, TcpHost};
use self::rtt::RttEstimator;
use crate::flow::FlowId;
use crate::host::{Endpoint, Measured, Policy, Pull, Timer};
use crate::packet::Packet;
use crate::time::{Span, Time};
use crate::transport::{Context, Transport};

/// Parameters of every flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpConfig<C> {
    /// Packets before the first acknowledgement (RFC 6928: 10).
    pub initial_window_packets: u32,
    /// Least retransmission time-out.
    pub min_rto: Span,
    /// Retransmission time-out before the first measurement.
    pub initial_rto: Span,
    /// Fixed retransmission time-out, which replaces measurement and back-off (pFabric §4.3).
    pub fixed_rto: Option<Span>,
    /// True if a flow begins with a SYN and its answer, as TCP connections do.
    pub handshake: bool,
    /// Step of the clock that packets are stamped with; a round trip within one step counts as 1
    /// µs. Zero: exact. Linux' and ns-3's time stamps are in milliseconds.
    pub stamp_step: Span,
    /// True if packets may be marked instead of dropped.
    pub ecn: bool,
    /// Idle connections that a pair of hosts keeps; flows begin with the window and the round-trip
    /// time of one of them. With 0 every flow begins cold.
    pub warm_connections: u32,
    /// Order in which a host's flows send.
    pub arbiter: Policy,
    /// Queue class of its packets.
    pub class: u8,
    /// Meaning of a rate that is set: `None`: packets leave at it, as its control says
    /// ([`Allocated`](congestion::Allocated)).
    pub maximum: Option<Maximum>,
    /// Parameters of the congestion control.
    pub control: C,
}

/// A maximum of the rate over a congestion control that stays as it is.
///
/// A flow saves up what it leaves unused as credit, up to the larger of both bounds, and may send
/// it at once. Its maximum *limits* it while it has no credit, and a full packet that its window
/// allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maximum {
    /// Credit in full packets.
    pub credit_packets: u32,
    /// Credit in time at the rate.
    pub credit_time: Span,
}

impl Default for Maximum {
    fn default() -> Self {
        Self {
            credit_packets: 10,
            credit_time: Span::from_ms(1),
        }
    }
}

impl Maximum {
    /// Returns the time in which a flow at this rate saves up all its credit.
    fn credit(self, rate_bps: u64, full_wire_bytes: u16) -> Span {
        let bits = f64::from(self.credit_packets) * f64::from(full_wire_bytes) * 8.0;
        let packets = Span::from_secs_f64(bits / rate_bps.max(1) as f64);
        self.credit_time.max(packets)
    }
}

impl<C: Default> Default for TcpConfig<C> {
    fn default() -> Self {
        Self {
            initial_window_packets: 10,
            min_rto: Span::from_ms(200),
            initial_rto: Span::from_ms(1_000),
            fixed_rto: None,
            handshake: false,
            stamp_step: Span::ZERO,
            ecn: false,
            warm_connections: 0,
            arbiter: Policy::default(),
            class: 0,
            maximum: None,
            control: C::default(),
        }
    }
}

impl<C: Default> TcpConfig<C> {
    /// Makes parameters for round trips of microseconds: time-outs of at least 200 µs, and 1 ms
    /// before the first measurement.
    #[must_use]
    pub fn datacenter() -> Self {
        Self {
            min_rto: Span::from_us(200),
            initial_rto: Span::from_ms(1),
            ..Self::default()
        }
    }
}

impl<C> TcpConfig<C> {
    /// Returns the retransmission time-out of a flow.
    #[inline]
    fn rto(&self, rtt: &RttEstimator) -> Span {
        self.fixed_rto.unwrap_or(rtt.rto())
    }

    /// Returns the round-trip time of a packet as its sender's clock measures it.
    #[inline]
    fn round_trip(&self, stamp: Time, now: Time) -> Span {
        if self.stamp_step == Span::ZERO {
            return now.since(stamp);
        }
        let steps = now.0 / self.stamp_step.0 - stamp.0 / self.stamp_step.0;
        if steps == 0 {
            Span::from_us(1)
        } else {
            Span(steps * self.stamp_step.0)
        }
    }
}

/// TCP with a congestion control, on every host.
#[derive(Clone, Debug)]
pub struct Tcp<C: Congestion> {
    config: Arc<TcpConfig<C::Config>>,
}

impl<C: Congestion> Tcp<C> {
    /// Makes the scheme.
    #[must_use]
    pub fn new(config: TcpConfig<C::Config>) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

impl<C: Congestion> Transport for Tcp<C> {
    type Shared = ();
    type Endpoint = TcpHost<C>;

    fn start(self, nodes: u32) -> ((), Vec<TcpHost<C>>) {
        let host = |_| TcpHost::new(Arc::clone(&self.config));
        ((), (0..nodes).map(host).collect())
    }

    fn summary((): &(), hosts: &[&TcpHost<C>]) -> Vec<(&'static str, f64)> {
        let time_outs: u64 = hosts.iter().map(|host| host.time_outs()).sum();
        vec![("time_outs", time_outs as f64)]
    }
}

impl<C: Congestion> Endpoint for TcpHost<C> {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.start(cx, flow);
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.stop(cx, flow);
    }

    #[inline]
    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        self.on_packet(cx, packet);
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, timer: Timer) {
        self.on_timer(cx, timer.slot);
    }

    #[inline]
    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        self.pull(cx, |_, _| ())
    }

    fn measure(&self, measured: &mut Measured) {
        self.senders().for_each(|host| measured.sender(host));
        self.measure_received(measured);
    }
}
