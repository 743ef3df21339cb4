//! Test hosts: the production client state machine over a real QUIC connection, on a thread of its
//! own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicClientConfig;
use ratewright_io::dscp::Dscp;
use ratewright_io::transport::{MAX_DATAGRAM_BYTES, SealedPort, SendOutcome};
use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::{FrameDecoder, Refusal, Welcome};
use ratewright_proto::path::PathConfig;
use ratewright_proto::telemetry::{AccessUse, Telemetry};
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::Notify;

use super::certificates::{Identity, TestAuthority};
use super::{PATIENCE, wait_for};

/// State of a host that its thread and the test share.
#[derive(Default)]
pub(crate) struct HostView {
    pub(crate) welcome: Option<Welcome>,
    pub(crate) rates: BTreeMap<FlowId, u64>,
    pub(crate) refused: Option<Refusal>,
    pub(crate) released: bool,
    pub(crate) topology_version: u32,
    /// Reason of the connection's end.
    pub(crate) ended: Option<String>,
    /// Set by the test to acknowledge no release.
    pub(crate) mute_release: bool,
    session: Option<ClientSession>,
    /// Raw datagrams to send.
    raw: Vec<Vec<u8>>,
    /// Raw bytes to write on the control stream.
    raw_control: Vec<u8>,
    stop: bool,
    /// Port of sealed datagrams, if its configuration enables them.
    pub(crate) port: Option<SealedPort>,
    /// Set by the test to lose the allocator's sealed datagrams.
    pub(crate) deaf: bool,
}

/// Flows of a host at one end, by number: destination, and rate in bit/s (0 for none).
pub(crate) type FlowStates = BTreeMap<u32, (u32, u64)>;

/// A host with its connection.
pub(crate) struct TestHost {
    view: Arc<Mutex<HostView>>,
    wake: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

#[allow(clippy::disallowed_methods, reason = "the test's one clock")]
pub(crate) fn now_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    1_000_000_000 + start.elapsed().as_nanos() as u64
}

/// Makes a client's QUIC configuration for a protocol (ALPN).
pub(crate) fn client_config(
    authority: &TestAuthority,
    identity: &Identity,
    protocol: &[u8],
) -> quinn::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("PEM");
    roots.add(ca).expect("an authority");
    let chain = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
    let tls = ratewright_io::tls::client(roots, vec![chain], key, protocol).expect("they fit");
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("QUIC")))
}

impl TestHost {
    /// Connects as `name`, with a certificate of that name.
    pub(crate) fn connect(authority: &TestAuthority, allocator: SocketAddr, name: &str) -> Self {
        let config = ClientConfig {
            host_name: name.to_owned(),
            incarnation: 1,
            ..ClientConfig::default()
        };
        Self::connect_as(authority, &authority.sign(&[name]), allocator, config)
    }

    /// Connects with a configuration and certificate of the test's choice; returns once the
    /// connection is up or has failed.
    pub(crate) fn connect_as(
        authority: &TestAuthority,
        identity: &Identity,
        allocator: SocketAddr,
        config: ClientConfig,
    ) -> Self {
        Self::open(authority, identity, allocator, config, None)
    }

    /// Connects with a first frame of the test's choice in place of a Hello.
    pub(crate) fn connect_raw(
        authority: &TestAuthority,
        identity: &Identity,
        allocator: SocketAddr,
        first_frame: Vec<u8>,
    ) -> Self {
        Self::open(
            authority,
            identity,
            allocator,
            ClientConfig::default(),
            Some(first_frame),
        )
    }

