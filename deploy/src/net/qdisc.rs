//! A link's capacity and buffer: HTB with two classes and a bfifo that drops at its tail, or TBF.
//!
//! Every packet that leaves a port shaped by HTB passes one class tree at the link's rate. Control
//! traffic has a class of its own that is served first, so that it shares the link in band, as in the
//! paper, but never waits behind data. Data waits in a shallow `bfifo`; what does not fit is dropped,
//! as in a switch. With TBF there is one queue, and control waits behind data.
//!
//! Both count whole Ethernet frames (14 bytes of header, no checksum or preamble), and so do the
//! lab's figures of link use.

use std::fmt::Write as _;

use clap::ValueEnum;

/// Which packets a port sends first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ControlFirst {
    /// UDP to or from the allocator's port
    Port,
    /// Packets of DSCP CS6
    Dscp,
    /// None: one queue for all (TBF)
    None,
}

impl ControlFirst {
    /// The name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ControlFirst::Port => "port",
            ControlFirst::Dscp => "dscp",
            ControlFirst::None => "none",
        }
    }
}

/// DSCP CS6, internetwork control (RFC 2474), where it stands in the octet.
const CS6_TOS: u8 = 0xc0;
/// The six bits of the octet that are the DSCP.
const DSCP_MASK: u8 = 0xfc;

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
    /// UDP port of the allocator.
    pub control_port: u16,
    /// What goes first.
    pub control_first: ControlFirst,
    /// Bytes that leave at once after a pause; by default what HTB needs to make up for late timers.
    pub burst_bytes: Option<u64>,
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
            control_first,
            burst_bytes,
        } = *self;
        let burst =
            burst_bytes.unwrap_or_else(|| (rate_bps / 8 * CATCH_UP_US / 1_000_000).max(4 * 1514));
        if control_first == ControlFirst::None {
            return format!(
                "qdisc add dev {device} root tbf rate {rate_bps}bit burst {burst} limit {buffer_bytes}\n"
            );
        }
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
        let mut first = |protocol: &str, priority: u8, condition: &str| {
            let _ = writeln!(
                out,
                "filter add dev {device} parent 1: protocol {protocol} prio {priority} u32 match {condition} \
                 flowid 1:{CONTROL_CLASS:x}"
            );
        };
        if control_first == ControlFirst::Port {
            for direction in ["sport", "dport"] {
                let port =
                    format!("ip protocol 17 0xff match ip {direction} {control_port} 0xffff");
                first("ip", 1, &port);
            }
        } else {
            first("ip", 1, &format!("ip dsfield {CS6_TOS:#x} {DSCP_MASK:#x}"));
            first(
                "ipv6",
                2,
                &format!("ip6 priority {CS6_TOS:#x} {DSCP_MASK:#x}"),
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPING: Shaping = Shaping {
        rate_bps: 250_000_000,
        buffer_bytes: 65_536,
        control_port: 7600,
        control_first: ControlFirst::Port,
        burst_bytes: None,
    };

    #[test]
    fn the_two_classes_share_exactly_the_links_rate() {
        let text = SHAPING.commands("p1");
        assert!(text.contains("parent 1: classid 1:1 htb rate 250000000bit ceil 250000000bit"));
        assert!(text.contains("classid 1:10 htb rate 25000000bit ceil 250000000bit"));
        assert!(text.contains("classid 1:20 htb rate 225000000bit ceil 250000000bit"));
        assert!(text.contains("bfifo limit 65536"));
        assert_eq!(text.matches("flowid 1:10").count(), 2);
        assert_eq!(text.matches("7600").count(), 2);
    }

    /// RFC 2474: CS6 is 110000 in the upper six bits; the lower two are for ECN.
    #[test]
    fn control_is_known_by_its_code_point_in_either_family() {
        let text = Shaping {
            control_first: ControlFirst::Dscp,
            ..SHAPING
        }
        .commands("p1");
        assert!(text.contains("protocol ip prio 1 u32 match ip dsfield 0xc0 0xfc flowid 1:10"));
        assert!(text.contains("protocol ipv6 prio 2 u32 match ip6 priority 0xc0 0xfc flowid 1:10"));
        assert!(!text.contains("7600"));
    }

    #[test]
    fn without_priority_a_port_has_one_queue() {
        let text = Shaping {
            control_first: ControlFirst::None,
            burst_bytes: Some(16_384),
            ..SHAPING
        }
        .commands("p1");
        assert_eq!(
            text,
            "qdisc add dev p1 root tbf rate 250000000bit burst 16384 limit 65536\n"
        );
    }
}
