//! Dangers to a socket that must never occur: a maximum that outlives its lease; a flow that holds
//! a slot although nothing gets through; a flow that is kept small without a report.

mod netns;

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use netns::backend::{FOREVER_NS, MBIT, StructOpsDriver, config};
use netns::daemon_process::{self, DaemonProcess};
use netns::echo::{Echo, EchoClient, get_max_pacing, set_max_pacing};
use netns::{NamespacePair, RIGHT_V4, RIGHT_V6, connect_anew, run, sleep, wait_for};
use nix::sys::socket::{setsockopt, sockopt};
use ratewright_endpointd::backend::{Conn, FlowEventKind, PacingBackend};
use ratewright_endpointd::clock::now_ns;

include!(concat!(env!("OUT_DIR"), "/other_layout.rs"));
use skel::OtherLayoutSkelBuilder;

const NONE: u64 = u32::MAX as u64;
const MS: u64 = 1_000_000;

/// A connection of messages of 100 kB whose flowlet has a rate of 40 Mbit/s in force.
fn paced(
    pair: &NamespacePair,
    echo: &Echo,
    driver: &mut StructOpsDriver,
    expires_ns: u64,
) -> (EchoClient, Conn) {
    let mut client = EchoClient::connect(echo.address);
    client.exchange(100_000);
    let conn = driver.started();
    driver.set(conn, 40, expires_ns);
    client.exchange(100_000);
    let maximum = get_max_pacing(&client.stream);
    assert!(
        maximum < 20_000_000,
        "{maximum} bytes/s while paced in {}",
        pair.tag
    );
    (client, conn)
}

/// A connection whose application has set a maximum, in bytes/s.
fn with_maximum(echo: &Echo, own: Option<u32>) -> EchoClient {
    let client = EchoClient::connect(echo.address);
    if let Some(own) = own {
        set_max_pacing(&client.stream, own);
    }
    client
}

/// Puts a rate of 40 Mbit/s in force for the newest flowlet, which is the client's.
fn pace(client: &mut EchoClient, driver: &mut StructOpsDriver) {
    let starts = driver.count(|kind| matches!(kind, FlowEventKind::Start(_)));
    client.exchange(100_000);
    let conn = driver.starts(starts + 1)[starts];
    driver.set(conn, 40, FOREVER_NS);
    client.exchange(100_000);
    let maximum = get_max_pacing(&client.stream);
    assert!(maximum < 20_000_000, "{maximum} bytes/s while paced");
}

fn pair_with_echo(message: usize) -> (NamespacePair, Echo, StructOpsDriver) {
    let pair = NamespacePair::new();
    let echo = Echo::start(&pair.right, RIGHT_V4, message);
    let driver = StructOpsDriver::open(&pair);
    (pair, echo, driver)
}

#[test]
fn a_rate_that_is_cleared_with_data_in_flight_leaves_no_maximum() {
    let (pair, echo, mut driver) = pair_with_echo(100_000);
    let (mut client, conn) = paced(&pair, &echo, &mut driver, FOREVER_NS);
    // In flight, or waiting for its turn, for 20 ms.
    client.stream.write_all(&[5; 100_000]).expect("write");
    driver.backend.clear(conn).expect("clear");
    client.stream.read_exact(&mut [0]).expect("answer");
    assert_eq!(
        get_max_pacing(&client.stream),
        NONE,
        "all of it is acknowledged"
    );
    client.stream.write_all(&[5; 10_000]).expect("write");
    assert_eq!(get_max_pacing(&client.stream), NONE, "a mouse later");
}

#[test]
fn the_next_write_after_a_lapse_or_the_kill_switch_is_plain() {
    for kill in [false, true] {
        let (pair, echo, mut driver) = pair_with_echo(100_000);
        let expires_ns = if kill {
            FOREVER_NS
        } else {
            now_ns() + 300 * MS
        };
        let (mut client, _) = paced(&pair, &echo, &mut driver, expires_ns);
        if kill {
            driver.backend.clear_all().expect("clear all");
        } else {
            sleep(Duration::from_millis(400));
        }
        client.exchange(100_000);
        assert_eq!(get_max_pacing(&client.stream), NONE, "kill switch: {kill}");
    }
}

#[test]
fn a_socket_that_rests_loses_its_maximum_soon_after_the_lease() {
    let (pair, echo, mut driver) = pair_with_echo(100_000);
    let (client, _) = paced(&pair, &echo, &mut driver, now_ns() + 300 * MS);
    wait_for("the maximum's end", Duration::from_secs(12), || {
        driver.poll();
        (get_max_pacing(&client.stream) == NONE).then_some(())
    });
}

