//! HPCC: see [`Hpcc`].

use super::rdma::{self, RdmaFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::Telemetry;
use crate::parameters::ParamError;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Hpcc, HpccConfig};
use crate::units::Rate;

crate::parameters! {
    /// The window of HPCC, and the bytes of its telemetry.
    pub struct HpccFamily {
        /// Target load η (HPCC §3.3: 95 %).
        eta: f64 = 0.95,
        /// Additive steps before a multiplicative one below η (HPCC §3.3: 5).
        max_stage: u32 = 5,
        /// Additive increase W_AI / T of a line of 25 Gbit/s, in proportion on others (HPCC's
        /// public simulator: 10 Mbit/s).
        increase_per_25g: Rate = Rate(10_000_000),
        /// Least rate (HPCC's public simulator: 1 Gbit/s).
        min_rate: Rate = Rate(1_000_000_000),
        /// Every acknowledgement moves the window; otherwise one per round trip does (HPCC §3.2).
        per_ack: bool = true,
        /// Bytes of telemetry that its carriers reserve on the link (HPCC §4.1, FNCC fig. 7: 2 and
        /// 8 for each of 5 hops).
        int_bytes: u16 = 42,
    }
}

impl HpccFamily {
    pub(super) fn check(&self) -> Result<(), ParamError> {
        if !(self.eta > 0.0 && self.eta <= 1.0) {
            return Err(ParamError::of("eta", "it must be above 0 and at most 1"));
        }
        rdma::check_int_bytes(self.int_bytes)
    }

    pub(super) fn control(&self) -> HpccConfig {
        HpccConfig {
            eta: self.eta,
            max_stage: self.max_stage,
            increase_share: self.increase_per_25g.0 as f64 / 25e9,
            min_rate_bps: self.min_rate.0 as f64,
            per_ack: self.per_ack,
        }
    }
}

crate::parameters! {
    /// HPCC (SIGCOMM 2019): windows follow the load of the most loaded hop, by telemetry on data.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        ..
        /// Window and telemetry.
        hpcc: HpccFamily = HpccFamily::default(),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "hpcc";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[rdma::QUEUE_KEYS];

    fn check(&self) -> Result<(), ParamError> {
        self.hpcc.check()?;
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = FabricNeeds {
            telemetry: Telemetry::Asked,
            ..self.rdma.needs(network)
        };
        let control = self.hpcc.control();
        let int_bytes = self.hpcc.int_bytes;
        let config = self.rdma.config(network, int_bytes, None, control);
        Built::new(needs, move |_| Ok(Rdma::<Hpcc>::new(config)))
    }
}
