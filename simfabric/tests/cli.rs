//! The commands, from the outside: what a plan gives, and what a bad one says.

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

fn simfabric(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("simfabric").expect("the program is built with its tests");
    command
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn plans() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// Runs a plan and returns its summary.
fn run(plan: &Path, out: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["run", text(plan), "--out", text(out)];
    arguments.extend(more);
    let output = simfabric(&arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary = std::fs::read_to_string(out.join("summary.json")).expect("a summary is written");
    serde_json::from_str(&summary).expect("the summary is JSON")
}

const GOOD: &str = r#"
[run]
duration = "1ms"

[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 4
spines = 2
host_rate = "10Gbit/s"
fabric_rate = "20Gbit/s"
link_delay = "1us"

[queue]
discipline = "drop-tail"

[transport]
name = "fixed-window"
packets = 10

[[workload]]
kind = "poisson"
load = 0.5
sizes = "web"
"#;

#[test]
fn the_good_plan_is_good() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(&plan, GOOD).unwrap();
    let output = simfabric(&["check", text(&plan)]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("8 hosts"));
}

/// A queue that holds one packet, to the byte, is as short as can be: what comes to an idle port goes on.
#[test]
fn a_queue_of_one_packet_is_no_mistake() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let limit = "\"drop-tail\"\nlimit_bytes = 1538";
    std::fs::write(&plan, GOOD.replacen("\"drop-tail\"", limit, 1)).unwrap();
    let summary = run(&plan, &dir.path().join("out"), &[]);
    assert!(summary["goodput_gbps"].as_f64().unwrap() > 0.0, "{summary}");
}

/// Each mistake is one line with the file, the line of the mistake, and what is wrong.
#[test]
fn bad_plans_get_one_clear_error_with_the_place() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(dir.path().join("empty.csv"), "# nothing\n").unwrap();
    std::fs::write(dir.path().join("bad.csv"), "100,0\n50,1\n").unwrap();
    for (from, to, line, part) in [
        (
            "duration = ",
            "durations = ",
            3,
            "unknown field `durations`",
        ),
        ("[run]", "[runs]\n[run]", 2, "unknown table `runs`"),
        ("load = 0.5", "lode = 0.5", 23, "unknown field `lode`"),
        (
            "\"drop-tail\"",
            "\"strict-priority\"\nclasses = 9",
            16,
            "there are 2 to 8 classes",
        ),
        (
            "\"drop-tail\"",
            "\"strict-priority\"\nclasses = 2\neach = { discipline = \"xcp\" }",
            17,
            "the queue of a class cannot be xcp or strict-priority",
        ),
        (
            "sizes = \"web\"",
            "sizes = \"web\"\n[[workload]]\nkind = \"poisson\"\nload = 0.6\nsizes = \"web\"",
            25,
            "with the workloads before it, the load is 1.1",
        ),
        (
            "kind = \"poisson\"\nload = 0.5\nsizes = \"web\"",
            "kind = \"list\"\nflows = []",
            23,
            "`flows` is empty",
        ),
        (
            "kind = \"poisson\"\nload = 0.5\nsizes = \"web\"",
            "kind = \"list\"\nflows = [{ src = 0, dst = 1, start = \"2us\", stop = \"1us\" }]",
            23,
            "a flow stops after its `start`",
        ),
        (
            "kind = \"poisson\"\nload = 0.5\nsizes = \"web\"",
            "kind = \"staggered\"\nsenders = []\nreceiver = 0\ninterval = \"1ms\"",
            23,
            "`senders` is empty",
        ),
        (
            "kind = \"poisson\"\nload = 0.5\nsizes = \"web\"",
            "kind = \"incast\"\nsenders = 2\nbytes = 1000\nrounds = 0",
            25,
            "`rounds` is 0",
        ),
        (
            "kind = \"poisson\"\nload = 0.5\nsizes = \"web\"",
            "kind = \"incast\"\nsenders = 2\nbytes = 1000\nrounds = 3",
            25,
            "several rounds need a `period`",
        ),
        (
            "load = 0.5",
            "load = 1.2",
            23,
            "the load is 1.2; it must be above 0 and at most 1",
        ),
        ("load = 0.5\n", "", 21, "missing field `load`"),
        (
            "racks = 2",
            "racks = 0",
            7,
            "impossible topology: `racks` is 0",
        ),
        (
            "spines = 2",
            "spines = 0",
            9,
            "impossible topology: `spines` is 0",
        ),
        (
            "\"leaf-spine\"",
            "\"ring\"",
            6,
            "`kind` is \"ring\"; it must be one of dumbbell",
        ),
        ("\"10Gbit/s\"", "\"10Gbps\"", 10, "is not a capacity"),
        (
            "\"drop-tail\"",
            "\"magic\"",
            15,
            "`discipline` is \"magic\"",
        ),
        ("\"fixed-window\"", "\"warp\"", 18, "`name` is \"warp\""),
        (
            "\"fixed-window\"\npackets = 10",
            "\"flowtune\"\ncontrol = \"udp\"",
            19,
            "unknown variant `udp`, expected `datagram` or `tcp`",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"flowtune\"\ncontrol_max_rto = \"1ms\"",
            19,
            "`control_max_rto` is a parameter of `control = \"tcp\"`",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"flowtune\"\ncontrol = \"tcp\"\ncontrol_max_rto = \"10us\"",
            20,
            "10000 ns, must be at least 1 µs and the least one, 20000 ns",
        ),
        ("packets = 10", "packets = 0", 19, "a window of 0 packets"),
        (
            "\"fixed-window\"\npackets = 10",
            "\"xcp\"",
            17,
            "xcp needs the queue `xcp` in switches; give it a [transport.queue] of its own",
        ),
        (
            "packets = 10",
            "packets = 10\n[transport.queue]\ndiscipline = \"magic\"",
            21,
            "`discipline` is \"magic\"",
        ),
        (
            "packets = 10",
            "packets = 10\nnic_queue = { discipline = \"red\" }",
            20,
            "missing field `min_packets`",
        ),
        (
            "packets = 10",
            "packets = 10\nqueue = { discipline = \"drop-tail\", shared_buffer = { bytes = 0, alpha = 1.0 } }",
            20,
            "0 bytes hold no packet",
        ),
        (
            "\"drop-tail\"",
            "\"drop-tail\"\nlimit_bytes = 0",
            16,
            "a queue's length must not be 0",
        ),
        (
            "\"drop-tail\"",
            "\"drop-tail\"\nlimit_bytes = 1537",
            16,
            "1537 bytes hold no packet, and all would be dropped: one takes 1538 bytes on a link",
        ),
        (
            "\"drop-tail\"",
            "\"ecn-threshold\"\nmark_bytes = 1\nlimit_bytes = 1000",
            17,
            "1000 bytes hold no packet",
        ),
        (
            "\"drop-tail\"",
            "\"strict-priority\"\nclasses = 2\neach = { discipline = \"codel\", limit_bytes = 84 }",
            17,
            "84 bytes hold no packet",
        ),
        (
            "[queue]\ndiscipline = \"drop-tail\"",
            "[packet]\nmss_bytes = 9000\n[queue]\ndiscipline = \"drop-tail\"\nshared_buffer = { bytes = 9077, alpha = 1.0 }",
            18,
            "9077 bytes hold no packet, and all would be dropped: one takes 9078",
        ),
        (
            "[queue]\ndiscipline = \"drop-tail\"",
            "[packet]\nmss_bytes = 40000\n[queue]\ndiscipline = \"pfabric\"",
            16,
            "36864 bytes hold no packet",
        ),
        (
            "packets = 10",
            "packets = 10\nnic_queue = { discipline = \"drop-tail\", limit_bytes = 1500 }",
            20,
            "1500 bytes hold no packet",
        ),
        (
            "\"web\"",
            "\"wob\"",
            24,
            "\"wob\" is no known size distribution; known are web-search",
        ),
        (
            "sizes = \"web\"",
            "sizes_file = \"none.csv\"",
            24,
            "none.csv: No such file",
        ),
        (
            "sizes = \"web\"",
            "sizes_file = \"empty.csv\"",
            24,
            "the distribution is empty",
        ),
        (
            "sizes = \"web\"",
            "sizes_file = \"bad.csv\"",
            24,
            "bad.csv:2: the size is less",
        ),
        ("sizes = \"web\"", "", 21, "the sizes are missing"),
        (
            "duration = \"1ms\"",
            "duration = \"0ms\"",
            3,
            "`duration` must not be 0",
        ),
        (
            "duration = \"1ms\"",
            "duration = 1",
            3,
            "a time with its unit",
        ),
        (
            "duration = \"1ms\"",
            "duration = \"1ms\"\nwarm_up = \"2ms\"",
            4,
            "`warm_up` must be shorter",
        ),
        (
            "duration = \"1ms\"",
            "until = \"complete\"",
            22,
            "arrivals would never end",
        ),
        (
            "duration = \"1ms\"",
            "duration = \"1ms\"\nuntil = \"complete\"",
            4,
            "`duration` and `until` both say when the run ends; keep one",
        ),
        ("[run]", "[run", 2, ""),
        (
            "\"10Gbit/s\"",
            "\"10kbit/s\"",
            10,
            "is too slow: links have at least 1Mbit/s",
        ),
        (
            "fabric_rate = \"20Gbit/s\"",
            "oversubscription = 1e9",
            11,
            "`oversubscription` is 1000000000, which makes fabric links of",
        ),
        (
            "spines = 2\nhost_rate = \"10Gbit/s\"\nfabric_rate = \"20Gbit/s\"",
            "spines = 0\nhost_rate = \"10Gbit/s\"\noversubscription = 1.0",
            9,
            "impossible topology: `spines` is 0",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"flowtune\"\nallocator_rate = \"1kbit/s\"",
            19,
            "is too slow: links have at least 1Mbit/s",
        ),
        (
            "packets = 10",
            "packets = 4000000000",
            19,
            "it must be at most 1048576 packets",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"newreno\"\nfixed_rto = \"0us\"",
            19,
            "a time-out must be at least 1us",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"cubic\"\nmin_rto = \"999ns\"",
            19,
            "a time-out must be at least 1us",
        ),
        (
            "packets = 10",
            "packets = 10\nlabel = \"\"",
            20,
            "`label` must be a text, not empty",
        ),
        (
            "[transport]\nname = \"fixed-window\"\npackets = 10",
            "[[transport]]\nname = \"cubic\"\nlabel = \"a b\"\n[[transport]]\nname = \"dctcp\"\nlabel = \"a-b\"",
            20,
            "the results of \"a b\" and \"a-b\" would be one file",
        ),
        (
            "[queue]",
            "[packet]\nheader_bytes = 65000\n[queue]",
            15,
            "a packet needs payload, and fits 65,535 bytes",
        ),
        (
            "load = 0.5",
            "load = 0.5\nstart = \"1ms\"",
            21,
            "none of its flows begins before the run ends",
        ),
        (
            "kind = \"poisson\"\nload = 0.5\nsizes = \"web\"",
            "kind = \"list\"\nflows = [{ src = 0, dst = 1, start = \"2ms\" }]",
            21,
            "none of its flows begins before the run ends",
        ),
        (
            "sizes = \"web\"",
            "sizes = \"web\"\n[measure]\nqueues = []",
            26,
            "`queues` is empty",
        ),
        (
            "[topology]\nkind = \"leaf-spine\"\nracks = 2\nhosts_per_rack = 4\nspines = 2\nhost_rate = \"10Gbit/s\"\nfabric_rate = \"20Gbit/s\"",
            "[measure]\nqueues = \"core\"\n[topology]\nkind = \"big-switch\"\nhosts = 4\nhost_rate = \"10Gbit/s\"",
            6,
            "`queues` is \"core\", and this topology has no such links",
        ),
        (
            "sizes = \"web\"",
            "sizes = \"web\"\n[measure]\nthroughput_every = \"1us\"\nthroughput_flows = 0",
            27,
            "`throughput_flows` must not be 0",
        ),
        (
            "sizes = \"web\"",
            "sizes = \"web\"\n[measure]\nqueues = \"all\"",
            26,
            "`queues` is \"all\"",
        ),
    ] {
        let bad = GOOD.replacen(from, to, 1);
        assert_ne!(bad, GOOD, "{from}");
        std::fs::write(&plan, bad).unwrap();
        let output = simfabric(&["check", text(&plan)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{to}");
        assert!(
            error.contains(&format!("plan.toml:{line}:")),
            "{to:?}, line {line}: {error}"
        );
        assert!(error.contains(part), "{to:?}: {error}");
        assert!(
            error.starts_with("error: ") && error.trim_end().lines().count() <= 2,
            "{error}"
        );
    }
}

/// Flowtune's sessions ask after each other for as long as they stand, so a run with them is never over by itself.
#[test]
fn a_plan_with_flowtune_needs_a_duration() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let endless = GOOD
        .replace("duration = \"1ms\"", "until = \"complete\"")
        .replace("\"fixed-window\"\npackets = 10", "\"flowtune\"")
        .replace("sizes = \"web\"", "sizes = \"web\"\nuntil = \"1ms\"");
    std::fs::write(&plan, endless).unwrap();
    let output = simfabric(&["check", text(&plan)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("plan.toml:3:9: the sessions of \"flowtune\" go on without flows"),
        "{error}"
    );
}

/// Topologies that are built as others are: errors are about the keys of the plan, and no others.
#[test]
fn an_impossible_topology_is_named_by_the_keys_of_the_plan() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let (head, rest) = GOOD.split_once("kind = \"leaf-spine\"").unwrap();
    let tail = rest.split_once("[queue]").unwrap().1;
    for (topology, line, part) in [
        (
            "kind = \"big-switch\"\nhosts = 0\nhost_rate = \"1Gbit/s\"\nlink_delay = \"1us\"",
            7,
            "`hosts` is 0; it must be at least 1",
        ),
        (
            "kind = \"big-switch\"\nhost_rate = \"1Gbit/s\"\nlink_delay = \"1us\"\nhosts = 300000",
            9,
            "`hosts` makes 300000 hosts",
        ),
        (
            "kind = \"dumbbell\"\npairs = 0\nhost_rate = \"1Gbit/s\"\nlink_delay = \"1us\"",
            7,
            "`pairs` is 0; it must be at least 1",
        ),
        (
            "kind = \"dumbbell\"\nhost_rate = \"1Gbit/s\"\npairs = 200000\nlink_delay = \"1us\"",
            8,
            "`pairs` makes 400000 hosts",
        ),
    ] {
        std::fs::write(&plan, format!("{head}{topology}\n\n[queue]{tail}")).unwrap();
        let output = simfabric(&["check", text(&plan)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{topology}");
        let expected = format!("plan.toml:{line}:");
        assert!(
            error.contains(&expected) && error.contains(&format!("impossible topology: {part}")),
            "{topology}: {error}"
        );
        assert!(!error.contains("hosts_per_rack"), "{error}");
    }
}

#[test]
fn a_missing_plan_and_a_missing_topology_are_named() {
    let output = simfabric(&["run", "/nowhere/plan.toml", "--out", "/nowhere/out"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("/nowhere/plan.toml: cannot be read"),
        "{error}"
    );

    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let (head, tail) = GOOD.split_once("[topology]").unwrap();
    let tail = tail.split_once("[queue]").unwrap().1;
    let text_of = format!("{head}[topology]\nkind = \"file\"\nfile = \"net.toml\"\n[queue]{tail}");
    std::fs::write(&plan, text_of).unwrap();
    let output = simfabric(&["check", text(&plan)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("plan.toml:7:") && error.contains("net.toml"),
        "{error}"
    );
}

/// Every plan that comes with the project is valid; the goodput of the dumbbell is the closed form
/// 10 Gbit/s × 1448 / 1502, and two flows that each keep 60 packets under way share it equally.
#[test]
fn the_plans_in_the_repository_are_valid_and_the_dumbbell_is_full() {
    let mut count = 0;
    for entry in std::fs::read_dir(plans()).unwrap() {
        let path = entry.unwrap().path();
        let output = simfabric(&["check", text(&path)]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        count += 1;
    }
    assert!(count >= 5);
    let dir = TempDir::new().unwrap();
    let summary = run(&plans().join("dumbbell.toml"), dir.path(), &[]);
    let goodput = summary["goodput_gbps"].as_f64().unwrap();
    assert!(
        (goodput / (10.0 * 1448.0 / 1502.0) - 1.0).abs() < 1e-3,
        "{goodput}"
    );
    assert!(summary["jain"].as_f64().unwrap() > 0.9999);
    assert_eq!(summary["drops"], 0);
    // 120 packets under way, less those on the wires of the round trip and being sent: 60 us of
    // propagation, three transmissions of 1.2016 us, three of 0.0432 us, at 1.2016 us per packet.
    let under_way = (60.0 + 3.0 * 1.2016 + 3.0 * 0.0432) / 1.2016;
    let queue = summary["queue_packets"]["mean"].as_f64().unwrap();
    assert!(
        (queue - (120.0 - under_way)).abs() < 1.0,
        "{queue} and {under_way}"
    );
    assert!(dir.path().join("throughput.svg").exists());
    assert_eq!(summary, {
        let mut whole = summary.clone();
        let only = whole["transports"]["fixed-window"]
            .as_object()
            .unwrap()
            .clone();
        for (key, value) in only {
            whole[key] = value;
        }
        whole
    });
}

/// Transports of one plan run over queues of their own, or over the plan's: each as if it were alone in a
/// plan with these.
#[test]
fn transports_of_a_plan_may_have_queues_of_their_own() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let scheme = "discipline = \"drop-tail\"\n\n[transport]\nname = \"fixed-window\"\npackets = 10";
    let of = |name: &str, text: &str| {
        std::fs::write(&plan, GOOD.replacen(scheme, text, 1)).unwrap();
        run(&plan, &dir.path().join(name), &[])
    };
    let marks = "discipline = \"ecn-threshold\"\nmark_packets = 20\n";
    let priorities = "discipline = \"pfabric\"\n";
    let dctcp = "name = \"dctcp\"\n";
    let pfabric = "name = \"pfabric\"\n";
    let alone = [
        of("dctcp", &format!("{marks}[transport]\n{dctcp}")),
        of(
            "pfabric",
            &format!("{priorities}[nic_queue]\n{priorities}[transport]\n{pfabric}"),
        ),
    ];
    let both = of(
        "both",
        &format!(
            "{marks}[[transport]]\n{dctcp}[[transport]]\n{pfabric}[transport.queue]\n{priorities}[transport.nic_queue]\n{priorities}"
        ),
    );
    for (label, alone) in ["dctcp", "pfabric"].into_iter().zip(alone) {
        assert_eq!(both["transports"][label], alone["transports"][label]);
    }
    let mean = |label: &str| &both["transports"][label]["queue_packets"]["mean"];
    assert_ne!(mean("dctcp"), mean("pfabric"));
}

/// The same in a fabric that is so large that its regions take turns (`tests/windows.rs`): 686 hosts, DCTCP over
/// marks and Cubic over what drops.
#[test]
fn results_of_a_large_fabric_do_not_depend_on_jobs() {
    const LARGE: &str = r#"
[run]
seed = 7
until = "complete"

[topology]
kind = "fat-tree"
k = 14
rate = "100Gbit/s"
link_delay = "1us"

[queue]
discipline = "ecn-threshold"
mark_packets = 20
limit_packets = 60

[[transport]]
name = "dctcp"

[[transport]]
name = "cubic"

[[workload]]
kind = "permutation"
bytes = 60000
rounds = 2
period = "5us"
"#;
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(&plan, LARGE).unwrap();
    let files = ["summary.json", "flows-dctcp.csv", "flows-cubic.csv"];
    let results = |out: &str, jobs: &str| {
        let out = dir.path().join(out);
        run(&plan, &out, &["--jobs", jobs]);
        files.map(|file| std::fs::read(out.join(file)).unwrap())
    };
    let one = results("one", "1");
    assert_eq!(one, results("two", "2"));
    assert_eq!(one, results("again", "1"));
}

/// The same plan and seed give the same bytes, however many runs go at once; another seed does not.
#[test]
fn results_do_not_depend_on_jobs() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let two = GOOD.replacen(
        "[transport]\nname = \"fixed-window\"\npackets = 10",
        "[[transport]]\nname = \"fixed-window\"\npackets = 10\n[[transport]]\nname = \"constant\"\nrate = \"2Gbit/s\"",
        1,
    );
    std::fs::write(&plan, two).unwrap();
    let files = [
        "summary.json",
        "flows-fixed-window.csv",
        "flows-constant.csv",
    ];
    let results = |out: &str, more: &[&str]| {
        let out = dir.path().join(out);
        run(&plan, &out, more);
        files.map(|file| std::fs::read(out.join(file)).unwrap())
    };
    let one = results("one", &["--jobs", "1"]);
    assert_eq!(one, results("two", &["--jobs", "2"]));
    assert_eq!(one, results("again", &["--jobs", "1"]));
    assert_ne!(one, results("seed", &["--jobs", "1", "--seed", "2"]));

    let (a, b) = (
        dir.path().join("one/summary.json"),
        dir.path().join("two/summary.json"),
    );
    let same = simfabric(&["compare", text(&a), text(&b), "--tolerance", "0"]);
    assert!(same.status.success() && String::from_utf8_lossy(&same.stdout).contains(" 0 differ"));
    let b = dir.path().join("seed/summary.json");
    let other = simfabric(&["compare", text(&a), text(&b), "--tolerance", "0"]);
    assert!(!other.status.success());
}

/// A summary and a figure have no number in common: that is a mistake, not a difference.
#[test]
fn only_results_of_a_kind_are_compared() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, json: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, json).unwrap();
        path
    };
    let summary = file("s.json", r#"{ "transports": { "dctcp": { "drops": 0 } } }"#);
    let figure = file("f.json", r#"{ "rows": [{ "name": "a", "ours": 1.5 }] }"#);
    let other = file("o.json", r#"{ "rows": [{ "name": "a", "ours": 1.5 }] }"#);
    let output = simfabric(&["compare", text(&summary), text(&figure)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.starts_with("error: ") && error.trim_end().lines().count() == 1,
        "{error}"
    );
    assert!(
        error.contains("s.json is a summary of a plan") && error.contains("f.json is a figure"),
        "{error}"
    );
    assert!(
        simfabric(&["compare", text(&figure), text(&other)])
            .status
            .success()
    );
}

/// Results of different things are said to be: two figures, and summaries without a transport in common, are not
/// compared; other summaries are, and what they are of is said.
#[test]
fn results_of_different_things_are_said_to_be() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, json: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, json).unwrap();
        path
    };
    let figure = |name: &str, figure: &str, quick: bool, ours: f64| {
        let json = serde_json::json!({
            "figure": figure, "seed": 1, "commit": "c", "quick": quick, "rows": [{ "name": "a", "ours": ours }],
        });
        file(name, &json.to_string())
    };
    let summary = |name: &str, plan: &str, seed: u32, transport: &str| {
        let json = serde_json::json!({
            "plan": plan, "seed": seed, "commit": "c", "transports": { transport: { "drops": 1 } },
        });
        file(name, &json.to_string())
    };
    let (e, g) = (
        figure("e.json", "flowtune-e", true, 1.5),
        figure("g.json", "flowtune-g", true, 1.5),
    );
    let output = simfabric(&["compare", text(&e), text(&g)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.contains("results of different things")
            && error.contains("e.json is flowtune-e")
            && error.contains("g.json is flowtune-g"),
        "{error}"
    );
    let (one, two, three) = (
        summary("1.json", "a.toml", 1, "dctcp"),
        summary("2.json", "b.toml", 2, "dctcp"),
        summary("3.json", "b.toml", 2, "xcp"),
    );
    let output = simfabric(&["compare", text(&one), text(&three)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.contains("results of different things") && error.contains("dctcp in A, xcp in B"),
        "{error}"
    );
    for (a, b, said) in [
        (&one, &two, &["A: a.toml, seed 1", "B: b.toml, seed 2"][..]),
        (&one, &one, &[]),
        (
            &e,
            &figure("f.json", "flowtune-e", false, 1.5),
            &["short form", "long form"],
        ),
    ] {
        let output = simfabric(&["compare", text(a), text(b)]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{out}");
        for part in said {
            assert!(out.contains(part), "{out}");
        }
        assert_eq!(
            out.lines().count(),
            if said.is_empty() { 1 } else { 3 },
            "{out}"
        );
        assert!(out.contains("0 differ"), "{out}");
    }
}

/// The plan's control traffic goes over what it says: with TCP there are its counters, and every
/// flowlet is reported and given its rate all the same.
#[test]
fn a_plan_chooses_what_control_traffic_goes_over() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let summary = |keys: &str| {
        let transport = format!("\"flowtune\"\n{keys}");
        std::fs::write(
            &plan,
            GOOD.replacen("\"fixed-window\"\npackets = 10", &transport, 1),
        )
        .unwrap();
        run(&plan, &dir.path().join("out"), &[])["transports"]["flowtune"].clone()
    };
    let (datagram, tcp) = (summary(""), summary("control = \"tcp\""));
    let counter = |of: &Value, name: &str| of["counters"][name].as_f64();
    assert_eq!(counter(&datagram, "control_retransmits"), None);
    let retransmits = counter(&tcp, "control_retransmits");
    assert!(retransmits.is_some(), "{tcp}");
    let starts = counter(&tcp, "flowlet_starts");
    assert!(starts.is_some_and(|starts| starts > 10.0), "{tcp}");
    assert_eq!(starts, counter(&datagram, "flowlet_starts"));
}

/// A run from a trace of its own flows gives the same flows, and the same results for each of them.
#[test]
fn a_trace_replays_a_plan() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(&plan, GOOD).unwrap();
    let trace = dir.path().join("flows.csv");
    assert!(
        simfabric(&["trace", text(&plan), "--out", text(&trace)])
            .status
            .success()
    );
    let replay = dir.path().join("replay.toml");
    let head = GOOD.split_once("[[workload]]").unwrap().0;
    std::fs::write(
        &replay,
        format!("{head}[[workload]]\nkind = \"trace\"\nfile = \"flows.csv\"\n"),
    )
    .unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let a = run(&plan, &first, &[]);
    let b = run(&replay, &second, &[]);
    assert!(a["flows"][0].as_u64().unwrap() > 50);
    assert_eq!(a["transports"], b["transports"]);
}

/// No flow is faster than on an empty network, and one that is alone is exactly as fast.
#[test]
fn slowdowns_begin_at_one() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let head = GOOD
        .split_once("[[workload]]")
        .unwrap()
        .0
        .replace("packets = 10", "packets = 100000");
    let alone = "[[workload]]\nkind = \"list\"\nflows = [{ src = 0, dst = 7, bytes = 300000 }]\n";
    std::fs::write(&plan, format!("{head}{alone}")).unwrap();
    let summary = run(&plan, &dir.path().join("alone"), &[]);
    let times = &summary["fct_us"]["100-1000 packets"];
    assert_eq!(
        (&times["count"], &times["slowdown_p99"]),
        (&1.into(), &1.0.into())
    );

    std::fs::write(&plan, GOOD).unwrap();
    let summary = run(&plan, &dir.path().join("many"), &[]);
    let classes = summary["fct_us"].as_object().unwrap();
    assert!(classes.len() >= 3);
    for (name, times) in classes {
        assert!(times["slowdown_p50"].as_f64().unwrap() >= 1.0, "{name}");
        assert!(
            times["slowdown_p99"].as_f64() >= times["slowdown_p50"].as_f64(),
            "{name}"
        );
    }
}

/// The reference is ns-3.37 on the same dumbbell (two DCTCP flows, K = 65): goodput 9.637 Gbit/s, Jain
/// 0.9998, a queue of 60.3 packets on average, 61 / 67 / 68 at p50, p95 and most, no drops.
#[test]
fn the_dctcp_dumbbell_agrees_with_ns_3() {
    let dir = TempDir::new().unwrap();
    let summary = run(&plans().join("dumbbell-dctcp.toml"), dir.path(), &[]);
    let number = |value: &Value| value.as_f64().unwrap();
    let queue = &summary["queue_packets"];
    assert!(
        (number(&summary["goodput_gbps"]) / 9.637 - 1.0).abs() < 0.01,
        "{summary}"
    );
    assert!(
        (number(&summary["jain"]) - 0.9998).abs() < 0.02,
        "{summary}"
    );
    assert!(
        (number(&queue["mean"]) / 60.3 - 1.0).abs() < 0.1,
        "{summary}"
    );
    for (key, packets) in [("p50", 61.0), ("p95", 67.0), ("max", 68.0)] {
        assert!(
            (number(&queue[key]) - packets).abs() <= 3.0,
            "{key}: {summary}"
        );
    }
    assert_eq!(summary["drops"], 0);
}

/// `simfabric list | head -1`: the reader goes away before everything is written.
#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_simfabric"));
    let output = command.arg("list").stdout(writer).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `bench` goes on until there are as many packet-hops as asked for, in one part and in windows, and where it ends is
/// the same in every run.
#[test]
fn a_bench_runs_as_many_packet_hops_as_asked_for() {
    for (hosts, hops) in [("16", 300_000), ("512", 500_000)] {
        let run = || -> Value {
            let wanted = hops.to_string();
            let arguments = [
                "bench",
                "--json",
                "--hosts",
                hosts,
                "--packet-hops",
                &wanted,
            ];
            let output = simfabric(&arguments);
            assert!(output.status.success());
            serde_json::from_slice(&output.stdout).expect("the result is JSON")
        };
        let (one, two) = (run(), run());
        let done = one["packet_hops"].as_u64().unwrap();
        // A window of 512 hosts has 1 µs × 512 × 8.1 packets × 12 hops.
        assert!((hops..hops + 120_000).contains(&done), "{one}");
        for key in [
            "scenario",
            "packet_hops",
            "simulated_us",
            "packets_high_water",
        ] {
            assert!(
                !one[key].is_null() && one[key] == two[key],
                "{key}: {one} {two}"
            );
        }
        for key in ["packet_hops_per_s", "events_per_s", "peak_rss_bytes"] {
            assert!(one[key].as_f64().unwrap() > 0.0, "{key}: {one}");
        }
    }
}

/// The runs of a figure on one thread and on two: the same bytes of every file.
#[test]
fn a_reproduction_does_not_depend_on_jobs() {
    let dir = TempDir::new().unwrap();
    let results = |jobs: &str| {
        let out = dir.path().join(jobs);
        let arguments = ["reproduce", "flowtune", "D", "--quick", "--jobs", jobs];
        let output = simfabric(&[&arguments[..], &["--out", text(&out)]].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let files = ["json", "csv", "svg"];
        let files = files.map(|end| std::fs::read(out.join(format!("flowtune-d.{end}"))).unwrap());
        (output.stdout, files)
    };
    assert_eq!(results("1"), results("2"));
}
