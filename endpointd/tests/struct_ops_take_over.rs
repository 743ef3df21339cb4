//! The struct_ops back end takes existing connections over and gives them back, and a daemon that
//! is killed leaves them flowing: paced until the lease ends, then plain TCP, then the next
//! daemon's (flowtune §6, fault-tolerance).

mod netns;

use std::time::Duration;

use anyhow::anyhow;
use netns::backend::{FOREVER_NS, StructOpsDriver, config};
use netns::daemon_process::{self, DaemonProcess};
use netns::echo::{Echo, EchoClient};
use netns::tries::{best_of_three, ensure_within};
use netns::{
    BulkReceiver, BulkSender, Namespace, NamespacePair, RIGHT_V4, WIRE_V4, assert_lifted,
    ensure_plain_after, payload_rate_bps, settled_rate_bps, sleep, wait_for,
};
use nix::sys::socket::{setsockopt, sockopt};
use ratewright_endpointd::backend::PacingBackend;
use ratewright_endpointd::clock::now_ns;

const MS: u64 = 1_000_000;

fn sysctl(namespace: &Namespace, name: &str) -> String {
    namespace
        .run(&format!("cat /proc/sys/net/ipv4/{name}"))
        .trim()
        .to_owned()
}

/// The congestion controls of the namespace's established connections.
fn congestion_controls(namespace: &Namespace) -> Vec<String> {
    let text = namespace.run("ss -tin state established");
    let known = |word: &&str| word.starts_with("rw_") || ["cubic", "bbr", "reno"].contains(word);
    let mut found: Vec<_> = text
        .split_whitespace()
        .filter(known)
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

#[test]
fn settings_and_sockets_are_taken_over_and_given_back() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        netns::run(&format!(
            "ip netns exec {} sysctl -qw net.ipv4.tcp_congestion_control=reno",
            pair.left.0
        ));
        let bursts = sysctl(&pair.left, "tcp_tso_rtt_log");
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 3);
        let before: Vec<_> = (0..2)
            .map(|_| BulkSender::start(&pair.left, receiver.address))
            .collect();
        wait_for("two connections", Duration::from_secs(5), || {
            (congestion_controls(&pair.left) == ["reno", "reno"]).then_some(())
        });
        let mut driver = StructOpsDriver::open(&pair);
        let name = driver.backend.name().to_owned();
        assert_eq!(name, format!("rw_{}", pair.tag));
        assert_eq!(driver.backend.stats().adopted, 2);
        assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), name);
        for conn in driver.starts(2) {
            driver.set(conn, 50, FOREVER_NS);
        }
        let after = BulkSender::start(&pair.left, receiver.address);
        let third = driver.starts(3)[2];
        driver.set(third, 50, FOREVER_NS);
        assert_eq!(congestion_controls(&pair.left), vec![name.clone(); 3]);
        sleep(Duration::from_millis(200));
        // The 200 ms before belong to the change of rate.
        let begin = now_ns();
        sleep(Duration::from_millis(500));
        let end = now_ns();
        driver.backend.shut_down().expect("shut down");
        assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), "reno");
        assert_eq!(sysctl(&pair.left, "tcp_tso_rtt_log"), bursts);
        assert_eq!(congestion_controls(&pair.left), ["reno", "reno", "reno"]);
        drop(driver);
        let available = sysctl(&pair.left, "tcp_available_congestion_control");
        assert!(
            !available.split_whitespace().any(|word| word == name),
            "{available}"
        );
        sleep(Duration::from_millis(200));
        let last = now_ns();
        before.into_iter().chain([after]).for_each(BulkSender::stop);
        let mut right = Ok(());
        for trace in receiver.finish() {
            let paced = settled_rate_bps(&trace, begin, end) * WIRE_V4;
            right = right.and(ensure_within(paced, 49e6..51e6, "bit/s of 50 Mbit/s"));
            assert_lifted(&trace, end + 50 * MS, last, 50.0);
            let free = payload_rate_bps(&trace, end + 50 * MS, last);
            if free <= 5.0 * 50e6 {
                right = right.and(Err(anyhow!("{free} bit/s after shut-down")));
            }
        }
        right
    });
}

