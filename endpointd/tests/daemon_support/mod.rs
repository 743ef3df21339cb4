//! Shared parts of the daemon's tests: certificates, a back end that records, and a scripted
//! allocator.

#![allow(dead_code, unreachable_pub)] // a module of several test programs; each uses its part

pub mod allocator;
pub mod backend;
pub mod service;

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ratewright_endpointd::admin::{self, AdminRequest};
use ratewright_endpointd::backend::{Conn, FlowFacts, SlotIndex};
use ratewright_endpointd::config::Config;
use ratewright_endpointd::daemon::{Daemon, DaemonCommand, DaemonError, Exit};
use ratewright_endpointd::status::Status;
use ratewright_topology::ecmp::FiveTuple;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// A certificate authority that writes PEM files.
pub struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

impl TestAuthority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn issue(&self, folder: &Path, file: &str, dns_name: &str) {
        self.issue_for(folder, file, &[dns_name]);
    }

    /// Writes `NAME.pem` and `NAME.key` for any number of DNS names.
    pub fn issue_for(&self, folder: &Path, file: &str, dns_names: &[&str]) {
        let names: Vec<String> = dns_names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        // Both usages, so that one helper serves hosts, allocators and relays, which are client and
        // server.
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

/// A folder with the usual certificates: one authority, host `h1`, the allocator.
pub fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write(&folder.path().join("ca.pem"));
    authority.issue(folder.path(), "h1", "h1");
    authority.issue(folder.path(), "allocator", "ratewright-allocator");
    folder
}

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
    pub fn start(config: Config, backend: backend::Recorder) -> Self {
        let daemon = Daemon::new(config, Box::new(backend)).unwrap();
        let (commands, commanded) = mpsc::channel(4);
        let (requests, asked) = admin::channel();
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

/// Reads what an admin interface at a Unix socket shows; `None` while it does not answer.
pub fn status(socket: &Path) -> Option<serde_json::Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .write_all(b"GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}
