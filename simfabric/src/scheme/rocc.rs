//! RoCC: see [`Rocc`] for senders and [`net::queue::rocc`](crate::net::queue::rocc) for switches.

use super::rdma::{self, RdmaFamily};
use super::{Built, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::queue::{Limit, rocc};
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Rocc, RoccConfig};
use crate::units::{Delay, Rate};

crate::parameters! {
    /// RoCC (CoNEXT 2020): each port's controller tells the senders of its flows one rate.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        ..
        /// Constants of switches.
        switch: rocc::RoccConfig = rocc::RoccConfig::default(),
        /// Time without an accepted rate after which a sender doubles its own (the authors' public
        /// modules: 55 µs).
        recovery_interval: Delay = Delay::from_us(55),
        /// Least rate of a sender.
        min_rate: Rate = Rate(100_000_000),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "rocc";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[
        rdma::QUEUE_KEYS,
        &[
            "interval",
            "rate_unit",
            "queue_unit_bytes",
            "alpha",
            "beta",
            "reference_bytes",
            "halving_bytes",
            "most_bytes",
            "least_rate",
            "notice_class",
            "notice_bytes",
        ],
    ];

    fn check(&self) -> Result<(), ParamError> {
        if self.recovery_interval.0 == Span::ZERO {
            return Err(ParamError::of("recovery_interval", "it must be above 0"));
        }
        self.switch.check()?;
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let queue = QueueConfig::Rocc(rocc::Config {
            control: self.switch.clone(),
            limit: Limit::default(),
        });
        let needs = self.rdma.needs(network).over(queue);
        let control = RoccConfig {
            recovery_interval: self.recovery_interval.0,
            min_rate_bps: self.min_rate.0 as f64,
        };
        let config = self.rdma.config(network, 0, None, control);
        Built::new(needs, move |_| Ok(Rdma::<Rocc>::new(config)))
    }
}
