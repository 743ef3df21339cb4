//! The struct_ops back end reports each flowlet's start and end once, with what policy needs, and
//! mice not at all (flowtune §6: small flowlets run at once and cost no message).

mod netns;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use netns::backend::{FOREVER_NS, StructOpsDriver, config};
use netns::echo::{Echo, EchoClient, get_max_pacing, set_max_pacing};
use netns::tries::{best_of_three, ensure_within};
use netns::{LEFT_V4, LEFT_V6, NamespacePair, RIGHT_V4, RIGHT_V6, sleep};
use nix::sys::socket::{setsockopt, sockopt};
use ratewright_endpointd::backend::{Conn, FlowEvent, FlowEventKind, FlowFacts, PacingBackend};
use ratewright_endpointd::clock::now_ns;

fn kinds(driver: &StructOpsDriver) -> (usize, usize, usize, usize) {
    (
        driver.count(|kind| matches!(kind, FlowEventKind::Start(_))),
        driver.count(|kind| matches!(kind, FlowEventKind::Idle)),
        driver.count(|kind| matches!(kind, FlowEventKind::Resume)),
        driver.count(|kind| matches!(kind, FlowEventKind::Close)),
    )
}

fn last_facts(driver: &StructOpsDriver) -> FlowFacts {
    driver
        .events
        .iter()
        .rev()
        .find_map(|event| match &event.kind {
            FlowEventKind::Start(facts) => Some(facts.clone()),
            _ => None,
        })
        .expect("a start")
}

const LARGE: usize = 40_000;

#[test]
fn three_hundred_flowlets_start_and_end_three_hundred_times() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut client = EchoClient::connect(echo.address);
    for number in 1..=300 {
        client.exchange(LARGE);
        let idle = driver.until("the flowlet's end", |events| {
            let last = events.last()?;
            // Start, Idle and Close come in threes; the Close follows the daemon's `clear`.
            (events.len() % 3 == 2 && last.kind == FlowEventKind::Idle).then_some(last.conn)
        });
        driver.backend.clear(idle).expect("clear");
        driver.until("the slot's return", |events| {
            (events.len() == 3 * number).then_some(())
        });
    }
    assert_eq!(kinds(&driver), (300, 300, 0, 300));
    assert_eq!(driver.backend.stats().connections, 0);
    assert_eq!(driver.backend.stats().events_lost, 0);
    // Start, Idle, Close in turn, each flowlet in a slot's next use.
    for events in driver.events.chunks(3) {
        assert!(matches!(events[0].kind, FlowEventKind::Start(_)));
        assert!(events.iter().all(|event| event.conn == events[0].conn));
        assert!(events[0].at_ns <= events[1].at_ns && events[1].at_ns <= events[2].at_ns);
    }
}

#[test]
fn a_write_and_an_immediate_close_start_and_close() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 1 << 30);
    for _ in 0..60 {
        let mut client = EchoClient::connect(echo.address);
        client.stream.write_all(&[5; LARGE]).expect("write");
    }
    driver.until("all closes", |events| {
        let closes = events
            .iter()
            .filter(|event| event.kind == FlowEventKind::Close)
            .count();
        (closes >= 60).then_some(())
    });
    let (starts, _, _, closes) = kinds(&driver);
    assert_eq!((starts, closes), (60, 60));
    assert_eq!(driver.backend.stats().connections, 0);
}

#[test]
fn mice_are_silent() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 14_000);
    let mut client = EchoClient::connect(echo.address);
    for _ in 0..200 {
        client.exchange(14_000);
    }
    // Long enough for an event that should not come.
    sleep(Duration::from_millis(20));
    driver.poll();
    assert_eq!(driver.events, []);
    assert_eq!(driver.backend.stats().connections, 0);
    // The same connection with one larger message is no mouse any more.
    client.stream.write_all(&[5; 16_000]).expect("write");
    driver.started();
}

#[test]
fn a_flowlet_is_reported_from_within_its_first_window() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let mut driver = StructOpsDriver::open(&pair);
        let echo = Echo::start(&pair.right, RIGHT_V4, 1 << 30);
        let mut client = EchoClient::connect(echo.address);
        let written = now_ns();
        client.stream.write_all(&[5; 1 << 20]).expect("write");
        driver.started();
        let after = driver.events[0].at_ns - written;
        println!("reported {} us after write()", after / 1000);
        ensure!(
            after < 5_000_000,
            "reported only {} us after write()",
            after / 1000
        );
        Ok(())
    });
}

