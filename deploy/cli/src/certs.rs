//! A development certificate authority: for the lab and for trying Ratewright out. A real
//! deployment brings certificates of its own authority, with the same names in them.

use std::fs;
use std::iter;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use std::io::Write;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use ratewright_topology::{IpNet, uri_of_prefix};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// The name that the allocator's certificate carries.
pub const ALLOCATOR_NAME: &str = "ratewright-allocator";

/// `ratewright certs …`
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Creates a certificate authority: ca.pem and ca.key
    Init {
        /// Directory to create it in
        #[arg(long)]
        dir: PathBuf,
    },
    /// Issues certificates: NAME.pem and NAME.key for each name
    Issue {
        /// Directory with ca.pem and ca.key
        #[arg(long)]
        dir: PathBuf,
        /// A host's name as in the topology, or "ratewright-allocator"; may be repeated
        #[arg(long = "name", required_unless_present = "relays")]
        names: Vec<String>,
        /// A relay's name as in the allocator's trust.relays; its certificate carries
        /// "ratewright-allocator" too; may be repeated
        #[arg(long = "relay", value_name = "NAME")]
        relays: Vec<String>,
        /// An address of the host, by which it takes a spare place of the topology; may be
        /// repeated, beside a single --name
        #[arg(long = "address", value_name = "IP", conflicts_with = "relays")]
        addresses: Vec<IpAddr>,
        /// A prefix of the host's pods, beside an --address; may be repeated
        #[arg(long = "prefix", value_name = "PREFIX", requires = "addresses")]
        prefixes: Vec<IpNet>,
    },
}

impl CertsCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// When a file exists already, cannot be written, or the authority cannot be read.
    pub fn run(&self) -> Result<()> {
        match self {
            CertsCommand::Init { dir } => init(dir)?,
            CertsCommand::Issue {
                dir,
                names,
                relays,
                addresses,
                prefixes,
            } => {
                if !addresses.is_empty() && names.len() != 1 {
                    bail!("--address is of one host: give one --name beside it");
                }
                // All are checked before any is issued: a mistake leaves no half of the files.
                for name in names.iter().chain(relays) {
                    check_dns_name(name)?;
                }
                for name in names {
                    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                    let addresses = addresses.iter().map(String::as_str);
                    let alternatives: Vec<&str> =
                        iter::once(name.as_str()).chain(addresses).collect();
                    let pair =
                        CertificateAuthority::load(dir)?.sign_with_pods(&alternatives, prefixes)?;
                    write_pair(dir, name, &pair.certificate, &pair.key)?;
                }
                for name in relays {
                    // Hosts verify the allocator's name, the allocator the relay's own.
                    let pair = CertificateAuthority::load(dir)?.sign(&[name, ALLOCATOR_NAME])?;
                    write_pair(dir, name, &pair.certificate, &pair.key)?;
                }
            }
        }
        Ok(())
    }
}

