//! Start, reload and stop of the allocator.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrics_exporter_prometheus::BuildError;
use ratewright_io::log::FlushAtEnd;
use ratewright_io::tls::TlsError;
use ratewright_proto::{SessionError, relay};
use ratewright_topology::{PartitionError, Topology, TopologyError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

use super::admin::logging::{LogControl, LogFilterError};
use super::admin::{self, AdminError, AdminServer, AdminState, metrics};
use super::audit::{AuditLog, Who};
use super::config::{Config, ConfigError};
use super::health::Health;
use super::hub::check_welcome;
use super::runtime::engine_host::EngineFactory;
use super::runtime::{AllocatorService, EnginePlan, NewEngine, ServiceError, hub_settings};
use super::systemd;
use super::tls::{self, ServerTls};
use crate::engine::EngineError;

/// Maximum of requests of the admin server that wait.
const REQUEST_QUEUE: usize = 64;

/// Reason for which the allocator cannot start, or ended. As everywhere here, an error's text
/// leaves out that of its source: [`with_causes`] joins them.
#[derive(Debug, thiserror::Error)]
pub enum ServiceRunError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The admin server.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The service.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The log filter.
    #[error(transparent)]
    Log(#[from] LogFilterError),
    /// The metrics recorder.
    #[error("metrics")]
    Metrics(#[from] BuildError),
    /// The operating system.
    #[error("the operating system refuses")]
    Os(#[from] std::io::Error),
    /// The topology or the classes make a message that no host accepts.
    #[error("{}: hosts cannot be welcomed to it", path.display())]
    Unwelcome {
        /// The topology file.
        path: PathBuf,
        /// Fault of the message.
        source: SessionError,
    },
    /// A rack of `[membership]` does not exist, or none can be told.
    #[error("{}: membership.racks: {problem}", path.display())]
    Racks {
        /// The configuration file.
        path: PathBuf,
        /// Fault.
        problem: String,
    },
    /// The topology cannot be cut into this number of blocks.
    #[error("{}: allocation.blocks = {blocks}: {} cannot be cut so", path.display(), topology.display())]
    Blocks {
        /// The configuration file.
        path: PathBuf,
        /// Configured number.
        blocks: u32,
        /// The topology file.
        topology: PathBuf,
        /// Cause.
        source: PartitionError,
    },
    /// The collector's configuration names a link that does not exist.
    #[error("{}: feeds.collector.interface: no link leads from {from:?} to {to:?} in {}", path.display(), topology.display())]
    NoLink {
        /// The configuration file.
        path: PathBuf,
        /// Configured node at the sending end.
        from: String,
        /// Configured node at the receiving end.
        to: String,
        /// The topology file.
        topology: PathBuf,
    },
    /// A reload changes keys that need a restart.
    #[error("{path}: {keys} cannot change without a restart")]
    NeedsRestart {
        /// The configuration file.
        path: String,
        /// The keys.
        keys: String,
    },
}

/// Returns an error in one line, with its causes behind it.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text.replace('\n', " ")
}

/// Configuration with the files that it names, loaded and checked.
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Its topology.
    pub topology: Topology,
    /// Its certificates.
    pub tls: ServerTls,
}

impl LoadedConfig {
    /// Loads and checks a configuration file and the files that it names.
    ///
    /// # Errors
    /// The first fault; see [`ServiceRunError`].
    pub fn load(path: &Path) -> Result<Self, ServiceRunError> {
        let config = Config::load(path)?;
        let topology = Topology::load(&config.topology)?;
        let settings = hub_settings(&config, u64::MAX);
        check_welcome(&settings, &topology).map_err(|source| ServiceRunError::Unwelcome {
            path: config.topology.clone(),
            source,
        })?;
        if let Some(blocks) = config.allocation.blocks {
            let unfit = |source| ServiceRunError::Blocks {
                path: path.to_owned(),
                blocks,
                topology: config.topology.clone(),
                source,
            };
            topology.partition(blocks).map_err(unfit)?;
        }
        if let Some(collector) = &config.collector
            && let Some(interface) = collector.without_link(&topology)
        {
            return Err(ServiceRunError::NoLink {
                path: path.to_owned(),
                from: interface.from.clone(),
                to: interface.to.clone(),
                topology: config.topology,
            });
        }
        if let Some(problem) = config.membership.problem(&topology) {
            let path = path.to_owned();
            return Err(ServiceRunError::Racks { path, problem });
        }
        let tls = tls::load(&config.tls, &[ratewright_proto::ALPN, relay::ALPN])?;
        Ok(Self {
            config,
            topology,
            tls,
        })
    }

    /// Returns a note on the topology file, if it is worth one.
    pub fn topology_note(&self) -> Option<String> {
        let note = self.topology.note()?;
        Some(format!("{}: {note}", self.config.topology.display()))
    }

    /// Returns a summary in one line.
    pub fn summary(&self) -> String {
        format!(
            "listen {}, admin {}, {} topology of {} hosts and {} links, {} class{}, lease {} ms",
            self.config.listen,
            self.config.admin,
            self.topology.kind(),
            self.topology.host_count(),
            self.topology.links().len(),
            self.config.classes.len(),
            if self.config.classes.len() == 1 {
                ""
            } else {
                "es"
            },
            self.config.allocation.lease_ms,
        )
    }
}

/// Runs the allocator until a signal stops it.
///
/// # Errors
/// It cannot start, or a part of it died.
pub fn run(path: &Path, factory: EngineFactory) -> Result<(), ServiceRunError> {
    let loaded = LoadedConfig::load(path)?;
    let log = LogControl::install(&loaded.config.log)?;
    // A thread of its own writes the log: without this its last lines would be lost at the end.
    let _last_words = FlushAtEnd;
    for warning in loaded.config.warnings() {
        tracing::warn!("{warning}");
    }
    let prometheus = metrics::install()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let health = Arc::new(Health::default());
        health.set_topology_loaded();
        let (request_sender, requests) = mpsc::channel(REQUEST_QUEUE);
        let summary = loaded.summary();
        let note = loaded.topology_note();
        let LoadedConfig {
            config,
            topology,
            tls,
        } = loaded;
        let service = AllocatorService::start(&config, topology.clone(), tls, factory, requests)?;
        // After the start, which makes the engine and binds the port: a failure before has ended
        // the process.
        health.set_engine_running();
        health.set_listening();
        let audit = AuditLog::default();
        audit.reopen(config.audit.as_deref());
        let admin = AdminState::new(
            request_sender,
            Arc::clone(&health),
            log.clone(),
            audit.clone(),
            prometheus,
        );
        let app = admin::router(admin.clone());
        let admin = admin::serve(&config.admin, app, admin.make_events())?;
        if let Some(note) = note {
            tracing::info!("{note}");
        }
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            epoch = service.epoch(),
            listen = %service.local_addr()?,
            admin = %admin.address(),
            "ready: {summary}"
        );
        let daemon = RunningService {
            path: path.to_owned(),
            config,
            topology,
            service,
            health,
            log,
            audit,
            _admin: admin,
        };
        daemon.serve().await
    })
}

