//! Packet number space of one session: numbering, acknowledgements, and the check that an arriving
//! datagram belongs to the session. Both ends use it alike.

use zerocopy::IntoBytes;

use crate::VERSION;
use crate::datagram::{Datagram, HEADER_BYTES, Header, SessionRole, flags, prompt_ack_delay_ns};
use crate::error::DatagramError;
use crate::recovery::{RecoveryConfig, SentPackets};
use crate::sequence::{RecvWindow, SeqStatus, expand};

/// Ack-eliciting datagrams after which an acknowledgement goes at once: four acknowledgements can
/// be lost before the window forgets a datagram.
const ACK_EVERY: u32 = 16;

/// Liveness time-out of the peer, restarted by everything valid that the peer sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LivenessTimer {
    timeout_ns: u64,
    heard_ns: u64,
    /// End of the grace period of an owner that was itself not running; it overrides the time-out.
    grace_until_ns: Option<u64>,
}

impl LivenessTimer {
    pub(crate) fn new(now_ns: u64, timeout_ns: u64) -> Self {
        Self {
            timeout_ns,
            heard_ns: now_ns,
            grace_until_ns: None,
        }
    }

    pub(crate) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.grace_until_ns = None;
    }

    /// Restarts the timer as of `at_ns`, unless it was restarted later.
    pub(crate) fn restart_if_later(&mut self, at_ns: u64) {
        if at_ns > self.heard_ns {
            self.heard(at_ns);
        }
    }

    pub(crate) fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Time of the next call of [`has_expired`](Self::has_expired).
    pub(crate) fn deadline_ns(&self) -> u64 {
        let silent_ns = self.heard_ns.saturating_add(self.timeout_ns);
        silent_ns.max(self.grace_until_ns.unwrap_or(0))
    }

    /// Returns true if the liveness time-out has passed. A call that comes late means that this end
    /// was not running, and that the peer's datagrams may be unread. The timer then grants an
    /// eighth of the time-out as grace, once.
    pub(crate) fn has_expired(&mut self, now_ns: u64) -> bool {
        let deadline_ns = self.deadline_ns();
        if deadline_ns > now_ns {
            return false;
        }
        let grace_ns = self.timeout_ns / 8;
        // Only a call later than the grace itself counts as a stall; the usual lateness of timers
        // is shorter.
        if self.grace_until_ns.is_none() && now_ns - deadline_ns > grace_ns {
            self.grace_until_ns = Some(now_ns.saturating_add(grace_ns));
            return false;
        }
        true
    }
}

/// Numbers that identify a session on the wire, and its acknowledgement settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketSpaceConfig {
    pub(crate) role: SessionRole,
    pub(crate) session: u32,
    pub(crate) epoch: u64,
    pub(crate) first_seq: u32,
    pub(crate) peer_first_seq: u32,
    pub(crate) ack_delay_ns: u64,
    pub(crate) recovery: RecoveryConfig,
}

/// Numbering and acknowledgements of one established session.
#[derive(Debug)]
pub(crate) struct PacketSpace {
    config: PacketSpaceConfig,
    next_seq: u64,
    recv: RecvWindow,
    /// Ack-eliciting datagrams received since the last acknowledgement.
    unacked: u32,
    ack_deadline: Option<u64>,
    pub(crate) sent: SentPackets,
}

/// Numbers of a datagram that belongs to this session and is new.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketNumbers {
    pub(crate) seq: u64,
    /// Newest datagram of this end that the peer had received.
    pub(crate) ack: Option<u64>,
}

/// Counts and flags of a datagram to be built.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketContents {
    pub(crate) starts: u16,
    pub(crate) ends: u16,
    pub(crate) rates: u16,
    pub(crate) eliciting: bool,
    /// Ask for an acknowledgement within [`prompt_ack_delay_ns`].
    pub(crate) prompt: bool,
    pub(crate) released: bool,
}

impl PacketSpace {
    pub(crate) fn new(config: PacketSpaceConfig) -> Self {
        Self {
            next_seq: u64::from(config.first_seq),
            recv: RecvWindow::default(),
            unacked: 0,
            ack_deadline: None,
            sent: SentPackets::new(config.recovery),
            config,
        }
    }

    /// Sequence number of the next datagram.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Returns true if the peer has sent a datagram.
    pub(crate) fn has_received(&self) -> bool {
        self.recv.largest().is_some()
    }

