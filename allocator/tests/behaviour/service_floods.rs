//! The real binary under floods of unfinished handshakes and idle connections. They are bounded,
//! do not disturb established sessions, and keep no fresh host from its session.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::service_support::host::{TestHost, client_config};
use crate::service_support::process::TestSite;
use crate::service_support::{PATIENCE, pause, timed, wait_for};

/// Additional time that a fresh host may take for its session under a flood.
const BOUND: Duration = Duration::from_secs(1);
/// Handshakes that begin together: few enough for the buffer of any socket.
const BATCH: usize = 8;

/// Addresses that a flood comes from.
#[derive(Debug, Clone, Copy)]
enum Sources {
    /// The host's own.
    One,
    /// The host's own, spoofed: the clients hear nothing.
    Spoofed,
    /// An address in each of so many networks of /24, 256 of which make a /16.
    Networks(u16),
}

impl Sources {
    /// Returns the address of the connection that a client's datagram belongs to.
    fn address(self, datagram: &[u8]) -> Ipv4Addr {
        let Self::Networks(count) = self else {
            return Ipv4Addr::LOCALHOST;
        };
        // A long header (RFC 9000 §17.2): the client's own connection ID, which is random, stands
        // behind that of the server. No handshake gets as far as a short one.
        let own = 7 + usize::from(datagram[5]);
        let [high, low] =
            (u16::from_be_bytes([datagram[own], datagram[own + 1]]) % count).to_be_bytes();
        Ipv4Addr::new(127, 1 + high, low, 1)
    }
}

/// Clients that begin handshakes and never finish them. The server's datagrams are lost, but for
/// its Retry packets, which reach the clients unless their addresses are spoofed.
struct Flood {
    more: Option<UnboundedSender<usize>>,
    demands: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(server: SocketAddr, config: quinn::ClientConfig, sources: Sources) -> Self {
        let (more, begin) = unbounded_channel();
        let demands = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&demands);
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(pour(server, config, begin, &counted, sources));
        });
        Self {
            more: Some(more),
            demands,
            thread: Some(thread),
        }
    }

    fn begin(&self, handshakes: usize) {
        let more = self.more.as_ref().expect("not over");
        more.send(handshakes).expect("the thread runs");
    }

    fn demands(&self) -> usize {
        self.demands.load(Ordering::Relaxed)
    }
}

