//! Observe mode of both back ends: flowlets and their use are seen, and no socket is changed.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use ratewright_endpointd::backend::{BackendConfig, BackendKind, Conn, Usage};
use ratewright_endpointd::clock::now_ns;

use super::demand::Bottleneck;
use super::{Driver, FOREVER_NS, alone, config};
use crate::netns::cubic::cubic_pair;
use crate::netns::{BulkReceiver, BulkSender, NamespacePair, RIGHT_V4, sleep, wait_for};

/// Whatever a back end may set for pacing beside sockets: sizes of bursts, queues and classes.
fn surroundings(pair: &NamespacePair) -> String {
    let qdiscs = pair.left.run("tc qdisc show dev v0");
    let others: Vec<&str> = qdiscs
        .lines()
        // The hook in which tc_htb sees packets; it holds and drops none.
        .filter(|line| !line.contains("clsact"))
        .collect();
    format!(
        "{}\n{}\n{}",
        pair.left
            .run("sysctl -n net.ipv4.tcp_tso_rtt_log net.ipv4.tcp_min_tso_segs"),
        others.join("\n"),
        pair.left.run("tc class show dev v0"),
    )
}

/// The sockets' maxima as `ss` prints them: `pacing_rate 1Mbps/2Mbps` has one behind the slash.
fn maxima(pair: &NamespacePair) -> Vec<String> {
    pair.left
        .run("ss -tinH state established")
        .split_whitespace()
        .skip_while(|word| *word != "pacing_rate")
        .filter(|word| word.contains("bps/"))
        .map(str::to_owned)
        .collect()
}

fn usage(driver: &mut Driver, conn: Conn) -> Option<Usage> {
    let mut usages = Vec::new();
    driver.backend.usage(now_ns(), &mut usages);
    usages.into_iter().find(|usage| usage.conn == conn)
}

fn observed(pair: &NamespacePair) -> BackendConfig {
    BackendConfig {
        observe: true,
        ..config(pair)
    }
}

/// A bulk flow runs as plain TCP, and its backlog and bytes are seen. Then the same flow is paced,
/// and observed again.
fn observing_changes_no_socket(kind: BackendKind, paced: fn(&NamespacePair) -> bool) {
    let _alone = alone();
    let pair = cubic_pair();
    // Without one, the application is what limits the flow.
    let _link = Bottleneck::between(&pair);
    let before = surroundings(&pair);
    let mut driver = Driver::with(kind, &pair, &observed(&pair));
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.run_for(Duration::from_millis(200));
    let first = usage(&mut driver, conn).expect("its use is seen");
    driver.run_for(Duration::from_millis(500));
    let last = usage(&mut driver, conn).expect("its use is seen");
    assert!(
        last.sent_bytes > first.sent_bytes + 100_000,
        "{first:?} {last:?}"
    );
    assert!(
        last.limited_ns > first.limited_ns,
        "its application always has more to send: {first:?} {last:?}"
    );
    assert_eq!(surroundings(&pair), before);
    assert_eq!(maxima(&pair), Vec::<String>::new());
    assert!(!paced(&pair));
    assert_eq!(driver.backend.stats().expired, 0);

    // What is looked at above shows pacing once there is some.
    driver.backend.observe(false).expect("pace");
    driver.set(conn, 50, FOREVER_NS);
    wait_for("its rate is in force", Duration::from_secs(5), || {
        driver.poll();
        paced(&pair).then_some(())
    });
    driver.backend.observe(true).expect("observe");
    wait_for("its rate is gone", Duration::from_secs(10), || {
        driver.poll();
        maxima(&pair).is_empty().then_some(())
    });
    let before = usage(&mut driver, conn)
        .expect("its use is seen")
        .sent_bytes;
    driver.run_for(Duration::from_millis(500));
    let sent = usage(&mut driver, conn)
        .expect("its use is seen")
        .sent_bytes
        - before;
    assert!(sent > 2 * 50_000_000 / 8 / 2, "as fast as before: {sent}");
    sender.stop();
    receiver.finish();
}

/// A flow that its application limits is not taken for one that TCP limits.
fn an_application_that_sends_little_has_no_backlog(kind: BackendKind) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::with(kind, &pair, &observed(&pair));
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let address = receiver.address;
    let sender = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(address).expect("connect");
        let block = vec![7u8; 20_000];
        for _ in 0..160 {
            stream.write_all(&block).expect("the connection lives");
            sleep(Duration::from_millis(5));
        }
    });
    let conn = driver.started();
    // The window opens to the size of a write first.
    driver.run_for(Duration::from_millis(300));
    let warm_ns = now_ns();
    driver.run_for(Duration::from_millis(300));
    let seen = usage(&mut driver, conn);
    sender.join().expect("sender");
    receiver.finish();
    // Between two writes no flowlet may run, and none has a use then.
    if let Some(usage) = seen {
        assert!(usage.limited_ns < warm_ns, "{usage:?}, warm at {warm_ns}");
    }
}

fn has_a_maximum(pair: &NamespacePair) -> bool {
    !maxima(pair).is_empty()
}

fn has_a_class(pair: &NamespacePair) -> bool {
    pair.left.run("tc class show dev v0").contains("50Mbit")
}

#[test]
fn observing_by_sock_ops_changes_no_socket() {
    observing_changes_no_socket(BackendKind::SockOps, has_a_maximum);
}

#[test]
fn observing_by_tc_htb_changes_no_socket() {
    observing_changes_no_socket(BackendKind::TcHtb, has_a_class);
}

#[test]
fn an_application_that_sends_little_has_no_backlog_by_sock_ops() {
    an_application_that_sends_little_has_no_backlog(BackendKind::SockOps);
}

#[test]
fn an_application_that_sends_little_has_no_backlog_by_tc_htb() {
    an_application_that_sends_little_has_no_backlog(BackendKind::TcHtb);
}
