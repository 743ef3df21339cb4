//! Tunnels: a rate counts frames as they leave the host, with what a tunnel adds to each of them.

use std::io::Write;
use std::net::UdpSocket;
use std::time::Duration;

use ratewright_endpointd::backend::{BackendConfig, BackendKind};
use ratewright_endpointd::clock::now_ns;
use ratewright_endpointd::telemetry::interface::InterfaceReader;
use ratewright_endpointd::telemetry::udp::{UdpCounters, UdpReader};

use super::{Driver, FOREVER_NS, MBIT, alone, config};
use crate::netns::cubic::{CubicPair, cubic_pair};
use crate::netns::echo::{Echo, EchoClient, get_max_pacing};
use crate::netns::{BulkReceiver, BulkSender, LEFT_V4, NamespacePair, RIGHT_V4, sleep};

/// The right end of the VXLAN tunnel over the pair's veth.
pub const INNER_RIGHT_V4: &str = "10.124.0.2";
const RATE_MBIT: u64 = 40;

/// A pair whose VXLAN tunnel makes full outer frames of packets of 1,450 bytes.
fn tunnelled_pair() -> CubicPair {
    let pair = cubic_pair();
    add_tunnel(&pair, 1_450);
    pair
}

/// Adds a VXLAN tunnel over the pair's veth, for packets of this size.
pub fn add_tunnel(pair: &NamespacePair, mtu_bytes: u16) {
    for (namespace, own, other, inner) in [
        (&pair.left, LEFT_V4, RIGHT_V4, "10.124.0.1"),
        (&pair.right, RIGHT_V4, LEFT_V4, INNER_RIGHT_V4),
    ] {
        namespace.run(&format!(
            "ip link add vx0 type vxlan id 7 dstport 4789 dev v0 local {own} remote {other}"
        ));
        namespace.run(&format!("ip addr add {inner}/24 dev vx0"));
        namespace.run(&format!("ip link set vx0 mtu {mtu_bytes} up"));
    }
}

/// The maximum of a socket that has a rate and more to send than a second of it takes.
fn maximum(driver: &mut Driver, echo: &Echo) -> u64 {
    const MESSAGE: usize = 4_000_000;
    let starts = driver.start_count();
    let mut client = EchoClient::connect(echo.address);
    client.exchange(MESSAGE);
    let (conn, _) = driver.starts(starts + 1)[starts];
    driver.set(conn, RATE_MBIT, FOREVER_NS);
    client.stream.write_all(&[5; MESSAGE]).expect("write");
    get_max_pacing(&client.stream)
}

/// Payload in outer frames by hand: Ethernet 14, IP 20, UDP 8, VXLAN 8, Ethernet 14, IP 20, TCP 32.
#[test]
fn a_sockets_maximum_follows_the_tunnel_that_carries_it() {
    let _alone = alone();
    let pair = tunnelled_pair();
    let mut driver = Driver::open(BackendKind::SockOps, &pair);
    let wire = RATE_MBIT * MBIT / 8;
    for (address, payload, headers) in [
        (RIGHT_V4, 1_448, 14 + 20 + 32),
        (INNER_RIGHT_V4, 1_398, 14 + 20 + 8 + 8 + 14 + 20 + 32),
    ] {
        let echo = Echo::start(&pair.right, address, 4_000_000);
        let held = maximum(&mut driver, &echo);
        assert_eq!(held, wire * payload / (payload + headers), "to {address}");
    }
    driver.backend.shut_down().expect("shut down");
}

/// A switch or a program may encapsulate what no device shows.
#[test]
fn a_sockets_maximum_follows_the_bytes_that_are_configured() {
    let _alone = alone();
    let pair = tunnelled_pair();
    let configured = BackendConfig {
        tunnel_bytes: 54,
        ..config(&pair)
    };
    let mut driver = Driver::with(BackendKind::SockOps, &pair, &configured);
    let wire = RATE_MBIT * MBIT / 8;
    // They are the least: the tunnel that is seen adds 50.
    for (address, payload, headers) in [
        (RIGHT_V4, 1_448, 14 + 54 + 52),
        (INNER_RIGHT_V4, 1_398, 14 + 54 + 52),
    ] {
        let echo = Echo::start(&pair.right, address, 4_000_000);
        let held = maximum(&mut driver, &echo);
        assert_eq!(held, wire * payload / (payload + headers), "to {address}");
    }
    driver.backend.shut_down().expect("shut down");
}