    fn open(
        authority: &TestAuthority,
        identity: &Identity,
        allocator: SocketAddr,
        config: ClientConfig,
        first_frame: Option<Vec<u8>>,
    ) -> Self {
        let quic = client_config(authority, identity, ratewright_proto::ALPN);
        let view = Arc::new(Mutex::new(HostView::default()));
        let wake = Arc::new(Notify::new());
        let (thread_view, thread_wake) = (Arc::clone(&view), Arc::clone(&wake));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let reason = drive(
                    &thread_view,
                    &thread_wake,
                    quic,
                    allocator,
                    config,
                    first_frame,
                )
                .await;
                thread_view.lock().expect("unpoisoned").ended = Some(reason);
            });
        });
        let host = Self {
            view,
            wake,
            thread: Some(thread),
        };
        // A failed handshake is a result too: tests of refusals expect it.
        wait_for("the connection is up or has failed", PATIENCE, || {
            let view = host.view();
            view.session.is_some() || view.ended.is_some()
        });
        host
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, HostView> {
        self.view.lock().expect("unpoisoned")
    }

    /// Waits until the host has a session.
    pub(crate) fn established(self) -> Self {
        wait_for("the host has a session", PATIENCE, || {
            self.view().welcome.is_some()
        });
        self
    }

    /// Waits for a refusal.
    pub(crate) fn refusal(&self) -> Refusal {
        wait_for("the host is refused", PATIENCE, || {
            self.view().refused.is_some()
        });
        self.view().refused.clone().expect("refused")
    }

    /// Starts a flow to the host of that name; its hash is its slot.
    pub(crate) fn start(&self, slot: u32, destination: &str) -> FlowId {
        let to = self.number_of(destination);
        let flow = FlowId::new(slot, 1);
        self.start_record(StartRecord::new(flow, to, FlowPath::Hash(slot)));
        flow
    }

    /// Returns the number of the host of that name.
    pub(crate) fn number_of(&self, name: &str) -> u32 {
        let view = self.view();
        let topology = &view.welcome.as_ref().expect("established").topology;
        let mut hosts = topology.hosts.iter();
        hosts.find(|host| host.name == name).expect("there").id
    }

    /// Tells the allocator of the host's own links and faults.
    pub(crate) fn tell(&self, access_use: AccessUse) {
        let telemetry = Telemetry {
            access_use: Some(Box::new(access_use)),
            ..Telemetry::default()
        };
        self.session(|session| session.send_telemetry(telemetry).expect("room"));
    }

    pub(crate) fn start_record(&self, record: StartRecord) {
        self.session(|session| session.start(now_ns(), record).expect("a good record"));
    }

    pub(crate) fn end(&self, flow: FlowId) {
        self.session(|session| session.end(now_ns(), flow).expect("an active flow"));
    }

    fn session(&self, act: impl FnOnce(&mut ClientSession)) {
        act(self.view().session.as_mut().expect("connected"));
        self.wake.notify_one();
    }

    /// Sends a raw datagram.
    pub(crate) fn send_raw(&self, datagram: Vec<u8>) {
        self.view().raw.push(datagram);
        self.wake.notify_one();
    }

    /// Writes raw bytes on the control stream.
    pub(crate) fn write_raw(&self, bytes: &[u8]) {
        self.view().raw_control.extend_from_slice(bytes);
        self.wake.notify_one();
    }

    pub(crate) fn rate(&self, flow: FlowId) -> Option<u64> {
        self.view()
            .rates
            .get(&flow)
            .copied()
            .filter(|&rate| rate > 0)
    }

    /// Returns the host's flows.
    pub(crate) fn flows(&self) -> FlowStates {
        let view = self.view();
        let session = view.session.as_ref().expect("connected");
        session
            .flows()
            .map(|flow| {
                let state = (flow.record.dst_host(), flow.rate_bps.unwrap_or(0));
                (flow.record.flow().0, state)
            })
            .collect()
    }

    /// Waits until a flow's rate is within these bounds (bit/s).
    pub(crate) fn wait_rate(&self, flow: FlowId, bounds: std::ops::RangeInclusive<u64>) {
        wait_for(
            &format!("{flow} has a rate in {bounds:?}"),
            PATIENCE,
            || self.rate(flow).is_some_and(|rate| bounds.contains(&rate)),
        );
    }

    pub(crate) fn is_up(&self) -> bool {
        self.view().ended.is_none()
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        self.view.lock().expect("unpoisoned").stop = true;
        self.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn drive(
    view: &Mutex<HostView>,
    wake: &Notify,
    quic: quinn::ClientConfig,
    allocator: SocketAddr,
    config: ClientConfig,
    first_frame: Option<Vec<u8>>,
) -> String {
    let endpoint =
        // All of a test is on one machine: the allocator's address is the hosts', too.
        quinn::Endpoint::client(SocketAddr::new(allocator.ip(), 0)).expect("a socket");
    let connecting = endpoint
        .connect_with(quic, allocator, "ratewright-allocator")
        .expect("a good address");
    let connection = match connecting.await {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    // The first bidirectional stream is the control stream.
    let (mut send, mut receive) = match connection.open_bi().await {
        Ok(streams) => streams,
        Err(error) => return error.to_string(),
    };
    if config.sealed_udp {
        let any = SocketAddr::new(allocator.ip(), 0);
        let port = SealedPort::bind(any, PathConfig::default(), Dscp::CS6).expect("a socket");
        view.lock().expect("unpoisoned").port = Some(port);
    }
    let mut session = ClientSession::new(config);
    session.connected(now_ns());
    if let Some(frame) = first_frame {
        // The session's own Hello is discarded.
        while session.poll_control().is_some() {}
        view.lock().expect("unpoisoned").raw_control = frame;
    }
    view.lock().expect("unpoisoned").session = Some(session);
    let mut decoder = FrameDecoder::new();
    loop {
        let (frames, timeout_ns, stop) = poll(view, &connection);
        for frame in frames {
            if let Err(error) = send.write_all(&frame).await {
                return error.to_string();
            }
        }
        if stop {
            // The close must leave before the runtime ends: `wait_idle` sends it.
            connection.close(0u32.into(), b"the test is over");
            endpoint.wait_idle().await;
            return "the test is over".to_owned();
        }
        let timeout_ns = sealed(view, timeout_ns);
        // No timeout makes a sleep that is as good as endless.
        let sleep =
            Duration::from_nanos(timeout_ns.map_or(u64::MAX / 4, |at| at.saturating_sub(now_ns())));
        tokio::select! {
            // The last control message must be read before the close is seen.
            biased;
            chunk = receive.read_chunk(65_536, true) => match chunk {
                Ok(Some(chunk)) => {
                    decoder.push(&chunk.bytes);
                    while let Some(body) = decoder.next_frame().expect("good frames") {
                        with(view, |session| drop(session.on_control(now_ns(), body)));
                    }
                }
                // After the stream's end, only its last datagrams and the close can follow.
                Ok(None) => {
                    poll(view, &connection);
                    return connection.closed().await.to_string();
                }
                Err(error) => return error.to_string(),
            },
            () = tokio::time::sleep(sleep) => {
                with(view, |session| session.on_timeout(now_ns()));
            }
            datagram = connection.read_datagram() => match datagram {
                Ok(bytes) => with(view, |session| { let _ = session.on_datagram(now_ns(), &bytes); }),
                Err(error) => return error.to_string(),
            },
            () = wake.notified() => {}
        }
    }
}

/// Receives sealed datagrams and sends probes. Returns a timeout of at most a millisecond, the
/// interval at which the socket is polled.
fn sealed(view: &Mutex<HostView>, timeout_ns: Option<u64>) -> Option<u64> {
    let mut view = view.lock().expect("unpoisoned");
    let view = &mut *view;
    let (Some(port), Some(session)) = (&mut view.port, &mut view.session) else {
        return timeout_ns;
    };
    let now_ns = now_ns();
    if !view.deaf {
        let take = |_, text: &[u8]| {
            let _ = session.on_datagram(now_ns, text);
        };
        port.receive(now_ns, take).expect("a socket");
    }
    if port.next_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
        port.on_timeout(now_ns);
    }
    let soon_ns = now_ns + 1_000_000;
    Some(timeout_ns.map_or(soon_ns, |at_ns| at_ns.min(soon_ns)))
}

fn with(view: &Mutex<HostView>, act: impl FnOnce(&mut ClientSession)) {
    act(view
        .lock()
        .expect("unpoisoned")
        .session
        .as_mut()
        .expect("connected"));
}

/// Sends pending datagrams and records events. Returns the stream's frames, the session's timeout,
/// and true if the test has ended.
fn poll(
    view: &Mutex<HostView>,
    connection: &quinn::Connection,
) -> (Vec<Vec<u8>>, Option<u64>, bool) {
    let mut view = view.lock().expect("unpoisoned");
    let view = &mut *view;
    let session = view.session.as_mut().expect("connected");
    while let Some(event) = session.poll_event() {
        match event {
            ClientEvent::Established(welcome) => {
                if let Some(port) = &mut view.port {
                    port.add(now_ns(), connection, &welcome).expect("keys");
                }
                view.released = welcome.released;
                view.topology_version = welcome.topology.version;
                view.welcome = Some(*welcome);
            }
            ClientEvent::Topology(topology) => view.topology_version = topology.version,
            ClientEvent::Members(_) => {}
            ClientEvent::Rate { flow, rate_bps, .. } => drop(view.rates.insert(flow, rate_bps)),
            ClientEvent::Released(released) => {
                view.released = released;
                // Released hosts use no rate any more.
                if released {
                    view.rates.clear();
                }
                if !view.mute_release {
                    session.confirm_release(0).expect("it has a session");
                }
            }
            ClientEvent::Refused(refusal) => view.refused = Some(refusal),
            ClientEvent::SessionLost(_) | ClientEvent::LeaseRenewed { .. } => {}
        }
    }
    let mut datagram = Vec::new();
    let mut max_bytes = connection.max_datagram_size().unwrap_or(1_100);
    let number = view.welcome.as_ref().map(|welcome| welcome.session);
    if view.port.is_some() {
        // A datagram may take either transport, so it must fit both.
        max_bytes = max_bytes.min(MAX_DATAGRAM_BYTES);
    }
    while session.poll_datagram(now_ns(), max_bytes, &mut datagram) {
        // QUIC carries what the sealed path does not.
        if let (Some(port), Some(number)) = (&mut view.port, number)
            && port.send(now_ns(), number, &datagram) == SendOutcome::Sealed
        {
            port.flush();
            continue;
        }
        let _ = connection.send_datagram(std::mem::take(&mut datagram).into());
    }
    for raw in view.raw.drain(..) {
        let _ = connection.send_datagram(raw.into());
    }
    let mut frames: Vec<Vec<u8>> = std::iter::from_fn(|| session.poll_control()).collect();
    if !view.raw_control.is_empty() {
        frames.push(std::mem::take(&mut view.raw_control));
    }
    (frames, session.next_timeout(), view.stop)
}
