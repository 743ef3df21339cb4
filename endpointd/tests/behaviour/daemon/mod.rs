//! The daemon without a kernel: a back end that records, a scripted allocator or the real one.

mod admin;
mod allocator;
mod binary;
mod names;
mod promises;
mod recorder;
mod refusals;
mod sealed;
mod second_line;
mod service;
mod session;
mod telemetry;

use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ratewright_endpointd::admin::{AdminRequest, channel};
use ratewright_endpointd::backend::{Conn, FlowEventKind, FlowFacts, SlotIndex};
use ratewright_endpointd::config::Config;
use ratewright_endpointd::daemon::{Daemon, DaemonCommand, DaemonError, Exit};
use ratewright_endpointd::status::Status;
use ratewright_topology::ecmp::FiveTuple;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub fn config(folder: &Path, allocators: &[std::net::SocketAddr], rules: &str) -> Config {
    config_of("h1", folder, allocators, rules)
}

/// The configuration of the host `host`, whose certificate is in `folder`.
pub fn config_of(
    host: &str,
    folder: &Path,
    allocators: &[std::net::SocketAddr],
    rules: &str,
) -> Config {
    let allocators: Vec<String> = allocators
        .iter()
        .map(|address| format!("\"{address}\""))
        .collect();
    let text = format!(
        "host = \"{host}\"\nallocator = [{}]\n[tls]\nca = \"ca.pem\"\ncert = \"{host}.pem\"\nkey = \"{host}.key\"\n\
         [pacing]\nmax_flows = 64\n{rules}",
        allocators.join(", ")
    );
    let path = folder.join(format!("{host}.toml"));
    std::fs::write(&path, text).unwrap();
    Config::load(&path, None).unwrap()
}

pub fn facts(dst: &str, dst_port: u16) -> FlowFacts {
    FlowFacts {
        tuple: FiveTuple {
            src: "10.0.1.1".parse().unwrap(),
            dst: dst.parse::<IpAddr>().unwrap(),
            src_port: 40_000,
            dst_port,
            protocol: 6,
        },
        cgroup_id: 0,
        mark: 0,
        dscp: 0,
        app_max_bytes_per_s: None,
    }
}

pub fn conn(slot: u32) -> Conn {
    Conn {
        slot: SlotIndex(slot),
        use_count: 1,
    }
}

/// Daemon that runs on the test's own thread.
pub struct Running {
    pub commands: mpsc::Sender<DaemonCommand>,
    pub requests: mpsc::Sender<AdminRequest>,
    task: JoinHandle<Result<Exit, DaemonError>>,
}

impl Running {
    pub fn start(config: Config, backend: recorder::Recorder) -> Self {
        let daemon = Daemon::new(config, Box::new(backend)).unwrap();
        let (commands, commanded) = mpsc::channel(4);
        let (requests, asked) = channel();
        Self {
            commands,
            requests,
            task: tokio::task::spawn_local(daemon.run(commanded, asked)),
        }
    }

    pub async fn status(&self) -> Box<Status> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(AdminRequest::Status(answer))
            .await
            .unwrap();
        answered.await.unwrap()
    }

    pub async fn stop(self) -> Result<Exit, DaemonError> {
        self.commands.send(DaemonCommand::Stop).await.unwrap();
        self.ended().await
    }

    pub async fn ended(self) -> Result<Exit, DaemonError> {
        tokio::time::timeout(Duration::from_secs(10), self.task)
            .await
            .expect("the daemon ends")
            .unwrap()
    }
}

/// Starts flow 0 and waits for its rate; its first paced segment took 180 µs.
pub async fn start_paced(kernel: &recorder::BackendScript) {
    kernel.event(conn(0), FlowEventKind::Start(facts("10.0.2.1", 80)));
    kernel.event(
        conn(0),
        FlowEventKind::FirstPaced {
            latency_ns: 180_000,
        },
    );
    until("the flow is paced", || kernel.rate_of(0).is_some()).await;
}

/// Waits until `condition` holds; fails with `what` after ten seconds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("timed out waiting until {what}");
}

/// Runs a test on one thread, as the daemon runs.
pub fn on_one_thread(test: impl Future<Output = ()> + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The daemon and its back end are not `Send`.
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap();
    runtime.block_on(async { tokio::task::spawn_local(test).await.unwrap() });
}

pub type SharedCell<T> = Rc<std::cell::RefCell<T>>;
