//! Key schedule: from the TLS exporter to an AEAD key, and from one key to the next.
//!
//! `exporter → per direction secret → key, IV` and `secret → next secret`, each
//! by HKDF-Expand with SHA-256 (RFC 5869), as QUIC does it (RFC 9001 §5.1,
//! §6.1), under labels of our own.

use ring::aead::{self, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf;
use zeroize::Zeroizing;

use super::{HEADER_BYTES, TAG_BYTES};
use crate::datagram::SessionRole;

/// Label for the TLS exporter (RFC 8446 §7.5).
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-ratewright-sealed-1";

/// Context for the TLS exporter: an epoch and a session have keys of their own.
pub fn exporter_context(epoch: u64, session: u32) -> [u8; 12] {
    let mut context = [0; 12];
    context[..8].copy_from_slice(&epoch.to_le_bytes());
    context[8..].copy_from_slice(&session.to_le_bytes());
    context
}

/// The AEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cipher {
    /// AES-128-GCM: fastest where the processor has instructions for it.
    #[default]
    Aes128Gcm,
    /// ChaCha20-Poly1305: fastest everywhere else.
    ChaCha20Poly1305,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Aes128Gcm, Self::ChaCha20Poly1305];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// The cipher of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.name() == name)
    }

    /// The number in a Welcome.
    pub fn number(self) -> u32 {
        match self {
            Self::Aes128Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    /// The cipher of a number, if this version knows it.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|cipher| cipher.number() == number)
    }

    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// 32 secret bytes, from the exporter or derived from there; wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; Self::BYTES]>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Its length.
    pub const BYTES: usize = 32;

    /// Wraps bytes of the TLS exporter, which `fill` writes in place: no copy stays elsewhere.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn filled<E>(
        fill: impl FnOnce(&mut [u8; Self::BYTES]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut secret = Self(Zeroizing::new([0; Self::BYTES]));
        fill(&mut secret.0)?;
        Ok(secret)
    }

    /// Wraps a copy of bytes.
    pub fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The secret of the datagrams that the end `role` sends.
    pub(super) fn of(&self, role: SessionRole) -> Self {
        self.derive(match role {
            SessionRole::Client => b"ratewright sealed client",
            SessionRole::Server => b"ratewright sealed server",
        })
    }

    /// The secret of the same direction after a key update.
    pub(super) fn next(&self) -> Self {
        self.derive(b"ratewright sealed update")
    }

    fn derive(&self, label: &[u8]) -> Self {
        let mut secret = Self::new([0; Self::BYTES]);
        self.expand(label, &mut *secret.0);
        secret
    }

    fn expand(&self, label: &[u8], out: &mut [u8]) {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &*self.0);
        // Fails beyond 255 hashes of output; at most one is asked for.
        secret
            .expand(&[label], Length(out.len()))
            .and_then(|okm| okm.fill(out))
            .expect("32 bytes at most are asked for");
    }

    pub(super) fn key(&self, cipher: Cipher) -> Key {
        let algorithm = cipher.algorithm();
        // Room for the longer key of the two; HKDF-Expand fills the cipher's length.
        let mut key = Zeroizing::new([0; Self::BYTES]);
        let key = &mut key[..algorithm.key_len()];
        self.expand(b"ratewright sealed key", key);
        let mut iv = Zeroizing::new([0; aead::NONCE_LEN]);
        self.expand(b"ratewright sealed iv", &mut *iv);
        let key = UnboundKey::new(algorithm, key).expect("the length is the algorithm's");
        Key {
            aead: LessSafeKey::new(key),
            iv,
        }
    }
}

/// A key and its IV, which is wiped when it is dropped.
pub(super) struct Key {
    aead: LessSafeKey,
    iv: Zeroizing<[u8; aead::NONCE_LEN]>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The IV xor the number, as in TLS 1.3 (RFC 8446 §5.3).
    fn nonce(&self, seq: u64) -> Nonce {
        let mut nonce = *self.iv;
        // The number fills the low 8 of the nonce's 12 bytes.
        for (byte, of_seq) in nonce[4..].iter_mut().zip(seq.to_be_bytes()) {
            *byte ^= of_seq;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts in place; returns the tag.
    pub(super) fn seal(
        &self,
        seq: u64,
        header: &[u8; HEADER_BYTES],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        // Fails beyond 2^36 bytes of text; the caller's bound is far below.
        let tag = self
            .aead
            .seal_in_place_separate_tag(self.nonce(seq), aead::Aad::from(header), text)
            .expect("a datagram is shorter than the cipher's bound");
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Decrypts in place. Returns the plain text without the tag, or `None` if the tag does not
    /// fit.
    pub(super) fn open<'a>(
        &self,
        seq: u64,
        header: &[u8; HEADER_BYTES],
        text: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        self.aead
            .open_in_place(self.nonce(seq), aead::Aad::from(header), text)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    fn is_wiped_when_dropped<T: ZeroizeOnDrop>(_: &T) {}

    #[test]
    fn secrets_and_ivs_are_wiped_when_they_are_dropped_and_not_shown() {
        let secret = Secret::new([42; Secret::BYTES]);
        let key = secret.key(Cipher::default());
        is_wiped_when_dropped(&secret.0);
        is_wiped_when_dropped(&key.iv);
        for shown in [format!("{secret:?}"), format!("{key:?}")] {
            assert!(shown.ends_with("(..)"), "{shown}");
        }
    }
}
