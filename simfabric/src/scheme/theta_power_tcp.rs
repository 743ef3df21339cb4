//! θ-PowerTCP: see [`ThetaPowerTcp`].

use super::rdma::{self, RdmaFamily};
use super::{Built, Network, Scheme};
use crate::parameters::ParamError;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{PowerTcpConfig, ThetaPowerTcp};
use crate::units::Rate;

crate::parameters! {
    /// θ-PowerTCP (NSDI 2022): windows follow the power of the path, by round-trip times alone.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        /// Weight γ of the newest rate (the authors' public simulator: 0.7).
        gamma: f64 = 0.7,
        /// Additive increase β (the authors' public simulator: 150 Mbit/s).
        increase: Rate = Rate(150_000_000),
        /// Factor of the least round trip that counts as idle (the authors' public simulator:
        /// 1.05).
        tolerance: f64 = 1.05,
        /// Least rate (the authors' public simulator: 100 Mbit/s).
        min_rate: Rate = Rate(100_000_000),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "theta-powertcp";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[rdma::QUEUE_KEYS];

    fn check(&self) -> Result<(), ParamError> {
        if !(self.gamma > 0.0 && self.gamma <= 1.0) {
            return Err(ParamError::of("gamma", "it must be above 0 and at most 1"));
        }
        if !(self.tolerance >= 1.0 && self.tolerance.is_finite()) {
            return Err(ParamError::of("tolerance", "it must be at least 1"));
        }
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = self.rdma.needs(network);
        let control = PowerTcpConfig {
            gamma: self.gamma,
            increase_bps: self.increase.0 as f64,
            eta: 1.0,
            tolerance: self.tolerance,
            min_rate_bps: self.min_rate.0 as f64,
            first_reacts: false,
        };
        let config = self.rdma.config(network, 0, None, control);
        Built::new(needs, move |_| Ok(Rdma::<ThetaPowerTcp>::new(config)))
    }
}
