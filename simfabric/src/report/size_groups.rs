//! Flows by size, as flowtune fig. 12 groups them: by the number of full packets that they fill.

/// Payload of a full packet, 1,460 bytes as in flowtune's ns-2 runs: classes count in these.
pub const PACKET_BYTES: u64 = 1_460;

/// The name and the largest number of packets of each class, smallest first.
pub const CLASSES: [(&str, u64); 5] = [
    ("1 packet", 1),
    ("1-10 packets", 10),
    ("10-100 packets", 100),
    ("100-1000 packets", 1_000),
    ("large", u64::MAX),
];

/// The index into [`CLASSES`] of a flow of `bytes`.
#[must_use]
pub fn class_of(bytes: u64) -> usize {
    // A last packet that is not full counts as one: one byte is the class of one packet.
    let packets = bytes.div_ceil(PACKET_BYTES);
    CLASSES
        .iter()
        .position(|(_, most)| packets <= *most)
        .unwrap_or(CLASSES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_belong_to_the_smaller_class() {
        for (bytes, class) in [
            (0, 0),
            (1_460, 0),
            (1_461, 1),
            (14_600, 1),
            (14_601, 2),
            (146_000, 2),
            (1_460_000, 3),
            (1_460_001, 4),
            (u64::MAX, 4),
        ] {
            assert_eq!(class_of(bytes), class, "{bytes}");
        }
    }
}
