//! A process with the struct_ops back end, which is killed with SIGKILL.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use ratewright_endpointd::clock::now_ns;

use super::backend::{StructOpsDriver, config};
use super::{Namespace, NamespacePair, sleep};

const NAMESPACE: &str = "RATEWRIGHT_TEST_NAMESPACE";
const TAG: &str = "RATEWRIGHT_TEST_TAG";
const PACES: &str = "RATEWRIGHT_TEST_PACES";

/// Plays the process, under the name `daemon_process` in each test binary; does nothing in other
/// runs. It paces the first flows that it sees, says when their lease ends, and waits for its
/// death. It makes no pass over the sockets.
pub fn play() {
    let Ok(namespace) = std::env::var(NAMESPACE) else {
        return;
    };
    Namespace(namespace).enter();
    let paces = std::env::var(PACES).expect("set");
    let paces: Vec<u64> = paces
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    let mut driver = StructOpsDriver::here(&config(&std::env::var(TAG).expect("tag")));
    println!("\nopened");
    let conns = driver.starts(usize::try_from(paces[0]).expect("few"));
    let expires = now_ns() + paces[2] * 1_000_000;
    for conn in conns {
        driver.set(conn, paces[1], expires);
    }
    println!("\nlease {expires} {}", driver.backend.name());
    // Killed long before; the bound keeps a test that fails from leaving it behind.
    sleep(Duration::from_secs(60));
}

/// The process, killed at the end.
pub struct DaemonProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// End of the lease, once it paces.
    pub expires: u64,
    /// Name of its congestion control, once it paces.
    pub name: String,
}

impl DaemonProcess {
    /// Starts it in the left namespace. It paces `flows` flows at `mbit` for `lease_ms`.
    pub fn start(pair: &NamespacePair, flows: usize, mbit: u64, lease_ms: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "daemon_process", "--nocapture"])
            .env(NAMESPACE, &pair.left.0)
            .env(TAG, &pair.tag)
            .env(PACES, format!("{flows} {mbit} {lease_ms}"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the daemon process");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut process = Self {
            child,
            lines,
            expires: 0,
            name: String::new(),
        };
        process.says("opened");
        process
    }

    fn says(&mut self, word: &str) -> String {
        self.lines
            .by_ref()
            .map(|line| line.expect("output"))
            .find(|line| line.starts_with(word))
            .unwrap_or_else(|| panic!("it ended before it said `{word}`"))
    }

    /// Waits until it paces its flows.
    pub fn paces(&mut self) {
        let line = self.says("lease ");
        let words: Vec<_> = line.split(' ').collect();
        self.expires = words[1].parse().expect("a time");
        self.name = words[2].to_owned();
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("reaped");
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
