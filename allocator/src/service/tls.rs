//! Certificates: the allocator's own, the authority of the hosts', and the names in a peer's.

use std::net::IpAddr;
use std::sync::Arc;

use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use ratewright_io::tls::{
    TlsError, chain_expires_unix_s, check_name, dns_names, ip_addresses, read_certificates,
    server_from_files, uris,
};
use ratewright_topology::{IpNet, prefix_of_uri};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;

use super::config::{Fingerprint, TlsFiles};

/// DNS name that hosts expect in the allocator's certificate.
pub const SERVER_NAME: &str = "ratewright-allocator";

/// TLS settings of the service.
#[derive(Clone)]
pub struct ServerTls {
    /// Settings of QUIC connections.
    pub quic: Arc<QuicServerConfig>,
    /// Verifier of the peers' certificates.
    pub peers: Arc<dyn ClientCertVerifier>,
    /// End of the validity of the service's own certificate, in seconds since 1970; `None` if it
    /// cannot be read.
    pub expires_unix_s: Option<i64>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// Reads the files and builds the server's TLS settings: ring, TLS 1.3, client certificates
/// required, for peers that speak one of `protocols` (ALPN).
///
/// # Errors
/// A file cannot be read or used.
pub fn load(files: &TlsFiles, protocols: &[&[u8]]) -> Result<ServerTls, TlsError> {
    let expected = format!("hosts expect the DNS name {SERVER_NAME:?}");
    let chain = read_certificates(&files.cert)?;
    check_name(&files.cert, &chain, SERVER_NAME, &expected)?;
    let expires_unix_s = chain_expires_unix_s(&chain);
    let (config, verifier) = server_from_files(&files.ca, &files.cert, &files.key, protocols)?;
    QuicServerConfig::try_from(config)
        .map(|quic| ServerTls {
            quic: Arc::new(quic),
            peers: verifier,
            expires_unix_s,
        })
        .map_err(TlsError::unusable(&files.cert))
}

/// Checks that a relay's certificate has a name besides the one that hosts expect.
///
/// # Errors
/// It has no other name, or cannot be read.
pub(super) fn check_own_name(files: &TlsFiles) -> Result<(), TlsError> {
    let chain = read_certificates(&files.cert)?;
    let names = chain.first().map(dns_names).unwrap_or_default();
    if names.iter().any(|name| name != SERVER_NAME) {
        return Ok(());
    }
    Err(TlsError::unusable(&files.cert)(format!(
        "the certificate names {SERVER_NAME} and nothing else; a relay also needs a DNS name of its own, by \
         which the allocator's trust.relays calls it"
    )))
}

/// Names and fingerprint of a peer's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its DNS names.
    pub names: Vec<String>,
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Prefixes of its host's pods.
    pub pod_prefixes: Vec<IpNet>,
    /// SHA-256 digest of the certificate.
    pub fingerprint: Fingerprint,
}

impl PeerCertificate {
    /// Reads a certificate in DER form.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut fingerprint = Fingerprint([0; 32]);
        fingerprint.0.copy_from_slice(digest.as_ref());
        Self {
            names: dns_names(certificate),
            addresses: ip_addresses(certificate),
            pod_prefixes: uris(certificate)
                .iter()
                .filter_map(|uri| prefix_of_uri(uri))
                .collect(),
            fingerprint,
        }
    }
}

/// Returns the certificate that the peer of a connection presented; `None` if there is none, which
/// the handshake does not permit.
pub fn peer_certificate(connection: &quinn::Connection) -> Option<PeerCertificate> {
    peer_chain(connection)?.first().map(PeerCertificate::of)
}

/// Returns the peer's certificate and the intermediate ones.
pub fn peer_chain(connection: &quinn::Connection) -> Option<Vec<CertificateDer<'static>>> {
    let chain = connection.peer_identity()?.downcast().ok()?;
    Some(*chain)
}

/// Returns the protocol (ALPN) that a connection's handshake has agreed upon.
pub fn protocol(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let data = connection.handshake_data()?;
    data.downcast::<HandshakeData>().ok()?.protocol
}
