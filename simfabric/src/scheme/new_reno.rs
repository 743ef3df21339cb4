//! TCP NewReno: see [`NewReno`].

use super::tcp::TcpFamily;
use super::{Built, FabricNeeds, Network, Scheme};
use crate::parameters::ParamError;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::NewReno;

crate::parameters! {
    /// TCP NewReno (RFC 5681, RFC 6582): additive increase, halving.
    pub struct Config {
        ..
        /// Windows, time-outs, marks.
        tcp: TcpFamily = TcpFamily::default(),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "newreno";

    fn check(&self) -> Result<(), ParamError> {
        self.tcp.check()
    }

    fn build(self, _: &Network<'_>) -> Built {
        Built::new(FabricNeeds::default(), move |_| {
            Ok(Tcp::<NewReno>::new(self.tcp.config(())))
        })
    }
}
