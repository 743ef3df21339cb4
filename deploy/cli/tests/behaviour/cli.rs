//! The command line refuses what cannot work, in one line that says what to do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Output;

use ratewright_io::tls::{dns_names, ip_addresses};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::refusal;

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
fn the_kill_switch_of_nobody_says_what_to_check() {
    for command in ["release", "resume"] {
        assert_refused(
            &[command, "unix:/nonexistent/admin.sock"],
            &[
                "/nonexistent/admin.sock",
                "systemctl status ratewright-allocator",
            ],
        );
    }
}

/// Runs `command` against a peer that answers one request with `body`; returns the output and the
/// request's first line.
fn switched(command: &str, body: &str) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin.sock");
    let listener = UnixListener::bind(&file).unwrap();
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let peer = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        stream.write_all(response.as_bytes()).unwrap();
        line
    });
    let output = ratewright(&[command, &format!("unix:{}", file.display())]);
    (output, peer.join().unwrap())
}

#[test]
fn a_release_counts_the_hosts() {
    let (output, asked) = switched(
        "release",
        r#"{"released":true,"hosts":3,"acknowledged":2,"expired":1,"waiting":[]}"#,
    );
    assert!(output.status.success());
    assert!(asked.starts_with("POST /release "), "{asked}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("of 3 hosts 2 acknowledged"), "{said}");
}

#[test]
fn a_release_that_a_host_may_not_follow_fails_and_names_it() {
    let (output, _) = switched(
        "release",
        r#"{"released":true,"hosts":2,"acknowledged":1,"expired":0,"waiting":["h7"]}"#,
    );
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("h7"));
}

#[test]
fn a_resume_hands_out_rates() {
    let (output, asked) = switched("resume", r#"{"released":false,"waiting":[]}"#);
    assert!(output.status.success());
    assert!(asked.starts_with("POST /resume "), "{asked}");
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
    // A host that joins proves its addresses.
    let issue = ["certs", "issue", "--dir", dir, "--name", "h9"];
    let addresses = ["--address", "10.1.3.7", "--address", "fd00::7"];
    assert!(
        ratewright(&[&issue[..], &addresses[..]].concat())
            .status
            .success()
    );
    let host = std::fs::read_to_string(directory.path().join("h9.pem")).unwrap();
    let host = CertificateDer::from_pem_slice(host.as_bytes()).unwrap();
    assert_eq!(dns_names(&host), ["h9"]);
    let found: Vec<String> = ip_addresses(&host)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, ["10.1.3.7", "fd00::7"]);
    assert_refused(
        &[&issue[..], &["--name", "h10", "--address", "10.1.3.8"]].concat(),
        &["one host"],
    );
    // An authority is never overwritten: hosts would trust nothing any more.
    assert_refused(&["certs", "init", "--dir", dir], &["ca.pem"]);
}