/// Creates an authority in `dir`.
///
/// # Errors
/// When there is one already, or files cannot be written.
pub fn init(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let mut params = CertificateParams::new(Vec::new()).context("certificate parameters")?;
    params.distinguished_name = named("Ratewright development authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().context("generating the authority's key")?;
    let certificate = params
        .self_signed(&key)
        .context("signing the authority's certificate")?;
    write_pair(dir, "ca", &certificate.pem(), &key.serialize_pem())
}

/// Issues a certificate for `name`, signed by the authority in `dir`, for both ends of a session.
///
/// # Errors
/// When the authority cannot be read, the name is no DNS name, or files cannot be written.
pub fn issue(dir: &Path, name: &str) -> Result<()> {
    check_dns_name(name)?;
    let pair = CertificateAuthority::load(dir)?.sign(&[name])?;
    write_pair(dir, name, &pair.certificate, &pair.key)
}

/// An authority that was read.
#[derive(Debug)]
pub struct CertificateAuthority(Issuer<'static, KeyPair>);

/// A certificate with its private key, both as PEM.
#[derive(Debug, Clone)]
pub struct CertificatePair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl CertificateAuthority {
    /// Reads the authority in `dir`.
    ///
    /// # Errors
    /// When it is not there, or is none.
    pub fn load(dir: &Path) -> Result<Self> {
        let read = |file: &str| {
            let path = dir.join(file);
            fs::read_to_string(&path).with_context(|| {
                format!(
                    "reading {} (create it with `ratewright certs init`)",
                    path.display()
                )
            })
        };
        let key = KeyPair::from_pem(&read("ca.key")?).context("ca.key is not a private key")?;
        let issuer = Issuer::from_ca_cert_pem(&read("ca.pem")?, key)
            .context("ca.pem is not a certificate")?;
        Ok(Self(issuer))
    }

    /// A certificate with these names and addresses, for both ends of a session.
    ///
    /// # Errors
    /// When a name cannot be in a certificate.
    pub fn sign(&self, names: &[&str]) -> Result<CertificatePair> {
        self.sign_with_pods(names, &[])
    }

    /// Signs a certificate as [`sign`](Self::sign) does, for a host with pods in these prefixes.
    ///
    /// # Errors
    /// When a name cannot be in a certificate.
    pub fn sign_with_pods(&self, names: &[&str], prefixes: &[IpNet]) -> Result<CertificatePair> {
        sign(&self.0, names, prefixes)
    }
}

fn sign(
    issuer: &Issuer<'_, KeyPair>,
    names: &[&str],
    prefixes: &[IpNet],
) -> Result<CertificatePair> {
    let name = names.first().copied().unwrap_or_default();
    let mut params = CertificateParams::new(
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>(),
    )
    .with_context(|| format!("certificate parameters for {name}"))?;
    for prefix in prefixes {
        let uri = uri_of_prefix(prefix);
        let uri = uri.try_into().context("a prefix as a URI")?;
        params.subject_alt_names.push(SanType::URI(uri));
    }
    params.distinguished_name = named(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Both: a relay is a server to hosts and a client to the allocator.
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().context("generating a key")?;
    let certificate = params
        .signed_by(&key, issuer)
        .with_context(|| format!("signing {name}'s certificate"))?;
    Ok(CertificatePair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// Only a DNS name can be read from a peer's certificate: labels of letters, digits and inner
/// hyphens (RFC 1123, 2.1), at most 63 bytes each and 253 in all, the last one not a number.
/// Underscores are taken, as topologies and TLS libraries do.
fn check_dns_name(name: &str) -> Result<()> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = name.len() <= 253
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_some_and(is_number);
    if !is_name {
        bail!(
            "{name:?} is not a DNS name, which a certificate needs: letters, digits and hyphens in labels of up to 63 \
             bytes, joined by dots, such as \"h1\" or \"h1.rack2.example\""
        );
    }
    Ok(())
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Never overwrites: a lost authority cannot be brought back.
fn write_pair(dir: &Path, name: &str, certificate: &str, key: &str) -> Result<()> {
    for (file, mode, text) in [
        (format!("{name}.pem"), 0o644, certificate),
        (format!("{name}.key"), 0o600, key),
    ] {
        let path = dir.join(file);
        fs::File::options()
            .write(true)
            // An existing file is an error, checked and created in one step.
            .create_new(true)
            // From the beginning: a key must not be readable for a moment either.
            .mode(mode)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_issues_and_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path()).unwrap();
        issue(dir.path(), "h1").unwrap();
        issue(dir.path(), ALLOCATOR_NAME).unwrap();
        let error = init(dir.path()).unwrap_err().to_string();
        assert!(error.contains("ca.pem"), "{error}");
        assert!(
            fs::read_to_string(dir.path().join("h1.pem"))
                .unwrap()
                .starts_with("-----BEGIN CERTIFICATE")
        );
    }

    #[test]
    fn a_certificate_is_issued_only_for_what_can_be_a_dns_name() {
        for good in ["h1", "H1", "rack2-h1", "rack2_h1", "h1.rack2.example", "1a"] {
            assert!(check_dns_name(good).is_ok(), "{good}");
        }
        let (long, longer) = ("a".repeat(64), vec!["a".repeat(60); 5].join("."));
        for bad in [
            "",
            ".",
            "..",
            "../h2",
            "a b",
            "-h1",
            "h1-",
            "h1.",
            ".h1",
            "a..b",
            "*.example",
            "10.0.0.1",
            "hôte",
            &long,
            &longer,
        ] {
            assert!(check_dns_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_is_issued_if_one_of_the_names_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path()).unwrap();
        let command = CertsCommand::Issue {
            dir: dir.path().to_owned(),
            names: vec!["h1".to_owned()],
            relays: vec!["a b".to_owned()],
            addresses: Vec::new(),
            prefixes: Vec::new(),
        };
        let error = format!("{:#}", command.run().unwrap_err());
        assert!(error.starts_with("\"a b\" is not a DNS name"), "{error}");
        assert!(!dir.path().join("h1.pem").exists());
    }

    #[test]
    fn prefixes_of_pods_stand_in_the_certificate_as_uris() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path()).unwrap();
        let command = CertsCommand::Issue {
            dir: dir.path().to_owned(),
            names: vec!["h1".to_owned()],
            relays: Vec::new(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            prefixes: vec!["10.244.3.7/24".parse().unwrap()],
        };
        command.run().unwrap();
        let output = std::process::Command::new("openssl")
            .args(["x509", "-noout", "-ext", "subjectAltName", "-in"])
            .arg(dir.path().join("h1.pem"))
            .output()
            .expect("openssl");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("DNS:h1, IP Address:10.0.0.1, URI:ratewright-prefix:10.244.3.0/24"),
            "{text}"
        );
    }

    #[test]
    fn without_an_authority_the_error_says_how_to_get_one() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", issue(dir.path(), "h1").unwrap_err());
        assert!(error.contains("certs init"), "{error}");
    }
}
