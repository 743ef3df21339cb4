//! The running service: its threads, its sockets and the engine.
//!
//! | module | what |
//! |---|---|
//! | [`transport`], [`window`] | the QUIC endpoint, its settings and its congestion window |
//! | `connection` | one task per connection: datagrams in, control stream |
//! | `service_core` | hub, engine, transports and timers behind one lock; all sending |
//! | `collector` | readings of switches from a collector |
//! | `relayed` | connections of relays, each with many hosts |
//! | `udp_worker` | workers: a port for sealed datagrams and its thread |
//! | `idle` | wake-ups of such a thread, and its waits |
//! | `dpdk` | ports on an interface that DPDK drives |
//! | [`engine_host`] | the engine: its making, its figures, its end |
//! | `co_located_engine` | the engine on the thread of the first worker |
//! | `start_grace` | the time after the start in which no rate is sent |
//!
//! A connection's task hands QUIC datagrams to the hub, a worker sealed ones. The hub's events wake
//! the first worker, which drives the engine and hands its rates to the sessions. It does not wait
//! for a timer. All sessions' timeouts share one wheel, which that worker serves, too.
//!
//! A flow's *first rate* is urgent: it goes out before all *later rates*, which may be replaced by
//! newer ones while they wait.

use std::net::Ipv4Addr;
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
use super::hub::{Hub, HubSettings, capacities_bps};
use super::tls::ServerTls;
use crate::engine::{EngineError, RateEngine};
use ratewright_io::tls::TlsError;
use ratewright_io::udp::{BatchSocket, PacketPort};
use ratewright_proto::control::RefusalCode;
use ratewright_proto::sealed::SealedConfig;
use ratewright_topology::Topology;

mod co_located_engine;
mod collector;
pub(super) mod connection;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod engine_host;
mod idle;
mod relayed;
mod service_core;
mod start_grace;
pub mod transport;
mod udp_worker;
pub mod window;

use engine_host::{EngineFactory, EngineHost};
use idle::IdlePolicy;
pub(super) use service_core::OVERTAKEN_NS;
use service_core::SharedCore;
use start_grace::StartGrace;

/// Connections beyond the limit of sessions, for those in their handshake or at their end.
const CONNECTION_SLACK: usize = 1_024;

