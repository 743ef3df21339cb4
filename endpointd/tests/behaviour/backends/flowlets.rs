//! Each flowlet's start and end is reported once, with what policy needs, and mice not at all
//! (flowtune §6: small flowlets run at once and cost no message).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::ensure;
use nix::sys::socket::{setsockopt, sockopt};
use ratewright_endpointd::backend::{BackendConfig, BackendKind, Conn, FlowEvent, FlowEventKind};
use ratewright_endpointd::clock::now_ns;

use super::{Driver, FOREVER_NS, MS, alone, config, outline};
use crate::netns::cubic::cubic_pair;
use crate::netns::echo::{Echo, EchoClient};
use crate::netns::tries::best_of_three;
use crate::netns::{BulkReceiver, BulkSender, LEFT_V4, LEFT_V6, RIGHT_V4, RIGHT_V6, wait_for};

const KIND: BackendKind = BackendKind::SockOps;
const LARGE: usize = 40_000;

fn count(events: &[FlowEvent], wanted: impl Fn(&FlowEventKind) -> bool) -> usize {
    events.iter().filter(|event| wanted(&event.kind)).count()
}

fn is_start(kind: &FlowEventKind) -> bool {
    matches!(kind, FlowEventKind::Start(_))
}

fn is_close(kind: &FlowEventKind) -> bool {
    matches!(kind, FlowEventKind::Close)
}

#[test]
fn a_hundred_flowlets_start_and_end_a_hundred_times() {
    const FLOWLETS: usize = 100;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut client = EchoClient::connect(echo.address);
    for number in 1..=FLOWLETS {
        client.exchange(LARGE);
        let (conn, _) = driver.starts(number)[number - 1];
        driver.until("the flowlet's end", |events| {
            matches!(events.last()?.kind, FlowEventKind::Idle).then_some(())
        });
        // The daemon ends a flowlet after a gap; the kernel reports one end a millisecond.
        driver.run_for(Duration::from_millis(1));
        driver.backend.clear(conn).expect("clear");
    }
    driver.run_for(Duration::from_millis(20));
    assert_eq!(outline(&driver.events), ["start", "idle"].repeat(FLOWLETS));
    drop(client);
    wait_for("a free slot", Duration::from_secs(5), || {
        driver.poll();
        (driver.backend.stats().connections == 0).then_some(())
    });
    assert_eq!(driver.backend.stats().events_lost, 0);
}

#[test]
fn a_write_and_an_immediate_close_start_and_close() {
    const CONNECTIONS: usize = 60;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 1 << 30);
    for _ in 0..CONNECTIONS {
        let mut client = EchoClient::connect(echo.address);
        client.stream.write_all(&[5; LARGE]).expect("write");
    }
    driver.until("all closes", |events| {
        (count(events, is_close) >= CONNECTIONS).then_some(())
    });
    assert_eq!(count(&driver.events, is_start), CONNECTIONS);
    assert_eq!(count(&driver.events, is_close), CONNECTIONS);
    assert_eq!(driver.backend.stats().connections, 0);
}

#[test]
fn mice_are_silent() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 14_000);
    let mut client = EchoClient::connect(echo.address);
    for _ in 0..200 {
        client.exchange(14_000);
    }
    // Long enough for an event that should not come.
    driver.run_for(Duration::from_millis(20));
    assert_eq!(driver.events, []);
    assert_eq!(driver.backend.stats().connections, 0);
    // The same connection with one larger message is no mouse any more.
    client.stream.write_all(&[5; 16_000]).expect("write");
    driver.started();
}

#[test]
fn a_flowlet_is_reported_from_within_its_first_window() {
    best_of_three(|| {
        let _alone = alone();
        let pair = cubic_pair();
        let mut driver = Driver::open(KIND, &pair);
        let echo = Echo::start(&pair.right, RIGHT_V4, 1 << 30);
        let mut client = EchoClient::connect(echo.address);
        let written = now_ns();
        client.stream.write_all(&[5; 1 << 20]).expect("write");
        driver.started();
        let after_us = (driver.events[0].at_ns - written) / 1_000;
        println!("reported {after_us} us after write()");
        ensure!(
            after_us < 5_000,
            "reported only {after_us} us after write()"
        );
        Ok(())
    });
}

