//! Transport schemes, and the context through which they act.
//!
//! A [`Transport`] makes an [`Endpoint`] per host. Endpoints are sans-IO: the run calls them for
//! starts, packets, timers and pulls, and they act through the [`Context`].

pub mod flowtune;
pub mod ideal;
pub mod message;
pub mod ranges;
pub mod rdma;
mod slots;
pub mod tcp;

use rand::RngExt as _;
use ratewright_topology::{HostId, Topology};

use crate::control::link_check::LinkFinding;
use crate::ext::{Extension, Extensions};
pub use crate::flow::NO_SLOT;
use crate::flow::{FlowId, FlowProgress, FlowSpec};
use crate::host::pair::PairHost;
use crate::host::{Endpoint, Side, Timer};
use crate::net::Framing;
use crate::net::queue::ClassMask;
use crate::packet::{Flags, Packet, PacketKind};
use crate::rng::Stream;
use crate::run::core::Core;
pub use crate::run::timers::TimerId;
use crate::time::{Span, Time};

/// Invariant of a scheme that a run broke. Every occurrence is a defect of the scheme.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the scheme broke its invariant: {law}; {found} where {bound} is right, or the most")]
pub struct BrokenInvariant {
    /// The invariant.
    pub law: &'static str,
    /// Number that broke it.
    pub found: u64,
    /// Number that it is to be, or that it must not exceed.
    pub bound: u64,
}

impl BrokenInvariant {
    /// Checks that a number does not exceed its bound.
    ///
    /// # Errors
    /// If it does.
    pub fn unless_within(law: &'static str, found: u64, bound: u64) -> Result<(), Self> {
        if found > bound {
            return Err(Self { law, found, bound });
        }
        Ok(())
    }

    /// Checks that a number is what it is to be.
    ///
    /// # Errors
    /// If it is not.
    pub fn unless_equal(law: &'static str, found: u64, bound: u64) -> Result<(), Self> {
        if found != bound {
            return Err(Self { law, found, bound });
        }
        Ok(())
    }
}

/// State that the hosts of a run share.
pub trait SharedByHosts: Send + Sized {
    /// Returns such a state for another partition of the fabric; `None` if hosts act on each other
    /// through it, and so must be simulated together.
    fn divide(&self) -> Option<Self> {
        None
    }
}

/// Hosts that share nothing act on each other by packets only.
impl SharedByHosts for () {
    fn divide(&self) -> Option<Self> {
        Some(())
    }
}

/// A transport scheme: its parameters, from which the hosts of a run get their endpoints.
pub trait Transport: Sized + 'static {
    /// State that the hosts share; `()` for schemes whose hosts act on each other by packets only.
    /// Regions of a large fabric may then be simulated one after the other, or by several threads.
    type Shared: SharedByHosts;
    /// The scheme at one host.
    type Endpoint: Endpoint<Shared = Self::Shared> + Send;

    /// Makes the endpoints of `nodes` hosts, of which the last is the allocator's node if the
    /// fabric has one, and what they share.
    fn start(self, nodes: u32) -> (Self::Shared, Vec<Self::Endpoint>);

    /// Returns the scheme's own counters, by name.
    fn summary(_shared: &Self::Shared, _endpoints: &[&Self::Endpoint]) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Returns the links that the check of the scheme's allocator named, in the order of time.
    fn findings(_shared: &Self::Shared, _endpoints: &[&Self::Endpoint]) -> Vec<LinkFinding> {
        Vec::new()
    }

    /// Checks the scheme's invariants, after every run.
    ///
    /// # Errors
    /// The first that was broken.
    fn check(
        _shared: &Self::Shared,
        _endpoints: &[&Self::Endpoint],
    ) -> Result<(), BrokenInvariant> {
        Ok(())
    }
}

/// An endpoint's view of the run, through which it acts.
#[derive(Debug)]
pub struct Context<'a, S = ()> {
    pub(crate) core: &'a mut Core,
    /// State that the hosts of the run share.
    pub shared: &'a mut S,
    pub(crate) host: HostId,
    /// Number of the endpoint's part of a [pair](crate::host::pair); otherwise 0.
    pub(crate) part: u8,
}

