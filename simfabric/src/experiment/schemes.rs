//! The schemes that the paper compares (flowtune §5.3), each with its queues, on the paper's network.
//!
//! The paper takes the authors' ns-2 code and gives no parameters; [`Assumptions`] has all of ours, and
//! docs/simfabric/reproduction.md what each of them moves. DCTCP marks from 65 packets on at 10 Gbit/s and
//! four times as many at 40 (SIGCOMM 2010 §3.5 scales by the rate); pFabric's are its own for this network
//! (12 packets to begin with, at most 15, a time-out of 45 µs, 36 KB of queue); sfqCoDel's target and
//! interval are those of a round trip of 22 µs as 5 and 100 ms are those of the Internet's 100 ms;
//! XCP's are its paper's, and its flows begin with one packet as in ns-2.

use std::sync::Arc;

use ratewright_topology::Topology;

use super::assumptions::{Assumptions, PFabricNic};
use super::{ExperimentError, scene};
use crate::control::{ControlConfig, ControlError};
use crate::net::queue::{CodelConfig, QueueLimit, XcpConfig};
use crate::net::{FabricConfig, QueueConfig};
use crate::transport::Transport;
use crate::transport::flowtune::{Flowtune, FlowtuneConfig};
use crate::transport::ideal::{Ideal, IdealConfig};
use crate::transport::paced::SenderConfig;
use crate::transport::tcp::congestion::{
    Cubic, CubicConfig, CubicGrowth, Dctcp, DctcpConfig, PFabric, PFabricConfig, Xcp,
};
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
    /// Flowtune without a control plane: exact fair rates, known everywhere at once. None of the
    /// paper's; what a row cannot be beyond.
    Ideal,
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
    /// The paper's, in its order.
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
            Self::Ideal => "ideal",
        }
    }

    /// The queues of links to hosts and of those between switches.
    fn queues(self, assumptions: &Assumptions) -> Option<(QueueConfig, QueueConfig)> {
        let both = |queue: QueueConfig| Some((queue.clone(), queue));
        let limit = assumptions.buffer;
        match self {
            Self::Flowtune | Self::Ideal => None,
            Self::Dctcp => {
                let mark = |packets| QueueConfig::EcnThreshold {
                    mark_at: QueueLimit::Packets(packets),
                    limit,
                };
                let (edge, core) = (assumptions.mark_packets, assumptions.core_marks);
                Some((mark(edge), mark(edge.saturating_mul(core))))
            }
            Self::PFabric => both(QueueConfig::PFabric {
                limit: QueueLimit::Bytes(assumptions.pfabric_buffer_bytes),
            }),
            Self::SfqCodel => both(QueueConfig::SfqCodel {
                control: CodelConfig {
                    target: assumptions.codel_target,
                    interval: assumptions.codel_interval,
                    ecn: false,
                },
                limit,
            }),
            Self::Xcp => both(QueueConfig::Xcp {
                control: XcpConfig {
                    first_interval: assumptions
                        .xcp_interval
                        .unwrap_or(XcpConfig::default().first_interval),
                    idle_interval: assumptions.xcp_interval,
                    least_interval: assumptions.xcp_least_interval,
                    ..XcpConfig::default()
                },
                limit,
            }),
        }
    }

    /// The paper's fabric with this scheme's queues.
    fn fabric(self, hosts: u32, assumptions: &Assumptions) -> FabricConfig {
        let mut fabric = FabricConfig {
            framing: assumptions.framing,
            ..scene::fabric(hosts)
        };
        if let Some((edge, core)) = self.queues(assumptions) {
            if assumptions.nic_of_scheme {
                fabric.nic = edge.clone();
            }
            fabric.edge = edge;
            fabric.core = core;
        }
        if self == Self::PFabric {
            let limit = QueueLimit::Bytes(assumptions.pfabric_buffer_bytes);
            match assumptions.pfabric_nic {
                // What a time-out sends again while it still waits here would fill any other queue.
                PFabricNic::Fifo => {
                    fabric.nic = QueueConfig::DropTail {
                        limit: assumptions.buffer,
                    };
                }
                PFabricNic::Short => fabric.nic = QueueConfig::DropTail { limit },
                PFabricNic::Priority if !assumptions.nic_of_scheme => {
                    fabric.nic = QueueConfig::PFabric {
                        limit: QueueLimit::Unlimited,
                    };
                }
                PFabricNic::Priority => {}
            }
        }
        fabric
    }

    /// The assumptions with those that this scheme knows nothing of as they usually are: two runs whose
    /// assumptions are then the same are the same run.
    #[must_use]
    pub fn relevant(self, assumptions: &Assumptions) -> Assumptions {
        let usual = Assumptions::default();
        let mut own = *assumptions;
        own.count = usual.count;
        if self != Self::Ideal {
            own.ideal = usual.ideal;
        }
        if self != Self::Flowtune {
            own.carrier = usual.carrier;
            own.iteration = usual.iteration;
            own.step = usual.step;
            own.flowtune_window_packets = usual.flowtune_window_packets;
            own.reserve = usual.reserve;
        }
        if self != Self::Dctcp {
            own.mark_packets = usual.mark_packets;
            own.core_marks = usual.core_marks;
            own.dctcp_gain = usual.dctcp_gain;
        }
        if self != Self::PFabric {
            own.pfabric_nic = usual.pfabric_nic;
            own.pfabric_window_packets = usual.pfabric_window_packets;
            own.pfabric_rto = usual.pfabric_rto;
            own.pfabric_buffer_bytes = usual.pfabric_buffer_bytes;
        }
        if self != Self::SfqCodel {
            own.codel_target = usual.codel_target;
            own.codel_interval = usual.codel_interval;
            own.cubic_counted = usual.cubic_counted;
            own.hystart = usual.hystart;
        }
        if self != Self::Xcp {
            own.xcp_window_packets = usual.xcp_window_packets;
            own.xcp_interval = usual.xcp_interval;
            own.xcp_least_interval = usual.xcp_least_interval;
        }
        if !matches!(self, Self::Dctcp | Self::SfqCodel) {
            own.tcp_window_packets = usual.tcp_window_packets;
        }
        if matches!(self, Self::Flowtune | Self::Ideal)
            || self == Self::PFabric && own.pfabric_nic != PFabricNic::Fifo
        {
            own.buffer = usual.buffer;
        }
        if matches!(self, Self::Flowtune | Self::Ideal | Self::PFabric) {
            own.nic_limit_packets = usual.nic_limit_packets;
        }
        if matches!(self, Self::Flowtune | Self::Ideal) {
            own.nic_of_scheme = usual.nic_of_scheme;
        }
        if self == Self::Ideal {
            own.handshake = usual.handshake;
        }
        own
    }

    /// Shows the visitor this scheme on the paper's network.
    ///
    /// # Errors
    /// See [`ExperimentError`].
    pub fn visit<V: Visitor>(
        self,
        topology: &Topology,
        assumptions: &Assumptions,
        visitor: V,
    ) -> Result<V::Output, ExperimentError> {
        let assumptions = &self.relevant(assumptions);
        let fabric = self.fabric(topology.hosts().len() as u32, assumptions);
        match self {
            Self::Flowtune => {
                let shared = Arc::new(topology.clone());
                let transport = Flowtune::new(&shared, flowtune(assumptions))?;
                visitor.visit(fabric, transport)
            }
            Self::Ideal => {
                let shared = Arc::new(topology.clone());
                let transport =
                    Ideal::new(&shared, ideal(assumptions)).map_err(ControlError::from)?;
                visitor.visit(fabric, transport)
            }
            Self::Dctcp => {
                let control = DctcpConfig {
                    gain: assumptions.dctcp_gain,
                };
                visitor.visit(
                    fabric,
                    Tcp::<Dctcp>::new(datacenter(assumptions, true, control)),
                )
            }
            Self::SfqCodel => {
                let growth = if assumptions.cubic_counted {
                    CubicGrowth::Counted { first_limit: 20 }
                } else {
                    CubicGrowth::Continuous
                };
                let control = CubicConfig {
                    growth,
                    reno_friendly: !assumptions.cubic_counted,
                    hystart: assumptions.hystart,
                };
                visitor.visit(
                    fabric,
                    Tcp::<Cubic>::new(datacenter(assumptions, false, control)),
                )
            }
            Self::Xcp => {
                let config = TcpConfig {
                    initial_window_packets: assumptions.xcp_window_packets,
                    ..datacenter(assumptions, false, ())
                };
                visitor.visit(fabric, Tcp::<Xcp>::new(config))
            }
            Self::PFabric => {
                let config = TcpConfig {
                    initial_window_packets: assumptions.pfabric_window_packets,
                    fixed_rto: Some(assumptions.pfabric_rto),
                    nic_limit_packets: u32::MAX,
                    ..datacenter(assumptions, false, PFabricConfig::default())
                };
                visitor.visit(fabric, Tcp::<PFabric>::new(config))
            }
        }
    }
}