/// A flowlet that the daemon ends (or bypasses) while it sends is not reported until it is over;
/// the next backlog is a new flowlet, and a quiet connection gives its slot back.
#[test]
fn a_flowlet_that_is_ended_while_it_sends_is_a_new_one_with_its_next_backlog() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 400_000);
    let mut client = EchoClient::connect(echo.address);
    client.stream.write_all(&[5; 200_000]).expect("write");
    let conn = driver.started();
    driver.set(conn, 20, FOREVER_NS);
    // 200 kB at 20 Mbit/s take 80 ms.
    client.stream.write_all(&[5; 200_000]).expect("write");
    driver.backend.clear(conn).expect("clear");
    client.stream.read_exact(&mut [0]).expect("answer");
    driver.run_for(Duration::from_millis(20));
    // A flowlet that happened to pause between the two writes may be a new one.
    let before = count(&driver.events, is_start);
    assert!(before <= 2, "{:?}", driver.events);
    for (conn, _) in driver.starts(before) {
        driver.backend.clear(conn).expect("clear");
    }
    client.exchange(400_000);
    let (conn, _) = driver.starts(before + 1)[before];
    driver.backend.clear(conn).expect("clear");
    wait_for("the slot's return", Duration::from_secs(5), || {
        driver.poll();
        (driver.backend.stats().connections == 0).then_some(())
    });
}

#[test]
fn starts_carry_what_policy_matches_on() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    for (number, (ip, left)) in [(RIGHT_V4, LEFT_V4), (RIGHT_V6, LEFT_V6)]
        .into_iter()
        .enumerate()
    {
        let echo = Echo::start(&pair.right, ip, LARGE);
        let mut client = EchoClient::connect(echo.address);
        setsockopt(&client.stream.as_fd(), sockopt::Mark, &77).expect("mark");
        if ip == RIGHT_V4 {
            setsockopt(&client.stream.as_fd(), sockopt::Ipv4Tos, &(46 << 2)).expect("tos");
        } else {
            setsockopt(&client.stream.as_fd(), sockopt::Ipv6TClass, &(46 << 2)).expect("tclass");
        }
        client.exchange(LARGE);
        let (_, facts) = driver.starts(number + 1).remove(number);
        let local = client.stream.local_addr().expect("bound");
        assert_eq!(facts.tuple.src.to_string(), left);
        assert_eq!(facts.tuple.dst.to_string(), ip);
        assert_eq!(facts.tuple.src_port, local.port());
        assert_eq!(facts.tuple.dst_port, echo.address.port());
        assert_eq!(facts.tuple.protocol, 6);
        assert_eq!((facts.mark, facts.dscp), (77, 46));
        assert_eq!(facts.app_max_bytes_per_s, None);
        assert_eq!(facts.cgroup_id, own_cgroup());
    }
}

/// A v6 socket that talks to a v4 address is a v4 flow.
#[test]
fn mapped_addresses_are_ipv4() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mapped = format!("[::ffff:{RIGHT_V4}]:{}", echo.address.port());
    let mut client = EchoClient::connect(mapped.parse().expect("address"));
    client.exchange(LARGE);
    let (_, facts) = driver.starts(1).remove(0);
    assert_eq!(facts.tuple.src.to_string(), LEFT_V4);
    assert_eq!(facts.tuple.dst.to_string(), RIGHT_V4);
}

/// This process's cgroup v2, as an id.
fn own_cgroup() -> u64 {
    let text = std::fs::read_to_string("/proc/self/cgroup").expect("procfs");
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .expect("cgroup v2");
    let place = format!("{}{path}", super::cgroup_root().display());
    std::fs::metadata(place).expect("cgroup").ino()
}

/// The program is attached for all namespaces of the cgroup.
#[test]
fn other_namespaces_are_left_alone() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.left, LEFT_V4, 1);
    let sender = BulkSender::start(&pair.right, receiver.address);
    driver.run_for(Duration::from_millis(100));
    assert_eq!(driver.events, []);
    sender.stop();
    receiver.finish();
}

/// Handles of a slot's earlier user do nothing to the next one.
#[test]
fn a_slot_s_next_user_is_not_paced_at_the_rate_of_the_one_before() {
    let _alone = alone();
    let pair = cubic_pair();
    let one = BackendConfig {
        max_flows: 1,
        ..config(&pair)
    };
    let mut driver = Driver::with(KIND, &pair, &one);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut first = EchoClient::connect(echo.address);
    first.exchange(LARGE);
    let gone = driver.started();
    drop(first);
    driver.until("the close", |events| {
        (count(events, is_close) == 1).then_some(())
    });
    let mut second = EchoClient::connect(echo.address);
    second.exchange(LARGE);
    let (conn, _) = driver.starts(2)[1];
    assert_eq!(
        conn,
        Conn {
            slot: gone.slot,
            use_count: gone.use_count + 1
        }
    );
    driver.set(gone, 1, FOREVER_NS);
    let begin = now_ns();
    for _ in 0..20 {
        second.exchange(LARGE);
    }
    let took_ms = (now_ns() - begin) / MS;
    assert!(took_ms < 2_000, "{took_ms} ms; 6 s at the earlier rate");
}

