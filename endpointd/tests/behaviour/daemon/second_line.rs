//! Daemons without an allocator: receivers' shares over real sockets between real daemons.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use ratewright_endpointd::backend::FlowEventKind;
use ratewright_endpointd::clock;
use ratewright_endpointd::second_line::message::PeerMessage;
use ratewright_io::tls::client_from_files;
use ratewright_proto::control::AccessCapacity;

use super::allocator::{LEASE_NS, ScriptedAllocator, hosts};
use super::recorder::{BackendScript, recorder};
use super::{Running, config_of, conn, facts, on_one_thread, until};
use crate::site::TestAuthority;

/// Bit rate handed out of a downlink of 64 Mbit/s.
const HANDED_OUT_BPS: u64 = 63_000_000;
const RECEIVER: &str = "127.8.3.1";

struct Host {
    running: Running,
    backend: BackendScript,
}

/// Gives an allocator the three hosts and their links.
fn tell(allocator: &ScriptedAllocator) {
    let mut script = allocator.script.borrow_mut();
    script.topology = hosts(
        &[
            (1, "h1", "127.8.1.1/32"),
            (2, "h2", "127.8.2.1/32"),
            (3, "h3", "127.8.3.1/32"),
        ],
        1,
    );
    script.access = AccessCapacity::new(64_000_000_000, 64_000_000);
}

struct Trio {
    folder: tempfile::TempDir,
    allocator: ScriptedAllocator,
    hosts: Vec<Host>,
    port: u16,
}

