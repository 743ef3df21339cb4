//! Bounds of a received frame in its packet buffer.

/// Returns true if a frame is one segment within its buffer of `buffer_bytes`. Drivers promise that
/// each is; some share the ring with a kernel.
pub(crate) fn lies_within(segments: u16, offset: u16, bytes: u16, buffer_bytes: u16) -> bool {
    segments == 1 && u32::from(offset) + u32::from(bytes) <= u32::from(buffer_bytes)
}

#[cfg(test)]
mod tests {
    use super::lies_within;

    #[test]
    fn a_frame_beyond_its_buffer_or_in_several_is_none() {
        assert!(lies_within(1, 128, 0, 128), "an empty one at the end");
        assert!(lies_within(1, 128, 2_048, 2_176), "one that fills the room");
        assert!(!lies_within(1, 128, 2_049, 2_176), "a byte beyond");
        assert!(!lies_within(1, 2_177, 0, 2_176), "a begin beyond");
        let most = u16::MAX;
        assert!(!lies_within(1, most, most, most), "a sum above 16 bits");
        assert!(
            !lies_within(1, 128, most - 127, most),
            "one that wraps to 0"
        );
        assert!(!lies_within(2, 128, 64, 2_176), "two segments");
        assert!(!lies_within(0, 128, 64, 2_176), "no segment");
    }
}
