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
    /// Bytes since it shrank.
    pub(super) since_shrunk: f64,
    /// It may shrink: it has not in the present window.
    pub(super) may_shrink: bool,
    /// The packet before was marked.
    pub(super) in_burst: bool,
}

impl Bucket {
    pub(super) fn new(bytes: f64) -> Self {
        Self {
            bytes,
            marked_share: 0.0,
            seen_bytes: 0.0,
            marked_bytes: 0.0,
            since_shrunk: 0.0,
            may_shrink: true,
            in_burst: false,
        }
    }

    /// Takes the mark of a packet. A window is as many bytes as the bucket holds: a round trip's.
    pub(super) fn on_packet(
        &mut self,
        wire_bytes: f64,
        marked: bool,
        (gain, simulator): (f64, bool),
        [least, most]: [f64; 2],
    ) {
        self.seen_bytes += wire_bytes;
        self.since_shrunk += wire_bytes;
        if marked {
            self.marked_bytes += wire_bytes;
        }
        if self.seen_bytes >= self.bytes {
            let share = self.marked_bytes / self.seen_bytes;
            self.marked_share += gain * (share - self.marked_share);
            (self.seen_bytes, self.marked_bytes) = (0.0, 0.0);
            self.may_shrink |= !simulator;
        }
        self.may_shrink |= simulator && self.since_shrunk >= 1.5 * self.bytes;
        let grows = !marked || (simulator && !self.in_burst);
        self.in_burst = marked;
        if grows {
            // A packet's length in a round trip.
            self.bytes += wire_bytes * wire_bytes / self.bytes;
        }
        if marked && self.may_shrink {
            self.bytes *= 1.0 - self.marked_share / 2.0;
            (self.since_shrunk, self.may_shrink) = (0.0, false);
        }
        self.bytes = self.bytes.clamp(least, most);
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
            bucket.on_packet(PACKET, marked, (0.08, false), BOUNDS);
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
