//! Network stack of ARP, IPv4, ICMP echo and UDP for one address and one UDP port, sans-IO.
//!
//! A poll-mode driver delivers whole Ethernet frames, so this stack answers ARP and checks IPv4
//! headers. [`UdpStack::receive`] classifies one frame; replies (ARP, ping) are written to a buffer
//! of the caller's. [`UdpStack::send`] writes headers around a payload in place.
//!
//! The layer above seals payloads (authenticated and encrypted), so UDP checksums are neither
//! verified nor filled in. RFC 768 lets an IPv4 sender leave them zero, and the veth driver
//! delivers them half-computed. IPv4 header checksums are verified and filled in.
//!
//! The stack queues nothing for an address whose station is unknown. It writes an ARP request,
//! drops the datagram and counts it. The session protocol sends the newest state again.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket,
};

use crate::neighbours::{Mac, Neighbours};

/// Bytes in front of a UDP payload: Ethernet 14, IPv4 without options 20, UDP 8.
pub const HEADER_BYTES: usize = 42;
/// The shortest frame, without the checksum that the hardware adds.
pub const MIN_FRAME_BYTES: usize = 60;

/// Bytes of an untagged Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Address of a port, and bounds of its stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// The port's Ethernet address.
    pub mac: Mac,
    /// Its IPv4 address.
    pub address: Ipv4Addr,
    /// Length of the on-link prefix in bits (0..=32).
    pub prefix_len: u8,
    /// Next hop of datagrams for other prefixes.
    pub gateway: Option<Ipv4Addr>,
    /// The UDP port that is served.
    pub udp_port: u16,
    /// UDP ports that stacks on other queues serve at this address; this stack's own may be among
    /// them.
    pub siblings: Range<u16>,
    /// DSCP of the datagrams that are sent (0..=63).
    pub dscp: u8,
    /// Largest IPv4 packet in bytes.
    pub mtu_bytes: usize,
    /// Neighbours remembered at most.
    pub max_neighbours: usize,
}

/// Kind of a received frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A datagram for the served UDP port.
    Datagram {
        /// Source in the headers, not authenticated.
        from: SocketAddrV4,
        /// Station that sent the frame.
        station: Mac,
        /// The UDP payload.
        payload: &'a [u8],
    },
    /// A datagram for another UDP port, of [`StackConfig::siblings`]: pass the frame to its stack.
    Sibling(u16),
    /// The first `0` bytes of the reply buffer are a frame to transmit.
    Reply(usize),
    /// Nothing is left to do. A counter has the reason.
    Nothing,
}

/// Reason for not writing a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The next hop's station is unknown; transmit the ARP request in the buffer, of the given
    /// length.
    #[error("the next hop is not known yet; an ARP request of {0} bytes was written")]
    Ask(usize),
    /// The next hop's station is unknown, and an ARP request was sent a moment ago.
    #[error("the next hop is not known yet")]
    Unresolved,
    /// The destination is outside of the prefix and there is no gateway.
    #[error("no route: the address is outside of the prefix and no gateway is set")]
    NoRoute,
    /// Payload and headers exceed the MTU or the buffer.
    #[error("the datagram does not fit the MTU or the buffer")]
    TooLong,
    /// The port has no free packet buffer.
    #[error("the port has no free packet buffer")]
    NoBuffer,
}

/// Counters of a stack, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// Datagrams passed to the caller.
    pub datagrams_in: u64,
    /// Datagrams written.
    pub datagrams_out: u64,
    /// ARP requests answered.
    pub arp_replies: u64,
    /// ARP requests sent.
    pub arp_requests: u64,
    /// Pings answered.
    pub echo_replies: u64,
    /// Frames that are too short, cut off, or whose headers contradict each other.
    pub malformed: u64,
    /// IPv4 headers with a wrong checksum.
    pub bad_checksum: u64,
    /// IPv4 fragments: never reassembled.
    pub fragments: u64,
    /// Frames for another station, address, protocol or UDP port.
    pub not_ours: u64,
    /// Datagrams dropped because the next hop was not known.
    pub unresolved: u64,
}

/// The stack of one port.
#[derive(Debug)]
pub struct UdpStack {
    config: StackConfig,
    neighbours: Neighbours,
    counters: StackCounters,
    /// IPv4 identification of the next packet (never fragmented, so only a courtesy to captures).
    identification: u16,
}