/// A ring that overflows loses nothing for good: starts are repeated, and the slots show ends and
/// closes that the ring did not take.
#[test]
fn lost_events_are_made_up_for() {
    const CLIENTS: usize = 64;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| EchoClient::connect(echo.address))
        .collect();
    // The ring holds some 9,000 events, and the test does not read them.
    wait_for("a full ring", Duration::from_secs(60), || {
        for client in &mut clients {
            client.exchange(LARGE);
        }
        (driver.backend.stats().events_lost > 0).then_some(())
    });
    let survivors = clients.split_off(CLIENTS / 2);
    drop(clients);
    driver.run_for(Duration::from_millis(500));
    let mut state = BTreeMap::new();
    for event in &driver.events {
        match event.kind {
            FlowEventKind::Start(_) | FlowEventKind::Resume => {
                state.insert(event.conn.slot, true);
            }
            FlowEventKind::Idle => {
                state.insert(event.conn.slot, false);
            }
            FlowEventKind::Close => {
                state.remove(&event.conn.slot);
            }
            _ => {}
        }
    }
    assert_eq!(state.len(), survivors.len(), "{state:?}");
    assert!(state.values().all(|active| !active), "{state:?}");
    assert_eq!(driver.backend.stats().connections, survivors.len() as u64);
}

/// Measures from the write of a flowlet's first byte to its first paced segment.
#[test]
fn first_paced_is_told_once_per_flowlet_with_its_latency() {
    const FLOWS: usize = 20;
    let _alone = alone();
    let pair = cubic_pair();
    // A link that is slower than the senders, so that none of them is idle when its rate comes.
    pair.left
        .run("tc qdisc add dev v0 root tbf rate 500mbit burst 128k limit 4m");
    let mut driver = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, FLOWS);
    let senders = [(); FLOWS].map(|()| BulkSender::start(&pair.left, receiver.address));
    let of = |events: &[FlowEvent], conn: Conn, wanted: fn(&FlowEventKind) -> bool| {
        let mine = events.iter().filter(|event| event.conn == conn);
        mine.filter(|event| wanted(&event.kind)).count()
    };
    let paced = |kind: &FlowEventKind| matches!(kind, FlowEventKind::FirstPaced { .. });
    // A sender's thread may not run for a while: then its rate comes while it is idle, and there is
    // no first transmission.
    let idle = |kind: &FlowEventKind| matches!(kind, FlowEventKind::Idle);
    for number in 0..FLOWS {
        let (conn, _) = driver.starts(number + 1)[number];
        driver.set(conn, 20, FOREVER_NS);
    }
    let conns: Vec<Conn> = driver.starts(FLOWS).iter().map(|start| start.0).collect();
    driver.until("first paced", |events| {
        let told = |&conn: &Conn| of(events, conn, paced) + of(events, conn, idle) > 0;
        conns.iter().all(told).then_some(())
    });
    for &conn in &conns {
        driver.set(conn, 30, FOREVER_NS);
    }
    driver.run_for(Duration::from_millis(100));
    for &conn in &conns {
        let told = of(&driver.events, conn, paced);
        let once = told == 1 || (told == 0 && of(&driver.events, conn, idle) > 0);
        assert!(once, "{conn:?} is told {told} times");
    }
    let mut latencies: Vec<_> = driver
        .events
        .iter()
        .filter_map(|event| match event.kind {
            FlowEventKind::FirstPaced { latency_ns } => Some(latency_ns / 1_000),
            _ => None,
        })
        .collect();
    assert!(latencies.len() >= FLOWS / 2, "most are: {latencies:?}");
    latencies.sort_unstable();
    println!("first paced after {latencies:?} us");
    assert!(
        latencies.iter().all(|us| (1..10_000_000).contains(us)),
        "{latencies:?}"
    );
    driver.backend.clear_all().expect("clear all");
    for sender in senders {
        sender.stop();
    }
    receiver.finish();
}
