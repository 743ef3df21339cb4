//! Swift: see [`Swift`].

use super::tcp::{self, TcpFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::{Swift, SwiftConfig};
use crate::units::Delay;

crate::parameters! {
    /// Swift (SIGCOMM 2020): the window keeps the delay of packets at a target. Hosts' processing
    /// is a delay without a queue here, so that the window for it never limits.
    pub struct Config {
        ..
        /// A bandwidth-delay product at 100 Gbit/s at first (SIRD §6.2), time-outs of a datacenter.
        tcp: TcpFamily = TcpFamily {
            initial_window_packets: 66,
            min_rto: Delay::from_us(200),
            initial_rto: Delay::from_ms(1),
            ..TcpFamily::default()
        },
        /// Target delay of a path without switches, and of large windows (SIRD table 2: 15 µs).
        base_target: Delay = Delay::from_us(15),
        /// Addition for each switch on the path (§3.5; SIRD table 2: 1 µs).
        per_hop: Delay = Delay::from_us(1),
        /// Largest addition for small windows (§3.5; SIRD table 2: 75 µs).
        flow_scaling: Delay = Delay::from_us(75),
        /// Window, in packets, at which that addition is largest (SIRD table 2: 0.1).
        flow_scaling_least: f64 = 0.1,
        /// Window, in packets, from which there is none (SIRD table 2: 100).
        flow_scaling_most: f64 = 100.0,
        /// Packets that the window grows by in a round trip (SIRD table 2: 1).
        additive_increase: f64 = 1.0,
        /// Share of the excess delay by which the window shrinks (SIRD table 2: 0.8).
        beta: f64 = 0.8,
        /// Largest share by which it shrinks at once (SIRD table 2: 0.5).
        largest_decrease: f64 = 0.5,
        /// Least window, in packets (SIRD's simulator: 0.001).
        least_window: f64 = 0.001,
        /// Time-outs in a row from which the window is the least (SIRD's simulator: 12).
        reset_after: u32 = 12,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "swift";

    fn check(&self) -> Result<(), ParamError> {
        for (key, value, most) in [
            (
                "flow_scaling_least",
                self.flow_scaling_least,
                self.flow_scaling_most,
            ),
            ("flow_scaling_most", self.flow_scaling_most, f64::MAX),
            ("additive_increase", self.additive_increase, f64::MAX),
            ("beta", self.beta, f64::MAX),
            ("least_window", self.least_window, 2.0),
        ] {
            // Written so that NaN fails, too.
            if !(value > 0.0 && value < most) {
                let message = format!("it must be above 0 and below {most}");
                return Err(ParamError::of(key, message));
            }
        }
        if !(self.largest_decrease > 0.0 && self.largest_decrease < 1.0) {
            let message = "it must be above 0 and below 1";
            return Err(ParamError::of("largest_decrease", message));
        }
        tcp::time_out("base_target", self.base_target)?;
        self.tcp.check()
    }

    fn build(self, _: &Network<'_>) -> Built {
        let control = SwiftConfig {
            base_target: self.base_target.0,
            per_hop: self.per_hop.0,
            flow_scaling: self.flow_scaling.0,
            flow_scaling_packets: [self.flow_scaling_least, self.flow_scaling_most],
            additive_increase: self.additive_increase,
            beta: self.beta,
            largest_decrease: self.largest_decrease,
            least_packets: self.least_window,
            reset_after: self.reset_after,
        };
        Built::new(FabricNeeds::default(), move |_| {
            Ok(Tcp::<Swift>::new(self.tcp.config(control)))
        })
    }
}
