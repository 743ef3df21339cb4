//! TIMELY: see [`Timely`].

use super::rdma::{self, RdmaFamily};
use super::{Built, Network, Scheme};
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::control::{Timely, TimelyConfig};
use crate::units::{Delay, Rate};

crate::parameters! {
    /// TIMELY (SIGCOMM 2015): rates follow the gradient of round-trip times.
    pub struct Config {
        ..
        /// Queue pairs and buffers.
        rdma: RdmaFamily = RdmaFamily::default(),
        /// Round trip below which rates rise (TIMELY §5: 50 µs).
        low: Delay = Delay::from_us(50),
        /// Round trip above which rates fall (TIMELY §5: 500 µs).
        high: Delay = Delay::from_us(500),
        /// Round trip by which the gradient is normalised (HPCC's public simulator: 20 µs).
        least_rtt: Delay = Delay::from_us(20),
        /// Weight of the newest difference (HPCC's public simulator: 0.875).
        weight: f64 = 0.875,
        /// Factor of a decrease (TIMELY §5: 0.8); unless given, 0.008 of the patched form (*ECN or
        /// Delay*, §5.2).
        beta: Option<f64> = None,
        /// Additive increase of a line of 10 Gbit/s, in proportion on others (TIMELY §5: 10
        /// Mbit/s).
        increase_per_10g: Rate = Rate(10_000_000),
        /// Additive increase from the sixth in a row on (TIMELY §4.3: five times as much).
        hyper_per_10g: Rate = Rate(50_000_000),
        /// Least rate (HPCC's public simulator: 1 Gbit/s).
        min_rate: Rate = Rate(1_000_000_000),
        /// Patched TIMELY (*ECN or Delay*, CoNEXT 2016, algorithm 2).
        patched: bool = false,
        /// A window of what is in flight at the rate on an idle path holds, too (HPCC §5.1, TIMELY
        /// + window).
        window: bool = false,
        /// A new rate holds from the packet after the next one on (HPCC's public simulator, by the
        /// goodput of its long flows); unless given, from the next one on.
        keep_turns: Option<bool> = None,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "timely";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[rdma::QUEUE_KEYS];

    fn check(&self) -> Result<(), ParamError> {
        if self.high.0 < self.low.0 {
            return Err(ParamError::of("high", "it must not be below `low`"));
        }
        for (key, time) in [("low", self.low), ("least_rtt", self.least_rtt)] {
            if time.0 == Span::ZERO {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        let beta = self.beta.unwrap_or(1.0);
        for (key, share) in [("weight", self.weight), ("beta", beta)] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        self.rdma.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = self.rdma.needs(network);
        let beta = if self.patched { 0.008 } else { 0.8 };
        let control = TimelyConfig {
            low: self.low.0,
            high: self.high.0,
            least_rtt: self.least_rtt.0,
            weight: self.weight,
            beta: self.beta.unwrap_or(beta),
            increase_share: self.increase_per_10g.0 as f64 / 10e9,
            hyper_share: self.hyper_per_10g.0 as f64 / 10e9,
            min_rate_bps: self.min_rate.0 as f64,
            patched: self.patched,
            window: self.window,
            keep_turns: self.keep_turns == Some(true),
        };
        let config = self.rdma.config(network, 0, None, control);
        Built::new(needs, move |_| Ok(Rdma::<Timely>::new(config)))
    }
}