#[test]
fn a_socket_that_leaves_the_congestion_control_takes_its_own_maximum_along() {
    for own in [None, Some(25_000_000)] {
        let (pair, echo, mut driver) = pair_with_echo(100_000);
        let (client, _) = paced(&pair, &echo, &mut driver, FOREVER_NS);
        if let Some(own) = own {
            set_max_pacing(&client.stream, own);
            driver.poll();
        }
        setsockopt(&client.stream, sockopt::TcpCongestion, &"reno".into()).expect("reno");
        let expected = own.map_or(NONE, u64::from);
        wait_for("its own maximum", Duration::from_secs(1), || {
            driver.poll();
            (get_max_pacing(&client.stream) == expected).then_some(())
        });
    }
}

/// A maximum of ours that is in force when a socket is back is not taken for the application's.
#[test]
fn a_socket_that_leaves_and_is_back_at_once_has_its_own_maximum() {
    for own in [None, Some(25_000_000)] {
        let pair = NamespacePair::new();
        let echo = Echo::start(&pair.right, RIGHT_V4, 100_000);
        let mut driver = StructOpsDriver::open(&pair);
        let name = driver.backend.name().to_owned();
        let mut client = with_maximum(&echo, own);
        pace(&mut client, &mut driver);
        for name in ["reno", &name] {
            setsockopt(&client.stream, sockopt::TcpCongestion, &name.into()).expect("known");
        }
        // Its slot is gone, so these are plain; the daemon does not see to it.
        client.exchange(100_000);
        assert_eq!(get_max_pacing(&client.stream), own.map_or(NONE, u64::from));
        // Nor is what is in force then taken for the application's, whatever follows.
        pace(&mut client, &mut driver);
        driver.backend.clear_all().expect("clear all");
        client.exchange(100_000);
        assert_eq!(get_max_pacing(&client.stream), own.map_or(NONE, u64::from));
    }
}

#[test]
fn a_socket_that_is_connected_anew_has_its_own_maximum() {
    for own in [None, Some(25_000_000)] {
        let (_pair, echo, mut driver) = pair_with_echo(100_000);
        let mut client = with_maximum(&echo, own);
        pace(&mut client, &mut driver);
        connect_anew(&client.stream, echo.address);
        client.stream.write_all(&[5; 10_000]).expect("write");
        assert_eq!(get_max_pacing(&client.stream), own.map_or(NONE, u64::from));
    }
}

/// Sockets that leave one after the other, as an application may make them do without end, cost a
/// pass each 100 ms at most. The daemon's timer alone leads to the last one.
#[test]
fn sockets_that_leave_in_a_loop_are_all_mended_in_few_passes() {
    const SOCKETS: usize = 200;
    let (_pair, echo, mut driver) = pair_with_echo(20_000);
    let mut clients: Vec<_> = (0..SOCKETS)
        .map(|_| EchoClient::connect(echo.address))
        .collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.exchange(20_000);
        let conn = driver.starts(index + 1)[index];
        driver.set(conn, 40, FOREVER_NS);
    }
    for client in &mut clients {
        client.exchange(20_000);
        assert!(get_max_pacing(&client.stream) < 20_000_000);
    }
    let (before, begun_ns) = (driver.backend.stats().socket_passes, now_ns());
    for client in &clients {
        setsockopt(&client.stream, sockopt::TcpCongestion, &"reno".into()).expect("reno");
        driver.poll();
        sleep(Duration::from_millis(1));
    }
    wait_for("mended sockets", Duration::from_secs(10), || {
        if driver
            .backend
            .next_poll_ns()
            .is_some_and(|at| at <= now_ns())
        {
            driver.poll();
        }
        let mended = |client: &EchoClient| get_max_pacing(&client.stream) == NONE;
        clients.iter().all(mended).then_some(())
    });
    let passes = driver.backend.stats().socket_passes - before;
    let took_ms = (now_ns() - begun_ns) / MS;
    println!("{passes} passes in {took_ms} ms");
    assert!(passes <= 2 + took_ms / 100, "{passes} in {took_ms} ms");
}

#[test]
fn daemon_process() {
    daemon_process::play();
}

