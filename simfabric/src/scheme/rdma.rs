//! Parameters that all RDMA schemes share.

use ratewright_topology::{HostId, PathChoice, Topology};

use super::{FabricNeeds, Network, tcp};
use crate::host::Policy;
use crate::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use crate::net::port::ByteTime;
use crate::net::queue::ClassMask;
use crate::net::switch::PAUSE_WIRE_BYTES;
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::rdma::{RdmaConfig, Recovery};
use crate::units::Delay;

/// Keys of the family that are about switches' queues.
pub(super) const QUEUE_KEYS: &[&str] = &[
    "lossless",
    "buffer_bytes",
    "buffer_alpha",
    "xoff_bytes",
    "xoff_alpha",
    "hysteresis_bytes",
    "headroom_bytes",
    "watchdog",
];

crate::parameters! {
    /// RDMA queue pairs, and the buffers of switches under them.
    pub struct RdmaFamily {
        /// Repair of losses: "go-back-n", or "selective-repeat" (IRN §3.1).
        recovery: Recovery = Recovery::GoBackN,
        /// Retransmission time-out; unless given, 4 ms with go-back-N (ConWeave's public simulator)
        /// and 320 µs with selective repeat (IRN §4.1).
        rto: Option<Delay> = None,
        /// Time-out while at most `rto_low_packets` are in flight; unless given, 100 µs with
        /// selective repeat (IRN §4.1) and none with go-back-N.
        rto_low: Option<Delay> = None,
        /// Packets in flight up to which `rto_low` holds (IRN §3.1: 3).
        rto_low_packets: u32 = 3,
        /// Least time between negative acknowledgements of one gap, with go-back-N (HPCC's public
        /// simulator: 500 µs).
        nack_interval: Delay = Delay::from_us(500),
        /// Data packets per acknowledgement.
        ack_every: u32 = 1,
        /// Acknowledgements and notifications are of a class of their own, which goes first.
        ack_priority: bool = false,
        /// Bytes of the longest flow that counts as short (Dart §VI-A: 8 kB).
        short_bytes: u64 = 8_192,
        /// Data of flows that are not short is of a class of its own, which goes last.
        short_priority: bool = false,
        /// Bytes on the link of an acknowledgement without telemetry; unless given, those of a
        /// packet without payload.
        ack_wire_bytes: Option<u16> = None,
        /// Bytes of each data packet beyond the framing's header, such as a time stamp; at most
        /// 1000 (HPCC's public simulator: 8 under TIMELY).
        stamp_bytes: u16 = 0,
        /// Order in which a host's queue pairs send: "fifo", "round-robin", "srpt" or "half".
        arbiter: Policy = Policy::RoundRobin,
        /// Round-trip time T of an idle path; unless given, the longest of a full packet and its
        /// acknowledgement.
        base_rtt: Option<Delay> = None,
        /// Priority flow control: switches pause senders instead of dropping packets.
        lossless: bool = true,
        /// Buffer that the ports of a switch share, without headroom (HPCC §5.1: 32 MB).
        buffer_bytes: u64 = 32_000_000,
        /// Part of the free buffer that a port and class may hold, where packets are dropped.
        buffer_alpha: f64 = 1.0,
        /// Bytes of a port and class from which its far end is paused; unless given, `xoff_alpha`
        /// decides.
        xoff_bytes: Option<u64> = None,
        /// Part of the free buffer from which on a port's far end is paused (HPCC's public
        /// simulator: 1/8).
        xoff_alpha: f64 = 0.125,
        /// Bytes below XOFF at which it is resumed (HPCC's public simulator: 3072).
        hysteresis_bytes: u64 = 3_072,
        /// Reserve of a port and class for what comes after XOFF; unless given, what the fastest
        /// and longest link needs.
        headroom_bytes: Option<u64> = None,
        /// Time after which a pause without a resume is a storm, which ends the run (Guo et al.,
        /// SIGCOMM 2016, §4.3: 100 ms).
        watchdog: Delay = Delay(USUAL_WATCHDOG),
    }
}

/// Checks the bytes that carriers of telemetry reserve.
pub(super) fn check_int_bytes(int_bytes: u16) -> Result<(), ParamError> {
    check_header("int_bytes", int_bytes)
}

/// Checks bytes that packets have beyond the framing's header.
fn check_header(key: &str, bytes: u16) -> Result<(), ParamError> {
    if bytes > 1_000 {
        return Err(ParamError::of(key, "it must be at most 1000"));
    }
    Ok(())
}

