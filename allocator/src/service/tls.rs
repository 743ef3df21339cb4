//! Certificates: our own for the hosts, the authority that signs theirs, and the names in a peer's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use x509_parser::extensions::GeneralName;

use super::config::{Fingerprint, TlsFiles};

/// The name that hosts expect in the allocator's certificate.
pub const SERVER_NAME: &str = "ratewright-allocator";

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there, or has no PEM section of the kind that is needed.
    #[error("{}: no usable {what}: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Certificate or private key.
        what: &'static str,
        /// What the reader said.
        reason: String,
    },
    /// The allocator's certificate does not carry the name that hosts check.
    #[error("{}: the certificate names {found}, hosts expect the DNS name {SERVER_NAME:?} among its subject alternative names", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The names that it has.
        found: String,
    },
    /// The pieces do not fit together.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file at fault.
        path: PathBuf,
        /// What the TLS library said.
        reason: String,
    },
}

/// The service's side of TLS.
#[derive(Clone)]
pub struct ServerTls {
    /// For connections.
    pub quic: Arc<QuicServerConfig>,
    /// What their peers' certificates are checked with.
    pub peers: Arc<dyn ClientCertVerifier>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        reason,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| error(source.to_string()))?;
    if certificates.is_empty() {
        return Err(error("the file has no CERTIFICATE section".to_owned()));
    }
    Ok(certificates)
}

/// Reads the files and builds the QUIC server's side of TLS: ring, TLS 1.3, client certificates required,
/// for peers that speak one of `protocols` (ALPN).
pub fn load(files: &TlsFiles, protocols: &[&[u8]]) -> Result<ServerTls, TlsError> {
    let unusable = |path: &Path, reason: String| TlsError::Unusable {
        path: path.to_owned(),
        reason,
    };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(&files.ca)? {
        roots
            .add(certificate)
            .map_err(|source| unusable(&files.ca, source.to_string()))?;
    }
    let chain = read_certificates(&files.cert)?;
    let names = dns_names(&chain[0]);
    if !names.iter().any(|name| name == SERVER_NAME) {
        let found = if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        };
        return Err(TlsError::Name {
            path: files.cert.clone(),
            found,
        });
    }
    let key = read_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|source| unusable(&files.ca, source.to_string()))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| unusable(&files.cert, source.to_string()))?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain, key)
        .map_err(|source| {
            unusable(
                &files.key,
                format!("does not fit {}: {source}", files.cert.display()),
            )
        })?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // Every connection shows its certificate: one that was replaced or withdrawn lives on in no ticket.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config)
        .map(|quic| ServerTls {
            quic: Arc::new(quic),
            peers: verifier,
        })
        .map_err(|source| unusable(&files.cert, source.to_string()))
}

/// The client's side of TLS from the same files, for a server of [`SERVER_NAME`].
pub fn client(files: &TlsFiles, protocol: &[u8]) -> Result<rustls::ClientConfig, TlsError> {
    let unusable = |path: &Path, reason: String| TlsError::Unusable {
        path: path.to_owned(),
        reason,
    };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(&files.ca)? {
        roots
            .add(certificate)
            .map_err(|source| unusable(&files.ca, source.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| unusable(&files.cert, source.to_string()))?
        .with_root_certificates(roots)
        .with_client_auth_cert(read_certificates(&files.cert)?, read_key(&files.key)?)
        .map_err(|source| {
            unusable(
                &files.key,
                format!("does not fit {}: {source}", files.cert.display()),
            )
        })?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
        reason: source.to_string(),
    })
}

/// The DNS names among a certificate's subject alternative names.
pub fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// What the certificate that a peer showed says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its DNS names.
    pub names: Vec<String>,
    /// Which certificate it is.
    pub fingerprint: Fingerprint,
}

impl PeerCertificate {
    /// Of a certificate in DER form.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut fingerprint = Fingerprint([0; 32]);
        fingerprint.0.copy_from_slice(digest.as_ref());
        Self {
            names: dns_names(certificate),
            fingerprint,
        }
    }
}

/// The certificate that the peer of a connection showed; nothing if it showed none, which the
/// handshake does not let pass.
pub fn peer_certificate(connection: &quinn::Connection) -> Option<PeerCertificate> {
    peer_chain(connection)?.first().map(PeerCertificate::of)
}

/// That certificate, with those between it and the authority.
pub fn peer_chain(connection: &quinn::Connection) -> Option<Vec<CertificateDer<'static>>> {
    let chain = connection.peer_identity()?.downcast().ok()?;
    Some(*chain)
}

/// The protocol that a connection's handshake has agreed upon.
pub fn protocol(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let data = connection.handshake_data()?;
    data.downcast::<HandshakeData>().ok()?.protocol
}
