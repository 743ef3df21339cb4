//! Sealed UDP beside QUIC, with the real binary and real sockets on loopback.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use ratewright_io::transport::SealedPort;
use ratewright_proto::FlowId;
use ratewright_proto::client::ClientConfig;
use ratewright_proto::control::RefusalCode;
use ratewright_proto::path::DatagramPath;

use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, pause, wait_for};

const RATE: std::ops::RangeInclusive<u64> = 4_850_000_000..=5_000_000_000;

fn start(more: &str) -> (TestSite, AllocatorProcess) {
    let site = TestSite::new();
    let more = format!("[transport]\nhot = \"udp\"\n{more}");
    site.write("allocator.toml", &site.config("127.0.0.1:0", &more));
    let allocator = site.start();
    (site, allocator)
}

fn sealed_host(site: &TestSite, allocator: SocketAddr, name: &str) -> TestHost {
    let config = ClientConfig {
        host_name: name.to_owned(),
        incarnation: 1,
        sealed_udp: true,
        ..ClientConfig::default()
    };
    let identity = site.authority.sign(&[name]);
    TestHost::connect_as(&site.authority, &identity, allocator, config).established()
}

fn port<T>(host: &TestHost, look: impl FnOnce(&mut SealedPort) -> T) -> T {
    look(host.view().port.as_mut().expect("the host can seal"))
}

fn offer(host: &TestHost) -> (u32, SocketAddr) {
    let view = host.view();
    let welcome = view.welcome.as_ref().expect("established");
    let offer = welcome
        .sealed_udp
        .expect("the allocator takes sealed datagrams");
    (
        welcome.session,
        SocketAddr::from(([127, 0, 0, 1], offer.port)),
    )
}

fn is_on(host: &TestHost, path: DatagramPath) -> bool {
    let (session, _) = offer(host);
    port(host, |port| port.path(session)) == path
}

fn count(allocator: &AllocatorProcess, kind: &str) -> f64 {
    allocator.metric(&format!(
        "ratewright_allocator_sealed_total{{kind=\"{kind}\"}}"
    ))
}

#[test]
fn hosts_on_either_path_share_a_link_alike() {
    for cipher in ["aes-128-gcm", "chacha20-poly1305"] {
        let (site, allocator) = start(&format!("shards = 2\ncipher = \"{cipher}\"\n"));
        let sealed = sealed_host(&site, allocator.listen, "h1");
        let quic = TestHost::connect(&site.authority, allocator.listen, "h2").established();
        assert_eq!(
            quic.view()
                .welcome
                .as_ref()
                .and_then(|welcome| welcome.sealed_udp),
            None,
            "who does not ask is not told"
        );
        wait_for("the sealed path comes up", PATIENCE, || {
            is_on(&sealed, DatagramPath::Sealed)
        });
        let flow = FlowId::new(0, 1);
        sealed.start(0, "h16");
        quic.start(0, "h16");
        sealed.wait_rate(flow, RATE);
        quic.wait_rate(flow, RATE);
        assert!(
            port(&sealed, |port| port.counters().opened) > 1,
            "rates came sealed"
        );
        assert!(count(&allocator, "opened") > 1.0);
    }
}

#[test]
fn leases_are_renewed_and_keys_replaced_under_traffic() {
    let (site, allocator) = start("");
    let host = sealed_host(&site, allocator.listen, "h1");
    let (session, _) = offer(&host);
    wait_for("the sealed path comes up", PATIENCE, || {
        is_on(&host, DatagramPath::Sealed)
    });
    host.start(0, "h16");
    host.wait_rate(FlowId::new(0, 1), 9_700_000_000..=10_000_000_000);
    for updates in 1..=3 {
        port(&host, |port| port.request_key_update(session));
        wait_for("the allocator follows", PATIENCE, || {
            // Keep-alives, of which there are several in a lease, carry the new key.
            count(&allocator, "key_updates") >= f64::from(updates)
        });
    }
    assert!(is_on(&host, DatagramPath::Sealed));
    assert!(host.is_up());
    assert_eq!(allocator.status()["flows"], 1);
}

#[test]
fn datagrams_of_strangers_move_a_counter_and_nothing_else() {
    let (site, allocator) = start("");
    let host = sealed_host(&site, allocator.listen, "h1");
    let (session, to) = offer(&host);
    wait_for("the sealed path comes up", PATIENCE, || {
        is_on(&host, DatagramPath::Sealed)
    });
    host.start(0, "h16");
    host.wait_rate(FlowId::new(0, 1), 9_700_000_000..=10_000_000_000);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut forged = vec![0; 100];
    // A header as the host would write it, with a tag that no key has made.
    forged[0] = 0xd1;
    forged[4..8].copy_from_slice(&session.to_le_bytes());
    forged[8..12].copy_from_slice(&0x00ff_ffff_u32.to_le_bytes());
    let mut unknown = forged.clone();
    unknown[4..8].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
    for (kind, bytes) in [
        ("forged", forged.clone()),
        ("unknown_session", unknown),
        ("truncated", forged[..20].to_vec()),
        ("oversized", [&forged[..], &[0; 1_400]].concat()),
        ("malformed", vec![0; 100]),
    ] {
        let before = count(&allocator, kind);
        stranger.send_to(&bytes, to).expect("sent");
        wait_for(kind, PATIENCE, || {
            // The core publishes its counters between other work, so the metric may lag.
            count(&allocator, kind) == before + 1.0
        });
    }
    // The path is up, so the allocator has opened at least one of the host's first datagrams.
    let before = count(&allocator, "replayed");
    for sequence in 0..16_u32 {
        let mut replayed = forged.clone();
        replayed[8..12].copy_from_slice(&sequence.to_le_bytes());
        stranger.send_to(&replayed, to).expect("sent");
    }
    wait_for("replayed", PATIENCE, || {
        count(&allocator, "replayed") > before
    });
    assert!(is_on(&host, DatagramPath::Sealed));
    assert_eq!(allocator.status()["flows"], 1);
    assert!(host.rate(FlowId::new(0, 1)).is_some());
}

