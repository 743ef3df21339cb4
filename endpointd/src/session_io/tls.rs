//! Certificates and the QUIC client's configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, IdleTimeout, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{SessionConfig, TlsConfig};

/// The application protocol that both sides name in the handshake.
pub const ALPN: &[u8] = b"ratewright/1";
/// Datagrams that wait to be sent or read; older ones are dropped beyond it, and sent anew by the
/// protocol as far as they still matter.
const DATAGRAM_BUFFER_BYTES: usize = 1 << 20;

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds no PEM of that kind.
    #[error("{path}: no {what} in PEM form: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// The files do not fit together.
    #[error("certificate and key do not fit: {0}")]
    Rustls(#[from] rustls::Error),
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

/// Reads the certificates and builds the client's configuration: TLS 1.3 with both sides
/// authenticated, timers for a network of a few hundred microseconds.
///
/// # Errors
/// When a file is missing, unreadable or does not fit the others.
pub fn client_config(tls: &TlsConfig, session: &SessionConfig) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca, "CA certificate")? {
        roots.add(certificate)?;
    }
    let chain = certificates(&tls.cert, "certificate")?;
    let key =
        PrivateKeyDer::from_pem_file(&tls.key).map_err(file_error(&tls.key, "private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(config)
        .map_err(|error| rustls::Error::General(error.to_string()))?;

    let mut transport = TransportConfig::default();
    // The protocol keeps the session alive itself: with rates, a few times per lease.
    let idle = u32::try_from(session.idle_timeout_ms).unwrap_or(u32::MAX);
    transport
        .initial_rtt(Duration::from_micros(session.initial_rtt_us))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(None)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}
