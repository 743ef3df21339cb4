//! The real binary on loopback, with files in a folder of its own.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ratewright_allocator::service::status::HostFlows;
use ratewright_topology::{Frames, TwoTierClos};
use serde_json::Value;
use tempfile::TempDir;

use super::certificates::TestAuthority;
use super::host::{FlowStates, TestHost};
use super::{PATIENCE, wait_for};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ratewright-allocator");

/// A folder with an allocator's files.
pub(crate) struct TestSite {
    pub(crate) folder: TempDir,
    pub(crate) authority: TestAuthority,
}

impl TestSite {
    /// A site of 4 racks of 4 hosts (h1 to h16), 2 spines, 10 Gbit/s at the hosts.
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let authority = TestAuthority::new();
        let site = Self { folder, authority };
        site.write("ca.pem", &site.authority.pem);
        site.authority.sign(&["ratewright-allocator"]).write(
            site.path(),
            "allocator.pem",
            "allocator.key",
        );
        let topology = TwoTierClos::default().build().expect("good");
        let topology = topology.with_frames(Frames::AS_COUNTED);
        site.write("topology.toml", &topology.to_toml_string());
        site.write("allocator.toml", &site.config("127.0.0.1:0", ""));
        site
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).expect("writable");
    }

    /// Returns a configuration that listens on `listen`, with `more` appended.
    pub(crate) fn config(&self, listen: &str, more: &str) -> String {
        format!(
            "listen = \"{listen}\"\nadmin = \"unix:admin.sock\"\ntopology = \"topology.toml\"\n\
             [tls]\nca = \"ca.pem\"\ncert = \"allocator.pem\"\nkey = \"allocator.key\"\n{more}"
        )
    }

    /// Runs a subcommand to its end. Returns success, standard output and standard error.
    pub(crate) fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let output = Command::new(BINARY)
            .args(arguments)
            .current_dir(self.path())
            .output()
            .expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (
            output.status.success(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    /// Starts the allocator and waits until it is ready.
    pub(crate) fn start(&self) -> AllocatorProcess {
        self.start_with(&[])
    }

    /// Starts the allocator with more variables in its environment.
    pub(crate) fn start_with(&self, environment: &[(&str, &str)]) -> AllocatorProcess {
        let arguments = ["--config", "allocator.toml"];
        self.spawn(&arguments, environment, "log", "admin.sock")
    }

    /// Starts a relay to these allocators, with `more` in its configuration, and waits until it is
    /// connected to one. Its certificate names `relay-1`.
    pub(crate) fn start_relay(&self, allocators: &[SocketAddr], more: &str) -> AllocatorProcess {
        let relay = self.spawn_relay(allocators, more);
        wait_for("the relay is connected to an allocator", PATIENCE, || {
            relay.request("GET", "/ready", "").0 == 200
        });
        relay
    }

    /// Starts a relay without waiting for its connection to an allocator.
    pub(crate) fn spawn_relay(&self, allocators: &[SocketAddr], more: &str) -> AllocatorProcess {
        self.authority
            .sign(&["ratewright-allocator", "relay-1"])
            .write(self.path(), "relay.pem", "relay.key");
        let allocators: Vec<String> = allocators.iter().map(|a| format!("\"{a}\"")).collect();
        let config = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"unix:relay.sock\"\nallocator = [{}]\n\
             [tls]\nca = \"ca.pem\"\ncert = \"relay.pem\"\nkey = \"relay.key\"\n{more}",
            allocators.join(", ")
        );
        self.write("relay.toml", &config);
        let arguments = ["relay", "--config", "relay.toml"];
        self.spawn(&arguments, &[], "relay.log", "relay.sock")
    }

    /// Starts the binary and waits until it is ready.
    fn spawn(
        &self,
        arguments: &[&str],
        environment: &[(&str, &str)],
        log: &str,
        admin: &str,
    ) -> AllocatorProcess {
        let log = self.path().join(log);
        let stderr = std::fs::File::create(&log).expect("writable");
        let child = Command::new(BINARY)
            .args(arguments)
            .current_dir(self.path())
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("the binary starts");
        let mut allocator = AllocatorProcess {
            child,
            log,
            admin: self.path().join(admin),
            // Known once the process is ready.
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        wait_for("the allocator says that it is ready", PATIENCE, || {
            assert!(
                allocator.child.try_wait().expect("a child").is_none(),
                "{}",
                allocator.log()
            );
            allocator.log().contains("ready: ")
        });
        let text = allocator.log();
        let address = text
            .split("listen=")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        // The configured port is 0: only the log has the actual one.
        allocator.listen = address.expect("it says where").parse().expect("an address");
        allocator
    }
}

/// A running allocator or relay; killed when dropped.
pub(crate) struct AllocatorProcess {
    child: Child,
    log: PathBuf,
    admin: PathBuf,
    pub(crate) listen: SocketAddr,
}

impl AllocatorProcess {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the allocator ends", PATIENCE, || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it ended")
    }

    /// Makes a request to the admin server. Returns status code and body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.request_with(method, path, "", body)
    }

    /// Makes a request with more headers, a line each.
    pub(crate) fn request_with(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.admin).expect("the admin server listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        // In one write: a response that needs no body may arrive, and the connection close, before
        // a second one.
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
        let code = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .expect("a status");
        (code, body.to_owned())
    }

    /// Begins a request whose response goes on, such as that for events.
    pub(crate) fn open(&self, path: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.admin).expect("the admin server listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        stream
    }

    pub(crate) fn status(&self) -> Value {
        let (code, body) = self.request("GET", "/status", "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Returns a host's flows; none if the host has no session.
    fn flows(&self, host: &str) -> FlowStates {
        let (code, body) = self.request("GET", &format!("/flows?host={host}"), "");
        if code == 404 {
            return FlowStates::new();
        }
        let answer: HostFlows = serde_json::from_str(&body).expect("a host's flows");
        let flows = answer.flows.iter();
        flows
            .map(|flow| (flow.flow, (flow.dst_host, flow.rate_bps)))
            .collect()
    }

    /// Waits until the allocator has the flows of these hosts and no others, with the hosts' own
    /// rates, none of them 0.
    pub(crate) fn agrees_with(&self, hosts: &[(&str, &TestHost)]) {
        wait_for("both ends have the same flows and rates", PATIENCE, || {
            let equal = |(name, host): &(&str, &TestHost)| {
                let flows = host.flows();
                flows == self.flows(name) && flows.values().all(|&(_, rate_bps)| rate_bps > 0)
            };
            let known: usize = hosts.iter().map(|(_, host)| host.flows().len()).sum();
            // The total rules out flows of hosts that are not listed.
            hosts.iter().all(equal) && self.status()["flows"] == known
        });
    }

    /// Returns the value of a metric, whose labels are a part of `name`; 0 if it is absent.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (code, body) = self.request("GET", "/metrics", "");
        assert_eq!(code, 200, "{body}");
        body.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or(0.0)
    }
}

impl Drop for AllocatorProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
