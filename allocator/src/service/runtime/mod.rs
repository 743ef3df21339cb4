//! The running service: its threads, its sockets and the engine.
//!
//! | module | what |
//! |---|---|
//! | [`transport`], [`window`] | the QUIC endpoint, its settings and its congestion window |
//! | `connection` | one task per connection: datagrams in, control stream |
//! | `service_core` | the core: hub, transports, timers, queues of ports; all sending |
//! | `core_loop` | the thread that owns the core, with a port of its own and the engine |
//! | `core_handle`, `answers` | how tasks of the service thread reach the core; answers to admin |
//! | `port_loop` | threads of further ports |
//! | `sealed_port` | a port with the keys of its sessions |
//! | `collector` | readings of switches from a collector |
//! | `relayed` | connections of relays, each with many hosts |
//! | `idle` | wake-ups of such a thread, and its waits |
//! | `dpdk` | ports on an interface that DPDK drives |
//! | [`engine_host`] | the engine: its making, its figures, its end |
//! | `co_located_engine` | the engine on the core's thread |
//!
//! One thread owns the core: sessions, flows, engine, timers. An *edge* moves bytes. The first port
//! is served on the core's own thread. Threads of further ports, and tasks of the service thread,
//! which serve QUIC and relays, reach the core through rings.
//!
//! A flow's *first rate* is urgent: it goes out before all *later rates*, which may be replaced by
//! newer ones while they wait.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn::VarInt;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::admin_request::AdminRequest;
use super::admission::AdmissionConfig;
use super::clock;
use super::config::Config;
use super::entrance::Entrance;
use super::hub::{Hub, HubSettings, SessionTimers, capacities_bps};
use super::status::Reasons;
use super::tls::ServerTls;
use crate::engine::{EngineError, RateEngine};
use ratewright_io::tls::TlsError;
use ratewright_io::udp::{BatchSocket, PacketPort};
use ratewright_proto::control::RefusalCode;
use ratewright_proto::sealed::SealedConfig;
use ratewright_topology::Topology;

mod answers;
mod co_located_engine;
mod collector;
pub(super) mod connection;
mod core_handle;
mod core_loop;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod engine_host;
mod idle;
mod port_loop;
mod relayed;
mod sealed_port;
mod service_core;
pub mod transport;
pub mod window;

use core_handle::CoreHandle;
use core_loop::{CoreLoop, ServiceThreads};
use engine_host::{EngineFactory, EngineHost};
use idle::{IdlePolicy, ThreadWaker};
use port_loop::PortLoop;
use sealed_port::{NoPort, PortState, SealedPort};
pub(super) use service_core::OVERTAKEN_NS;
use service_core::{PortQueue, ServiceCore};

/// Connections beyond the limit of sessions, for those in their handshake or at their end.
const CONNECTION_SLACK: usize = 1_024;

