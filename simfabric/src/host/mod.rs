//! Hosts: what a scheme does at one host, and the network interface that asks it for packets.
//!
//! | file | what lives there |
//! |---|---|
//! | [`arbiter`] | which of a host's flows sends next |
//! | [`pool`] | connections that stay open from flow to flow |
//! | [`pair`] | two schemes on one host |
//! | [`measure`] | what a host's schemes know of it, for the allocator's feeds |
//! | `nic` | the interface: asks its endpoint for the next packet when its link is free |
//!
//! An [`Endpoint`] never pushes data into the interface. Whoever has data to send calls
//! [`Context::wake`], and the interface *pulls*: one packet when the link is free and no control
//! packet waits. So retransmission clocks start when a packet leaves, an order among flows is
//! exact, and no data waits in the host that a pause could not stop. Control packets
//! (acknowledgements, notices, credits) have the interface's own queue, by [`Context::send`], and
//! leave before data.

pub mod arbiter;
pub mod measure;
pub(crate) mod nic;
pub mod pair;
pub mod pool;

pub use arbiter::{Arbiter, Policy, Turn};
pub use measure::Measured;
pub use pool::Pool;

use std::sync::Arc;

use ratewright_topology::HostId;

use crate::flow::FlowId;
use crate::packet::Packet;
use crate::time::Time;
use crate::transport::Context;

/// A set of hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSet(Arc<[bool]>);

impl HostSet {
    /// Makes a set from one answer for each host of the network.
    #[must_use]
    pub fn new(members: Vec<bool>) -> Self {
        Self(members.into())
    }

    /// Returns true if a host is in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, host: HostId) -> bool {
        self.0.get(host.index()).copied().unwrap_or(false)
    }

    /// Returns the hosts of the network that are not in the set.
    #[must_use]
    pub fn others(&self) -> Self {
        Self(self.0.iter().map(|member| !member).collect())
    }
}

/// A timer of an endpoint, as it named it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timer {
    /// Purpose of the timer, in the endpoint's own numbering.
    pub kind: u8,
    /// Subject of the timer: a flow's slot, another host.
    pub slot: u32,
}

impl Timer {
    /// Packs host and timer into one word.
    #[inline]
    pub(crate) const fn token(self, host: HostId) -> u64 {
        debug_assert!(host.0 <= Self::LAST_HOST, "a host's number has 24 bits");
        (self.slot as u64) << 32 | (self.kind as u64) << 24 | host.0 as u64
    }

    /// Largest number of a host or of the allocator's node.
    pub(crate) const LAST_HOST: u32 = (1 << 24) - 1;

    /// Kind of the timer at which a host measures. Its endpoints are then
    /// [asked](Endpoint::measure), and the one that set the timer
    /// [gets](Endpoint::on_measured) the answers.
    pub const MEASURE: u8 = 127;
    /// Slot of such a timer at which received payload is measured, too.
    pub const RECEIVED: u32 = 1;

    /// Takes host and timer out of a token.
    #[inline]
    pub(crate) const fn of(token: u64) -> (HostId, Self) {
        let host = HostId(token as u32 & Self::LAST_HOST);
        let timer = Self {
            kind: (token >> 24) as u8,
            slot: (token >> 32) as u32,
        };
        (host, timer)
    }
}

/// Answer of an endpoint to its interface, which is free.
#[derive(Clone, Copy, Debug)]
pub enum Pull {
    /// This packet leaves now, and there may be another one.
    Packet(Packet),
    /// This packet leaves now, and there is no other one until the endpoint wakes the interface.
    Last(Packet),
    /// Nothing leaves before this time.
    At(Time),
    /// There is nothing to send.
    Nothing,
}

/// End of a flow at which a host stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The host sends the flow's data.
    Sender = 0,
    /// The host receives it.
    Receiver = 1,
}

/// A scheme at one host.
///
/// An endpoint knows its own host alone: packets and timers come to it, and it acts through the
/// [`Context`]. What the hosts of a run share, if anything, is in `Shared`.
pub trait Endpoint {
    /// State that the hosts of a run share, as a central scheduler's. With `()`, hosts act on each
    /// other by packets only, and regions of a large fabric may be simulated apart.
    type Shared;

    /// Handles the begin of the run; for schemes with clocks of their own.
    fn on_begin(&mut self, _cx: &mut Context<'_, Self::Shared>) {}

    /// Handles the start of a flow: its bytes are ready at this host.
    fn on_start(&mut self, cx: &mut Context<'_, Self::Shared>, flow: FlowId);

    /// Handles the stop of a flow's application at this host, which sends it: bytes that were not
    /// sent yet will not be.
    fn on_stop(&mut self, _cx: &mut Context<'_, Self::Shared>, _flow: FlowId) {}

    /// Handles a packet that reached this host. [`Context::take_extension`] takes its extension, if
    /// it has one; what is not taken is freed.
    fn on_packet(&mut self, cx: &mut Context<'_, Self::Shared>, packet: &mut Packet);

    /// Handles a timer that fires.
    fn on_timer(&mut self, _cx: &mut Context<'_, Self::Shared>, _timer: Timer) {}

    /// Handles a [poke](Context::poke) by another host, which changed what both share.
    fn on_poke(&mut self, _cx: &mut Context<'_, Self::Shared>) {}

    /// Returns the next data packet, for the interface whose link is free. Called after
    /// [`Context::wake`], and again until it returns nothing more.
    fn pull(&mut self, _cx: &mut Context<'_, Self::Shared>) -> Pull {
        Pull::Nothing
    }

    /// Adds what this endpoint knows of its host as a receiver.
    fn measure(&self, _measured: &mut Measured) {}

    /// Takes the measurements of all endpoints of the host, at a timer of kind [`Timer::MEASURE`].
    fn on_measured(&mut self, _cx: &mut Context<'_, Self::Shared>, _measured: Measured) {}

    /// Returns the rate at which the flow in a sender's slot may send at most, in bit/s on the
    /// link; `None` for schemes without rates.
    fn rate_bps(&self, _slot: u32) -> Option<f64> {
        None
    }
}
