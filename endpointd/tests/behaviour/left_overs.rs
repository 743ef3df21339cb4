//! Left-overs of killed daemons: `cleanup` shows them, removes them, and is refused while a daemon
//! runs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use ratewright_allocator::service::run::{self as service, with_causes};
use ratewright_allocator::service::runtime::engine_host::configured_engine;

use crate::netns::echo::get_max_pacing;
use crate::netns::{BulkReceiver, NamespacePair, RIGHT_V4, run, wait_for};
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

/// The next daemon has another name, so it does not adopt what is there.
#[test]
fn what_another_daemon_could_not_give_back_is_told_by_the_next_one() {
    let pair = NamespacePair::new();
    let folder = site::certificates();
    let configure = |instance: &str| {
        let path = folder.path().join(format!("{instance}.toml"));
        let text = format!(
            "host = \"h1\"\nallocator = [\"127.0.0.1:9\"]\nadmin = \"unix:admin.sock\"\n\
             [tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n\
             [pacing]\nbackend = \"sock_ops\"\ninstance = \"{instance}\"\n",
        );
        std::fs::write(&path, text).expect("written");
        path
    };
    let started = |config: &Path| {
        let mut command = program(&pair);
        command.args(["run", "--config"]).arg(config);
        command.spawn().expect("it starts")
    };
    let socket = folder.path().join("admin.sock");
    let told = || {
        let status = wait_for("its status", PATIENCE, || site::status(&socket));
        let left = status["left_overs"].as_array().expect("a list").clone();
        // Others run tests beside this one.
        left.iter()
            .any(|left| left.to_string().contains(&format!("/{}/", pair.tag)))
    };
    let first = configure(&pair.tag);
    let daemon = started(&first);
    assert!(!told(), "its own pins are none");
    killed(daemon);
    std::fs::remove_file(&socket).expect("it was killed");
    let daemon = started(&configure(&format!("{}x", pair.tag)[1..]));
    assert!(told());
    killed(daemon);
    for config in [
        &first,
        &folder.path().join(format!("{}x.toml", &pair.tag[1..])),
    ] {
        let (fine, text) = cleanup(&pair, config, true);
        assert!(fine && text.contains("removed:"), "{text}");
    }
}

/// A sandbox may hide process 1. The parent's view of the file system is the one that outlives the
/// daemon then, and the parent may end first.
#[test]
fn a_daemon_whose_parent_has_ended_removes_what_it_pinned() {
    let pair = NamespacePair::new();
    let folder = site::certificates();
    let config = folder.path().join("endpointd.toml");
    let text = format!(
        "host = \"h1\"\nallocator = [\"127.0.0.1:9\"]\n\
         [tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n\
         [pacing]\nbackend = \"sock_ops\"\ninstance = \"{}\"\n",
        pair.tag
    );
    std::fs::write(&config, text).expect("written");
    let before = traces(&pair);
    // Without this capability, process 1 is as hidden as behind `hidepid=`.
    let mut parent = Command::new("setpriv")
        .args(["--bounding-set", "-sys_ptrace", "sh", "-c"])
        .arg("ip netns exec \"$0\" \"$1\" run --config \"$2\" & echo $!; read end")
        .args([&pair.left.0, env!("CARGO_BIN_EXE_ratewright-endpointd")])
        .arg(&config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(parent.stdout.take().expect("piped"));
    let mut daemon = String::new();
    said.read_line(&mut daemon).expect("its number");
    let daemon = daemon.trim();
    wait_for("its objects", PATIENCE, || {
        (traces(&pair) != before).then_some(())
    });
    // The end of its input ends the shell.
    parent.wait().expect("ended");
    run(&format!("kill -TERM {daemon}"));
    wait_for("its end", PATIENCE, || {
        (!Path::new(&format!("/proc/{daemon}")).exists()).then_some(())
    });
    assert_eq!(traces(&pair), before);
}

/// Whatever starts the daemon may try again later: by then the topology may have the host.
#[test]
fn a_host_that_the_allocator_does_not_know_ends_with_3_and_leaves_every_socket_as_it_was() {
    let pair = NamespacePair::new();
    let folder = site::certificates();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    write(
        "topology.toml",
        "kind = \"big_switch\"\n[parameters]\nracks = 1\nhosts_per_rack = 2\n\
         host_capacity = \"200Mbit/s\"\n\
         [[host]]\nname = \"h2\"\nprefixes = [\"10.123.0.1\"]\n\
         [[host]]\nname = \"h3\"\nprefixes = [\"10.123.0.2\"]\n",
    );
    let allocator = write(
        "allocator.toml",
        "listen = \"127.0.0.1:7600\"\nadmin = \"unix:allocator.sock\"\n\
         topology = \"topology.toml\"\n\
         [tls]\nca = \"ca.pem\"\ncert = \"allocator.pem\"\nkey = \"allocator.key\"\n",
    );
    let config = write(
        "h1.toml",
        &format!(
            "host = \"h1\"\nallocator = [\"127.0.0.1:7600\"]\n\
             [tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n\
             [pacing]\nbackend = \"sock_ops\"\ninstance = \"{}\"\n",
            pair.tag
        ),
    );
    pair.left.spawn(move || {
        if let Err(error) = service::run(&allocator, configured_engine()) {
            eprintln!("{}", with_causes(&error));
        }
    });
    let socket = folder.path().join("allocator.sock");
    wait_for("the allocator", PATIENCE, || site::status(&socket));
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let to = receiver.address;
    let connecting = pair
        .left
        .spawn(move || TcpStream::connect(to).expect("connect"));
    let mut stream = connecting.join().expect("connected");
    stream.write_all(&[1; 100_000]).expect("write");
    let surroundings = |stream: &TcpStream| {
        let control = getsockopt(stream, sockopt::TcpCongestion).expect("its name");
        (traces(&pair), get_max_pacing(stream), control)
    };
    let before = surroundings(&stream);

    let mut daemon = program(&pair)
        .args(["run", "--config"])
        .arg(&config)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let code = wait_for("its end", PATIENCE, || daemon.try_wait().expect("a child"));
    let mut said = String::new();
    let mut stderr = BufReader::new(daemon.stderr.take().expect("piped"));
    while stderr.read_line(&mut said).expect("text") > 0 {}
    assert_eq!(code.code(), Some(3), "{said}");
    assert_eq!(said.matches("ERROR").count(), 1, "{said}");
    assert!(said.contains("the allocator refused this host"), "{said}");

    assert_eq!(surroundings(&stream), before);
    stream.write_all(&[2; 100_000]).expect("write");
    drop(stream);
    let trace = receiver.finish().remove(0);
    assert_eq!(trace.last().expect("data").1, 200_000);
}
