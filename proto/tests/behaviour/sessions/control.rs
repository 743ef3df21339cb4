//! Control stream: registration, refusal, kill switch, topology, telemetry.

use std::sync::Arc;

use super::session_pair::{SessionPair, admission, bodies, start};
use ratewright_proto::client::{ClientConfig, ClientEvent, LossReason};
use ratewright_proto::control::{
    AccessCapacity, ControlMessage, HOSTS_DIGEST_BYTES, HostInfo, HostsDigest, Refusal,
    RefusalCode, TopologySnapshot, Welcome,
};
use ratewright_proto::server::{Admission, PeerLoss, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::telemetry::{LinkInt, Telemetry};
use ratewright_proto::{FlowId, RateCode, SessionError, VERSION};

#[test]
fn a_handshake_that_stalls_is_given_up() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.connected(pair.now_ns);
    pair.now_ns += ServerConfig::default().handshake_timeout_ns;
    pair.client.on_timeout(pair.now_ns);
    pair.server.on_timeout(pair.now_ns);
    let lost = ClientEvent::SessionLost(LossReason::HandshakeTimeout);
    assert_eq!(pair.client_events(), [lost]);
    let lost = ServerEvent::PeerLost(PeerLoss::HandshakeTimeout);
    assert_eq!(pair.server_events(), [lost]);
}

#[test]
fn a_client_of_another_version_is_told_both_versions() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.connected(pair.now_ns);
    let body = &bodies(std::iter::from_fn(|| pair.client.poll_control()))[0];
    let Ok(ControlMessage::Hello(mut hello)) = ControlMessage::decode(body) else {
        panic!("no Hello");
    };
    // Any version but ours.
    hello.version = 9;
    let frame = ControlMessage::Hello(hello).to_frame().unwrap();
    let body = &bodies(std::iter::once(frame))[0];
    pair.server.on_control(pair.now_ns, body).unwrap();
    assert!(pair.server.is_closed());
    assert!(matches!(
        pair.server_events()[..],
        [ServerEvent::Refused(_)]
    ));
    pair.server_stream();
    let [ClientEvent::Refused(refusal)] = &pair.client_events()[..] else {
        panic!("not refused");
    };
    assert_eq!(refusal.code, RefusalCode::VersionMismatch);
    assert!(!refusal.retry);
    assert!(refusal.reason.contains("version 9"), "{}", refusal.reason);
    let own = format!("version {VERSION}");
    assert!(refusal.reason.contains(&own), "{}", refusal.reason);
}

#[test]
fn a_refusal_ends_an_established_session() {
    let mut pair = SessionPair::new();
    pair.client_events();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let refusal = Refusal {
        code: RefusalCode::Draining,
        reason: "shutting down".to_owned(),
        retry: true,
    };
    pair.server.refuse(refusal.clone());
    assert!(pair.server.is_closed());
    pair.server_stream();
    assert_eq!(pair.client_events(), [ClientEvent::Refused(refusal)]);
    assert_eq!(pair.client_datagram(), None);
    // The flow waits for the next session.
    assert_eq!(pair.client.flow_count(), 1);
}

#[test]
fn the_kill_switch_withholds_rates_and_gives_them_back() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(0, 0);
    let rate = (flow, RateCode::encode(3_000_000).decode());
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_released(true);
    // By the datagram alone: the stream may be slow.
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::Released(true)]);
    pair.client.confirm_release(0).unwrap();
    pair.client_stream();
    let ack = ServerEvent::ReleaseAck {
        released: true,
        paced_flows: 0,
    };
    assert!(pair.server_events().contains(&ack));
    pair.server.set_rate(pair.now_ns, flow, 3_000_000).unwrap();
    pair.settle();
    pair.server_stream();
    assert_eq!(pair.client_events(), []);
    pair.server.set_released(false);
    // By the stream alone: the datagram is lost.
    pair.server_datagram().expect("a datagram at once");
    pair.server_stream();
    let events = pair.client_events();
    assert_eq!(events[0], ClientEvent::Released(false));
    let last = events.last().cloned();
    assert!(
        matches!(last, Some(ClientEvent::Rate { flow, rate_bps, .. }) if (flow, rate_bps) == rate),
        "{events:?}"
    );
}

