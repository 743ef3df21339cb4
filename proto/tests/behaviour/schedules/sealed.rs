//! Sealed datagrams beside the transport's own, as both ends drive them. The client probes and
//! chooses the path; the server answers on the path that the client used last.

use ratewright_proto::datagram::SessionRole;
use ratewright_proto::path::{DatagramPath, PathConfig, PathSelector, is_ack_eliciting};
use ratewright_proto::sealed::{
    Cipher, SealedConfig, SealedCounters, SealedHeader, SealedSession, Secret,
};

use super::oracle::Epoch;

/// Keys are replaced every few datagrams, so that schedules pass many updates.
fn config() -> SealedConfig {
    SealedConfig {
        cipher: Cipher::default(),
        update_after_datagrams: 7,
        ..SealedConfig::default()
    }
}

/// Secret that only the two ends of a transport connection share.
fn secret(epoch: Epoch, session: u32) -> Secret {
    let mut bytes = [0x5a; Secret::BYTES];
    // Different per session, as an exporter's secret: foreign datagrams must not open.
    bytes[..8].copy_from_slice(&epoch.to_le_bytes());
    bytes[8..12].copy_from_slice(&session.to_le_bytes());
    Secret::new(bytes)
}

/// The client's side.
pub(crate) struct ClientEnd {
    sealed: SealedSession,
    path: PathSelector,
    pub(crate) counters: SealedCounters,
}

impl ClientEnd {
    pub(crate) fn new(now_ns: u64, epoch: Epoch, session: u32) -> Self {
        Self {
            sealed: SealedSession::new(
                config(),
                SessionRole::Client,
                session,
                &secret(epoch, session),
            ),
            path: PathSelector::new(now_ns, PathConfig::default()),
            counters: SealedCounters::default(),
        }
    }

    /// Seals a session's datagram, or returns `None` if it takes the other path.
    pub(crate) fn seal(&mut self, now_ns: u64, datagram: &[u8]) -> Option<Vec<u8>> {
        if self.path.path() == DatagramPath::Quic {
            return None;
        }
        let mut out = Vec::new();
        self.sealed.seal(datagram, &mut out).ok()?;
        self.path.sent(now_ns, is_ack_eliciting(datagram));
        Some(out)
    }

    /// Opens a sealed datagram. Returns `None` for an answer to a probe, and if it does not open.
    pub(crate) fn open(&mut self, now_ns: u64, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let text = open(&mut self.sealed, &mut self.counters, &mut bytes)?;
        self.path.heard(now_ns);
        (!text.is_empty()).then_some(text)
    }

    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.path.next_timeout()
    }

    /// Makes a probe if one is due.
    pub(crate) fn on_timeout(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        (self.path.on_timeout(now_ns) && self.sealed.seal(&[], &mut out).is_ok()).then_some(out)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.path.path() == DatagramPath::Sealed
    }

    pub(crate) fn fallbacks(&self) -> u64 {
        self.path.fallbacks()
    }
}

/// The server's side.
pub(crate) struct ServerEnd {
    sealed: SealedSession,
    /// The client's last datagram was sealed.
    pub(crate) answers_here: bool,
    pub(crate) counters: SealedCounters,
}

/// Consequence of a sealed datagram at the server.
pub(crate) enum ServerInput {
    /// Give it to the session.
    Datagram(Vec<u8>),
    /// Send this answer to a probe.
    Answer(Vec<u8>),
}

impl ServerEnd {
    pub(crate) fn new(epoch: Epoch, session: u32) -> Self {
        Self {
            sealed: SealedSession::new(
                config(),
                SessionRole::Server,
                session,
                &secret(epoch, session),
            ),
            answers_here: false,
            counters: SealedCounters::default(),
        }
    }

    pub(crate) fn seal(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.sealed.seal(datagram, &mut out).ok()?;
        Some(out)
    }

    pub(crate) fn open(&mut self, mut bytes: Vec<u8>) -> Option<ServerInput> {
        let text = open(&mut self.sealed, &mut self.counters, &mut bytes)?;
        // An empty text is a probe: the server answers it sealed, below the session.
        if text.is_empty() {
            return self.seal(&[]).map(ServerInput::Answer);
        }
        Some(ServerInput::Datagram(text))
    }

    pub(crate) fn key_updates(&self) -> u64 {
        self.sealed.key_updates()
    }
}

/// Session number in a sealed datagram's header.
pub(crate) fn session_of(bytes: &[u8]) -> Option<u32> {
    SealedHeader::parse(bytes).ok().map(|header| header.session)
}

fn open(
    sealed: &mut SealedSession,
    counters: &mut SealedCounters,
    bytes: &mut [u8],
) -> Option<Vec<u8>> {
    match sealed.open(bytes) {
        Ok(text) => {
            counters.opened += 1;
            Some(text.to_vec())
        }
        Err(reason) => {
            counters.dropped(reason);
            None
        }
    }
}
