//! The real binary from start to end: stop, kill, restart, systemd; and its cost while idle.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use ratewright_proto::FlowId;
use ratewright_proto::control::RefusalCode;

use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, pause, wait_for};

fn host(site: &TestSite, allocator: &AllocatorProcess, name: &str) -> TestHost {
    TestHost::connect(&site.authority, allocator.listen, name).established()
}

#[test]
fn stopping_tells_the_hosts_and_leaves_nothing_behind() {
    let site = TestSite::new();
    for signal in ["TERM", "INT"] {
        let mut allocator = site.start();
        let one = host(&site, &allocator, "h1");
        let mute = host(&site, &allocator, "h2");
        allocator.signal(signal);
        let refusal = one.refusal();
        assert_eq!((refusal.code, refusal.retry), (RefusalCode::Draining, true));
        assert_eq!(mute.refusal().code, RefusalCode::Draining);
        assert_eq!(allocator.wait().code(), Some(0), "{}", allocator.log());
        // A clean stop removes the socket file.
        assert!(!site.path().join("admin.sock").exists());
    }
}

#[test]
fn a_killed_allocator_is_replaced_by_one_of_a_later_epoch() {
    let site = TestSite::new();
    let mut first = site.start();
    let one = host(&site, &first, "h1");
    let epoch = one.view().welcome.as_ref().expect("established").epoch;
    first.signal("KILL");
    first.wait();
    assert!(
        site.path().join("admin.sock").exists(),
        "a killed process cannot clean up"
    );
    let second = site.start();
    let one = host(&site, &second, "h1");
    assert!(one.view().welcome.as_ref().expect("established").epoch > epoch);
}

#[test]
fn systemd_hears_of_start_reload_and_stop() {
    let site = TestSite::new();
    let path = site.path().join("notify.sock");
    let systemd = UnixDatagram::bind(&path).expect("a socket");
    systemd.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let hear = || {
        let mut buffer = [0; 256];
        let length = systemd.recv(&mut buffer).expect("it speaks");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let path = path.to_str().expect("text");
    let mut allocator = site.start_with(&[("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "400000")]);
    assert!(hear().starts_with("READY=1"));
    assert!(hear().starts_with("WATCHDOG=1"));
    allocator.signal("HUP");
    let mut heard = String::new();
    while !heard.starts_with("RELOADING=1") {
        heard = hear();
    }
    assert!(heard.contains("MONOTONIC_USEC="), "{heard}");
    while !heard.starts_with("READY=1") {
        heard = hear();
    }
    allocator.signal("TERM");
    while !heard.starts_with("STOPPING=1") {
        heard = hear();
    }
    assert_eq!(allocator.wait().code(), Some(0));
}

/// Returns the user and system time of a process, in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat
        // The name in parentheses may hold spaces: fields count from behind it.
        .rsplit(')')
        .next()
        .expect("a name")
        .split_whitespace()
        .collect();
    let ticks: u64 =
        // Fields 14 and 15 of the file (proc(5)), in ticks of 1/100 s.
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    ticks as f64 / 100.0
}

#[test]
fn nine_idle_hosts_cost_next_to_nothing() {
    let site = TestSite::new();
    let allocator = site.start();
    let hosts: Vec<TestHost> = (1..10)
        .map(|number| host(&site, &allocator, &format!("h{number}")))
        .collect();
    for host in &hosts {
        let flow = host.start(0, "h16");
        wait_for("a rate", PATIENCE, || host.rate(flow).is_some());
        host.end(FlowId::new(0, 1));
    }
    wait_for("nothing moves", PATIENCE, || {
        allocator.status()["flows"] == 0
    });
    // The ends' last datagrams and acknowledgements are exchanged by then.
    pause(Duration::from_millis(300));
    let before = cpu_seconds(allocator.pid());
    pause(Duration::from_secs(2));
    let share = (cpu_seconds(allocator.pid()) - before) / 2.0;
    assert!(share < 0.03, "{:.1} % of a core", share * 100.0);
    assert!(hosts.iter().all(TestHost::is_up));
}
