//! A switch's shared buffer with dynamic thresholds (Choudhury and Hahne, *Dynamic Queue Length
//! Thresholds for Shared-Memory Packet Switches*, 1998): a queue may grow to α times what is free.

/// Settings of a buffer that a switch's ports share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedBuffer {
    /// Size of a switch's buffer.
    pub bytes: u64,
    /// Factor α: a queue may hold up to α times the free part; 1 is common.
    pub alpha: f64,
}

/// The buffer of one switch.
#[derive(Clone, Debug)]
pub struct Pool {
    config: SharedBuffer,
    used_bytes: u64,
}

impl Pool {
    /// Makes an empty buffer.
    #[must_use]
    pub fn new(config: SharedBuffer) -> Self {
        Self {
            config,
            used_bytes: 0,
        }
    }

    /// Returns true if a queue of this length may take a packet.
    #[must_use]
    pub fn admits(&self, queue_bytes: u64, wire_bytes: u16) -> bool {
        let free = self.config.bytes.saturating_sub(self.used_bytes);
        // The threshold α (B − ΣQ) changes with every packet in the switch, so it is not kept.
        u64::from(wire_bytes) <= free && (queue_bytes as f64) < self.config.alpha * free as f64
    }

    pub(crate) fn changed(&mut self, before: u64, after: u64) {
        // Added before the subtraction, which therefore cannot underflow.
        self.used_bytes = self.used_bytes + after - before;
    }

    /// Returns the bytes that wait in all queues of the switch.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of n backlogged queues holds α/(1 + nα) of the buffer (Choudhury and Hahne §III).
    #[test]
    fn backlogged_queues_get_equal_parts_and_leave_one() {
        for (alpha, n) in [(1.0, 1), (1.0, 3), (2.0, 4), (0.5, 2)] {
            let mut pool = Pool::new(SharedBuffer {
                bytes: 1_000_000,
                alpha,
            });
            let mut queues = vec![0_u64; n];
            for round in 0..20_000 {
                let queue = &mut queues[round % n];
                if pool.admits(*queue, 100) {
                    pool.changed(*queue, *queue + 100);
                    *queue += 100;
                }
            }
            let fair = 1e6 * alpha / (1.0 + n as f64 * alpha);
            for queue in queues {
                assert!(
                    (queue as f64 - fair).abs() <= 200.0,
                    "α {alpha}, {n}: {queue} for {fair}"
                );
            }
        }
    }
}
