//! The service: the QUIC endpoint and the control streams on one current-thread runtime, sealed datagrams on
//! threads of their own, and the hub and the engine that both use.
//!
//! | module | what |
//! |---|---|
//! | [`transport`], [`window`] | the QUIC endpoint, its settings and its congestion window |
//! | `connection` | one task per connection: datagrams in, control stream |
//! | `service_core` | what the tasks share, and the one place where things are sent |
//! | `relayed` | relays' connections, each with many hosts |
//! | `udp_worker` | sealed UDP datagrams: a port and a thread per shard |
//! | `idle` | how such a thread is woken and waits |
//! | `dpdk` | ports on an interface that DPDK drives |
//! | [`engine_host`] | the engine as seen from here |
//! | `co_located_engine` | the engine on the thread of the one shard that there is |
//!
//! A QUIC datagram is handed to the hub in its connection's task, a sealed one by its shard's thread. Where the
//! engine has a thread of its own, the hub's events are pushed to it and wake it, and its wake-up runs
//! the rates' task, which sends each touched session its datagrams. Neither waits for a timer. Timeouts
//! of all sessions share one wheel.

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

use engine_host::{EngineFactory, EngineHost, EngineThread};
use idle::IdlePolicy;
pub(super) use service_core::OVERTAKEN_NS;
use service_core::SharedCore;
use start_grace::StartGrace;

/// Connections beyond the limit of sessions that may be in their handshake or at their end.
const CONNECTION_SLACK: usize = 1_024;

/// Rates that are handed out before the runtime gets to look at its sockets again.
const MAX_RATES_PER_TURN: usize = 8_192;

/// Connections that are sent later rates before the runtime gets to look at its sockets again: some 20 µs
/// each.
const LATER_AT_ONCE: usize = 16;

