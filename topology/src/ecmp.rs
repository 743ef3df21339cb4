//! ECMP hash: a seeded hash of the 5-tuple that picks one of several equal paths.
//!
//! The hash is small and portable, because switches compute it as well: the lab's leaf switch has a
//! twin of it in BPF C. Both must produce the same [`KNOWN_ANSWERS`].
//!
//! ```text
//! words = src addr (4 words), dst addr (4 words), (src port << 16) | dst port, protocol
//!         an address is four big-endian words; an IPv4 address is the mapped [0, 0, 0xffff, v4]
//! symmetric: the (address, port) pair that compares smaller comes first
//! h = seed
//! for each word w:  h ^= w;  h *= 0x9E3779B1;  h ^= h >> 15
//! h ^= h >> 13;  h *= 0x85EBCA6B;  h ^= h >> 16          all on u32, wrapping
//! ```

use std::net::IpAddr;

/// ECMP settings of a network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EcmpConfig {
    /// Start value of the hash, the same in all switches.
    pub seed: u32,
    /// A flow and its acknowledgements take mirrored paths (fncc §3.1).
    pub symmetric: bool,
}

/// Addresses, ports and protocol that identify a transport flow in a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FiveTuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// IP protocol number; 6 is TCP.
    pub protocol: u8,
}

impl FiveTuple {
    /// The tuple of packets in the reverse direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            protocol: self.protocol,
        }
    }
}

/// The address as four big-endian words; IPv4 as its IPv6-mapped form.
const fn address_words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(v4) => [0, 0, 0xffff, v4.to_bits()],
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            [
                (bits >> 96) as u32,
                (bits >> 64) as u32,
                (bits >> 32) as u32,
                bits as u32,
            ]
        }
    }
}

/// Hashes a 5-tuple. With `symmetric`, a tuple and its [reverse](FiveTuple::reversed) hash alike.
#[must_use]
pub fn flow_hash(seed: u32, symmetric: bool, tuple: &FiveTuple) -> u32 {
    let mut first = (address_words(tuple.src), tuple.src_port);
    let mut second = (address_words(tuple.dst), tuple.dst_port);
    // Both directions sort their ends alike, so both hash the same words.
    if symmetric && second < first {
        std::mem::swap(&mut first, &mut second);
    }
    let mut h = seed;
    let mut mix = |word: u32| {
        h ^= word;
        h = h.wrapping_mul(0x9E37_79B1);
        h ^= h >> 15;
    };
    first.0.into_iter().for_each(&mut mix);
    second.0.into_iter().for_each(&mut mix);
    // Ports after both addresses, in the order that the addresses were sorted in.
    mix((u32::from(first.1) << 16) | u32::from(second.1));
    mix(u32::from(tuple.protocol));
    // Mixes the high bits into the low ones, which `hash % n` uses.
    h ^= h >> 13;
    h = h.wrapping_mul(0x85EB_CA6B);
    h ^ (h >> 16)
}

/// Test vector of the hash, for this function and for its twins in other languages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownAnswer {
    /// Start value.
    pub seed: u32,
    /// Both directions hash alike.
    pub symmetric: bool,
    /// Source address.
    pub src: &'static str,
    /// Destination address.
    pub dst: &'static str,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Result of [`flow_hash`].
    pub hash: u32,
}

#[rustfmt::skip]
macro_rules! known {
    ($($seed:literal $symmetric:literal $src:literal $src_port:literal $dst:literal $dst_port:literal $protocol:literal => $hash:literal)*) => {
        [$(KnownAnswer {
            seed: $seed, symmetric: $symmetric, src: $src, dst: $dst,
            src_port: $src_port, dst_port: $dst_port, protocol: $protocol, hash: $hash,
        }),*]
    };
}

/// Test vectors of an independent implementation (Python integers).
pub const KNOWN_ANSWERS: [KnownAnswer; 10] = known! {
    // One TCP connection, both directions, then with the symmetric option.
    0 false "10.0.1.1" 40000 "10.0.2.1" 5201 6 => 0x32fafa59
    0 false "10.0.2.1" 5201 "10.0.1.1" 40000 6 => 0xecb8516e
    0 true "10.0.1.1" 40000 "10.0.2.1" 5201 6 => 0x32fafa59
    0 true "10.0.2.1" 5201 "10.0.1.1" 40000 6 => 0x32fafa59
    // Another seed.
    7 false "10.0.1.1" 40000 "10.0.2.1" 5201 6 => 0x5577928e
    // Equal addresses: the ports decide the order.
    0xdeadbeef true "10.0.1.1" 2 "10.0.1.1" 1 17 => 0x99268d35
    // IPv6.
    0 false "fd00:0:0:1::1" 40000 "fd00:0:0:2::1" 5201 6 => 0x41d29766
    0xffffffff true "fd00:0:0:2::1" 65535 "fd00:0:0:1::1" 0 6 => 0x9d0221fe
    // The ends of the ranges.
    1 false "0.0.0.0" 0 "255.255.255.255" 65535 255 => 0x456c3538
    // An IPv4-mapped address hashes like the IPv4 address.
    0 true "::ffff:10.0.1.1" 40000 "10.0.2.1" 5201 6 => 0x32fafa59
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_out_as_known() {
        for known in KNOWN_ANSWERS {
            let tuple = FiveTuple {
                src: known.src.parse().unwrap(),
                dst: known.dst.parse().unwrap(),
                src_port: known.src_port,
                dst_port: known.dst_port,
                protocol: known.protocol,
            };
            let hash = flow_hash(known.seed, known.symmetric, &tuple);
            assert_eq!(hash, known.hash, "{known:?} hashed to {hash:#010x}");
        }
    }
}
