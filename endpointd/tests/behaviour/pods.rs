//! A daemon on a node paces the sockets of pods: network namespaces and cgroups of their own, made
//! as a container runtime makes them, with unmodified programs inside.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use ratewright_allocator::service::run;
use ratewright_allocator::service::runtime::engine_host::configured_engine;
use ratewright_endpointd::backend::sock_ops::SockOps;
use ratewright_endpointd::clock::now_ns;
use serde_json::Value;

use crate::netns::cubic::{CubicPair, cubic_pair};
use crate::netns::{
    BulkReceiver, Namespace, RIGHT_V4, WIRE_V4, run, settled_rate_bps, sleep, wait_for,
};
use crate::site;

const PATIENCE: Duration = Duration::from_secs(20);

/// Process that is ended with this value.
struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        let number = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &number]).status();
        assert!(sent.expect("kill").success());
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, or have been stopped.
        for signal in ["-TERM", "-CONT"] {
            let _ = Command::new("kill")
                .args([signal, &self.0.id().to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        }
        let _ = self.0.wait();
    }
}

/// Takes all numbers of namespaces before one that an ended namespace had: a new namespace has the
/// lowest that is free. Returns the processes that hold them.
fn fill_numbers_before(wanted: u64) -> Vec<Process> {
    let mut fillers = Vec::new();
    wait_for("the number to be the lowest", PATIENCE, || {
        let child = Command::new("unshare")
            .args(["--uts", "sleep", "600"])
            .spawn();
        let filler = Process(child.expect("unshare"));
        let of = |process: &str| fs::metadata(format!("/proc/{process}/ns/uts")).map(|of| of.ino());
        let (own, number) = (of("self").expect("there"), filler.0.id().to_string());
        let taken = wait_for("a namespace of its own", PATIENCE, || {
            of(&number).ok().filter(|&taken| taken != own)
        });
        if taken < wanted {
            fillers.push(filler);
        }
        (taken == wanted).then_some(())
    });
    fillers
}

/// A pod: a network namespace behind the node's, and a cgroup.
struct Pod {
    namespace: Namespace,
    cgroup: PathBuf,
    /// The node's end of its link.
    link: String,
}

/// The node's namespace `left`, its pods, and the host `right`.
struct Node {
    pair: CubicPair,
    folder: tempfile::TempDir,
    cgroups: PathBuf,
}