#[test]
fn a_released_client_that_observes_is_told_rates_and_none_after_the_kill_switch() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_observing();
    // The datagram comes first: until the stream says more, the client is merely released.
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::Released(true)]);
    assert!(!pair.client.observes());
    pair.server_stream();
    let events = pair.client_events();
    assert_eq!(events[0], ClientEvent::Released(true));
    assert!(pair.client.observes() && pair.client.is_released());
    let rates = |events: &[ClientEvent]| {
        let is_rate = |event: &&ClientEvent| matches!(event, ClientEvent::Rate { .. });
        events.iter().filter(is_rate).count()
    };
    assert_eq!(rates(&events), 1, "{events:?}");
    pair.server.set_rate(pair.now_ns, flow, 3_000_000).unwrap();
    pair.settle();
    assert_eq!(rates(&pair.client_events()), 1, "later rates come, too");

    pair.server.set_released(true);
    pair.settle();
    pair.server_stream();
    assert_eq!(pair.client_events(), [ClientEvent::Released(true)]);
    assert!(!pair.client.observes());
    pair.server.set_rate(pair.now_ns, flow, 2_000_000).unwrap();
    pair.settle();
    assert_eq!(rates(&pair.client_events()), 0);
}

#[test]
fn a_client_that_joins_under_the_kill_switch_is_released() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.connected(pair.now_ns);
    pair.client_stream();
    let released = Admission {
        released: true,
        ..admission()
    };
    pair.server.accept(pair.now_ns, released).unwrap();
    pair.server_stream();
    let events = pair.client_events();
    assert!(matches!(
        events[..],
        [ClientEvent::Established(_), ClientEvent::Released(true)]
    ));
}

#[test]
fn only_the_newest_topology_waits() {
    let mut pair = SessionPair::new();
    pair.client_events();
    for version in [2, 3, 4] {
        let topology = TopologySnapshot {
            version,
            ..TopologySnapshot::default()
        };
        pair.server.set_topology(topology.into()).unwrap();
    }
    pair.server_stream();
    let events = pair.client_events();
    assert!(
        matches!(&events[..], [ClientEvent::Topology(topology)] if topology.version == 4),
        "{events:?}"
    );
}

#[test]
fn a_topology_brings_the_capacities_of_the_hosts_own_links() {
    let mut pair = SessionPair::new();
    pair.client_events();
    let access = AccessCapacity::new(24_400_000_000, 9_750_000_000)
        .with_line_rates(25_000_000_000, 10_000_000_000);
    pair.server.set_access(access);
    pair.server.set_topology(two_hosts().into()).unwrap();
    pair.server_stream();
    let events = pair.client_events();
    assert!(
        matches!(&events[..], [ClientEvent::Topology(topology)]
            if topology.access == Some(access) && topology.hosts == two_hosts().hosts),
        "{events:?}"
    );
}

fn two_hosts() -> TopologySnapshot {
    let host = |id| HostInfo {
        id,
        name: format!("h{id}"),
        prefixes: Vec::new(),
    };
    TopologySnapshot {
        version: 1,
        hosts: (0..2).map(host).collect(),
        ..TopologySnapshot::default()
    }
}

/// Connects to a server with this topology. Returns the Welcome and the number of bytes sent for
/// it.
fn connected(pair: &mut SessionPair, topology: &TopologySnapshot) -> (Welcome, usize) {
    pair.server = ServerSession::new(pair.now_ns, Arc::new(ServerConfig::default()));
    pair.client.connected(pair.now_ns);
    pair.client_stream();
    let admission = Admission {
        topology: topology.into(),
        ..admission()
    };
    pair.server.accept(pair.now_ns, admission).unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| pair.server.poll_control()).collect();
    let bytes = frames.iter().map(|frame| frame.len()).sum();
    for body in bodies(frames.into_iter()) {
        pair.client.on_control(pair.now_ns, &body).unwrap();
    }
    let Some(ClientEvent::Established(welcome)) = pair.client.poll_event() else {
        panic!("no session");
    };
    (*welcome, bytes)
}

