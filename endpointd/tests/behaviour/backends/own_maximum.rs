//! An application's own maximum (`SO_MAX_PACING_RATE`): it holds where it is lower than a rate, and
//! is the socket's again whatever ends the rate.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use ratewright_endpointd::backend::{BackendConfig, BackendKind, Conn, FlowEventKind};
use ratewright_endpointd::clock::now_ns;

use super::demand::RateEnd;
use super::owner::Owner;
use super::sock_ops::left_behind;
use super::{Driver, FOREVER_NS, MS, alone, config};
use crate::netns::cubic::cubic_pair;
use crate::netns::echo::{Echo, EchoClient, get_max_pacing, set_max_pacing};
use crate::netns::{BulkReceiver, NamespacePair, RIGHT_V4, connect_anew, wait_for};

const KIND: BackendKind = BackendKind::SockOps;
/// A socket without a maximum.
const NONE: u64 = u32::MAX as u64;
/// 40 Mbit/s on the wire, in bytes of payload per second.
const PAYLOAD: u64 = 5_000_000 * 1_448 / 1_514;

/// A connection whose application has set a maximum, in bytes/s, or none.
fn with_maximum(echo: &Echo, own: Option<u32>) -> EchoClient {
    let client = EchoClient::connect(echo.address);
    if let Some(own) = own {
        set_max_pacing(&client.stream, own);
    }
    client
}

/// Paces the client's next message at 40 Mbit/s, and returns while most of it still waits. It takes
/// four megabytes, as its echo does.
fn pace(client: &mut EchoClient, driver: &mut Driver) -> Conn {
    const MESSAGE: usize = 4_000_000;
    let starts = driver.start_count();
    client.exchange(MESSAGE);
    let (conn, _) = driver.starts(starts + 1)[starts];
    driver.set(conn, 40, FOREVER_NS);
    client.stream.write_all(&[5; MESSAGE]).expect("write");
    let maximum = get_max_pacing(&client.stream);
    assert!(maximum <= PAYLOAD, "{maximum} bytes/s of {PAYLOAD}");
    conn
}

#[test]
fn a_rate_that_ends_with_data_in_flight_leaves_the_application_s_own_maximum() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 4_000_000);
    for own in [None, Some(25_000_000)] {
        for end in [RateEnd::Cleared, RateEnd::KillSwitch, RateEnd::Lapsed] {
            let expected = own.map_or(NONE, u64::from);
            let mut client = with_maximum(&echo, own);
            let conn = pace(&mut client, &mut driver);
            if end == RateEnd::Lapsed {
                driver.set(conn, 40, now_ns() + 10 * MS);
            }
            end.command(&mut driver, conn);
            client.stream.read_exact(&mut [0]).expect("answer");
            let held = get_max_pacing(&client.stream);
            assert_eq!(held, expected, "{end:?}: all of it is acknowledged");
            client.stream.write_all(&[5; 10_000]).expect("write");
            let held = get_max_pacing(&client.stream);
            assert_eq!(held, expected, "{end:?}: a mouse later");
            drop(client);
        }
    }
}

/// A socket with nothing to send has its own maximum, also while its rate holds, and without a pass
/// over the sockets: no daemon looks while the test waits.
#[test]
fn a_socket_that_rests_has_its_own_maximum_by_the_kernel_s_part_alone() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 4_000_000);
    for own in [None, Some(25_000_000)] {
        let mut client = with_maximum(&echo, own);
        pace(&mut client, &mut driver);
        let passes = driver.backend.stats().socket_passes;
        client.stream.read_exact(&mut [0]).expect("answer");
        wait_for("its own maximum", Duration::from_secs(2), || {
            (get_max_pacing(&client.stream) == own.map_or(NONE, u64::from)).then_some(())
        });
        assert_eq!(driver.backend.stats().socket_passes, passes);
    }
}

/// A kernel may pass over the back end's program for milliseconds. The rate holds all the same,
/// because it is in force as the socket's own maximum.
#[test]
fn the_kernel_itself_bounds_pacing_while_a_rate_is_in_force() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let mut client = EchoClient::connect(receiver.address);
    set_max_pacing(&client.stream, 25_000_000);
    let probe = client.stream.try_clone().expect("a second handle");
    let writer = std::thread::spawn(move || {
        let end = now_ns() + 1_500 * MS;
        while now_ns() < end {
            client.stream.write_all(&[5; 1 << 16]).expect("write");
        }
    });
    let conn = driver.started();
    driver.set(conn, 40, now_ns() + 500 * MS);
    driver.run_for(Duration::from_millis(150));
    for _ in 0..50 {
        let bound = get_max_pacing(&probe);
        assert!(bound <= PAYLOAD, "{bound} bytes/s at a rate of {PAYLOAD}");
        driver.run_for(Duration::from_millis(2));
    }
    driver.run_for(Duration::from_millis(550));
    assert_eq!(get_max_pacing(&probe), 25_000_000, "after the lease");
    writer.join().expect("writer");
    drop(probe);
    receiver.finish();
}

