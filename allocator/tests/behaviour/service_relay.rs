//! Hosts behind a relay: real processes, and rogue peers that speak the relays' protocol.

use std::net::SocketAddr;

use ratewright_proto::client::{ClientConfig, ClientSession};
use ratewright_proto::control::{ControlMessage, FrameDecoder, RefusalCode};
use ratewright_proto::relay::{self, Attach, Bundler};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::service_support::certificates::{Identity, TestAuthority};
use crate::service_support::host::{TestHost, client_config};
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, wait_for};

const HALF: std::ops::RangeInclusive<u64> = 4_850_000_000..=5_000_000_000;
const THIRD: std::ops::RangeInclusive<u64> = 3_230_000_000..=3_340_000_000;
const ALL: std::ops::RangeInclusive<u64> = 9_700_000_000..=10_000_000_000;

/// Starts an allocator that lets `relay-1` speak for `hosts`, with `more` in its configuration.
fn allocator(site: &TestSite, hosts: &str, more: &str) -> AllocatorProcess {
    let trust = format!("[trust.relays]\nrelay-1 = [{hosts}]\n{more}");
    site.write("allocator.toml", &site.config("127.0.0.1:0", &trust));
    site.start()
}

fn config(name: &str, attempt: u64, sealed_udp: bool) -> ClientConfig {
    ClientConfig {
        host_name: name.to_owned(),
        incarnation: attempt,
        sealed_udp,
        ..ClientConfig::default()
    }
}

fn sealed_host(site: &TestSite, server: SocketAddr, name: &str) -> TestHost {
    let identity = site.authority.sign(&[name]);
    TestHost::connect_as(&site.authority, &identity, server, config(name, 1, true))
}

fn session_of(allocator: &AllocatorProcess, name: &str) -> Option<String> {
    let status = allocator.status();
    let sessions = status["sessions"].as_array().expect("a list").clone();
    sessions
        .iter()
        .find(|session| session["host"] == name)
        .map(|session| session["address"].as_str().expect("text").to_owned())
}

#[test]
fn hosts_behind_a_relay_get_the_rates_that_others_get() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h1\", \"h2\"", "[transport]\nhot = \"udp\"\n");
    let relay = site.start_relay(&[allocator.listen], "[transport]\nhot = \"udp\"\n");
    // One by QUIC, one by sealed datagrams, and one that speaks to the allocator itself.
    let quic = TestHost::connect(&site.authority, relay.listen, "h1").established();
    let sealed = sealed_host(&site, relay.listen, "h2").established();
    let direct = sealed_host(&site, allocator.listen, "h3").established();
    let flows: Vec<_> = [&quic, &sealed, &direct]
        .iter()
        .map(|host| host.start(0, "h16"))
        .collect();
    for (host, flow) in [&quic, &sealed, &direct].iter().zip(&flows) {
        host.wait_rate(*flow, THIRD);
    }
    assert!(
        session_of(&allocator, "h1")
            .expect("there")
            .ends_with(" by relay-1")
    );
    assert!(
        !session_of(&allocator, "h3")
            .expect("there")
            .contains("relay")
    );
    quic.end(flows[0]);
    sealed.wait_rate(flows[1], HALF);
    direct.wait_rate(flows[2], HALF);
    direct.end(flows[2]);
    sealed.wait_rate(flows[1], ALL);
    allocator.agrees_with(&[("h1", &quic), ("h2", &sealed), ("h3", &direct)]);

    // Both Welcomes are equal but for the host's own fields and the port of sealed datagrams.
    let (by_relay, by_itself) = (sealed.view().welcome.clone(), direct.view().welcome.clone());
    let (by_relay, mut by_itself) = (by_relay.expect("there"), by_itself.expect("there"));
    assert_ne!(by_relay.sealed_udp, by_itself.sealed_udp);
    assert!(by_relay.sealed_udp.is_some());
    by_itself.session = by_relay.session;
    by_itself.host_id = by_relay.host_id;
    by_itself.first_seq = by_relay.first_seq;
    by_itself.sealed_udp = by_relay.sealed_udp;
    assert_eq!(by_relay, by_itself);
    assert_eq!(
        quic.view().welcome.as_ref().expect("there").sealed_udp,
        None
    );
    wait_for("sealed datagrams go both ways", PATIENCE, || {
        relay.metric("ratewright_relay_sealed_total{kind=\"opened\"}") > 2.0
            && relay.metric("ratewright_relay_sealed_total{kind=\"sealed\"}") > 2.0
    });
    // Loopback loses nothing: one end has received as much as the other has sent.
    wait_for("both ends have counted the same", PATIENCE, || {
        let of = |name: &str| {
            (
                relay.metric(&format!(
                    "ratewright_relay_{name}_total{{direction=\"sent\"}}"
                )),
                relay.metric(&format!(
                    "ratewright_relay_{name}_total{{direction=\"received\"}}"
                )),
            )
        };
        let at = |name: &str| {
            let name = format!("ratewright_allocator_relay_{name}_total");
            (
                allocator.metric(&format!("{name}{{direction=\"received\"}}")),
                allocator.metric(&format!("{name}{{direction=\"sent\"}}")),
            )
        };
        of("bundles") == at("bundles") && of("bundle_bytes") == at("bundle_bytes")
    });
}