#[test]
fn a_host_that_hears_no_sealed_datagram_goes_on_with_quic_and_comes_back() {
    let (site, allocator) = start("");
    let host = sealed_host(&site, allocator.listen, "h1");
    wait_for("the sealed path comes up", PATIENCE, || {
        is_on(&host, DatagramPath::Sealed)
    });
    host.view().deaf = true;
    host.start(0, "h16");
    let flow = FlowId::new(0, 1);
    host.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    assert!(
        is_on(&host, DatagramPath::Quic),
        "the rate can only have come by QUIC"
    );
    // Two leases of 300 ms.
    pause(Duration::from_millis(600));
    assert!(host.is_up(), "leases go on");
    host.view().deaf = false;
    wait_for("the sealed path is found again", PATIENCE, || {
        is_on(&host, DatagramPath::Sealed)
    });
    host.end(flow);
    wait_for("the end arrives", PATIENCE, || {
        allocator.status()["flows"] == 0
    });
}

/// With one port, and with a further one on a thread of its own.
#[test]
fn another_engine_takes_over_on_a_reload_whoever_drives_it() {
    for shards in [1, 2] {
        let transport = format!("shards = {shards}\n");
        let (site, allocator) = start(&transport);
        let one = sealed_host(&site, allocator.listen, "h1");
        let two = sealed_host(&site, allocator.listen, "h2");
        wait_for("the sealed paths come up", PATIENCE, || {
            is_on(&one, DatagramPath::Sealed) && is_on(&two, DatagramPath::Sealed)
        });
        let (first, whole) = (FlowId::new(0, 1), 9_700_000_000..=10_000_000_000);
        one.start(0, "h16");
        one.wait_rate(first, whole.clone());
        for (reloads, engine) in [(1, "reference"), (2, "parallel")] {
            let more = format!(
                "[transport]\nhot = \"udp\"\n{transport}[allocation]\nengine = \"{engine}\"\n"
            );
            site.write("allocator.toml", &site.config("127.0.0.1:0", &more));
            allocator.signal("HUP");
            wait_for("the reload is taken", PATIENCE, || {
                allocator.metric("ratewright_allocator_reloads_total{result=\"ok\"}")
                    == f64::from(reloads)
            });
            // The new engine has the standing flow, and takes starts and ends.
            let second = two.start(reloads, "h16");
            one.wait_rate(first, RATE);
            two.wait_rate(second, RATE);
            two.end(second);
            one.wait_rate(first, whole.clone());
            assert_eq!(allocator.status()["flows"], 1);
        }
        assert!(one.is_up() && two.is_up());
    }
}

#[test]
fn an_allocator_that_is_stopped_while_sessions_are_busy_ends_cleanly_and_says_why() {
    for shards in [1, 2] {
        let (site, mut allocator) = start(&format!("shards = {shards}\n"));
        let hosts: Vec<TestHost> = (1..=8)
            .map(|number| sealed_host(&site, allocator.listen, &format!("h{number}")))
            .collect();
        for host in &hosts {
            wait_for("the sealed path comes up", PATIENCE, || {
                is_on(host, DatagramPath::Sealed)
            });
            for slot in 0..32 {
                host.start(slot, "h16");
            }
        }
        // Each start changes all rates, so that datagrams are in flight when the signal arrives.
        allocator.signal("TERM");
        assert!(allocator.wait().success());
        for host in &hosts {
            assert_eq!(host.refusal().code, RefusalCode::Draining);
        }
        assert!(!allocator.log().contains("panicked"), "{}", allocator.log());
    }
}

#[test]
fn an_allocator_on_all_addresses_answers_from_the_one_that_was_asked() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let site = TestSite::new();
        let more = "[transport]\nhot = \"udp\"\n";
        site.write("allocator.toml", &site.config(listen, more));
        let allocator = site.start();
        // Not the address that routes to the host would choose. QUIC's client, too, takes nothing
        // from another.
        let asked = SocketAddr::from(([127, 0, 0, 9], allocator.listen.port()));
        let host = sealed_host(&site, asked, "h1");
        wait_for("the sealed path comes up", PATIENCE, || {
            is_on(&host, DatagramPath::Sealed)
        });
        host.start(0, "h16");
        host.wait_rate(FlowId::new(0, 1), 9_700_000_000..=10_000_000_000);
        assert_eq!(port(&host, |port| port.counters().wrong_address), 0);
    }
}
