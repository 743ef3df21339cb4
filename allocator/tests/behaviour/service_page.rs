//! The read-only page of a running allocator: its files, what it shows, and its watchers.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, wait_for};

/// Places for watchers, as the guide says.
const WATCHERS: usize = 16;

fn head(allocator: &AllocatorProcess, path: &str) -> String {
    let mut reader = BufReader::new(allocator.open(path));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).expect("a response"), 0);
    }
    head.to_lowercase()
}

/// The header's value in a response's head.
fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Reads events until one of this name, and returns its data.
fn event(reader: &mut BufReader<UnixStream>, name: &str) -> Value {
    let mut line = String::new();
    let wanted = format!("event: {name}\n");
    while line != wanted {
        line.clear();
        assert_ne!(reader.read_line(&mut line).expect("events"), 0, "the end");
    }
    line.clear();
    reader.read_line(&mut line).expect("data");
    serde_json::from_str(line.strip_prefix("data: ").expect("data")).expect("JSON")
}

fn overview(allocator: &AllocatorProcess) -> Value {
    let (code, body) = allocator.request("GET", "/overview", "");
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

#[test]
fn every_file_of_the_page_forbids_other_origins_and_is_sent_once() {
    let site = TestSite::new();
    let allocator = site.start();
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/topology.svg", "image/svg+xml"),
    ] {
        let head = head(&allocator, path);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert_eq!(header(&head, "content-type"), content_type, "{path}");
        let policy = header(&head, "content-security-policy");
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&head, "x-content-type-options"), "nosniff");
        let known = format!("if-none-match: {}\r\n", header(&head, "etag"));
        let (code, body) = allocator.request_with("GET", path, &known, "");
        assert_eq!((code, body.as_str()), (304, ""), "{path}");
    }
}

#[test]
fn the_overview_agrees_with_the_hosts() {
    let site = TestSite::new();
    let allocator = site.start();
    let hosts: Vec<TestHost> = ["h1", "h2"]
        .iter()
        .map(|name| TestHost::connect(&site.authority, allocator.listen, name).established())
        .collect();
    let flow = hosts[0].start(0, "h16");
    hosts[0].wait_rate(flow, 9_700_000_000..=10_000_000_000);
    let rate_bps = hosts[0].rate(flow).expect("a rate");
    let mut shown = Value::Null;
    wait_for(
        "the flow is shown with the host's own rate",
        PATIENCE,
        || {
            shown = overview(&allocator);
            shown["top_flows"][0]["rate_bps"] == rate_bps
        },
    );
    assert_eq!(shown["top_flows"][0]["from"], "h1");
    assert_eq!(shown["top_flows"][0]["to"], "h16");
    assert_eq!(
        (&shown["sessions"], &shown["hosts"]),
        (&2.into(), &16.into())
    );
    assert_eq!(shown["hosts_missing"][0], "h3");
    // Four links of a path between racks carry the flow and nothing else.
    let busiest = shown["busiest"].as_array().expect("a list");
    assert_eq!(
        (busiest.len(), &shown["links"].as_array().map(Vec::len)),
        (4, &Some(4))
    );
    for link in busiest {
        assert_eq!(link["load_bps"].as_f64(), Some(rate_bps as f64), "{link}");
        assert_eq!(link["flows"], 1);
        let path = format!("/links/flows?id={}", link["id"]);
        let (code, body) = allocator.request("GET", &path, "");
        assert_eq!(code, 200, "{body}");
        let of_link: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(of_link["link"], *link);
        assert_eq!(of_link["top_flows"], shown["top_flows"]);
    }
    assert_eq!(shown["racks"][0]["name"], "rack1");
    assert!(shown["racks"][0]["up"].as_f64().expect("a number") > 0.9);
    assert_eq!(shown["racks"][0]["sessions"], 2);
    assert_eq!(shown["racks"][3]["up"], 0.0);
    assert!(shown["racks"][3]["down"].as_f64().expect("a number") > 0.9);
    assert_eq!(
        allocator.request("GET", "/links/flows?id=999999", "").0,
        404
    );
    // One start was taken, and has had its first rate.
    let counted = allocator.metric("ratewright_allocator_first_rate_seconds_count");
    assert_eq!(counted, 1.0);
}

#[test]
fn watchers_share_one_overview_and_their_number_is_bounded() {
    let site = TestSite::new();
    let allocator = site.start();
    let mut watchers: Vec<_> = (0..WATCHERS)
        .map(|_| BufReader::new(allocator.open("/events")))
        .collect();
    for watcher in &mut watchers {
        event(watcher, "history");
        event(watcher, "overview");
    }
    // The next second's is the same for all, up to the watcher that joined in between.
    let mut times: Vec<u64> = watchers
        .iter_mut()
        .map(|watcher| event(watcher, "overview")["at_ms"].as_u64().expect("ms"))
        .collect();
    times.dedup();
    assert!(times.len() <= 2, "{times:?}");

    let (code, body) = allocator.request("GET", "/events", "");
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("/overview"), "{body}");
    assert_eq!(allocator.request("GET", "/overview", "").0, 200);
    watchers.pop();
    wait_for("a watcher that leaves frees its place", PATIENCE, || {
        let mut start = [0; 12];
        let mut stream = allocator.open("/events");
        stream.read_exact(&mut start).expect("a status");
        &start == b"HTTP/1.1 200"
    });
}

#[test]
fn pages_of_other_sites_take_no_watchers_place() {
    let site = TestSite::new();
    let allocator = site.start();
    for path in ["/events", "/overview"] {
        for (from, code) in [("cross-site", 403), ("same-site", 403)] {
            let headers = format!("sec-fetch-site: {from}\r\n");
            let answer = allocator.request_with("GET", path, &headers, "");
            assert_eq!(answer.0, code, "{path} {from}");
        }
    }
    let own = allocator.request_with("GET", "/overview", "sec-fetch-site: same-origin\r\n", "");
    assert_eq!(own.0, 200);
}