impl Node {
    fn new() -> Self {
        let pair = cubic_pair();
        pair.left.set_ipv4("ip_forward", "1");
        pair.right.run("ip route add 10.88.0.0/24 via 10.123.0.1");
        let mounts = fs::read_to_string("/proc/mounts").expect("procfs");
        let mount = mounts
            .lines()
            .find(|line| line.contains(" cgroup2 "))
            .and_then(|line| line.split_whitespace().nth(1))
            .expect("cgroup v2");
        let cgroups = Path::new(mount).join(format!("ratewright-pods-{}", pair.tag));
        fs::create_dir(&cgroups).expect("a cgroup (root)");
        let node = Self {
            folder: site::certificates(),
            cgroups,
            pair,
        };
        node.write(
            "topology.toml",
            "kind = \"big_switch\"\n[parameters]\nracks = 1\nhosts_per_rack = 2\n\
             host_capacity = \"200Mbit/s\"\n\
             [[host]]\nname = \"h1\"\nprefixes = [\"10.123.0.1\", \"10.88.0.0/24\"]\n\
             [[host]]\nname = \"h2\"\nprefixes = [\"10.123.0.2\"]\n",
        );
        node.write(
            "allocator.toml",
            "listen = \"127.0.0.1:7600\"\nadmin = \"unix:allocator.sock\"\n\
             topology = \"topology.toml\"\n\
             [tls]\nca = \"ca.pem\"\ncert = \"allocator.pem\"\nkey = \"allocator.key\"\n\
             [[class]]\nid = 0\nname = \"default\"\n\
             [[class]]\nid = 1\nname = \"gold\"\nweight = 3.0\n",
        );
        node.write(
            "h1.toml",
            &format!(
                "host = \"h1\"\nallocator = [\"127.0.0.1:7600\"]\nadmin = \"unix:h1.sock\"\n\
                 [tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n\
                 [pacing]\nbackend = \"sock_ops\"\ninstance = \"{tag}\"\n\
                 network_namespaces = [\"/run/netns/cni-{tag}-*\"]\n\
                 [[policy]]\ncgroup = \"ratewright-pods-{tag}/one\"\nclass = \"gold\"\n",
                tag = node.pair.tag
            ),
        );
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    /// Makes a pod as a runtime and its network plug-in do.
    fn pod(&self, name: &str, number: u8) -> Pod {
        let namespace = Namespace(format!("cni-{}-{name}", self.pair.tag));
        self.pod_in(namespace, name, number)
    }

    fn pod_in(&self, namespace: Namespace, name: &str, number: u8) -> Pod {
        run(&format!("ip netns add {}", namespace.0));
        self.connect(namespace, name, number)
    }

    /// Makes a pod of a namespace that is there.
    fn connect(&self, namespace: Namespace, name: &str, number: u8) -> Pod {
        let (pod, node) = (&namespace.0, &self.pair.left.0);
        let link = format!("p{number}");
        let address = format!("10.88.0.{number}");
        namespace.set_ipv4("tcp_congestion_control", "cubic");
        run(&format!(
            "ip -n {node} link add {link} type veth peer name eth0 netns {pod}"
        ));
        for command in [
            format!("ip -n {pod} link set lo up"),
            format!("ip -n {pod} addr add {address}/32 dev eth0"),
            format!("ip -n {pod} link set eth0 up"),
            format!("ip -n {node} link set {link} up"),
            format!("ip -n {node} addr add 169.254.1.1/32 dev {link}"),
            format!("ip -n {node} route add {address}/32 dev {link}"),
            format!("ip -n {pod} route add 169.254.1.1 dev eth0"),
            format!("ip -n {pod} route add default via 169.254.1.1"),
        ] {
            run(&command);
        }
        let cgroup = self.cgroups.join(name);
        fs::create_dir(&cgroup).expect("the pod's cgroup");
        Pod {
            namespace,
            cgroup,
            link,
        }
    }

    fn daemon(&self) -> Process {
        let child = Command::new("ip")
            .args(["netns", "exec", &self.pair.left.0])
            .arg(env!("CARGO_BIN_EXE_ratewright-endpointd"))
            .args(["run", "--config"])
            .arg(self.path("h1.toml"))
            .spawn();
        Process(child.expect("the daemon starts"))
    }

    fn allocator(&self) {
        let allocator = self.path("allocator.toml");
        self.pair.left.spawn(move || {
            if let Err(error) = run::run(&allocator, configured_engine()) {
                eprintln!("{}", run::with_causes(&error));
            }
        });
        wait_for("the allocator", PATIENCE, || self.status("allocator.sock"));
    }

    /// Runs `cleanup` and returns what it says.
    fn cleanup(&self, more: &[&str]) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.pair.left.0])
            .arg(env!("CARGO_BIN_EXE_ratewright-endpointd"))
            .args(["cleanup", "--config"])
            .arg(self.path("h1.toml"))
            .args(more)
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    }

    fn status(&self, socket: &str) -> Option<Value> {
        site::status(&self.path(socket))
    }

    /// Waits until the link of a pod that ended is gone, which its namespace takes with it.
    fn wait_gone(&self, pod: &Pod) {
        let shown = format!("ip -n {} -o link show type veth", self.pair.left.0);
        wait_for("the pod's link to go", PATIENCE, || {
            (!run(&shown).contains(&format!("{}@", pod.link))).then_some(())
        });
    }

    fn wait_pods(&self, count: u64) {
        wait_for(&format!("{count} pods"), PATIENCE, || {
            (self.status("h1.sock")?["backend_stats"]["pods"] == count).then_some(())
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let tag = &self.pair.tag;
        for name in ["one", "two", "three"] {
            for pod in [format!("cni-{tag}-{name}"), format!("late-{tag}")] {
                if Path::new("/run/netns").join(&pod).exists() {
                    let _ = Command::new("ip").args(["netns", "del", &pod]).status();
                }
            }
            let _ = fs::remove_dir(self.cgroups.join(name));
        }
        let _ = fs::remove_dir(&self.cgroups);
    }
}

impl Pod {
    /// Has a shell in the pod's namespace and cgroup write to a receiver until it is ended.
    fn sender(&self, to: SocketAddr) -> Process {
        let script = format!(
            "echo $$ > {}/cgroup.procs; exec ip netns exec {} bash -c 'exec cat /dev/zero > /dev/tcp/{}/{}'",
            self.cgroup.display(),
            self.namespace.0,
            to.ip(),
            to.port()
        );
        let child = Command::new("bash").args(["-c", &script]).spawn();
        Process(child.expect("bash"))
    }

    fn sockets(&self) -> String {
        self.namespace.run("ss -tinH state established")
    }

    /// Waits until the socket has a maximum, or has none.
    fn wait_paced(&self, paced: bool) {
        wait_for(&format!("paced: {paced}"), PATIENCE, || {
            let sockets = self.sockets();
            let has = sockets.split_whitespace().any(|word| word.contains("bps/"));
            (!sockets.is_empty() && has == paced).then_some(())
        });
    }
}

#[test]
fn pods_are_paced_by_the_policy_of_their_cgroups() {
    let node = Node::new();
    let receivers: Vec<BulkReceiver> = (0..2)
        .map(|_| BulkReceiver::start(&node.pair.right, RIGHT_V4, 1))
        .collect();
    node.allocator();
    // One pod sends before there is a daemon, where the kernel lets the back end take it over.
    let one = node.pod("one", 1);
    let plain = one.namespace.tcp_settings();
    let send = || {
        let sender = one.sender(receivers[0].address);
        wait_for("its connection", PATIENCE, || {
            (!one.sockets().is_empty()).then_some(())
        });
        sender
    };
    let takes_over = SockOps::takes_connections_over();
    let early = takes_over.then(send);
    let daemon = node.daemon();
    node.wait_pods(1);
    let first = early.unwrap_or_else(send);
    one.wait_paced(true);
    // Another comes later, and has no policy rule.
    let two = node.pod("two", 2);
    if !takes_over {
        node.wait_pods(2);
    }
    let second = two.sender(receivers[1].address);
    two.wait_paced(true);
    node.wait_pods(2);

    // The rates of both flows follow each other's coming within milliseconds.
    sleep(Duration::from_millis(500));
    let begin = now_ns();
    sleep(Duration::from_secs(2));
    let end = now_ns();

    // A pod that ends is forgotten, and nothing holds its namespace: its link goes with it.
    second.kill();
    run(&format!("ip netns del {}", two.namespace.0));
    node.wait_gone(&two);
    node.wait_pods(1);
    one.wait_paced(true);

    // At the daemon's end everything is as it was, and the connection goes on.
    daemon.signal("-TERM");
    drop(daemon);
    one.wait_paced(false);
    assert_eq!(one.namespace.tcp_settings(), plain);
    drop(first);

    let rates: Vec<f64> = receivers
        .into_iter()
        .map(|receiver| {
            let trace = receiver.finish().remove(0);
            settled_rate_bps(&trace, begin, end) * WIRE_V4 * 1e-6
        })
        .collect();
    println!(
        "Mbit/s of the pods: gold {:.1}, default {:.1}",
        rates[0], rates[1]
    );
    let share = rates[0] / rates[1];
    assert!(
        (2.7..3.3).contains(&share),
        "gold has three times as much: {rates:?}"
    );
    let sum = rates[0] + rates[1];
    assert!((180.0..202.0).contains(&sum), "the node's link: {rates:?}");
}

#[test]
fn a_pod_s_own_choice_stays_and_left_overs_of_pods_are_removed() {
    let node = Node::new();
    let receiver = BulkReceiver::start(&node.pair.right, RIGHT_V4, 3);
    node.allocator();
    let (one, two) = (node.pod("one", 1), node.pod("two", 2));
    two.namespace.set_ipv4("tcp_congestion_control", "reno");
    let daemon = node.daemon();
    node.wait_pods(2);
    let mut senders = vec![one.sender(receiver.address), two.sender(receiver.address)];
    one.wait_paced(true);
    two.wait_paced(true);
    assert!(one.sockets().contains(" cubic "), "{}", one.sockets());
    assert!(two.sockets().contains(" reno "), "{}", two.sockets());

    // Bound to its file only when its program is already sending.
    let late = node.pod_in(Namespace(format!("late-{}", node.pair.tag)), "three", 3);
    senders.push(late.sender(receiver.address));
    sleep(Duration::from_secs(1));
    late.wait_paced(false);
    let file = format!("/run/netns/cni-{}-three", node.pair.tag);
    fs::write(&file, "").expect("the file");
    run(&format!(
        "mount --bind /run/netns/{} {file}",
        late.namespace.0
    ));
    node.wait_pods(3);
    late.wait_paced(SockOps::takes_connections_over());

    daemon.kill();
    let text = node.cleanup(&[]);
    assert!(text.contains("would remove"), "{text}");
    let text = node.cleanup(&["--yes"]);
    assert!(text.contains("removed:"), "{text}");
    for (pod, own) in [(&one, " cubic "), (&two, " reno "), (&late, " cubic ")] {
        pod.wait_paced(false);
        assert!(pod.sockets().contains(own), "{}", pod.sockets());
    }
    assert!(node.cleanup(&[]).contains("0 left-overs"));
    run(&format!("umount {file}"));
    drop(senders);
    receiver.finish();
}

/// Namespace that is removed with this value.
struct OtherNamespace(Namespace);

impl Drop for OtherNamespace {
    fn drop(&mut self) {
        let Namespace(name) = &self.0;
        let _ = Command::new("ip").args(["netns", "del", name]).status();
    }
}

/// The kernel gives the number of a namespace that has ended to one of the next.
#[test]
fn a_pod_whose_namespace_has_the_number_of_one_that_ended_is_paced() {
    let node = Node::new();
    let receiver = BulkReceiver::start(&node.pair.right, RIGHT_V4, 1);
    node.allocator();
    let former = node.pod("one", 1);
    let file = |namespace: &Namespace| Path::new("/run/netns").join(&namespace.0);
    let number = |namespace: &Namespace| fs::metadata(file(namespace)).expect("there").ino();
    let wanted = number(&former.namespace);
    let daemon = node.daemon();
    node.wait_pods(1);

    // Between two of its looks for pods: one ends, and the next has its number and its file.
    daemon.signal("-STOP");
    run(&format!("ip netns del {}", former.namespace.0));
    node.wait_gone(&former);
    let _fillers = fill_numbers_before(wanted);
    let other = OtherNamespace(Namespace(format!("other-{}", node.pair.tag)));
    run(&format!("ip netns add {}", other.0.0));
    assert_eq!(number(&other.0), wanted, "the number again");
    let (same, path) = (file(&other.0), file(&former.namespace));
    fs::write(&path, "").expect("the file");
    run(&format!(
        "mount --bind {} {}",
        same.display(),
        path.display()
    ));
    fs::remove_dir(&former.cgroup).expect("an empty cgroup");
    let next = node.connect(former.namespace, "one", 1);
    assert_eq!(number(&next.namespace), wanted);
    daemon.signal("-CONT");

    let sender = next.sender(receiver.address);
    next.wait_paced(true);
    node.wait_pods(1);
    drop(sender);
    receiver.finish();
}
