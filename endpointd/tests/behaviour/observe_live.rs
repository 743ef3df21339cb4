//! A real daemon and the real allocator, by namespaces: observe mode says what pacing then does,
//! and a rollout under load loses no connection.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use ratewright_allocator::service::run;
use ratewright_allocator::service::runtime::engine_host::configured_engine;
use serde_json::Value;

use crate::netns::cubic::cubic_pair;
use crate::netns::{BulkReceiver, BulkSender, NamespacePair, RIGHT_V4, sleep, wait_for};
use crate::site;

const PATIENCE: Duration = Duration::from_secs(20);
const LISTEN: &str = "127.0.0.1:7600";
/// Seconds of which a rate is the median.
const SECONDS: usize = 5;

/// Classes in the order of their numbers.
const CLASSES: &str = "[[class]]\nid = 0\nname = \"default\"\n\
                       [[class]]\nid = 1\nname = \"gold\"\nweight = 3.0\n\
                       [[class]]\nid = 2\nname = \"small\"\nmax_rate_bps = 20000000\n";

struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new(ports: [u16; 3]) -> Self {
        let site = Self {
            folder: site::certificates(),
        };
        site.write(
            "topology.toml",
            "kind = \"big_switch\"\n[parameters]\nracks = 1\nhosts_per_rack = 2\n\
             host_capacity = \"200Mbit/s\"\n[[host]]\nname = \"h1\"\nprefixes = [\"10.123.0.1\"]\n\
             [[host]]\nname = \"h2\"\nprefixes = [\"10.123.0.2\"]\n",
        );
        site.roll_out(0);
        site.write(
            "h1.toml",
            &format!(
                "host = \"h1\"\nallocator = [\"{LISTEN}\"]\nadmin = \"unix:h1.sock\"\n\
                 [tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n\
                 [pacing]\nbackend = \"sock_ops\"\ninstance = \"{}\"\n\
                 [[policy]]\ndst_port = {}\nclass = \"gold\"\n[[policy]]\ndst_port = {}\nclass = \"small\"\n",
                format_args!("o{}", std::process::id() % 1_000_000),
                ports[1],
                ports[2],
            ),
        );
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// Writes the allocator's configuration with this share of pacing hosts.
    fn roll_out(&self, percent: u32) {
        self.write(
            "allocator.toml",
            &format!(
                "listen = \"{LISTEN}\"\nadmin = \"unix:allocator.sock\"\ntopology = \"topology.toml\"\n\
                 [tls]\nca = \"ca.pem\"\ncert = \"allocator.pem\"\nkey = \"allocator.key\"\n\
                 [rollout]\npercent = {percent}\n{CLASSES}"
            ),
        );
    }

    /// Reads what an admin interface shows; `None` while it does not answer.
    fn status(&self, socket: &str) -> Option<Value> {
        site::status(&self.path(socket))
    }

    fn wait_mode(&self, mode: &str) {
        wait_for(mode, PATIENCE, || {
            (self.status("h1.sock")?["mode"] == mode).then_some(())
        });
    }

    /// Bytes of each class since the start, of a field of its figures.
    fn bytes(&self, field: &str) -> [f64; 3] {
        let status = self.status("h1.sock").expect("the daemon answers");
        let mut bytes = [0.0; 3];
        for class in status["classes"].as_array().expect("classes") {
            let number = class["class"].as_u64().expect("a number");
            bytes[usize::try_from(number).expect("small")] = class[field].as_f64().expect("bytes");
        }
        bytes
    }

    /// Mbit/s of each class: medians of some seconds.
    fn rates(&self, field: &str) -> [f64; 3] {
        let mut seconds: [Vec<f64>; 3] = Default::default();
        let mut last = (ratewright_endpointd::clock::now_ns(), self.bytes(field));
        for _ in 0..SECONDS {
            sleep(Duration::from_secs(1));
            let now = (ratewright_endpointd::clock::now_ns(), self.bytes(field));
            let passed_s = (now.0 - last.0) as f64 / 1e9;
            for (class, rates) in seconds.iter_mut().enumerate() {
                rates.push((now.1[class] - last.1[class]) * 8e-6 / passed_s);
            }
            last = now;
        }
        seconds.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[SECONDS / 2]
        })
    }
}

/// Process that ends with this value.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-TERM", &self.0.id().to_string()])
            .status();
        let _ = self.0.wait();
    }
}

fn start_daemon(pair: &NamespacePair, config: &Path) -> Daemon {
    let child = Command::new("ip")
        .args(["netns", "exec", &pair.left.0])
        .arg(env!("CARGO_BIN_EXE_ratewright-endpointd"))
        .args(["run", "--config"])
        .arg(config)
        .spawn();
    Daemon(child.expect("the daemon starts"))
}

fn has_maxima(pair: &NamespacePair) -> bool {
    pair.left
        .run("ss -tinH state established")
        .split_whitespace()
        .any(|word| word.contains("bps/"))
}

#[test]
fn observing_says_what_pacing_then_does_and_a_rollout_loses_no_connection() {
    let pair = cubic_pair();
    // More than the topology says, so that pacing and not this queue decides once it is on.
    pair.left
        .run("tc qdisc add dev v0 root handle 1: tbf rate 220mbit burst 64kb latency 20ms");
    let receivers: Vec<BulkReceiver> = (0..3)
        .map(|_| BulkReceiver::start(&pair.right, RIGHT_V4, 1))
        .collect();
    let site = Site::new(std::array::from_fn(|index| receivers[index].address.port()));
    let allocator = site.path("allocator.toml");
    pair.left.spawn(move || {
        if let Err(error) = run::run(&allocator, configured_engine()) {
            eprintln!("{}", run::with_causes(&error));
        }
    });
    wait_for("the allocator", PATIENCE, || site.status("allocator.sock"));
    let daemon = start_daemon(&pair, &site.path("h1.toml"));
    site.wait_mode("observe");

    let senders: Vec<BulkSender> = receivers
        .iter()
        .map(|receiver| BulkSender::start(&pair.left, receiver.address))
        .collect();
    sleep(Duration::from_secs(2));
    let would = site.rates("allowed_bytes");
    let plain = site.rates("achieved_bytes");
    assert!(!has_maxima(&pair), "observing sets no maximum");

    for (percent, mode) in [(100, "pace"), (0, "observe"), (100, "pace")] {
        site.roll_out(percent);
        let own = std::process::id().to_string();
        assert!(
            Command::new("kill")
                .args(["-HUP", &own])
                .status()
                .is_ok_and(|s| s.success())
        );
        site.wait_mode(mode);
        wait_for("its effect on sockets", PATIENCE, || {
            (has_maxima(&pair) == (mode == "pace")).then_some(())
        });
    }
    sleep(Duration::from_secs(1));
    let paced = site.rates("achieved_bytes");
    println!("Mbit/s by class: plain {plain:.1?}, would {would:.1?}, paced {paced:.1?}");
    for class in 0..3 {
        let error = would[class] / paced[class] - 1.0;
        assert!(
            error.abs() < 0.10,
            "class {class}: would {:.1}, paced {:.1} Mbit/s",
            would[class],
            paced[class]
        );
    }
    assert!(
        plain[1] / paced[1] < 0.9,
        "plain TCP gave the heavy class less, or the comparison shows nothing: {plain:?}"
    );

    // Every sender still writes to its first connection; a lost one would have panicked.
    for sender in senders {
        sender.stop();
    }
    for receiver in receivers {
        assert_eq!(receiver.finish().len(), 1);
    }
    drop(daemon);
}
