//! How long what the server said holds, without synchronised clocks.
//!
//! A server datagram names the newest client datagram that the server had
//! received. The client knows when it sent that one, so it knows a time before
//! which the server cannot have spoken, on its own clock: what was said holds
//! until the lease after that time. A datagram that was delayed beyond the
//! lease is thus known to be, whatever the delay.

/// Datagrams whose sending times are kept.
const SENT_TIMES: usize = 4096;

/// The lease of one session.
#[derive(Debug)]
pub(super) struct Lease {
    duration_ns: u64,
    first_seq: u64,
    next_seq: u64,
    /// Sending time of `seq` at `seq % SENT_TIMES`; grows up to that length.
    sent_ns: Vec<u64>,
    expires_ns: u64,
    /// What was last announced.
    announced_ns: u64,
}

impl Lease {
    pub(super) fn new(duration_ns: u64, first_seq: u64) -> Self {
        Self {
            duration_ns,
            first_seq,
            next_seq: first_seq,
            sent_ns: Vec::new(),
            expires_ns: 0,
            announced_ns: 0,
        }
    }

    pub(super) fn duration_ns(&self) -> u64 {
        self.duration_ns
    }

    /// When everything the server said ceases to hold.
    pub(super) fn expires_ns(&self) -> u64 {
        self.expires_ns
    }

    /// Client datagram `seq`, the next one, was sent.
    pub(super) fn sent(&mut self, seq: u64, now_ns: u64) {
        debug_assert_eq!(seq, self.next_seq);
        let index = ((seq - self.first_seq) % SENT_TIMES as u64) as usize;
        if index == self.sent_ns.len() {
            self.sent_ns.push(now_ns);
        } else {
            self.sent_ns[index] = now_ns;
        }
        self.next_seq = seq + 1;
    }

    /// When client datagram `echo` was sent. `None` if that is too long ago.
    pub(super) fn sent_at(&self, echo: u64) -> Option<u64> {
        let kept = echo < self.next_seq
            && echo >= self.first_seq
            && self.next_seq - echo <= SENT_TIMES as u64;
        let index = (echo.checked_sub(self.first_seq)? % SENT_TIMES as u64) as usize;
        kept.then(|| self.sent_ns[index])
    }

    /// Until when a server datagram holds that names `echo` as the newest
    /// client datagram it had received. `None` if that is too long ago.
    pub(super) fn expiry_of(&self, echo: u64) -> Option<u64> {
        Some(self.sent_at(echo)?.saturating_add(self.duration_ns))
    }

    /// Whether what was announced last has run out, or is so close to it that
    /// it may before a renewal is carried out.
    pub(super) fn is_lapsing(&self, now_ns: u64) -> bool {
        self.announced_ns != 0 && self.announced_ns <= now_ns.saturating_add(self.duration_ns / 16)
    }

    /// A valid datagram holds until `expires_ns`. True: that is worth
    /// announcing, being a sixteenth of the lease later than announced last.
    pub(super) fn renew(&mut self, expires_ns: u64) -> bool {
        self.expires_ns = self.expires_ns.max(expires_ns);
        let worth = self.expires_ns >= self.announced_ns.saturating_add(self.duration_ns / 16)
            && self.expires_ns > self.announced_ns;
        if worth {
            self.announced_ns = self.expires_ns;
        }
        worth
    }
}

#[cfg(test)]
mod tests;