#[test]
fn a_socket_that_changes_its_congestion_control_keeps_its_rate_and_its_own_maximum() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 4_000_000);
    for own in [None, Some(25_000_000)] {
        let mut client = with_maximum(&echo, own);
        let conn = pace(&mut client, &mut driver);
        setsockopt(&client.stream, sockopt::TcpCongestion, &"reno".into()).expect("reno");
        let maximum = get_max_pacing(&client.stream);
        assert!(maximum <= PAYLOAD, "{maximum} bytes/s of {PAYLOAD}");
        driver.backend.clear(conn).expect("clear");
        client.stream.read_exact(&mut [0]).expect("answer");
        assert_eq!(get_max_pacing(&client.stream), own.map_or(NONE, u64::from));
        let name = pair.left.run("ss -tinH state established");
        assert!(name.contains(" reno "), "{name}");
    }
}

/// Nobody is left but the kernel's part, and it needs no successor.
#[test]
fn a_killed_daemon_s_maximum_ends_with_its_lease() {
    for own in [None, Some(25_000_000)] {
        let _alone = alone();
        let pair = cubic_pair();
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let mut owner = Owner::start(KIND, &pair);
        owner.wait_for("opened");
        pair.left.enter();
        let stream = TcpStream::connect(receiver.address).expect("connect");
        if let Some(own) = own {
            set_max_pacing(&stream, own);
        }
        let mut writing = stream.try_clone().expect("a second handle");
        let writer = std::thread::spawn(move || {
            let end = now_ns() + 3_000 * MS;
            while now_ns() < end {
                writing.write_all(&[5; 1 << 16]).expect("write");
            }
        });
        owner.wait_for("paced");
        let expected = own.map_or(NONE, u64::from);
        wait_for("its rate", Duration::from_secs(2), || {
            (get_max_pacing(&stream) < expected).then_some(())
        });
        owner.kill();
        wait_for("its own maximum", Duration::from_secs(2), || {
            (get_max_pacing(&stream) == expected).then_some(())
        });
        writer.join().expect("writer");
        drop(stream);
        receiver.finish();
        Driver::open(KIND, &pair)
            .backend
            .shut_down()
            .expect("shut down");
    }
}

/// Reads the socket's maximum, which `ss` shows behind the pacing rate.
fn max_pacing_rate(pair: &NamespacePair, port: u16) -> Option<String> {
    let shown = pair.left.run(&format!("ss -tinH sport = :{port}"));
    let rate = shown
        .split_whitespace()
        .skip_while(|word| *word != "pacing_rate")
        .nth(1)?;
    rate.split_once('/').map(|(_, maximum)| maximum.to_owned())
}

#[test]
fn an_applications_own_maximum_is_reported_kept_and_restored() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let to = receiver.address;
    let (say, heard) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel::<u16>();
    let writer = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(to).expect("connect");
        // 40 Mbit/s of payload.
        set_max_pacing(&stream, 5_000_000);
        tell.send(stream.local_addr().expect("connected").port())
            .expect("test waits");
        for () in heard {
            stream.write_all(&[9u8; 100_000]).expect("write");
        }
    });
    let port = told.recv().expect("connected");
    say.send(()).expect("writer");
    let (conn, facts) = driver.starts(1).remove(0);
    assert_eq!(facts.app_max_bytes_per_s, Some(5_000_000));
    // Ours is below it.
    driver.set(conn, 10, FOREVER_NS);
    for _ in 0..3 {
        say.send(()).expect("writer");
    }
    driver.until("a paced transmission", |events| {
        events
            .iter()
            .any(|event| matches!(event.kind, FlowEventKind::FirstPaced { .. }))
            .then_some(())
    });
    let ours = max_pacing_rate(&pair, port).expect("a maximum");
    assert!(
        ours.starts_with("9564"),
        "10 Mbit/s on the wire are 9.564 of payload: {ours}"
    );
    // Ours is above it: the application's holds.
    driver.set(conn, 1_000, FOREVER_NS);
    say.send(()).expect("writer");
    driver.run_for(Duration::from_millis(400));
    assert_eq!(max_pacing_rate(&pair, port).as_deref(), Some("40000000bps"));
    driver.backend.shut_down().expect("shut down");
    assert_eq!(max_pacing_rate(&pair, port).as_deref(), Some("40000000bps"));
    drop(say);
    writer.join().expect("writer");
    receiver.finish();
}