impl UdpStack {
    /// A stack for one address.
    #[must_use]
    pub fn new(config: StackConfig) -> Self {
        Self {
            neighbours: Neighbours::new(config.max_neighbours),
            config,
            counters: StackCounters::default(),
            identification: 0,
        }
    }

    /// The address that it answers for.
    #[must_use]
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Counters since the stack was made.
    #[must_use]
    pub fn counters(&self) -> StackCounters {
        self.counters
    }

    /// Addresses whose stations are known or asked for.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        self.neighbours.len()
    }

    /// Takes one frame. A reply, if one is due, is written to `reply` (an MTU and 14 bytes).
    pub fn receive<'a>(&mut self, frame: &'a [u8], reply: &mut [u8]) -> Received<'a> {
        match self.classify(frame, reply) {
            Ok(received) => received,
            Err(Ignored::Malformed) => self.count(|c| &mut c.malformed),
            Err(Ignored::Checksum) => self.count(|c| &mut c.bad_checksum),
            Err(Ignored::Fragment) => self.count(|c| &mut c.fragments),
            Err(Ignored::NotOurs) => self.count(|c| &mut c.not_ours),
        }
    }

    fn count(&mut self, which: impl Fn(&mut StackCounters) -> &mut u64) -> Received<'static> {
        *which(&mut self.counters) += 1;
        Received::Nothing
    }

    fn classify<'a>(&mut self, frame: &'a [u8], reply: &mut [u8]) -> Result<Received<'a>, Ignored> {
        let ethernet = EthernetFrame::new_checked(frame)?;
        let to = ethernet.dst_addr();
        // In promiscuous mode, a driver delivers other stations' frames too.
        if to.0 != self.config.mac && !to.is_broadcast() {
            return Err(Ignored::NotOurs);
        }
        let from_mac = ethernet.src_addr();
        if !from_mac.is_unicast() {
            return Err(Ignored::Malformed);
        }
        match ethernet.ethertype() {
            EthernetProtocol::Arp => self.receive_arp(ethernet.payload(), reply),
            // Unicast only: sessions have no broadcasts.
            EthernetProtocol::Ipv4 if !to.is_broadcast() => {
                self.receive_ipv4(from_mac.0, ethernet.payload(), reply)
            }
            _ => Err(Ignored::NotOurs),
        }
    }

    fn receive_arp(
        &mut self,
        packet: &[u8],
        reply: &mut [u8],
    ) -> Result<Received<'static>, Ignored> {
        let packet = ArpPacket::new_checked(packet)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        } = ArpRepr::parse(&packet)?
        else {
            return Err(Ignored::NotOurs);
        };
        if target_protocol_addr != self.config.address {
            return Err(Ignored::NotOurs);
        }
        // A group address cannot be a station, and our own address from elsewhere is a conflict or
        // a forgery.
        if !source_hardware_addr.is_unicast() || source_protocol_addr == self.config.address {
            return Err(Ignored::Malformed);
        }
        let probe = source_protocol_addr.is_unspecified();
        match operation {
            ArpOperation::Request => {
                // RFC 826 merges the sender of a request for us; a probe (RFC 5227) has no address.
                if !probe {
                    self.neighbours
                        .confirm(source_protocol_addr, source_hardware_addr.0);
                }
                let answer = ArpRepr::EthernetIpv4 {
                    operation: ArpOperation::Reply,
                    source_hardware_addr: EthernetAddress(self.config.mac),
                    source_protocol_addr: self.config.address,
                    target_hardware_addr: source_hardware_addr,
                    target_protocol_addr: source_protocol_addr,
                };
                let bytes = self
                    .write_arp(&answer, source_hardware_addr, reply)
                    .ok_or(Ignored::Malformed)?;
                self.counters.arp_replies += 1;
                Ok(Received::Reply(bytes))
            }
            ArpOperation::Reply if !probe => {
                self.neighbours
                    .confirm(source_protocol_addr, source_hardware_addr.0);
                Ok(Received::Nothing)
            }
            _ => Err(Ignored::NotOurs),
        }
    }

    fn receive_ipv4<'a>(
        &mut self,
        from_mac: Mac,
        packet: &'a [u8],
        reply: &mut [u8],
    ) -> Result<Received<'a>, Ignored> {
        let packet = Ipv4Packet::new_checked(packet)?;
        if packet.version() != 4 || usize::from(packet.header_len()) < IPV4_BYTES {
            return Err(Ignored::Malformed);
        }
        if !packet.verify_checksum() {
            return Err(Ignored::Checksum);
        }
        let source = packet.src_addr();
        if packet.dst_addr() != self.config.address {
            return Err(Ignored::NotOurs);
        }
        if source.is_unspecified()
            || source.is_multicast()
            || source.is_broadcast()
            || source == self.config.address
        {
            return Err(Ignored::Malformed);
        }
        // Sealed datagrams fit one frame, so fragments are never a session's.
        if packet.more_frags() || packet.frag_offset() != 0 {
            return Err(Ignored::Fragment);
        }
        match packet.next_header() {
            IpProtocol::Udp => {
                let datagram = UdpPacket::new_checked(packet.payload())?;
                let port = datagram.dst_port();
                if port != self.config.udp_port {
                    return if self.config.siblings.contains(&port) {
                        Ok(Received::Sibling(port))
                    } else {
                        Err(Ignored::NotOurs)
                    };
                }
                // Without a reverse route no reply can be sent, so the datagram is of no use.
                let Some(next_hop) = self.next_hop(source) else {
                    return Err(Ignored::NotOurs);
                };
                // Behind a gateway, the station is the gateway's, whatever the source address.
                self.neighbours.observe(next_hop, from_mac);
                self.counters.datagrams_in += 1;
                Ok(Received::Datagram {
                    from: SocketAddrV4::new(source, datagram.src_port()),
                    station: from_mac,
                    payload: datagram.payload(),
                })
            }
            IpProtocol::Icmp => self.answer_echo(from_mac, source, packet.payload(), reply),
            _ => Err(Ignored::NotOurs),
        }
    }

    fn answer_echo(
        &mut self,
        to_mac: Mac,
        to: Ipv4Addr,
        message: &[u8],
        reply: &mut [u8],
    ) -> Result<Received<'static>, Ignored> {
        let checksums = ChecksumCapabilities::default();
        let message = Icmpv4Packet::new_checked(message)?;
        let Icmpv4Repr::EchoRequest {
            ident,
            seq_no,
            data,
        } = Icmpv4Repr::parse(&message, &checksums)?
        else {
            return Err(Ignored::NotOurs);
        };
        let answer = Icmpv4Repr::EchoReply {
            ident,
            seq_no,
            data,
        };
        let frame_bytes = ETHERNET_BYTES + IPV4_BYTES + answer.buffer_len();
        let frame_bytes = frame_bytes.max(MIN_FRAME_BYTES);
        if reply.len() < frame_bytes || frame_bytes > ETHERNET_BYTES + self.config.mtu_bytes {
            return Err(Ignored::Malformed);
        }
        let reply = &mut reply[..frame_bytes];
        reply.fill(0);
        let body = self.write_ipv4(reply, to_mac, to, IpProtocol::Icmp, answer.buffer_len());
        answer.emit(
            &mut Icmpv4Packet::new_unchecked(&mut body[..answer.buffer_len()]),
            &checksums,
        );
        self.counters.echo_replies += 1;
        Ok(Received::Reply(frame_bytes))
    }

    /// Writes a frame with `payload` to `to` into `frame`, and returns its length.
    ///
    /// # Errors
    /// [`SendError::Ask`] has put an ARP request into `frame` instead: transmit that. The datagram
    /// is dropped in every case of error.
    pub fn send(
        &mut self,
        now_ns: u64,
        to: SocketAddrV4,
        payload: &[u8],
        frame: &mut [u8],
    ) -> Result<usize, SendError> {
        let next_hop = self.next_hop(*to.ip()).ok_or(SendError::NoRoute)?;
        let Some(mac) = self.neighbours.get(next_hop) else {
            self.counters.unresolved += 1;
            return Err(self.ask(now_ns, next_hop, frame));
        };
        let udp_bytes = UDP_BYTES + payload.len();
        let frame_bytes = (ETHERNET_BYTES + IPV4_BYTES + udp_bytes).max(MIN_FRAME_BYTES);
        if IPV4_BYTES + udp_bytes > self.config.mtu_bytes || frame_bytes > frame.len() {
            return Err(SendError::TooLong);
        }
        let frame = &mut frame[..frame_bytes];
        let source_port = self.config.udp_port;
        let body = self.write_ipv4(frame, mac, *to.ip(), IpProtocol::Udp, udp_bytes);
        let mut udp = UdpPacket::new_unchecked(&mut body[..udp_bytes]);
        udp.set_src_port(source_port);
        udp.set_dst_port(to.port());
        udp.set_len(udp_bytes as u16);
        // Zero means "no checksum" over IPv4 (RFC 768).
        udp.set_checksum(0);
        udp.payload_mut().copy_from_slice(payload);
        // The padding of a short frame must not leak bytes of an earlier one.
        body[udp_bytes..].fill(0);
        self.counters.datagrams_out += 1;
        Ok(frame_bytes)
    }

    fn ask(&mut self, now_ns: u64, next_hop: Ipv4Addr, frame: &mut [u8]) -> SendError {
        if !self.neighbours.ask(now_ns, next_hop) {
            return SendError::Unresolved;
        }
        let request = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(self.config.mac),
            source_protocol_addr: self.config.address,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: next_hop,
        };
        match self.write_arp(&request, EthernetAddress::BROADCAST, frame) {
            Some(bytes) => {
                self.counters.arp_requests += 1;
                SendError::Ask(bytes)
            }
            None => SendError::TooLong,
        }
    }

    /// Records that an authentic datagram of `from` came by `station`: answers go there from now
    /// on.
    pub fn confirm(&mut self, from: Ipv4Addr, station: Mac) {
        if let Some(next_hop) = self.next_hop(from)
            && self.neighbours.get(next_hop) != Some(station)
        {
            self.neighbours.confirm(next_hop, station);
        }
    }

    /// Address whose station receives datagrams for `to`.
    fn next_hop(&self, to: Ipv4Addr) -> Option<Ipv4Addr> {
        // A prefix of length 0 shifts by 32, which overflows to an empty mask.
        let mask = u32::MAX
            .checked_shl(32 - u32::from(self.config.prefix_len.min(32)))
            .unwrap_or(0);
        let on_link = (u32::from(to) ^ u32::from(self.config.address)) & mask == 0;
        if on_link {
            Some(to)
        } else {
            self.config.gateway
        }
    }

    fn write_arp(&self, arp: &ArpRepr, to: EthernetAddress, frame: &mut [u8]) -> Option<usize> {
        let frame = frame.get_mut(..MIN_FRAME_BYTES)?;
        frame.fill(0);
        let mut ethernet = EthernetFrame::new_unchecked(frame);
        ethernet.set_src_addr(EthernetAddress(self.config.mac));
        ethernet.set_dst_addr(to);
        ethernet.set_ethertype(EthernetProtocol::Arp);
        arp.emit(&mut ArpPacket::new_unchecked(ethernet.payload_mut()));
        Some(MIN_FRAME_BYTES)
    }

    /// Writes the Ethernet and IPv4 headers and returns the rest of the frame.
    fn write_ipv4<'f>(
        &mut self,
        frame: &'f mut [u8],
        to_mac: Mac,
        to: Ipv4Addr,
        protocol: IpProtocol,
        payload_bytes: usize,
    ) -> &'f mut [u8] {
        let mut ethernet = EthernetFrame::new_unchecked(&mut *frame);
        ethernet.set_src_addr(EthernetAddress(self.config.mac));
        ethernet.set_dst_addr(EthernetAddress(to_mac));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let (header, body) = frame[ETHERNET_BYTES..].split_at_mut(IPV4_BYTES);
        let mut ip = Ipv4Packet::new_unchecked(header);
        let repr = Ipv4Repr {
            src_addr: self.config.address,
            dst_addr: to,
            next_header: protocol,
            payload_len: payload_bytes,
            hop_limit: HOP_LIMIT,
        };
        repr.emit(&mut ip, &ChecksumCapabilities::ignored());
        // Replies to pings are other hosts' traffic and get no mark of control traffic.
        if protocol == IpProtocol::Udp {
            ip.set_dscp(self.config.dscp);
        }
        ip.set_ident(self.identification);
        self.identification = self.identification.wrapping_add(1);
        ip.fill_checksum();
        body
    }
}

/// Reason for ignoring a frame.
#[derive(Debug)]
enum Ignored {
    Malformed,
    Checksum,
    Fragment,
    NotOurs,
}

impl From<smoltcp::wire::Error> for Ignored {
    fn from(_: smoltcp::wire::Error) -> Self {
        Self::Malformed
    }
}

#[cfg(test)]
mod tests;
