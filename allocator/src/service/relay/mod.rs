//! A relay: the paper's intermediary between the allocator and some of its hosts (flowtune §6,
//! "More scalable rate update schemes").
//!
//! | module | contents |
//! |---|---|
//! | `host` | a task per host: its stream to the allocator, its QUIC datagrams |
//! | `sealed` | sealed datagrams of the hosts |
//! | `upstream` | the connection to the allocator |
//! | `state` | state of all tasks: hosts, allocator, the open bundle |
//! | `endpoints` | HTTP for operators and monitoring |
//!
//! To a host the relay is an allocator: it presents a certificate of that name, receives QUIC and
//! sealed datagrams, and forwards the allocator's. It terminates the hosts' transport, not their
//! sessions, and holds no flow and no rate. A host's datagram goes up in a bundle with all others
//! that arrive before the tasks that were ready with it have run. The datagrams of a bundle from
//! the allocator are sent at once. No datagram waits for a timer.
//!
//! When the relay loses the allocator, it closes its hosts' connections and refuses new ones: their
//! daemons connect to other servers on their lists, or try again.

use std::path::Path;
use std::time::Duration;

use quinn::{EndpointConfig, VarInt};
use ratewright_io::quic;
use ratewright_proto::relay::HOST_MTU_BYTES;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admin;
use super::admin::logging::LogControl;
use super::admission::AdmissionConfig;
use super::config::RelayConfig;
use super::entrance::Entrance;
use super::run::{ServiceRunError, received, tick, with_causes};
use super::runtime::{ServiceError, transport};
use super::systemd;
use super::tls::{self, ServerTls};

mod endpoints;
mod host;
mod sealed;
mod state;
mod upstream;

use sealed::SealedHosts;
use state::RelayHandle;
pub use state::{HostStatus, RelayStatus, RelayTotals};

/// Connections beyond the limit of hosts, for those in their handshake or at their end.
const CONNECTION_SLACK: usize = 256;

/// Longest wait for the hosts' connections to close when the relay stops.
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
    /// The first mistake.
    pub fn load(path: &Path) -> Result<Self, ServiceRunError> {
        let config = RelayConfig::load(path)?;
        let server = tls::load(&config.tls, &[ratewright_proto::ALPN])?;
        tls::check_own_name(&config.tls)?;
        let client = upstream::client_config(&config.tls)?;
        Ok(Self {
            config,
            server,
            client,
        })
    }

    /// Returns the configuration's essentials in one line.
    pub fn summary(&self) -> String {
        format!(
            "listen {}, admin {}, allocator {}",
            self.config.listen,
            self.config.admin,
            self.config.allocators.join(", ")
        )
    }
}

/// Runs a relay until a signal stops it.
///
/// # Errors
/// It cannot start, or a part of it died.
pub fn run(path: &Path) -> Result<(), ServiceRunError> {
    let loaded = LoadedRelay::load(path)?;
    let log = LogControl::install(&loaded.config.log)?;
    // Dropped last: the log thread writes the final lines before the process ends.
    let _last_words = ratewright_io::log::FlushAtEnd;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let relay = Relay::start(loaded)?;
        serve_until_signal(relay, path, &log).await
    })
}

/// Serves until SIGTERM or SIGINT; reloads on SIGHUP.
async fn serve_until_signal(
    mut relay: Relay,
    path: &Path,
    log: &LogControl,
) -> Result<(), ServiceRunError> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut watchdog = systemd::watchdog_interval().map(tokio::time::interval);
    systemd::ready();
    loop {
        tokio::select! {
            error = relay.serve() => return Err(error),
            () = received(&mut hangup) => reload(&mut relay, path, log),
            () = tick(watchdog.as_mut()) => systemd::watchdog(),
            () = received(&mut terminate) => break,
            () = received(&mut interrupt) => break,
        }
    }
    tracing::info!("stopping");
    systemd::stopping();
    relay.shut_down().await;
    tracing::info!("stopped");
    Ok(())
}

/// Reloads configuration and certificates. A mistake is logged in one line, and changes nothing.
fn reload(relay: &mut Relay, path: &Path, log: &LogControl) {
    systemd::reloading();
    let reloaded = LoadedRelay::load(path).and_then(|loaded| {
        let filter = loaded.config.log.clone();
        relay.reload(path, loaded)?;
        Ok(log.set(&filter)?)
    });
    match reloaded {
        Ok(()) => tracing::info!("reloaded: certificates and log filter"),
        Err(error) => tracing::error!(
            "reload rejected, the old configuration stays in force: {}",
            with_causes(&error)
        ),
    }
    systemd::ready();
}

/// A running relay.
pub struct Relay {
    config: RelayConfig,
    shared: RelayHandle,
    endpoint: quinn::Endpoint,
    /// Incoming connections of hosts that wait for their turn.
    entrance: Entrance,
    client: watch::Sender<quinn::ClientConfig>,
    tasks: JoinSet<Result<(), std::io::Error>>,
    _admin: admin::AdminServer,
}

