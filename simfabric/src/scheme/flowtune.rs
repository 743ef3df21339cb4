//! Flowtune: see [`transport::flowtune`](crate::transport::flowtune).

use super::allocation::Allocation;
use super::{Built, Network, Scheme, tcp};
use crate::parameters::ParamError;
use crate::transport::flowtune::{Flowtune, paced_tcp};
use crate::transport::tcp::TcpConfig;
use crate::transport::tcp::congestion::Allocated;
use crate::units::Delay;

crate::parameters! {
    /// Flowtune (NSDI 2017): the production allocator and sessions, with the paper's parameters.
    pub struct Config {
        ..
        /// Allocator and sessions.
        allocation: Allocation = Allocation::default(),
        /// Packets that a flowlet sends before its first rate (RFC 6928: 10; the paper gives none).
        initial_window_packets: u32 = 10,
        /// Least retransmission time-out of data.
        min_rto: Delay = Delay::from_us(200),
        /// Flows begin with SYN and SYN-ACK, while the allocator is told (§5.3).
        handshake: bool = false,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "flowtune";

    fn check(&self) -> Result<(), ParamError> {
        // 0 is a window here: a flowlet may wait for its first rate.
        tcp::bounded_window("initial_window_packets", self.initial_window_packets)?;
        tcp::time_out("min_rto", self.min_rto)?;
        self.allocation.check()
    }

    fn build(self, network: &Network<'_>) -> Built {
        let tcp = TcpConfig {
            initial_window_packets: self.initial_window_packets,
            min_rto: self.min_rto.0,
            handshake: self.handshake,
            ..paced_tcp()
        };
        let config = self.allocation.config::<Allocated>(network, tcp);
        let told = network.told.clone();
        Built {
            never_idle: true,
            ..Built::new(self.allocation.needs(), move |topology| {
                Ok(Flowtune::new(&told.of(topology).into(), config)?)
            })
        }
    }
}