/// Running allocator.
struct RunningService {
    path: PathBuf,
    config: Config,
    /// Topology as in its file, without failures that were notified since.
    topology: Topology,
    service: AllocatorService,
    health: Arc<Health>,
    log: LogControl,
    audit: AuditLog,
    _admin: AdminServer,
}

impl RunningService {
    async fn serve(mut self) -> Result<(), ServiceRunError> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut watchdog = systemd::watchdog_interval().map(tokio::time::interval);
        systemd::ready();
        // A reload has three states: its files are being read, its engine is being made, and
        // `again` if another reload was requested meanwhile.
        let mut loading: Option<JoinHandle<Result<LoadedConfig, ServiceRunError>>> = None;
        let mut making: Option<JoinHandle<Result<NewEngine, EngineError>>> = None;
        let mut loaded: Option<LoadedConfig> = None;
        let mut again = false;
        loop {
            // One reload at a time: requests during one lead to a single one after it.
            if again && loading.is_none() && making.is_none() {
                again = false;
                systemd::reloading();
                let path = self.path.clone();
                // Reading and checking a large topology would keep the service thread from its
                // hosts.
                loading = Some(tokio::task::spawn_blocking(move || {
                    LoadedConfig::load(&path)
                }));
            }
            tokio::select! {
                error = self.service.serve() => {
                    // Readiness then says why, until the process has ended.
                    if matches!(error, ServiceError::EngineDied) {
                        self.health.set_engine_died();
                    }
                    return Err(error.into());
                }
                () = received(&mut hangup) => again = true,
                read = finished(&mut loading) => {
                    let read = read.map_err(ServiceError::Panicked)?;
                    if let Some((ready, engine)) = self.on_loaded(read).await {
                        (loaded, making) = (Some(ready), Some(engine));
                    }
                }
                made = finished(&mut making) => {
                    match (made.map_err(ServiceError::Panicked)?, loaded.take()) {
                        (Ok(engine), Some(loaded)) => self.apply_reload(loaded, Some(engine)).await,
                        (Err(error), _) => self.reject(&ServiceError::from(error).into()).await,
                        (Ok(_), None) => {}
                    }
                }
                () = tick(watchdog.as_mut()) => systemd::watchdog(),
                () = received(&mut terminate) => break,
                () = received(&mut interrupt) => break,
            }
        }
        tracing::info!("stopping");
        systemd::stopping();
        self.health.set_stopping();
        self.service.shut_down().await;
        tracing::info!("stopped");
        Ok(())
    }

    /// Takes a loaded configuration. A fault is logged in one line, and the present configuration
    /// stays.
    async fn on_loaded(
        &mut self,
        loaded: Result<LoadedConfig, ServiceRunError>,
    ) -> Option<MakingEngine> {
        let checked = match loaded {
            Ok(loaded) => self.check_reload(loaded).await,
            Err(error) => Err(error),
        };
        match checked {
            Ok((loaded, Some(plan))) => {
                // The service goes on while the engine is made, too.
                let making = tokio::task::spawn_blocking(|| plan.make());
                Some((loaded, making))
            }
            Ok((loaded, None)) => {
                self.apply_reload(loaded, None).await;
                None
            }
            Err(error) => {
                self.reject(&error).await;
                None
            }
        }
    }

    async fn reject(&self, error: &ServiceRunError) {
        self.service.count_reload("rejected").await;
        // A rotated file is left alone even if the configuration has a fault.
        self.audit.reopen(self.config.audit.as_deref());
        self.record_reload(with_causes(error));
        tracing::error!(
            "reload rejected, the old configuration stays in force: {}",
            with_causes(error)
        );
        systemd::ready();
    }

    fn record_reload(&self, result: String) {
        let file = self.path.display().to_string();
        let (who, action) = (Who::Signal, "reload".to_owned());
        self.audit.record(who, action, file.as_bytes(), result);
    }

    async fn check_reload(
        &self,
        loaded: LoadedConfig,
    ) -> Result<(LoadedConfig, Option<EnginePlan>), ServiceRunError> {
        let keys = loaded.config.restart_keys_changed(&self.config);
        if !keys.is_empty() {
            let path = self.path.display().to_string();
            return Err(ServiceRunError::NeedsRestart {
                path,
                keys: keys.join(", "),
            });
        }
        let topology = self.changed_topology(&loaded);
        let plan = self
            .service
            .engine_plan(&self.config, &loaded.config, topology)
            .await;
        Ok((loaded, plan))
    }

    /// Returns the topology of a reload, if it differs. Otherwise failures that were notified since
    /// the start stay in force.
    fn changed_topology<'a>(&self, loaded: &'a LoadedConfig) -> Option<&'a Topology> {
        Some(&loaded.topology).filter(|topology| **topology != self.topology)
    }

    /// Puts a checked configuration in force; no step of it can fail.
    async fn apply_reload(&mut self, loaded: LoadedConfig, engine: Option<NewEngine>) {
        let summary = loaded.summary();
        let topology = self.changed_topology(&loaded).cloned();
        self.service
            .reload(&loaded.config, topology, loaded.tls, engine)
            .await;
        // The filter was checked with the rest.
        if loaded.config.log != self.config.log
            && let Err(error) = self.log.set(&loaded.config.log)
        {
            tracing::error!("the log filter stays: {}", with_causes(&error));
        }
        for warning in loaded.config.warnings() {
            tracing::warn!("{warning}");
        }
        self.config = loaded.config;
        self.topology = loaded.topology;
        self.service.count_reload("ok").await;
        self.audit.reopen(self.config.audit.as_deref());
        self.record_reload("ok".to_owned());
        tracing::info!("reloaded: {summary}");
        systemd::ready();
    }
}

/// Configuration whose engine is being made.
type MakingEngine = (LoadedConfig, JoinHandle<Result<NewEngine, EngineError>>);

/// Waits for a task's result; for ever if there is no task.
async fn finished<T>(working: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match working {
        Some(handle) => {
            let result = handle.await;
            *working = None;
            result
        }
        None => std::future::pending().await,
    }
}

/// Waits for a signal; for ever if it can no longer come.
pub(super) async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

pub(super) async fn tick(interval: Option<&mut tokio::time::Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}