/// Drop lets the clients close their attempts towards the allocator.
impl Drop for Flood {
    fn drop(&mut self) {
        self.more = None;
        let ended = self.thread.take().expect("once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// Sends a client's datagram to the server, from its connection's address.
async fn pass_on(far: &UdpSocket, server: SocketAddrV4, sources: Sources, datagram: &[u8]) {
    let from = u32::from(sources.address(datagram)).to_be();
    let info = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: from },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let (parts, from) = (
        [IoSlice::new(datagram)],
        [ControlMessage::Ipv4PacketInfo(&info)],
    );
    let to = SockaddrIn::from(server);
    let send = || {
        let sent = sendmsg(far.as_raw_fd(), &parts, &from, MsgFlags::empty(), Some(&to));
        sent.map_err(io::Error::from)
    };
    // What the socket does not take is sent again.
    let _ = far.async_io(Interest::WRITABLE, send).await;
}

async fn pour(
    allocator: SocketAddr,
    config: quinn::ClientConfig,
    mut begin: UnboundedReceiver<usize>,
    demands: &AtomicUsize,
    sources: Sources,
) {
    let any = SocketAddr::new(allocator.ip(), 0);
    let SocketAddr::V4(server) = allocator else {
        panic!("{allocator} is none of IPv4's");
    };
    // A proxy between clients and server, which decides on each datagram.
    let (near, far) = (
        UdpSocket::bind(any).await.expect("a socket"),
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .await
            .expect("a socket"),
    );
    let through = near.local_addr().expect("bound");
    let client = quinn::Endpoint::client(any).expect("a socket");
    let clients = client.local_addr().expect("bound");
    let mut connecting = Vec::new();
    let mut to_begin = 0;
    let (mut up, mut down) = ([0; 2_048], [0; 2_048]);
    loop {
        // What was sent is passed on before more is: a packet that a full socket drops would only
        // be sent again seconds later.
        tokio::select! {
            biased;
            received = near.recv(&mut up) => {
                pass_on(&far, server, sources, &up[..received.expect("a datagram")]).await;
            }
            received = far.recv(&mut down) => {
                let datagram = &down[..received.expect("a datagram")];
                // A Retry of QUIC version 1: long header, type 3 (RFC 9000 §17.2.5).
                if datagram[0] & 0xf0 == 0xf0 {
                    demands.fetch_add(1, Ordering::Relaxed);
                    if !matches!(sources, Sources::Spoofed) {
                        let _ = near.send_to(datagram, clients).await;
                    }
                }
            }
            more = begin.recv() => match more {
                Some(more) => to_begin += more,
                None => break,
            },
            () = tokio::task::yield_now(), if to_begin > 0 => {
                let batch = to_begin.min(BATCH);
                to_begin -= batch;
                for _ in 0..batch {
                    let attempt = client.connect_with(config.clone(), through, "ratewright-allocator");
                    connecting.push(attempt.expect("a good address"));
                }
            }
        }
    }
    // Dropped attempts send their close, which the loop below still forwards.
    drop(connecting);
    let mut idle = std::pin::pin!(client.wait_idle());
    loop {
        tokio::select! {
            () = &mut idle => return,
            received = near.recv(&mut up) => {
                pass_on(&far, server, sources, &up[..received.expect("a datagram")]).await;
            }
        }
    }
}

/// Measures the time from a host's connect to its session.
fn fresh(site: &TestSite, server: SocketAddr, name: &str) -> Duration {
    let (took, host) = timed(|| TestHost::connect(&site.authority, server, name).established());
    drop(host);
    took
}

/// Begins `per_s` stalled handshakes a second while `act` runs.
fn steadily(flood: &Flood, per_s: u32, act: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                flood.begin(1);
                pause(Duration::from_secs(1) / per_s);
            }
        });
        // Also where it panics: the scope waits for its threads.
        let _ended = SetOnDrop(&over);
        act();
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connections that finish their handshakes with one certificate and then send nothing.
struct SilentConnections {
    end: Option<UnboundedSender<usize>>,
    standing: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl SilentConnections {
    fn start(site: &TestSite, server: SocketAddr, name: &str, count: usize) -> Self {
        let identity = site.authority.sign(&[name]);
        let config = client_config(&site.authority, &identity, ratewright_proto::ALPN);
        let standing = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&standing);
        let (end, mut ended) = unbounded_channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let any = SocketAddr::new(server.ip(), 0);
                let client = quinn::Endpoint::client(any).expect("a socket");
                for _ in 0..count {
                    let (client, config) = (client.clone(), config.clone());
                    let standing = Arc::clone(&counted);
                    tokio::spawn(async move {
                        // As soon as one is closed, another takes its place.
                        loop {
                            let attempt = client
                                .connect_with(config.clone(), server, "ratewright-allocator")
                                .expect("a good address");
                            if let Ok(connection) = attempt.await {
                                standing.fetch_add(1, Ordering::Relaxed);
                                connection.closed().await;
                                standing.fetch_sub(1, Ordering::Relaxed);
                            }
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    });
                }
                let _: Option<usize> = ended.recv().await;
            });
        });
        Self {
            end: Some(end),
            standing,
            thread: Some(thread),
        }
    }

    fn standing(&self) -> usize {
        self.standing.load(Ordering::Relaxed)
    }
}

