//! Sessions, rates, refusals, floods and malformed input, with the real binary and real QUIC
//! connections on loopback.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use ratewright_proto::client::ClientConfig;
use ratewright_proto::control::RefusalCode;
use ratewright_proto::wire;
use ratewright_proto::{FlowId, FlowPath, StartRecord};

use crate::service_support::certificates::{Identity, TestAuthority};
use crate::service_support::host::TestHost;
use crate::service_support::process::TestSite;
use crate::service_support::{PATIENCE, pause, wait_for};

fn config(name: &str, incarnation: u64) -> ClientConfig {
    ClientConfig {
        host_name: name.to_owned(),
        incarnation,
        ..ClientConfig::default()
    }
}

#[test]
fn hosts_get_rates_that_fill_and_never_overfill_their_bottleneck() {
    fill_a_bottleneck("engine = \"reference\"");
}

#[test]
fn the_parallel_engine_does_the_same() {
    fill_a_bottleneck("engine = \"parallel\"\nworkers = 2");
}

fn fill_a_bottleneck(engine: &str) {
    let site = TestSite::new();
    let more = format!("[allocation]\n{engine}\n");
    site.write("allocator.toml", &site.config("127.0.0.1:0", &more));
    let allocator = site.start();
    let names = ["h1", "h2", "h3", "h5"];
    let hosts: Vec<TestHost> = names
        .iter()
        .map(|name| TestHost::connect(&site.authority, allocator.listen, name).established())
        .collect();
    let flow = FlowId::new(0, 1);
    for (count, host) in (1..).zip(&hosts) {
        host.start(0, "h16");
        let fair = 10_000_000_000 / count;
        for host in &hosts[..count as usize] {
            // Below an equal share by derating and drift within the threshold, 1 % each.
            host.wait_rate(flow, fair * 97 / 100..=fair);
        }
        let sum: u64 = hosts.iter().filter_map(|host| host.rate(flow)).sum();
        assert!(sum <= 10_000_000_000, "{count} senders: {sum}");
    }
    let status = allocator.status();
    assert_eq!(status["flows"], 4);
    assert_eq!(status["sessions"].as_array().expect("a list").len(), 4);
    assert_eq!(status["sessions"][0]["host"], "h1");
    assert!(status["sessions"][0]["rtt_us"].as_u64().expect("a number") > 0);
    wait_for("the fullest link is h16's", PATIENCE, || {
        allocator.status()["links"][0]["name"] == "leaf4->h16"
    });
    let fullest = allocator.status()["optimality"]["max_link_load"].as_f64();
    // The parallel engine sums in single precision.
    assert!(fullest.expect("a number") <= 1.0 + 1e-6, "{fullest:?}");
    wait_for("the score of four equal rates", PATIENCE, || {
        let optimality = &allocator.status()["optimality"];
        let score = optimality["proportional_fairness_score"].as_f64();
        // As above: at most 3 % below an equal share.
        let [least, most] = [0.97, 1.0].map(|share: f64| 4.0 * (share * 2.5e9).log2());
        optimality["rated_flows"] == 4 && (least..=most).contains(&score.expect("a number"))
    });

    hosts[0].end(flow);
    hosts[1].wait_rate(flow, 3_233_000_000..=3_333_333_333);
    drop(hosts);
    wait_for("their sessions end", PATIENCE, || {
        allocator.status()["flows"] == 0
    });
    assert_eq!(allocator.metric("ratewright_allocator_sessions"), 0.0);
    assert_eq!(
        allocator.metric("ratewright_allocator_flowlet_starts_total"),
        4.0
    );
}