/// HTB counts what it lets through, many segments at a time: packets of 1,450 bytes and 14.
#[test]
fn a_class_has_the_rate_of_frames_that_their_tunnel_makes_larger() {
    let _alone = alone();
    let pair = tunnelled_pair();
    let paced = BackendConfig {
        device: Some("vx0".to_owned()),
        ..config(&pair)
    };
    let mut driver = Driver::with(BackendKind::TcHtb, &pair, &paced);
    let receiver = BulkReceiver::start(&pair.right, INNER_RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.set(conn, RATE_MBIT, FOREVER_NS);
    let classes = pair.left.run("tc class show dev vx0");
    // 40 Mbit/s in outer frames of 1,514 bytes are 38.679 in inner ones of 1,464.
    assert!(classes.contains(" rate 3867"), "{classes}");
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

/// UDP counts each frame of VXLAN on arrival: here they carry acknowledgements.
#[test]
fn datagrams_that_carry_a_tunnel_are_counted_beside_those_of_sockets() {
    let pair = tunnelled_pair();
    pair.left.enter();
    let mut reader = UdpReader::open().expect("a netlink socket");
    let mut read = || reader.read(0).expect("counters");
    let before = read();
    let receiver = BulkReceiver::start(&pair.right, INNER_RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    sleep(Duration::from_millis(500));
    sender.stop();
    receiver.finish();
    let between = read();
    let tunnelled = between.tunnelled - before.tunnelled;
    assert!(tunnelled > 100, "{tunnelled} packets came through");
    // Between the two counters' readings a packet of IPv6's own may come.
    let beside = |counters: UdpCounters| counters.received as i64 - counters.tunnelled as i64;
    let others = beside(between) - beside(before);
    assert!(others.abs() <= 5, "{others} of {tunnelled}");
    let socket = UdpSocket::bind((LEFT_V4, 0)).expect("a free port");
    let to = socket.local_addr().expect("bound");
    for _ in 0..100 {
        socket.send_to(&[0; 100], to).expect("sent");
        socket.recv(&mut [0; 100]).expect("it is there");
    }
    let others = beside(read()) - beside(between);
    assert!((others - 100).abs() <= 5, "{others} of 100");
}

#[test]
fn sock_ops_counts_the_frames_that_leave_the_host() {
    frames_are_counted_as_they_leave(BackendKind::SockOps, "v0");
}

#[test]
fn tc_htb_counts_the_frames_that_leave_the_host() {
    frames_are_counted_as_they_leave(BackendKind::TcHtb, "vx0");
}

/// Has these devices of the sending end take frames one at a time: counters and queues take a burst
/// for one frame otherwise.
pub fn send_single_frames(pair: &NamespacePair, devices: &[&str]) {
    for device in devices {
        pair.left
            .run(&format!("ip link set {device} gso_max_segs 1"));
    }
}

/// Use and rate agree with the bytes that the lower device counts, one frame at a time.
fn frames_are_counted_as_they_leave(kind: BackendKind, device: &str) {
    let _alone = alone();
    let pair = tunnelled_pair();
    send_single_frames(&pair, &["v0", "vx0"]);
    let paced = BackendConfig {
        device: Some(device.to_owned()),
        ..config(&pair)
    };
    let mut driver = Driver::with(kind, &pair, &paced);
    let mut below = InterfaceReader::open("v0").expect("the veth");
    let receiver = BulkReceiver::start(&pair.right, INNER_RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.set(conn, RATE_MBIT, FOREVER_NS);
    driver.run_for(Duration::from_millis(300));
    let mut look = |driver: &mut Driver| {
        let used = driver.usage_of(conn).expect("a running flowlet").sent_bytes;
        (now_ns(), used, below.read().expect("counters").tx_bytes)
    };
    let before = look(&mut driver);
    driver.run_for(Duration::from_millis(1_500));
    let after = look(&mut driver);
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
    let (used, left) = ((after.1 - before.1) as f64, (after.2 - before.2) as f64);
    println!("{used} bytes of use, {left} bytes left the host");
    // Without the tunnel's 50 bytes it would be 3.3 % less.
    assert!((used / left - 1.0).abs() < 0.01, "{used} of {left}");
    let wire_mbit = left * 8e3 / (after.0 - before.0) as f64;
    println!("{wire_mbit:.2} Mbit/s of {RATE_MBIT}");
    assert!(wire_mbit < 1.02 * RATE_MBIT as f64, "{wire_mbit} Mbit/s");
}
