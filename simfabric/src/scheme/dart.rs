//! Dart: see [`Dart`] for senders, [`dasr`](crate::transport::rdma::dasr) for receivers, and
//! [`net::deflection`](crate::net::deflection) for switches.
//!
//! | part | class |
//! |---|---|
//! | acknowledgements, notifications | 0, before all data (§VI-A) |
//! | data | 1 |
//! | data that went up again after it had come down | 2 and more, the escape lanes (§IV-B), which share what class 0 leaves with class 1 |

use super::dcqcn::DcqcnFamily;
use super::rdma::{self, RdmaFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::deflection::{Deflection, MAX_ENTRIES};
use crate::net::queue::classes::{MAX_CLASSES, Service};
use crate::net::queue::{ClassConfig, ClassMask, Limit, drop_tail, ecn_threshold};
use crate::packet::Packet;
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Dart, DartConfig};
use crate::transport::rdma::dasr::DasrConfig;
use crate::units::Delay;

crate::parameters! {
    /// Dart (2018): receivers apportion their line to their senders, switches deflect short
    /// messages, and DCQCN answers to the rest.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily { ack_priority: true, ..RdmaFamily::default() },
        ..
        /// The fall-back.
        dcqcn: DcqcnFamily = DcqcnFamily::default(),
        /// Receivers tell senders by which number to divide the line's rate (§III).
        dasr: bool = true,
        /// Messages of an incast name its other senders (§III-D).
        look_ahead: bool = true,
        /// Time without a packet after which a sender is taken for dead (§III-B: 2 s).
        idle_time_out: Delay = Delay::from_ms(2_000),
        /// Part of the line's rate from which on a receiver's line counts as full (§III-C: "equal
        /// to line rate"; 0.95 leaves room for a packet of another class in 15).
        full_share: f64 = 0.95,
        /// Packets over which a receiver measures its throughput (15 full ones are the 22.5 kB that
        /// wait before a marked packet).
        measured_packets: u32 = 15,
        /// Time after a mark from which on nothing is congested; unless given, `base_rtt`.
        quiet: Option<Delay> = None,
        /// Time from a change of the set of active senders until acknowledgements tell it: 0 where
        /// the NIC maintains the set (§V-A: software takes longer).
        set_delay: Delay = Delay::from_ms(0),
        /// Senders of each workload are counted apart, as of a tenant (§III-E).
        tenants: bool = false,
        /// Sources mark packets of queue pairs that are `mark_bytes` behind their rate (§III-C).
        source_marks: bool = true,
        /// Switches deflect short messages (§IV).
        deflection: bool = true,
        /// Entries of a switch's table of deflected messages (§VI-A: 8).
        deflection_entries: u32 = 8,
        /// Bytes in the queue of a packet's route above which it is deflected (§VI-A: 15 kB).
        deflection_bytes: u64 = 15_000,
        /// Deflections that a packet may meet (§VI-A: 4).
        deflection_tokens: u8 = 4,
        /// Packets that deflection leads up again go on in classes of their own, against deadlocks
        /// (§IV-B).
        escape: bool = true,
        /// Bytes in a switch's queue from which on it marks (§VI-A: 22.5 kB).
        mark_bytes: u64 = 22_500,
        /// Number that receivers tell whatever they count: a lie, for studies of attacks.
        tells: Option<u16> = None,
        /// Senders take what receivers tell; without it they lie, for studies of attacks.
        heeds: bool = true,
    }
}

impl Config {
    /// The queue of a switch's port: acknowledgements first, data and the escape lanes in turns.
    fn queue(&self) -> QueueConfig {
        let data = ClassConfig {
            queue: QueueConfig::EcnThreshold(ecn_threshold::Config {
                limit: Limit::default(),
                mark_packets: None,
                mark_bytes: Some(self.mark_bytes),
            }),
            service: Service::Weighted(1),
            shaper: None,
        };
        let first = ClassConfig {
            queue: QueueConfig::DropTail(drop_tail::Config::default()),
            ..ClassConfig::default()
        };
        let mut classes = Vec::new();
        if self.rdma.ack_priority {
            classes.push(first);
        }
        let [first, last] = self.escape_lanes().unwrap_or_default();
        classes.extend((first..=last).map(|_| data.clone()));
        QueueConfig::Classes(classes)
    }

