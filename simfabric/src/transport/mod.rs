//! The trait of a transport scheme, and the context through which it acts.
//!
//! One instance per run holds the state of all flows of all hosts. It is sans-IO: the run calls it
//! for starts, packets and timers, and it acts through the [`Context`].

pub mod constant;
pub mod flowtune;
pub mod ideal;
pub mod paced;
pub mod ranges;
pub mod tcp;
pub mod window;

use ratewright_topology::{HostId, Topology};

use crate::ext::{Extension, Extensions};
use crate::flow::{FlowId, FlowProgress, FlowSpec};
use crate::net::Framing;
use crate::packet::{Flags, Packet};
use crate::rng::Stream;
use crate::run::core::Core;
pub use crate::run::timers::TimerId;
use crate::time::{Span, Time};

/// A transport scheme.
pub trait Transport {
    /// Handles the begin of the run; for schemes with clocks of their own.
    fn on_begin(&mut self, _cx: &mut Context<'_>) {}

    /// Handles the start of a flow: its bytes are ready at its source host.
    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId);

    /// Handles the stop of a flow's application: bytes that were not sent yet will not be.
    fn on_stop(&mut self, _cx: &mut Context<'_>, _flow: FlowId) {}

    /// Handles a packet that reached its host, or the allocator. [`Context::take_extension`] takes
    /// its extension, if it has one; an extension that is not taken is freed.
    fn on_packet(&mut self, cx: &mut Context<'_>, host: HostId, packet: Packet);

    /// Prefetches the state that [`on_packet`](Self::on_packet) will touch for a packet that
    /// arrives soon. It may not arrive, and nothing may change.
    fn prefetch(&self, _packet: &Packet) {}

    /// Prefetches, a few events later, the memory to which that state points. Returns a timer that
    /// the packet will move.
    fn prefetch_again(&self, _packet: &Packet) -> Option<TimerId> {
        None
    }

    /// Prefetches the state that [`on_timer`](Self::on_timer) will touch, in steps from 0 to 2.
    /// Each step may read what the step before has fetched. Returns a host that will send by its
    /// link.
    fn prefetch_timer(&self, _token: u64, _step: u32) -> Option<HostId> {
        None
    }

    /// Handles a timer that fires.
    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64);

    /// Returns true if hosts act on each other by packets only: the scheme's actions at a host
    /// depend on nothing but past events at that host, and the specification of a flow. Regions of
    /// a large fabric may then be simulated one after the other
    /// ([`Config::regions`](crate::run::Config::regions)), which is faster. Calls for one host are in order of time; those for different hosts within a
    /// link's delay need not be. Flows may begin in another order than that of their numbers.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns the scheme's own counters, by name.
    fn summary(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// A transport's view of the run, through which it acts.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
}

impl Context<'_> {
    /// Returns the simulated time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.core.now
    }

    /// Returns the stream of random numbers of the scheme at a host, or at the allocator.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn rng(&mut self, host: HostId) -> &mut Stream {
        &mut self.core.chance.hosts[host.index()]
    }

    /// Returns a flow's specification.
    ///
    /// # Panics
    /// If the flow has not begun.
    #[inline]
    #[must_use]
    pub fn flow(&self, flow: FlowId) -> &FlowSpec {
        self.core.shared.flows.spec(flow)
    }

    /// Returns a flow's progress.
    ///
    /// # Panics
    /// If the flow has not begun.
    #[must_use]
    pub fn progress(&self, flow: FlowId) -> &FlowProgress {
        self.core.shared.flows.progress(flow)
    }

    /// Returns the number of hosts, without the allocator.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.core.topology.hosts().len() as u32
    }

    /// Returns the network in its present state.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.core.topology
    }

    /// Returns the allocator's node, if there is one.
    #[must_use]
    pub fn allocator(&self) -> Option<HostId> {
        self.core.allocator
    }

    /// Returns the framing.
    #[inline]
    #[must_use]
    pub fn framing(&self) -> Framing {
        self.core.framing
    }

    /// Returns the rate of a host's link, in bit/s.
    #[must_use]
    pub fn nic_rate_bps(&self, host: HostId) -> u64 {
        self.core.nic(host).rate_bps()
    }

    /// Returns the entropy by which switches choose the path of a flow's packets, in its own
    /// direction or in the other. With symmetric ECMP both are the same, so that acknowledgements
    /// take the path back.
    #[inline]
    #[must_use]
    pub fn path_hash(&self, flow: FlowId, reverse: bool) -> u16 {
        let reverse = reverse && !self.core.symmetric;
        self.core.chance.paths.of(flow.0, reverse)
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

    /// Returns the side table of extensions, for its buffers.
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

    /// Cancels a timer. Returns false if it has fired or was cancelled.
    pub fn cancel(&mut self, timer: TimerId) -> bool {
        self.core.timers.cancel(timer)
    }

    /// Moves a timer to another time, with the same token. Later costs nothing, as for a
    /// retransmission timer that every acknowledgement pushes back; earlier costs a new event.
    /// Returns the timer's new id; `None` if the timer has fired or was cancelled.
    #[must_use = "the timer may have another id now"]
    pub fn move_timer(&mut self, timer: TimerId, at: Time) -> Option<TimerId> {
        self.core.move_timer(timer, at)
    }

    /// Counts `bytes` more bytes that the receiver of a flow has in order.
    #[inline]
    pub fn delivered(&mut self, flow: FlowId, bytes: u64) {
        self.core.delivered(flow, bytes);
    }

    /// Completes a flow: the receiver has every byte, and the flow completion time is now − start.
    /// Only the first call counts.
    pub fn complete(&mut self, flow: FlowId) {
        self.core.complete(flow);
    }

    /// Counts a retransmission.
    pub fn retransmitted(&mut self, flow: FlowId) {
        self.core.shared.flows.progress_mut(flow).retransmits += 1;
    }

    /// Returns the bytes that wait in a host's NIC, without the packet that is being sent.
    pub fn nic_backlog_bytes(&mut self, host: HostId) -> u64 {
        self.core.nic_backlog_bytes(host)
    }

    /// Makes an acknowledgement of a packet, addressed back to its sender: flow, time stamp, echo
    /// of the congestion mark, path back. All other fields are the scheme's.
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
            // The echo lets a sender measure round trips without state per packet.
            stamp: to.stamp,
            flags,
            wire_bytes: self.core.framing.wire_bytes(0),
            ..Packet::default()
        }
    }
}
