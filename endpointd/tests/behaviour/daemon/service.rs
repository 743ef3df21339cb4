//! The production allocator with its engine, on the test's thread.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ratewright_allocator::service::relay::{LoadedRelay, Relay};
use ratewright_allocator::service::run::LoadedConfig;
use ratewright_allocator::service::runtime::engine_host::configured_engine;
use ratewright_allocator::service::runtime::{AllocatorService, ServiceError};
use ratewright_topology::TwoTierClos;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Running allocator; vanishes without a close when dropped.
pub struct Service {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Service {
    /// Starts an allocator for the hosts h1 to h16 of a two-tier Clos network, with `more` in its
    /// configuration.
    pub fn start(folder: &Path, more: &str) -> Self {
        Self::try_start(folder, SocketAddr::from(([127, 0, 0, 1], 0)), more).unwrap()
    }

    /// Starts another incarnation at the address of one that was stopped.
    pub async fn restart(folder: &Path, address: SocketAddr, more: &str) -> Self {
        // The earlier socket closes only after its connections have sent their close.
        for _ in 0..10_000 {
            if let Ok(service) = Self::try_start(folder, address, more) {
                return service;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{address} does not become free");
    }

    fn try_start(folder: &Path, listen: SocketAddr, more: &str) -> Result<Self, ServiceError> {
        let topology = TwoTierClos::default().build().unwrap();
        std::fs::write(folder.join("topology.toml"), topology.to_toml_string()).unwrap();
        let config = format!(
            "listen = \"{listen}\"\nadmin = \"unix:admin.sock\"\ntopology = \"topology.toml\"\n\
             [tls]\nca = \"ca.pem\"\ncert = \"allocator.pem\"\nkey = \"allocator.key\"\n{more}"
        );
        let path = folder.join("allocator.toml");
        std::fs::write(&path, config).unwrap();
        let loaded = LoadedConfig::load(&path).unwrap();
        let (commands, commanded) = mpsc::channel(1);
        let mut service = AllocatorService::start(
            &loaded.config,
            loaded.topology,
            loaded.tls,
            configured_engine(),
            commanded,
        )?;
        let address = service.local_addr().unwrap();
        let task = tokio::task::spawn_local(async move {
            let _commands = commands;
            panic!("the allocator ended: {}", service.serve().await);
        });
        Ok(Self { address, task })
    }

    /// Ends it without notice to its hosts.
    pub async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A relay called `relay-1`, on a thread and a runtime of its own.
pub struct RelayService {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl RelayService {
    /// Starts a relay to an allocator, with the certificate in the folder.
    pub async fn start(folder: &Path, allocator: SocketAddr) -> Self {
        let config = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"unix:relay.sock\"\nallocator = [\"{allocator}\"]\n\
             [tls]\nca = \"ca.pem\"\ncert = \"relay.pem\"\nkey = \"relay.key\"\n\
             [transport]\nhot = \"udp\"\n"
        );
        let path = folder.join("relay.toml");
        std::fs::write(&path, config).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (started, address) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                let mut relay = Relay::start(LoadedRelay::load(&path).unwrap()).unwrap();
                while !relay.is_connected() {
                    tokio::select! {
                        error = relay.serve() => panic!("{error}"),
                        () = tokio::time::sleep(Duration::from_millis(1)) => {}
                    }
                }
                started.send(relay.local_addr().unwrap()).unwrap();
                tokio::select! {
                    error = relay.serve() => panic!("{error}"),
                    stopped = stopped => stopped.unwrap(),
                }
            });
            // Nothing runs any more that could send a close: for others it is as if it were killed.
        });
        Self {
            address: address.await.unwrap(),
            stop,
            thread,
        }
    }

    /// Ends it without notice.
    pub fn vanish(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}