impl RdmaFamily {
    pub(super) fn check(&self) -> Result<(), ParamError> {
        for (key, time) in [("rto", self.rto), ("rto_low", self.rto_low)] {
            time.map_or(Ok(()), |time| tcp::time_out(key, time))?;
        }
        check_header("stamp_bytes", self.stamp_bytes)?;
        if self.ack_every == 0 {
            return Err(ParamError::of("ack_every", "it must be at least 1"));
        }
        if self.base_rtt.is_some_and(|rtt| rtt.0 == Span::ZERO) {
            return Err(ParamError::of("base_rtt", "a round trip takes some time"));
        }
        tcp::buffer("buffer_bytes", self.buffer_bytes)?;
        for (key, alpha) in [
            ("buffer_alpha", self.buffer_alpha),
            ("xoff_alpha", self.xoff_alpha),
        ] {
            // Written so that NaN fails, too.
            if !(alpha > 0.0 && alpha.is_finite()) {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        if self.watchdog.0 == Span::ZERO {
            return Err(ParamError::of("watchdog", "it must be above 0"));
        }
        if self.xoff_bytes == Some(0) {
            return Err(ParamError::of("xoff_bytes", "it must be above 0"));
        }
        Ok(())
    }

    /// Demands on the fabric, without queues and telemetry.
    pub(super) fn needs(&self, network: &Network<'_>) -> FabricNeeds {
        let classes = 1 + usize::from(self.ack_priority) + usize::from(self.short_priority);
        let lossless = Lossless {
            classes: (0..classes).fold(ClassMask::NONE, |all, class| all.or(ClassMask::of(class))),
            xoff: (self.xoff_bytes).map_or(Xoff::Alpha(self.xoff_alpha), Xoff::Bytes),
            hysteresis_bytes: self.hysteresis_bytes,
            headroom_bytes: (self.headroom_bytes).unwrap_or_else(|| headroom_bytes(network)),
            watchdog: self.watchdog.0,
        };
        FabricNeeds {
            classes: classes as u8,
            shared_buffer: Some(SharedBuffer {
                bytes: self.buffer_bytes,
                alpha: self.buffer_alpha,
                lossless: self.lossless.then_some(lossless),
            }),
            ..FabricNeeds::default()
        }
    }

    /// The configuration of a transport with this control, whose carriers of telemetry are longer
    /// by `int_bytes`.
    pub(super) fn config<C>(
        &self,
        network: &Network<'_>,
        int_bytes: u16,
        cnp_interval: Option<Delay>,
        control: C,
    ) -> RdmaConfig<C> {
        let selective = self.recovery == Recovery::SelectiveRepeat;
        let (rto, rto_low) = if selective {
            (Delay::from_us(320), Some(Delay::from_us(100)))
        } else {
            (Delay::from_ms(4), None)
        };
        let rto_low = self.rto_low.or(rto_low.filter(|_| self.rto.is_none()));
        RdmaConfig {
            recovery: self.recovery,
            rto: self.rto.unwrap_or(rto).0,
            rto_low: rto_low.map(|rto| (self.rto_low_packets, rto.0)),
            nack_interval: self.nack_interval.0,
            ack_every: self.ack_every,
            ack_wire_bytes: self.ack_wire_bytes,
            int_bytes,
            stamp_bytes: self.stamp_bytes,
            cnp_interval: cnp_interval.map(|interval| interval.0),
            dasr: None,
            source_mark_bytes: None,
            data_class: self.ack_priority.into(),
            short_bytes: self.short_bytes,
            long_class: u8::from(self.ack_priority) + u8::from(self.short_priority),
            ack_class: self.ack_priority.then_some(0),
            arbiter: self.arbiter,
            base_rtt: match self.base_rtt {
                Some(rtt) => rtt.0,
                None => base_rtt(network, int_bytes, self.stamp_bytes),
            },
            control,
        }
    }
}

/// Bytes that may come by a link after XOFF: what the far end sends until it has heard the pause,
/// which waits for a packet in its own direction, and what was under way.
fn headroom_bytes(network: &Network<'_>) -> u64 {
    let packet = network.framing.wire_bytes(network.framing.mss_bytes);
    let of_link = |link: &ratewright_topology::Link| {
        let delay = Span::from_ns(link.delay_ns) * 2 + network.host_delay * 2;
        let bits = delay.as_secs_f64() * link.capacity_bps as f64;
        (bits / 8.0).ceil() as u64
    };
    let most = network.topology.links().iter().map(of_link).max();
    // A packet each way that has begun, and telemetry or less on either.
    most.unwrap_or(0) + 4 * u64::from(packet) + 2 * u64::from(PAUSE_WIRE_BYTES)
}

/// The longest round-trip time of a full packet and its acknowledgement on idle paths.
fn base_rtt(network: &Network<'_>, int_bytes: u16, stamp_bytes: u16) -> Span {
    let Network {
        topology, framing, ..
    } = *network;
    let data = (framing.wire_bytes(framing.mss_bytes)).saturating_add(int_bytes + stamp_bytes);
    let ack = framing.wire_bytes(0) + int_bytes;
    let one_way = |(src, dst), wire_bytes: u16| one_way(topology, src, dst, wire_bytes);
    // One host stands for its rack, unless that is the only one.
    let first: Vec<HostId> = if topology.racks().len() > 1 {
        let racks = topology.racks().iter();
        racks.filter_map(|rack| rack.host_ids().next()).collect()
    } else {
        topology.hosts().iter().map(|host| host.id).collect()
    };
    let pairs = first.iter().flat_map(|src| {
        let others = first.iter().filter(move |dst| *dst != src);
        others.map(move |dst| (*src, *dst))
    });
    let round_trip = |(src, dst)| Some(one_way((src, dst), data)? + one_way((dst, src), ack)?);
    let longest = pairs.filter_map(round_trip).max();
    // Both hosts process both packets.
    longest.unwrap_or(Span::from_us(1)) + network.host_delay * 4
}

/// Time of a packet over an idle path.
fn one_way(topology: &Topology, src: HostId, dst: HostId, wire_bytes: u16) -> Option<Span> {
    let path = topology.path(src, dst, PathChoice::Hash(0)).ok()?;
    let of_link = |link: &ratewright_topology::LinkId| {
        let link = &topology.links()[link.index()];
        Span::from_ns(link.delay_ns) + ByteTime::of_rate(link.capacity_bps).of(wire_bytes)
    };
    Some(
        path.iter()
            .map(of_link)
            .fold(Span::ZERO, |sum, span| sum + span),
    )
}