    /// The class of data, and that of packets after as many valleys as they have tokens.
    fn escape_lanes(&self) -> Option<[u8; 2]> {
        let own = u8::from(self.rdma.ack_priority);
        (self.deflection && self.escape).then_some([own, own + self.deflection_tokens])
    }
}

impl Scheme for Config {
    const NAME: &'static str = "dart";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[
        rdma::QUEUE_KEYS,
        &[
            "deflection",
            "deflection_entries",
            "deflection_bytes",
            "deflection_tokens",
            "escape",
            "mark_bytes",
        ],
    ];

    fn check(&self) -> Result<(), ParamError> {
        if !(self.full_share > 0.0 && self.full_share <= 1.0) {
            let message = "it must be above 0 and at most 1";
            return Err(ParamError::of("full_share", message));
        }
        if !(1..=10_000).contains(&self.measured_packets) {
            let message = "it must be 1 to 10000";
            return Err(ParamError::of("measured_packets", message));
        }
        if self.idle_time_out.0 == Span::ZERO {
            return Err(ParamError::of("idle_time_out", "it must be above 0"));
        }
        if !(1..=MAX_ENTRIES).contains(&(self.deflection_entries as usize)) {
            let message = format!("it must be 1 to {MAX_ENTRIES}");
            return Err(ParamError::of("deflection_entries", message));
        }
        if !(1..=Packet::MAX_TOKENS).contains(&self.deflection_tokens) {
            let message = format!("it must be 1 to {}", Packet::MAX_TOKENS);
            return Err(ParamError::of("deflection_tokens", message));
        }
        if self
            .escape_lanes()
            .is_some_and(|[_, last]| usize::from(last) >= MAX_CLASSES)
        {
            let message = "each token needs an escape lane; there are 8 classes";
            return Err(ParamError::of("deflection_tokens", message));
        }
        if self.rdma.short_priority {
            let message = "Dart gives short messages other paths, and not another class";
            return Err(ParamError::of("short_priority", message));
        }
        if self.tells == Some(0) {
            return Err(ParamError::of("tells", "it must be at least 1"));
        }
        self.dcqcn.check()?;
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let mut needs = FabricNeeds {
            switches: Some([self.queue(), self.queue()]),
            deflection: self.deflection.then_some(Deflection {
                table_entries: self.deflection_entries as usize,
                threshold_bytes: self.deflection_bytes,
                tokens: self.deflection_tokens,
                short_bytes: self.rdma.short_bytes,
                escape_lanes: self.escape_lanes(),
            }),
            ..self.rdma.needs(network)
        };
        if let Some([first, last]) = self.escape_lanes() {
            needs.classes = last + 1;
            let lossless = needs
                .shared_buffer
                .as_mut()
                .and_then(|b| b.lossless.as_mut());
            if let Some(lossless) = lossless {
                let lanes = (first..=last).map(|class| ClassMask::of(class.into()));
                lossless.classes = lanes.fold(lossless.classes, ClassMask::or);
            }
        }
        let control = DartConfig {
            dcqcn: self.dcqcn.control(),
            heeds: self.heeds,
        };
        let mut config = self
            .rdma
            .config(network, 0, self.dcqcn.cnp_interval(), control);
        config.source_mark_bytes = self.source_marks.then_some(self.mark_bytes);
        config.dasr = self.dasr.then_some(DasrConfig {
            idle_time_out: self.idle_time_out.0,
            full_share: self.full_share,
            measured_packets: self.measured_packets as usize,
            quiet: self.quiet.map_or(config.base_rtt, |quiet| quiet.0),
            look_ahead: self.look_ahead,
            set_delay: self.set_delay.0,
            tenants: self.tenants,
            told: self.tells,
        });
        Built::new(needs, move |_| Ok(Rdma::<Dart>::new(config)))
    }
}
