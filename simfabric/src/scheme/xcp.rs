//! XCP: see [`Xcp`] for senders and [`net::queue::xcp`](crate::net::queue::xcp) for routers.

use super::tcp::{self, TcpFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::queue::{Limit, XcpConfig, xcp};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::Xcp;

crate::parameters! {
    /// XCP (SIGCOMM 2002): routers compute the change of every flow's window.
    pub struct Config {
        ..
        /// Windows, time-outs, marks.
        tcp: TcpFamily = TcpFamily::default(),
        ..
        /// Constants of routers.
        router: XcpConfig = XcpConfig::default(),
        /// Packets that a switch's queue holds.
        buffer_packets: u32 = 1_000,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "xcp";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[&[
        "alpha",
        "beta",
        "gamma",
        "first_interval",
        "idle_interval",
        "least_interval",
        "buffer_packets",
    ]];

    fn check(&self) -> Result<(), ParamError> {
        tcp::buffer("buffer_packets", self.buffer_packets.into())?;
        self.tcp.check()
    }

    fn build(self, _: &Network<'_>) -> Built {
        let needs = FabricNeeds::own_discipline(QueueConfig::Xcp(xcp::Config {
            control: self.router.clone(),
            limit: Limit::packets(self.buffer_packets),
        }));
        Built::new(needs, move |_| Ok(Tcp::<Xcp>::new(self.tcp.config(()))))
    }
}