/// Flowtune's settings. The paper lets servers start before an allocation has arrived (§6) and does not
/// say with how much.
fn flowtune(assumptions: &Assumptions) -> FlowtuneConfig {
    FlowtuneConfig {
        control: ControlConfig {
            reserve: assumptions.reserve,
            step_rule: assumptions.step,
            interval_ns: assumptions.iteration.as_ns().max(1),
            ..ControlConfig::default()
        },
        carrier: assumptions.carrier,
        sender: SenderConfig {
            initial_window: assumptions.flowtune_window_packets,
            payload_bytes: assumptions.framing.mss_bytes,
            min_rto: assumptions.min_rto,
            ..SenderConfig::default()
        },
        handshake: assumptions.handshake,
        ..FlowtuneConfig::default()
    }
}

/// The ideal: what it hands out leaves room for the acknowledgements of as much data the other way.
pub(super) fn ideal(assumptions: &Assumptions) -> IdealConfig {
    let framing = assumptions.framing;
    let [data, answer] = [framing.mss_bytes, 0].map(|b| f64::from(framing.wire_bytes(b)));
    IdealConfig {
        objective: assumptions.ideal,
        sender: SenderConfig {
            payload_bytes: framing.mss_bytes,
            min_rto: assumptions.min_rto,
            ..SenderConfig::default()
        },
        share: data / (data + answer),
    }
}

/// TCP with a datacenter's time-outs.
fn datacenter<C>(assumptions: &Assumptions, ecn: bool, control: C) -> TcpConfig<C> {
    let usual = TcpConfig::<()>::default();
    TcpConfig {
        ecn,
        initial_window_packets: assumptions.tcp_window_packets,
        min_rto: assumptions.min_rto,
        initial_rto: assumptions.min_rto.mul_f64(5.0),
        nic_limit_packets: assumptions.nic_limit_packets,
        fixed_rto: usual.fixed_rto,
        handshake: assumptions.handshake,
        stamp_step: usual.stamp_step,
        control,
    }
}
