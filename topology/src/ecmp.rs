//! Which of several equal paths a flow takes: a seeded hash of its 5-tuple.
//!
//! The hash is small and portable, because switches compute it as well: the lab's leaf switch
//! has a twin of it in BPF C. Both are held to the same known answers.
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

/// How a network spreads flows over equal paths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EcmpConfig {
    /// Start value of the hash, the same in all switches.
    pub seed: u32,
    /// Whether a flow and its acknowledgements take the same way (fncc §3.1).
    pub symmetric: bool,
}

/// What identifies a transport flow in a packet.
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
    /// The tuple of packets that travel the other way.
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
    mix((u32::from(first.1) << 16) | u32::from(second.1));
    mix(u32::from(tuple.protocol));
    h ^= h >> 13;
    h = h.wrapping_mul(0x85EB_CA6B);
    h ^ (h >> 16)
}
