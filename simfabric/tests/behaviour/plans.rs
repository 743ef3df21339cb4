//! Plans through the program: valid ones are accepted, and mistakes are reported with their place.

use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::net::Telemetry;
use ratewright_simfabric::net::queue::DISCIPLINES;
use ratewright_simfabric::plan::{Overrides, PlannedTransport, RunPlan};
use ratewright_simfabric::scheme::SCHEMES;
use ratewright_simfabric::{QueueConfig, Span};
use tempfile::TempDir;

use crate::common::{GOOD, plans, run, simfabric, text};

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

/// A queue of exactly one packet is the shortest possible: a packet at an idle port does not wait.
#[test]
fn a_queue_of_one_packet_is_no_mistake() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let limit = "\"drop-tail\"\nlimit_bytes = 1538";
    std::fs::write(&plan, GOOD.replacen("\"drop-tail\"", limit, 1)).unwrap();
    let summary = run(&plan, &dir.path().join("out"), &[]);
    assert!(summary["goodput_gbps"].as_f64().unwrap() > 0.0, "{summary}");
}

/// `control_first` gives control packets a class of their own in queues of every discipline but
/// XCP's, which computes with all traffic of a link.
#[test]
fn control_goes_first_in_queues_that_have_classes() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    let flowtune = GOOD.replacen(
        "name = \"fixed-window\"\npackets = 10",
        "name = \"flowtune\"\ncontrol_first = true",
        1,
    );
    std::fs::write(&plan, &flowtune).unwrap();
    let summary = run(&plan, &dir.path().join("out"), &[]);
    assert!(summary["goodput_gbps"].as_f64().unwrap() > 0.0, "{summary}");
    std::fs::write(&plan, flowtune.replacen("drop-tail", "xcp", 1)).unwrap();
    let output = simfabric(&["check", text(&plan)]);
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.contains("flowtune needs queues with classes here, which xcp cannot be"),
        "{complaint}"
    );
    assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
}

/// Without `[queue]`, each transport runs over the queues that its scheme needs: DCTCP's mark in
/// proportion to the link's rate (SIGCOMM 2010 §3.5).
#[test]
fn a_plan_without_queues_has_those_of_its_schemes() {
    let (head, tail) = GOOD.split_once("[queue]").unwrap();
    let workload = tail.split_once("[[workload]]").unwrap().1;
    let names = ["dctcp", "pfabric", "xcp", "cubic"];
    let transports = names.map(|name| format!("[[transport]]\nname = \"{name}\"\n"));
    let text = format!("{head}{}[[workload]]{workload}", transports.concat());
    let overrides = Overrides::default();
    let plan = RunPlan::parse(&text, "plan.toml", Path::new(""), &overrides).unwrap();
    let disciplines = |transport: &PlannedTransport| {
        [&transport.fabric.edge, &transport.fabric.core].map(QueueConfig::discipline)
    };
    let found: Vec<_> = plan.transports.iter().map(disciplines).collect();
    assert_eq!(
        found,
        [
            ["ecn-threshold"; 2],
            ["pfabric"; 2],
            ["xcp"; 2],
            ["drop-tail"; 2]
        ]
    );
    // 10 Gbit/s to hosts, 20 Gbit/s between switches.
    let fabric = &plan.transports[0].fabric;
    for (queue, packets) in [(&fabric.edge, 65), (&fabric.core, 130)] {
        let QueueConfig::EcnThreshold(config) = queue else {
            panic!("{queue:?}");
        };
        assert_eq!(config.mark_packets, Some(packets));
    }
}

