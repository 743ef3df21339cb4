//! The real binary under floods of unfinished handshakes and idle connections. They are bounded,
//! do not disturb established sessions, and keep no fresh host from its session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::service_support::host::{TestHost, client_config};
use crate::service_support::process::TestSite;
use crate::service_support::{PATIENCE, pause, timed, wait_for};

/// Additional time that a fresh host may take for its session under a flood.
const BOUND: Duration = Duration::from_secs(1);
/// Handshakes that begin together: few enough for the buffer of any socket.
const BATCH: usize = 8;

/// Clients that begin handshakes and never finish them. The server's datagrams are lost, but for
/// its Retry packets, which reach the clients unless their addresses are spoofed.
struct Flood {
    more: Option<UnboundedSender<usize>>,
    demands: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(server: SocketAddr, config: quinn::ClientConfig, spoofed: bool) -> Self {
        let (more, begin) = unbounded_channel();
        let demands = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&demands);
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(pour(server, config, begin, &counted, spoofed));
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

async fn pour(
    allocator: SocketAddr,
    config: quinn::ClientConfig,
    mut begin: UnboundedReceiver<usize>,
    demands: &AtomicUsize,
    spoofed: bool,
) {
    let any = SocketAddr::new(allocator.ip(), 0);
    // A proxy between clients and server, which decides on each datagram.
    let (near, far) = (
        UdpSocket::bind(any).await.expect("a socket"),
        UdpSocket::bind(any).await.expect("a socket"),
    );
    far.connect(allocator).await.expect("an address");
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
                // What the socket does not take is sent again.
                let _ = far.send(&up[..received.expect("a datagram")]).await;
            }
            received = far.recv(&mut down) => {
                let datagram = &down[..received.expect("a datagram")];
                // A Retry of QUIC version 1: long header, type 3 (RFC 9000 §17.2.5).
                if datagram[0] & 0xf0 == 0xf0 {
                    demands.fetch_add(1, Ordering::Relaxed);
                    if !spoofed {
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
                let _ = far.send(&up[..received.expect("a datagram")]).await;
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
    let flood = Flood::start(allocator.listen, stranger(&site), false);
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

#[test]
fn a_fresh_host_has_its_session_while_a_hundred_handshakes_a_second_stall() {
    let site = TestSite::new();
    let allocator = site.start();
    // The bound is relative to this machine's speed, measured just before.
    let quiet = fresh(&site, allocator.listen, "h1");
    let flood = Flood::start(allocator.listen, stranger(&site), false);
    steadily(&flood, 100, || {
        wait_for("the flood is well under way", PATIENCE, || {
            flood.demands() >= 150
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
    let flood = Flood::start(relay.listen, stranger(&site), true);
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
