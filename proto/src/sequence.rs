//! Sequence numbers, 64 bits inside and 32 on the wire, and the window of received ones.

/// Number of datagrams behind the newest that an acknowledgement can name.
pub const ACK_WINDOW: u64 = 64;

/// The number closest to `near` whose low 32 bits are `wire`.
pub fn expand(wire: u32, near: u64) -> u64 {
    let delta = wire.wrapping_sub(near as u32) as i32;
    // Below zero there is no sequence number: the one a lap ahead is meant.
    near.checked_add_signed(i64::from(delta))
        .unwrap_or(u64::from(wire))
}

/// Relation of an arriving sequence number to the [`RecvWindow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqStatus {
    /// Not seen before.
    New,
    /// Seen before.
    Duplicate,
    /// Too old to be distinguished from a duplicate.
    TooOld,
}

/// Newest sequence number received, and a bitmap of the 64 before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvWindow {
    largest: Option<u64>,
    /// Bit `i`: `largest − 1 − i` was received.
    bitmap: u64,
}

impl RecvWindow {
    /// The newest sequence number received.
    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Bitmap of earlier numbers: bit `i` is set if `largest − 1 − i` was received.
    pub fn bitmap(&self) -> u64 {
        self.bitmap
    }

    /// Classifies `seq` without recording it.
    pub fn classify(&self, seq: u64) -> SeqStatus {
        match self.largest {
            None => SeqStatus::New,
            Some(largest) if seq > largest => SeqStatus::New,
            Some(largest) if seq == largest => SeqStatus::Duplicate,
            Some(largest) => {
                let behind = largest - 1 - seq;
                if behind >= ACK_WINDOW {
                    SeqStatus::TooOld
                } else if self.bitmap >> behind & 1 == 1 {
                    SeqStatus::Duplicate
                } else {
                    SeqStatus::New
                }
            }
        }
    }

    /// Records that `seq`, classified as new, was received.
    pub fn insert(&mut self, seq: u64) {
        match self.largest {
            None => self.largest = Some(seq),
            Some(largest) if seq > largest => {
                // The old `largest` becomes bit `shift − 1`. At 64 only that bit is left; beyond,
                // none is.
                let shift = seq - largest;
                self.bitmap = match shift {
                    1..64 => (self.bitmap << shift) | (1 << (shift - 1)),
                    64 => 1 << 63,
                    _ => 0,
                };
                self.largest = Some(seq);
            }
            Some(largest) if seq < largest => {
                let behind = largest - 1 - seq;
                if behind < ACK_WINDOW {
                    self.bitmap |= 1 << behind;
                }
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