/// `--set` takes the keys of plans, and its mistakes are said in the same words.
#[test]
fn a_setting_replaces_a_parameter_and_is_checked_like_it() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    std::fs::write(&plan, GOOD).unwrap();
    let goodput = |packets: &str| {
        let set = format!("fixed-window.packets={packets}");
        let summary = run(&plan, &dir.path().join(packets), &["--set", &set]);
        summary["goodput_gbps"].as_f64().unwrap()
    };
    let (one, ten) = (goodput("1"), goodput("10"));
    assert!(one < ten, "{one} {ten}");
    for (set, part) in [
        (
            "fixed-window.packets=0",
            "--set fixed-window.packets=0: a window of 0 packets",
        ),
        (
            "dctcp.gain=0.5",
            "no transport is of this scheme; there are fixed-window",
        ),
        (
            "fixed-window.queue.limit_packets=9",
            "`discipline` is missing",
        ),
        ("queue.limit_bytes=9", "9 bytes hold no packet"),
        ("gain=0.5", "a setting is NAME.KEY=VALUE"),
    ] {
        let out = dir.path().join("refused");
        let output = simfabric(&["run", text(&plan), "--out", text(&out), "--set", set]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{set}");
        assert!(error.contains(part), "{set}: {error}");
    }
}

/// `simfabric list` has every parameter of every scheme and discipline, with its default.
#[test]
fn the_list_has_every_parameter_with_its_default() {
    let output = simfabric(&["list"]);
    let list = String::from_utf8_lossy(&output.stdout);
    let schemes = SCHEMES.iter().map(|e| (e.name, e.parameters, e.default));
    let disciplines = DISCIPLINES
        .iter()
        .map(|e| (e.name, e.parameters, e.default));
    for (name, parameters, defaults) in schemes.chain(disciplines) {
        assert!(list.contains(&format!("\n{name}: ")), "{name}");
        for parameter in parameters() {
            let default = defaults()
                .get(parameter.key)
                .map(|value| format!(" [{value}]"));
            let line = format!(
                "\n  {}{}: {}",
                parameter.key,
                default.unwrap_or_default(),
                parameter.doc.trim()
            );
            assert!(list.contains(&line), "{name}: {line}");
        }
    }
}

