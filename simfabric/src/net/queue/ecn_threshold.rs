//! DCTCP's switch (DCTCP §3.1): a [drop-tail](super::drop_tail) queue that marks from a length on.

use super::limit::{check_length, length};
use super::{DisciplineConfig, DropTail, Limit, Queue};
use crate::parameters::ParamError;
use crate::rng::Stream;

crate::parameters! {
    /// First in, first out; what arrives while the queue is as long as the threshold is marked.
    pub struct Config {
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
        /// Threshold in packets; DCTCP §3.5 has 65 at 10 Gbit/s. One of both keys is needed.
        mark_packets: Option<u32> = None,
        /// Threshold in bytes on the link, in place of packets.
        mark_bytes: Option<u64> = None,
    }
}

impl Config {
    /// Marks from this number of packets on.
    #[must_use]
    pub fn packets(mark_packets: u32, limit: Limit) -> Self {
        Self {
            limit,
            mark_packets: Some(mark_packets),
            mark_bytes: None,
        }
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "ecn-threshold";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        if self.mark_packets.is_none() && self.mark_bytes.is_none() {
            let message = "the threshold is missing; add `mark_packets` or `mark_bytes`";
            return Err(ParamError::whole(message));
        }
        // A threshold may be below a packet, which marks all; only the limit must hold one.
        let keys = ["mark_packets", "mark_bytes"];
        check_length(keys, self.mark_packets, self.mark_bytes)?;
        self.limit.check(packet_bytes)
    }

    fn build(&self, _: u64, _: &mut Stream) -> Queue {
        let mark_at = length(self.mark_packets, self.mark_bytes);
        // One type for both: NICs and marking switches then run the same code.
        Queue::DropTail(DropTail::new(self.limit.capacity(), mark_at))
    }
}
