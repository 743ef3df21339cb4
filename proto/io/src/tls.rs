//! Certificates in PEM files, and both sides of TLS, for the allocator, its relays, the hosts and
//! the load tool.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::x509::X509Version;

/// Reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or has no PEM section of the required kind.
    #[error("{}: no usable {what}: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Certificate or private key.
        what: &'static str,
        /// Error of the reader.
        reason: String,
    },
    /// The contents of a file are unusable, or do not fit the other files.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file at fault.
        path: PathBuf,
        /// Description of the mistake.
        reason: String,
    },
}

impl TlsError {
    /// Makes a closure for `map_err` that names the file at fault and a library's error.
    pub fn unusable<E: ToString>(path: &Path) -> impl Fn(E) -> Self {
        move |reason| Self::Unusable {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    fn pem<E: ToString>(path: &Path, what: &'static str) -> impl Fn(E) -> Self {
        move |reason| Self::Pem {
            path: path.to_owned(),
            what,
            reason: reason.to_string(),
        }
    }
}

/// Reads the certificates in a file: at least one, the owner's first.
///
/// # Errors
/// When there is none, or the file cannot be read.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = TlsError::pem(path, "certificate");
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| error(source.to_string()))?;
    // An empty chain would only fail in the first handshake.
    if certificates.is_empty() {
        return Err(error("the file has no CERTIFICATE section".to_owned()));
    }
    Ok(certificates)
}

/// Reads the private key in a file.
///
/// # Errors
/// When there is none, or the file cannot be read.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(TlsError::pem(path, "private key"))
}

/// Reads the authorities whose certificates a file holds.
///
/// # Errors
/// When there is none, one of them is no authority's certificate, or the file cannot be read.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|error| TlsError::unusable(path)(format!("no X.509 certificate: {error}")))?;
        // Only an authority signs others; certificates of the first version do not say whether they
        // are one.
        if !parsed.is_ca() && parsed.version() != X509Version::V1 {
            return Err(TlsError::unusable(path)(
                "not the certificate of an authority; it must be the one that signed the peers'",
            ));
        }
        roots.add(certificate).map_err(TlsError::unusable(path))?;
    }
    Ok(roots)
}

/// Makes a client's side of TLS from files: [`client`] with an authority, a certificate chain and
/// its key.
///
/// # Errors
/// When a file is missing, unreadable or does not fit the others.
pub fn client_from_files(
    ca: &Path,
    cert: &Path,
    key: &Path,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let (chain, private) = (read_certificates(cert)?, read_key(key)?);
    client(read_authorities(ca)?, chain, private, protocol).map_err(|error| {
        TlsError::unusable(key)(format!("does not fit {}: {error}", cert.display()))
    })
}

/// Makes a client's side of TLS 1.3, by *ring*, for servers that `roots` vouch for and that speak
/// `protocol` (ALPN). The client shows `chain`, to which `key` belongs.
///
/// # Errors
/// When key and certificate do not fit.
pub fn client(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    protocol: &[u8],
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        // QUIC requires TLS 1.3 (RFC 9001 §4.2).
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// Returns the first moment at which a certificate of `chain` is no longer valid, in seconds since
/// 1970; `None` if none can be read.
#[must_use]
pub fn chain_expires_unix_s(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let expiry = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        Some(parsed.validity().not_after.timestamp())
    };
    chain.iter().filter_map(expiry).min()
}

/// Makes a server's side of TLS 1.3 from files, by *ring*, for peers that speak one of `protocols`
/// (ALPN) and show a certificate of the authority. Returns the verifier of those, too.
///
/// # Errors
/// When a file is missing, unreadable or does not fit the others.
pub fn server_from_files(
    ca: &Path,
    cert: &Path,
    key: &Path,
    protocols: &[&[u8]],
) -> Result<(ServerConfig, Arc<dyn ClientCertVerifier>), TlsError> {
    let (chain, private) = (read_certificates(cert)?, read_key(key)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(read_authorities(ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(TlsError::unusable(ca))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::unusable(cert))?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain, private)
        .map_err(|error| {
            TlsError::unusable(key)(format!("does not fit {}: {error}", cert.display()))
        })?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // Every connection presents its certificate: a session ticket could outlive one that was
    // replaced or withdrawn.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((config, verifier))
}

/// Returns the DNS names among a certificate's subject alternative names.
#[must_use]
pub fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    alternative_names(certificate, |name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    })
}

/// Returns the IP addresses among a certificate's subject alternative names.
#[must_use]
pub fn ip_addresses(certificate: &CertificateDer<'_>) -> Vec<IpAddr> {
    alternative_names(certificate, |name| match name {
        GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from))
            .ok(),
        _ => None,
    })
}

/// Returns the URIs among a certificate's subject alternative names.
#[must_use]
pub fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    alternative_names(certificate, |name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    })
}

fn alternative_names<T>(
    certificate: &CertificateDer<'_>,
    kind: impl Fn(&GeneralName<'_>) -> Option<T>,
) -> Vec<T> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    names.filter_map(kind).collect()
}

/// Returns the first and the last second of a certificate's validity, since 1970; `None` if it
/// cannot be read.
#[must_use]
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(i64, i64)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = parsed.validity();
    Some((
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    ))
}

/// Checks that the first certificate of `chain`, from the file `path`, carries `name`.
///
/// # Errors
/// When it does not: [`TlsError::Unusable`], with the names that it has.
pub fn check_name(
    path: &Path,
    chain: &[CertificateDer<'_>],
    name: &str,
    expected: &str,
) -> Result<(), TlsError> {
    let names = chain.first().map(dns_names).unwrap_or_default();
    if names.iter().any(|found| found == name) {
        return Ok(());
    }
    let found = if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    };
    Err(TlsError::unusable(path)(format!(
        "the certificate names {found}, {expected}"
    )))
}
