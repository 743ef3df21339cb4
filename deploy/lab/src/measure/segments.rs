//! TCP segments that hosts have sent again, also those of sockets that are closed, which
//! [`sockdiag`](super::sockdiag) does not know any more.

use anyhow::{Context as _, Result};

use crate::net::ns::Netns;

/// Returns the segments that all sockets of a namespace have sent again since it was made.
///
/// # Errors
/// The kernel's counters cannot be read.
pub fn retransmitted(netns: &Netns) -> Result<u64> {
    let text = netns.within(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))??;
    count(&text).context("/proc/net/snmp has no RetransSegs of Tcp")
}

/// Reads the count from the kernel's two lines about TCP, names and values.
fn count(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut counters = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = counters.find(|(name, _)| *name == "RetransSegs")?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_by_its_name() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: MaxConn OutSegs RetransSegs\nTcp: -1 70 3\n";
        assert_eq!(count(text), Some(3));
        assert_eq!(count("Tcp: OutSegs\nTcp: 70\n"), None);
        assert_eq!(count("Tcp: RetransSegs\n"), None);
    }
}
