//! Operations on a running allocator, the real binary: kill switch, reload, topology changes, log
//! level, probes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::TwoTierClos;
use serde_json::{Value, json};

use crate::service_support::host::{TestHost, now_ns};
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, pause, wait_for};

fn post(allocator: &AllocatorProcess, path: &str, body: &Value) -> (u16, Value) {
    let (code, text) = allocator.request("POST", path, &body.to_string());
    (
        code,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

fn host(site: &TestSite, allocator: &AllocatorProcess, name: &str) -> TestHost {
    TestHost::connect(&site.authority, allocator.listen, name).established()
}

#[test]
fn the_kill_switch_waits_a_lease_for_a_host_that_does_not_answer_and_shows_it() {
    let site = TestSite::new();
    let allocator = site.start();
    let (one, two) = (host(&site, &allocator, "h1"), host(&site, &allocator, "h2"));
    // This host's rates must expire by the lease instead of an acknowledgement.
    two.view().mute_release = true;
    let flow = one.start(0, "h16");
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);

    let (code, report) = post(&allocator, "/release", &json!(null));
    assert_eq!(code, 200);
    assert_eq!(report["released"], true);
    assert_eq!(
        (
            &report["hosts"],
            &report["acknowledged"],
            &report["expired"]
        ),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!(report["waiting"], json!([]));
    let elapsed_ms = report["elapsed_ms"].as_u64().expect("a number");
    // Not before the lease is over. How soon after it is shown on a clock of its own
    // (`hub::tests::release`).
    assert!(elapsed_ms >= 300, "a lease of 300 ms, not {elapsed_ms}");
    assert!(one.view().released && two.view().released);
    assert_eq!(one.rate(flow), None);
    let status = allocator.status();
    assert_eq!(status["released"], true);
    assert_eq!(status["sessions"][0]["released"], "acknowledged");
    assert_eq!(status["sessions"][1]["released"], "expired");
    assert_eq!(allocator.metric("ratewright_allocator_released"), 1.0);
    // Longer than a lease: no renewal may bring the rate back.
    pause(Duration::from_millis(400));
    assert_eq!(
        one.rate(flow),
        None,
        "no rate is given while the switch is on"
    );

    two.view().mute_release = false;
    let (code, report) = post(&allocator, "/resume", &json!(null));
    assert_eq!((code, &report["released"]), (200, &json!(false)));
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    assert_eq!(allocator.status()["sessions"][0]["released"], "no");
}

#[test]
fn a_bad_reload_keeps_the_old_configuration_and_a_good_one_takes_effect() {
    let site = TestSite::new();
    let allocator = site.start();
    let one = host(&site, &allocator, "h1");
    let flow = one.start(0, "h16");
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    let reloads = |result: &str| {
        allocator.metric(&format!(
            "ratewright_allocator_reloads_total{{result=\"{result}\"}}"
        ))
    };

    let mut rejected = 0.0;
    let good = site.config("127.0.0.1:0", "");
    for (text, complaint) in [
        (
            good.replace("listen", "lisen"),
            "allocator.toml:1: unknown field `lisen`",
        ),
        (
            good.replace("127.0.0.1:0", "127.0.0.1:1"),
            "allocator.toml: listen cannot change without a restart",
        ),
        (
            good.replace("ca.pem", "nowhere.pem"),
            "nowhere.pem: no usable certificate",
        ),
        (
            format!("log = \"=!!\"\n{good}"),
            "allocator.toml:1: log = \"=!!\": is not a log filter",
        ),
        (
            good.replace("topology.toml", "nowhere.toml"),
            "nowhere.toml: cannot be read: No such file",
        ),
    ] {
        site.write("allocator.toml", &text);
        allocator.signal("HUP");
        rejected += 1.0;
        wait_for("the reload is rejected", PATIENCE, || {
            reloads("rejected") == rejected
        });
        // A counter is seen before its line has come through the pipe.
        wait_for("the rejection is logged", PATIENCE, || {
            let log = allocator.log();
            log.matches("reload rejected").count() as f64 >= rejected
        });
        let log = allocator.log();
        // The rejection is logged last, and in one line.
        let line = log.lines().last().expect("a line");
        assert!(
            line.contains("reload rejected, the old configuration stays in force: "),
            "{line}"
        );
        assert!(line.contains(complaint), "{line}");
    }
    assert!(one.is_up() && one.rate(flow).is_some());
    host(&site, &allocator, "h2");

    // A cap on the class needs another engine, which must have every flow.
    let class = "[[class]]\nid = 0\nname = \"default\"\nmax_rate_bps = 1000000000\n";
    site.write("allocator.toml", &site.config("127.0.0.1:0", class));
    allocator.signal("HUP");
    wait_for("the reload is taken", PATIENCE, || reloads("ok") == 1.0);
    one.wait_rate(flow, 970_000_000..=1_000_000_000);

    site.write("allocator.toml", &good);
    let topology = TwoTierClos {
        host_capacity_bps: 5_000_000_000,
        ..TwoTierClos::default()
    };
    site.write(
        "topology.toml",
        &topology.build().expect("good").to_toml_string(),
    );
    // Half the speed: the rates show which topology is in force.
    let version = one.view().topology_version;
    allocator.signal("HUP");
    wait_for("the reload is taken", PATIENCE, || reloads("ok") == 2.0);
    one.wait_rate(flow, 4_850_000_000..=5_000_000_000);
    wait_for("the host learns the new version", PATIENCE, || {
        one.view().topology_version > version
    });
    assert_eq!(allocator.status()["sessions"][0]["host"], "h1");
}

#[test]
fn certificates_are_renewed_by_a_reload() {
    let site = TestSite::new();
    let allocator = site.start();
    let before = host(&site, &allocator, "h1");
    let authority = crate::service_support::certificates::TestAuthority::new();
    site.write("ca.pem", &authority.pem);
    authority
        .sign(&["ratewright-allocator"])
        .write(site.path(), "allocator.pem", "allocator.key");
    allocator.signal("HUP");
    wait_for("the reload is taken", PATIENCE, || {
        allocator.log().contains("reloaded: ")
    });
    TestHost::connect(&authority, allocator.listen, "h2").established();
    // Of the old authority, whose file the reload has replaced.
    let stale = TestHost::connect(&site.authority, allocator.listen, "h3");
    wait_for("the old authority is not taken", PATIENCE, || {
        !stale.is_up()
    });
    assert!(before.is_up(), "a session that stands is left alone");
}

#[test]
fn failures_that_are_notified_move_flows_away() {
    let site = TestSite::new();
    let allocator = site.start();
    let one = host(&site, &allocator, "h1");
    // Their slots are their path hashes: one flow over each spine.
    let (even, odd) = (one.start(0, "h16"), one.start(1, "h16"));
    one.wait_rate(even, 4_800_000_000..=5_000_000_000);
    let epoch = |status: &Value| status["topology_epoch"].as_u64().expect("a number");
    let before = epoch(&allocator.status());

    let (code, report) = post(
        &allocator,
        "/topology/switch",
        &json!({"name": "spine1", "up": false}),
    );
    assert_eq!(code, 200, "{report}");
    assert_eq!(
        (&report["links_changed"], &report["flows_rerouted"]),
        // Four leaves, two directions; one of the two flows used the spine.
        (&json!(8), &json!(1))
    );
    let status = allocator.status();
    assert!(epoch(&status) > before);
    assert_eq!(status["links_down"].as_array().expect("a list").len(), 8);

    let (code, report) = post(
        &allocator,
        "/topology/link",
        &json!({"from": "leaf4", "to": "h16", "capacity_bps": 2_000_000_000u64}),
    );
    assert_eq!(code, 200, "{report}");
    for flow in [even, odd] {
        one.wait_rate(flow, 950_000_000..=1_000_000_000);
    }
    let (code, _) = post(
        &allocator,
        "/topology/link",
        &json!({"from": "leaf4", "to": "h16", "up": false}),
    );
    assert_eq!(code, 200);
    wait_for("the flows have no rate", PATIENCE, || {
        one.rate(even).is_none() && one.rate(odd).is_none()
    });

    // A reload of the same file keeps the failures that operators have reported.
    allocator.signal("HUP");
    wait_for("the reload is taken", PATIENCE, || {
        allocator.log().contains("reloaded: ")
    });
    assert_eq!(
        allocator.status()["links_down"]
            .as_array()
            .expect("a list")
            .len(),
        10
    );

    for (path, body, code, complaint) in [
        (
            "/topology/link",
            json!({"from": "leaf4", "to": "h99", "up": false}),
            404,
            "no host or switch is named \"h99\"",
        ),
        (
            "/topology/link",
            json!({"from": "h1", "to": "h2", "up": false}),
            404,
            "no link from \"h1\" to \"h2\"",
        ),
        (
            "/topology/link",
            json!({"from": "h1", "to": "leaf1"}),
            400,
            "nothing to change",
        ),
        (
            "/topology/link",
            json!({"from": "h1"}),
            400,
            "missing field `to`",
        ),
        (
            "/topology/switch",
            json!({"name": "h1", "up": false}),
            404,
            "no switch is named \"h1\"",
        ),
        (
            "/topology/switch",
            json!({"name": "h1", "up": false, "why": 1}),
            400,
            "unknown field `why`",
        ),
    ] {
        let (found, answer) = post(&allocator, path, &body);
        assert_eq!(found, code, "{answer}");
        assert!(
            answer["error"]
                .as_str()
                .expect("text")
                .starts_with(complaint),
            "{answer}"
        );
    }
}

#[test]
fn probes_metrics_and_the_log_level_answer() {
    let site = TestSite::new();
    let allocator = site.start();
    assert_eq!(
        allocator.request("GET", "/live", ""),
        (200, "live\n".to_owned())
    );
    assert_eq!(
        allocator.request("GET", "/ready", ""),
        (200, "ready\n".to_owned())
    );
    assert_eq!(
        allocator.request("GET", "/v1/ready", ""),
        (200, "ready\n".to_owned())
    );
    assert_eq!(allocator.request("GET", "/nothing", "").0, 404);
    assert_eq!(allocator.request("GET", "/v2/ready", "").0, 404);
    assert_eq!(allocator.request("GET", "/release", "").0, 405);

    assert_eq!(allocator.request("GET", "/log-level", "").1, "info\n");
    let (code, text) = allocator.request("PUT", "/log-level", "no such=filter=x");
    assert_eq!(code, 400);
    assert!(text.contains("is not a log filter"), "{text}");
    assert_eq!(
        allocator
            .request("PUT", "/log-level", "warn,ratewright_allocator=debug")
            .0,
        200
    );
    assert_eq!(
        allocator.request("GET", "/log-level", "").1,
        "warn,ratewright_allocator=debug\n"
    );

    let one = host(&site, &allocator, "h1");
    let flow = one.start(0, "h16");
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    // Flows are numbered as in the session, on both sides.
    let number = flow.0;
    let (code, text) = allocator.request("GET", "/flows?host=h1", "");
    assert_eq!(code, 200);
    let view: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(view["host"], "h1");
    assert_eq!(view["flows"].as_array().map(Vec::len), Some(1), "{text}");
    assert_eq!(view["flows"][0]["flow"], number);
    assert_eq!(
        view["flows"][0]["rate_bps"],
        one.rate(flow).expect("a rate")
    );
    assert_eq!(allocator.request("GET", "/flows?host=h2", "").0, 404);
    assert_eq!(allocator.request("GET", "/flows", "").0, 400);
    let (_, text) = allocator.request("GET", "/metrics", "");
    assert!(
        text.contains("# TYPE ratewright_allocator_iteration_seconds histogram"),
        "{text}"
    );
    assert!(allocator.metric("ratewright_allocator_iteration_seconds_count") >= 1.0);
    assert_eq!(allocator.metric("ratewright_allocator_flows"), 1.0);
    assert_eq!(allocator.metric("ratewright_allocator_sessions"), 1.0);
    assert!(allocator.metric("ratewright_allocator_rate_updates_total") >= 1.0);
    assert!(
        !text.contains("h16") && !text.contains("h1\""),
        "no label names a host: {text}"
    );
}

#[test]
fn a_reload_that_renames_classes_brings_hosts_back_with_the_new_ones() {
    let site = TestSite::new();
    let allocator = site.start();
    let before = host(&site, &allocator, "h1");
    let classes = "[[class]]\nid = 0\nname = \"default\"\n[[class]]\nid = 1\nname = \"bulk\"\n";
    site.write("allocator.toml", &site.config("127.0.0.1:0", classes));
    allocator.signal("HUP");
    let refusal = before.refusal();
    // Class ids in flight would mean other classes: the host must learn the table again.
    assert!(refusal.retry, "{refusal:?}");
    assert_eq!(refusal.reason, "the classes have changed; connect again");
    let after = host(&site, &allocator, "h1");
    let record = StartRecord::new(FlowId::new(0, 1), 15, FlowPath::Hash(0)).with_class(1);
    after.start_record(record);
    after.wait_rate(record.flow(), 9_700_000_000..=10_000_000_000);
}

#[test]
fn a_web_page_cannot_turn_the_kill_switch() {
    let site = TestSite::new();
    let allocator = site.start();
    let refused = |headers: &str| {
        let (code, text) = allocator.request_with("POST", "/release", headers, "");
        assert_eq!(code, 403, "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    // Browsers send `Origin` with every cross-site POST; no operator's tool does.
    refused("origin: https://page.example\r\n");
    refused("origin: null\r\n");
    assert_eq!(allocator.status()["released"], false);
    // Who tried is in the log: the process at the other end of the socket.
    wait_for("both attempts are in the log", PATIENCE, || {
        let log = allocator.log();
        let mut tried = log
            .lines()
            .filter(|line| line.contains("a change was refused"));
        let own = format!("pid: Some({})", std::process::id());
        let whole = |line: &str| line.contains("path=\"/release\"") && line.contains(&own);
        tried.clone().count() == 2 && tried.all(whole)
    });
    let (code, _) =
        allocator.request_with("GET", "/status", "origin: https://page.example\r\n", "");
    assert_eq!(code, 200);
    assert_eq!(post(&allocator, "/release", &json!(null)).0, 200);
}

/// Sends gnmic's events about a link that is full until it is told to stop.
struct FullLink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FullLink {
    fn begin(collector: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let began_ns = now_ns();
            while !stopped.load(Ordering::Relaxed) {
                // What 10 Gbit/s carry, and a queue that stands.
                let at_ns = now_ns() - began_ns;
                let octets = at_ns * 10 / 8;
                let event = format!(
                    r#"[{{"name":"queues","timestamp":{at_ns},"tags":{{"source":"leaf4:57400",
                    "interface_interface-id":"Ethernet1/4","queue_name":"0"}},
                    "values":{{"/qos/interfaces/interface/output/queues/queue/state/avg-queue-len":2000000}}}},
                    {{"name":"ports","timestamp":{at_ns},
                    "tags":{{"source":"leaf4:57400","interface_name":"Ethernet1/4"}},
                    "values":{{"/interfaces/interface/state/counters/out-octets":"{octets}"}}}}]"#
                );
                let _ = socket.send_to(event.as_bytes(), collector);
                pause(Duration::from_millis(10));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for FullLink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()));
    }
}

