//! Sealing and opening for one session.

use super::keys::{Cipher, Key, Secret};
use super::window::ReplayWindow;
use super::{
    HEADER_BYTES, MAX_SEALED_BYTES, MAX_SEQ, OVERHEAD_BYTES, OpenError, SealError, SealedCounters,
    SealedHeader,
};
use crate::datagram::SessionRole;

/// Number of datagrams opened under a new key after which the previous key is dropped.
const OLD_KEY_DATAGRAMS: u64 = 1_024;

/// Maximum number of datagrams under one key: AES-GCM's confidentiality limit (RFC 9001 §6.6).
const MAX_KEY_DATAGRAMS: u64 = 1 << 23;

/// Maximum number of datagrams of a session that may fail to open, over all of its keys. It is the
/// integrity limit of ChaCha20-Poly1305, and far below that of AES-GCM (RFC 9001 §6.6).
const MAX_FORGED: u64 = 1 << 36;

/// Cipher of the sealed datagrams and schedule of the key updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedConfig {
    /// The AEAD.
    pub cipher: Cipher,
    /// Datagrams after which a direction's key is replaced; at most 2^23.
    pub update_after_datagrams: u64,
    /// Bytes after which a direction's key is replaced.
    pub update_after_bytes: u64,
    /// Number of datagrams that may fail to open, over all keys of a session, before opening stops;
    /// at most 2^36.
    pub max_forged: u64,
}

impl Default for SealedConfig {
    fn default() -> Self {
        Self {
            cipher: Cipher::default(),
            update_after_datagrams: 1 << 22,
            update_after_bytes: 1 << 32,
            max_forged: MAX_FORGED,
        }
    }
}

/// The direction that this end seals.
#[derive(Debug)]
struct Outgoing {
    secret: Secret,
    key: Key,
    /// Number of keys before this one.
    generation: u64,
    /// Newest generation that the peer is known to have opened.
    seen_by_peer: u64,
    /// Peer's datagram that acknowledged it.
    seen_seq: Option<u64>,
    next_seq: u64,
    datagrams: u64,
    bytes: u64,
    requested: bool,
}

/// The direction that this end opens.
#[derive(Debug)]
struct Incoming {
    /// Of the current generation.
    key: Key,
    generation: u64,
    /// The first number opened under the current key.
    first_seq: u64,
    /// Datagrams opened under the current key.
    opened: u64,
    before: Option<Key>,
    /// Key of the next generation, derived ahead so that a forged datagram costs no derivation.
    next: Key,
    next_secret: Secret,
    window: ReplayWindow,
    /// Datagrams that did not open, under any key.
    forged: u64,
}

/// A datagram that opened.
#[derive(Debug)]
pub struct OpenedDatagram<'a> {
    /// Plain text; empty for a probe of the path.
    pub text: &'a mut [u8],
    /// No later datagram of the peer was opened before, so its source is the peer's newest address.
    pub newest: bool,
}

