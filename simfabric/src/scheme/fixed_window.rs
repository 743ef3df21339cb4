//! A constant window: see [`ConstantWindow`].

use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::parameters::ParamError;
use crate::transport::window::ConstantWindow;

crate::parameters! {
    /// Every flow keeps a fixed number of packets in flight; losses are not repaired.
    pub struct Config {
        /// Packets in flight.
        packets: u32 = 10,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "fixed-window";

    fn check(&self) -> Result<(), ParamError> {
        if self.packets == 0 {
            let message = "a window of 0 packets sends nothing";
            return Err(ParamError::of("packets", message));
        }
        tcp::window("packets", self.packets)
    }

    fn build(self, _: &Network<'_>) -> Built {
        Built::new(FabricNeeds::default(), move |_| {
            Ok(ConstantWindow::new(self.packets))
        })
    }
}
