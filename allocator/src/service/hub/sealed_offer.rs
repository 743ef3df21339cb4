//! Offer of sealed datagrams to hosts.

use std::net::Ipv4Addr;

use ratewright_proto::control::SealedUdp;
use ratewright_proto::sealed::Cipher;

/// Ports for sealed datagrams, and how hosts seal datagrams to them.
#[derive(Debug, Default)]
pub(super) struct SealedOffer {
    /// Number of each UDP port; `None` once it is lost. Empty where QUIC carries everything.
    ports: Vec<Option<u16>>,
    cipher: Cipher,
    address: Option<Ipv4Addr>,
}

impl SealedOffer {
    /// Offers session `id` port `ports[id % ports.len()]`, at `address` or, without one, at the
    /// address of the QUIC session.
    pub(super) fn new(ports: Vec<u16>, cipher: Cipher, address: Option<Ipv4Addr>) -> Self {
        Self {
            ports: ports.into_iter().map(Some).collect(),
            cipher,
            address,
        }
    }

    /// Withdraws a lost port: no later session is offered it.
    pub(super) fn lose(&mut self, index: usize) {
        if let Some(port) = self.ports.get_mut(index) {
            *port = None;
        }
    }

    /// Returns the offer to a session, if there is one.
    pub(super) fn of_session(&self, id: u32) -> Option<SealedUdp> {
        let workers = u32::try_from(self.ports.len()).ok().filter(|&n| n > 0)?;
        Some(SealedUdp {
            port: self.ports[(id % workers) as usize]?,
            address: self.address,
            cipher: self.cipher,
        })
    }
}