/// A killed daemon's program stays with its sockets, but no pass meets those that have left it.
#[test]
fn maxima_of_a_killed_daemon_end_with_the_next_one() {
    for own in [None, Some(25_000_000)] {
        let pair = NamespacePair::new();
        let echo = Echo::start(&pair.right, RIGHT_V4, 100_000);
        let mut daemon = DaemonProcess::start(&pair, 3, 40, 3_600_000);
        pair.left.enter();
        let mut clients = [(); 3].map(|()| with_maximum(&echo, own));
        for client in &mut clients {
            client.exchange(100_000);
        }
        daemon.paces();
        for client in &mut clients {
            client.exchange(100_000);
        }
        let leave = |client: &EchoClient| {
            setsockopt(&client.stream, sockopt::TcpCongestion, &"reno".into()).expect("reno");
        };
        leave(&clients[0]);
        daemon.kill();
        leave(&clients[1]);
        let maxima = || {
            clients
                .each_ref()
                .map(|client| get_max_pacing(&client.stream))
        };
        let held = maxima();
        assert!(held.iter().all(|held| *held < 20_000_000), "{held:?}");
        let mut driver = StructOpsDriver::open(&pair);
        assert_eq!(maxima(), [own.map_or(NONE, u64::from); 3]);
        driver.backend.shut_down().expect("shut down");
        assert_eq!(maxima(), [own.map_or(NONE, u64::from); 3]);
        for place in ["/run/ratewright", "/sys/fs/bpf/ratewright"] {
            let place = Path::new(place).join(&pair.tag);
            assert!(!place.exists(), "{} is left", place.display());
        }
    }
}

/// Of a version with another layout of state, nothing is read: what is in force may be its rate.
#[test]
fn state_of_another_layout_is_not_read() {
    const PRESENT: u32 = 5_000_000;
    let pair = NamespacePair::new();
    let mut storage = MaybeUninit::uninit();
    let mut open = OtherLayoutSkelBuilder::default()
        .open(&mut storage)
        .expect("open");
    open.maps
        .rodata_data
        .as_deref_mut()
        .expect("constants")
        .present_max = PRESENT;
    let name = format!("rw_x{}", pair.tag);
    for (to, from) in open
        .struct_ops
        .ol_cc_mut()
        .name
        .iter_mut()
        .zip(name.bytes().chain([0]))
    {
        *to = from.cast_signed();
    }
    let mut skel = open.load().expect("load");
    let registration = skel.maps.ol_cc.attach_struct_ops().expect("register");
    let echo = Echo::start(&pair.right, RIGHT_V4, 1);
    pair.left.enter();
    let client = with_maximum(&echo, Some(PRESENT));
    setsockopt(
        &client.stream,
        sockopt::TcpCongestion,
        &name.as_str().into(),
    )
    .expect("known");
    // Its daemon is dead.
    drop(registration);
    let driver = StructOpsDriver::open(&pair);
    assert_eq!(driver.backend.stats().adopted, 1);
    assert_eq!(get_max_pacing(&client.stream), NONE);
}

/// After a daemon's sudden death its program stays with the sockets; the daemon's maps do not.
#[test]
fn an_application_s_maximum_survives_a_daemon_that_is_replaced() {
    let (pair, echo, mut driver) = pair_with_echo(100_000);
    let mut client = EchoClient::connect(echo.address);
    set_max_pacing(&client.stream, 25_000_000);
    client.exchange(100_000);
    let conn = driver.started();
    driver.set(conn, 40, FOREVER_NS);
    client.exchange(100_000);
    assert!(get_max_pacing(&client.stream) < 20_000_000);
    let plain = EchoClient::connect(echo.address);
    set_max_pacing(&plain.stream, 12_000_000);
    // Another daemon takes the sockets over from a program that still runs.
    // The first driver still lives, as its program does after a kill.
    let second = StructOpsDriver::with(&pair, &config(&pair.tag));
    assert_eq!(second.backend.stats().adopted, 2);
    assert_eq!(get_max_pacing(&client.stream), 25_000_000);
    assert_eq!(get_max_pacing(&plain.stream), 12_000_000);
}