impl Drop for SilentConnections {
    fn drop(&mut self) {
        self.end = None;
        let ended = self.thread.take().expect("once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn stranger(site: &TestSite) -> quinn::ClientConfig {
    // Its certificate is never shown: the handshake does not get as far.
    let identity = site.authority.sign(&["h2"]);
    client_config(&site.authority, &identity, ratewright_proto::ALPN)
}

#[test]
fn handshakes_that_nobody_finishes_are_bounded_and_touch_no_session() {
    let site = TestSite::new();
    let allocator = site.start();
    let host = TestHost::connect(&site.authority, allocator.listen, "h1").established();
    let flood = Flood::start(allocator.listen, stranger(&site), Sources::One);
    // Far beyond the handshakes that may be under way at once.
    flood.begin(2_000);
    host.wait_rate(host.start(0, "h16"), 9_700_000_000..=10_000_000_000);
    wait_for("all have to show their address", PATIENCE, || {
        flood.demands() >= 2_000
    });
    let stalled = "ratewright_allocator_connections_rejected_total{reason=\"stalled\"}";
    wait_for("those that stall are ended", PATIENCE, || {
        allocator.metric(stalled) > 0.0
    });
    // Two flows of one host share its link, less derating and drift within the threshold.
    host.wait_rate(host.start(1, "h15"), 4_850_000_000..=5_000_000_000);
    assert!(host.is_up());
    drop(flood);
    TestHost::connect(&site.authority, allocator.listen, "h2").established();
}

/// Asserts that fresh hosts have their sessions while handshakes stall at `per_s`. Each name is
/// given what one took just before, on the same machine.
fn fresh_hosts_get_through(sources: Sources, per_s: u32, under_way: usize) {
    let site = TestSite::new();
    let allocator = site.start();
    let quiet = fresh(&site, allocator.listen, "h1");
    let flood = Flood::start(allocator.listen, stranger(&site), sources);
    steadily(&flood, per_s, || {
        wait_for("the flood is well under way", PATIENCE, || {
            flood.demands() >= under_way
        });
        for name in ["h1", "h2", "h3", "h4", "h5"] {
            let took = fresh(&site, allocator.listen, name);
            assert!(
                took <= BOUND + 4 * quiet,
                "{name}: {took:?}, {quiet:?} before"
            );
        }
    });
}

#[test]
fn a_fresh_host_has_its_session_while_a_hundred_handshakes_a_second_of_its_own_address_stall() {
    fresh_hosts_get_through(Sources::One, 100, 150);
}

/// More networks than handshakes may be under way, and more handshakes than there are turns:
/// nearly all networks have none under way, as the host has, and newer attempts than it.
#[test]
fn a_fresh_host_has_its_session_while_handshakes_of_two_thousand_networks_stall() {
    fresh_hosts_get_through(Sources::Networks(2_048), 300, 900);
}

#[test]
fn a_fresh_host_has_its_session_while_connections_of_one_certificate_are_silent() {
    let site = TestSite::new();
    let allocator = site.start();
    let quiet = fresh(&site, allocator.listen, "h1");
    // Beyond the connections without a session that one certificate may have.
    for count in [32, 64] {
        let silent = SilentConnections::start(&site, allocator.listen, "h2", count);
        wait_for("some of them stand", PATIENCE, || silent.standing() > 0);
        for name in ["h1", "h3", "h4", "h5", "h6"] {
            let took = fresh(&site, allocator.listen, name);
            assert!(
                took <= BOUND + 4 * quiet,
                "{name} beside {count}: {took:?}, {quiet:?} before"
            );
        }
        // Those that were ended have made room for others of the same certificate, and the host
        // itself gets through.
        let ended = "ratewright_allocator_connections_rejected_total{reason=\"crowded_out\"}";
        wait_for("no more than a few may stand", PATIENCE, || {
            allocator.metric(ended) >= (count - 4) as f64
        });
        let took = fresh(&site, allocator.listen, "h2");
        assert!(took <= BOUND + 4 * quiet, "h2 beside {count}: {took:?}");
    }
}

#[test]
fn spoofed_first_packets_take_no_place_at_a_relay() {
    let site = TestSite::new();
    let trust = "[trust.relays]\nrelay-1 = [\"*\"]\n";
    site.write("allocator.toml", &site.config("127.0.0.1:0", trust));
    let allocator = site.start();
    let relay = site.start_relay(&[allocator.listen], "[limits]\nmax_hosts = 2\n");
    let standing = TestHost::connect(&site.authority, relay.listen, "h1").established();
    let quiet = fresh(&site, relay.listen, "h2");
    // Spoofed: no Retry reaches a client, so no address is ever validated.
    let flood = Flood::start(relay.listen, stranger(&site), Sources::Spoofed);
    // More than a relay of this size ever had places for.
    flood.begin(1_000);
    wait_for("they have to show their address", PATIENCE, || {
        flood.demands() >= 1_000
    });
    steadily(&flood, 500, || {
        for name in ["h2", "h3", "h4"] {
            let took = fresh(&site, relay.listen, name);
            assert!(
                took <= BOUND + 4 * quiet,
                "{name}: {took:?}, {quiet:?} before"
            );
        }
    });
    assert!(standing.is_up());
}

#[test]
fn a_peer_that_has_not_introduced_itself_is_buffered_for_4_kib_and_no_more() {
    let site = TestSite::new();
    let allocator = site.start();
    let identity = site.authority.sign(&["h1"]);
    // The length of a frame that is one byte larger, as a varint.
    let host = TestHost::connect_raw(
        &site.authority,
        &identity,
        allocator.listen,
        vec![0x81, 0x20],
    );
    let reason = host.refusal().reason;
    assert!(
        reason.contains("4097") && reason.contains("4096"),
        "{reason}"
    );
}