/// One end of a session's sealed datagrams; see the [module](super).
#[derive(Debug)]
pub struct SealedSession {
    config: SealedConfig,
    session: u32,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl SealedSession {
    /// Makes the end of the role `own`. Both ends need an equal `secret`, session number and
    /// cipher.
    pub fn new(config: SealedConfig, own: SessionRole, session: u32, secret: &Secret) -> Self {
        let peer = match own {
            SessionRole::Client => SessionRole::Server,
            SessionRole::Server => SessionRole::Client,
        };
        let sealing = secret.of(own);
        let opening = secret.of(peer);
        // The next incoming key is ready before the peer begins to use it.
        let next_secret = opening.next();
        Self {
            session,
            outgoing: Outgoing {
                key: sealing.key(config.cipher),
                secret: sealing,
                generation: 0,
                seen_by_peer: 0,
                seen_seq: None,
                next_seq: 0,
                datagrams: 0,
                bytes: 0,
                requested: false,
            },
            incoming: Incoming {
                key: opening.key(config.cipher),
                generation: 0,
                first_seq: 0,
                opened: 0,
                before: None,
                next: next_secret.key(config.cipher),
                next_secret,
                window: ReplayWindow::default(),
                forged: 0,
            },
            config,
        }
    }

    /// The session's number.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// Requests a key update of the direction that this end seals. The next datagram begins it, or
    /// the first one after the peer has followed the previous update.
    pub fn request_key_update(&mut self) {
        self.outgoing.requested = true;
    }

    /// Keys replaced so far, in both directions.
    pub fn key_updates(&self) -> u64 {
        self.outgoing.generation + self.incoming.generation
    }

    /// Seals a datagram into `out`, which is overwritten. An empty datagram is
    /// a probe of the path.
    ///
    /// # Errors
    /// It is too large, or the key is used up.
    pub fn seal(&mut self, datagram: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        let max = MAX_SEALED_BYTES - OVERHEAD_BYTES;
        if datagram.len() > max {
            return Err(SealError::TooLarge {
                bytes: datagram.len(),
                max,
            });
        }
        let outgoing = &mut self.outgoing;
        let due = outgoing.requested
            || outgoing.datagrams >= self.config.update_after_datagrams
            || outgoing.bytes >= self.config.update_after_bytes;
        // One bit names the key, so at most one update may be unacknowledged (RFC 9001 §6.1). An
        // unused key needs no successor.
        if due && outgoing.seen_by_peer == outgoing.generation && outgoing.datagrams > 0 {
            outgoing.update(self.config.cipher);
        }
        // Checked after the update, which sets the count to zero.
        if outgoing.datagrams >= MAX_KEY_DATAGRAMS || outgoing.next_seq > MAX_SEQ {
            return Err(SealError::KeyExhausted);
        }
        let seq = outgoing.next_seq;
        let header = SealedHeader {
            session: self.session,
            seq,
            phase: outgoing.generation & 1 == 1,
            seen: self.incoming.generation & 1 == 1,
        }
        .to_bytes();
        out.clear();
        out.extend_from_slice(&header);
        out.extend_from_slice(datagram);
        let tag = outgoing.key.seal(seq, &header, &mut out[HEADER_BYTES..]);
        out.extend_from_slice(&tag);
        outgoing.next_seq += 1;
        outgoing.datagrams += 1;
        outgoing.bytes += out.len() as u64;
        Ok(())
    }

    /// Seals like [`seal`](Self::seal), and counts the key update that it began.
    ///
    /// # Errors
    /// As of [`seal`](Self::seal).
    pub fn seal_counted(
        &mut self,
        datagram: &[u8],
        out: &mut Vec<u8>,
        counters: &mut SealedCounters,
    ) -> Result<(), SealError> {
        let updates = self.outgoing.generation;
        let sealed = self.seal(datagram, out);
        counters.key_updates += self.outgoing.generation - updates;
        sealed
    }

    /// Opens a datagram in place and returns its plain text.
    ///
    /// # Errors
    /// The datagram is not authentic. Only the bytes in `sealed` and a count have changed.
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<&'a mut [u8], OpenError> {
        let header = SealedHeader::parse(sealed)?;
        self.open_as(header, sealed)
    }

