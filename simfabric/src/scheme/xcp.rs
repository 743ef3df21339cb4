//! XCP: see [`Xcp`] for senders and [`net::queue::xcp`](crate::net::queue::xcp) for routers.

use super::tcp::{self, TcpFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::queue::{QueueLimit, XcpConfig};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::Xcp;
use crate::units::Delay;

crate::parameters! {
    /// XCP (SIGCOMM 2002): routers compute the change of every flow's window.
    pub struct Config {
        ..
        /// Windows, time-outs, marks.
        tcp: TcpFamily = TcpFamily::default(),
        /// Routers' control interval before any round trip is known (ns-2: 50 ms).
        first_interval: Delay = Delay::from_us(100),
        /// Routers' control interval after one without traffic (ns-2: 50 ms); unless given, the
        /// last mean round trip.
        idle_interval: Option<Delay> = None,
        /// Routers' shortest control interval (ns-2: 1 ms).
        least_interval: Delay = Delay::from_us(0),
        /// Packets that a switch's queue holds.
        buffer_packets: u32 = 1_000,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "xcp";

    fn check(&self) -> Result<(), ParamError> {
        tcp::buffer("buffer_packets", self.buffer_packets.into())?;
        self.tcp.check()
    }

    fn build(self, _: &Network<'_>) -> Built {
        let needs = FabricNeeds::own_discipline(QueueConfig::Xcp {
            control: XcpConfig {
                first_interval: self.first_interval.0,
                idle_interval: self.idle_interval.map(|idle| idle.0),
                least_interval: self.least_interval.0,
                ..XcpConfig::default()
            },
            limit: QueueLimit::Packets(self.buffer_packets),
        });
        Built::new(needs, move |_| Ok(Tcp::<Xcp>::new(self.tcp.config(()))))
    }
}