fn closed_window(ip: &str) {
    let pair = NamespacePair::new();
    let listener = {
        let ip = ip.to_owned();
        pair.right
            .spawn(move || TcpListener::bind((ip.as_str(), 0)).expect("bind"))
            .join()
            .expect("bind")
    };
    let mut driver = StructOpsDriver::open(&pair);
    let mut sender = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    let (mut reader, _) = listener.accept().expect("accept");
    let block = vec![5u8; 1 << 16];
    let writer = std::thread::spawn(move || {
        // More than both buffers hold.
        for _ in 0..512 {
            sender.write_all(&block).expect("write");
        }
    });
    let conn = driver.started();
    driver.set(conn, 1_000, FOREVER_NS);
    // A writer that waits for a processor pauses, too: this pause lasts.
    driver.until("the stall", |events| {
        let last = events
            .iter()
            .rfind(|event| matches!(event.kind, FlowEventKind::Idle | FlowEventKind::Resume))?;
        let lasts = last.at_ns + 100 * MS < now_ns();
        (lasts && matches!(last.kind, FlowEventKind::Idle)).then_some(())
    });
    // The daemon ends the flowlet after the gap, and has the slot back at once.
    driver.backend.clear(conn).expect("clear");
    assert_eq!(driver.backend.stats().connections, 0, "the slot is free");
    driver.events.clear();
    sleep(Duration::from_millis(500));
    driver.poll();
    assert_eq!(
        driver.count(|kind| matches!(kind, FlowEventKind::Start(_))),
        0,
        "probes are no flowlet"
    );
    // The reader wakes up: the flowlet is reported again, and every byte arrives.
    let whole = std::thread::spawn(move || {
        let (mut buffer, mut total) = (vec![0u8; 1 << 16], 0);
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            total += count;
        }
        total
    });
    driver.started();
    writer.join().expect("writer");
    assert_eq!(whole.join().expect("reader"), 512 << 16);
}

#[test]
fn a_closed_window_ends_the_flowlet_until_the_reader_is_back() {
    closed_window(RIGHT_V4);
}

#[test]
fn a_closed_window_ends_the_flowlet_over_ipv6_too() {
    closed_window(RIGHT_V6);
}

#[test]
fn a_peer_that_does_not_answer_any_more_ends_the_flowlet() {
    let (pair, echo, mut driver) = pair_with_echo(20_000);
    let mut client = EchoClient::connect(echo.address);
    client.exchange(20_000);
    let conn = driver.started();
    driver.set(conn, 10, FOREVER_NS);
    driver.events.clear();
    run(&format!("ip -n {} link set v0 down", pair.right.0));
    client
        .stream
        .write_all(&[5; 20_000])
        .expect("into the send buffer");
    driver.until("the stall", |events| {
        let idle = events
            .iter()
            .rposition(|event| matches!(event.kind, FlowEventKind::Idle))?;
        let resumed = events
            .iter()
            .rposition(|event| matches!(event.kind, FlowEventKind::Resume));
        (resumed < Some(idle)).then_some(())
    });
    driver.backend.clear(conn).expect("clear");
    assert_eq!(driver.backend.stats().connections, 0, "the slot is free");
    // It is back: plain TCP delivers the waiting bytes.
    run(&format!("ip -n {} link set v0 up", pair.right.0));
    client.stream.read_exact(&mut [0]).expect("answer");
}

/// Two sources at 40 Mbit/s: one that writes as fast as it can, and one that writes 5 Mbit/s in
/// small pieces.
#[test]
fn use_is_told_and_a_watched_flow_that_meets_its_rate_is_told_once() {
    let (_pair, echo, mut driver) = pair_with_echo(1 << 16);
    let mut client = EchoClient::connect(echo.address);
    client.exchange(1 << 16);
    let conn = driver.started();
    driver.set(conn, 40, FOREVER_NS);
    let used = |driver: &mut StructOpsDriver| {
        let mut usages = Vec::new();
        driver.backend.usage(now_ns(), &mut usages);
        *usages
            .iter()
            .find(|usage| usage.conn == conn)
            .expect("it runs")
    };
    // Small pieces: 310 bytes every half millisecond.
    for _ in 0..20 {
        client.stream.write_all(&[5; 310]).expect("write");
        sleep(Duration::from_micros(500));
    }
    driver.backend.watch(conn);
    let (before, begin) = (used(&mut driver), now_ns());
    for _ in 0..1_000 {
        client.stream.write_all(&[5; 310]).expect("write");
        sleep(Duration::from_micros(500));
    }
    let after = used(&mut driver);
    assert!(after.limited_ns < begin, "5 Mbit/s of 40 are not limited");
    let sent = after.sent_bytes - before.sent_bytes;
    // At most a header of 66 bytes for each piece; pieces may share a segment.
    assert!(
        (310_000..=390_000).contains(&sent),
        "{sent} bytes on the wire"
    );
    assert_eq!(
        driver.count(|kind| matches!(kind, FlowEventKind::Limited)),
        0
    );
    // As fast as it goes.
    let end = now_ns() + 300 * MS;
    while now_ns() < end {
        client.stream.write_all(&[5; 1 << 16]).expect("write");
    }
    let after = used(&mut driver);
    assert!(after.limited_ns > begin && after.limited_ns < now_ns());
    driver.poll();
    assert_eq!(
        driver.count(|kind| matches!(kind, FlowEventKind::Limited)),
        1,
        "once for each time that it is watched"
    );
    assert!(after.sent_bytes - before.sent_bytes > 40 * MBIT / 8 / 10);
}
