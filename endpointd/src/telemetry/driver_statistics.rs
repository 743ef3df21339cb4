//! Allowance counters of a network driver, by name (`ethtool -S`).
//!
//! Amazon's ENA counts packets that an instance's allowance has queued or dropped. Other drivers
//! have no such names, and then there is nothing to report.
#![allow(unsafe_code)] // the ioctl SIOCETHTOOL takes a pointer

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `SIOCETHTOOL` and its commands (`linux/ethtool.h`).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
/// The string set of statistics.
const ETH_SS_STATS: u32 = 1;
/// Bytes of a name (`ETH_GSTRING_LEN`).
const NAME_BYTES: usize = 32;
/// Most statistics that a driver may have to be read.
const MAX_STATISTICS: usize = 8_192;

/// Counters of packets beyond the bandwidth from the host, and to it.
pub const BANDWIDTH: [&str; 2] = ["bw_out_allowance_exceeded", "bw_in_allowance_exceeded"];

/// Names of the counters that are reported, as ENA's driver spells them.
pub const ALLOWANCES: [&str; 5] = [
    BANDWIDTH[1],
    BANDWIDTH[0],
    "pps_allowance_exceeded",
    "conntrack_allowance_exceeded",
    "linklocal_allowance_exceeded",
];

/// Judge of what the bandwidth's allowances held up from one reading to the next.
#[derive(Debug, Default)]
pub struct HeldUp {
    /// Packets at the last reading, in the order of [`BANDWIDTH`].
    packets: Option<[u64; 2]>,
}