#[test]
fn a_pause_is_idle_and_resume_until_the_daemon_ends_the_flowlet() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut client = EchoClient::connect(echo.address);
    for _ in 0..5 {
        client.exchange(LARGE);
    }
    driver.until("the fifth end", |events| {
        let idles = events
            .iter()
            .filter(|event| event.kind == FlowEventKind::Idle)
            .count();
        (idles == 5).then_some(())
    });
    assert_eq!(kinds(&driver), (1, 5, 4, 0));
    let conn = driver.events[0].conn;
    driver.backend.clear(conn).expect("clear");
    client.exchange(LARGE);
    driver.until("a new start", |events| {
        let starts = events
            .iter()
            .filter(|event| matches!(event.kind, FlowEventKind::Start(_)));
        (starts.count() == 2).then_some(())
    });
}

/// An application that writes in small pieces costs no event per write once its demand is known:
/// its use shows that it rests, and for how long.
#[test]
fn a_watched_flowlet_rests_and_goes_on_without_a_word() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut client = EchoClient::connect(echo.address);
    client.stream.write_all(&[5; LARGE / 2]).expect("write");
    let conn = driver.started();
    driver.set(conn, 100, FOREVER_NS);
    driver.backend.watch(conn);
    client
        .stream
        .write_all(&[5; LARGE - LARGE / 2])
        .expect("write");
    client.stream.read_exact(&mut [0]).expect("answer");
    // The rate comes into force with an acknowledgement, and the flowlet may have paused before.
    client.exchange(LARGE);
    driver.until("the rate", |events| {
        let paced = |event: &&FlowEvent| matches!(event.kind, FlowEventKind::FirstPaced { .. });
        events.iter().find(paced).map(|_| ())
    });
    driver.backend.watch(conn);
    driver.poll();
    let before = driver.events.len();
    for _ in 0..100 {
        client.stream.write_all(&[5; LARGE / 100]).expect("write");
        sleep(Duration::from_micros(500));
    }
    client.stream.read_exact(&mut [0]).expect("answer");
    sleep(Duration::from_millis(20));
    let rested_since = now_ns() - 20_000_000;
    driver.poll();
    // The pause before them was reported, and so is its end.
    let kinds: Vec<_> = driver.events[before..]
        .iter()
        .map(|event| &event.kind)
        .collect();
    assert_eq!(kinds, [&FlowEventKind::Resume]);
    let mut usages = Vec::new();
    driver.backend.usage(now_ns(), &mut usages);
    assert_eq!(usages.len(), 1);
    assert!(
        (1..=rested_since).contains(&usages[0].rests_ns),
        "{usages:?}"
    );
    // The daemon ends it, and the next large write is another flowlet.
    driver.backend.clear(conn).expect("clear");
    client.exchange(LARGE);
    driver.until("a new start", |events| {
        let starts = events
            .iter()
            .filter(|event| matches!(event.kind, FlowEventKind::Start(_)));
        (starts.count() == 2).then_some(())
    });
}

/// A flowlet that the daemon ends (or bypasses) while it sends is not reported until it is over;
/// the next backlog is a new flowlet.
#[test]
fn a_flowlet_that_was_ended_while_it_sends_gives_its_slot_back_when_it_is_over() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 400_000);
    let mut client = EchoClient::connect(echo.address);
    let conn = {
        client.stream.write_all(&[5; 200_000]).expect("write");
        let conn = driver.started();
        driver.set(conn, 20, FOREVER_NS);
        // 200 kB at 20 Mbit/s take 80 ms.
        client.stream.write_all(&[5; 200_000]).expect("write");
        conn
    };
    let (_, idles, ..) = kinds(&driver);
    driver.backend.clear(conn).expect("clear");
    client.stream.read_exact(&mut [0]).expect("answer");
    driver.until("the slot's return", |events| {
        events
            .iter()
            .find(|event| event.kind == FlowEventKind::Close)
            .map(|_| ())
    });
    let (starts, idles_after, ..) = kinds(&driver);
    // A flowlet that happened to pause between the two writes may be a new one.
    assert!(
        starts <= 2 && idles_after <= idles + 1,
        "{:?}",
        driver.events
    );
    client.exchange(400_000);
    driver.until("a new start", |events| {
        let last = events
            .iter()
            .rev()
            .find(|event| matches!(event.kind, FlowEventKind::Start(_)));
        last.filter(|event| event.conn != conn).map(|_| ())
    });
}