#[test]
fn an_applications_own_maximum_survives_a_crash_and_a_restart() {
    own_maximum_over_a_restart(false);
}

/// Another version's maps are not read: its own pinned program gives its sockets back.
#[test]
fn an_applications_own_maximum_survives_a_crash_and_a_restart_of_another_version() {
    own_maximum_over_a_restart(true);
}

fn own_maximum_over_a_restart(other_version: bool) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut first = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let to = receiver.address;
    let (say, heard) = std::sync::mpsc::channel::<usize>();
    let (tell, told) = std::sync::mpsc::channel::<u16>();
    let writer = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(to).expect("connect");
        // 40 Mbit/s of payload.
        set_max_pacing(&stream, 5_000_000);
        tell.send(stream.local_addr().expect("connected").port())
            .expect("test waits");
        for bytes in heard {
            stream.write_all(&vec![9u8; bytes]).expect("write");
        }
    });
    let port = told.recv().expect("connected");
    say.send(100_000).expect("writer");
    let conn = first.started();
    // So slow that data waits for as long as the test takes.
    first
        .backend
        .set_rate(conn, 500_000, FOREVER_NS)
        .expect("set a rate");
    say.send(1_000_000).expect("writer");
    first.run_for(Duration::from_millis(300));
    let ours = max_pacing_rate(&pair, port).expect("a maximum");
    assert!(ours.starts_with("478"), "0.5 Mbit/s on the wire: {ours}");
    first.crash();
    if other_version {
        forget_layout(&pair);
    }
    let mut second = Driver::open(KIND, &pair);
    let (_, facts) = second.starts(1).remove(0);
    assert_eq!(facts.app_max_bytes_per_s, Some(5_000_000));
    second.backend.shut_down().expect("shut down");
    assert_eq!(max_pacing_rate(&pair, port).as_deref(), Some("40000000bps"));
    drop(say);
    writer.join().expect("writer");
    receiver.finish();
}

/// Agents that look for files read all that they find: inventories, integrity checks, `grep -r`.
#[test]
fn to_read_every_pin_changes_nothing() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 100_000);
    let mut client = EchoClient::connect(echo.address);
    hold(&mut driver, &mut client);
    let held = get_max_pacing(&client.stream);
    let pins = pins_of(&pair);
    assert!(pins.len() > 6, "{pins:?}");
    for pin in pins {
        // In the sockets' own network namespace, and as root.
        let read = std::fs::read(&pin).map(|bytes| bytes.len());
        println!("{}: {read:?}", pin.display());
        let mode = std::fs::metadata(pin.parent().expect("a folder")).expect("there");
        assert_eq!(mode.permissions().mode() & 0o077, 0, "only root looks in");
    }
    driver.run_for(Duration::from_millis(300));
    assert_eq!(get_max_pacing(&client.stream), held);
    assert_eq!(driver.backend.stats().connections, 1);
    driver.backend.shut_down().expect("shut down");
    assert_eq!(get_max_pacing(&client.stream), NONE, "it is given back");
}

/// Lists the files in which the back end's kernel objects are pinned.
fn pins_of(pair: &NamespacePair) -> Vec<PathBuf> {
    let folders = left_behind(pair).into_iter().flat_map(|folder| {
        ["sock_ops", "bpf/sock_ops"].map(|below| Path::new(&folder).join(below))
    });
    let pins = folders
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten();
    pins.map(|pin| pin.expect("readable").path()).collect()
}

/// Makes the pinned maps another version's: the name of one pin states the layout.
fn forget_layout(pair: &NamespacePair) {
    let layouts: Vec<_> = pins_of(pair)
        .into_iter()
        .filter(|pin| pin.to_string_lossy().contains("/layout-"))
        .collect();
    assert_eq!(layouts.len(), 1, "{layouts:?}");
    std::fs::remove_file(&layouts[0]).expect("remove a pin");
}