/// Connections to which later rates are sent before the runtime polls its sockets again. Each takes
/// about 20 µs.
const LATER_AT_ONCE: usize = 16;

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
    /// A UDP worker panicked.
    #[error("a thread of sealed datagrams panicked")]
    UdpWorkerPanicked,
    /// A task of the service panicked.
    #[error("a task of the service panicked")]
    Panicked(#[from] JoinError),
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The allocator's service, on the current tokio runtime, which must have one thread.
pub struct AllocatorService {
    shared: SharedCore,
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
    /// UDP workers; they end when this is dropped.
    udp_workers: udp_worker::UdpWorkerThreads,
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
        let (shared, udp_workers) = start_udp_workers(config, hub, engine, epoch)?;
        {
            let mut core = shared.lock();
            core.serve_relays(tls.peers, config.limits.max_sessions);
            core.certificate_expires_unix_s = tls.expires_unix_s;
        }
        let signal = shared.lock().engine.signal();
        let mut tasks = JoinSet::new();
        let collector = match &config.collector {
            Some(settings) => {
                let hub = &shared.lock().hub;
                Some(
                    collector::start(settings, hub.topology()).map_err(|source| {
                        ServiceError::BindCollector {
                            address: settings.listen,
                            source,
                        }
                    })?,
                )
            }
            None => None,
        };
        let collector = collector.map(|(collector, socket)| {
            tasks.spawn(collector::serve(shared.clone(), collector.clone(), socket));
            collector
        });
        let grace = Duration::from_millis(config.allocation.start_grace_ms);
        tasks.spawn(send_later_rates(shared.clone(), Arc::clone(&signal), grace));
        let (counted, known) = (shared.clone(), shared.clone());
        let is_host = move |address| (known.lock().hub.topology().host_by_addr(address)).is_some();
        let entrance = Entrance::new(AdmissionConfig::default(), is_host, move |reason| {
            let mut core = counted.lock();
            let rejected = &mut core.hub.counts_mut().connections_rejected;
            rejected.count(reason);
        });
        let max_sessions = config.limits.max_sessions as usize;
        Ok(Self {
            shared,
            endpoint,
            requests,
            tasks,
            entrance,
            max_sessions,
            epoch,
            signal,
            collector,
            udp_workers,
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
            tokio::select! {
                // In this order: a flood of connections must delay neither operators nor the end of
                // the service.
                biased;
                Some(request) = self.requests.recv() => self.execute(request),
                Some(ended) = self.tasks.join_next() => match ended {
                    // Tasks of connections end all the time. The rates' task ends only with a
                    // worker.
                    Ok(()) if self.signal.panicked() => return ServiceError::UdpWorkerPanicked,
                    Ok(()) if self.signal.died() => return ServiceError::EngineDied,
                    Ok(()) => {}
                    Err(error) => return ServiceError::Panicked(error),
                },
                // Accepts all new attempts before it chooses one of them.
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.take(incoming),
                    // Only after `shut_down`, which takes the service.
                    None => std::future::pending().await,
                },
                (incoming, turn) = self.entrance.next() => {
                    self.tasks.spawn(connection::serve(self.shared.clone(), incoming, turn));
                }
            }
        }
    }

    fn take(&mut self, incoming: quinn::Incoming) {
        // Sessions and handshakes have their own bounds. This one also counts connections of relays
        // and those that end.
        let connections = self.endpoint.open_connections();
        if connections < self.max_sessions + CONNECTION_SLACK {
            return self.entrance.offer(incoming);
        }
        let mut core = self.shared.lock();
        let rejected = &mut core.hub.counts_mut().connections_rejected;
        rejected.count("overload");
        drop(core);
        incoming.refuse();
    }

    /// Answers a request of the admin server. A requester that is gone needs no answer.
    fn execute(&mut self, request: AdminRequest) {
        // `/status` lists every session: its task yields between slices, so that datagrams do not
        // wait.
        if let AdminRequest::Status(reply) = request {
            let shared = self.shared.clone();
            self.tasks
                .spawn(async move { drop(reply.send(Box::new(shared.status().await))) });
            return;
        }
        // These visit every flow or link, likewise in slices.
        match request {
            AdminRequest::Overview(reply) => {
                let shared = self.shared.clone();
                self.tasks
                    .spawn(async move { drop(reply.send(Box::new(shared.overview().await))) });
                return;
            }
            AdminRequest::LinkFlows(link, reply) => {
                let shared = self.shared.clone();
                self.tasks
                    .spawn(async move { drop(reply.send(shared.link_flows(link).await)) });
                return;
            }
            _ => {}
        }
        // As do surveys of all flows and links.
        let request = match self.survey(request) {
            Some(request) => request,
            None => return,
        };
        self.shared.run(|core, now_ns| match request {
            AdminRequest::TopFlows(..) | AdminRequest::Links(..) | AdminRequest::Explain(..) => {}
            AdminRequest::SetHostReleased(host, released, reply) => {
                let result = core.hub.set_host_released(now_ns, &host, released);
                tracing::warn!(
                    host,
                    released,
                    known = result.is_ok(),
                    "host release turned"
                );
                drop(reply.send(result));
            }
            AdminRequest::HostReleaseReport(host, reply) => {
                drop(reply.send(core.hub.host_release_report(now_ns, &host)));
            }
            AdminRequest::Ping(reply) => drop(reply.send(())),
            AdminRequest::Snapshot(reply) => drop(reply.send(Box::new(core.snapshot()))),
            AdminRequest::Status(_) | AdminRequest::Overview(_) | AdminRequest::LinkFlows(..) => {}
            AdminRequest::HistoryPoint(reply) => drop(reply.send(core.history_point(now_ns))),
            AdminRequest::Topology(reply) => {
                drop(reply.send(Box::new(core.hub.topology().clone())));
            }
            AdminRequest::Flows(host, reply) => drop(reply.send(core.hub.report().flows_of(&host))),
            AdminRequest::Feeds(reply) => drop(reply.send(core.hub.network().feeds_report(now_ns))),
            AdminRequest::SetReleased(released, reply) => {
                let report = core.hub.set_released(now_ns, released);
                tracing::warn!(released, hosts = report.hosts, "kill switch turned");
                drop(reply.send(report));
            }
            AdminRequest::ReleaseReport(reply) => drop(reply.send(core.hub.release_report(now_ns))),
            AdminRequest::ReleaseWaits(reply) => drop(reply.send(core.hub.release_waits(now_ns))),
            AdminRequest::ChangeTopology(change, reply) => {
                core.change_topology(now_ns, &change, reply);
            }
            // Feeds report many times a second: `/status` shows it, and the log does not.
            AdminRequest::SetExternalLoad(load, reply) => {
                let result = core.hub.set_external_load(now_ns, &load);
                tracing::debug!(told = ?load, ?result, "external load");
                drop(reply.send(result));
            }
        });
    }

    /// Starts a survey, or returns a request that is none. Surveys that wait for their turn are as
    /// few as the admin server's requests.
    fn survey(&mut self, request: AdminRequest) -> Option<AdminRequest> {
        let shared = self.shared.clone();
        match request {
            AdminRequest::TopFlows(most, reply) => {
                self.tasks
                    .spawn(async move { drop(reply.send(shared.top_flows(most).await)) });
            }
            AdminRequest::Links(most, reply) => {
                self.tasks
                    .spawn(async move { drop(reply.send(shared.links(most).await)) });
            }
            AdminRequest::Explain(from, to, reply) => {
                self.tasks
                    .spawn(async move { drop(reply.send(shared.explain(&from, &to).await)) });
            }
            other => return Some(other),
        }
        None
    }

    /// Returns the inputs of an engine for another configuration or topology; `None` if the present
    /// engine serves. The engine may be made while the service goes on.
    pub fn engine_plan(
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
        let core = self.shared.lock();
        // The hub's topology has the failures that were notified; the file has not.
        let topology = topology.unwrap_or(core.hub.topology()).clone();
        Some(EnginePlan {
            factory: core.engine.factory(),
            config: new.clone(),
            topology,
        })
    }

    /// Puts another configuration in force, with a new engine and topology if there are any. The
    /// caller has checked everything.
    ///
    /// The hub hands its flows to the new engine in slices. Hosts get no rates until that is done.
    pub fn reload(
        &mut self,
        new: &Config,
        topology: Option<Topology>,
        tls: ServerTls,
        engine: Option<NewEngine>,
    ) {
        let epoch = self.epoch;
        self.shared.run(|core, now_ns| {
            core.hub.reconfigure(now_ns, hub_settings(new, epoch));
            core.serve_relays(tls.peers, new.limits.max_sessions);
            core.certificate_expires_unix_s = tls.expires_unix_s;
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
                core.replace_engine(new, engine);
                core.hub.restart_flows(now_ns, &capacities_bps);
            }
            if let (Some(collector), Some(settings)) = (&self.collector, &new.collector) {
                collector.reconfigure(settings, core.hub.topology());
            }
        });
        self.max_sessions = new.limits.max_sessions as usize;
        self.endpoint
            .set_server_config(Some(transport::server_config(tls.quic)));
    }

    /// Counts a reload.
    pub fn count_reload(&self, result: &'static str) {
        self.shared.lock().hub.counts_mut().reloads.count(result);
    }

    /// Refuses all sessions because the allocator stops, closes the connections and stops the
    /// engine.
    pub async fn shut_down(mut self) {
        // No new connection may come while the others are sent away.
        self.endpoint.set_server_config(None);
        self.shared.run(|core, now_ns| {
            core.draining = true;
            core.hub.refuse_all(
                now_ns,
                RefusalCode::Draining,
                "the allocator is shutting down",
            );
        });
        let drained = async {
            while self.shared.lock().connection_count() > 0 {
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
        // Joins the workers. The one that drives the engine drops it on its own thread.
        drop(self.udp_workers);
    }
}

/// Makes the core and the configured number of UDP workers.
fn start_udp_workers(
    config: &Config,
    hub: Hub,
    engine: EngineHost,
    epoch: u64,
) -> Result<(SharedCore, udp_worker::UdpWorkerThreads), ServiceError> {
    let transport = &config.transport;
    #[cfg(feature = "dpdk")]
    if let Some(interface) = &transport.dpdk {
        let first = transport.udp_port.unwrap_or_default();
        let workers = transport.shards();
        let ports = dpdk::start(interface, workers, first, transport.control_dscp)?;
        let numbers = (first..).take(usize::from(workers)).collect();
        let own = Some(interface.address);
        // Nothing wakes a poll-mode driver's thread: it always spins.
        let policy = if transport.busy_poll {
            IdlePolicy::Spin
        } else {
            IdlePolicy::Yield
        };
        return start_on(config, hub, engine, epoch, ports, numbers, own, policy);
    }
    if transport.shards() == 0 {
        let worker = udp_worker::UdpWorker::without_port(IdlePolicy::Sleep);
        let (worker, queue) = worker.map_err(|source| ServiceError::Bind {
            address: config.listen,
            source,
        })?;
        return run_workers(config, hub, engine, epoch, vec![worker], vec![queue]);
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
    let policy = if transport.busy_poll {
        IdlePolicy::Spin
    } else {
        IdlePolicy::Sleep
    };
    start_on(config, hub, engine, epoch, ports, numbers, None, policy)
}

/// Makes the core and a UDP worker on each of `ports`, whose UDP port numbers are `numbers`.
#[allow(clippy::too_many_arguments, reason = "called twice, in one place")]
fn start_on<P: PacketPort + Send + 'static>(
    config: &Config,
    mut hub: Hub,
    engine: EngineHost,
    epoch: u64,
    ports: Vec<P>,
    numbers: Vec<u16>,
    address: Option<Ipv4Addr>,
    policy: IdlePolicy,
) -> Result<(SharedCore, udp_worker::UdpWorkerThreads), ServiceError> {
    let bind = |source| ServiceError::Bind {
        address: config.listen,
        source,
    };
    let settings = SealedConfig {
        cipher: config.transport.cipher,
        ..SealedConfig::default()
    };
    let (mut workers, mut queues) = (Vec::new(), Vec::new());
    for port in ports {
        let (worker, queue) = udp_worker::UdpWorker::new(port, settings, policy).map_err(bind)?;
        workers.push(worker);
        queues.push(queue);
    }
    hub.offer_sealed(numbers, config.transport.cipher, address);
    run_workers(config, hub, engine, epoch, workers, queues)
}

/// Makes the core and starts the workers' threads.
fn run_workers<P: PacketPort + Send + 'static>(
    config: &Config,
    hub: Hub,
    engine: EngineHost,
    epoch: u64,
    workers: Vec<udp_worker::UdpWorker<P>>,
    queues: Vec<udp_worker::WorkerQueue>,
) -> Result<(SharedCore, udp_worker::UdpWorkerThreads), ServiceError> {
    let signal = engine.signal();
    let shared = SharedCore::new(hub, engine, queues, epoch);
    let threads = udp_worker::start(workers, &shared, &signal);
    let threads = threads.map_err(|source| ServiceError::Bind {
        address: config.listen,
        source,
    })?;
    Ok((shared, threads))
}

/// Sends connections their later rates, a few at a time, and opens the rates once `grace` has passed.
/// Until then the engine keeps the newest rate of each flow. Ends when a worker has died.
async fn send_later_rates(
    shared: SharedCore,
    signal: Arc<engine_host::EngineSignal>,
    grace: Duration,
) {
    let later = shared.lock().later_waits();
    let mut grace = StartGrace::new(grace);
    loop {
        // First those that have come before.
        while shared.run(|core, now_ns| core.send_later(now_ns, LATER_AT_ONCE)) {
            // The runtime polls its sockets between two batches.
            tokio::task::yield_now().await;
        }
        if signal.died() || signal.panicked() {
            return;
        }
        tokio::select! {
            () = signal.wait() => {}
            () = later.notified() => {}
            () = grace.end() => shared.run(|core, _| core.open_rates()),
        }
    }
}
