//! The command line refuses what cannot work, in one line that says what to do.

#![allow(clippy::unwrap_used)]

mod refusal;

use std::process::Output;

use ratewright_io::tls::dns_names;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

fn ratewright(args: &[&str]) -> Output {
    refusal::output_of("ratewright", args)
}

fn assert_refused(args: &[&str], parts: &[&str]) {
    refusal::assert_refused("ratewright", args, parts);
}

#[test]
fn status_of_nobody_says_whom_it_asked() {
    assert_refused(
        &["status", "unix:/nonexistent/admin.sock"],
        &["/nonexistent/admin.sock"],
    );
}

#[test]
fn files_that_are_not_there_are_named_once() {
    assert_refused(
        &["topology", "check", "/nonexistent/t.toml"],
        &["ratewright: /nonexistent/t.toml: cannot be read: No such file"],
    );
    assert_refused(
        &["certs", "issue", "--dir", "/nonexistent", "--name", "h1"],
        &["/nonexistent/ca.key", "certs init", "No such file"],
    );
    assert_refused(
        &["certs", "issue", "--dir", "/nonexistent", "--name", "a b"],
        &["\"a b\" is not a DNS name"],
    );
}

#[test]
fn certificates_are_issued_from_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    assert_refused(
        &["certs", "issue", "--dir", dir, "--name", "h1"],
        &["certs init"],
    );
    assert!(
        ratewright(&["certs", "init", "--dir", dir])
            .status
            .success()
    );
    assert!(
        ratewright(&[
            "certs", "issue", "--dir", dir, "--name", "h1", "--name", "h2", "--relay", "relay-1"
        ])
        .status
        .success()
    );
    for file in ["ca.pem", "ca.key", "h1.pem", "h1.key", "h2.pem", "h2.key"] {
        assert!(directory.path().join(file).is_file(), "{file}");
    }
    // Hosts check the one name, the allocator the other.
    let relay = std::fs::read_to_string(directory.path().join("relay-1.pem")).unwrap();
    let relay = CertificateDer::from_pem_slice(relay.as_bytes()).unwrap();
    assert_eq!(dns_names(&relay), ["relay-1", "ratewright-allocator"]);
    // An authority is never overwritten: hosts would trust nothing any more.
    assert_refused(&["certs", "init", "--dir", dir], &["ca.pem"]);
}
