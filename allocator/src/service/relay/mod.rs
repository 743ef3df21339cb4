//! A relay: the paper's intermediary between the allocator and some of its hosts (flowtune §6, "More
//! scalable rate update schemes").
//!
//! | module | what |
//! |---|---|
//! | `host` | a task per host: its stream to the allocator, its QUIC datagrams |
//! | `sealed` | its hosts' sealed datagrams |
//! | `upstream` | the connection to the allocator |
//! | `state` | what they share: who is where, and the bundle that has begun |
//! | `endpoints` | HTTP for operators and monitoring |
//!
//! To a host the relay is an allocator: it shows a certificate of that name, takes QUIC and sealed
//! datagrams, and passes on what the allocator says. It ends the hosts' transport and none of their
//! sessions; it holds no flow and no rate. A host's datagram goes up in a bundle with whatever else has
//! arrived by the time that the tasks which were ready with it have run; a bundle from the allocator is
//! handed out at once. Nothing waits for a timer.
//!
//! When the allocator is lost, the relay closes its hosts' connections and turns new ones away: their
//! daemons have other servers on their lists, or try again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, TokioRuntime, VarInt};
use ratewright_proto::relay::HOST_MTU_BYTES;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admin;
use super::admin::logging::LogControl;
use super::config::RelayConfig;
use super::daemon::{DaemonError, received, tick, with_causes};
use super::shard::{ShardError, transport};
use super::systemd;
use super::tls::{self, ServerTls};

mod endpoints;
mod host;
mod sealed;
mod state;
mod upstream;

use sealed::SealedHosts;
use state::Shared;
pub use state::{Counts, HostStatus, RelayStatus};

/// Connections beyond the limit of hosts that may be in their handshake or at their end.
const CONNECTION_SLACK: usize = 256;

/// How long hosts are given to hear that the relay goes.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A relay's configuration with its certificates, loaded and checked.
pub struct LoadedRelay {
    /// The configuration.
    pub config: RelayConfig,
    server: ServerTls,
    client: quinn::ClientConfig,
}

impl LoadedRelay {
    /// Loads and checks a configuration file and the certificates that it names.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn load(path: &Path) -> Result<Self, DaemonError> {
        let config = RelayConfig::load(path)?;
        let server = tls::load(&config.tls, &[ratewright_proto::ALPN])?;
        let client = upstream::client_config(&config.tls)?;
        Ok(Self {
            config,
            server,
            client,
        })
    }

    /// What is in force, in one line.
    pub fn summary(&self) -> String {
        format!(
            "listen {}, admin {}, allocator {}",
            self.config.listen,
            self.config.admin,
            self.config.allocators.join(", ")
        )
    }
}

/// Runs a relay until it is told to stop.
///
/// # Errors
/// It cannot start, or a part of it died.
pub fn run(path: &Path) -> Result<(), DaemonError> {
    let loaded = LoadedRelay::load(path)?;
    let log = LogControl::install(&loaded.config.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async move {
        let mut relay = Relay::start(path, loaded, log)?;
        relay.serve().await
    })
}

/// A running relay.
struct Relay {
    path: std::path::PathBuf,
    config: RelayConfig,
    shared: Shared,
    endpoint: quinn::Endpoint,
    client: watch::Sender<quinn::ClientConfig>,
    tasks: JoinSet<Result<(), std::io::Error>>,
    log: LogControl,
    _admin: admin::AdminServer,
}

