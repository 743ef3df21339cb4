//! The trait of a transport scheme, and what it acts through.
//!
//! One instance per run holds the state of all flows of all hosts. It is sans-IO: it is told of
//! starts, packets and timers, and answers through the [`Context`].

pub mod constant;
pub mod flowtune;
pub mod ideal;
pub mod paced;
pub mod ranges;
pub mod tcp;
pub mod window;

use rand::RngExt as _;
use ratewright_topology::{HostId, Topology};

use crate::SimRng;
use crate::ext::{Extension, Extensions};
use crate::flow::{FlowId, FlowProgress, FlowSpec};
use crate::net::Framing;
use crate::packet::{Flags, Packet};
use crate::run::core::Core;
pub use crate::run::timers::TimerId;
use crate::time::{Span, Time};

/// A transport scheme.
pub trait Transport {
    /// The run begins; for schemes with clocks of their own.
    fn on_begin(&mut self, _cx: &mut Context<'_>) {}

    /// A flow begins: its bytes are there to be sent, at its source host.
    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId);

    /// The application of a flow stops: bytes that were not sent yet will not be.
    fn on_stop(&mut self, _cx: &mut Context<'_>, _flow: FlowId) {}

    /// A packet reached its host, or the allocator. Its extension, if it has one, is taken with
    /// [`Context::take_extension`]; what is not taken is freed.
    fn on_packet(&mut self, cx: &mut Context<'_>, host: HostId, packet: Packet);

    /// A packet will be delivered soon: a chance to fetch what [`on_packet`](Self::on_packet) will
    /// touch into the cache. It may not be, and must change nothing.
    fn prefetch(&self, _packet: &Packet) {}

    /// The same a little later, when that is in the cache: for what it points to. A timer that the
    /// packet will move is returned.
    fn prefetch_again(&self, _packet: &Packet) -> Option<TimerId> {
        None
    }

    /// A timer will fire soon: the same for [`on_timer`](Self::on_timer), in steps from 0 to 2,
    /// each of which may look at what the step before has fetched. A host that will send by its
    /// link is returned.
    fn prefetch_timer(&self, _token: u64, _step: u32) -> Option<HostId> {
        None
    }

    /// A timer fires.
    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64);

    /// Whether hosts act on each other by packets only: what the scheme does at a host depends on
    /// nothing but what happened at that host, and on what is known of a flow from its beginning.
    /// Then parts of a large fabric may go through time one after the other
    /// ([`Order`](crate::run::Order)), which is faster; the calls for one host are in the order of
    /// time, those for different hosts within a link's delay need not be. Flows may begin in
    /// another order than that of their numbers.
    fn is_local(&self) -> bool {
        false
    }

    /// The scheme's own counters, by name.
    fn summary(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// What a transport sees of the run, and acts through.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
}

impl Context<'_> {
    /// The time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.core.now
    }

    /// The run's generator.
    pub fn rng(&mut self) -> &mut SimRng {
        &mut self.core.shared.rng
    }

    /// What was asked for.
    ///
    /// # Panics
    /// If the flow has not begun.
    #[inline]
    #[must_use]
    pub fn flow(&self, flow: FlowId) -> &FlowSpec {
        self.core.shared.flows.spec(flow)
    }

    /// How far a flow got.
    ///
    /// # Panics
    /// If the flow has not begun.
    #[must_use]
    pub fn progress(&self, flow: FlowId) -> &FlowProgress {
        self.core.shared.flows.progress(flow)
    }

