//! Which of the hosts that the authority has signed are to have a session.
//!
//! A certificate outlives the reasons for which it was signed: a machine is decommissioned, a key is
//! copied. The authority's signature alone therefore does not admit a host where the operator has
//! said who may come.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::RawTrust;

/// SHA-256 over a certificate's DER form, as `openssl x509 -fingerprint -sha256` prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Reads 64 hexadecimal digits, with or without colons.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|&c| c != ':')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        let (pairs, rest) = digits.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        rest.is_empty()
            .then(|| bytes.try_into().ok().map(Self))
            .flatten()
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at > 0 { ":" } else { "" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Why a host that has a good certificate gets no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// There is a list of hosts, and this one is not on it.
    #[error("trust.allow does not name the host {0:?}")]
    NotListed(String),
    /// Its certificate was withdrawn.
    #[error("trust.deny_certificates has the host's certificate {0}")]
    Denied(Fingerprint),
    /// The certificate of the relay that it came through was.
    #[error("trust.deny_certificates has the certificate {0} of the relay")]
    RelayDenied(Fingerprint),
    /// What it came through is no relay.
    #[error("trust.relays names none of {0:?}, the DNS names in the relay's certificate")]
    NoRelay(Vec<String>),
    /// The relay that it came through is another's.
    #[error("trust.relays does not let {relay:?} speak for the host {host:?}")]
    NotOfRelay {
        /// The relay's name.
        relay: String,
        /// The host.
        host: String,
    },
}

/// Who a relay is, by the certificate that it showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayIdentity {
    /// Its name in `trust.relays`.
    pub name: String,
    /// Which certificate it showed.
    pub certificate: Fingerprint,
}

/// One or many hosts: a name, or the beginning of names with a `*` behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern(String);

impl HostPattern {
    /// Reads a pattern; nothing if there is a `*` before its end, or if it is empty.
    pub fn parse(text: &str) -> Option<Self> {
        let stars = text.chars().filter(|&c| c == '*').count();
        let good = !text.is_empty() && (stars == 0 || stars == 1 && text.ends_with('*'));
        good.then(|| Self(text.to_owned()))
    }

    /// Whether a host's name is one of them.
    pub fn matches(&self, host: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => host.starts_with(beginning),
            None => self.0 == host,
        }
    }
}

/// The operator's word on who may have a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trust {
    /// The hosts that may; `None`: every host of the topology.
    pub allow: Option<BTreeSet<String>>,
    /// Certificates that are worth nothing any more.
    pub deny_certificates: BTreeSet<Fingerprint>,
    /// Which relays there are, and the hosts that each may speak for.
    pub relays: BTreeMap<String, Vec<HostPattern>>,
}

impl Trust {
    /// Whether a host may have a session under a certificate.
    ///
    /// # Errors
    /// What speaks against it.
    pub fn check(&self, host: &str, certificate: &Fingerprint) -> Result<(), Distrust> {
        if self.deny_certificates.contains(certificate) {
            return Err(Distrust::Denied(*certificate));
        }
        match &self.allow {
            Some(allow) if !allow.contains(host) => Err(Distrust::NotListed(host.to_owned())),
            _ => Ok(()),
        }
    }

    /// Which relay a certificate with these names is.
    ///
    /// # Errors
    /// What speaks against it.
    pub fn relay(
        &self,
        names: &[String],
        certificate: &Fingerprint,
    ) -> Result<RelayIdentity, Distrust> {
        if self.deny_certificates.contains(certificate) {
            return Err(Distrust::RelayDenied(*certificate));
        }
        let name = names.iter().find(|&name| self.relays.contains_key(name));
        Ok(RelayIdentity {
            name: name
                .ok_or_else(|| Distrust::NoRelay(names.to_vec()))?
                .clone(),
            certificate: *certificate,
        })
    }

    /// Whether a relay may speak for a host.
    ///
    /// # Errors
    /// What speaks against it.
    pub fn check_relay(&self, relay: &RelayIdentity, host: &str) -> Result<(), Distrust> {
        if self.deny_certificates.contains(&relay.certificate) {
            return Err(Distrust::RelayDenied(relay.certificate));
        }
        let hosts = self.relays.get(&relay.name);
        if hosts.is_some_and(|hosts| hosts.iter().any(|pattern| pattern.matches(host))) {
            return Ok(());
        }
        Err(Distrust::NotOfRelay {
            relay: relay.name.clone(),
            host: host.to_owned(),
        })
    }
}

impl Checker<'_> {
    pub(super) fn trust(&self, raw: RawTrust) -> Result<Trust, ConfigError> {
        let deny = raw.deny_certificates.unwrap_or_default();
        let deny_certificates = deny
            .iter()
            .map(|text: &Spanned<String>| {
                Fingerprint::parse(text.get_ref()).ok_or_else(|| {
                    let expected = "must be the SHA-256 fingerprint of a certificate: 64 hexadecimal digits, \
                                    with or without colons (openssl x509 -noout -fingerprint -sha256 -in FILE)";
                    self.wrong("trust.deny_certificates", text, expected)
                })
            })
            .collect::<Result<_, _>>()?;
        let mut relays = BTreeMap::new();
        for (relay, hosts) in raw.relays.unwrap_or_default() {
            let patterns = hosts
                .iter()
                .map(|text| {
                    HostPattern::parse(text.get_ref()).ok_or_else(|| {
                        let expected = r#"must be a host's name, or the beginning of names with a star behind it, such as "rack7-*""#;
                        self.wrong(&format!("trust.relays.{relay}"), text, expected)
                    })
                })
                .collect::<Result<_, _>>()?;
            relays.insert(relay, patterns);
        }
        Ok(Trust {
            relays,
            allow: raw.allow.map(|hosts| hosts.into_iter().collect()),
            deny_certificates,
        })
    }
}
