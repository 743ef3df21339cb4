//! RDMA over converged Ethernet: queue pairs that are limited by a rate and a window.
//!
//! | file | what |
//! |---|---|
//! | `host` | the queue pairs of one host: what it sends in turn, what it answers |
//! | `sequence` | a flow's bytes at its sender: go-back-N or selective repeat |
//! | `receiver` | a flow's bytes at its receiver, and when it answers |
//! | [`dasr`] | the senders of a host, and the parts of its line that it apportions to them |
//! | [`control`] | how fast: HPCC, FNCC and others |
//!
//! A flow is a queue pair, which exists before the flow begins: the first packets leave at the
//! line's rate, without a handshake. A packet leaves when the queue pair's rate, its window and the
//! pauses of its class allow. Queue pairs whose time has come take turns. A queue pair's next
//! packet is due when its last one has taken its time at the present rate, so that a rate takes
//! effect at once.
//!
//! Acknowledgements, negative ones and notifications leave the host before its data. They are of
//! the data's class, or of one that goes before it.

pub mod control;
pub mod dasr;
mod host;
mod receiver;
mod sequence;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::control::Control;
use self::dasr::DasrConfig;
pub use self::host::RdmaHost;
use crate::host::Policy;
use crate::time::Span;
use crate::transport::Transport;

/// Way of repairing losses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// The receiver drops what comes behind a gap, and the sender goes back to it (DCQCN §2.2).
    #[default]
    #[serde(rename = "go-back-n")]
    GoBackN,
    /// The receiver keeps what comes behind a gap, and the sender fills the gap (IRN §3.1).
    SelectiveRepeat,
}

/// Parameters of every flow.
#[derive(Clone, Debug, PartialEq)]
pub struct RdmaConfig<C> {
    /// Repair of losses.
    pub recovery: Recovery,
    /// Retransmission time-out.
    pub rto: Span,
    /// Time-out while at most so many packets are in flight (IRN §3.1).
    pub rto_low: Option<(u32, Span)>,
    /// Least time between two negative acknowledgements of one gap, with go-back-N.
    pub nack_interval: Span,
    /// Data packets per acknowledgement. A packet that closes the window asks for one.
    pub ack_every: u32,
    /// Bytes on the link of acknowledgements and notifications without telemetry; `None`: those of
    /// a packet without payload.
    pub ack_wire_bytes: Option<u16>,
    /// Bytes that carriers of telemetry have more on the link, whatever they collect.
    pub int_bytes: u16,
    /// Bytes that every data packet has more on the link, such as a time stamp.
    pub stamp_bytes: u16,
    /// Least time between a receiver's notifications of one flow; `None`: it sends none.
    pub cnp_interval: Option<Span>,
    /// Apportioning of the line's rate by receivers; `None`: they tell of no senders.
    pub dasr: Option<DasrConfig>,
    /// Bytes that a queue pair may be behind its rate before its packets are marked, as those of a
    /// congested source; `None`: sources mark nothing.
    pub source_mark_bytes: Option<u64>,
    /// Bytes of the longest flow that counts as short.
    pub short_bytes: u64,
    /// Queue class of short flows' data.
    pub data_class: u8,
    /// Queue class of other flows' data.
    pub long_class: u8,
    /// Queue class of acknowledgements and notifications; `None`: that of their data.
    pub ack_class: Option<u8>,
    /// Order in which a host's queue pairs send.
    pub arbiter: Policy,
    /// Round-trip time of an idle path.
    pub base_rtt: Span,
    /// Parameters of the control.
    pub control: C,
}

/// RDMA with a congestion control, on every host.
#[derive(Debug)]
pub struct Rdma<C: Control> {
    config: Arc<RdmaConfig<C::Config>>,
}

impl<C: Control> Rdma<C> {
    /// Makes the scheme.
    #[must_use]
    pub fn new(config: RdmaConfig<C::Config>) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

impl<C: Control> Transport for Rdma<C> {
    type Shared = ();
    type Endpoint = RdmaHost<C>;

    fn start(self, nodes: u32) -> ((), Vec<RdmaHost<C>>) {
        let host = |_| RdmaHost::new(Arc::clone(&self.config));
        ((), (0..nodes).map(host).collect())
    }

    fn summary((): &(), hosts: &[&RdmaHost<C>]) -> Vec<(&'static str, f64)> {
        let sum = |count: fn(&RdmaHost<C>) -> u64| {
            hosts.iter().map(|host| count(host)).sum::<u64>() as f64
        };
        vec![
            ("time_outs", sum(|host| host.counts().time_outs)),
            ("nacks", sum(|host| host.counts().nacks)),
            ("cnps", sum(|host| host.counts().cnps)),
            ("short_packets", sum(|host| host.counts().short_packets)),
            ("short_marked", sum(|host| host.counts().short_marked)),
            ("short_hops", sum(|host| host.counts().short_hops)),
            ("marks_withheld", sum(|host| host.counts().marks_withheld)),
            ("source_marks", sum(|host| host.counts().source_marks)),
            ("overtaken", sum(|host| host.counts().overtaken)),
        ]
    }
}
