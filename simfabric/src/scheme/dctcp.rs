//! DCTCP: see [`Dctcp`].

use super::tcp::{self, TcpFamily};
use super::{Built, FabricNeeds, Network, Scheme};
use crate::net::QueueConfig;
use crate::net::queue::{Limit, ecn_threshold};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::{Dctcp, DctcpConfig};
use crate::units::Rate;

crate::parameters! {
    /// DCTCP (SIGCOMM 2010, RFC 8257): the window shrinks by the share of bytes that were marked.
    pub struct Config {
        ..
        /// Windows, time-outs, marks.
        tcp: TcpFamily = TcpFamily { ecn: true, ..TcpFamily::default() },
        /// Weight of the newest window in the estimate (RFC 8257 §4.2: 1/16).
        gain: f64 = 1.0 / 16.0,
        /// Packets from which switches mark on links of `mark_rate`, in proportion on others (§3.5:
        /// 65).
        mark_packets: u32 = 65,
        /// Rate of links that `mark_packets` is for (§3.5: 10 Gbit/s).
        mark_rate: Rate = Rate(10_000_000_000),
        /// Packets that a switch's queue holds (flowtune §5.3 gives none; about 1.5 MB).
        buffer_packets: u32 = 1_000,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "dctcp";
    const QUEUE_KEYS: &'static [&'static [&'static str]] =
        &[&["mark_packets", "mark_rate", "buffer_packets"]];

    fn check(&self) -> Result<(), ParamError> {
        self.tcp.check()?;
        tcp::buffer("buffer_packets", self.buffer_packets.into())?;
        // Written so that NaN fails, too.
        if !(self.gain > 0.0 && self.gain <= 1.0) {
            return Err(ParamError::of("gain", "it must be above 0 and at most 1"));
        }
        Ok(())
    }

    fn build(self, network: &Network<'_>) -> Built {
        let control = self.control();
        Built::new(self.needs(network), move |_| {
            Ok(Tcp::<Dctcp>::new(self.tcp.config(control)))
        })
    }
}

impl Config {
    /// The parameters of the congestion control.
    pub(super) fn control(&self) -> DctcpConfig {
        DctcpConfig { gain: self.gain }
    }

    /// Demands on the fabric: queues that mark.
    pub(super) fn needs(&self, network: &Network<'_>) -> FabricNeeds {
        let queue = |rate_bps: u64| {
            let limit = Limit::packets(self.buffer_packets);
            let mark_at = self.mark_at(rate_bps);
            QueueConfig::EcnThreshold(ecn_threshold::Config::packets(mark_at, limit))
        };
        FabricNeeds {
            switches: Some([queue(network.edge_bps()), queue(network.core_bps())]),
            ..FabricNeeds::default()
        }
    }

    /// The threshold of a port.
    fn mark_at(&self, rate_bps: u64) -> u32 {
        let scaled = u128::from(self.mark_packets) * u128::from(rate_bps)
            / u128::from(self.mark_rate.0.max(1));
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGCOMM 2010 §3.5: K in proportion to the rate.
    #[test]
    fn thresholds_are_in_proportion_to_the_rate() {
        let config = Config::default();
        let marks = [10, 40, 100].map(|gbps| config.mark_at(gbps * 1_000_000_000));
        assert_eq!(marks, [65, 260, 650]);
    }
}
