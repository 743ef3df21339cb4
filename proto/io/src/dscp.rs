//! Mark of control datagrams: a DSCP for the network's queues, a priority for the host's own.
//!
//! A host with a full uplink has a backlog of data in front of everything it sends. A start behind
//! that backlog leaves its flow without a rate.

use std::io;
use std::net::UdpSocket;

use nix::sys::socket::{setsockopt, sockopt};
use serde::Deserialize;

/// `TC_PRIO_INTERACTIVE` (linux/pkt_sched.h): the first band of `pfifo_fast`, `prio` and `fq`, and
/// the highest priority that takes no privilege (socket(7), `SO_PRIORITY`).
const SOCKET_PRIORITY: i32 = 6;

/// A differentiated services code point (RFC 2474, section 3), 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Dscp(u8);

/// Error of a number that is no code point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 0 to 63 (48, which is CS6, is the default; 0 marks nothing)")]
pub struct InvalidDscp;

impl Dscp {
    /// Best effort: no mark.
    pub const NONE: Self = Self(0);

    /// Class selector 6, which networks reserve for their own control traffic (RFC 4594 §3.1).
    pub const CS6: Self = Self(48);

    /// The number.
    pub const fn value(self) -> u8 {
        self.0
    }

    /// Byte of IPv4's type of service and of IPv6's traffic class, without ECN bits.
    pub const fn traffic_class(self) -> u8 {
        self.0 << 2
    }

    /// Marks everything that `socket` sends from now on, over IPv4 and IPv6. The mark also bypasses
    /// the backlog of queueing disciplines with priorities. [`NONE`](Self::NONE) leaves the socket
    /// as it is.
    ///
    /// # Errors
    /// As of `setsockopt(2)`.
    pub fn mark(self, socket: &UdpSocket) -> io::Result<()> {
        if self == Self::NONE {
            return Ok(());
        }
        let class = i32::from(self.traffic_class());
        // A dual-stack socket has both fields: datagrams to mapped addresses are IPv4's.
        if socket.local_addr()?.is_ipv6() {
            setsockopt(socket, sockopt::Ipv6TClass, &class)?;
        }
        setsockopt(socket, sockopt::Ipv4Tos, &class)?;
        // Last: the kernel derives a priority from the type of service, and has none for class
        // selectors.
        setsockopt(socket, sockopt::Priority, &SOCKET_PRIORITY)?;
        Ok(())
    }
}

impl Default for Dscp {
    fn default() -> Self {
        Self::CS6
    }
}

impl TryFrom<i64> for Dscp {
    type Error = InvalidDscp;

    fn try_from(value: i64) -> Result<Self, InvalidDscp> {
        match u8::try_from(value) {
            Ok(value @ 0..64) => Ok(Self(value)),
            _ => Err(InvalidDscp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;

    #[test]
    fn both_families_of_a_socket_are_marked_and_its_priority_is_kept() {
        for any in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let socket = UdpSocket::bind(any).expect("a socket");
            Dscp::CS6.mark(&socket).expect("marked");
            assert_eq!(getsockopt(&socket, sockopt::Ipv4Tos), Ok(0xc0), "{any}");
            assert_eq!(getsockopt(&socket, sockopt::Priority), Ok(6), "{any}");
            if any.starts_with('[') {
                assert_eq!(getsockopt(&socket, sockopt::Ipv6TClass), Ok(0xc0), "{any}");
            }
        }
    }

    #[test]
    fn only_six_bits_are_a_code_point() {
        assert_eq!(Dscp::try_from(63).map(Dscp::traffic_class), Ok(0xfc));
        for wrong in [64, -1, 256, 304, i64::MAX] {
            assert_eq!(Dscp::try_from(wrong), Err(InvalidDscp), "{wrong}");
        }
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        Dscp::NONE.mark(&socket).expect("nothing to do");
        assert_eq!(getsockopt(&socket, sockopt::Ipv4Tos), Ok(0));
        assert_eq!(getsockopt(&socket, sockopt::Priority), Ok(0));
    }
}
