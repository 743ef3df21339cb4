//! Constant rates: see [`ConstantRate`].

use super::{Built, FabricNeeds, Network, Scheme};
use crate::transport::constant::ConstantRate;
use crate::units::Rate;

crate::parameters! {
    /// Every flow sends at a fixed rate, without feedback; losses are not repaired.
    pub struct Config {
        /// Rate of each flow on the link.
        rate: Rate = Rate(1_000_000_000),
    }
}

impl Scheme for Config {
    const NAME: &'static str = "constant";

    fn build(self, _: &Network<'_>) -> Built {
        Built::new(FabricNeeds::default(), move |_| {
            Ok(ConstantRate::new(self.rate.0))
        })
    }
}
