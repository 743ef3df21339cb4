//! Admission by certificate: the hosts and relays, of those that the authority has signed, that may
//! have sessions.
//!
//! A certificate outlives the reasons for which it was signed: a machine is decommissioned, a key
//! is copied. So where the operator lists hosts, the authority's signature alone does not admit
//! one.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::RawTrust;

/// SHA-256 over a certificate's DER form, as `openssl x509 -fingerprint -sha256` prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Parses 64 hexadecimal digits, with or without colons; None for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|&c| c != ':')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        // An odd digit at the end is a mistake, not half a byte.
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

/// Refusal of a host or relay with a valid certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// The list of hosts does not have this one.
    #[error("trust.allow does not name the host {0:?}")]
    NotListed(String),
    /// The operator denies its certificate.
    #[error("trust.deny_certificates has the host's certificate {0}")]
    Denied(Fingerprint),
    /// The operator denies the certificate of its relay.
    #[error("trust.deny_certificates has the certificate {0} of the relay")]
    RelayDenied(Fingerprint),
    /// The peer that forwards it is no relay.
    #[error("trust.relays names none of {0:?}, the DNS names in the relay's certificate")]
    NoRelay(Vec<String>),
    /// Its relay may speak for other hosts only.
    #[error("trust.relays does not let {relay:?} speak for the host {host:?}")]
    NotOfRelay {
        /// The relay's name.
        relay: String,
        /// The host.
        host: String,
    },
}

/// Identity of a relay, by its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayIdentity {
    /// Its name in `trust.relays`.
    pub name: String,
    /// Fingerprint of its certificate.
    pub certificate: Fingerprint,
}

/// Pattern of host names: a name, or a prefix of names that ends with `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern(String);

impl HostPattern {
    /// Parses a pattern; None if it is empty or has a `*` before its end.
    pub fn parse(text: &str) -> Option<Self> {
        let stars = text.chars().filter(|&c| c == '*').count();
        let good = !text.is_empty() && (stars == 0 || stars == 1 && text.ends_with('*'));
        good.then(|| Self(text.to_owned()))
    }

    /// True if the pattern matches a host's name.
    pub fn matches(&self, host: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => host.starts_with(beginning),
            None => self.0 == host,
        }
    }
}

/// The operator's lists of hosts, certificates and relays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trust {
    /// Hosts that may have a session; `None` allows every host of the topology.
    pub allow: Option<BTreeSet<String>>,
    /// Certificates that are refused, of hosts and relays.
    pub deny_certificates: BTreeSet<Fingerprint>,
    /// Relays by name, with the hosts that each may speak for.
    pub relays: BTreeMap<String, Vec<HostPattern>>,
}

impl Trust {
    /// Checks that a host may have a session under a certificate.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub fn check(&self, host: &str, certificate: &Fingerprint) -> Result<(), Distrust> {
        // Denials come first: a host on the list may still have a stolen certificate.
        if self.deny_certificates.contains(certificate) {
            return Err(Distrust::Denied(*certificate));
        }
        match &self.allow {
            Some(allow) if !allow.contains(host) => Err(Distrust::NotListed(host.to_owned())),
            _ => Ok(()),
        }
    }

    /// Returns the relay of a certificate with these DNS names.
    ///
    /// # Errors
    /// The certificate is denied, or names no relay.
    pub fn relay(
        &self,
        names: &[String],
        certificate: &Fingerprint,
    ) -> Result<RelayIdentity, Distrust> {
        if self.deny_certificates.contains(certificate) {
            return Err(Distrust::RelayDenied(*certificate));
        }
        // A relay's certificate also names the allocator, as which it serves hosts.
        let name = names.iter().find(|&name| self.relays.contains_key(name));
        Ok(RelayIdentity {
            name: name
                .ok_or_else(|| Distrust::NoRelay(names.to_vec()))?
                .clone(),
            certificate: *certificate,
        })
    }

    /// Checks that a relay may speak for a host.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub fn check_relay(&self, relay: &RelayIdentity, host: &str) -> Result<(), Distrust> {
        // Checked again: a reload may have denied the certificate of a relay that is connected.
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

pub(super) fn checked(check: &Checker<'_>, raw: RawTrust) -> Result<Trust, ConfigError> {
    let deny = raw.deny_certificates.unwrap_or_default();
    let deny_certificates = deny
        .iter()
        .map(|text: &Spanned<String>| {
            Fingerprint::parse(text.get_ref()).ok_or_else(|| {
                let expected = "must be the SHA-256 fingerprint of a certificate: 64 hexadecimal digits, \
                                with or without colons (openssl x509 -noout -fingerprint -sha256 -in FILE)";
                check.wrong("trust.deny_certificates", text, expected)
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
                    check.wrong(&format!("trust.relays.{relay}"), text, expected)
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
