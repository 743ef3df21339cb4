//! The real binary under a flood of handshakes that nobody finishes: it is bounded, and does not touch the
//! sessions that stand.

mod service_support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use service_support::host::{Host, client_config};
use service_support::process::Site;
use service_support::{PATIENCE, wait_for};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Handshakes from which on an address has to be shown (docs/security.md).
const UNVALIDATED: usize = 256;
/// Connections beyond the limit of sessions from which on others are refused (docs/security.md).
const SLACK: usize = 1_024;
const MAX_SESSIONS: usize = 2;
/// Handshakes that begin at once: few enough for the buffer of any socket.
const BATCH: usize = 8;

/// Clients that begin handshakes and hear nothing of them: what the allocator answers is lost, but for its
/// demands to show one's address, which are met.
struct Flood {
    more: Option<UnboundedSender<usize>>,
    demands: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(allocator: SocketAddr, config: quinn::ClientConfig) -> Self {
        let (more, begin) = unbounded_channel();
        let demands = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&demands);
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(pour(allocator, config, begin, &counted));
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

/// The clients give up, and tell the allocator.
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
) {
    let any = SocketAddr::new(allocator.ip(), 0);
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
        // What was sent is passed on before more is: what a socket has no room for would only be sent anew seconds later.
        tokio::select! {
            biased;
            received = near.recv(&mut up) => {
                // What the socket does not take is sent anew.
                let _ = far.send(&up[..received.expect("a datagram")]).await;
            }
            received = far.recv(&mut down) => {
                let datagram = &down[..received.expect("a datagram")];
                // A Retry of QUIC version 1: long header, type 3 (RFC 9000 §17.2.5).
                if datagram[0] & 0xf0 == 0xf0 {
                    demands.fetch_add(1, Ordering::Relaxed);
                    let _ = near.send_to(datagram, clients).await;
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

#[test]
fn handshakes_that_nobody_finishes_are_bounded_and_touch_no_session() {
    let site = Site::new();
    let limits = format!("[limits]\nmax_sessions = {MAX_SESSIONS}\n");
    site.write("allocator.toml", &site.config("127.0.0.1:0", &limits));
    let allocator = site.start();
    let host = Host::connect(&site.authority, allocator.listen, "h1").established();

    let identity = site.authority.sign(&["h2"]);
    let quic = client_config(&site.authority, &identity, ratewright_proto::ALPN);
    let flood = Flood::start(allocator.listen, quic);
    let few = UNVALIDATED - 56;
    flood.begin(few);
    host.wait_rate(host.start(0, "h16"), 9_700_000_000..=10_000_000_000);
    assert_eq!(flood.demands(), 0, "so few may begin as they are");

    let rest = SLACK + 100;
    flood.begin(rest);
    // As many as fit; those that come when nothing fits any more are not asked.
    wait_for("the others have to show their address", PATIENCE, || {
        flood.demands() >= SLACK - UNVALIDATED
    });
    let refused = "ratewright_allocator_connections_rejected_total{reason=\"overload\"}";
    wait_for("those beyond the limit are refused", PATIENCE, || {
        allocator.metric(refused) > 0.0
    });
    host.wait_rate(host.start(1, "h15"), 4_850_000_000..=5_000_000_000);
    assert!(host.is_up());

    drop(flood);
    Host::connect(&site.authority, allocator.listen, "h2").established();
}