#[test]
fn a_host_whose_relay_was_killed_goes_on_with_the_allocator() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h*\"", "");
    let mut relay = site.start_relay(&[allocator.listen], "");
    let identity = site.authority.sign(&["h1"]);
    let connect = |server, attempt| {
        TestHost::connect_as(
            &site.authority,
            &identity,
            server,
            config("h1", attempt, false),
        )
        .established()
    };
    let host = connect(relay.listen, 1);
    let other = TestHost::connect(&site.authority, allocator.listen, "h2").established();
    let (flow, others) = (host.start(0, "h16"), other.start(0, "h16"));
    other.wait_rate(others, HALF);
    host.wait_rate(flow, HALF);
    // Killed, not stopped: no close reaches the hosts or the allocator.
    relay.signal("KILL");
    relay.wait();
    // The host connects before the allocator has noticed the relay's death.
    let again = connect(allocator.listen, 2);
    let flow = again.start(0, "h16");
    again.wait_rate(flow, HALF);
    other.wait_rate(others, HALF);
    let address = session_of(&allocator, "h1").expect("it has a session");
    assert!(!address.contains("relay"), "{address}");
    allocator.agrees_with(&[("h1", &again), ("h2", &other)]);
}

#[test]
fn the_flows_of_a_dead_relays_hosts_are_given_up() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h*\"", "");
    let mut relay = site.start_relay(&[allocator.listen], "");
    let host = TestHost::connect(&site.authority, relay.listen, "h1").established();
    let other = TestHost::connect(&site.authority, allocator.listen, "h2").established();
    let others = other.start(0, "h16");
    host.start(0, "h16");
    other.wait_rate(others, HALF);
    relay.signal("KILL");
    relay.wait();
    // The allocator gives up the sessions that send nothing, and others get their shares.
    other.wait_rate(others, ALL);
    allocator.agrees_with(&[("h2", &other)]);
}

#[test]
fn a_relay_speaks_for_its_own_hosts_only() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h1\", \"h1*\"", "");
    let relay = site.start_relay(&[allocator.listen], "");
    let host = TestHost::connect(&site.authority, relay.listen, "h12").established();
    let stranger = TestHost::connect(&site.authority, relay.listen, "h2");
    let refusal = stranger.refusal();
    assert_eq!(refusal.code, RefusalCode::NotAllowed);
    assert_eq!(
        refusal.reason,
        "trust.relays does not let \"relay-1\" speak for the host \"h2\""
    );
    let rejected = "ratewright_allocator_relay_rejected_total{reason=\"not_of_relay\"}";
    assert_eq!(allocator.metric(rejected), 1.0);
    // A name that is not in its certificate is no use behind a relay either.
    // The relay may speak for h1; the certificate names h2.
    let identity = site.authority.sign(&["h2"]);
    let liar = TestHost::connect_as(
        &site.authority,
        &identity,
        relay.listen,
        config("h1", 1, false),
    );
    assert_eq!(liar.refusal().code, RefusalCode::CertificateMismatch);
    let flow = host.start(0, "h16");
    host.wait_rate(flow, ALL);
}