/// Maximum time that hosts have to take the last message at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Reason for which the service cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The UDP address cannot be bound.
    #[error("listen = \"{address}\": cannot bind")]
    Bind {
        /// The address.
        address: std::net::SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// DPDK does not drive the configured interface.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Interface(#[from] dpdk::InterfaceError),
    /// The collector's UDP address cannot be bound.
    #[error("feeds.collector.listen = \"{address}\": cannot bind")]
    BindCollector {
        /// The address.
        address: std::net::SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// The engine refused its settings.
    #[error("the engine cannot start")]
    Engine(#[from] EngineError),
    /// The engine thread ended.
    #[error("the engine thread died")]
    EngineDied,
    /// A thread with a port panicked.
    #[error("a thread of sealed datagrams panicked")]
    PortPanicked,
    /// A task of the service panicked.
    #[error("a task of the service panicked")]
    Panicked(#[from] JoinError),
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Counts of attempts to connect that ended before they had a session, by reason. The service
/// thread has them.
#[derive(Clone, Default)]
struct Rejections(Rc<RefCell<Reasons>>);

impl Rejections {
    fn count(&self, reason: &'static str) {
        self.0.borrow_mut().count(reason);
    }
}

/// The allocator's service, on the current tokio runtime, which must have one thread, in a
/// [`LocalSet`](tokio::task::LocalSet).
pub struct AllocatorService {
    core: CoreHandle,
    rejections: Rejections,
    endpoint: quinn::Endpoint,
    requests: mpsc::Receiver<AdminRequest>,
    tasks: JoinSet<()>,
    /// Connection attempts that wait for their handshake.
    entrance: Entrance,
    max_sessions: usize,
    epoch: u64,
    signal: Arc<engine_host::EngineSignal>,
    /// The collector of switches, if one is configured.
    collector: Option<collector::SharedCollector>,
    /// Threads of the core and of further ports; they end when this is dropped.
    threads: ServiceThreads,
}

/// Returns the hub's part of a configuration.
pub(super) fn hub_settings(config: &Config, epoch: u64) -> HubSettings {
    HubSettings {
        epoch,
        lease_ns: config.allocation.lease_ms * 1_000_000,
        update_interval_ns: config.allocation.update_interval_us * 1_000,
        ack_delay_ns: config.allocation.ack_delay_ms * 1_000_000,
        liveness_ns: config.allocation.liveness_ms * 1_000_000,
        threshold: config.allocation.threshold,
        external_share: config.allocation.external_share,
        feeds: config.feeds.clone(),
        limits: config.limits,
        trust: config.trust.clone(),
        membership: config.membership.clone(),
        rollout: config.rollout.clone(),
        classes: config.classes.clone(),
        timers: SessionTimers::default(),
    }
}

/// Inputs of an engine that is to be made.
pub struct EnginePlan {
    factory: EngineFactory,
    config: Config,
    topology: Topology,
}

/// An engine without flows.
pub struct NewEngine {
    engine: Box<dyn RateEngine>,
    /// Capacities of the links with which it was made, in bit/s.
    capacities_bps: Vec<f64>,
}

impl EnginePlan {
    /// Makes the engine. Slow: the caller uses a thread that no datagram waits for.
    ///
    /// # Errors
    /// The engine refuses its settings.
    pub fn make(self) -> Result<NewEngine, EngineError> {
        let capacities_bps = capacities_bps(&self.topology);
        let engine = (self.factory)(&self.config, &self.topology, &capacities_bps)?;
        Ok(NewEngine {
            engine,
            capacities_bps,
        })
    }
}

impl AllocatorService {
    /// Binds the endpoint and starts the engine.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub fn start(
        config: &Config,
        topology: Topology,
        tls: ServerTls,
        factory: EngineFactory,
        requests: mpsc::Receiver<AdminRequest>,
    ) -> Result<Self, ServiceError> {
        let epoch = clock::incarnation();
        let released = config.allocation.start_released;
        let hub = Hub::new(hub_settings(config, epoch), topology, released);
        let engine = EngineHost::start(
            factory,
            config,
            hub.topology(),
            &hub.network().capacities_bps(),
        )?;
        let endpoint = transport::bind(config.listen, tls.quic, config.transport.control_dscp)
            .map_err(|source| ServiceError::Bind {
                address: config.listen,
                source,
            })?;
        let mut tasks = JoinSet::new();
        let collector = match &config.collector {
            Some(settings) => Some(collector::start(settings, hub.topology()).map_err(
                |source| ServiceError::BindCollector {
                    address: settings.listen,
                    source,
                },
            )?),
            None => None,
        };
        let signal = engine.signal();
        let (core, threads) = start_threads(config, hub, engine, |core| {
            core.relays.accept(tls.peers, config.limits.max_sessions);
            core.certificate_expires_unix_s = tls.expires_unix_s;
        })?;
        let collector = collector.map(|(collector, socket)| {
            tasks.spawn_local(collector::serve(core.clone(), collector.clone(), socket));
            collector
        });
        let rejections = Rejections::default();
        let counted = rejections.clone();
        let entrance = Entrance::new(AdmissionConfig::default(), move |reason| {
            counted.count(reason);
        });
        let max_sessions = config.limits.max_sessions as usize;
        Ok(Self {
            core,
            rejections,
            endpoint,
            requests,
            tasks,
            entrance,
            max_sessions,
            epoch,
            signal,
            collector,
            threads,
        })
    }

    /// Returns the address of the QUIC endpoint.
    ///
    /// # Errors
    /// The operating system does not give it.
    pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Returns the number of this incarnation of the allocator.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Serves until a part fails. Cancel-safe: may be dropped and called again.
    pub async fn serve(&mut self) -> ServiceError {
        loop {
            if self.signal.panicked() {
                return ServiceError::PortPanicked;
            }
            if self.signal.died() {
                return ServiceError::EngineDied;
            }
            tokio::select! {
                // In this order: a flood of connections must delay neither operators nor the end of
                // the service.
                biased;
                () = self.signal.wait() => {}
                Some(request) = self.requests.recv() => self.execute(request),
                // Tasks of connections end all the time.
                Some(ended) = self.tasks.join_next() => if let Err(error) = ended {
                    return ServiceError::Panicked(error);
                },
                // Accepts all new attempts before it chooses one of them.
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.take(incoming),
                    // Only after `shut_down`, which takes the service.
                    None => std::future::pending().await,
                },
                (incoming, turn) = self.entrance.next() => {
                    let (core, rejections) = (self.core.clone(), self.rejections.clone());
                    self.tasks
                        .spawn_local(connection::serve(core, rejections, incoming, turn));
                }
            }
        }
    }

    fn take(&mut self, incoming: quinn::Incoming) {
        // Sessions and handshakes have their own bounds. This one also counts connections of relays
        // and those that end.
        let connections = self.endpoint.open_connections();
        if connections >= self.max_sessions + CONNECTION_SLACK {
            self.rejections.count("overload");
            return incoming.refuse();
        }
        // Of an address that may be forged nothing is looked up.
        if !incoming.remote_address_validated() {
            return self.entrance.offer(incoming, false);
        }
        let (core, entrance) = (self.core.clone(), self.entrance.clone());
        self.tasks.spawn_local(async move {
            let address = incoming.remote_address().ip();
            let known = core.call(move |core, _| core.hub.topology().host_by_addr(address));
            let is_host = known.await.is_some();
            entrance.offer(incoming, is_host);
        });
    }

    /// Answers a request of the admin server, in a task. A requester that is gone needs no answer.
    fn execute(&mut self, request: AdminRequest) {
        let (core, rejections) = (self.core.clone(), self.rejections.clone());
        self.tasks
            .spawn_local(async move { core.answer(request, &rejections.0).await });
    }

    /// Returns the inputs of an engine for another configuration or topology; `None` if the present
    /// engine serves. The engine may be made while the service goes on.
    pub async fn engine_plan(
        &self,
        old: &Config,
        new: &Config,
        topology: Option<&Topology>,
    ) -> Option<EnginePlan> {
        let differs = topology.is_some()
            || old.classes != new.classes
            || old.allocation != new.allocation
            || old.limits.max_flows != new.limits.max_flows;
        if !differs {
            return None;
        }
        // The hub's topology has the failures that were notified; the file has not.
        let given = topology.cloned();
        let asked = self.core.call(move |core, _| {
            let topology = given.unwrap_or_else(|| core.hub.topology().clone());
            (core.engine.factory(), topology)
        });
        let (factory, topology) = asked.await;
        Some(EnginePlan {
            factory,
            config: new.clone(),
            topology,
        })
    }

    /// Puts another configuration in force, with a new engine and topology if there are any. The
    /// caller has checked everything.
    ///
    /// The hub hands its flows to the new engine in slices. Hosts get no rates until that is done.
    pub async fn reload(
        &mut self,
        new: &Config,
        topology: Option<Topology>,
        tls: ServerTls,
        engine: Option<NewEngine>,
    ) {
        let (epoch, config, quic) = (self.epoch, new.clone(), tls.quic);
        let (peers, expires_unix_s) = (tls.peers, tls.expires_unix_s);
        let applied = self.core.call(move |core, now_ns| {
            core.hub.reconfigure(now_ns, hub_settings(&config, epoch));
            core.relays.accept(peers, config.limits.max_sessions);
            core.certificate_expires_unix_s = expires_unix_s;
            core.close_distrusted_relays();
            // Before the flows restart: their paths are computed in the new topology.
            if let Some(topology) = topology {
                core.hub.replace_topology(now_ns, topology);
            }
            if let Some(NewEngine {
                engine,
                capacities_bps,
            }) = engine
            {
                core.engine.replace(&config, engine);
                core.hub.restart_flows(now_ns, &capacities_bps);
            }
            config.collector.map(|_| core.hub.topology().clone())
        });
        let topology = applied.await;
        if let (Some(collector), Some(settings), Some(topology)) =
            (&self.collector, &new.collector, topology)
        {
            collector.reconfigure(settings, &topology);
        }
        self.max_sessions = new.limits.max_sessions as usize;
        self.endpoint
            .set_server_config(Some(transport::server_config(quic)));
    }

    /// Counts a reload.
    pub async fn count_reload(&self, result: &'static str) {
        self.core
            .call(move |core, _| core.hub.counts_mut().reloads.count(result))
            .await;
    }

    /// Refuses all sessions because the allocator stops, closes the connections and stops the
    /// engine.
    pub async fn shut_down(mut self) {
        // No new connection may come while the others are sent away.
        self.endpoint.set_server_config(None);
        let refused = self.core.call(|core, now_ns| {
            core.begin_draining();
            core.hub.refuse_all(
                now_ns,
                RefusalCode::Draining,
                "the allocator is shutting down",
            );
        });
        refused.await;
        let core = self.core.clone();
        let drained = async {
            while core.call(|core, _| core.connection_count()).await > 0 {
                if self.tasks.join_next().await.is_none() {
                    break;
                }
            }
        };
        if tokio::time::timeout(DRAIN_TIME, drained).await.is_err() {
            tracing::info!("some hosts did not take the last word in time");
        }
        self.endpoint.close(VarInt::from_u32(0), b"draining");
        let _ = tokio::time::timeout(DRAIN_TIME, self.endpoint.wait_idle()).await;
        self.tasks.abort_all();
        // Joins the threads. The core's drops the engine.
        drop(self.threads);
    }
}

/// Makes the core, prepares it, and starts its thread and those of further ports.
fn start_threads(
    config: &Config,
    hub: Hub,
    engine: EngineHost,
    prepare: impl FnOnce(&mut ServiceCore),
) -> Result<(CoreHandle, ServiceThreads), ServiceError> {
    let transport = &config.transport;
    #[cfg(feature = "dpdk")]
    if let Some(interface) = &transport.dpdk {
        let first = transport.udp_port.unwrap_or_default();
        let workers = transport.shards();
        let ports = UdpPorts {
            ports: dpdk::start(interface, workers, first, transport.control_dscp)?,
            numbers: (first..).take(usize::from(workers)).collect(),
            address: Some(interface.address),
            // Nothing wakes a poll-mode driver's thread: it always spins.
            policy: if transport.busy_poll {
                IdlePolicy::Spin
            } else {
                IdlePolicy::Yield
            },
        };
        return start_on(config, hub, engine, ports, prepare);
    }
    if transport.shards() == 0 {
        let none = UdpPorts {
            ports: vec![NoPort],
            numbers: Vec::new(),
            address: None,
            policy: IdlePolicy::Sleep,
        };
        return start_on(config, hub, engine, none, prepare);
    }
    let (mut ports, mut numbers) = (Vec::new(), Vec::new());
    for index in 0..transport.shards() {
        let number = transport.udp_port.map_or(0, |first| first + index);
        let address = std::net::SocketAddr::new(config.listen.ip(), number);
        let bind = |source| ServiceError::Bind { address, source };
        let port = BatchSocket::bind(address, transport.control_dscp).map_err(bind)?;
        numbers.push(port.local_addr().map_err(bind)?.port());
        ports.push(port);
    }
    let ports = UdpPorts {
        ports,
        numbers,
        address: None,
        policy: if transport.busy_poll {
            IdlePolicy::Spin
        } else {
            IdlePolicy::Sleep
        },
    };
    start_on(config, hub, engine, ports, prepare)
}

/// Ports for sealed datagrams, the first for the core's own thread.
struct UdpPorts<P> {
    ports: Vec<P>,
    /// Their UDP port numbers, which hosts are told. Without numbers the port is absent.
    numbers: Vec<u16>,
    /// Their address, unless it is that of the QUIC endpoint.
    address: Option<Ipv4Addr>,
    policy: IdlePolicy,
}

/// As [`start_threads`], on these ports.
fn start_on<P: PacketPort + Send + 'static>(
    config: &Config,
    mut hub: Hub,
    engine: EngineHost,
    UdpPorts {
        ports,
        numbers,
        address,
        policy,
    }: UdpPorts<P>,
    prepare: impl FnOnce(&mut ServiceCore),
) -> Result<(CoreHandle, ServiceThreads), ServiceError> {
    let bind = |source| ServiceError::Bind {
        address: config.listen,
        source,
    };
    let settings = SealedConfig {
        cipher: config.transport.cipher,
        ..SealedConfig::default()
    };
    let state = if numbers.is_empty() {
        PortState::Absent
    } else {
        PortState::Open
    };
    hub.offer_sealed(numbers, config.transport.cipher, address);
    let signal = engine.signal();
    let owner = Arc::new(ThreadWaker::new().map_err(bind)?);
    let (mut queues, mut own, mut others) = (Vec::new(), None, Vec::new());
    for (index, port) in ports.into_iter().enumerate() {
        let port = SealedPort::new(port, state, settings);
        if index == 0 {
            own = Some(port);
            queues.push(PortQueue::new(state, None));
            continue;
        }
        let waker = Arc::new(ThreadWaker::new().map_err(bind)?);
        let (port_loop, rings) = PortLoop::new(
            index,
            port,
            policy,
            Arc::clone(&waker),
            Arc::clone(&owner),
            Arc::clone(&signal),
        );
        queues.push(PortQueue::new(state, Some((rings, Arc::clone(&waker)))));
        others.push((index, waker, port_loop));
    }
    let Some(own) = own else {
        return Err(bind(std::io::Error::other("no port")));
    };
    let grace_ns = config.allocation.start_grace_ms * 1_000_000;
    let mut core = ServiceCore::new(hub, engine, queues, clock::now_ns() + grace_ns);
    prepare(&mut core);
    let (handle, work) = CoreHandle::new(Arc::clone(&owner));
    let core_loop = CoreLoop::new(core, own, work, Arc::clone(&owner), policy);
    let mut threads = ServiceThreads::default();
    (threads.start("core".to_owned(), &owner, move || core_loop.run())).map_err(bind)?;
    for (index, waker, port_loop) in others {
        let name = format!("sealed-{index}");
        (threads.start(name, &waker, move || port_loop.run())).map_err(bind)?;
    }
    Ok((handle, threads))
}