#[test]
fn sockets_go_back_to_what_each_of_them_had() {
    let pair = NamespacePair::new();
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 2);
    let mut senders = Vec::new();
    for name in ["reno", "cubic"] {
        netns::run(&format!(
            "ip netns exec {} sysctl -qw net.ipv4.tcp_congestion_control={name}",
            pair.left.0
        ));
        senders.push(BulkSender::start(&pair.left, receiver.address));
        wait_for("the connection", Duration::from_secs(5), || {
            congestion_controls(&pair.left)
                .contains(&name.to_owned())
                .then_some(())
        });
    }
    let driver = StructOpsDriver::open(&pair);
    assert_eq!(driver.backend.stats().adopted, 2);
    let ours = vec![driver.backend.name().to_owned(); 2];
    assert_eq!(congestion_controls(&pair.left), ours);
    // Dropping without `shut_down` gives back, too.
    drop(driver);
    assert_eq!(congestion_controls(&pair.left), ["cubic", "reno"]);
    senders.into_iter().for_each(BulkSender::stop);
    receiver.finish();
}

#[test]
fn an_application_s_own_choice_of_congestion_control_stays() {
    let pair = NamespacePair::new();
    let echo = Echo::start(&pair.right, RIGHT_V4, 1);
    pair.left.enter();
    let client = EchoClient::connect(echo.address);
    setsockopt(&client.stream, sockopt::TcpCongestion, &"reno".into()).expect("reno");
    let driver = StructOpsDriver::open(&pair);
    assert_eq!(driver.backend.stats().adopted, 0);
    assert_eq!(congestion_controls(&pair.left), ["reno"]);
}

#[test]
fn without_take_over_nothing_is_touched() {
    let pair = NamespacePair::new();
    let default = sysctl(&pair.left, "tcp_congestion_control");
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    wait_for("the connection", Duration::from_secs(5), || {
        (congestion_controls(&pair.left) == [default.clone()]).then_some(())
    });
    let mut plain = config(&pair.tag);
    plain.take_over = false;
    let driver = StructOpsDriver::with(&pair, &plain);
    assert_eq!(driver.backend.stats().adopted, 0);
    assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), default);
    assert_eq!(congestion_controls(&pair.left), [default]);
    sender.stop();
    receiver.finish();
}

#[test]
fn a_daemon_that_goes_leaves_its_successor_s_take_over_alone() {
    let pair = NamespacePair::new();
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    wait_for("the connection", Duration::from_secs(5), || {
        (!congestion_controls(&pair.left).is_empty()).then_some(())
    });
    let original = sysctl(&pair.left, "tcp_congestion_control");
    let bursts = sysctl(&pair.left, "tcp_tso_rtt_log");
    let mut first = StructOpsDriver::open(&pair);
    let mut second = StructOpsDriver::open(&pair);
    let name = second.backend.name().to_owned();
    assert_ne!(first.backend.name(), name);
    let paced_bursts = sysctl(&pair.left, "tcp_tso_rtt_log");
    first.backend.shut_down().expect("shut down");
    assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), name);
    assert_eq!(sysctl(&pair.left, "tcp_tso_rtt_log"), paced_bursts);
    assert_eq!(congestion_controls(&pair.left), [name]);
    second.backend.shut_down().expect("shut down");
    assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), original);
    assert_eq!(sysctl(&pair.left, "tcp_tso_rtt_log"), bursts);
    sender.stop();
    receiver.finish();
}

#[test]
fn an_operator_s_default_stays_when_a_daemon_goes() {
    let pair = NamespacePair::new();
    let bursts = sysctl(&pair.left, "tcp_tso_rtt_log");
    let mut driver = StructOpsDriver::open(&pair);
    netns::run(&format!(
        "ip netns exec {} sysctl -qw net.ipv4.tcp_congestion_control=reno",
        pair.left.0
    ));
    driver.backend.shut_down().expect("shut down");
    assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), "reno");
    assert_eq!(sysctl(&pair.left, "tcp_tso_rtt_log"), bursts);
}

