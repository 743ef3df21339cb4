//! RCP: see [`Rcp`] for senders and [`net::queue::rcp`](crate::net::queue::rcp) for switches.

use super::rdma::{self, RdmaFamily};
use super::{Built, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::queue::{Limit, rcp};
use crate::parameters::ParamError;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Rcp, RcpConfig};
use crate::units::Rate;

crate::parameters! {
    /// RCP (IWQoS 2005): each port has one rate for all flows, which packets bring to senders.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        ..
        /// Constants of switches.
        switch: rcp::RcpConfig = rcp::RcpConfig::default(),
        /// Least rate of a sender.
        min_rate: Rate = Rate(10_000_000),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "rcp";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[
        rdma::QUEUE_KEYS,
        &[
            "alpha",
            "beta",
            "gamma",
            "first_share",
            "least_packets",
            "first_round_trip",
            "most_interval",
        ],
    ];

    fn check(&self) -> Result<(), ParamError> {
        self.switch.check()?;
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let queue = QueueConfig::Rcp(rcp::Config {
            control: self.switch.clone(),
            limit: Limit::default(),
        });
        let needs = self.rdma.needs(network).over(queue);
        let control = RcpConfig {
            min_rate_bps: self.min_rate.0 as f64,
        };
        let config = self.rdma.config(network, 0, None, control);
        Built::new(needs, move |_| Ok(Rdma::<Rcp>::new(config)))
    }
}