#[test]
fn starts_carry_what_policy_matches_on() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    for (ip, left) in [(RIGHT_V4, LEFT_V4), (RIGHT_V6, LEFT_V6)] {
        let echo = Echo::start(&pair.right, ip, LARGE);
        let mut client = EchoClient::connect(echo.address);
        setsockopt(&client.stream.as_fd(), sockopt::Mark, &77).expect("mark");
        if ip == RIGHT_V4 {
            setsockopt(&client.stream.as_fd(), sockopt::Ipv4Tos, &(46 << 2)).expect("tos");
        } else {
            setsockopt(&client.stream.as_fd(), sockopt::Ipv6TClass, &(46 << 2)).expect("tclass");
        }
        let before = kinds(&driver).0;
        client.exchange(LARGE);
        driver.starts(before + 1);
        let facts = last_facts(&driver);
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
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mapped = format!("[::ffff:{RIGHT_V4}]:{}", echo.address.port());
    let mut client = EchoClient::connect(mapped.parse().expect("address"));
    client.exchange(LARGE);
    driver.started();
    let facts = last_facts(&driver);
    assert_eq!(facts.tuple.src.to_string(), LEFT_V4);
    assert_eq!(facts.tuple.dst.to_string(), RIGHT_V4);
}

/// This process's cgroup v2, as an id; 0 without a cgroup2 mount that shows it.
fn own_cgroup() -> u64 {
    let text = std::fs::read_to_string("/proc/self/cgroup").expect("procfs");
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .expect("cgroup v2");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("procfs");
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (mount, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then_some(mount)
        })
        .next()
        .expect("a cgroup2 mount");
    std::fs::metadata(format!("{mount}{path}"))
        .expect("cgroup")
        .ino()
}

/// An application's own maximum is reported as its demand, holds below a larger rate, and is still
/// there afterwards.
#[test]
fn an_applications_own_maximum_is_respected_and_survives() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let mut driver = StructOpsDriver::open(&pair);
        let receiver = netns::BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let mut client = EchoClient::connect(receiver.address);
        set_max_pacing(&client.stream, 2_500_000);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                client.stream.write_all(&[5; 1 << 16]).expect("write");
            }
            client
        });
        let conn = driver.started();
        assert_eq!(last_facts(&driver).app_max_bytes_per_s, Some(2_500_000));
        driver.set(conn, 500, now_ns() + 500_000_000);
        let begin = now_ns();
        sleep(Duration::from_millis(450));
        let end = now_ns();
        sleep(Duration::from_millis(600));
        stop.store(true, Ordering::Relaxed);
        let client = writer.join().expect("writer");
        assert_eq!(get_max_pacing(&client.stream), 2_500_000);
        drop(client);
        let trace = receiver.finish().remove(0);
        let rate = netns::settled_rate_bps(&trace, begin + 50_000_000, end) / 8.0;
        let kept = ensure_within(
            rate,
            2.0e6..2.6e6,
            "bytes/s, the application's maximum is 2.5e6",
        );
        let after = netns::settled_rate_bps(&trace, end + 150_000_000, end + 600_000_000) / 8.0;
        // Plain TCP obeys the application's maximum as well, in bursts that may exceed it for a
        // moment.
        kept.and(ensure_within(
            after,
            2.0e6..2.7e6,
            "bytes/s after the lease",
        ))
    });
}