#[test]
fn a_relay_that_the_operator_does_not_name_gets_no_session() {
    let site = TestSite::new();
    site.write("allocator.toml", &site.config("127.0.0.1:0", ""));
    let allocator = site.start();
    let relay = site.spawn_relay(&[allocator.listen], "");
    let rejected = "ratewright_allocator_connections_rejected_total{reason=\"no_relay\"}";
    wait_for("the relay is turned away", PATIENCE, || {
        allocator.metric(rejected) > 0.0
    });
    wait_for("the relay says so", PATIENCE, || {
        relay.log().contains("trust.relays names none of")
    });
    // Without an allocator it refuses hosts, so that they connect to their next server.
    wait_for("a host is turned away", PATIENCE, || {
        !TestHost::connect(&site.authority, relay.listen, "h1").is_up()
    });
    assert!(
        allocator.status()["sessions"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
}

#[test]
fn a_relay_that_the_operator_names_no_more_loses_its_hosts_sessions() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h1\", \"h2\"", "");
    let relay = site.start_relay(&[allocator.listen], "");
    let first = TestHost::connect(&site.authority, relay.listen, "h1").established();
    let second = TestHost::connect(&site.authority, relay.listen, "h2").established();
    let reload = |trust: &str| {
        site.write("allocator.toml", &site.config("127.0.0.1:0", trust));
        allocator.signal("HUP");
    };
    reload("[trust.relays]\nrelay-1 = [\"h2\"]\n");
    assert_eq!(first.refusal().code, RefusalCode::NotAllowed);
    let flow = second.start(0, "h16");
    second.wait_rate(flow, ALL);
    reload("");
    wait_for("the relay's connection is closed", PATIENCE, || {
        !second.is_up()
    });
    wait_for("no session is left", PATIENCE, || {
        allocator.status()["sessions"]
            .as_array()
            .expect("a list")
            .is_empty()
    });
}

#[test]
fn hosts_come_back_through_their_relay_after_a_restart_of_the_allocator() {
    let site = TestSite::new();
    let before = allocator(&site, "\"h*\"", "");
    let listen = before.listen.to_string();
    let relay = site.start_relay(&[before.listen], "");
    let host = TestHost::connect(&site.authority, relay.listen, "h1").established();
    drop(before);
    wait_for("the host is told", PATIENCE, || !host.is_up());
    let trust = "[trust.relays]\nrelay-1 = [\"h1\"]\n";
    site.write("allocator.toml", &site.config(&listen, trust));
    let after = site.start();
    wait_for("the relay is connected again", PATIENCE, || {
        relay.request("GET", "/ready", "").0 == 200
    });
    let host = TestHost::connect(&site.authority, relay.listen, "h1").established();
    let flow = host.start(0, "h16");
    host.wait_rate(flow, ALL);
    after.agrees_with(&[("h1", &host)]);
    assert!(
        session_of(&after, "h1")
            .expect("there")
            .ends_with(" by relay-1")
    );
}

/// Connects as a relay with this certificate, and runs `act` on the connection.
fn as_relay(
    site: &TestSite,
    identity: &Identity,
    allocator: SocketAddr,
    act: impl AsyncFnOnce(&quinn::Connection),
) {
    let quic = client_config(&site.authority, identity, relay::ALPN);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = quinn::Endpoint::client(any).expect("a socket");
        let connecting = endpoint
            .connect_with(quic, allocator, "ratewright-allocator")
            .expect("a good address");
        let connection = connecting.await.expect("the handshake is done");
        act(&connection).await;
        connection.close(0u32.into(), b"the test is over");
        endpoint.wait_idle().await;
    });
}

fn attach_of(identity: &Identity) -> Vec<u8> {
    let der = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM");
    let attach = Attach {
        certificate: der.to_vec(),
        intermediates: Vec::new(),
        address: "10.9.8.7:65000".parse().expect("an address"),
    };
    attach.to_frame()
}

/// Opens a stream with these bytes; returns its first answer, or None if it is reset.
async fn stream_of(connection: &quinn::Connection, bytes: &[u8]) -> Option<ControlMessage> {
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    send.write_all(bytes).await.expect("it is taken");
    let mut decoder = FrameDecoder::new();
    loop {
        if let Some(body) = decoder.next_frame().expect("a frame") {
            let answer = ControlMessage::decode(body).expect("a message");
            // The stream lives on with the connection.
            std::mem::forget((send, receive));
            return Some(answer);
        }
        let chunk = receive.read_chunk(1 << 20, true).await.ok()??;
        decoder.push(&chunk.bytes);
    }
}

fn bundle(channel: u32, datagram: &[u8]) -> Vec<u8> {
    let mut bundler = Bundler::default();
    bundler.push(1_000, channel, datagram).expect("it fits");
    bundler.take().expect("one entry")
}

