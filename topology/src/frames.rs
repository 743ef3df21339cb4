//! Ethernet frames on a link, and how much of its line rate can be allocated.
//!
//! A rate counts frames with their header of 14 bytes, as interfaces, queue disciplines and packets
//! do. A wire carries more of each frame: preamble 8, header 14, check sequence 4, gap 12. So of a
//! line rate as many bytes can be allocated as its full frames have with their headers alone.

/// Bytes of a frame beside its packet that every rate counts: the Ethernet header.
pub const COUNTED_BYTES: u16 = 14;

/// Bytes of a frame beside its packet on an Ethernet wire.
pub const WIRE_BYTES: u16 = 38;

/// The usual MTU.
pub const USUAL_MTU_BYTES: u16 = 1_500;

/// Note on a file without `[frames]`, which keeps the meaning that it always had.
pub const WITHOUT_FRAMES: &str = "without [frames], capacities count each frame with its header of 14 bytes and no more; \
     line rates of Ethernet, which carries 38, would overrun the links by up to 1.6 %";

/// The full frame of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Largest IP packet, as hosts send it.
    pub mtu_bytes: u16,
    /// Bytes that the link carries for each frame beside that packet.
    pub overhead_bytes: u16,
}

impl Frame {
    /// The frame of a link whose capacity is what can be allocated.
    pub const AS_COUNTED: Self = Self {
        mtu_bytes: USUAL_MTU_BYTES,
        overhead_bytes: COUNTED_BYTES,
    };

    /// Returns what can be allocated of a line rate, in bit/s; at least 1.
    #[must_use]
    pub const fn allocatable_bps(self, line_rate_bps: u64) -> u64 {
        let counted = self.mtu_bytes as u128 + COUNTED_BYTES as u128;
        let carried = self.mtu_bytes as u128 + self.overhead_bytes as u128;
        // At most the line rate, since no overhead is below what is counted: it fits.
        let bps = (line_rate_bps as u128 * counted / carried) as u64;
        if bps == 0 { 1 } else { bps }
    }
}

/// Frames of a network. Its capacities are then line rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    /// Largest IP packet, as hosts send it. Where hosts differ, the smallest that fills a link.
    pub mtu_bytes: u16,
    /// Bytes that a host's link carries for each frame beside that packet.
    pub overhead_bytes: u16,
    /// Bytes that a link between switches carries likewise.
    pub fabric_overhead_bytes: u16,
}

impl Default for Frames {
    /// Ethernet of the usual MTU, without tunnels.
    fn default() -> Self {
        Self::of(USUAL_MTU_BYTES, WIRE_BYTES)
    }
}

impl Frames {
    /// Capacities that count as rates do: simulators and shapers that count 14 bytes of overhead.
    pub const AS_COUNTED: Self = Self::of(USUAL_MTU_BYTES, COUNTED_BYTES);

    /// Makes frames that are alike on all links.
    #[must_use]
    pub const fn of(mtu_bytes: u16, overhead_bytes: u16) -> Self {
        Self {
            mtu_bytes,
            overhead_bytes,
            fabric_overhead_bytes: overhead_bytes,
        }
    }

    /// Returns the frame of links of a level.
    #[must_use]
    pub const fn of_level(&self, level: u8) -> Frame {
        Frame {
            mtu_bytes: self.mtu_bytes,
            overhead_bytes: if level == 1 {
                self.overhead_bytes
            } else {
                self.fabric_overhead_bytes
            },
        }
    }
}
