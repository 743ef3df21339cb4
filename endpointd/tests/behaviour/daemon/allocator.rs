//! An allocator without an optimiser: the production server session over real QUIC on loopback,
//! which gives every flow the rate that the test says.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint, ServerConfig as QuicConfig};
use ratewright_endpointd::clock;
use ratewright_proto::control::{
    AccessCapacity, ClassInfo, ControlMessage, FrameDecoder, HostInfo, Members, Refusal,
    RefusalCode, SealedUdp, TopologySnapshot,
};
use ratewright_proto::server::{Admission, FlowChange, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::telemetry::{SyncTerms, Telemetry};
use ratewright_proto::{FlowId, StartRecord};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::JoinHandle;

use super::SharedCell;

pub const LEASE_NS: u64 = 200_000_000;

/// State that the test reads and sets while the allocator runs.
#[derive(Debug, Default)]
pub struct AllocatorScript {
    /// Rate of every flow.
    pub rate_bps: u64,
    pub released: bool,
    /// Drops all datagrams, like a network that loses them.
    pub mute: bool,
    pub refuse: Option<RefusalCode>,
    /// Offer of sealed datagrams in a Welcome.
    pub sealed_udp: Option<SealedUdp>,
    pub topology: TopologySnapshot,
    /// Told to sessions, each once, in order.
    pub members: Vec<Members>,
    /// Interval at which a Welcome asks for telemetry.
    pub telemetry_interval_ns: u64,
    /// Terms on which it lets the daemon tell a state.
    pub telemetry_sync: Option<SyncTerms>,
    /// Capacities of the host's own links, as a Welcome and another topology tell them.
    pub access: AccessCapacity,
    /// Telemetry that arrived.
    pub telemetry: Vec<Telemetry>,
    /// Flows that are active, newest parameters.
    pub flows: Vec<StartRecord>,
    pub starts: u32,
    pub ends: Vec<FlowId>,
    pub sessions: u32,
    pub release_acks: Vec<(bool, u32)>,
    /// The session ended by the client's closing the connection.
    pub closed: u32,
}

pub struct ScriptedAllocator {
    pub script: SharedCell<AllocatorScript>,
    pub address: SocketAddr,
    endpoint: Endpoint,
    task: JoinHandle<()>,
}

pub fn hosts(hosts: &[(u32, &str, &str)], version: u32) -> TopologySnapshot {
    let host = |(id, name, prefix): &(u32, &str, &str)| HostInfo {
        id: *id,
        name: (*name).to_owned(),
        prefixes: vec![prefix.parse().unwrap()],
    };
    TopologySnapshot {
        version,
        ecmp_seed: 5,
        ecmp_symmetric: true,
        hosts: hosts.iter().map(host).collect(),
        ..TopologySnapshot::default()
    }
}

fn quic_config(folder: &Path) -> QuicConfig {
    let read = |file: &str| CertificateDer::from_pem_file(folder.join(file)).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(read("ca.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    )
    .build()
    .unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![read("allocator.pem")],
            PrivateKeyDer::from_pem_file(folder.join("allocator.key")).unwrap(),
        )
        .unwrap();
    tls.alpn_protocols = vec![ratewright_proto::ALPN.to_vec()];
    QuicConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

impl ScriptedAllocator {
    /// Starts on a free port of loopback, or on the one given.
    pub fn start(folder: &Path, epoch: u64, address: Option<SocketAddr>) -> Self {
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let endpoint = Endpoint::server(quic_config(folder), address).unwrap();
        let script = SharedCell::new(std::cell::RefCell::new(AllocatorScript {
            rate_bps: 100_000_000,
            topology: hosts(&[(1, "h1", "10.0.1.1/32"), (2, "h2", "10.0.2.1/32")], 1),
            ..AllocatorScript::default()
        }));
        let config = Arc::new(ServerConfig {
            epoch,
            lease_ns: LEASE_NS,
            ..ServerConfig::default()
        });
        let accepting = accept(endpoint.clone(), config, script.clone());
        let address = endpoint.local_addr().unwrap();
        Self {
            script,
            address,
            endpoint,
            task: tokio::task::spawn_local(accepting),
        }
    }

    /// Starts on an address that an earlier allocator has just left.
    pub async fn restart(folder: &Path, epoch: u64, address: SocketAddr) -> Self {
        for _ in 0..1_000 {
            if UdpSocket::bind(address).is_ok() {
                return Self::start(folder, epoch, Some(address));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{address} stays in use");
    }

    /// Vanishes without closing its connections, as by SIGKILL, and leaves the address free.
    pub fn vanish(self) -> SocketAddr {
        self.task.abort();
        // Later packets come from another address, and are ignored. The endpoint keeps its previous
        // socket for a while, so it takes two rebinds to release the port.
        for _ in 0..2 {
            self.endpoint
                .rebind(UdpSocket::bind("127.0.0.1:0").unwrap())
                .unwrap();
        }
        // Dropping the endpoint would close its connections with a packet, which SIGKILL does not.
        std::mem::forget(self.endpoint);
        self.address
    }
}

async fn accept(
    endpoint: Endpoint,
    config: Arc<ServerConfig>,
    script: SharedCell<AllocatorScript>,
) {
    while let Some(incoming) = endpoint.accept().await {
        // A handshake that fails is part of some tests.
        let Ok(connection) = incoming.await else {
            continue;
        };
        tokio::task::spawn_local(serve(connection, config.clone(), script.clone()));
    }
}

async fn serve(
    connection: Connection,
    config: Arc<ServerConfig>,
    script: SharedCell<AllocatorScript>,
) {
    let mut session = ServerSession::new(clock::now_ns(), config);
    let Ok((mut send, mut receive)) = connection.accept_bi().await else {
        return;
    };
    let mut decoder = FrameDecoder::new();
    let mut datagram = Vec::new();
    let (mut sent_version, mut told) = (0, 0);
    loop {
        let now_ns = clock::now_ns();
        while let Some(event) = session.poll_event() {
            on_event(now_ns, &mut session, &mut script.borrow_mut(), event);
        }
        let (released, topology) = (script.borrow().released, script.borrow().topology.clone());
        if session.is_established() {
            session.set_released(released);
            // The first version is part of the Welcome.
            if sent_version != 0 && topology.version != sent_version {
                session.set_access(script.borrow().access);
                session.set_topology((&topology).into()).unwrap();
            }
            sent_version = topology.version;
            for change in script.borrow().members.iter().skip(told) {
                let frame = ControlMessage::Members(change.clone()).to_frame().unwrap();
                session.send_members(frame.into()).unwrap();
                told += 1;
            }
        }
        while let Some(frame) = session.poll_control() {
            if send.write_all(&frame).await.is_err() {
                return;
            }
        }
        while session.poll_datagram(now_ns, 1_200, &mut datagram) {
            if !script.borrow().mute {
                let _ = connection.send_datagram(datagram.clone().into());
            }
        }
        if session.is_closed() {
            // The client reads the reason and closes.
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
            return;
        }
        tokio::select! {
            read = connection.read_datagram() => match read {
                Ok(bytes) => {
                    let (now_ns, mut changes) = (clock::now_ns(), Vec::new());
                    let _ = session.on_datagram(now_ns, &bytes, |change| changes.push(change));
                    for change in changes {
                        on_change(now_ns, &mut session, &mut script.borrow_mut(), change);
                    }
                }
                Err(_) => {
                    script.borrow_mut().closed += 1;
                    return;
                }
            },
            chunk = receive.read_chunk(65_536, true) => {
                let Ok(Some(chunk)) = chunk else {
                    script.borrow_mut().closed += 1;
                    return;
                };
                decoder.push(&chunk.bytes);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    session.on_control(clock::now_ns(), frame).unwrap();
                }
            }
            // Bounded, so that changes of the script take effect.
            () = tokio::time::sleep(Duration::from_millis(1)) => session.on_timeout(clock::now_ns()),
        }
    }
}

fn on_change(
    now_ns: u64,
    session: &mut ServerSession,
    script: &mut AllocatorScript,
    change: FlowChange,
) {
    match change {
        FlowChange::Start(start) | FlowChange::Update { record: start, .. } => {
            script.starts += 1;
            script.flows.retain(|flow| flow.flow() != start.flow());
            script.flows.push(start);
            session
                .set_rate(now_ns, start.flow(), script.rate_bps)
                .unwrap();
        }
        FlowChange::End(flow, _) => {
            script.flows.retain(|start| start.flow() != flow);
            script.ends.push(flow);
        }
    }
}

fn on_event(
    now_ns: u64,
    session: &mut ServerSession,
    script: &mut AllocatorScript,
    event: ServerEvent,
) {
    match event {
        ServerEvent::Hello(hello) => {
            let mut known = script.topology.hosts.iter();
            let host = known.find(|host| host.name == hello.host_name);
            let host_id = host.expect("a host of the topology").id;
            if let Some(code) = script.refuse {
                let retry = matches!(code, RefusalCode::Draining | RefusalCode::TableFull);
                session.refuse(Refusal {
                    code,
                    reason: "because the test says so".to_owned(),
                    retry,
                });
                return;
            }
            script.sessions += 1;
            script.flows.clear();
            let admission = Admission {
                session: script.sessions,
                host_id,
                topology: (&script.topology).into(),
                classes: vec![
                    ClassInfo {
                        id: 0,
                        name: "default".to_owned(),
                    },
                    ClassInfo {
                        id: 3,
                        name: "gold".to_owned(),
                    },
                ],
                threshold: 0.01,
                released: script.released,
                observe: false,
                sealed_udp: script.sealed_udp,
                telemetry_interval_ns: script.telemetry_interval_ns,
                telemetry_sync: script.telemetry_sync,
                access: script.access,
            };
            session.accept(now_ns, admission).unwrap();
        }
        ServerEvent::ReleaseAck {
            released,
            paced_flows,
        } => script.release_acks.push((released, paced_flows)),
        ServerEvent::Telemetry(telemetry) => script.telemetry.push(telemetry),
        ServerEvent::Refused(_) | ServerEvent::PeerLost(_) => {}
    }
}