#[test]
fn two_daemons_of_one_name_get_two_congestion_controls() {
    let pair = NamespacePair::new();
    let other = NamespacePair::new();
    let first = StructOpsDriver::open(&pair);
    let mut same = config(&pair.tag);
    same.take_over = false;
    let second = StructOpsDriver::with(&other, &same);
    assert_ne!(first.backend.name(), second.backend.name());
    assert!(second.backend.name().starts_with(first.backend.name()));
}

#[test]
fn daemon_process() {
    daemon_process::play();
}

#[test]
fn a_killed_daemons_sockets_flow_on_and_are_the_next_daemons() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let original = sysctl(&pair.left, "tcp_congestion_control");
        let bursts = sysctl(&pair.left, "tcp_tso_rtt_log");
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 2);
        let sender = BulkSender::start(&pair.left, receiver.address);
        let mut daemon = DaemonProcess::start(&pair, 1, 50, 400);
        daemon.paces();
        sleep(Duration::from_millis(100));
        daemon.kill();
        let killed = now_ns();
        let expires = daemon.expires;
        assert!(
            killed < expires - 100 * MS,
            "killed {} ms before the expiry",
            (expires - killed) / MS
        );
        sleep(Duration::from_nanos(expires - killed + 200 * MS));
        // It has no owner, but works for the old socket and for a new one.
        assert_eq!(congestion_controls(&pair.left), [daemon.name.clone()]);
        let late = BulkSender::start(&pair.left, receiver.address);
        sleep(Duration::from_millis(200));
        assert_eq!(
            congestion_controls(&pair.left),
            vec![daemon.name.clone(); 2]
        );

        let mut driver = StructOpsDriver::open(&pair);
        assert_eq!(driver.backend.stats().adopted, 2);
        let name = driver.backend.name().to_owned();
        assert_ne!(name, daemon.name);
        assert_eq!(congestion_controls(&pair.left), vec![name; 2]);
        for conn in driver.starts(2) {
            driver.set(conn, 50, FOREVER_NS);
        }
        sleep(Duration::from_millis(100));
        let begin = now_ns();
        sleep(Duration::from_millis(300));
        let end = now_ns();
        driver.backend.shut_down().expect("shut down");
        assert_eq!(sysctl(&pair.left, "tcp_congestion_control"), original);
        assert_eq!(sysctl(&pair.left, "tcp_tso_rtt_log"), bursts);
        assert_eq!(congestion_controls(&pair.left), vec![original; 2]);
        sender.stop();
        late.stop();
        let mut traces = receiver.finish();
        // By first arrival: the first sender's trace comes first.
        traces.sort_by_key(|trace| trace[0].0);
        let first = &traces[0];
        let orphaned = settled_rate_bps(first, killed, expires - MS) * WIRE_V4;
        let kept = ensure_within(orphaned, 45e6..55e6, "bit/s between death and expiry");
        let mut right = kept.and(ensure_plain_after(first, expires));
        for trace in &traces {
            let adopted = settled_rate_bps(trace, begin, end) * WIRE_V4;
            right = right.and(ensure_within(
                adopted,
                48e6..52e6,
                "bit/s under the next daemon",
            ));
        }
        right
    });
}

/// A socket on plain TCP with nothing to send when the daemon starts is reported with its next
/// flowlet, and one in the middle of its flowlet at once.
#[test]
fn a_flowlet_in_progress_is_reported_soon_after_take_over() {
    let pair = NamespacePair::new();
    // A slow link: the flowlet is in progress for seconds.
    netns::run(&format!(
        "tc -n {} qdisc add dev v0 root tbf rate 20mbit burst 32k limit 1m",
        pair.left.0
    ));
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    sleep(Duration::from_millis(300));
    let mut driver = StructOpsDriver::open(&pair);
    let taken = now_ns();
    driver.started();
    // Often within take-over itself, before `open` returns.
    let after = driver.events[0].at_ns.saturating_sub(taken);
    assert!(
        after < 100 * MS,
        "reported only {} us after take-over",
        after / 1000
    );
    sender.stop();
    receiver.finish();
}