#[test]
fn a_collector_of_switches_tells_of_configured_links_from_configured_addresses() {
    let site = TestSite::new();
    // The system's choice, which nobody else takes while it is bound.
    let free = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let collector = free.local_addr().expect("an address");
    let config = |source: &str| {
        let feeds = format!(
            "[feeds]\nint = true\n[feeds.collector]\nlisten = \"{collector}\"\n\
             sources = [\"{source}\"]\n[[feeds.collector.interface]]\ntarget = \"leaf4\"\n\
             name = \"Ethernet1/4\"\nfrom = \"leaf4\"\nto = \"h16\"\n"
        );
        site.config("127.0.0.1:0", &feeds)
    };
    drop(free);
    // The core's thread without a port, and with one.
    for transport in ["[transport]\nhot = \"quic\"\n", ""] {
        site.write("allocator.toml", &(config("127.0.0.1") + transport));
        let allocator = site.start();
        let one = host(&site, &allocator, "h1");
        let flow = one.start(0, "h16");
        one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
        {
            let _full = FullLink::begin(collector);
            // Half of a link is what all measurements may take, to the hysteresis.
            one.wait_rate(flow, 4_800_000_000..=5_200_000_000);
        }
        one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    }
    let allocator = site.start();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let dropped = |reason: &str| {
        let name = format!("ratewright_allocator_collector_dropped_total{{reason=\"{reason}\"}}");
        allocator.metric(&name)
    };
    wait_for("what is no event is dropped", PATIENCE, || {
        let _ = socket.send_to(b"no event", collector);
        dropped("malformed") > 0.0
    });
    site.write("allocator.toml", &config("192.0.2.1"));
    allocator.signal("HUP");
    wait_for("a reload takes other addresses", PATIENCE, || {
        let _ = socket.send_to(b"[]", collector);
        allocator.log().contains("reloaded: ") && dropped("source") > 0.0
    });
    drop(allocator);
    let unknown = config("127.0.0.1").replace("h16", "h99");
    site.write("allocator.toml", &unknown);
    let (good, _, complaint) = site.run(&["check-config", "--config", "allocator.toml"]);
    assert!(
        !good && complaint.contains("no link leads from \"leaf4\" to \"h99\""),
        "{complaint}"
    );
}