impl Relay {
    fn start(path: &Path, loaded: LoadedRelay, log: LogControl) -> Result<Self, DaemonError> {
        let summary = loaded.summary();
        let LoadedRelay {
            config,
            server,
            client,
        } = loaded;
        let bind = |source| ShardError::Bind {
            address: config.listen,
            source,
        };
        let socket = std::net::UdpSocket::bind(config.listen).map_err(bind)?;
        let mut settings = EndpointConfig::default();
        // What a host sends is to fit a bundle.
        settings
            .max_udp_payload_size(HOST_MTU_BYTES)
            .map_err(|_| ShardError::Bind {
                address: config.listen,
                source: std::io::Error::other("the payload bound of hosts is out of range"),
            })?;
        let endpoint = quinn::Endpoint::new(
            settings,
            Some(transport::server_config(server.quic)),
            socket,
            Arc::new(TokioRuntime),
        )
        .map_err(bind)?;
        let mut tasks = JoinSet::new();
        let mut watched = None;
        let sealed = if config.transport.sealed_udp {
            let port = config.transport.udp_port.unwrap_or(0);
            let address = std::net::SocketAddr::new(config.listen.ip(), port);
            let bind = |source| ShardError::Bind { address, source };
            let sealed = SealedHosts::bind(address, config.transport.cipher).map_err(bind)?;
            watched = Some(sealed.watch()?);
            Some(sealed)
        } else {
            None
        };
        let shared = Shared::new(sealed);
        if let Some(watched) = watched {
            let shared = shared.clone();
            tasks.spawn(async move { Err(sealed::serve(shared, watched).await) });
        }
        let (client, configured) = watch::channel(client);
        let (keeper, allocators) = (shared.clone(), config.allocators.clone());
        tasks.spawn(async move {
            upstream::keep(keeper, allocators, configured).await;
            Ok(())
        });
        let app = endpoints::router(shared.clone(), log.clone());
        let admin = admin::serve(&config.admin, app)?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            listen = %endpoint.local_addr()?,
            admin = %admin.address(),
            "ready: relay, {summary}"
        );
        Ok(Self {
            path: path.to_owned(),
            config,
            shared,
            endpoint,
            client,
            tasks,
            log,
            _admin: admin,
        })
    }

    async fn serve(&mut self) -> Result<(), DaemonError> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut watchdog = systemd::watchdog_interval().map(tokio::time::interval);
        systemd::ready();
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.take(incoming),
                    // Only after the shutdown below.
                    None => std::future::pending().await,
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(result) => result?,
                    Err(error) => return Err(ShardError::Panicked(error).into()),
                },
                () = received(&mut hangup) => self.reload(),
                () = tick(watchdog.as_mut()) => systemd::watchdog(),
                () = received(&mut terminate) => break,
                () = received(&mut interrupt) => break,
            }
        }
        tracing::info!("stopping");
        systemd::stopping();
        self.endpoint.set_server_config(None);
        self.endpoint.close(VarInt::from_u32(0), b"the relay stops");
        let _ = tokio::time::timeout(DRAIN_TIME, self.endpoint.wait_idle()).await;
        self.tasks.abort_all();
        tracing::info!("stopped");
        Ok(())
    }

    /// Turns a host away that could get no session, so that it goes on to its next server at once.
    fn take(&mut self, incoming: quinn::Incoming) {
        let mut state = self.shared.lock();
        let reason = if state.upstream().is_none() {
            Some("no_allocator")
        } else if state.host_count() >= self.config.max_hosts
            || self.endpoint.open_connections() >= self.config.max_hosts + CONNECTION_SLACK
        {
            Some("full")
        } else {
            None
        };
        if let Some(reason) = reason {
            state.counts.hosts_closed.count(reason);
            drop(state);
            return incoming.refuse();
        }
        drop(state);
        let shared = self.shared.clone();
        self.tasks.spawn(async move {
            host::serve(shared, incoming).await;
            Ok(())
        });
    }

    /// Takes new certificates, for connections from now on, and the log filter. What is wrong is logged in
    /// one line, and what was in force stays.
    fn reload(&mut self) {
        systemd::reloading();
        match self.try_reload() {
            Ok(()) => tracing::info!("reloaded: certificates and log filter"),
            Err(error) => tracing::error!(
                "reload rejected, the old configuration stays in force: {}",
                with_causes(&error)
            ),
        }
        systemd::ready();
    }

    fn try_reload(&mut self) -> Result<(), DaemonError> {
        let LoadedRelay {
            config,
            server,
            client,
        } = LoadedRelay::load(&self.path)?;
        let same = RelayConfig {
            log: self.config.log.clone(),
            tls: self.config.tls.clone(),
            ..config.clone()
        };
        if same != self.config {
            return Err(DaemonError::NeedsRestart {
                path: self.path.display().to_string(),
                keys: "all but [tls] and log".to_owned(),
            });
        }
        self.log.set(&config.log)?;
        self.endpoint
            .set_server_config(Some(transport::server_config(server.quic)));
        // Nobody takes it any more only when the keeper has died, which ends the relay.
        let _ = self.client.send(client);
        self.config = config;
        Ok(())
    }
}
