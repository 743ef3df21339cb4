//! TCP CUBIC: see [`Cubic`].

use serde::{Deserialize, Serialize};

use super::tcp::TcpFamily;
use super::{Built, FabricNeeds, Network, Scheme};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::{Cubic, CubicConfig, CubicGrowth};

crate::parameters! {
    /// TCP CUBIC (RFC 9438): the window is a cubic function of the time since the last reduction.
    pub struct Config {
        ..
        /// Windows, time-outs, marks.
        tcp: TcpFamily = TcpFamily::default(),
        /// Growth: "continuous" (RFC 9438 §4.4), or "counted" by whole packets (Linux, ns-3).
        growth: Growth = Growth::Continuous,
        /// Packets acknowledged per packet of counted growth at most, before the first loss (Linux
        /// and ns-3: 20).
        first_limit: u32 = 20,
        /// The window grows at least as NewReno's (RFC 9438 §4.3).
        reno_friendly: bool = true,
        /// Slow start ends by HyStart (Ha and Rhee 2011 §3.2).
        hystart: bool = true,
    }
}

/// Growth of the window along the cubic function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// By fractions of a packet.
    Continuous,
    /// By whole packets.
    Counted,
}

impl Scheme for Config {
    const NAME: &'static str = "cubic";

    fn check(&self) -> Result<(), ParamError> {
        self.tcp.check()
    }

    fn build(self, _: &Network<'_>) -> Built {
        let control = self.control();
        Built::new(FabricNeeds::default(), move |_| {
            Ok(Tcp::<Cubic>::new(self.tcp.config(control)))
        })
    }
}

impl Config {
    /// The parameters of the congestion control.
    pub(super) fn control(&self) -> CubicConfig {
        CubicConfig {
            growth: match self.growth {
                Growth::Continuous => CubicGrowth::Continuous,
                Growth::Counted => CubicGrowth::Counted {
                    first_limit: self.first_limit,
                },
            },
            reno_friendly: self.reno_friendly,
            hystart: self.hystart,
        }
    }
}
