//! A link's capacity and buffer: HTB with two classes, and a bfifo that drops at its tail.
//!
//! Every packet that leaves a shaped port passes one HTB class tree at the link's rate. Control
//! traffic, known by its DSCP in IPv4 and IPv6, has a class of its own that is served first: it
//! shares the link in band, as in the paper, but never waits behind data. Its share of the rate is
//! reserved, so that data cannot keep it waiting for tokens, and is data's while it is idle. Data
//! waits in a shallow `bfifo`; what does not fit is dropped, as in a switch.
//!
//! A port that is not shaped is a veth without a queue: nothing waits there.
//!
//! HTB counts whole Ethernet frames (14 bytes of header, no checksum or preamble), and so do the
//! lab's figures of link use.

use std::fmt::Write as _;
use std::net::IpAddr;

/// The handle's minor number of the class for control traffic.
pub const CONTROL_CLASS: u32 = 0x10;
/// The handle's minor number of the class for data.
pub const DATA_CLASS: u32 = 0x20;

/// The handle's minor number of the class for what passes a narrower link on its way.
const NARROW_CLASS: u32 = 0x30;

/// Parameters of a shaped port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaping {
    /// The link's capacity, Ethernet frames included, in bit/s.
    pub rate_bps: u64,
    /// Depth of the drop-tail buffer in bytes.
    pub buffer_bytes: u64,
    /// Bytes that leave at once after a pause; by default what HTB needs to make up for late
    /// timers.
    pub burst_bytes: Option<u64>,
    /// DSCP of what goes first; 0 is the mark of everything, and nothing goes first.
    pub control_dscp: u8,
}

/// Time that HTB may catch up after a late timer, as bytes at the link's rate.
const CATCH_UP_US: u64 = 400;

impl Shaping {
    /// The `tc -batch` commands that shape the egress of `device`.
    #[must_use]
    pub fn commands(&self, device: &str) -> String {
        let Shaping {
            buffer_bytes,
            control_dscp,
            ..
        } = *self;
        let mut out = format!(
            "qdisc add dev {device} root handle 1: htb default {DATA_CLASS:x}\n{}",
            self.classes(device, "add")
        );
        let _ = writeln!(
            out,
            "qdisc add dev {device} parent 1:{CONTROL_CLASS:x} handle 10: pfifo limit 1000"
        );
        let _ = writeln!(
            out,
            "qdisc add dev {device} parent 1:{DATA_CLASS:x} handle 20: bfifo limit {buffer_bytes}"
        );
        if control_dscp != 0 {
            // The two bits below are ECN's (RFC 3168, section 5).
            let class = control_dscp << 2;
            for (prio, protocol, field) in [(1, "ip", "ip tos"), (2, "ipv6", "ip6 priority")] {
                let _ = writeln!(
                    out,
                    "filter add dev {device} parent 1: protocol {protocol} prio {prio} u32 \
                     match {field} {class:#04x} 0xfc flowid 1:{CONTROL_CLASS:x}"
                );
            }
        }
        out
    }

    /// The `tc -batch` commands that give `device`, which is shaped, this rate.
    #[must_use]
    pub fn change_rate(&self, device: &str) -> String {
        self.classes(device, "change")
    }

    fn classes(&self, device: &str, verb: &str) -> String {
        let rate_bps = self.rate_bps;
        let burst = self.burst_bytes();
        // A tenth is far more than control traffic takes; data borrows the rest of it.
        let control = rate_bps / 10;
        let mut out = String::new();
        for (parent, minor, rate, prio) in [
            ("1:", 1, rate_bps, 0),
            ("1:1", CONTROL_CLASS, control, 0),
            ("1:1", DATA_CLASS, rate_bps - control, 1),
        ] {
            let _ = writeln!(
                out,
                "class {verb} dev {device} parent {parent} classid 1:{minor:x} htb rate {rate}bit ceil {rate_bps}bit \
                 burst {burst} cburst {burst} quantum 3028 prio {prio}"
            );
        }
        out
    }