    /// Opens a datagram in place, whose parsed header is given, and counts the outcome.
    pub fn open_counted<'a>(
        &mut self,
        header: SealedHeader,
        sealed: &'a mut [u8],
        counters: &mut SealedCounters,
    ) -> Option<OpenedDatagram<'a>> {
        let bytes = sealed.len() as u64;
        // Read before `open_as`, which moves the window.
        let newest = self.incoming.window.is_newest(header.seq);
        let updates = self.incoming.generation;
        match self.open_as(header, sealed) {
            Ok(text) => {
                counters.opened += 1;
                counters.opened_bytes += bytes;
                counters.key_updates += self.incoming.generation - updates;
                Some(OpenedDatagram { text, newest })
            }
            Err(reason) => {
                counters.dropped(reason);
                None
            }
        }
    }

    fn open_as<'a>(
        &mut self,
        header: SealedHeader,
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        if header.session != self.session {
            return Err(OpenError::UnknownSession);
        }
        let incoming = &mut self.incoming;
        if incoming.forged >= self.config.max_forged.min(MAX_FORGED) {
            return Err(OpenError::Spent);
        }
        // A cheap check before the cipher: replays cost no decryption.
        if !incoming.window.is_new(header.seq) {
            return Err(OpenError::Replayed);
        }
        let (clear, text) = sealed.split_at_mut(HEADER_BYTES);
        let mut aad = [0; HEADER_BYTES];
        aad.copy_from_slice(clear);
        let current = header.phase == (incoming.generation & 1 == 1);
        // The phase bit is that of both neighbours. A number below the current key's first belongs
        // to the previous key, since the peer seals in order.
        let old = !current && header.seq < incoming.first_seq;
        let key = if current {
            &incoming.key
        } else if old {
            incoming.before.as_ref().ok_or(OpenError::OldKey)?
        } else {
            &incoming.next
        };
        let Some(text) = key.open(header.seq, &aad, text) else {
            incoming.forged += 1;
            return Err(OpenError::Forged);
        };

        // Only now is the datagram authentic: a forged phase bit must not change keys.
        if !current && !old {
            incoming.update(self.config.cipher, header.seq);
        }
        if !old {
            // The update may have come with a reordered datagram: the key's first number can be
            // lower.
            incoming.first_seq = incoming.first_seq.min(header.seq);
            incoming.opened += 1;
            // Reordered datagrams of the old key have arrived by now or are lost.
            if incoming.opened > OLD_KEY_DATAGRAMS {
                incoming.before = None;
            }
        }
        incoming.window.insert(header.seq);
        self.outgoing.note_seen(header);
        Ok(text)
    }

    #[cfg(test)]
    pub(super) fn set_used_for_test(&mut self, datagrams: u64) {
        self.outgoing.datagrams = datagrams;
    }

    /// Everything that a datagram could have changed, for tests.
    #[doc(hidden)]
    pub fn fingerprint(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        (
            (
                self.outgoing.generation,
                self.outgoing.seen_by_peer,
                self.outgoing.seen_seq,
                self.outgoing.next_seq,
                self.outgoing.datagrams,
                self.outgoing.requested,
            ),
            (
                self.incoming.generation,
                self.incoming.first_seq,
                self.incoming.opened,
                self.incoming.before.is_some(),
                self.incoming.window.clone(),
            ),
        )
    }
}

impl Outgoing {
    fn update(&mut self, cipher: Cipher) {
        self.secret = self.secret.next();
        self.key = self.secret.key(cipher);
        self.generation += 1;
        self.datagrams = 0;
        self.bytes = 0;
        self.requested = false;
    }

    /// Records the newest key of this end that the peer has seen. Only the peer's newest datagram
    /// counts.
    fn note_seen(&mut self, header: SealedHeader) {
        if self.seen_seq.is_some_and(|seq| header.seq <= seq) {
            return;
        }
        self.seen_seq = Some(header.seq);
        // At most one update is unacknowledged, so the parity names the generation.
        if header.seen == (self.generation & 1 == 1) {
            self.seen_by_peer = self.generation;
        }
    }
}

impl Incoming {
    fn update(&mut self, cipher: Cipher, first_seq: u64) {
        // The key moves up by one: next becomes current, current becomes previous.
        let secret = self.next_secret.next();
        let next = std::mem::replace(&mut self.next, secret.key(cipher));
        self.before = Some(std::mem::replace(&mut self.key, next));
        self.next_secret = secret;
        self.generation += 1;
        self.first_seq = first_seq;
        self.opened = 0;
    }
}
