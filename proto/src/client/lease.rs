//! Lease of a session: validity of the server's datagrams, without synchronised clocks.
//!
//! A server datagram names the newest client datagram that the server had received. The client
//! knows its own sending time of that one, and the server cannot have spoken before. The contents
//! therefore hold for one lease after that time. A datagram that was delayed beyond the lease is
//! recognised, whatever the delay.

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
    /// Expiry that was surfaced last; 0 before the first.
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

    /// Expiry of all rates of the session, on the client's clock.
    pub(super) fn expires_ns(&self) -> u64 {
        self.expires_ns
    }

    /// Records the sending time of client datagram `seq`, the next one.
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

    /// Sending time of client datagram `echo`, or `None` if it is too old or was never sent.
    pub(super) fn sent_at(&self, echo: u64) -> Option<u64> {
        // The ring keeps the last SENT_TIMES datagrams; an older one's place belongs to another.
        let kept = echo < self.next_seq
            && echo >= self.first_seq
            && self.next_seq - echo <= SENT_TIMES as u64;
        let index = (echo.checked_sub(self.first_seq)? % SENT_TIMES as u64) as usize;
        kept.then(|| self.sent_ns[index])
    }

    /// Expiry of a server datagram that names `echo` as the newest client datagram received, or
    /// `None` if that is too old.
    pub(super) fn expiry_of(&self, echo: u64) -> Option<u64> {
        Some(self.sent_at(echo)?.saturating_add(self.duration_ns))
    }

    /// Returns true if the surfaced lease has expired, or may expire before a renewal is carried
    /// out.
    pub(super) fn is_lapsing(&self, now_ns: u64) -> bool {
        self.announced_ns != 0 && self.announced_ns <= now_ns.saturating_add(self.duration_ns / 16)
    }

    /// Extends the lease to `expires_ns`. Returns true if the caller should learn of it: at least a
    /// sixteenth of the lease beyond the last surfaced expiry.
    pub(super) fn renew(&mut self, expires_ns: u64) -> bool {
        self.expires_ns = self.expires_ns.max(expires_ns);
        // Every datagram extends the lease, and the caller carries each renewal out: at most 16 per
        // lease.
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