    /// How many hosts there are; the allocator is none of them.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.core.topology.hosts().len() as u32
    }

    /// The network, in its present state.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.core.topology
    }

    /// The allocator's node, if there is one.
    #[must_use]
    pub fn allocator(&self) -> Option<HostId> {
        self.core.allocator
    }

    /// Bytes around the payload.
    #[inline]
    #[must_use]
    pub fn framing(&self) -> Framing {
        self.core.framing
    }

    /// The rate of a host's link, in bit/s.
    #[must_use]
    pub fn nic_rate_bps(&self, host: HostId) -> u64 {
        self.core.nic(host).rate_bps()
    }

    /// What switches choose by for packets of a flow, in its own direction or in the other. With
    /// symmetric ECMP both are the same, so that acknowledgements take the way back.
    #[inline]
    #[must_use]
    pub fn path_hash(&self, flow: FlowId, reverse: bool) -> u32 {
        let hash = self.core.shared.flows.spec(flow).path_hash;
        if reverse && !self.core.symmetric {
            // Any other hash of the same entropy does: odd multiplication and shift are one to one.
            let mixed = hash.wrapping_mul(0x9E37_79B1);
            mixed ^ (mixed >> 15)
        } else {
            hash
        }
    }

    /// Sends a packet from a host: into the queue of its NIC.
    #[inline]
    pub fn send(&mut self, host: HostId, packet: Packet) {
        self.core.send(host, packet);
    }

    /// Attaches an extension to a packet that is to be sent.
    pub fn attach_extension(&mut self, packet: &mut Packet, extension: Extension) {
        self.core.shared.extensions.attach(packet, extension);
    }

    /// Takes the extension of a packet that arrived.
    pub fn take_extension(&mut self, packet: &mut Packet) -> Option<Extension> {
        self.core.shared.extensions.take(packet)
    }

    /// The side table of extensions, for its buffers.
    pub fn extensions(&mut self) -> &mut Extensions {
        &mut self.core.shared.extensions
    }

    /// Sets a timer: [`Transport::on_timer`] gets the token at this time, or now if it has passed.
    pub fn timer(&mut self, at: Time, token: u64) -> TimerId {
        self.core.set_timer(at, token)
    }

    /// Sets a timer after this span.
    pub fn timer_in(&mut self, span: Span, token: u64) -> TimerId {
        self.core.set_timer(self.core.now + span, token)
    }

    /// Stops a timer. False if it has fired or was stopped.
    pub fn cancel(&mut self, timer: TimerId) -> bool {
        self.core.timers.cancel(timer)
    }

    /// Moves a timer to another time, with the same token. Later costs nothing (a retransmission
    /// timer that every acknowledgement pushes back); earlier costs a new event. Returns the
    /// timer's id from now on; none if the timer has fired or was stopped.
    #[must_use = "the timer may have another id now"]
    pub fn move_timer(&mut self, timer: TimerId, at: Time) -> Option<TimerId> {
        self.core.move_timer(timer, at)
    }

    /// The receiver of a flow has so many more bytes in order.
    #[inline]
    pub fn delivered(&mut self, flow: FlowId, bytes: u64) {
        self.core.delivered(flow, bytes);
    }

    /// The receiver has every byte: the flow completion time is now − start. Only the first call
    /// counts.
    pub fn complete(&mut self, flow: FlowId) {
        self.core.complete(flow);
    }

    /// A packet is about to be sent again.
    pub fn retransmitted(&mut self, flow: FlowId) {
        self.core.shared.flows.progress_mut(flow).retransmits += 1;
    }

    /// Bytes that wait in a host's NIC, without the packet that is being sent.
    pub fn nic_backlog_bytes(&mut self, host: HostId) -> u64 {
        self.core.nic_backlog_bytes(host)
    }

    /// An acknowledgement of a packet, addressed back to its sender: flow, stamp, an echo of the
    /// congestion mark, the way back; everything else is the scheme's.
    #[must_use]
    pub fn reply(&self, to: &Packet) -> Packet {
        let mut flags = Flags::NONE;
        if to.flags.contains(Flags::CE) {
            flags.insert(Flags::ECE);
        }
        Packet {
            kind: crate::packet::PacketKind::Ack,
            flow: to.flow,
            src: to.dst,
            dst: to.src,
            path_hash: self.path_hash(to.flow, true),
            stamp: to.stamp,
            flags,
            wire_bytes: self.core.framing.wire_bytes(0),
            ..Packet::default()
        }
    }

    /// A hash for traffic that belongs to no flow.
    pub fn random_hash(&mut self) -> u32 {
        self.core.shared.rng.random()
    }
}
