//! A certificate authority for tests.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// An authority that signs allocators and hosts.
pub(crate) struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate with its key, both PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are good names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("the system has randomness");
        let pem = params
            .self_signed(&key)
            .expect("the parameters are good")
            .pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Signs a certificate of these DNS names.
    pub(crate) fn sign(&self, names: &[&str]) -> Identity {
        self.sign_until(names, 4096)
    }

    /// Signs a certificate that has expired.
    pub(crate) fn sign_expired(&self, names: &[&str]) -> Identity {
        self.sign_until(names, 2020)
    }

    fn sign_until(&self, names: &[&str], year: i32) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("the system has randomness");
        // A key of its own for each certificate, as hosts have.
        let mut params = CertificateParams::new(names).expect("the names are good");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("the authority signs")
            .pem();
        Identity {
            certificate,
            key: key.serialize_pem(),
        }
    }
}

impl Identity {
    pub(crate) fn write(&self, folder: &Path, certificate: &str, key: &str) {
        std::fs::write(folder.join(certificate), &self.certificate).expect("writable");
        std::fs::write(folder.join(key), &self.key).expect("writable");
    }
}
