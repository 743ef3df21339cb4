//! `ratewright-bench` prints what it promises, as JSON and as a figure.

use std::process::Output;

use assert_cmd::Command;

/// Runs a command; returns its output, and its standard error as text.
fn bench(args: &[&str]) -> (Output, String) {
    let mut command = Command::cargo_bin("ratewright-bench").unwrap();
    let output = command.args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

fn json_of(args: &[&str]) -> serde_json::Value {
    let (output, said) = bench(args);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that must fail without a panic; returns its standard error.
fn refusal_of(args: &[&str]) -> String {
    let (output, said) = bench(args);
    let code = output.status.code();
    // 1 is a refusal of the program, 2 one of the parser; a panic would be 101.
    assert!(matches!(code, Some(1 | 2)), "{args:?}: {code:?} {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    said
}

const SMALL_ENGINE: [&str; 9] = [
    "engine",
    "--hosts=192",
    "--rack-hosts=24",
    "--spines=4",
    "--flows=600",
    "--blocks=4",
    "--workers=2",
    "--iterations=50",
    "--json",
];

#[test]
fn engine_gives_every_figure_that_scripts_rely_on() {
    for tiers in ["2", "3"] {
        let mut args = SMALL_ENGINE.to_vec();
        args.extend(["--tiers", tiers, "--churn", "20000", "--against-reference"]);
        let result = json_of(&args);
        for (name, expected) in [("hosts", 192), ("flows", 600), ("blocks", 4)] {
            assert_eq!(result[name], expected, "{name}");
        }
        assert_eq!(result["tiers"].to_string(), tiers);
        assert_eq!(result["workers"], 2);
        assert_eq!(result["iterations"], 50);
        // Two links a host at least, one each way.
        assert!(result["links"].as_u64().unwrap() > 2 * 192);
        assert!(["scalar", "avx2", "avx512"].contains(&result["simd"].as_str().unwrap()));
        let times = &result["iteration_us"];
        let [min, p50, p99] = ["min", "p50", "p99"].map(|name| times[name].as_f64().unwrap());
        assert!(0.0 < min && min <= p50 && p50 <= p99, "{times}");
        for parts in ["phases_us", "phases_p50_us", "phases_p99_us"] {
            for part in [
                "events",
                "rate_update",
                "aggregation",
                "price_update",
                "distribution",
                "normalization",
                "output",
            ] {
                assert!(
                    result[parts][part].as_f64().unwrap() >= 0.0,
                    "{parts} {part}"
                );
            }
        }
        assert!(result["bytes_per_flow"].as_f64().unwrap() > 0.0);
        assert!(result["events_per_s"].as_f64().unwrap() > 0.0);
        let error = result["max_relative_error"].as_f64().unwrap();
        assert!(error < 1e-3, "{error}");
    }
    let result = json_of(&SMALL_ENGINE);
    assert!(result.get("max_relative_error").is_none());
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let engine = |option: &str| {
        let mut args = vec!["engine", "--hosts=96", "--flows=100", "--iterations=20"];
        let name = option.split('=').next().unwrap();
        args.retain(|given| given.split('=').next() != Some(name));
        args.push(option);
        (name.to_owned(), refusal_of(&args))
    };
    for option in [
        "--hosts=1",
        "--rack-hosts=0",
        "--flows=0",
        "--flows=18446744073709551615",
        "--iterations=0",
        "--iterations=18446744073709551615",
        "--tiers=4",
        "--churn=-1",
        "--churn=inf",
        "--churn=1e9",
        "--churn=nan",
    ] {
        let (name, said) = engine(option);
        assert!(said.contains(&name), "{option}: {said}");
    }
    for (option, why) in [
        ("--blocks=3", "power of two"),
        ("--blocks=4", "at most 2 blocks"),
        ("--workers=0", "workers"),
        ("--workers=99", "workers"),
        ("--simd=mmx", "mmx"),
        ("--spines=0", "spines"),
    ] {
        let (_, said) = engine(option);
        assert!(said.contains(why), "{option}: {said}");
    }
    for args in [
        ["convergence", "--fabric-gbps=18446744073709551615"],
        ["convergence", "--cases=0"],
        ["convergence", "--repeats=0"],
        ["convergence", "--workers=300"],
        ["convergence", "--iterations=0"],
        ["changes", "--workers=300"],
        ["changes", "--flows=0"],
        ["scaling", "--workers=99"],
        ["normalizer", "--iterations=4294967295"],
        ["over-allocation", "--warm-up=4294967295"],
    ] {
        let said = refusal_of(&args);
        let option = args[1].split('=').next().unwrap();
        assert!(said.contains(option), "{args:?}: {said}");
    }
    for command in ["convergence", "changes"] {
        let said = refusal_of(&[command, "--racks=2", "--workers=5"]);
        assert!(said.contains("1 to 4 workers"), "{command}: {said}");
    }
}

#[test]
fn convergence_gives_figures_for_each_rule() {
    let directory = tempfile::tempdir().unwrap();
    let figure = directory.path().join("figure.svg");
    let small = ["--racks", "8", "--flows", "1024", "--cases", "1"];
    let mut args = vec!["convergence", "--json", "--repeats", "1", "--svg"];
    args.push(figure.to_str().unwrap());
    args.extend(small);
    let result = json_of(&args);
    assert_eq!(result["hosts"], 128);
    // 1 % of 1,024 flows.
    assert_eq!(result["replaced"], 10);
    let rules = result["rules"].as_array().unwrap();
    let names: Vec<&str> = rules.iter().map(|r| r["rule"].as_str().unwrap()).collect();
    for name in ["plain", "guarded", "ratewright", "local-1", "coordinate"] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    for rule in rules {
        let points = rule["points"].as_array().unwrap();
        assert_eq!(points.len(), 10);
        for point in points {
            assert!(point["time"].as_f64().unwrap() > 0.0, "{point}");
            assert!(point["throughput"].as_f64().unwrap() > 0.5, "{point}");
        }
    }
    let engines = result["engines"].as_array().unwrap();
    let names: Vec<&str> = engines
        .iter()
        .map(|e| e["rule"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["parallel", "parallel-plain"]);
    for engine in engines {
        let points = engine["points"].as_array().unwrap();
        assert_eq!(engine["reference_times"].as_array().unwrap().len(), 10);
        // Small networks converge within the iterations; a notified rate may be a threshold beside.
        let last = &points[9];
        assert!(last["p99_rate_error"].as_f64().unwrap() < 0.1, "{engine}");
        assert!(last["throughput"].as_f64().unwrap() > 0.97, "{engine}");
    }
    let svg = std::fs::read_to_string(figure).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("ratewright"));
}

#[test]
fn experiments_over_loads_give_figures_for_each_load() {
    let short = [
        "--json",
        "--loads",
        "0.3,0.6",
        "--warm-up",
        "100",
        "--iterations",
        "100",
    ];
    for (name, figure) in [("over-allocation", "mean_gbps"), ("normalizer", "f_norm")] {
        let mut args = vec![name];
        args.extend(short);
        let result = json_of(&args);
        let results = result["results"].as_array().unwrap();
        for load in [0.3, 0.6] {
            let at_load = results.iter().filter(|r| r["load"] == load);
            let ned = at_load.clone().find(|r| r["optimizer"] == "NED").unwrap();
            let ours = at_load.clone().find(|r| r["optimizer"] == "Ratewright");
            let (ned, ours) = (ned[figure].as_f64(), ours.unwrap()[figure].as_f64());
            assert!(
                ned.is_some() && ours.is_some() && ned != ours,
                "{name} at {load}"
            );
        }
    }
}

#[test]
fn changes_of_the_network_overfill_no_link() {
    let small = [
        "changes",
        "--racks",
        "4",
        "--flows",
        "1600",
        "--repeats",
        "1",
        "--json",
    ];
    let result = json_of(&small);
    let changes = result["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 9);
    for change in changes {
        // Single precision: a link may be full to the last digit.
        assert!(
            change["max_link_load"].as_f64().unwrap() < 1.000_01,
            "{change}"
        );
        assert!(change["events"].as_u64().unwrap() > 0, "{change}");
    }
    // What a failure moves, the repair moves back.
    for (failure, repair) in [(0, 1), (2, 3)] {
        assert_eq!(changes[failure]["events"], changes[repair]["events"]);
    }
}

#[test]
fn loads_at_which_queues_grow_for_ever_are_refused() {
    let said = refusal_of(&["normalizer", "--loads", "1.0"]);
    assert!(said.contains("--loads"), "{said}");
}

#[test]
fn scaling_gives_figures_for_each_engine_and_an_optimum_that_a_solver_confirms() {
    let directory = tempfile::tempdir().unwrap();
    let figure = directory.path().join("figure.svg");
    let result = json_of(&[
        "scaling",
        "--json",
        "--sizes",
        "96x200,192x300",
        "--blocks",
        "1,2",
        "--workers",
        "1,2",
        "--iterations",
        "20",
        "--clarabel-flows",
        "200",
        "--svg",
        figure.to_str().unwrap(),
    ]);
    let sizes = result["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 2);
    for size in sizes {
        let engines = size["engines"].as_array().unwrap();
        let kinds: Vec<_> = engines
            .iter()
            .map(|e| {
                (
                    e["blocks"].as_u64().unwrap(),
                    e["workers"].as_u64().unwrap(),
                )
            })
            .collect();
        // One block has work for one worker only.
        assert_eq!(kinds, [(1, 1), (2, 1), (2, 2)]);
        assert!(engines[0]["iteration_us"]["p50"].as_f64().unwrap() > 0.0);
        let max_min = &size["peers"][0];
        assert_eq!(max_min["solved"], true);
        // Proportional fairness gives long paths less for the sake of the sum.
        let throughput = max_min["throughput"].as_f64().unwrap();
        assert!((0.5..1.01).contains(&throughput), "{max_min}");
        assert!(max_min["max_relative_difference"].as_f64().unwrap() > 0.01);
    }
    let solver = &sizes[0]["peers"][1];
    assert_eq!(solver["solved"], true, "{solver}");
    assert!(
        solver["max_relative_difference"].as_f64().unwrap() < 0.01,
        "{solver}"
    );
    // 300 flows are above --clarabel-flows: max-min only.
    assert_eq!(sizes[1]["peers"].as_array().unwrap().len(), 1);
    let svg = std::fs::read_to_string(figure).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("192 × 300") && svg.contains("B 2, W 2"));
    assert!(svg.contains("Clarabel"));
    // The paper has none of these sizes.
    assert!(!svg.contains("Flowtune"));
}

#[test]
fn the_scaling_plot_names_no_solver_that_had_nothing_to_solve() {
    let directory = tempfile::tempdir().unwrap();
    let figure = directory.path().join("figure.svg");
    json_of(&[
        "scaling",
        "--json",
        "--sizes",
        "96x200",
        "--blocks",
        "1",
        "--workers",
        "1",
        "--iterations",
        "5",
        "--clarabel-flows",
        "0",
        "--svg",
        figure.to_str().unwrap(),
    ]);
    let svg = std::fs::read_to_string(figure).unwrap();
    assert!(svg.contains("B 1, W 1") && svg.contains("max-min"));
    assert!(!svg.contains("Clarabel"));
}