#[test]
fn traffic_of_others_takes_its_part_until_it_is_forgotten() {
    let site = TestSite::new();
    let allocator = site.start();
    let one = host(&site, &allocator, "h1");
    let flow = one.start(0, "h16");
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    let load = json!({"from": "leaf4", "to": "h16", "load_bps": 4_000_000_000u64, "flows": 2});
    let (code, report) = post(&allocator, "/topology/load", &load);
    assert_eq!(code, 200, "{report}");
    assert_eq!(
        report,
        json!({"link": "leaf4->h16", "capacity_bps": 6_000_000_000.0})
    );
    one.wait_rate(flow, 1_950_000_000..=2_000_000_000);
    let external = || allocator.status()["external"].clone();
    wait_for("the dummy flow's share is shown", PATIENCE, || {
        external()[0]["granted_bps"]
            .as_f64()
            .is_some_and(|bps| (3.9e9..4e9).contains(&bps))
    });
    // A reload makes another engine, which must have the dummy flow too.
    let reference = "[allocation]\nengine = \"reference\"\n";
    site.write("allocator.toml", &site.config("127.0.0.1:0", reference));
    allocator.signal("HUP");
    wait_for("the reload is taken", PATIENCE, || {
        allocator.log().contains("reloaded: ")
    });
    wait_for(
        "the new engine's dummy flow has its share",
        PATIENCE,
        || {
            external()[0]["granted_bps"]
                .as_f64()
                .is_some_and(|bps| (3.9e9..4e9).contains(&bps))
        },
    );
    one.wait_rate(flow, 1_950_000_000..=2_000_000_000);
    let brief = json!({"from": "leaf4", "to": "h16", "load_bps": 5_000_000_000u64, "for_ms": 200});
    assert_eq!(post(&allocator, "/topology/load", &brief).0, 200);
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    assert_eq!(external(), json!([]), "it was not told again");

    for (body, code, complaint) in [
        (
            json!({"from": "leaf4", "to": "h99"}),
            404,
            "no host or switch is named \"h99\"",
        ),
        (
            json!({"from": "h1", "to": "h2"}),
            404,
            "no link from \"h1\" to \"h2\"",
        ),
        (
            json!({"from": "leaf4", "to": "h16", "flows": -1}),
            400,
            "flows = -1: must be from 0 to 1000000",
        ),
        (
            json!({"from": "leaf4", "to": "h16", "one_way": true}),
            400,
            "unknown field `one_way`",
        ),
    ] {
        let (found, answer) = post(&allocator, "/topology/load", &body);
        assert_eq!(found, code, "{answer}");
        let error = answer["error"].as_str().expect("text");
        assert!(error.starts_with(complaint), "{answer}");
    }
}

