//! The schemes that the paper compares (flowtune §5.3), each with its queues, on the paper's network.
//!
//! The paper takes the authors' ns-2 code and gives no parameters. Ours: DCTCP marks from 65 packets
//! on at 10 Gbit/s and four times as many at 40 (SIGCOMM 2010 §3.5 scales by the rate); pFabric's are its
//! own for this network (12 packets to begin with, at most 15, a time-out of 45 µs, 36 KB of queue);
//! sfqCoDel's target and interval are those of a round trip of 22 µs as 5 and 100 ms are those of the
//! Internet's 100 ms; XCP's are its paper's, and its flows begin with one packet as in ns-2. Time-outs are at least 200 µs where they are measured.

use std::sync::Arc;

use ratewright_topology::Topology;

use super::{ExperimentError, scene};
use crate::net::queue::{CodelConfig, Limit, XcpConfig};
use crate::net::{FabricConfig, QueueConfig};
use crate::time::Span;
use crate::transport::Transport;
use crate::transport::flowtune::{Flowtune, FlowtuneConfig};
use crate::transport::paced::SenderConfig;
use crate::transport::tcp::congestion::{Cubic, Dctcp, PFabric, Xcp};
use crate::transport::tcp::{Tcp, TcpConfig};

/// A scheme of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The allocator's rates.
    Flowtune,
    /// DCTCP.
    Dctcp,
    /// pFabric.
    PFabric,
    /// CUBIC over sfqCoDel.
    SfqCodel,
    /// XCP.
    Xcp,
}

/// Something to be done with a scheme, whatever its type.
pub trait Visitor {
    /// What comes of it.
    type Output;

    /// Does it.
    ///
    /// # Errors
    /// See [`ExperimentError`].
    fn visit<T: Transport>(
        self,
        fabric: FabricConfig,
        transport: T,
    ) -> Result<Self::Output, ExperimentError>;
}

impl Scheme {
    /// In the paper's order.
    pub const ALL: [Self; 5] = [
        Self::Flowtune,
        Self::Dctcp,
        Self::PFabric,
        Self::SfqCodel,
        Self::Xcp,
    ];

    /// As figures name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flowtune => "Flowtune",
            Self::Dctcp => "DCTCP",
            Self::PFabric => "pFabric",
            Self::SfqCodel => "sfqCoDel",
            Self::Xcp => "XCP",
        }
    }

    /// The queues of links to hosts and of those between switches.
    fn queues(self) -> Option<(QueueConfig, QueueConfig)> {
        let both = |queue: QueueConfig| Some((queue.clone(), queue));
        let limit = Limit::Packets(1_000);
        match self {
            Self::Flowtune => None,
            Self::Dctcp => {
                let mark = |packets| QueueConfig::EcnThreshold {
                    mark_at: Limit::Packets(packets),
                    limit,
                };
                Some((mark(65), mark(260)))
            }
            Self::PFabric => both(QueueConfig::PFabric {
                limit: Limit::Bytes(36_864),
            }),
            Self::SfqCodel => both(QueueConfig::SfqCodel {
                control: CodelConfig {
                    target: Span::from_us(10),
                    interval: Span::from_us(200),
                    ecn: false,
                },
                limit,
            }),
            Self::Xcp => both(QueueConfig::Xcp {
                control: XcpConfig::default(),
                limit,
            }),
        }
    }

    /// The paper's fabric with this scheme's queues.
    fn fabric(self, hosts: u32) -> FabricConfig {
        let mut fabric = scene::fabric(hosts);
        if let Some((edge, core)) = self.queues() {
            fabric.edge = edge;
            fabric.core = core;
        }
        if self == Self::PFabric {
            // §4.2 of pFabric: hosts send what is most urgent first, too.
            fabric.nic = QueueConfig::PFabric {
                limit: Limit::Unlimited,
            };
        }
        fabric
    }

    /// Shows the visitor this scheme on the paper's network.
    ///
    /// # Errors
    /// See [`ExperimentError`].
    pub fn visit<V: Visitor>(
        self,
        topology: &Topology,
        visitor: V,
    ) -> Result<V::Output, ExperimentError> {
        let fabric = self.fabric(topology.hosts().len() as u32);
        match self {
            Self::Flowtune => {
                let shared = Arc::new(topology.clone());
                let transport = Flowtune::new(&shared, opening(1))?;
                visitor.visit(fabric, transport)
            }
            Self::Dctcp => visitor.visit(fabric, Tcp::<Dctcp>::new(datacenter(true))),
            Self::SfqCodel => visitor.visit(fabric, Tcp::<Cubic>::new(datacenter(false))),
            Self::Xcp => {
                let config = TcpConfig {
                    initial_window_packets: 1,
                    ..datacenter(false)
                };
                visitor.visit(fabric, Tcp::<Xcp>::new(config))
            }
            Self::PFabric => {
                let config = TcpConfig {
                    initial_window_packets: 12,
                    fixed_rto: Some(Span::from_us(45)),
                    nic_limit_packets: u32::MAX,
                    ..datacenter(false)
                };
                visitor.visit(fabric, Tcp::<PFabric>::new(config))
            }
        }
    }
}

/// Flowtune whose flowlets send so many packets before their first rate. The paper lets servers start
/// before an allocation has arrived (§6) and does not say with how much. One packet is what leaves
/// queues as short as the paper's; see the note of figure H for what others do.
fn opening(packets: u32) -> FlowtuneConfig {
    FlowtuneConfig {
        sender: SenderConfig {
            initial_window: packets,
            ..SenderConfig::default()
        },
        ..FlowtuneConfig::default()
    }
}

/// TCP with a datacenter's time-outs.
fn datacenter<C: Default>(ecn: bool) -> TcpConfig<C> {
    TcpConfig {
        ecn,
        min_rto: Span::from_us(200),
        initial_rto: Span::from_ms(1),
        ..TcpConfig::default()
    }
}