impl<S> Context<'_, S> {
    /// Returns the endpoint's host.
    #[inline]
    #[must_use]
    pub fn me(&self) -> HostId {
        self.host
    }

    /// Asks the interface to pull: there may be something to send.
    #[inline]
    pub fn wake(&mut self) {
        self.core.woken = true;
    }

    /// Returns the queue classes whose packets the host's link takes: those that are not paused.
    /// The interface pulls again when others open.
    #[inline]
    #[must_use]
    pub fn open_classes(&self) -> ClassMask {
        let uplink = self.core.fabric.routes.host_uplink(self.host.0);
        uplink.map_or(ClassMask::ALL, |port| {
            self.core.fabric.ports[port as usize].open_classes()
        })
    }

    /// Calls another host's [`Endpoint::on_poke`] after this call, because what both share has
    /// changed.
    pub fn poke(&mut self, host: HostId) {
        self.core.poked.push(host);
    }

    /// Returns the slot in which this end of a flow keeps its state; [`NO_SLOT`] if it keeps none.
    ///
    /// # Panics
    /// If the flow has not begun, or is [`FlowId::NONE`].
    #[inline]
    #[must_use]
    pub fn slot(&self, flow: FlowId, side: Side) -> u32 {
        self.own_slot(self.core.shared.flows.slot(flow, side))
    }

    /// Takes the number of the part of a pair out of a slot.
    #[inline]
    fn own_slot(&self, slot: u32) -> u32 {
        if self.part == 0 || slot == NO_SLOT {
            return slot;
        }
        slot & !(1 << PairHost::SLOT_BIT)
    }

    /// Returns the slot in which this end of a flow keeps its state; `None` if it keeps none, or
    /// the flow is retired: for packets that are not the flow's own and may outlive it, as a
    /// [`Notice`](crate::net::Notice). The end must give up its slot ([`NO_SLOT`]) when it is done
    /// with the flow, since regions may retire it sooner or later after that.
    #[must_use]
    pub fn find_slot(&self, flow: FlowId, side: Side) -> Option<u32> {
        let flows = &self.core.shared.flows;
        let is_active = flows.is_active(flow);
        let slot = is_active.then(|| flows.slot(flow, side));
        let slot = slot.filter(|slot| *slot != NO_SLOT);
        slot.map(|slot| self.own_slot(slot))
    }

    /// Sets the slot in which this end of a flow keeps its state.
    #[inline]
    pub fn set_slot(&mut self, flow: FlowId, side: Side, slot: u32) {
        let slot = if self.part == 0 || slot == NO_SLOT {
            slot
        } else {
            slot | 1 << PairHost::SLOT_BIT
        };
        self.core.shared.flows.set_slot(flow, side, slot);
    }

    /// Returns the simulated time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Time {
        self.core.now
    }

    /// Returns the stream of random numbers of the scheme at this host, or at the allocator.
    pub fn rng(&mut self) -> &mut Stream {
        &mut self.core.chance.hosts[self.host.index()][usize::from(self.part)]
    }

    /// Returns a flow's specification.
    ///
    /// # Panics
    /// If the flow has not begun, or is retired.
    #[inline]
    #[must_use]
    pub fn flow(&self, flow: FlowId) -> &FlowSpec {
        self.core.shared.flows.spec(flow)
    }

    /// Returns a flow's specification; `None` unless it has begun and is not retired.
    #[inline]
    pub(crate) fn find_flow(&self, flow: FlowId) -> Option<&FlowSpec> {
        let flows = &self.core.shared.flows;
        flows.is_active(flow).then(|| flows.spec(flow))
    }

    /// Returns the senders of a [group](FlowSpec::group); none of a group that is not known.
    #[must_use]
    pub fn group(&self, group: u8) -> &[HostId] {
        let groups = &self.core.groups;
        let members = usize::from(group)
            .checked_sub(1)
            .and_then(|at| groups.get(at));
        members.map_or(&[], Vec::as_slice)
    }

    /// Returns a flow's progress.
    ///
    /// # Panics
    /// If the flow has not begun, or is retired.
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

    /// Returns the entropy by which switches choose the path of a flow's packets to this end of it.
    /// The flow itself is read only if the two directions differ.
    #[inline]
    #[must_use]
    pub fn path_hash_to(&self, flow: FlowId, end: HostId) -> u16 {
        let reverse = !self.core.symmetric && self.flow(flow).src == end;
        self.path_hash(flow, reverse)
    }

    /// Draws path entropy for one packet, as a sender does that sprays.
    #[inline]
    pub fn spray(&mut self) -> u16 {
        self.rng().random()
    }

    /// Sends a control packet: by way of the interface's own queue, which goes before data.
    #[inline]
    pub fn send(&mut self, packet: Packet) {
        self.core.send(self.host, packet);
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

    /// Sets a timer: [`Endpoint::on_timer`] gets it at this time, or now if it has passed.
    pub fn timer(&mut self, at: Time, timer: Timer) -> TimerId {
        let kind = timer.kind | self.part << PairHost::KIND_BIT;
        let timer = Timer { kind, ..timer };
        self.core.set_timer(at, timer.token(self.host))
    }

    /// Sets a timer after this span.
    pub fn timer_in(&mut self, span: Span, timer: Timer) -> TimerId {
        self.timer(self.core.now + span, timer)
    }

    /// Moves a timer to another time, or sets it if it is not pending.
    pub fn restart_timer(&mut self, id: &mut Option<TimerId>, at: Time, timer: Timer) {
        let moved = id.and_then(|id| self.move_timer(id, at));
        *id = Some(moved.unwrap_or_else(|| self.timer(at, timer)));
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

    /// Reports that this host, which sends the flow, knows that the receiver has every byte. Only
    /// the first call counts. Once the flow is complete and none of its packets is in the fabric,
    /// it retires: nothing may ask for it any more.
    pub fn acknowledged(&mut self, flow: FlowId) {
        self.core.shared.flows.acknowledged(flow, self.core.now);
    }

    /// Counts a retransmission.
    pub fn retransmitted(&mut self, flow: FlowId) {
        self.core.shared.flows.retransmitted(flow);
    }

    /// Makes the packet with a flow's next bytes, from `seq` on, for schemes that resend nothing.
    #[must_use]
    pub fn next_data(&self, flow: FlowId, seq: u64) -> Packet {
        let spec = self.flow(flow);
        let framing = self.framing();
        let payload = (spec.bytes - seq).min(u64::from(framing.mss_bytes)) as u16;
        let is_last = seq + u64::from(payload) == spec.bytes;
        Packet {
            flags: if is_last { Flags::FIN } else { Flags::NONE },
            kind: PacketKind::Data,
            flow,
            src: spec.src,
            dst: spec.dst,
            seq,
            payload_bytes: payload,
            wire_bytes: framing.wire_bytes(payload),
            path_hash: self.path_hash(flow, false),
            class: spec.class,
            stamp: self.now(),
            ..Packet::default()
        }
    }

    /// Counts a data packet of a scheme that resends nothing: each byte arrives at most once, so
    /// that a count says when the flow is complete.
    pub fn count_arrival(&mut self, packet: &Packet) {
        let flow = packet.flow;
        self.delivered(flow, u64::from(packet.payload_bytes));
        if self.progress(flow).delivered_bytes == self.flow(flow).bytes {
            self.complete(flow);
        }
    }

    /// Makes an acknowledgement of a packet, addressed back to its sender: flow, class, time stamp,
    /// echo of the congestion mark, path back. All other fields are the scheme's.
    #[must_use]
    pub fn reply(&self, to: &Packet) -> Packet {
        let mut flags = Flags::NONE;
        if to.flags.contains(Flags::CE) {
            flags.insert(Flags::ECE);
        }
        Packet {
            kind: PacketKind::Ack,
            flow: to.flow,
            src: to.dst,
            dst: to.src,
            path_hash: self.path_hash(to.flow, true),
            class: to.class,
            // The echo lets a sender measure round trips without state per packet.
            stamp: to.stamp,
            flags,
            wire_bytes: self.core.framing.wire_bytes(0),
            ..Packet::default()
        }
    }
}