/// A kernel may pass over the back end's programs for milliseconds. Pacing holds all the same,
/// because the rate is in force as the socket's own maximum, which moves with what late timers owe.
#[test]
fn the_kernel_itself_bounds_pacing_while_a_rate_is_in_force() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let receiver = netns::BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let mut client = EchoClient::connect(receiver.address);
    set_max_pacing(&client.stream, 25_000_000);
    let probe = client.stream.try_clone().expect("a second handle");
    let writer = std::thread::spawn(move || {
        let end = now_ns() + 1_500_000_000;
        while now_ns() < end {
            client.stream.write_all(&[5; 1 << 16]).expect("write");
        }
    });
    let conn = driver.started();
    let rate_bytes_per_s = 40_000_000 / 8;
    driver.set(conn, 40, now_ns() + 500_000_000);
    sleep(Duration::from_millis(150));
    // The maximum bounds payload, and corrects what the flow is ahead or behind by a quarter at
    // most. A full segment has 66 bytes beside its payload.
    let payload_bytes_per_s = rate_bytes_per_s * 1_448 / 1_514;
    let allowed = payload_bytes_per_s / 4 * 3..=rate_bytes_per_s / 4 * 5;
    for _ in 0..50 {
        let bound = get_max_pacing(&probe);
        assert!(
            allowed.contains(&bound),
            "{bound} bytes/s at a rate of {rate_bytes_per_s}"
        );
        sleep(Duration::from_millis(2));
    }
    sleep(Duration::from_millis(550));
    assert_eq!(get_max_pacing(&probe), 25_000_000, "after the lease");
    writer.join().expect("writer");
    drop(probe);
    receiver.finish();
}

#[test]
fn a_full_table_leaves_flows_on_plain_tcp_until_a_slot_is_free() {
    let pair = NamespacePair::new();
    let mut config = config(&pair.tag);
    config.max_flows = 2;
    let mut driver = StructOpsDriver::with(&pair, &config);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut clients: Vec<_> = (0..5).map(|_| EchoClient::connect(echo.address)).collect();
    for client in &mut clients {
        client.exchange(LARGE);
    }
    driver.starts(2);
    sleep(Duration::from_millis(20));
    driver.poll();
    assert_eq!(kinds(&driver).0, 2, "two slots");
    let stats = driver.backend.stats();
    assert_eq!((stats.connections, stats.table_full), (2, 3));
    // A connection gives its slot back; the third takes it with its next flowlet.
    drop(clients.remove(0));
    driver.until("the close", |events| {
        events
            .iter()
            .find(|event| event.kind == FlowEventKind::Close)
            .map(|_| ())
    });
    clients[1].exchange(LARGE);
    let conns = driver.starts(3);
    assert_eq!(
        conns[2],
        Conn {
            slot: conns[0].slot,
            use_count: conns[0].use_count + 1
        }
    );
    // A handle of the slot's earlier user does nothing.
    driver.set(conns[0], 1, FOREVER_NS);
    let begin = now_ns();
    for _ in 0..20 {
        clients[1].exchange(LARGE);
    }
    assert!(
        now_ns() - begin < 2_000_000_000,
        "800 kB at 1 Mbit/s would take 6 s"
    );
}

/// Loopback and own addresses use no link.
#[test]
fn traffic_within_the_host_is_left_alone() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    for ip in ["127.0.0.1", LEFT_V4, "::1", LEFT_V6] {
        let echo = Echo::start(&pair.left, ip, LARGE);
        EchoClient::connect(echo.address).exchange(LARGE);
    }
    sleep(Duration::from_millis(20));
    driver.poll();
    assert_eq!(driver.events, []);
}

/// Other namespaces may choose the congestion control by name, or inherit it as their default:
/// there it is cubic.
#[test]
fn other_namespaces_are_left_alone() {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    pair.right
        .set_ipv4("tcp_congestion_control", driver.backend.name());
    let receiver = netns::BulkReceiver::start(&pair.left, LEFT_V4, 1);
    let sender = netns::BulkSender::start(&pair.right, receiver.address);
    sleep(Duration::from_millis(50));
    driver.poll();
    assert_eq!(driver.events, []);
    sender.stop();
    receiver.finish();
}

/// A ring that overflows loses nothing for good: starts are repeated, and the slots show ends and
/// closes that the ring did not take.
#[test]
fn lost_events_are_made_up_for() {
    let pair = NamespacePair::new();
    let mut config = config(&pair.tag);
    config.max_flows = 64;
    let mut driver = StructOpsDriver::with(&pair, &config);
    let echo = Echo::start(&pair.right, RIGHT_V4, LARGE);
    let mut clients: Vec<_> = (0..8).map(|_| EchoClient::connect(echo.address)).collect();
    // 64 KiB hold some 740 events, and the test does not read them.
    for _ in 0..100 {
        for client in &mut clients {
            client.exchange(LARGE);
        }
    }
    assert!(
        driver.backend.stats().events_lost > 0,
        "{:?}",
        driver.backend.stats()
    );
    let survivors = clients.split_off(4);
    drop(clients);
    sleep(Duration::from_millis(50));
    driver.poll();
    driver.poll();
    let mut state = std::collections::BTreeMap::new();
    for event in &driver.events {
        match event.kind {
            FlowEventKind::Start(_) | FlowEventKind::Resume => state.insert(event.conn.slot, true),
            FlowEventKind::Idle => state.insert(event.conn.slot, false),
            FlowEventKind::Close => state.remove(&event.conn.slot),
            FlowEventKind::FirstPaced { .. } | FlowEventKind::Limited => None,
        };
    }
    assert_eq!(state.len(), survivors.len(), "{state:?}");
    assert!(state.values().all(|active| !active), "{state:?}");
    assert_eq!(driver.backend.stats().connections, 4);
}

