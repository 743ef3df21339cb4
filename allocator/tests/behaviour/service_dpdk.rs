//! The real binary with an interface that DPDK drives, on a veth pair in a network namespace of the
//! test's own: `port0` is DPDK's, `host0` the kernel's. Hosts and the QUIC service are on `host0`'s
//! address; sealed datagrams go over the pair, to an address that only DPDK answers for. Needs
//! root.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use ratewright_proto::FlowId;
use ratewright_proto::client::ClientConfig;
use ratewright_proto::path::DatagramPath;

use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, wait_for};

const KERNEL: &str = "10.9.0.2";
const DPDK: &str = "10.9.0.1";

fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// Moves the test's thread, and all processes that it starts later, into a namespace with the pair.
fn veth() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .expect("root: the test makes a network namespace");
    ip(
        "link add port0 numrxqueues 1 numtxqueues 1 type veth peer name host0 numrxqueues 1 numtxqueues 1",
    );
    ip("link set lo up");
    ip("link set port0 up");
    ip("link set host0 up");
    ip(&format!("addr add {KERNEL}/24 dev host0"));
}

fn site(device: &str, shards: u32, more: &str) -> TestSite {
    veth();
    let site = TestSite::new();
    let transport = format!(
        "[transport]\nhot = \"dpdk\"\nshards = {shards}\n[transport.dpdk]\neal = [\"--no-huge\", \"-m\", \"128\", \
         \"--no-shconf\", \"--no-pci\", \"--no-telemetry\", \"--log-level=4\", \"--lcores=0\", \"--vdev={device}\"]\n\
         interface = \"{DPDK}/24\"\n{more}"
    );
    site.write(
        "allocator.toml",
        &site.config(&format!("{KERNEL}:0"), &transport),
    );
    site
}

fn sealed_host(site: &TestSite, allocator: &AllocatorProcess, name: &str) -> TestHost {
    let config = ClientConfig {
        host_name: name.to_owned(),
        incarnation: 1,
        sealed_udp: true,
        ..ClientConfig::default()
    };
    let identity = site.authority.sign(&[name]);
    let host =
        TestHost::connect_as(&site.authority, &identity, allocator.listen, config).established();
    wait_for("the sealed path comes up", PATIENCE, || is_sealed(&host));
    host
}

fn offer(host: &TestHost) -> (u32, SocketAddr) {
    let view = host.view();
    let welcome = view.welcome.as_ref().expect("established");
    let offer = welcome
        .sealed_udp
        .expect("the allocator takes sealed datagrams");
    let address = offer.address.expect("an address of its own");
    (welcome.session, SocketAddr::new(address.into(), offer.port))
}

fn is_sealed(host: &TestHost) -> bool {
    let (session, _) = offer(host);
    let mut view = host.view();
    view.port.as_mut().expect("the host can seal").path(session) == DatagramPath::Sealed
}

fn sealed(allocator: &AllocatorProcess, kind: &str) -> f64 {
    allocator.metric(&format!(
        "ratewright_allocator_sealed_total{{kind=\"{kind}\"}}"
    ))
}

fn dpdk(allocator: &AllocatorProcess, kind: &str) -> f64 {
    allocator.metric(&format!(
        "ratewright_allocator_dpdk_total{{kind=\"{kind}\"}}"
    ))
}