#[test]
fn a_reload_with_more_racks_loses_no_session_and_no_rate() {
    let site = TestSite::new();
    let allocator = site.start();
    let one = host(&site, &allocator, "h1");
    let flow = one.start(0, "h16");
    one.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    let racks = |racks| TwoTierClos {
        racks,
        host_capacity_bps: 1_000_000_000 * u64::from(racks),
        ..TwoTierClos::default()
    };
    // Each topology has other link numbers, and the engine other blocks.
    for count in [5, 8, 9] {
        let topology = racks(count).build().expect("valid");
        site.write("topology.toml", &topology.to_toml_string());
        allocator.signal("HUP");
        let whole_bps = 1_000_000_000 * u64::from(count);
        one.wait_rate(flow, whole_bps / 100 * 97..=whole_bps);
        assert!(one.is_up(), "its host kept its place");
        assert_eq!(allocator.status()["hosts"], 4 * count);
    }
    assert_eq!(
        allocator.metric("ratewright_allocator_engine_events_refused_total"),
        0.0
    );
}

#[test]
fn a_rollout_widens_by_reloads_and_no_session_ends() {
    let site = TestSite::new();
    let rollout = |percent: u32| {
        let good = site.config("127.0.0.1:0", "");
        format!("{good}\n[rollout]\npercent = {percent}\nsalt = \"it\"\n")
    };
    let allocator = site.start();
    let names = ["h1", "h2", "h3", "h4", "h5", "h6"];
    let hosts: Vec<TestHost> = names
        .iter()
        .map(|name| host(&site, &allocator, name))
        .collect();
    let flows: Vec<FlowId> = hosts.iter().map(|host| host.start(0, "h16")).collect();
    let pacing = || -> Vec<bool> {
        let status = allocator.status();
        let sessions = status["sessions"].as_array().expect("sessions").clone();
        sessions
            .iter()
            .map(|session| session["pacing"] == "pace")
            .collect()
    };
    let mut before: Vec<bool> = Vec::new();
    for percent in [0, 10, 50, 100] {
        site.write("allocator.toml", &rollout(percent));
        let reloads = "ratewright_allocator_reloads_total{result=\"ok\"}";
        let done = allocator.metric(reloads);
        allocator.signal("HUP");
        wait_for("the reload", PATIENCE, || allocator.metric(reloads) > done);
        let now = pacing();
        assert_eq!(now.len(), names.len(), "every session stands");
        assert!(
            before.iter().zip(&now).all(|(before, now)| now >= before),
            "{percent}: {before:?} {now:?}"
        );
        // Whether it may apply them or only look at them, each has a rate.
        for (host, flow) in hosts.iter().zip(&flows) {
            wait_for("a rate", PATIENCE, || host.rate(*flow).is_some());
        }
        for (host, paces) in hosts.iter().zip(&now) {
            wait_for("its conduct", PATIENCE, || host.view().released != *paces);
        }
        before = now;
    }
    assert_eq!(before, vec![true; names.len()]);
    assert_eq!(
        allocator.metric("ratewright_allocator_sessions_opened_total"),
        names.len() as f64
    );
}