/// How long hosts are given to take the last word at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Why the service cannot run, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The UDP address cannot be bound.
    #[error("listen = \"{address}\": cannot bind")]
    Bind {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// DPDK does not drive the configured interface.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Interface(#[from] dpdk::InterfaceError),
    /// The engine refused its settings.
    #[error("the engine cannot start")]
    Engine(#[from] EngineError),
    /// The engine thread ended.
    #[error("the engine thread died")]
    EngineDied,
    /// A thread that serves sealed datagrams panicked.
    #[error("a thread of sealed datagrams panicked")]
    UdpWorkerPanicked,
    /// A task of the service panicked.
    #[error("a task of the service panicked")]
    Panicked(#[from] JoinError),
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The service on the current runtime, which must be a current-thread one.
pub struct AllocatorService {
    shared: SharedCore,
    endpoint: quinn::Endpoint,
    requests: mpsc::Receiver<AdminRequest>,
    tasks: JoinSet<()>,
    /// Connection attempts that wait for their turn.
    entrance: Entrance,
    max_sessions: usize,
    epoch: u64,
    signal: Arc<engine_host::EngineSignal>,
    /// Ended with the shard.
    sealed: udp_worker::UdpWorkerThreads,
}

/// The hub's part of a configuration.
pub(super) fn hub_settings(config: &Config, epoch: u64) -> HubSettings {
    HubSettings {
        epoch,
        lease_ns: config.allocation.lease_ms * 1_000_000,
        update_interval_ns: config.allocation.update_interval_us * 1_000,
        ack_delay_ns: config.allocation.ack_delay_ms * 1_000_000,
        liveness_ns: config.allocation.liveness_ms * 1_000_000,
        threshold: config.allocation.threshold,
        external_share: config.allocation.external_share,
        limits: config.limits,
        trust: config.trust.clone(),
        classes: config.classes.clone(),
    }
}

/// What an engine is made of.
pub struct EnginePlan {
    factory: EngineFactory,
    config: Config,
    topology: Topology,
}

/// An engine that knows no flows.
pub struct NewEngine {
    engine: Box<dyn RateEngine>,
    /// What it takes links' capacities for.
    capacities_bps: Vec<f64>,
}

impl EnginePlan {
    /// Makes the engine, which takes its time.
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
        let engine = EngineHost::start(factory, config, hub.topology(), &hub.capacities_bps())?;
        let endpoint = transport::bind(config.listen, tls.quic, config.transport.control_dscp)
            .map_err(|source| ServiceError::Bind {
                address: config.listen,
                source,
            })?;
        let (shared, sealed) = start_sealed(config, hub, engine, epoch)?;
        shared
            .lock()
            .serve_relays(tls.peers, config.limits.max_sessions);
        let signal = shared.lock().engine.signal();
        let mut tasks = JoinSet::new();
        let grace = Duration::from_millis(config.allocation.start_grace_ms);
        tasks.spawn(hand_out_rates(shared.clone(), Arc::clone(&signal), grace));
        if shared.lock().engine.engine_thread() == EngineThread::Own {
            tasks.spawn(serve_timers(shared.clone()));
            tasks.spawn(sweep_flows(shared.clone(), config.transport.shards() > 0));
        }
        let counted = shared.clone();
        let entrance = Entrance::new(AdmissionConfig::default(), move |reason| {
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
            sealed,
        })
    }

    /// The address that the endpoint is bound to.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
        self.endpoint.local_addr()
    }

    /// This incarnation of the allocator.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Serves until something breaks. Cancel-safe: may be dropped and called again.
    pub async fn serve(&mut self) -> ServiceError {
        loop {
            tokio::select! {
                biased;
                Some(request) = self.requests.recv() => self.execute(request),
                Some(ended) = self.tasks.join_next() => match ended {
                    // Connections end; the rates' task ends when the engine or a shard did.
                    Ok(()) if self.signal.panicked() => return ServiceError::UdpWorkerPanicked,
                    Ok(()) if self.signal.died() => return ServiceError::EngineDied,
                    Ok(()) => {}
                    Err(error) => return ServiceError::Panicked(error),
                },
                // All that have come, before one of them is chosen.
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.take(incoming),
                    // Only after `shut_down`, which takes the shard.
                    None => std::future::pending().await,
                },
                (incoming, turn) = self.entrance.next() => {
                    self.tasks.spawn(connection::serve(self.shared.clone(), incoming, turn));
                }
            }
        }
    }

    fn take(&mut self, incoming: quinn::Incoming) {
        // Sessions and handshakes have bounds of their own; relays' connections and those that end are counted here.
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

    /// Answers the admin server. An asker that is gone needs no answer.
    fn execute(&mut self, request: AdminRequest) {
        if let AdminRequest::Status(reply) = request {
            let shared = self.shared.clone();
            self.tasks
                .spawn(async move { drop(reply.send(Box::new(shared.status().await))) });
            return;
        }
        self.shared.run(|core, now_ns| match request {
            AdminRequest::Ping(reply) => drop(reply.send(())),
            AdminRequest::Snapshot(reply) => drop(reply.send(Box::new(core.snapshot()))),
            AdminRequest::Status(_) => {}
            AdminRequest::Flows(host, reply) => drop(reply.send(core.hub.flows_of(&host))),
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
            // Feeds tell this many times a second: it stands in `/status`, and not in the log.
            AdminRequest::SetExternalLoad(told, reply) => {
                let result = core.hub.set_external_load(now_ns, &told);
                tracing::debug!(?told, ?result, "external load");
                drop(reply.send(result));
            }
        });
    }

    /// What an engine for another configuration, and perhaps another topology, is made of. It may be made while the
    /// service goes on.
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
        let topology = topology.unwrap_or(core.hub.topology()).clone();
        Some(EnginePlan {
            factory: core.engine.factory(),
            config: new.clone(),
            topology,
        })
    }

    /// Puts another configuration in force, with an engine for it if it needs one, and another topology if there
    /// is one. Everything was checked before. Flows are put before the new engine a few at a time; hosts hear no
    /// rates until it knows all.
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
            core.close_distrusted_relays();
            if let Some(topology) = topology {
                core.hub.replace_topology(now_ns, topology);
            }
            if let Some(NewEngine {
                engine,
                capacities_bps,
            }) = engine
            {
                core.replace_engine(new, engine);
                core.hub.restart_flows(&capacities_bps);
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

    /// Tells every host that the allocator goes, closes the connections and stops the engine.
    pub async fn shut_down(mut self) {
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
        drop(self.sealed);
        self.shared.lock().engine.stop();
    }
}

/// Makes the state, and the ports and threads of sealed datagrams as far as the configuration asks for
/// them.
fn start_sealed(
    config: &Config,
    hub: Hub,
    engine: EngineHost,
    epoch: u64,
) -> Result<(SharedCore, udp_worker::UdpWorkerThreads), ServiceError> {
    let transport = &config.transport;
    #[cfg(feature = "dpdk")]
    if let Some(interface) = &transport.dpdk {
        let first = transport.udp_port.unwrap_or_default();
        let shards = transport.shards();
        let ports = dpdk::start(interface, shards, first, transport.control_dscp)?;
        let numbers = (first..).take(usize::from(shards)).collect();
        let own = Some(interface.address);
        // Nothing wakes a poll-mode driver's thread: it always spins.
        let policy = if transport.busy_poll {
            IdlePolicy::Spin
        } else {
            IdlePolicy::Yield
        };
        return start_on(config, hub, engine, epoch, ports, numbers, own, policy);
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

/// The state, and a shard on each of `ports`, whose UDP ports are `numbers`.
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
    let signal = engine.signal();
    if let Some(first) = queues.first() {
        signal.set_udp_worker(Arc::clone(&first.waker));
    }
    let shared = SharedCore::new(hub, engine, queues, epoch);
    let threads = udp_worker::start(workers, &shared, &signal).map_err(bind)?;
    Ok((shared, threads))
}

/// Hands out rates whenever the engine has some, once `grace` has passed: until then the engine keeps
/// the newest rate of each flow. Sends connections their later rates, a few at a time. Ends when the engine has died.
async fn hand_out_rates(
    shared: SharedCore,
    signal: Arc<engine_host::EngineSignal>,
    grace: Duration,
) {
    let later = shared.lock().later_waits();
    let mut grace = StartGrace::new(grace);
    loop {
        // First those that have come before.
        while shared.run(|core, now_ns| {
            let more = core.take_rates(now_ns, MAX_RATES_PER_TURN);
            core.send_later(now_ns, LATER_AT_ONCE) | more
        }) {
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

/// Looks at flows after a change of the network, where no shard does it. Datagrams are taken in between; `shards`: on
/// other threads, which get as much time with the state.
async fn sweep_flows(shared: SharedCore, shards: bool) {
    let waits = shared.lock().sweep_due();
    loop {
        waits.notified().await;
        while shared.run(|core, now_ns| core.sweep(now_ns)) {
            if shards || !shared.lock().can_sweep() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Serves the sessions' timeouts.
async fn serve_timers(shared: SharedCore) {
    let changed = shared.lock().timers_changed();
    loop {
        let next_ns = shared.lock().next_timer_ns();
        match next_ns {
            None => changed.notified().await,
            Some(at_ns) => {
                let at = tokio::time::Instant::from_std(clock::instant_at(at_ns));
                tokio::select! {
                    () = tokio::time::sleep_until(at) => {
                        shared.run(|core, now_ns| core.on_timers(now_ns));
                    }
                    () = changed.notified() => {}
                }
            }
        }
    }
}
