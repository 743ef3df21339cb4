//! Results through the program: of plans, traces, benches and reproductions, with any number of
//! jobs and threads.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{GOOD, plans, run, simfabric, text};

/// A transport over queues of its own gives the results of a plan with these queues and this
/// transport alone.
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
    // Equal results would be no proof if both ran over the same queues.
    let mean = |label: &str| &both["transports"][label]["queue_packets"]["mean"];
    assert_ne!(mean("dctcp"), mean("pfabric"));
}

/// A fabric of 686 hosts is large enough that its regions take turns (`windows.rs`), and that
/// threads wake for its windows; DCTCP's queues mark, and Cubic's drop.
#[test]
fn results_of_a_large_fabric_do_not_depend_on_jobs_or_threads() {
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
    let results = |out: &str, jobs: &str, threads: &str| {
        let out = dir.path().join(out);
        run(&plan, &out, &["--jobs", jobs, "--threads", threads]);
        files.map(|file| std::fs::read(out.join(file)).unwrap())
    };
    // Again with one job: a result may also depend on chance alone.
    let one = results("one", "1", "1");
    assert_eq!(one, results("jobs", "2", "1"));
    assert_eq!(one, results("again", "1", "1"));
    assert_eq!(one, results("threads", "1", "2"));
    assert_eq!(one, results("both", "2", "3"));
}

/// Equal plans and seeds give equal bytes, with any number of jobs; another seed does not.
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

/// A plan chooses the transport of control traffic. With TCP there are its counters, and equally
/// many flowlets are reported.
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
    let (datagram, tcp) = (summary("control = \"datagram\""), summary(""));
    let counter = |of: &Value, name: &str| of["counters"][name].as_f64();
    // Datagrams carry the newest state instead of retransmitting, so there is nothing to count.
    assert_eq!(counter(&datagram, "control_retransmits"), None);
    let retransmits = counter(&tcp, "control_retransmits");
    assert!(retransmits.is_some(), "{tcp}");
    let starts = counter(&tcp, "flowlet_starts");
    assert!(starts.is_some_and(|starts| starts > 10.0), "{tcp}");
    assert_eq!(starts, counter(&datagram, "flowlet_starts"));
}

/// A run from a plan's trace gives the plan's flows, and equal results for each of them.
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
    // Not the whole summary: the plans' names and workloads differ.
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
        // A window beyond the flow: the sender never waits, as the closed form has it.
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

/// The reference is ns-3.37 on the same dumbbell (two DCTCP flows, K = 65): goodput 9.637 Gbit/s,
/// Jain 0.9998, a queue of 60.3 packets on average, 61 / 67 / 68 at p50, p95 and most, no drops.
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
    // Closed before the program starts, so that the first write fails whatever the timing.
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

/// `bench` runs at least the packet-hops asked for, in one part and in windows, and ends at the
/// same event in every run.
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
        // These depend on the machine, so only their sign is a property of the program.
        for key in ["packet_hops_per_s", "events_per_s", "peak_rss_bytes"] {
            assert!(one[key].as_f64().unwrap() > 0.0, "{key}: {one}");
        }
    }
}

/// `bench --growth` runs every size for the same simulated time, so that larger ones have more
/// packet-hops, and fits a line to the least times and to the medians.
#[test]
fn a_bench_of_growth_fits_a_line_to_all_sizes() {
    let arguments = ["bench", "--growth", "--simulated-us", "10", "--rounds", "1"];
    let output = simfabric(&[&arguments[..], &["--json"]].concat());
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).expect("the result is JSON");
    let sizes = result["sizes"].as_array().unwrap();
    let of = |key: &str| -> Vec<u64> { sizes.iter().map(|s| s[key].as_u64().unwrap()).collect() };
    let (hosts, hops) = (of("hosts"), of("packet_hops"));
    assert_eq!((hosts[0], hosts.last()), (16, Some(&2_048)), "{result}");
    assert!(
        hosts.is_sorted() && hops.is_sorted() && hops[0] > 100,
        "{result}"
    );
    for fit in ["least", "median"] {
        let fit = &result[fit];
        assert!(fit["exponent"].as_f64().unwrap().is_finite(), "{result}");
        assert!(fit["line_worst"].as_f64().unwrap() >= 0.0, "{result}");
    }
    let output = simfabric(&arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("time grows as hops^"),
        "{text}"
    );
}

/// A figure's runs on one thread and on two give equal bytes of every file.
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
        let files = files
            .map(|end| std::fs::read(out.join(format!("fig08_staggered_flows.{end}"))).unwrap());
        (output.stdout, files)
    };
    assert_eq!(results("1"), results("2"));
}

/// A command reads the runs of the one before it, and without time for new ones its figures are of
/// those that are there.
#[test]
fn a_long_form_goes_on_where_it_was() {
    let dir = TempDir::new().unwrap();
    let reproduce = |more: &[&str]| -> Value {
        let arguments = ["reproduce", "fncc", "fig12", "--seeds", "2"];
        let output = simfabric(&[&arguments[..], &["--out", text(dir.path())], more].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let figure = std::fs::read(dir.path().join("fig12_telemetry_age.json")).unwrap();
        serde_json::from_slice(&figure).unwrap()
    };
    let whole = reproduce(&[]);
    let runs = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(dir.path().join("runs")).unwrap();
        let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        paths.sort();
        paths
    };
    // Two carriers, three rates, two seeds.
    assert_eq!(runs().len(), 12);
    assert_eq!(reproduce(&[]), whole);
    // A run's file speaks for it: another number is in the figure.
    let first = std::fs::read_to_string(&runs()[0]).unwrap();
    let mut other: Value = serde_json::from_str(&first).unwrap();
    other["sample"]["measured_ps"][0] = 123_456_789.into();
    std::fs::write(&runs()[0], other.to_string()).unwrap();
    let read = reproduce(&[]);
    assert!(read["data"].to_string().contains("123456789"), "{read}");
    // What is half written does not count.
    std::fs::write(&runs()[0], &first[..first.len() / 2]).unwrap();
    std::fs::remove_file(&runs()[1]).unwrap();
    let part = reproduce(&["--minutes", "0"]);
    let notes = part["notes"].to_string();
    assert!(notes.contains("10 of 12 runs are there"), "{notes}");
    assert_eq!(runs().len(), 11);
    assert_eq!(reproduce(&[]), whole);
}