#[test]
fn refusals_say_what_is_wrong_and_are_counted() {
    let site = TestSite::new();
    let allocator = site.start();
    let connect = |names: &[&str], config: ClientConfig| {
        let identity = site.authority.sign(names);
        TestHost::connect_as(&site.authority, &identity, allocator.listen, config)
    };
    let refused = |reason: &str| {
        allocator.metric(&format!(
            "ratewright_allocator_sessions_refused_total{{reason=\"{reason}\"}}"
        ))
    };

    let refusal = connect(&["h99"], config("h99", 1)).refusal();
    assert_eq!(refusal.code, RefusalCode::UnknownHost);
    assert!(refusal.reason.contains("\"h99\""), "{}", refusal.reason);
    assert_eq!(refused("unknown_host"), 1.0);

    // The Hello claims another name than the certificate.
    let refusal = connect(&["h2"], config("h1", 1)).refusal();
    assert_eq!(refusal.code, RefusalCode::CertificateMismatch);
    assert!(
        refusal.reason.contains("its certificate names h2"),
        "{}",
        refusal.reason
    );
    assert_eq!(refused("certificate_mismatch"), 1.0);

    // Of two daemons of one host, the one of the later incarnation wins.
    let living = connect(&["h1"], config("h1", 5)).established();
    let refusal = connect(&["h1"], config("h1", 4)).refusal();
    assert_eq!(refusal.code, RefusalCode::DuplicateHost);
    assert_eq!(refused("duplicate_host"), 1.0);
    let newer = connect(&["h1"], config("h1", 6)).established();
    assert_eq!(living.refusal().code, RefusalCode::Superseded);
    wait_for("the older connection is closed", PATIENCE, || {
        !living.is_up()
    });
    assert!(newer.is_up());
}

#[test]
fn a_host_of_another_authority_gets_no_connection() {
    no_connection_with(|_| TestAuthority::new().sign(&["h1"]));
}

#[test]
fn a_host_whose_certificate_has_expired_gets_no_connection() {
    no_connection_with(|authority| authority.sign_expired(&["h1"]));
}

fn no_connection_with(identity: impl Fn(&TestAuthority) -> Identity) {
    let site = TestSite::new();
    let allocator = site.start();
    let host = TestHost::connect_as(
        &site.authority,
        &identity(&site.authority),
        allocator.listen,
        config("h1", 1),
    );
    wait_for("the handshake fails", PATIENCE, || !host.is_up());
    assert!(host.view().welcome.is_none());
    wait_for("it is counted", PATIENCE, || {
        allocator.metric("ratewright_allocator_connections_rejected_total{reason=\"handshake\"}")
            == 1.0
    });
    TestHost::connect(&site.authority, allocator.listen, "h1").established();
}

#[test]
fn a_daemon_of_another_version_is_told_both_versions() {
    let site = TestSite::new();
    let allocator = site.start();
    let hello = wire::ControlMessage {
        body: Some(wire::control_message::Body::Hello(wire::Hello {
            // No version of this allocator.
            version: 9,
            host_name: "h1".to_owned(),
            ..wire::Hello::default()
        })),
    };
    let frame = ratewright_proto::control::encode_frame(&hello).expect("a frame");
    let host = TestHost::connect_raw(
        &site.authority,
        &site.authority.sign(&["h1"]),
        allocator.listen,
        frame,
    );
    let refusal = host.refusal();
    assert_eq!(refusal.code, RefusalCode::VersionMismatch);
    assert_eq!(
        refusal.reason,
        format!(
            "the daemon speaks protocol version 9, this allocator version {}",
            ratewright_proto::VERSION
        )
    );
    assert_eq!(
        allocator
            .metric("ratewright_allocator_sessions_refused_total{reason=\"version_mismatch\"}"),
        1.0
    );
}

