//! FNCC: see [`Fncc`].
//!
//! A hash value stands for a spanning tree here: it chooses the switch of the highest tier, and
//! below it one way to every host. Symmetric hashing and spanning trees (FNCC §3.1, observation 2)
//! are therefore one thing in these networks, `symmetric = true`.

use super::hpcc::HpccFamily;
use super::rdma::{self, RdmaFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::Telemetry;
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Fncc, FnccConfig, LastHop};
use crate::units::Delay;

crate::parameters! {
    /// FNCC (2024): HPCC's windows, by telemetry that switches write into acknowledgements.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        ..
        /// Window and telemetry.
        hpcc: HpccFamily = HpccFamily::default(),
        /// Interval at which switches refresh the table that acknowledgements read (§4.1, which
        /// gives none); unless given, it is always up to date.
        table_period: Option<Delay> = None,
        /// Reaction to congestion of the last hop: "none", "reference" (§3.2.2, algorithm 3) or
        /// "window" (§3.2.2 in words).
        last_hop: LastHop = LastHop::Reference,
        /// Load of the last hop from which it is congested (§3.2.2: 1.05).
        alpha: f64 = 1.05,
        /// Part of the fair rate that flows take then (§3.2.2: 0.9).
        beta: f64 = 0.9,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "fncc";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[rdma::QUEUE_KEYS];

    fn check(&self) -> Result<(), ParamError> {
        if self
            .table_period
            .is_some_and(|period| period.0 == Span::ZERO)
        {
            return Err(ParamError::of("table_period", "it must be above 0"));
        }
        for (key, value) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        self.hpcc.check()?;
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = FabricNeeds {
            telemetry: Telemetry::Acknowledgements,
            telemetry_period: self.table_period.map(|period| period.0),
            ..self.rdma.needs(network)
        };
        let int_bytes = self.hpcc.int_bytes;
        let control = FnccConfig {
            hpcc: self.hpcc.control(),
            last_hop: self.last_hop,
            alpha: self.alpha,
            beta: self.beta,
        };
        let config = self.rdma.config(network, int_bytes, None, control);
        Built::new(needs, move |_| Ok(Rdma::<Fncc>::new(config)))
    }
}
