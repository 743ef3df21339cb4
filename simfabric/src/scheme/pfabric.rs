//! pFabric: see [`PFabric`] for senders and [`net::queue::pfabric`](crate::net::queue::pfabric) for
//! switches.

use super::tcp::{self, TcpFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::host::Policy;
use crate::net::QueueConfig;
use crate::net::queue::{Limit, pfabric};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::{PFabric, PFabricConfig};
use crate::units::Delay;

crate::parameters! {
    /// pFabric (SIGCOMM 2013): switches send and keep the packets with the fewest bytes to go.
    pub struct Config {
        ..
        /// A bandwidth-delay product at once and a fixed time-out (§4.3, §5.1: 12 packets, 45 µs);
        /// the host's queue sends the flow with the fewest bytes to go (§4.2).
        tcp: TcpFamily = TcpFamily {
            initial_window_packets: 12,
            fixed_rto: Some(Delay::from_us(45)),
            arbiter: Policy::Srpt,
            ..TcpFamily::default()
        },
        /// Largest window, in packets (the authors' ns-2 code: 15).
        largest_window_packets: u32 = 15,
        /// Bytes that a switch's queue holds (§5.1: 36 KB, two bandwidth-delay products).
        buffer_bytes: u64 = 36_864,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "pfabric";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[&["buffer_bytes"]];

    fn check(&self) -> Result<(), ParamError> {
        tcp::window("largest_window_packets", self.largest_window_packets)?;
        tcp::buffer("buffer_bytes", self.buffer_bytes)?;
        self.tcp.check()
    }

    fn build(self, _: &Network<'_>) -> Built {
        let needs = FabricNeeds::own_discipline(QueueConfig::PFabric(pfabric::Config {
            limit: Limit::bytes(self.buffer_bytes),
        }));
        let control = PFabricConfig {
            largest_window_packets: self.largest_window_packets,
        };
        Built::new(needs, move |_| {
            Ok(Tcp::<PFabric>::new(self.tcp.config(control)))
        })
    }
}
