//! Credit buckets of a sender: their sizes by marks (SIRD §4.2).

/// A bucket's size under one signal: DCTCP's estimator over additive increase and multiplicative
/// decrease (§4.2, §6.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub(super) bytes: f64,
    /// Estimate of the share of bytes that are marked.
    pub(super) marked_share: f64,
    pub(super) seen_bytes: f64,
    pub(super) marked_bytes: f64,
    /// It may shrink: it has not in the present window.
    pub(super) may_shrink: bool,
    /// Bytes until it may shrink (the authors' simulator).
    pub(super) shrinks_in: f64,
}

impl Bucket {
    pub(super) fn new(bytes: f64) -> Self {
        Self {
            bytes,
            marked_share: 0.0,
            seen_bytes: 0.0,
            marked_bytes: 0.0,
            may_shrink: true,
            shrinks_in: bytes,
        }
    }

    /// Takes the mark of a packet. A window is as many bytes as the bucket holds: a round trip's.
    pub(super) fn on_packet(
        &mut self,
        wire_bytes: f64,
        marked: bool,
        gain: f64,
        [least, most]: [f64; 2],
    ) {
        self.may_shrink |= self.estimate(wire_bytes, marked, gain, self.bytes);
        if !marked {
            // A packet's length in a round trip.
            self.bytes += wire_bytes * wire_bytes / self.bytes;
        } else if self.may_shrink {
            self.bytes *= 1.0 - self.marked_share / 2.0;
            self.may_shrink = false;
        }
        self.bytes = self.bytes.clamp(least, most);
    }

    /// Takes the mark of a packet as the authors' simulator does. A window is as many full packets
    /// as the sender's limit holds, the lesser of its two buckets. Marked packets let the bucket
    /// grow, too, and it shrinks once in one and a half windows.
    pub(super) fn on_packet_of_simulator(
        &mut self,
        full_bytes: f64,
        marked: bool,
        (gain, limit): (f64, f64),
        [least, most]: [f64; 2],
    ) {
        let window = (limit / full_bytes).floor() * full_bytes;
        self.estimate(full_bytes, marked, gain, window);
        self.shrinks_in -= full_bytes;
        let mut change = full_bytes * full_bytes / limit;
        if marked && self.shrinks_in <= 0.0 {
            change -= self.bytes * self.marked_share / 2.0;
            self.shrinks_in = 1.5 * window;
        }
        self.bytes = (self.bytes + change).clamp(least, most);
    }

    /// Counts a packet. Returns true at the end of a window, with a new estimate.
    fn estimate(&mut self, wire_bytes: f64, marked: bool, gain: f64, window: f64) -> bool {
        self.seen_bytes += wire_bytes;
        if marked {
            self.marked_bytes += wire_bytes;
        }
        if self.seen_bytes < window {
            return false;
        }
        let share = self.marked_bytes / self.seen_bytes;
        self.marked_share += gain * (share - self.marked_share);
        (self.seen_bytes, self.marked_bytes) = (0.0, 0.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: f64 = 1_538.0;
    const BOUNDS: [f64; 2] = [10_000.0, 100_000.0];

    fn window(bucket: &mut Bucket, marked: bool) {
        let packets = (bucket.bytes / PACKET).ceil() as u32;
        for _ in 0..packets {
            bucket.on_packet(PACKET, marked, 0.08, BOUNDS);
        }
    }

    /// The authors' simulator: a marked packet lets the bucket grow, too, by a packet's share of
    /// the limit, and the bucket shrinks once in one and a half windows.
    #[test]
    fn the_simulators_bucket_grows_by_every_packet() {
        let mut bucket = Bucket::new(100_000.0);
        bucket.bytes = 50_000.0;
        let step = PACKET * PACKET / 50_000.0;
        // It begins with 100 kB to go, of which 65 full packets leave 30 bytes.
        for i in 1..65 {
            bucket.on_packet_of_simulator(PACKET, true, (0.08, 50_000.0), BOUNDS);
            assert!(
                (bucket.bytes - 50_000.0 - f64::from(i) * step).abs() < 1e-6,
                "{i}"
            );
        }
        let (before, share) = (bucket.bytes, bucket.marked_share);
        assert!(share > 0.1);
        bucket.on_packet_of_simulator(PACKET, true, (0.08, 50_000.0), BOUNDS);
        bucket.on_packet_of_simulator(PACKET, true, (0.08, 50_000.0), BOUNDS);
        let expected = before * (1.0 - share / 2.0);
        assert!((bucket.bytes / expected - 1.0).abs() < 0.01, "{bucket:?}");
        // The 48th packet from there on, a window and a half of 32, shrinks it again.
        for i in 1..=48 {
            let before = bucket.bytes;
            bucket.on_packet_of_simulator(PACKET, true, (0.08, 50_000.0), BOUNDS);
            assert_eq!(bucket.bytes < before, i == 48, "{i}: {bucket:?}");
        }
    }

    /// One packet more in each round trip without marks (additive increase).
    #[test]
    fn a_bucket_grows_by_a_packet_in_a_round_trip() {
        let mut bucket = Bucket::new(50_000.0);
        for _ in 0..10 {
            let before = bucket.bytes;
            window(&mut bucket, false);
            assert!((bucket.bytes - before - PACKET).abs() < 0.05 * PACKET);
        }
        (0..100).for_each(|_| window(&mut bucket, false));
        assert_eq!(bucket.bytes, BOUNDS[1]);
    }

    /// DCTCP's estimator: after n windows of marks alone it is 1 − (1 − g)ⁿ, and the next window
    /// shrinks the bucket by half of that, once.
    #[test]
    fn a_bucket_shrinks_by_half_of_the_share_of_marks() {
        let mut bucket = Bucket::new(100_000.0);
        let mut share = 0.0;
        for _ in 0..8 {
            let before = bucket.bytes;
            window(&mut bucket, true);
            let expected = before * (1.0 - share / 2.0);
            let near = (bucket.bytes / expected - 1.0).abs() < 0.05;
            assert!(near || bucket.bytes == BOUNDS[0], "{bucket:?}, {expected}");
            share += 0.08 * (1.0 - share);
        }
        (0..100).for_each(|_| window(&mut bucket, true));
        assert_eq!(bucket.bytes, BOUNDS[0]);
    }
}