/// Each mistake is one line with the file, the line of the mistake, and what is wrong.
#[test]
fn bad_plans_get_one_clear_error_with_the_place() {
    let dir = TempDir::new().unwrap();
    let plan = dir.path().join("plan.toml");
    // Size files for the cases that name them; the second goes down.
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
            "\"classes\"\nclasses = 9",
            16,
            "`classes` must be a table",
        ),
        (
            "[queue]\ndiscipline = \"drop-tail\"",
            "[queue]\ndiscipline = \"drop-tail\"\nshared_buffer = { bytes = 9000, alpha = 1.0, lossless = { classes = [8], xoff_bytes = 3000, headroom_bytes = 0 } }",
            16,
            "`classes` are numbers from 0 to 7",
        ),
        (
            "[queue]\ndiscipline = \"drop-tail\"",
            "[queue]\ndiscipline = \"drop-tail\"\nshared_buffer = { bytes = 9000, alpha = 1.0, lossless = { classes = [0], headroom_bytes = 0 } }",
            16,
            "one of `xoff_bytes` and `xoff_alpha`",
        ),
        ("\"drop-tail\"", "\"classes\"", 14, "`classes` is missing"),
        (
            "\"drop-tail\"",
            "\"classes\"\nclasses = [{ discipline = \"drop-tail\", weight = 0 }]",
            16,
            "`weight` must be from 1 to 65535",
        ),
        (
            "\"drop-tail\"",
            "\"classes\"\nclasses = [{ discipline = \"drop-tail\", shaper = { share = 1.5 } }]",
            16,
            "it must be above 0 and at most 1",
        ),
        (
            "\"drop-tail\"",
            "\"classes\"\nclasses = [{ discipline = \"xcp\" }]",
            16,
            "the queue of a class cannot be xcp",
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
            "\"codel\"\nlimit_packets = 9\ntarget = \"5us\"\nintervall = \"9us\"",
            18,
            "unknown key `intervall`; there are target, interval, ecn, limit_packets",
        ),
        (
            "\"drop-tail\"",
            "\"ecn-threshold\"\nlimit_packets = 9",
            14,
            "the threshold is missing",
        ),
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
            "\"flowtune\"\ncontrol = \"datagram\"\ncontrol_max_rto = \"1ms\"",
            20,
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
            "\"dctcp\"\nmark_packets = 20",
            19,
            "it is about the scheme's own queues, and a `queue` takes their place",
        ),
        (
            "packets = 10",
            "paquets = 10",
            19,
            "unknown key `paquets`; there are packets",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"cubic\"\nmin_rto = \"1ms\"\ngain = 0.1",
            20,
            "unknown key `gain`; there are growth, first_limit, reno_friendly",
        ),
        (
            "\"fixed-window\"\npackets = 10",
            "\"dctcp\"\nmin_rto = \"1ms\"\ngain = nan",
            20,
            "it must be above 0 and at most 1",
        ),
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
            "packets = 10\nnic_queue = { discipline = \"red\", max_packets = 9 }",
            20,
            "`max_packets` must be above `min_packets`",
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
            "\"classes\"\nclasses = [{ discipline = \"codel\", limit_bytes = 84 }]",
            16,
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
            "sizes = \"web\"\n[measure]\nsize_groups = [100, 100]",
            26,
            "`size_groups` are bytes that rise from at least 1",
        ),
        (
            "sizes = \"web\"",
            "sizes = \"web\"\n[measure]\nqueues = \"all\"",
            26,
            "`queues` is \"all\"",
        ),
    ] {
        // A mutation whose text is not in the plan any more would test nothing.
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

/// Flowtune's sessions send keep-alives for as long as they stand, so a run with them never
/// completes.
/// Jitter of hosts and telemetry of switches are the fabric's, whatever the transport.
#[test]
fn a_plan_gives_jitter_telemetry_and_groups_of_sizes() {
    let text = GOOD
        .replace(
            "link_delay = \"1us\"",
            "link_delay = \"1us\"\nhost_jitter = \"30ns\"",
        )
        .replace("[queue]", "[packet]\ntelemetry = \"asked\"\n\n[queue]")
        + "\n[measure]\nsize_groups = [1457, 100000]\n";
    let plan = RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default());
    let plan = plan.expect("a good plan");
    let fabric = &plan.transports[0].fabric;
    assert_eq!(fabric.host_jitter, Span::from_ns(30));
    assert_eq!(fabric.telemetry, Telemetry::Asked);
    let run = plan.run(&plan.transports[0], |_| ControlFlow::Continue(()));
    let times = run.expect("it runs").summary.fct_us;
    let groups: Vec<&str> = times.keys().map(String::as_str).collect();
    let expected = [
        "1-1457 bytes",
        "1458-100000 bytes",
        "over 100000 bytes",
        "all",
    ];
    assert_eq!(groups, expected);
}

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
        error.contains("plan.toml:3:9: the clocks of \"flowtune\" go on without flows"),
        "{error}"
    );
}

/// Kinds that are built on another builder report errors about the plan's keys, not the builder's.
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
        // The name of the builder's parameter is none of the plan's keys.
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
/// 10 Gbit/s × 1448 / 1502, and two flows that each keep 60 packets in flight share it equally.
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
    // An empty directory would pass as well.
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
    // 120 packets in flight, less those on the wires of the round trip and being sent: 60 us of
    // propagation, three transmissions of 1.2016 us, three of 0.0432 us, at 1.2016 us per packet.
    let under_way = (60.0 + 3.0 * 1.2016 + 3.0 * 0.0432) / 1.2016;
    // All but `mean_all` are of the one queue that is longest on average, so they are ordered.
    let lengths = &summary["queue_packets"];
    let [mean, p50, p95, max, mean_all] =
        ["mean", "p50", "p95", "max", "mean_all"].map(|key| lengths[key].as_f64().unwrap());
    assert!(
        mean_all <= mean && mean <= max && p50 <= p95 && p95 <= max,
        "{lengths}"
    );
    let queue = summary["queue_packets"]["mean"].as_f64().unwrap();
    assert!(
        (queue - (120.0 - under_way)).abs() < 1.0,
        "{queue} and {under_way}"
    );
    assert!(dir.path().join("throughput.svg").exists());
    // The only transport's results also stand at the top level, where scripts read them.
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
