//! The schemes that the paper compares (flowtune §5.3), each with its queues, on the paper's
//! network.
//!
//! The paper takes the authors' ns-2 code and gives no parameters. [`Assumptions`] has all of ours,
//! and `docs/simfabric/reproduction.md` their effects:
//!
//! | scheme | parameters | source |
//! |---|---|---|
//! | DCTCP | marks from 65 packets on at 10 Gbit/s, from four times that at 40 | SIGCOMM 2010 §3.5, which scales by the rate |
//! | pFabric | 12 packets at first, at most 15; time-out 45 µs; queues of 36 KB | its authors', for this network |
//! | sfqCoDel | target 10 µs, interval 200 µs | the Internet's 5 and 100 ms for round trips of 100 ms, scaled to 22 µs |
//! | XCP | its paper's; flows begin with one packet | XCP's paper; ns-2 |

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
    /// Flowtune: pacing at the allocator's rates.
    Flowtune,
    /// DCTCP.
    Dctcp,
    /// pFabric.
    PFabric,
    /// CUBIC over sfqCoDel.
    SfqCodel,
    /// XCP.
    Xcp,
    /// Flowtune without a control plane: exact fair rates, known everywhere at once. It is none of
    /// the paper's schemes, and bounds every row.
    Ideal,
}

/// Work that is generic over the transport of a scheme.
pub trait Visitor {
    /// Result of the work.
    type Output;

    /// Works with a scheme's fabric and transport.
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
    /// The paper's schemes, in its order.
    pub const ALL: [Self; 5] = [
        Self::Flowtune,
        Self::Dctcp,
        Self::PFabric,
        Self::SfqCodel,
        Self::Xcp,
    ];

    /// The scheme's name in figures.
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

    /// The queues of links to hosts and of links between switches; `None`: the fabric's own.
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
                // A time-out of 45 µs sends packets again that still wait here; in a queue as short
                // as the switches' they and their copies would push each other out.
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

    /// The assumptions, with the default for each that does not concern this scheme. Runs of equal
    /// relevant assumptions are equal.
    #[must_use]
    pub fn relevant(self, assumptions: &Assumptions) -> Assumptions {
        let usual = Assumptions::default();
        let mut own = *assumptions;
        // The counting is applied to a run's samples, not to the run.
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
        // Flowtune and the ideal run over the fabric's own queues, pFabric over its own, except for
        // a NIC that is first in, first out.
        if matches!(self, Self::Flowtune | Self::Ideal)
            || self == Self::PFabric && own.pfabric_nic != PFabricNic::Fifo
        {
            own.buffer = usual.buffer;
        }
        // pFabric sets no limit of its own, and the other two do not send by window.
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

    /// Calls the visitor with this scheme's fabric and transport on the paper's network.
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

/// Configuration of Flowtune. The paper lets servers start before an allocation has arrived (§6),
/// and gives no window for that.
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

/// Configuration of the ideal scheme. Its share of links leaves the rest to the acknowledgements of
/// as much data in the other direction.
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

/// Configuration of TCP with a datacenter's time-outs.
fn datacenter<C>(assumptions: &Assumptions, ecn: bool, control: C) -> TcpConfig<C> {
    let usual = TcpConfig::<()>::default();
    TcpConfig {
        ecn,
        initial_window_packets: assumptions.tcp_window_packets,
        min_rto: assumptions.min_rto,
        // The ratio of TCP's defaults, 1 s and 200 ms.
        initial_rto: assumptions.min_rto.mul_f64(5.0),
        nic_limit_packets: assumptions.nic_limit_packets,
        fixed_rto: usual.fixed_rto,
        handshake: assumptions.handshake,
        stamp_step: usual.stamp_step,
        control,
    }
}