#[test]
fn an_explanation_names_the_link_that_binds_and_changes_have_an_author() {
    let site = TestSite::new();
    let allocator = site.start();
    let (one, two) = (host(&site, &allocator, "h1"), host(&site, &allocator, "h2"));
    let (first, second) = (one.start(0, "h16"), two.start(0, "h16"));
    // Both share the link down to h16.
    one.wait_rate(first, 4_800_000_000..=5_000_000_000);
    two.wait_rate(second, 4_800_000_000..=5_000_000_000);
    let get = |path: &str| -> Value {
        let (code, text) = allocator.request("GET", path, "");
        assert_eq!(code, 200, "{path}: {text}");
        serde_json::from_str(&text).expect("JSON")
    };
    // The engine publishes loads and prices once a second at most.
    wait_for("the price of the link", PATIENCE, || {
        let links = get("/explain?from=h1&to=h16")["flows"][0]["links"].clone();
        let links = links.as_array().expect("links").clone();
        links.last().is_some_and(|link| {
            link["price"].as_f64() > Some(0.0) && link["utilization"].as_f64() > Some(0.95)
        })
    });
    let explanation = get("/explain?from=h1&to=h16");
    let flow = &explanation["flows"][0];
    let limit = flow["limit"].as_str().expect("text");
    assert!(
        limit.starts_with("link ") && limit.ends_with("->h16"),
        "{limit}"
    );
    assert_eq!(flow["demand_bps"], Value::Null);
    assert_eq!(explanation["from"]["pacing"], "pace");
    assert_eq!(explanation["to"]["connected"], false);
    assert_eq!(
        allocator.request("GET", "/explain?from=h1&to=h999", "").0,
        404
    );

    let top = get("/flows?top=1");
    assert_eq!(
        (&top["flows_total"], top["flows"].as_array().map(Vec::len)),
        (&json!(2), Some(1))
    );
    let links = get("/links?top=5");
    let fullest = links["links"][0]["name"].as_str().expect("a name");
    assert!(fullest.ends_with("->h16"), "{fullest}");

    let (code, report) = post(&allocator, "/release?host=h1", &json!(null));
    assert_eq!(
        (code, &report["acknowledged"], &report["waiting"]),
        (200, &json!(1), &json!([]))
    );
    assert_eq!(one.rate(first), None);
    assert!(two.rate(second).is_some());
    assert_eq!(post(&allocator, "/release?host=h999", &json!(null)).0, 404);
    assert_eq!(
        get("/explain?from=h1&to=h16")["from"]["why"],
        "an operator has released it"
    );
    assert_eq!(post(&allocator, "/resume?host=h1", &json!(null)).0, 200);
    one.wait_rate(first, 4_800_000_000..=5_000_000_000);

    let page = get("/audit?last=10");
    let actions: Vec<_> = page["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| {
            (
                entry["action"].as_str().unwrap_or(""),
                entry["result"].as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(
        actions,
        [
            ("POST /release?host=h1", "200"),
            ("POST /release?host=h999", "404"),
            ("POST /resume?host=h1", "200"),
        ]
    );
    let who = &page["entries"][0]["who"];
    assert!(
        who["uid"] == json!(nix::unistd::getuid().as_raw()) || who["by"] == "address",
        "{who}"
    );
}
