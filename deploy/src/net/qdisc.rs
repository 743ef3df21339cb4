//! A link's capacity and buffer: HTB with two classes, and a bfifo that drops at its tail.
//!
//! Every packet that leaves a shaped port passes one HTB class tree at the link's rate. Control
//! traffic (the allocator's UDP port, either way) has a class of its own that is served first, so
//! that it shares the link in band, as in the paper, but never waits behind data. Data waits in a
//! shallow `bfifo`; what does not fit is dropped, as in a switch.
//!
//! HTB counts whole Ethernet frames (14 bytes of header, no checksum or preamble), and so do the
//! lab's figures of link use.

use std::fmt::Write as _;

/// The handle's minor number of the class for control traffic.
pub const CONTROL_CLASS: u32 = 0x10;
/// The handle's minor number of the class for data.
pub const DATA_CLASS: u32 = 0x20;

/// What a shaped port does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaping {
    /// The link's capacity, Ethernet frames included, in bit/s.
    pub rate_bps: u64,
    /// Depth of the drop-tail buffer in bytes.
    pub buffer_bytes: u64,
    /// UDP port of the allocator, whose traffic goes first.
    pub control_port: u16,
}

/// Time that HTB may catch up after a late timer, as bytes at the link's rate.
const CATCH_UP_US: u64 = 400;

impl Shaping {
    /// The `tc -batch` commands that shape the egress of `device`.
    #[must_use]
    pub fn commands(&self, device: &str) -> String {
        let Shaping {
            rate_bps,
            buffer_bytes,
            control_port,
        } = *self;
        let burst = (rate_bps / 8 * CATCH_UP_US / 1_000_000).max(4 * 1514);
        let control = rate_bps / 10;
        let mut out = String::new();
        let class = |out: &mut String, parent: &str, minor: u32, rate: u64, prio: u32| {
            let _ = writeln!(
                out,
                "class add dev {device} parent {parent} classid 1:{minor:x} htb rate {rate}bit ceil {rate_bps}bit \
                 burst {burst} cburst {burst} quantum 3028 prio {prio}"
            );
        };
        let _ = writeln!(
            out,
            "qdisc add dev {device} root handle 1: htb default {DATA_CLASS:x}"
        );
        class(&mut out, "1:", 1, rate_bps, 0);
        class(&mut out, "1:1", CONTROL_CLASS, control, 0);
        class(&mut out, "1:1", DATA_CLASS, rate_bps - control, 1);
        let _ = writeln!(
            out,
            "qdisc add dev {device} parent 1:{CONTROL_CLASS:x} handle 10: pfifo limit 1000"
        );
        let _ = writeln!(
            out,
            "qdisc add dev {device} parent 1:{DATA_CLASS:x} handle 20: bfifo limit {buffer_bytes}"
        );
        for direction in ["sport", "dport"] {
            let _ = writeln!(
                out,
                "filter add dev {device} parent 1: protocol ip prio 1 u32 match ip protocol 17 0xff \
                 match ip {direction} {control_port} 0xffff flowid 1:{CONTROL_CLASS:x}"
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_classes_share_exactly_the_links_rate() {
        let text = Shaping {
            rate_bps: 250_000_000,
            buffer_bytes: 65_536,
            control_port: 7600,
        }
        .commands("p1");
        assert!(text.contains("parent 1: classid 1:1 htb rate 250000000bit ceil 250000000bit"));
        assert!(text.contains("classid 1:10 htb rate 25000000bit ceil 250000000bit"));
        assert!(text.contains("classid 1:20 htb rate 225000000bit ceil 250000000bit"));
        assert!(text.contains("bfifo limit 65536"));
        assert_eq!(text.matches("flowid 1:10").count(), 2);
    }
}