#[test]
fn what_a_rogue_relay_makes_up_moves_counters_and_nothing_else() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h1\"", "");
    let host = TestHost::connect(&site.authority, allocator.listen, "h2").established();
    let flow = host.start(0, "h16");
    host.wait_rate(flow, ALL);
    let (session, epoch) = {
        let view = host.view();
        let welcome = view.welcome.as_ref().expect("established");
        (welcome.session, welcome.epoch as u32)
    };
    let h1 = attach_of(&site.authority.sign(&["h1"]));
    let forged = attach_of(&TestAuthority::new().sign(&["h1"]));
    let rogue = site.authority.sign(&["relay-1"]);
    as_relay(&site, &rogue, allocator.listen, async |connection| {
        // A certificate of a foreign authority, then bytes that are no certificate.
        assert_eq!(stream_of(connection, &forged).await, None);
        assert_eq!(stream_of(connection, &[3, 1, 2, 3]).await, None);
        // The third stream is of the relay's own host; the datagrams below name another host's
        // session.
        let mut client = ClientSession::new(config("h1", 1, false));
        client.connected(1);
        let mut bytes = h1.clone();
        bytes.extend(client.poll_control().expect("a Hello"));
        let answer = stream_of(connection, &bytes).await.expect("an answer");
        let ControlMessage::Welcome(welcome) = answer else {
            panic!("{answer:?}");
        };
        assert_ne!(welcome.session, session);
        // A certificate that has expired.
        let expired = attach_of(&site.authority.sign_expired(&["h1"]));
        assert_eq!(stream_of(connection, &expired).await, None);
        let mut header = [0; 32];
        // A valid header of h2's session, to be sent on a channel of h1.
        header[0] = ratewright_proto::VERSION;
        header[8..12].copy_from_slice(&session.to_le_bytes());
        header[12..16].copy_from_slice(&epoch.to_le_bytes());
        for datagram in [bundle(2, &header), bundle(7, &header), vec![2, 200], vec![]] {
            connection.send_datagram(datagram.into()).expect("sent");
        }
        let rejected = |reason: &str| {
            allocator.metric(&format!(
                "ratewright_allocator_relay_rejected_total{{reason=\"{reason}\"}}"
            ))
        };
        let dropped = "ratewright_allocator_datagrams_dropped_total{reason=\"wrong_session\"}";
        for _ in 0..2_000 {
            if allocator.metric(dropped) == 1.0 && rejected("malformed_bundle") == 1.0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert_eq!(allocator.metric(dropped), 1.0);
        for (reason, times) in [
            ("bad_certificate", 2.0),
            ("malformed_attach", 1.0),
            ("unknown_channel", 1.0),
            ("malformed_bundle", 1.0),
        ] {
            assert_eq!(rejected(reason), times, "{reason}");
        }
        // The session of the rogue's own host is unharmed by its rejected datagrams.
        assert_eq!(
            session_of(&allocator, "h1").as_deref(),
            Some("10.9.8.7:65000 by relay-1")
        );
    });
    assert!(host.is_up());
    host.wait_rate(flow, ALL);
    wait_for("the rogue's host is gone with it", PATIENCE, || {
        session_of(&allocator, "h1").is_none()
    });
}

#[test]
fn a_relay_whose_certificate_has_no_name_of_its_own_is_told_so() {
    let site = TestSite::new();
    let config = "listen = \"127.0.0.1:0\"\nadmin = \"unix:relay.sock\"\nallocator = [\"127.0.0.1:1\"]\n\
                  [tls]\nca = \"ca.pem\"\ncert = \"allocator.pem\"\nkey = \"allocator.key\"\n";
    site.write("relay.toml", config);
    let (good, _, complaint) = site.run(&["relay", "check-config", "--config", "relay.toml"]);
    assert!(!good);
    assert_eq!(
        complaint,
        "ratewright-allocator: allocator.pem: the certificate names ratewright-allocator and nothing else; \
         a relay also needs a DNS name of its own, by which the allocator's trust.relays calls it\n"
    );
}

#[test]
fn a_hosts_certificate_makes_no_relay() {
    let site = TestSite::new();
    let allocator = allocator(&site, "\"h*\"", "");
    let h1 = site.authority.sign(&["h1"]);
    as_relay(&site, &h1, allocator.listen, async |connection| {
        let closed = connection.closed().await.to_string();
        assert!(closed.contains("trust.relays names none of"), "{closed}");
    });
}
