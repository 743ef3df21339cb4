//! Exact fair rates without a control plane: see [`Ideal`].

use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::control::ControlError;
use crate::parameters::ParamError;
use crate::transport::flowtune::paced_tcp;
use crate::transport::ideal::{Ideal, IdealConfig, Objective};
use crate::transport::tcp::TcpConfig;
use crate::units::Delay;

crate::parameters! {
    /// Exact fair rates for the active flows, known everywhere at once, without a message.
    pub struct Config {
        /// Rates are "max-min" fair (Fastpass), or "proportional" (Flowtune's objective).
        objective: Objective = Objective::MaxMin,
        /// Share of every link that is handed out; unless given, what acknowledgements leave to
        /// full packets.
        share: Option<f64> = None,
        /// Least retransmission time-out.
        min_rto: Delay = Delay::from_us(200),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "ideal";

    fn check(&self) -> Result<(), ParamError> {
        tcp::time_out("min_rto", self.min_rto)?;
        match self.share {
            Some(share) if !(share > 0.0 && share <= 1.0) => {
                let message = "the share of links must be above 0 and at most 1";
                Err(ParamError::of("share", message))
            }
            _ => Ok(()),
        }
    }

    fn build(self, network: &Network<'_>) -> Built {
        let framing = network.framing;
        let config = IdealConfig {
            objective: self.objective,
            tcp: TcpConfig {
                min_rto: self.min_rto.0,
                ..paced_tcp()
            },
            share: self.share.unwrap_or(framing.data_share()),
        };
        Built::new(FabricNeeds::default(), move |topology| {
            Ok(Ideal::new(topology, config).map_err(ControlError::from)?)
        })
    }
}
