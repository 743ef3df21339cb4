//! DCQCN: see [`Dcqcn`] for senders and [`net::queue::ecn_ramp`](crate::net::queue::ecn_ramp) for
//! switches.

use super::rdma::{self, RdmaFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::queue::{Limit, ecn_ramp};
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Dcqcn, DcqcnConfig, Reaction};
use crate::units::{Delay, Rate};

crate::parameters! {
    /// The reaction of senders to notifications.
    pub struct DcqcnFamily {
        /// Moment of a cut: "cnp", or "periodic", the rule of network interfaces in HPCC's public
        /// simulator, by marks that acknowledgements tell.
        reaction: Reaction = Reaction::Cnp,
        /// Least time between notifications of a flow (DCQCN §5.2: 50 µs).
        cnp_interval: Delay = Delay::from_us(50),
        /// Gain g of α (DCQCN §5.2: 1/256).
        gain: f64 = 1.0 / 256.0,
        /// Interval of α (DCQCN §5.2: 55 µs).
        alpha_interval: Delay = Delay::from_us(55),
        /// Interval of cuts that are periodic (HPCC's public simulator: 4 µs).
        decrease_interval: Delay = Delay::from_us(4),
        /// Time from a cut, or an increase, to the next increase (DCQCN §5.2: 55 µs).
        increase_interval: Delay = Delay::from_us(55),
        /// Bytes between increases (DCQCN §5.2: 10 MB); periodic cuts have no byte counter.
        byte_counter: u64 = 10_000_000,
        /// Stages F of fast recovery (DCQCN §3.1: 5).
        fast_recovery: u32 = 5,
        /// Additive increase (DCQCN §5.2: 40 Mbit/s).
        additive_increase: Rate = Rate(40_000_000),
        /// Hyper increase (the authors' public simulator: 200 Mbit/s).
        hyper_increase: Rate = Rate(200_000_000),
        /// Least rate (the authors' public simulator: 100 Mbit/s).
        min_rate: Rate = Rate(100_000_000),
        /// A window of what is in flight at the rate on an idle path holds, too (HPCC §5.1, DCQCN +
        /// window).
        window: bool = false,
    }
}

impl DcqcnFamily {
    pub(super) fn check(&self) -> Result<(), ParamError> {
        if !(self.gain > 0.0 && self.gain <= 1.0) {
            return Err(ParamError::of("gain", "it must be above 0 and at most 1"));
        }
        for (key, interval) in [
            ("cnp_interval", self.cnp_interval),
            ("alpha_interval", self.alpha_interval),
            ("decrease_interval", self.decrease_interval),
            ("increase_interval", self.increase_interval),
        ] {
            if interval.0 == Span::ZERO {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        if self.byte_counter == 0 {
            return Err(ParamError::of("byte_counter", "it must be above 0"));
        }
        Ok(())
    }

    pub(super) fn control(&self) -> DcqcnConfig {
        DcqcnConfig {
            reaction: self.reaction,
            gain: self.gain,
            alpha_interval: self.alpha_interval.0,
            decrease_interval: self.decrease_interval.0,
            increase_interval: self.increase_interval.0,
            byte_counter: self.byte_counter,
            fast_recovery: self.fast_recovery,
            additive_bps: self.additive_increase.0 as f64,
            hyper_bps: self.hyper_increase.0 as f64,
            min_rate_bps: self.min_rate.0 as f64,
            window: self.window,
        }
    }

    /// Least time between a receiver's notifications of one flow, if it sends any.
    pub(super) fn cnp_interval(&self) -> Option<Delay> {
        (self.reaction == Reaction::Cnp).then_some(self.cnp_interval)
    }
}

crate::parameters! {
    /// DCQCN (SIGCOMM 2015): rates fall by receivers' notifications of marks, and rise in stages.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        ..
        /// Senders.
        dcqcn: DcqcnFamily = DcqcnFamily::default(),
        /// Bytes up to which switches mark nothing on links of `mark_rate`, in proportion on others
        /// (DCQCN §5.2: 5 kB).
        mark_min_bytes: u64 = 5_000,
        /// Bytes beyond which switches mark everything on links of `mark_rate` (DCQCN §5.2: 200
        /// kB).
        mark_max_bytes: u64 = 200_000,
        /// Probability of a mark at `mark_max_bytes` (DCQCN §5.2: 1 %).
        mark_probability: f64 = 0.01,
        /// Rate of links that both lengths are for (DCQCN §5.2: 40 Gbit/s).
        mark_rate: Rate = Rate(40_000_000_000),
    }
}

impl Config {
    /// The queue of a port of this rate.
    fn queue(&self, rate_bps: u64) -> QueueConfig {
        let scaled = |bytes: u64| {
            let bytes = u128::from(bytes) * u128::from(rate_bps);
            u64::try_from(bytes / u128::from(self.mark_rate.0.max(1))).unwrap_or(u64::MAX)
        };
        QueueConfig::EcnRamp(ecn_ramp::Config {
            limit: Limit::default(),
            mark_min_bytes: scaled(self.mark_min_bytes),
            mark_max_bytes: scaled(self.mark_max_bytes),
            mark_probability: self.mark_probability,
        })
    }
}

impl Scheme for Config {
    const NAME: &'static str = "dcqcn";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[
        rdma::QUEUE_KEYS,
        &[
            "mark_min_bytes",
            "mark_max_bytes",
            "mark_probability",
            "mark_rate",
        ],
    ];

    fn check(&self) -> Result<(), ParamError> {
        self.dcqcn.check()?;
        if self.mark_max_bytes < self.mark_min_bytes {
            let message = "it must not be below `mark_min_bytes`";
            return Err(ParamError::of("mark_max_bytes", message));
        }
        if !(0.0..=1.0).contains(&self.mark_probability) {
            let message = "it must be at least 0 and at most 1";
            return Err(ParamError::of("mark_probability", message));
        }
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = FabricNeeds {
            switches: Some([
                self.queue(network.edge_bps()),
                self.queue(network.core_bps()),
            ]),
            ..self.rdma.needs(network)
        };
        let (control, cnp_interval) = (self.dcqcn.control(), self.dcqcn.cnp_interval());
        let config = self.rdma.config(network, 0, cnp_interval, control);
        Built::new(needs, move |_| Ok(Rdma::<Dcqcn>::new(config)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_in_proportion_to_the_rate() {
        let config = Config::default();
        let thresholds = [40, 100].map(|gbps| match config.queue(gbps * 1_000_000_000) {
            QueueConfig::EcnRamp(ramp) => (ramp.mark_min_bytes, ramp.mark_max_bytes),
            other => panic!("{other:?}"),
        });
        assert_eq!(thresholds, [(5_000, 200_000), (12_500, 500_000)]);
    }
}