    /// Latest time of the next acknowledgement; `None` if nothing is to be acknowledged.
    pub(crate) fn ack_deadline(&self) -> Option<u64> {
        self.ack_deadline
    }

    /// Returns true if an acknowledgement is due at `now_ns`.
    pub(crate) fn ack_due(&self, now_ns: u64) -> bool {
        self.ack_deadline.is_some_and(|deadline| deadline <= now_ns)
    }

    /// Checks a datagram against the session; changes nothing.
    pub(crate) fn check(&self, datagram: &Datagram<'_>) -> Result<PacketNumbers, DatagramError> {
        let header = datagram.header;
        if header.session.get() != self.config.session
            // The wire carries the low half of the epoch only: another one passes once in 2^32.
            || header.epoch.get() != self.config.epoch as u32
        {
            return Err(DatagramError::WrongSession);
        }
        // Sequence numbers on the wire are 32 bits: expand them around the newest one received.
        let peer_first = u64::from(self.config.peer_first_seq);
        let seq = expand(header.seq.get(), self.recv.largest().unwrap_or(peer_first));
        if seq < peer_first {
            // Below the first number that the peer announced in the handshake: it never sent this.
            return Err(DatagramError::Malformed);
        }
        match self.recv.classify(seq) {
            SeqStatus::New => {}
            SeqStatus::Duplicate => return Err(DatagramError::Duplicate),
            SeqStatus::TooOld => return Err(DatagramError::TooOld),
        }
        let ack = header
            .has(flags::HAS_ACK)
            .then(|| expand(header.ack.get(), self.next_seq));
        // An acknowledgement outside of what was sent would corrupt the loss detection.
        if ack.is_some_and(|ack| ack >= self.next_seq || ack < u64::from(self.config.first_seq)) {
            return Err(DatagramError::AckOfUnsent);
        }
        Ok(PacketNumbers { seq, ack })
    }

    /// Records an accepted datagram and schedules its acknowledgement.
    pub(crate) fn received(
        &mut self,
        now_ns: u64,
        numbers: PacketNumbers,
        datagram: &Datagram<'_>,
    ) {
        self.recv.insert(numbers.seq);
        if !datagram.header.has(flags::ACK_ELICITING) {
            return;
        }
        self.unacked += 1;
        let prompt = datagram.header.has(flags::PROMPT_ACK);
        let due_ns = if self.unacked >= ACK_EVERY || prompt && datagram.is_empty() {
            // No rate will follow a keep-alive that could carry its acknowledgement: send it now.
            now_ns
        } else if prompt {
            now_ns.saturating_add(prompt_ack_delay_ns(self.config.ack_delay_ns))
        } else {
            now_ns.saturating_add(self.config.ack_delay_ns)
        };
        // One acknowledgement covers all datagrams, so the earliest deadline wins.
        self.ack_deadline = Some(
            self.ack_deadline
                .map_or(due_ns, |before| before.min(due_ns)),
        );
    }

    /// Writes the header over the first bytes of `out`, which holds the records behind a gap of
    /// [`HEADER_BYTES`]. Returns the datagram's sequence number. The header acknowledges everything
    /// received so far.
    pub(crate) fn seal(&mut self, out: &mut [u8], contents: PacketContents) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        // Every datagram carries the acknowledgement fields, so nothing is left to acknowledge.
        self.unacked = 0;
        self.ack_deadline = None;
        let set = |on: bool, flag: u8| if on { flag } else { 0 };
        // Built last, so that it acknowledges everything received up to now.
        let header = Header {
            version: VERSION,
            flags: set(contents.eliciting, flags::ACK_ELICITING)
                | set(contents.eliciting && contents.prompt, flags::PROMPT_ACK)
                | set(self.recv.largest().is_some(), flags::HAS_ACK)
                | set(self.config.role == SessionRole::Server, flags::FROM_SERVER)
                | set(contents.released, flags::RELEASED),
            starts: contents.starts.into(),
            ends: contents.ends.into(),
            rates: contents.rates.into(),
            session: self.config.session.into(),
            epoch: (self.config.epoch as u32).into(),
            seq: (seq as u32).into(),
            ack: (self.recv.largest().unwrap_or(0) as u32).into(),
            ack_bitmap: self.recv.bitmap().into(),
        };
        out[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        seq
    }
}
