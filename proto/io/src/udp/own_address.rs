//! Control messages with the host's own address of a datagram (`IP_PKTINFO` of ip(7),
//! `IPV6_PKTINFO` of RFC 3542).
//!
//! A dual-stack socket has IPv4 addresses in their mapped form, in both directions.

use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};

/// Bytes of a message's header, a multiple of its alignment.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

/// Bytes of the larger message, padded to the alignment.
const CONTROL_BYTES: usize =
    (HEADER_BYTES + size_of::<libc::in6_pktinfo>()).next_multiple_of(align_of::<libc::cmsghdr>());

/// Room for one message of either family.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ControlBuffer([u8; CONTROL_BYTES]);

impl Default for ControlBuffer {
    fn default() -> Self {
        Self([0; CONTROL_BYTES])
    }
}

/// Asks the kernel to tell which address datagrams were sent to.
pub(super) fn ask(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    Ok(())
}

/// Returns `SIZE` bytes at `offset`.
fn bytes_at<const SIZE: usize>(bytes: &[u8], offset: usize) -> Option<[u8; SIZE]> {
    bytes.get(offset..)?.first_chunk().copied()
}

impl ControlBuffer {
    /// Has the kernel write into this buffer with the datagram of `header`.
    pub(super) fn attach(&mut self, header: &mut libc::msghdr) {
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES;
    }

    /// Returns the address in the first of `length` bytes of messages; `None` if it is another's
    /// kind or the address is a group's.
    pub(super) fn own_address(&self, length: usize) -> Option<IpAddr> {
        let bytes = self.0.get(..length)?;
        let field = |offset| bytes_at(bytes, offset).map(i32::from_ne_bytes);
        let level = field(offset_of!(libc::cmsghdr, cmsg_level))?;
        let kind = field(offset_of!(libc::cmsghdr, cmsg_type))?;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // Not the destination in the header, which may be a broadcast.
                let offset = HEADER_BYTES + offset_of!(libc::in_pktinfo, ipi_spec_dst);
                Some(Ipv4Addr::from(bytes_at::<4>(bytes, offset)?).into())
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let offset = HEADER_BYTES + offset_of!(libc::in6_pktinfo, ipi6_addr);
                let address = Ipv6Addr::from(bytes_at::<16>(bytes, offset)?);
                (!address.is_multicast()).then_some(address.into())
            }
            _ => None,
        }
    }

    /// Has the datagram of `header` sent from `own`, by the interface that the routes choose.
    pub(super) fn send_from(&mut self, own: IpAddr, header: &mut libc::msghdr) {
        let (level, kind, info_bytes, offset) = match own {
            IpAddr::V4(_) => (
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                size_of::<libc::in_pktinfo>(),
                offset_of!(libc::in_pktinfo, ipi_spec_dst),
            ),
            IpAddr::V6(_) => (
                libc::IPPROTO_IPV6,
                libc::IPV6_PKTINFO,
                size_of::<libc::in6_pktinfo>(),
                offset_of!(libc::in6_pktinfo, ipi6_addr),
            ),
        };
        self.0 = [0; CONTROL_BYTES];
        let mut put = |offset: usize, value: &[u8]| {
            self.0[offset..offset + value.len()].copy_from_slice(value);
        };
        let length = HEADER_BYTES + info_bytes;
        put(offset_of!(libc::cmsghdr, cmsg_len), &length.to_ne_bytes());
        put(offset_of!(libc::cmsghdr, cmsg_level), &level.to_ne_bytes());
        put(offset_of!(libc::cmsghdr, cmsg_type), &kind.to_ne_bytes());
        match own {
            IpAddr::V4(ip) => put(HEADER_BYTES + offset, &ip.octets()),
            IpAddr::V6(ip) => put(HEADER_BYTES + offset, &ip.octets()),
        }
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = length.next_multiple_of(align_of::<libc::cmsghdr>());
    }
}