    fn burst_bytes(&self) -> u64 {
        // Bytes at the link's rate in CATCH_UP_US; never below four full frames.
        let catch_up = self.rate_bps / 8 * CATCH_UP_US / 1_000_000;
        self.burst_bytes.unwrap_or(catch_up.max(4 * 1514))
    }

    /// The `tc -batch` commands that send what comes from `sources` to `device`, which is shaped,
    /// through a queue of this rate and buffer: a narrower link somewhere on their way.
    #[must_use]
    pub fn narrow(&self, device: &str, sources: &[IpAddr]) -> String {
        let Shaping {
            rate_bps,
            buffer_bytes,
            ..
        } = *self;
        let burst = self.burst_bytes();
        let mut out = format!(
            "class add dev {device} parent 1:1 classid 1:{NARROW_CLASS:x} htb rate {rate_bps}bit ceil {rate_bps}bit \
             burst {burst} cburst {burst} quantum 3028 prio 1\n\
             qdisc add dev {device} parent 1:{NARROW_CLASS:x} handle 30: bfifo limit {buffer_bytes}\n"
        );
        for source in sources {
            // Behind the filters of control traffic.
            let (prio, protocol, field, bits) = match source {
                IpAddr::V4(_) => (3, "ip", "ip", 32),
                IpAddr::V6(_) => (4, "ipv6", "ip6", 128),
            };
            let _ = writeln!(
                out,
                "filter add dev {device} parent 1: protocol {protocol} prio {prio} u32 \
                 match {field} src {source}/{bits} flowid 1:{NARROW_CLASS:x}"
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_mark_nothing_goes_first() {
        let text = Shaping {
            rate_bps: 250_000_000,
            buffer_bytes: 65_536,
            burst_bytes: None,
            control_dscp: 0,
        }
        .commands("p1");
        assert!(!text.contains("filter"));
    }

    #[test]
    fn the_two_classes_share_exactly_the_links_rate() {
        let text = Shaping {
            rate_bps: 250_000_000,
            buffer_bytes: 65_536,
            burst_bytes: None,
            control_dscp: 48,
        }
        .commands("p1");
        assert!(text.contains("parent 1: classid 1:1 htb rate 250000000bit ceil 250000000bit"));
        assert!(text.contains("classid 1:10 htb rate 25000000bit ceil 250000000bit"));
        assert!(text.contains("classid 1:20 htb rate 225000000bit ceil 250000000bit"));
        assert!(text.contains("bfifo limit 65536"));
        assert!(text.contains("protocol ip prio 1 u32 match ip tos 0xc0 0xfc flowid 1:10"));
        assert!(text.contains("protocol ipv6 prio 2 u32 match ip6 priority 0xc0 0xfc flowid 1:10"));
    }

    #[test]
    fn a_narrower_way_takes_both_families_of_its_sources() {
        let text = Shaping {
            rate_bps: 50_000_000,
            buffer_bytes: 131_072,
            burst_bytes: None,
            control_dscp: 48,
        }
        .narrow(
            "p5",
            &["10.77.1.1".parse().unwrap(), "fd77::1".parse().unwrap()],
        );
        assert!(text.contains("classid 1:30 htb rate 50000000bit ceil 50000000bit"));
        assert!(text.contains("parent 1:30 handle 30: bfifo limit 131072"));
        assert!(text.contains("protocol ip prio 3 u32 match ip src 10.77.1.1/32 flowid 1:30"));
        assert!(text.contains("protocol ipv6 prio 4 u32 match ip6 src fd77::1/128 flowid 1:30"));
    }

    #[test]
    fn a_changed_rate_changes_classes_and_keeps_queues() {
        let text = Shaping {
            rate_bps: 20_000_000,
            buffer_bytes: 65_536,
            burst_bytes: None,
            control_dscp: 48,
        }
        .change_rate("p5");
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.starts_with("class change ")));
        assert!(text.contains("classid 1:20 htb rate 18000000bit ceil 20000000bit"));
    }
}
