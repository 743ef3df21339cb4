//! A process that owns a back end and is killed with SIGKILL.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use ratewright_endpointd::backend::{BackendKind, open};
use ratewright_endpointd::clock::now_ns;

use super::{Driver, FOREVER_NS, MS, alone, config, config_of, ensure_kept, wire_mbit};
use crate::netns::cubic::cubic_pair;
use crate::netns::tries::best_of_three;
use crate::netns::{BulkReceiver, BulkSender, NamespacePair, RIGHT_V4, assert_lifted, wait_for};

/// Environment variable that makes the process the owner: back end and instance.
const ROLE: &str = "RATEWRIGHT_TEST_OWNER";
const LEASE_NS: u64 = 300 * MS;
pub const RATE_MBIT: u64 = 50;

/// Plays the owner, which a test starts by this name; does nothing without the role.
#[test]
fn owner_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (kind, instance) = role.split_once(' ').expect("two words");
    let kind = match kind {
        "SockOps" => BackendKind::SockOps,
        _ => BackendKind::TcHtb,
    };
    let mut driver = Driver::here(kind, &config_of(instance));
    // The newline ends the test harness's own output, so the word stands on a line of its own.
    println!("\nopened");
    let conn = driver.started();
    driver.set(conn, RATE_MBIT, now_ns() + LEASE_NS);
    println!("\npaced");
    loop {
        driver.run_for(Duration::from_millis(50));
        driver.backend.renew(now_ns() + LEASE_NS).expect("renew");
    }
}

pub struct Owner {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Owner {
    /// Starts the owner through `ip netns exec`, which gives it a mount namespace of its own:
    /// mounts made there end with it.
    pub fn start(kind: BackendKind, pair: &NamespacePair) -> Self {
        let program = std::env::current_exe().expect("a test binary");
        let mut process = Command::new("ip")
            .args(["netns", "exec", &pair.left.0])
            .arg(program)
            .args([
                "--exact",
                "backends::owner::owner_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, format!("{kind:?} {}", pair.tag))
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the owner");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines }
    }

    pub fn wait_for(&mut self, word: &str) {
        let said = self
            .lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line == word);
        assert!(said, "the owner ended before it said `{word}`");
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("SIGKILL");
        self.process.wait().expect("killed");
    }
}

/// Removes the killed owner's remains when the test fails.
struct Sweep<'pair>(BackendKind, &'pair NamespacePair);

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.left.enter();
            if let Ok(mut backend) = open(Some(self.0), &config(self.1)) {
                let _ = backend.shut_down();
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks a flow whose owner is killed: it is paced until the lease has run out, unpaced
/// `settle_ms` later, and alive throughout. A new owner adopts the connection, paces it again, and
/// leaves nothing behind when it shuts down.
pub fn a_killed_owner_leaves_plain_tcp_and_a_restart_adopts(
    kind: BackendKind,
    wire_per_payload: f64,
    settle_ms: u64,
    left_behind: fn(&NamespacePair) -> Vec<String>,
) {
    best_of_three(|| try_restart(kind, wire_per_payload, settle_ms, left_behind));
}

fn try_restart(
    kind: BackendKind,
    wire_per_payload: f64,
    settle_ms: u64,
    left_behind: fn(&NamespacePair) -> Vec<String>,
) -> Result<()> {
    let _alone = alone();
    let pair = cubic_pair();
    let _sweep = Sweep(kind, &pair);
    let mut owner = Owner::start(kind, &pair);
    owner.wait_for("opened");
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    owner.wait_for("paced");
    // Longer than a lease: the rate holds only because the owner renews it.
    std::thread::sleep(Duration::from_millis(500));
    let killed = now_ns();
    owner.kill();
    // The last renewal came before the kill.
    let lapsed = now_ns() + LEASE_NS;
    wait_for("the lease's end", Duration::from_secs(2), || {
        (now_ns() > lapsed).then_some(())
    });
    std::thread::sleep(Duration::from_millis(400));
    let restarted = now_ns();
    assert!(
        !left_behind(&pair).is_empty(),
        "the kernel's part outlives the owner"
    );

    let mut driver = Driver::open(kind, &pair);
    assert_eq!(
        driver.backend.stats().adopted,
        1,
        "one connection was taken over"
    );
    let conn = driver.started();
    driver.set(conn, RATE_MBIT, FOREVER_NS);
    let paced_again = now_ns();
    driver.run_for(Duration::from_millis(800));
    let end = now_ns();
    driver.backend.shut_down().expect("shut down");
    assert_eq!(
        left_behind(&pair),
        Vec::<String>::new(),
        "a clean shut-down leaves nothing"
    );
    std::thread::sleep(Duration::from_millis(300));
    let after = now_ns();
    let written = sender.stop();
    let trace = receiver.finish().remove(0);

    assert_eq!(
        trace.last().map(|last| last.1),
        Some(written),
        "not a byte is lost"
    );
    let rate = |from, to| wire_mbit(&trace, from, to, wire_per_payload);
    let kept = |from, to| ensure_kept(&trace, from, to, wire_per_payload, RATE_MBIT as f64);
    let before = kept(killed - 350 * MS, killed);
    let again = kept(paced_again + 100 * MS, end);
    assert_lifted(&trace, lapsed + settle_ms * MS, restarted, RATE_MBIT as f64);
    assert_lifted(&trace, end + 100 * MS, after, RATE_MBIT as f64);
    let dead = rate(lapsed + settle_ms * MS, restarted);
    let given_back = rate(end + 100 * MS, after);
    println!("killed and lapsed {dead:.0}, given back {given_back:.0} Mbit/s");
    ensure!(dead > 250.0, "{dead} Mbit/s after the owner's last lease");
    ensure!(
        given_back > 250.0,
        "{given_back} Mbit/s after the shut-down"
    );
    before.and(again)
}