#[test]
fn a_client_that_comes_again_is_not_told_the_hosts_again() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    let (first, whole) = connected(&mut pair, &two_hosts());
    assert_eq!(first.topology.hosts, two_hosts().hosts);
    pair.client.disconnected(pair.now_ns);
    // A restarted allocator, whose topology has the same hosts and another version.
    let later = TopologySnapshot {
        version: 7,
        ..two_hosts()
    };
    let (second, brief) = connected(&mut pair, &later);
    assert_eq!(second.topology.hosts, later.hosts);
    assert_eq!(second.topology.version, 7);
    assert!(brief < whole, "{brief} of {whole} bytes");
    // Links that fail change the version and no host.
    let failed = TopologySnapshot {
        version: 8,
        ..two_hosts()
    };
    pair.server.set_topology(failed.clone().into()).unwrap();
    pair.server_stream();
    let events = pair.client_events();
    assert!(
        matches!(&events[..], [ClientEvent::Topology(topology)]
            if topology.version == 8 && topology.hosts == failed.hosts),
        "{events:?}"
    );
    // Other hosts are sent.
    let mut hosts = two_hosts().hosts.to_vec();
    hosts[1].name = "other".to_owned();
    let renamed = TopologySnapshot {
        version: 9,
        hosts: hosts.into(),
        ..two_hosts()
    };
    pair.client.disconnected(pair.now_ns);
    let (third, _) = connected(&mut pair, &renamed);
    assert_eq!(third.topology.hosts, renamed.hosts);
}

#[test]
fn hosts_that_a_client_never_knew_are_no_topology_and_are_asked_for_again() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    connected(&mut pair, &two_hosts());
    pair.client.disconnected(pair.now_ns);
    pair.client.connected(pair.now_ns);
    let digest = HostsDigest([5; HOSTS_DIGEST_BYTES]);
    let unknown = ControlMessage::Topology(TopologySnapshot {
        digest: Some(digest),
        known: true,
        ..TopologySnapshot::default()
    });
    let mut other = SessionPair::new();
    let body = bodies([unknown.to_frame().unwrap()].into_iter()).remove(0);
    let refused = other.client.on_control(other.now_ns, &body);
    assert!(
        matches!(refused, Err(SessionError::Invalid { .. })),
        "{refused:?}"
    );
    assert!(other.client.is_established());
    assert_eq!(other.client.known_hosts(), None);
    assert!(pair.client.known_hosts().is_some());
}

#[test]
fn telemetry_arrives_checked_and_waits_within_bounds() {
    let message = |bandwidth_bps| Telemetry {
        links: vec![LinkInt {
            bandwidth_bps,
            ..LinkInt::default()
        }],
        ..Telemetry::default()
    };
    let config = ClientConfig {
        max_control_bytes: 1_000,
        ..ClientConfig::default()
    };
    let mut pair = SessionPair::with(config, ServerConfig::default());
    assert!(matches!(
        pair.client.send_telemetry(message(0)),
        Err(SessionError::Invalid { .. })
    ));
    pair.client.send_telemetry(message(7)).unwrap();
    pair.client_stream();
    assert_eq!(pair.server_events(), [ServerEvent::Telemetry(message(7))]);
    let refused = (0..1_000)
        .filter(|_| pair.client.send_telemetry(message(7)).is_err())
        .count();
    assert!(refused > 500);
    assert_eq!(pair.client.counters().telemetry_dropped, refused as u64);
}

#[test]
fn control_messages_out_of_turn_are_refused_and_counted() {
    let mut pair = SessionPair::new();
    let hello = {
        let mut other = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
        other.client.connected(0);
        bodies(std::iter::from_fn(|| other.client.poll_control())).remove(0)
    };
    let second = pair.server.on_control(pair.now_ns, &hello);
    assert!(matches!(second, Err(SessionError::Unexpected(_))));
    let wrong_way = pair.client.on_control(pair.now_ns, &hello);
    assert!(matches!(wrong_way, Err(SessionError::Unexpected(_))));
    assert!(pair.server.on_control(pair.now_ns, b"\xff").is_err());
    assert_eq!(pair.server.counters().control_invalid, 2);
    assert_eq!(pair.client.counters().control_invalid, 1);
    assert!(pair.server.is_established() && pair.client.is_established());
}