#[test]
fn garbage_moves_counters_and_nothing_else() {
    let site = TestSite::new();
    let allocator = site.start();
    let host = TestHost::connect(&site.authority, allocator.listen, "h1").established();
    let flow = host.start(0, "h16");
    host.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    for length in 0..200usize {
        host.send_raw((0..length).map(|at| (at * 37 + length) as u8).collect());
        std::net::UdpSocket::bind("127.0.0.1:0")
            .and_then(|socket| socket.send_to(&vec![length as u8; length], allocator.listen))
            .expect("UDP");
    }
    let dropped = || {
        let (_, text) = allocator.request("GET", "/metrics", "");
        text.lines()
            .filter(|line| line.starts_with("ratewright_allocator_datagrams_dropped_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>()
    };
    wait_for("the garbage is counted", PATIENCE, || dropped() >= 190.0);
    assert_eq!(allocator.status()["flows"], 1);
    assert!(host.is_up() && host.rate(flow).is_some());

    let other = TestHost::connect(&site.authority, allocator.listen, "h2").established();
    // The length of a frame far beyond the bound.
    other.write_raw(&[0xff; 64]);
    assert_eq!(other.refusal().code, RefusalCode::ProtocolError);
    wait_for("its connection is closed", PATIENCE, || !other.is_up());
    assert!(host.is_up(), "the other host is not touched");
}

/// Checks the DSCP on a Version Negotiation packet (RFC 9000, section 6), the allocator's response
/// to an unknown version of QUIC.
#[test]
fn what_the_allocator_sends_carries_the_configured_mark() {
    for (dscp, expected) in [(None, 48), (Some(34), 34), (Some(0), 0)] {
        let site = TestSite::new();
        let more = dscp.map_or_else(String::new, |dscp| {
            format!("[transport]\ncontrol_dscp = {dscp}\n")
        });
        site.write("allocator.toml", &site.config("127.0.0.1:0", &more));
        let allocator = site.start();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        setsockopt(&socket, sockopt::IpRecvTos, &true).expect("told the type of service");
        let timeout = Some(Duration::from_secs(5));
        socket.set_read_timeout(timeout).expect("a timeout");
        // A shorter datagram gets no Version Negotiation packet (RFC 9000, §6.1).
        let mut hello = vec![0; 1_200];
        // A long header of version 0x1a2a3a4a, which RFC 9000 (§15) reserves, with connection ids
        // of eight bytes.
        hello[..6].copy_from_slice(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]);
        hello[14] = 8;
        socket.send_to(&hello, allocator.listen).expect("sent");
        // The DSCP is the upper six bits of the type of service (RFC 2474).
        assert_eq!(class_of(&socket), expected << 2, "{more}");
    }
}

/// Returns the type of service of the next datagram.
fn class_of(socket: &std::net::UdpSocket) -> u8 {
    let mut bytes = [0; 2_048];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([i32; 4]);
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let message = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), flags)
        .expect("an answer within 5 s");
    let mut controls = message.cmsgs().expect("whole control messages");
    controls
        .find_map(|control| match control {
            ControlMessageOwned::Ipv4Tos(class) => Some(class),
            _ => None,
        })
        .expect("the type of service")
}

#[test]
fn unknown_destinations_are_left_alone_and_floods_are_bounded() {
    let site = TestSite::new();
    let more = "[limits]\nmax_flows_per_session = 500\nmax_flows = 600\nmax_starts_per_s = 2000\n";
    site.write("allocator.toml", &site.config("127.0.0.1:0", more));
    let allocator = site.start();
    let host = TestHost::connect(&site.authority, allocator.listen, "h1").established();
    host.start_record(StartRecord::new(
        FlowId::new(0, 1),
        // No host of the topology has this id.
        4_000,
        FlowPath::Hash(0),
    ));
    let alone = |reason: &str| {
        allocator.metric(&format!(
            "ratewright_allocator_flows_left_alone_total{{reason=\"{reason}\"}}"
        ))
    };
    wait_for("it is counted", PATIENCE, || alone("unknown_host") == 1.0);

    // Ten times the session's bound of flows.
    for slot in 1..5_000 {
        host.start(slot, "h16");
    }
    wait_for("the session's table is full", PATIENCE, || {
        allocator.status()["flows"] == 499
    });
    let other = TestHost::connect(&site.authority, allocator.listen, "h2").established();
    for slot in 0..400 {
        other.start(slot, "h9");
    }
    wait_for("the table of all is full", PATIENCE, || {
        alone("table_full") == 299.0
    });
    assert_eq!(allocator.status()["flows"], 600);
    pause(Duration::from_millis(200));
    assert_eq!(allocator.status()["flows"], 600);
    assert!(host.is_up() && other.is_up());
}
