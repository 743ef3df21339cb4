//! Ratewright: the allocator's rates as maxima over the hosts' own TCP.

use serde::{Deserialize, Serialize};

use super::allocation::{Allocation, Step};
use super::tcp::TcpFamily;
use super::{Built, FabricNeeds, Network, Scheme, cubic, dctcp};
use crate::control::Carrier;
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::flowtune::{Flowtune, FlowtuneConfig};
use crate::transport::tcp::congestion::{Congestion, Cubic, Dctcp};
use crate::transport::tcp::{Maximum, TcpConfig};
use crate::units::Delay;

crate::parameters! {
    /// Ratewright as in production: rates are maxima over the TCP that hosts have.
    pub struct Config {
        ..
        /// Allocator and sessions.
        allocation: Allocation = Allocation {
            control: Carrier::Datagram,
            step: Step::Safeguarded,
            ..Allocation::default()
        },
        ..
        /// Windows, time-outs, marks.
        tcp: TcpFamily = TcpFamily::default(),
        /// Congestion control of hosts: "cubic", or "dctcp" with its queues; each with its
        /// defaults.
        over: Over = Over::Cubic,
        /// Packets that a flow below its rate saves up, and may send at once.
        credit_packets: u32 = 10,
        /// Time at its rate whose bytes it saves up, if these are more.
        credit_time: Delay = Delay::from_ms(1),
        /// Window in which hosts measure what flows use of their rates; 0: they do not.
        demand_window: Delay = Delay::from_ms(20),
    }
}

/// Congestion control of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// CUBIC.
    Cubic,
    /// DCTCP.
    Dctcp,
}

impl Config {
    /// The scheme over a congestion control.
    fn over<C: Congestion>(
        &self,
        network: &Network<'_>,
        queues: FabricNeeds,
        control: C::Config,
    ) -> Built {
        let tcp = TcpConfig {
            ecn: self.tcp.ecn || self.over == Over::Dctcp,
            maximum: Some(Maximum {
                credit_packets: self.credit_packets,
                credit_time: self.credit_time.0,
            }),
            ..self.tcp.config(control)
        };
        let config = FlowtuneConfig {
            demand_window: Some(self.demand_window.0).filter(|window| *window > Span::ZERO),
            ..self.allocation.config::<C>(network, tcp)
        };
        let told = network.told.clone();
        let needs = FabricNeeds {
            switches: queues.switches,
            ..self.allocation.needs()
        };
        Built {
            never_idle: true,
            ..Built::new(needs, move |topology| {
                Ok(Flowtune::new(&told.of(topology).into(), config)?)
            })
        }
    }
}

impl Scheme for Config {
    const NAME: &'static str = "ratewright";

    fn check(&self) -> Result<(), ParamError> {
        self.tcp.check()?;
        self.allocation.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        match self.over {
            Over::Cubic => {
                let control = cubic::Config::default().control();
                self.over::<Cubic>(network, FabricNeeds::default(), control)
            }
            Over::Dctcp => {
                let dctcp = dctcp::Config::default();
                let queues = dctcp.needs(network);
                self.over::<Dctcp>(network, queues, dctcp.control())
            }
        }
    }
}
