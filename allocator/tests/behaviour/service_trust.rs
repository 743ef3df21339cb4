//! Admission by certificate, and rotation of certificates, with the real binary and real QUIC
//! connections.

use ratewright_proto::client::ClientConfig;
use ratewright_proto::control::RefusalCode;

use crate::service_support::certificates::{Identity, TestAuthority};
use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, wait_for};

const WHOLE: std::ops::RangeInclusive<u64> = 9_700_000_000..=10_000_000_000;
const HALF: std::ops::RangeInclusive<u64> = 4_850_000_000..=5_000_000_000;

fn connect(
    authority: &TestAuthority,
    identity: &Identity,
    allocator: &AllocatorProcess,
    name: &str,
) -> TestHost {
    let config = ClientConfig {
        host_name: name.to_owned(),
        incarnation: 2,
        ..ClientConfig::default()
    };
    TestHost::connect_as(authority, identity, allocator.listen, config)
}

fn reload(site: &TestSite, allocator: &AllocatorProcess, more: &str) {
    let name = "ratewright_allocator_reloads_total{result=\"ok\"}";
    let before = allocator.metric(name);
    site.write("allocator.toml", &site.config("127.0.0.1:0", more));
    allocator.signal("HUP");
    wait_for("the reload is taken", PATIENCE, || {
        allocator.metric(name) > before
    });
}

fn not_allowed(allocator: &AllocatorProcess) -> f64 {
    allocator.metric("ratewright_allocator_sessions_refused_total{reason=\"not_allowed\"}")
}

#[test]
fn a_reload_takes_the_session_of_a_host_that_left_the_list_and_lets_it_in_again() {
    let site = TestSite::new();
    let allocator = site.start();
    let host = |name: &str| {
        connect(
            &site.authority,
            &site.authority.sign(&[name]),
            &allocator,
            name,
        )
    };
    let (one, two) = (host("h1").established(), host("h2").established());
    let (flow, other) = (one.start(0, "h16"), two.start(0, "h16"));
    one.wait_rate(flow, HALF);
    two.wait_rate(other, HALF);

    reload(&site, &allocator, "[trust]\nallow = [\"h1\", \"h3\"]\n");
    assert_eq!(two.refusal().code, RefusalCode::NotAllowed);
    one.wait_rate(flow, WHOLE);
    assert!(one.is_up());
    assert_eq!(host("h2").refusal().code, RefusalCode::NotAllowed);
    // One session ended by the reload, one refused at its Hello.
    assert_eq!(not_allowed(&allocator), 2.0);
    host("h3").established();

    reload(&site, &allocator, "");
    host("h2").established();
    assert!(one.is_up());
}

#[test]
fn a_stolen_certificate_is_locked_out_by_its_fingerprint_and_its_host_is_not() {
    let site = TestSite::new();
    let allocator = site.start();
    let stolen = site.authority.sign(&["h1"]);
    let thief = connect(&site.authority, &stolen, &allocator, "h1").established();
    site.write("stolen.pem", &stolen.certificate);
    // The expected fingerprint comes from an independent implementation.
    let output = std::process::Command::new("openssl")
        .args([
            "x509",
            "-noout",
            "-fingerprint",
            "-sha256",
            "-in",
            "stolen.pem",
        ])
        .current_dir(site.path())
        .output()
        .expect("openssl runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let (_, fingerprint) = text.trim().split_once('=').expect("NAME=FINGERPRINT");

    let trust = format!("[trust]\ndeny_certificates = [\"{fingerprint}\"]\n");
    reload(&site, &allocator, &trust);
    let refusal = thief.refusal();
    assert_eq!(refusal.code, RefusalCode::NotAllowed);
    assert!(refusal.reason.contains(fingerprint), "{}", refusal.reason);
    wait_for("its connection is closed", PATIENCE, || !thief.is_up());
    let again = connect(&site.authority, &stolen, &allocator, "h1");
    assert_eq!(again.refusal().code, RefusalCode::NotAllowed);
    assert_eq!(not_allowed(&allocator), 2.0);
    // Another certificate of the same host: only the stolen one is denied.
    let renewed = site.authority.sign(&["h1"]);
    connect(&site.authority, &renewed, &allocator, "h1").established();
}

#[test]
fn certificates_rotate_under_standing_sessions() {
    rotate("");
}

#[test]
fn certificates_rotate_under_standing_sessions_with_sealed_datagrams() {
    rotate("[transport]\nhot = \"udp\"\n");
}

fn rotate(more: &str) {
    let site = TestSite::new();
    site.write("allocator.toml", &site.config("127.0.0.1:0", more));
    let allocator = site.start();
    let config = |name: &str| ClientConfig {
        host_name: name.to_owned(),
        incarnation: 1,
        sealed_udp: !more.is_empty(),
        ..ClientConfig::default()
    };
    let old_identity = site.authority.sign(&["h1"]);
    let one = TestHost::connect_as(
        &site.authority,
        &old_identity,
        allocator.listen,
        config("h1"),
    );
    let one = one.established();
    let flow = one.start(0, "h16");
    one.wait_rate(flow, WHOLE);

    // Another authority signs the allocator's new certificate; until the old one is removed, hosts
    // of both are admitted.
    let authority = TestAuthority::new();
    site.write(
        "ca.pem",
        &format!("{}{}", authority.pem, site.authority.pem),
    );
    authority
        .sign(&["ratewright-allocator"])
        .write(site.path(), "allocator.pem", "allocator.key");
    reload(&site, &allocator, more);

    // A host that knows the new authority alone accepts only the new certificate.
    let two = TestHost::connect_as(
        &authority,
        &authority.sign(&["h2"]),
        allocator.listen,
        config("h2"),
    );
    let two = two.established();
    let other = two.start(0, "h16");
    two.wait_rate(other, HALF);
    one.wait_rate(flow, HALF);
    let stale = connect(&site.authority, &old_identity, &allocator, "h3");
    wait_for(
        "a host that knows the old one alone turns away",
        PATIENCE,
        || !stale.is_up(),
    );
    assert!(one.is_up() && one.view().refused.is_none());

    // Without the old authority, its standing session continues, and no new one starts.
    site.write("ca.pem", &authority.pem);
    reload(&site, &allocator, more);
    let late = connect(&authority, &site.authority.sign(&["h3"]), &allocator, "h3");
    wait_for(
        "a host of the old authority gets no connection",
        PATIENCE,
        || !late.is_up(),
    );
    assert!(late.view().welcome.is_none());
    two.end(other);
    one.wait_rate(flow, WHOLE);
    assert!(one.is_up() && one.view().refused.is_none());
}
