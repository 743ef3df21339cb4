//! A site's certificates, and what its daemons say of themselves.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

/// A certificate authority that writes PEM files.
pub struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

impl TestAuthority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn issue(&self, folder: &Path, file: &str, dns_name: &str) {
        self.issue_for(folder, file, &[dns_name]);
    }

    /// Writes `NAME.pem` and `NAME.key` for any number of DNS names.
    pub fn issue_for(&self, folder: &Path, file: &str, dns_names: &[&str]) {
        let names: Vec<String> = dns_names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        // Both usages, so that one helper serves hosts, allocators and relays, which are client and
        // server.
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

/// A folder with the usual certificates: one authority, host `h1`, the allocator.
pub fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write(&folder.path().join("ca.pem"));
    authority.issue(folder.path(), "h1", "h1");
    authority.issue(folder.path(), "allocator", "ratewright-allocator");
    folder
}

/// Reads what an admin interface at a Unix socket shows; `None` while it does not answer.
pub fn status(socket: &Path) -> Option<serde_json::Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .write_all(b"GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}