/// Has a connection wait behind a rate of 0.5 Mbit/s, which its socket shows.
fn hold(driver: &mut Driver, client: &mut EchoClient) {
    client.exchange(100_000);
    let conn = driver.started();
    driver
        .backend
        .set_rate(conn, 500_000, FOREVER_NS)
        .expect("set a rate");
    client.stream.set_nonblocking(true).expect("set");
    let written = client.stream.write(&[5; 1 << 20]);
    assert!(!matches!(&written, Err(error) if error.kind() != ErrorKind::WouldBlock));
    client.stream.set_nonblocking(false).expect("set");
    wait_for("the rate's maximum", Duration::from_secs(5), || {
        driver.poll();
        (get_max_pacing(&client.stream) < 100_000).then_some(())
    });
}

/// A connection's maximum ends with it: the socket may be connected anew.
#[test]
fn a_socket_that_is_connected_anew_has_its_own_maximum() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let echo = Echo::start(&pair.right, RIGHT_V4, 100_000);
    let mut client = EchoClient::connect(echo.address);
    set_max_pacing(&client.stream, 5_000_000);
    hold(&mut driver, &mut client);
    connect_anew(&client.stream, echo.address);
    client.stream.write_all(&[5; 10_000]).expect("write");
    assert_eq!(get_max_pacing(&client.stream), 5_000_000);
    // Its flowlets are seen from the first one on.
    client.exchange(90_000);
    driver.starts(2);
    driver.backend.shut_down().expect("shut down");
}

/// Sockets of pods have what the daemon's own namespace has.
#[test]
fn an_applications_own_maximum_in_a_pod_survives_a_crash_and_another_version() {
    let _alone = alone();
    let (pair, pod) = (cubic_pair(), cubic_pair());
    let config = BackendConfig {
        network_namespaces: vec![format!("/run/netns/{}", pod.left.0)],
        ..config(&pair)
    };
    let mut first = Driver::with(KIND, &pair, &config);
    wait_for("the pod", Duration::from_secs(5), || {
        first.poll();
        (first.backend.stats().pods == 1).then_some(())
    });
    let echo = Echo::start(&pod.right, RIGHT_V4, 100_000);
    let to = echo.address;
    let connect = move || EchoClient::connect(to);
    let mut client = pod.left.spawn(connect).join().expect("connected");
    set_max_pacing(&client.stream, 5_000_000);
    hold(&mut first, &mut client);
    first.crash();
    forget_layout(&pair);
    let mut second = Driver::with(KIND, &pair, &config);
    wait_for("its own maximum", Duration::from_secs(5), || {
        second.poll();
        (get_max_pacing(&client.stream) == 5_000_000).then_some(())
    });
    second.backend.shut_down().expect("shut down");
}

/// The daemon hears of each change while the flow runs, up, down and away, without a pause of the
/// flow.
fn changes_of_the_applications_own_maximum(kind: BackendKind) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let client = EchoClient::connect(receiver.address);
    set_max_pacing(&client.stream, 1_250_000);
    let application = client.stream.try_clone().expect("a second handle");
    let mut stream = client.stream.try_clone().expect("a third handle");
    let writer = std::thread::spawn(move || {
        let end = now_ns() + 2_000 * MS;
        while now_ns() < end {
            stream.write_all(&[5; 1 << 14]).expect("write");
        }
    });
    let (conn, facts) = driver.starts(1).remove(0);
    assert_eq!(facts.app_max_bytes_per_s, Some(1_250_000));
    driver.set(conn, 100, FOREVER_NS);
    driver.run_for(Duration::from_millis(200));
    for (told, (set, expected)) in [
        (5_000_000, Some(5_000_000)),
        (2_500_000, Some(2_500_000)),
        (u32::MAX, None),
    ]
    .into_iter()
    .enumerate()
    {
        let at_ns = now_ns();
        set_max_pacing(&application, set);
        let seen_ns = driver.until("the change", |events| {
            let changes = events.iter().filter_map(|event| match event.kind {
                FlowEventKind::OwnMax(own) => Some((event.at_ns, own)),
                _ => None,
            });
            changes.skip(told).find(|(_, own)| *own == expected)
        });
        let took_ms = seen_ns.0.saturating_sub(at_ns) / MS;
        assert!(took_ms < 200, "{expected:?} after {took_ms} ms");
        driver.run_for(Duration::from_millis(100));
    }
    writer.join().expect("writer");
    drop((client, application));
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

#[test]
fn a_change_of_the_application_s_own_maximum_is_told_while_it_sends() {
    changes_of_the_applications_own_maximum(KIND);
}

#[test]
fn a_change_of_the_application_s_own_maximum_is_told_while_it_sends_with_tc_htb() {
    changes_of_the_applications_own_maximum(BackendKind::TcHtb);
}