fn serves_hosts(device: &str, shards: u32) {
    let site = site(device, shards, "");
    let allocator = site.start();
    let one = sealed_host(&site, &allocator, "h1");
    let other = sealed_host(&site, &allocator, "h2");
    let (_, to) = offer(&one);
    assert_eq!(to.ip().to_string(), DPDK);

    // Rates of a shared link, over DPDK in both directions.
    let half = 4_850_000_000..=5_000_000_000;
    let flow = FlowId::new(0, 1);
    one.start(0, "h16");
    other.start(0, "h16");
    one.wait_rate(flow, half.clone());
    other.wait_rate(flow, half);
    let opened = |host: &TestHost| host.view().port.as_ref().expect("sealed").counters().opened;
    assert!(opened(&one) > 1 && opened(&other) > 1, "rates came sealed");
    assert!(is_sealed(&one) && is_sealed(&other));
    // Datagrams go on arriving between two readings: the part is read first, the whole after it.
    let unsealed = sealed(&allocator, "opened");
    assert!(unsealed > 2.0);
    assert!(dpdk(&allocator, "datagrams_in") >= unsealed);

    // The kernel learned the station by ARP, from DPDK's port.
    assert!(dpdk(&allocator, "arp_replies") >= 1.0);
    let link = ip("-o link show port0");
    let mac = link
        .split("link/ether ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let neighbour = ip(&format!("neigh show {DPDK} dev host0"));
    assert!(neighbour.contains(mac.expect("a MAC")), "{neighbour}");

    // Ping goes on being answered while sessions are served. `ping` may be absent.
    if let Ok(ping) = Command::new("ping")
        .args(["-c", "3", "-i", "0.2", "-W", "5", "-q", DPDK])
        .output()
    {
        assert!(ping.status.success(), "{ping:?}");
        wait_for("pings are counted", PATIENCE, || {
            dpdk(&allocator, "echo_replies") >= 3.0
        });
    }

    // An end frees the link for the other.
    other.end(flow);
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    strangers_move_a_counter(&allocator, &one, device);
    assert!(is_sealed(&one) && one.is_up() && other.is_up());
    assert_eq!(allocator.status()["flows"], 1);
    assert!(one.rate(flow).is_some());
}

fn strangers_move_a_counter(allocator: &AllocatorProcess, host: &TestHost, device: &str) {
    let (session, to) = offer(host);
    let stranger = UdpSocket::bind((KERNEL, 0)).expect("a socket");
    let mut forged = vec![0; 100];
    forged[0] = 0xd1;
    forged[4..8].copy_from_slice(&session.to_le_bytes());
    forged[8..12].copy_from_slice(&0x00ff_ffff_u32.to_le_bytes());
    let mut unknown = forged.clone();
    unknown[4..8].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
    for (kind, bytes) in [
        ("forged", forged.clone()),
        ("unknown_session", unknown),
        ("truncated", forged[..20].to_vec()),
        ("oversized", [&forged[..], &[0; 1_372]].concat()),
        ("malformed", vec![0; 100]),
    ] {
        let before = sealed(allocator, kind);
        stranger.send_to(&bytes, to).expect("sent");
        wait_for(kind, PATIENCE, || sealed(allocator, kind) == before + 1.0);
    }
    // Below the seal: a datagram for an unserved UDP port, and a fragmented one. (With
    // net_af_packet the kernel reassembles fragments, and drops datagrams that are longer than a
    // frame then.)
    let mut below = vec![("not_ours", vec![0; 100], to.port() + 100)];
    if device.starts_with("net_af_xdp") {
        below.push(("fragments", vec![0; 3_000], to.port()));
    }
    for (kind, bytes, port) in below {
        let before = dpdk(allocator, kind);
        stranger
            .send_to(&bytes, SocketAddr::new(to.ip(), port))
            .expect("sent");
        wait_for(kind, PATIENCE, || dpdk(allocator, kind) > before);
    }
}

#[test]
fn hosts_are_served_over_af_packet() {
    serves_hosts("net_af_packet0,iface=port0,qdisc_bypass=1", 1);
}

#[test]
fn hosts_are_served_over_af_xdp() {
    serves_hosts("net_af_xdp0,iface=port0", 1);
}

#[test]
fn hosts_are_served_by_two_shards_on_two_queues() {
    serves_hosts("net_af_packet0,iface=port0,qpairs=2,qdisc_bypass=1", 2);
}

#[test]
fn an_interface_that_cannot_be_used_is_refused_in_one_line() {
    for (shards, device, more, expected) in [
        (
            1,
            "net_af_packet0,iface=port0",
            "mac = \"02:00:00:00:00:99\"\n",
            "transport.dpdk.mac: port 0 (net_af_packet) is ",
        ),
        (
            3,
            "net_af_packet0,iface=port0",
            "",
            "port 0 (net_af_packet) has 1 queue pair(s), 3 were asked for",
        ),
        (
            1,
            "net_af_packet0,iface=port0",
            "port = 4\n",
            "DPDK has 1 port(s), port 4 was asked for",
        ),
        (
            1,
            "net_af_packet0,iface=nowhere0",
            "",
            "[transport.dpdk] cannot be used: DPDK",
        ),
    ] {
        let site = site(device, shards, more);
        let (good, _, error) = site.run(&["--config", "allocator.toml", "run"]);
        assert!(!good);
        let last = error.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("ratewright-allocator: ") && last.contains(expected),
            "{error}"
        );
    }
}