impl HeldUp {
    /// Takes a reading. Returns true for each direction in which packets were held up since the
    /// one before. A reading without the counters, and the first one after it, say nothing.
    pub fn take(&mut self, allowances: &[(&'static str, u64)]) -> [bool; 2] {
        let packets = BANDWIDTH.map(|wanted| {
            let found = allowances.iter().find(|(name, _)| *name == wanted);
            found.map(|&(_, packets)| packets)
        });
        let now = match packets {
            [Some(from), Some(to)] => Some([from, to]),
            _ => None,
        };
        let before = std::mem::replace(&mut self.packets, now);
        now.zip(before).map_or([false; 2], |(now, before)| {
            std::array::from_fn(|at| now[at] > before[at])
        })
    }
}

/// A reader of a driver's allowance counters.
#[derive(Debug)]
pub struct DriverStatistics {
    socket: OwnedFd,
    interface: [u8; libc::IFNAMSIZ],
    /// Number of the driver's statistics.
    count: usize,
    /// Name and position of each allowance counter.
    allowances: Vec<(&'static str, usize)>,
}

impl DriverStatistics {
    /// Finds the allowance counters of the interface `name`.
    ///
    /// # Errors
    /// When the driver has no statistics, or the kernel refuses.
    pub fn open(name: &str) -> io::Result<Self> {
        let mut interface = [0; libc::IFNAMSIZ];
        // One byte less: the kernel expects a terminating zero.
        if name.len() >= interface.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        interface[..name.len()].copy_from_slice(name.as_bytes());
        let socket = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let mut reader = Self {
            socket,
            interface,
            count: 0,
            allowances: Vec::new(),
        };
        // struct ethtool_sset_info: cmd, reserved, mask, one word for the set's size.
        let mut info = [0_u64; 3];
        info[0] = u64::from(ETHTOOL_GSSET_INFO);
        info[1] = 1 << ETH_SS_STATS;
        reader.ioctl(&mut info)?;
        let count = low_word(info[2]) as usize;
        if info[1] == 0 || count == 0 || count > MAX_STATISTICS {
            return Ok(reader);
        }
        // struct ethtool_gstrings: cmd, set, len, then the names.
        let mut strings = vec![0_u64; 2 + count * NAME_BYTES / 8 + MARGIN];
        strings[0] = u64::from_ne_bytes(words(ETHTOOL_GSTRINGS, ETH_SS_STATS));
        strings[1] = u64::from_ne_bytes(words(count as u32, 0));
        reader.ioctl(&mut strings)?;
        let bytes: Vec<u8> = strings.iter().flat_map(|word| word.to_ne_bytes()).collect();
        reader.count = count;
        // The names follow the third word at once.
        reader.allowances = find_allowances(&bytes[12..12 + count * NAME_BYTES]);
        Ok(reader)
    }

    /// Reads the allowance counters; an empty list where the driver has none.
    ///
    /// # Errors
    /// When the interface is gone, or the kernel refuses.
    pub fn read(&self) -> io::Result<Vec<(&'static str, u64)>> {
        if self.allowances.is_empty() {
            return Ok(Vec::new());
        }
        // struct ethtool_stats: cmd, n_stats, then the values.
        let mut values = vec![0_u64; 1 + self.count + MARGIN];
        values[0] = u64::from_ne_bytes(words(ETHTOOL_GSTATS, self.count as u32));
        self.ioctl(&mut values)?;
        let values = &values[1..=self.count];
        Ok(self
            .allowances
            .iter()
            .filter_map(|&(name, at)| Some((name, *values.get(at)?)))
            .collect())
    }

    fn ioctl(&self, data: &mut [u64]) -> io::Result<()> {
        // SAFETY: all-zero bytes are a valid `ifreq`, which is plain data.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().zip(&self.interface) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
        // SAFETY: the kernel writes as much as the set of statistics needs, for which the callers
        // leave room and a margin; `data` lives and is borrowed mutably through the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Words of room beyond the expected answer: a driver's set may grow between two calls.
const MARGIN: usize = 4_096;

fn words(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

fn low_word(value: u64) -> u32 {
    let bytes = value.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Finds the allowance counters in a driver's list of names, 32 bytes each and padded with zeros.
fn find_allowances(names: &[u8]) -> Vec<(&'static str, usize)> {
    let names = names.chunks_exact(NAME_BYTES).enumerate();
    names
        .filter_map(|(at, bytes)| {
            let end = bytes
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(NAME_BYTES);
            let known = ALLOWANCES
                .iter()
                .find(|name| name.as_bytes() == &bytes[..end])?;
            Some((*known, at))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reset of the driver, a reading that failed, and an allowance of another kind.
    #[test]
    fn packets_are_held_up_while_the_bandwidths_counters_grow() {
        let mut held_up = HeldUp::default();
        let mut take = |from, to| {
            let packets_per_second = ("pps_allowance_exceeded", from + 7 * to);
            held_up.take(&[(BANDWIDTH[1], to), packets_per_second, (BANDWIDTH[0], from)])
        };
        assert_eq!(
            take(1_000, 0),
            [false, false],
            "counted before it was looked at"
        );
        assert_eq!(take(1_000, 0), [false, false]);
        assert_eq!(take(1_001, 0), [true, false]);
        assert_eq!(take(1_001, 5), [false, true]);
        assert_eq!(take(0, 5), [false, false], "the device was reset");
        assert_eq!(take(9, 9), [true, true]);
        assert_eq!(held_up.take(&[]), [false, false], "the reading failed");
        assert_eq!(
            held_up.take(&[(BANDWIDTH[0], 99), (BANDWIDTH[1], 99)]),
            [false, false]
        );
        assert_eq!(
            held_up.take(&[("pps_allowance_exceeded", 1)]),
            [false, false]
        );
    }

    /// Names in the order of ENA's driver 2.x, as `ethtool -S` prints them on an instance.
    const ENA: [&str; 12] = [
        "total_resets",
        "reset_fail",
        "tx_timeout",
        "wd_expired",
        "interface_up",
        "interface_down",
        "admin_q_pause",
        "bw_in_allowance_exceeded",
        "bw_out_allowance_exceeded",
        "pps_allowance_exceeded",
        "conntrack_allowance_exceeded",
        "linklocal_allowance_exceeded",
    ];

    fn list(names: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; names.len() * NAME_BYTES];
        for (name, chunk) in names.iter().zip(bytes.chunks_exact_mut(NAME_BYTES)) {
            chunk[..name.len()].copy_from_slice(name.as_bytes());
        }
        bytes
    }

    #[test]
    fn the_counters_of_an_ena_driver_are_found_by_their_names() {
        let found = find_allowances(&list(&ENA));
        let expected: Vec<_> = ALLOWANCES.iter().copied().zip(7..).collect();
        assert_eq!(found, expected);
        // An older driver has none of the last ones.
        assert_eq!(find_allowances(&list(&ENA[..9])).len(), 2);
    }

    #[test]
    fn other_drivers_and_broken_lists_have_none() {
        assert!(find_allowances(&list(&["peer_ifindex", "rx_queue_0_xdp_packets"])).is_empty());
        // A name that only begins alike, one that fills its field, and a list cut short.
        assert!(find_allowances(&list(&["bw_in_allowance_exceeded_x"])).is_empty());
        assert!(find_allowances(&[b'x'; NAME_BYTES]).is_empty());
        assert!(find_allowances(&list(&ENA)[7 * NAME_BYTES..8 * NAME_BYTES - 1]).is_empty());
    }

    #[test]
    fn a_device_without_such_counters_reports_nothing() {
        // Loopback has no statistics of a driver; whether that is an error is the kernel's matter.
        let read = DriverStatistics::open("lo").and_then(|reader| reader.read());
        assert!(read.map_or(true, |counters| counters.is_empty()));
    }
}