/// Measures from the write of a flowlet's first byte to its first paced segment. The test answers a
/// start as soon as it polls, every 200 µs.
#[test]
fn first_paced_is_told_once_per_flowlet_with_its_latency() {
    let pair = NamespacePair::new();
    // A link that is slower than the senders, so that none of them is idle when its rate comes.
    netns::run(&format!(
        "tc -n {} qdisc add dev v0 root tbf rate 500mbit burst 128k limit 4m",
        pair.left.0
    ));
    let mut driver = StructOpsDriver::open(&pair);
    // Linux 6.12 does not trace writes: there the first transmission stands in.
    let types = std::fs::read("/sys/kernel/btf/vmlinux").expect("BTF");
    let name = b"btf_trace_tcp_sendmsg_locked\0";
    let traced = types.windows(name.len()).any(|part| part == name);
    assert_eq!(driver.backend.sees_first_write(), traced);
    let receiver = netns::BulkReceiver::start(&pair.right, RIGHT_V4, 20);
    let senders: Vec<_> = (0..20)
        .map(|_| netns::BulkSender::start(&pair.left, receiver.address))
        .collect();
    let mut granted = 0;
    let count = |driver: &StructOpsDriver, conn: Conn, kind: fn(&FlowEventKind) -> bool| {
        let events = driver.events.iter();
        events.filter(|e| e.conn == conn && kind(&e.kind)).count()
    };
    let paced = |kind: &FlowEventKind| matches!(kind, FlowEventKind::FirstPaced { .. });
    // A sender's thread may not run for a while: then its rate comes while it is idle, and there is
    // no first transmission.
    let idle = |kind: &FlowEventKind| matches!(kind, FlowEventKind::Idle);
    let conns = netns::wait_for("first paced", Duration::from_secs(10), || {
        driver.poll();
        let starts: Vec<_> = driver.events[granted..]
            .iter()
            .filter(|event| matches!(event.kind, FlowEventKind::Start(_)))
            .map(|event| event.conn)
            .collect();
        granted = driver.events.len();
        for conn in starts {
            driver.set(conn, 20, FOREVER_NS);
        }
        let starts = driver.events.iter();
        let conns: Vec<_> = starts
            .filter(|event| matches!(event.kind, FlowEventKind::Start(_)))
            .map(|event| event.conn)
            .collect();
        let told = |&conn: &Conn| count(&driver, conn, paced) + count(&driver, conn, idle) > 0;
        (conns.len() == 20 && conns.iter().all(told)).then_some(conns)
    });
    for &conn in &conns {
        driver.set(conn, 30, FOREVER_NS);
    }
    sleep(Duration::from_millis(100));
    driver.poll();
    for &conn in &conns {
        let told = count(&driver, conn, paced);
        let once = told == 1 || (told == 0 && count(&driver, conn, idle) > 0);
        assert!(once, "{conn:?} is told {told} times");
    }
    let mut latencies: Vec<_> = driver
        .events
        .iter()
        .filter_map(|event| match event.kind {
            FlowEventKind::FirstPaced { latency_ns } => Some(latency_ns / 1000),
            _ => None,
        })
        .collect();
    assert!(latencies.len() >= 10, "most are: {latencies:?}");
    latencies.sort_unstable();
    println!("first paced after {latencies:?} us");
    assert!(
        latencies.iter().all(|us| (1..10_000_000).contains(us)),
        "{latencies:?}"
    );
    driver.backend.clear_all().expect("clear all");
    senders.into_iter().for_each(netns::BulkSender::stop);
}