impl Relay {
    /// Binds the addresses and starts to connect to an allocator. Must be called on a
    /// current-thread runtime.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub fn start(loaded: LoadedRelay) -> Result<Self, ServiceRunError> {
        let summary = loaded.summary();
        let LoadedRelay {
            config,
            server,
            client,
        } = loaded;
        let bind = |source| ServiceError::Bind {
            address: config.listen,
            source,
        };
        let socket = std::net::UdpSocket::bind(config.listen).map_err(bind)?;
        ratewright_io::udp::widen_buffers(&socket);
        let mut settings = EndpointConfig::default();
        // A host's largest datagram must fit a bundle.
        settings
            .max_udp_payload_size(HOST_MTU_BYTES)
            .map_err(|_| ServiceError::Bind {
                address: config.listen,
                source: std::io::Error::other("the payload bound of hosts is out of range"),
            })?;
        let server = Some(transport::server_config(server.quic));
        let dscp = config.transport.control_dscp;
        let endpoint = quic::endpoint(socket, settings, server, dscp).map_err(bind)?;
        let mut tasks = JoinSet::new();
        // The socket is watched by a task outside the lock, and read under it.
        let mut watched = None;
        let sealed = if config.transport.sealed_udp {
            let port = config.transport.udp_port.unwrap_or(0);
            let address = std::net::SocketAddr::new(config.listen.ip(), port);
            let bind = |source| ServiceError::Bind { address, source };
            let sealed = SealedHosts::bind(address, &config.transport).map_err(bind)?;
            watched = Some(sealed.watch()?);
            Some(sealed)
        } else {
            None
        };
        let shared = RelayHandle::new(sealed);
        if let Some(watched) = watched {
            let shared = shared.clone();
            tasks.spawn(async move { Err(sealed::serve(shared, watched).await) });
        }
        let (client, configured) = watch::channel(client);
        let (keeper, allocators) = (shared.clone(), config.allocators.clone());
        tasks.spawn(async move {
            upstream::keep(keeper, allocators, configured, dscp).await;
            Ok(())
        });
        let app = endpoints::router(shared.clone());
        let admin = admin::serve(&config.admin, app, std::future::ready(()))?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            listen = %endpoint.local_addr()?,
            admin = %admin.address(),
            "ready: relay, {summary}"
        );
        let counted = shared.clone();
        let entrance = Entrance::new(AdmissionConfig::default(), move |reason| {
            counted.lock().counts.hosts_closed.count(reason);
        });
        Ok(Self {
            config,
            shared,
            endpoint,
            entrance,
            client,
            tasks,
            _admin: admin,
        })
    }

    /// Returns the address that hosts connect to.
    ///
    /// # Errors
    /// The operating system does not return it.
    pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
        self.endpoint.local_addr()
    }

    /// True while an allocator is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.lock().upstream().is_some()
    }

    /// Serves until a task fails; returns its error. Cancel-safe: may be dropped and called again.
    pub async fn serve(&mut self) -> ServiceRunError {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.into(),
                    Err(error) => return ServiceError::Panicked(error).into(),
                },
                // Accept all waiting connections before the entrance chooses one of them.
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.take(incoming),
                    // The endpoint is closed by `shut_down` alone, which consumes the relay.
                    None => std::future::pending().await,
                },
                (incoming, turn) = self.entrance.next() => {
                    let shared = self.shared.clone();
                    self.tasks.spawn_local(async move {
                        host::serve(shared, incoming, turn).await;
                        Ok(())
                    });
                }
            }
        }
    }

    /// Closes the hosts' connections, so that their daemons connect to their next server.
    pub async fn shut_down(mut self) {
        self.endpoint.set_server_config(None);
        self.endpoint.close(VarInt::from_u32(0), b"the relay stops");
        let _ = tokio::time::timeout(DRAIN_TIME, self.endpoint.wait_idle()).await;
        self.tasks.abort_all();
    }

    /// Refuses a host that could get no session, so that its daemon tries the next server at once.
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
        // The entrance calls back into the state when it rejects a connection: the lock must be
        // free.
        drop(state);
        // A relay has no topology: it knows hosts by their Hello.
        self.entrance.offer(incoming, false);
    }

    /// Replaces the certificates of later connections.
    ///
    /// # Errors
    /// Other keys than `[tls]` and `log` differ; nothing changes then.
    pub fn reload(&mut self, path: &Path, loaded: LoadedRelay) -> Result<(), ServiceRunError> {
        let LoadedRelay {
            config,
            server,
            client,
        } = loaded;
        // Equal but for what may change: any new key needs a restart until it is listed here.
        let same = RelayConfig {
            log: self.config.log.clone(),
            tls: self.config.tls.clone(),
            ..config.clone()
        };
        if same != self.config {
            return Err(ServiceRunError::NeedsRestart {
                path: path.display().to_string(),
                keys: "all but [tls] and log".to_owned(),
            });
        }
        self.endpoint
            .set_server_config(Some(transport::server_config(server.quic)));
        // The send fails only after the upstream task has died, which ends the relay.
        let _ = self.client.send(client);
        self.config = config;
        Ok(())
    }
}
