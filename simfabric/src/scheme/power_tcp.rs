//! PowerTCP: see [`PowerTcp`].

use super::rdma::{self, RdmaFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::Telemetry;
use crate::parameters::ParamError;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{PowerTcp, PowerTcpConfig};
use crate::units::Rate;

crate::parameters! {
    /// PowerTCP (NSDI 2022): windows follow the power of the most loaded hop, by telemetry on data.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        /// Weight γ of the newest rate (PowerTCP §3.3: 0.9).
        gamma: f64 = 0.9,
        /// Additive increase β (the authors' public simulator: 150 Mbit/s).
        increase: Rate = Rate(150_000_000),
        /// Target of the power (the authors' public simulator: 0.95).
        eta: f64 = 0.95,
        /// Least rate (the authors' public simulator: 100 Mbit/s).
        min_rate: Rate = Rate(100_000_000),
        /// A flow's first acknowledgement moves its rate, as if nothing had passed its hops before
        /// (the authors' public simulator); unless given, it is only noted.
        first_reacts: Option<bool> = None,
        /// Bytes of telemetry that data and acknowledgements reserve on the link (as HPCC).
        int_bytes: u16 = 42,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "powertcp";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[rdma::QUEUE_KEYS];

    fn check(&self) -> Result<(), ParamError> {
        for (key, share) in [("gamma", self.gamma), ("eta", self.eta)] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        rdma::check_int_bytes(self.int_bytes)?;
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = FabricNeeds {
            telemetry: Telemetry::Asked,
            ..self.rdma.needs(network)
        };
        let control = PowerTcpConfig {
            gamma: self.gamma,
            increase_bps: self.increase.0 as f64,
            eta: self.eta,
            tolerance: 1.0,
            min_rate_bps: self.min_rate.0 as f64,
            first_reacts: self.first_reacts == Some(true),
        };
        let config = self.rdma.config(network, self.int_bytes, None, control);
        Built::new(needs, move |_| Ok(Rdma::<PowerTcp>::new(config)))
    }
}