impl Trio {
    /// Starts three daemons, at 127.8.1.1 to 127.8.3.1, and an allocator that all of them know.
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        authority.write(&folder.path().join("ca.pem"));
        authority.issue(folder.path(), "allocator", "ratewright-allocator");
        let allocator = ScriptedAllocator::start(folder.path(), 1, None);
        tell(&allocator);
        let port = UdpSocket::bind((RECEIVER, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut started = Vec::new();
        for host in 1..=3 {
            let name = format!("h{host}");
            authority.issue(folder.path(), &name, &name);
            // Without measurements the set is what senders announce: no data flows in these tests.
            let keys = format!(
                "[telemetry]\nperiod_ms = 0\n[second_line]\nenabled = true\nport = {port}\nbind = \"127.8.{host}.1\"\n"
            );
            let config = config_of(&name, folder.path(), &[allocator.address], &keys);
            let (recorder, backend) = recorder();
            let running = Running::start(config, recorder);
            started.push(Host { running, backend });
        }
        let trio = Self {
            folder,
            allocator,
            hosts: started,
            port,
        };
        let script = trio.allocator.script.clone();
        until("all have a session", || script.borrow().sessions == 3).await;
        trio
    }

    /// Begins a flow of host `from` (0 or 1) to the receiver.
    fn begin(&self, from: usize) {
        let kind = FlowEventKind::Start(facts(RECEIVER, 5_000));
        self.hosts[from].backend.event(conn(0), kind);
    }

    async fn until_rate(&self, from: usize, rate_bps: u64) {
        let backend = self.hosts[from].backend.clone();
        let what = format!("host {from} has {rate_bps} bit/s");
        until(&what, || backend.rate_of(0) == Some(rate_bps)).await;
    }

    /// Waits until the daemons of both senders are connected with the receiver's.
    async fn until_connected(&self, peers: u64) {
        for _ in 0..5_000 {
            let status = self.hosts[2].running.status().await;
            if status.second_line.peers.connected >= peers {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("the daemons do not connect");
    }
}

#[test]
fn without_an_allocator_senders_divide_the_receivers_link_until_it_is_back() {
    on_one_thread(async {
        let trio = Trio::start().await;
        trio.begin(0);
        trio.begin(1);
        for from in 0..2 {
            trio.until_rate(from, 100_000_000).await;
        }
        trio.until_connected(2).await;
        // While the allocator lives, nobody announces anything.
        let status = trio.hosts[2].running.status().await;
        assert_eq!(status.second_line.announced_senders, 0);

        let folder = trio.folder.path().to_owned();
        let Trio {
            allocator,
            hosts,
            folder: _keeps,
            ..
        } = trio;
        let address = allocator.vanish();
        let trio = |from: usize| hosts[from].backend.clone();
        for from in 0..2 {
            let backend = trio(from);
            until("it has half of the link", || {
                backend.rate_of(0) == Some(HANDED_OUT_BPS / 2)
            })
            .await;
            // Like the allocator's, the rate ends with its lease.
            let (_, expires_ns) = backend.calls.borrow().paced[&0];
            assert!(expires_ns <= clock::now_ns() + LEASE_NS);
        }
        hosts[1].backend.event(conn(0), FlowEventKind::Close);
        let backend = trio(0);
        until("it has all of it", || {
            backend.rate_of(0) == Some(HANDED_OUT_BPS)
        })
        .await;
        let status = hosts[0].running.status().await;
        assert!(status.second_line.engaged && status.second_line.shares == 1);

        let allocator = ScriptedAllocator::restart(&folder, 2, address).await;
        tell(&allocator);
        until("the allocator's rate is back", || {
            backend.rate_of(0) == Some(100_000_000)
        })
        .await;
        assert!(!hosts[0].running.status().await.second_line.engaged);
        for host in hosts {
            host.running.stop().await.expect("stopped");
        }
        drop(allocator);
    });
}

#[test]
fn a_lost_receiver_leaves_plain_tcp_and_the_kill_switch_keeps_it() {
    on_one_thread(async {
        let mut trio = Trio::start().await;
        trio.begin(0);
        trio.until_rate(0, 100_000_000).await;
        trio.until_connected(1).await;
        trio.allocator.vanish();
        let backend = trio.hosts[0].backend.clone();
        until("it has the link", || {
            backend.rate_of(0) == Some(HANDED_OUT_BPS)
        })
        .await;
        let receiver = trio.hosts.remove(2);
        receiver.running.stop().await.expect("stopped");
        tokio::time::sleep(Duration::from_nanos(LEASE_NS + LEASE_NS / 4)).await;
        let (_, expires_ns) = backend.calls.borrow().paced[&0];
        assert!(expires_ns <= clock::now_ns(), "no share extends the rate");
        assert_eq!(trio.hosts[0].running.status().await.paced_flows, 0);
        for host in trio.hosts {
            host.running.stop().await.expect("stopped");
        }

        // A released host stays plain TCP when its allocator is lost.
        let trio = Trio::start().await;
        trio.begin(0);
        trio.until_connected(1).await;
        trio.allocator.script.borrow_mut().released = true;
        let script = trio.allocator.script.clone();
        until("all are released", || {
            script.borrow().release_acks.len() == 3
        })
        .await;
        trio.allocator.vanish();
        tokio::time::sleep(Duration::from_nanos(3 * LEASE_NS)).await;
        let backend = trio.hosts[0].backend.clone();
        assert_eq!(backend.rate_of(0), None);
        assert!(!trio.hosts[0].running.status().await.second_line.engaged);
        for host in trio.hosts {
            host.running.stop().await.expect("stopped");
        }
    });
}

/// Connects to the receiver's daemon with a certificate of `folder`, and sends a demand.
async fn demand_as(folder: &Path, name: &str, to: SocketAddr) {
    let file = |end: &str| folder.join(format!("{name}.{end}"));
    let tls = client_from_files(
        &folder.join("ca.pem"),
        &file("pem"),
        &file("key"),
        b"ratewright-peer/1",
    )
    .unwrap();
    let crypto = QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client("127.8.9.1:0".parse().unwrap()).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let Ok(connection) = endpoint.connect_with(config, to, "h3").unwrap().await else {
        return;
    };
    let demand = PeerMessage::Demand { seq: 1, flows: 1 };
    // A stranger's connection is closed by then, or about to be.
    let _ = connection.send_datagram(demand.encode().into());
    let _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
}

#[test]
fn nobody_but_a_host_of_the_topology_changes_anything() {
    on_one_thread(async {
        let trio = Trio::start().await;
        let to: SocketAddr = (RECEIVER.parse::<std::net::IpAddr>().unwrap(), trio.port).into();
        // A certificate of another authority, with the name of a host; its own authority vouches
        // for nobody here, so it takes the receiver's without looking.
        let foreign = tempfile::tempdir().unwrap();
        let other = TestAuthority::new();
        std::fs::copy(
            trio.folder.path().join("ca.pem"),
            foreign.path().join("ca.pem"),
        )
        .unwrap();
        other.issue(foreign.path(), "h2", "h2");
        demand_as(foreign.path(), "h2", to).await;
        // The right authority, but no host of the topology.
        let folder = trio.folder.path();
        std::fs::copy(folder.join("allocator.pem"), folder.join("stranger.pem")).unwrap();
        std::fs::copy(folder.join("allocator.key"), folder.join("stranger.key")).unwrap();
        demand_as(folder, "stranger", to).await;
        // No QUIC at all.
        let raw = UdpSocket::bind("127.8.9.1:0").unwrap();
        for datagram in [
            PeerMessage::Demand { seq: 1, flows: 1 }.encode(),
            vec![0; 1_200],
        ] {
            raw.send_to(&datagram, to).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let status = trio.hosts[2].running.status().await.second_line.clone();
        assert_eq!((status.announced_senders, status.peers.received), (0, 0));
        assert!(status.peers.refused >= 1, "{status:?}");

        // A host of the topology is heard, and only as itself.
        demand_as(folder, "h2", to).await;
        let status = trio.hosts[2].running.status().await.second_line.clone();
        assert_eq!(status.peers.received, 1, "{status:?}");
        for host in trio.hosts {
            host.running.stop().await.expect("stopped");
        }
    });
}
