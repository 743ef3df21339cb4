//! Certificates and the QUIC client's configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, IdleTimeout, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::x509::X509Version;

use crate::config::{SessionConfig, TlsConfig};

/// Datagrams that wait to be sent or read; older ones are dropped beyond it, and sent anew by the
/// protocol as far as they still matter.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds no PEM of that kind.
    #[error("{}: no {what} in PEM form: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// A file holds what cannot be used, or does not fit the others.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn unusable<E: ToString>(path: &Path) -> impl Fn(E) -> TlsError {
    move |reason| TlsError::Unusable {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

fn file_error<E: ToString>(path: &Path, what: &'static str) -> impl FnOnce(E) -> TlsError {
    move |reason| TlsError::File {
        path: path.to_owned(),
        what,
        reason: reason.to_string(),
    }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(file_error(path, what))?;
    if found.is_empty() {
        Err(file_error(path, what)("the file has none"))
    } else {
        Ok(found)
    }
}

fn parse<'der>(
    path: &Path,
    certificate: &'der CertificateDer<'_>,
) -> Result<X509Certificate<'der>, TlsError> {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    parsed
        .map(|(_, parsed)| parsed)
        .map_err(|error| unusable(path)(format!("no X.509 certificate: {error}")))
}

/// Only an authority signs others; certificates of the first version do not say whether they are one.
fn check_authority(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
    let parsed = parse(path, certificate)?;
    if parsed.is_ca() || parsed.version() == X509Version::V1 {
        Ok(())
    } else {
        Err(unusable(path)(
            "not the certificate of an authority; it must be the one that signed the allocator's",
        ))
    }
}

/// Whether the certificate carries the host's name, without which the allocator refuses it.
///
/// # Errors
/// When it does not, or cannot be read.
pub fn check_host_name(tls: &TlsConfig, host: &str) -> Result<(), TlsError> {
    let chain = certificates(&tls.cert, "certificate")?;
    let parsed = parse(&tls.cert, &chain[0])?;
    let names: Vec<&str> = parsed
        .subject_alternative_name()
        .ok()
        .flatten()
        .map(|names| names.value.general_names.iter())
        .into_iter()
        .flatten()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
        .collect();
    if names.contains(&host) {
        return Ok(());
    }
    let found = if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    };
    Err(unusable(&tls.cert)(format!(
        "the certificate names {found}; the allocator expects `{host}` (the key `host`) among its DNS names"
    )))
}

/// Reads the certificates and builds the client's configuration: TLS 1.3 with both sides
/// authenticated, timers for a network of a few hundred microseconds.
///
/// # Errors
/// When a file is missing, unreadable or does not fit the others.
pub fn client_config(tls: &TlsConfig, session: &SessionConfig) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca, "CA certificate")? {
        check_authority(&tls.ca, &certificate)?;
        roots.add(certificate).map_err(unusable(&tls.ca))?;
    }
    let chain = certificates(&tls.cert, "certificate")?;
    let key =
        PrivateKeyDer::from_pem_file(&tls.key).map_err(file_error(&tls.key, "private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable(&tls.cert))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| {
            unusable(&tls.key)(format!("does not fit {}: {error}", tls.cert.display()))
        })?;
    config.alpn_protocols = vec![ratewright_proto::ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(config).map_err(unusable(&tls.cert))?;

    let mut transport = TransportConfig::default();
    // The protocol keeps the session alive itself, a few times per lease, but not this connection while
    // sealed datagrams carry it.
    let idle = u32::try_from(session.idle_timeout_ms).unwrap_or(u32::MAX);
    transport
        .initial_rtt(Duration::from_micros(session.initial_rtt_us))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(Duration::from_millis(session.idle_timeout_ms / 3)))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}
