//! Generated host addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::error::BuildError;

/// The base prefixes out of which hosts get one address each, per family.
///
/// Rack r (counted from 1) has the r-th slice of the base, hosts count from 1 in it: with the
/// defaults, the second host of the third rack is 10.0.3.2 and fd00:0:0:3::2. IPv4 slices hold
/// 256 addresses, or more where a rack needs it; IPv6 slices are /64. Slice 0 is left to the
/// allocator and other infrastructure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addressing {
    /// Base of the IPv4 addresses; none: hosts get no generated IPv4 address.
    pub ipv4_base: Option<Ipv4Net>,
    /// Base of the IPv6 addresses; none: hosts get no generated IPv6 address.
    pub ipv6_base: Option<Ipv6Net>,
}

impl Default for Addressing {
    fn default() -> Self {
        Self {
            ipv4_base: Ipv4Net::new(Ipv4Addr::new(10, 0, 0, 0), 8).ok(),
            ipv6_base: Ipv6Net::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 48).ok(),
        }
    }
}

impl Addressing {
    /// Checks that the bases hold the racks, and returns the bits of an IPv4 slice.
    pub(crate) fn check(&self, racks: usize, rack_hosts: u32) -> Result<u8, BuildError> {
        // Hosts count from 1, and the last address of a slice stays free as in a subnet: two
        // addresses more.
        let slice_bits = bits_for(u64::from(rack_hosts) + 2).max(8);
        // Slice 0 is left to infrastructure.
        let rack_bits = bits_for(racks as u64 + 1);
        let fit = |key, base: String, length: u8, room: u8, wanted: u8| {
            if wanted > room {
                return Err(BuildError::NoBaseFits {
                    key,
                    racks,
                    rack_hosts,
                });
            }
            // A base prefix of at most this length leaves `wanted` bits for racks and hosts.
            let longest = room - wanted;
            if length > longest {
                return Err(BuildError::BaseTooSmall {
                    key,
                    base,
                    racks,
                    rack_hosts,
                    longest,
                });
            }
            Ok(())
        };
        if let Some(base) = self.ipv4_base {
            fit(
                "ipv4_base",
                base.to_string(),
                base.prefix_len(),
                32,
                slice_bits + rack_bits,
            )?;
        }
        if let Some(base) = self.ipv6_base {
            fit(
                "ipv6_base",
                base.to_string(),
                base.prefix_len(),
                64,
                rack_bits,
            )?;
        }
        Ok(slice_bits)
    }

    /// The addresses of host `index` in rack `rack`, both counted from 0.
    pub(crate) fn prefixes(&self, slice_bits: u8, rack: u32, index: u32) -> Vec<IpNet> {
        let v4 = self.ipv4_base.map(|base| {
            // `check` has made sure that this stays inside the base.
            let offset = ((rack + 1) << slice_bits) + index + 1;
            IpNet::V4(Ipv4Net::from(Ipv4Addr::from_bits(
                base.network().to_bits() + offset,
            )))
        });
        let v6 = self.ipv6_base.map(|base| {
            let offset = (u128::from(rack + 1) << 64) + u128::from(index + 1);
            IpNet::V6(Ipv6Net::from(Ipv6Addr::from_bits(
                base.network().to_bits() + offset,
            )))
        });
        v4.into_iter().chain(v6).collect()
    }
}

/// The smallest number of bits that count to `values`.
fn bits_for(values: u64) -> u8 {
    (u64::BITS - values.saturating_sub(1).leading_zeros()) as u8
}
