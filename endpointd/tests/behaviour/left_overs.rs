//! Left-overs of killed daemons: `cleanup` shows them, removes them, and is refused while a daemon
//! runs.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crate::netns::{NamespacePair, wait_for};
use crate::site;

const PATIENCE: Duration = Duration::from_secs(20);

fn program(pair: &NamespacePair) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &pair.left.0])
        .arg(env!("CARGO_BIN_EXE_ratewright-endpointd"));
    command
}

/// Runs `cleanup`; returns whether it succeeded, and what it said.
fn cleanup(pair: &NamespacePair, config: &Path, yes: bool) -> (bool, String) {
    let mut command = program(pair);
    command.args(["cleanup", "--config"]).arg(config);
    if yes {
        command.arg("--yes");
    }
    let output = command.output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}

/// State of a daemon that can be seen from outside.
fn traces(pair: &NamespacePair) -> String {
    let pinned = |place: &str| Path::new(&format!("{place}/{}", pair.tag)).exists();
    format!(
        "{}{} {}",
        pair.left.run("tc qdisc show dev v0"),
        pinned("/sys/fs/bpf/ratewright"),
        pinned("/run/ratewright"),
    )
}

fn killed(mut daemon: Child) {
    // `ip netns exec` becomes the daemon, so this is its own number.
    daemon.kill().expect("killed");
    daemon.wait().expect("ended");
}

#[test]
fn what_a_killed_daemon_left_is_shown_and_removed() {
    for backend in ["sock_ops", "tc_htb"] {
        let pair = NamespacePair::new();
        let folder = site::certificates();
        let config = folder.path().join("endpointd.toml");
        let text = format!(
            "host = \"h1\"\nallocator = [\"127.0.0.1:9\"]\n\
             [tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n\
             [pacing]\nbackend = \"{backend}\"\ndevice = \"v0\"\ninstance = \"{}\"\n",
            pair.tag
        );
        std::fs::write(&config, text).expect("written");
        let before = traces(&pair);
        let daemon = program(&pair)
            .args(["run", "--config"])
            .arg(&config)
            .spawn()
            .expect("it starts");
        wait_for("its objects", PATIENCE, || {
            (traces(&pair) != before).then_some(())
        });
        let (fine, text) = cleanup(&pair, &config, true);
        assert!(!fine && text.contains("a daemon runs"), "{backend}: {text}");

        killed(daemon);
        let left = traces(&pair);
        assert_ne!(left, before, "{backend}: something is left");
        let (fine, text) = cleanup(&pair, &config, false);
        assert!(fine && text.contains("would remove"), "{backend}: {text}");
        assert_eq!(traces(&pair), left, "{backend}: a look changes nothing");
        let (fine, text) = cleanup(&pair, &config, true);
        assert!(fine && text.contains("removed:"), "{backend}: {text}");
        assert_eq!(traces(&pair), before, "{backend}: {text}");
        let (fine, text) = cleanup(&pair, &config, true);
        assert!(fine && text.contains("0 left-overs"), "{backend}: {text}");
    }
}
