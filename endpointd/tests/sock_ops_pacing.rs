//! The sock_ops back end: `SO_MAX_PACING_RATE` set from a cgroup program (flowtune §5.1, §6).

mod fallback;
mod netns;

use std::io::{ErrorKind, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use fallback::demand::RateEnd;
use fallback::{Bulk, FOREVER_NS, FallbackDriver, MS, alone, config, ensure_kept, wire_mbit};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags};
use netns::cubic::cubic_pair;
use netns::echo::{Echo, EchoClient, get_max_pacing, set_max_pacing};
use netns::tries::best_of_three;
use netns::{
    BulkReceiver, NamespacePair, RIGHT_V4, RIGHT_V6, WIRE_V4, WIRE_V6, assert_lifted, connect_anew,
    sleep, wait_for,
};
use ratewright_endpointd::backend::sock_ops::SockOps;
use ratewright_endpointd::backend::{BackendConfig, BackendError, FlowEventKind, PacingBackend};
use ratewright_endpointd::clock::now_ns;

fn open(config: &BackendConfig) -> Result<Box<dyn PacingBackend>, BackendError> {
    Ok(Box::new(SockOps::open(config)?))
}

/// Time after which a lapsed lease is noticed at the latest: it is at the next transmission, and at
/// 50 Mbit/s one burst of 64 KiB takes 11 ms.
const SETTLE_MS: u64 = 50;

/// Time after which a connection whose flowlet was ended has given its slot back: after a second
/// without packets, in a search that runs once a second.
const GIVEN_BACK: Duration = Duration::from_millis(2_500);

/// Lists the directories of a daemon in BPF file systems.
fn left_behind(pair: &NamespacePair) -> Vec<String> {
    [
        format!("/run/ratewright/{}", pair.tag),
        format!("/sys/fs/bpf/ratewright/{}", pair.tag),
    ]
    .into_iter()
    .filter(|place| Path::new(place).exists())
    .collect()
}

#[test]
fn owner_process() {
    fallback::owner::play(open);
}

#[test]
fn wire_rates_are_kept_within_two_percent() {
    fallback::rates_are_kept(open, RIGHT_V4, WIRE_V4, &[50, 300]);
}

#[test]
fn wire_rates_over_ipv6_count_its_larger_header() {
    fallback::rates_are_kept(open, RIGHT_V6, WIRE_V6, &[300, 50]);
}

#[test]
fn an_expired_rate_is_lifted_within_50_ms() {
    fallback::an_expired_rate_is_lifted(open, WIRE_V4, SETTLE_MS);
}

#[test]
fn a_killed_owner_leaves_plain_tcp_and_a_restart_adopts() {
    fallback::owner::a_killed_owner_leaves_plain_tcp_and_a_restart_adopts(
        open,
        WIRE_V4,
        SETTLE_MS,
        left_behind,
    );
}

#[test]
fn starts_and_ends_are_seen() {
    fallback::starts_and_ends_are_seen(open, RIGHT_V4);
}

#[test]
fn starts_and_ends_are_seen_over_ipv6() {
    fallback::starts_and_ends_are_seen(open, RIGHT_V6);
}

#[test]
fn the_table_is_bounded() {
    fallback::the_table_is_bounded(open);
}

#[test]
fn clearing_all_lifts_every_rate() {
    fallback::clearing_all_lifts_every_rate(open, WIRE_V4);
}

/// Returns true if the kernel gives callbacks to connections that are already there.
fn gives_callbacks_later() -> bool {
    let release = nix::sys::utsname::uname().expect("uname");
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn connections_from_before_are_taken_over_and_given_back() {
    best_of_three(|| {
        let _alone = alone();
        let pair = cubic_pair();
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let sender = Bulk::start(&pair.left, receiver.address);
        sleep(Duration::from_millis(100));
        let mut driver = FallbackDriver::open(open, &pair);
        let adopted = driver.backend.stats().adopted;
        if !gives_callbacks_later() {
            assert_eq!(adopted, 0);
            driver.run_for(Duration::from_millis(500));
            assert_eq!(driver.events, [], "it stays plain TCP");
            driver.backend.shut_down().expect("shut down");
            sender.stop();
            return Ok(());
        }
        assert_eq!(adopted, 1);
        let conn = driver.started();
        driver.set(conn, 50, FOREVER_NS);
        let paced_from = now_ns() + 100 * MS;
        driver.run_for(Duration::from_millis(800));
        let shut = now_ns();
        driver.backend.shut_down().expect("shut down");
        assert_eq!(left_behind(&pair), Vec::<String>::new());
        sleep(Duration::from_millis(300));
        let end = now_ns();
        let written = sender.stop();
        let trace = receiver.finish().remove(0);
        assert_eq!(trace.last().map(|last| last.1), Some(written));
        let kept = ensure_kept(&trace, paced_from, shut, WIRE_V4, 50.0);
        assert_lifted(&trace, shut + SETTLE_MS * MS, end, 50.0);
        let free = wire_mbit(&trace, shut + SETTLE_MS * MS, end, WIRE_V4);
        println!("given back {free:.0} Mbit/s");
        ensure!(free > 250.0, "{free} Mbit/s after the shut-down");
        kept
    });
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
    let mut driver = FallbackDriver::open(open, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let to = receiver.address;
    let (say, heard) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel::<u16>();
    let writer = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(to).expect("connect");
        // 40 Mbit/s of payload.
        fallback::sockopt::set_max_pacing_rate(&stream, 5_000_000);
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

/// Finds the mount of cgroup v2.
fn cgroup_root() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounted");
    let root = mounts.lines().find_map(|line| {
        line.contains(" cgroup2 ")
            .then(|| line.split(' ').nth(1))
            .flatten()
    });
    root.expect("cgroup v2").into()
}

#[test]
fn only_sockets_of_the_cgroup_are_followed() {
    let _alone = alone();
    let pair = cubic_pair();
    // Threads of a process share its cgroup: an empty one has no socket.
    let empty = cgroup_root().join(format!("rwt-{}", pair.tag));
    std::fs::create_dir(&empty).expect("make a cgroup (root)");
    let elsewhere = BackendConfig {
        cgroup: Some(empty.clone()),
        ..config(&pair)
    };
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 2);
    let before = Bulk::start(&pair.left, receiver.address);
    let mut driver = FallbackDriver::with(open, &pair, &elsewhere);
    let sender = Bulk::start(&pair.left, receiver.address);
    driver.run_for(Duration::from_millis(200));
    assert!(driver.events.is_empty(), "{:?}", driver.events);
    assert_eq!(driver.backend.stats().adopted, 0);
    before.stop();
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
    std::fs::remove_dir(&empty).expect("remove the cgroup");
}

#[test]
fn another_table_size_replaces_what_was_pinned() {
    best_of_three(|| {
        let _alone = alone();
        let pair = cubic_pair();
        let mut first = FallbackDriver::open(open, &pair);
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let sender = Bulk::start(&pair.left, receiver.address);
        let conn = first.started();
        first.set(conn, 20, FOREVER_NS);
        first.run_for(Duration::from_millis(200));
        // As a crash would: nothing is undone, the rate never expires.
        first.crash();
        let larger = BackendConfig {
            max_flows: 2048,
            ..config(&pair)
        };
        let from = now_ns();
        let mut second = FallbackDriver::with(open, &pair, &larger);
        // Where it gets no callbacks, it is plain TCP from here on.
        let conn = gives_callbacks_later().then(|| second.started());
        second.run_for(Duration::from_millis(300));
        let to = now_ns();
        if let Some(conn) = conn {
            second.set(conn, 50, FOREVER_NS);
        }
        second.run_for(Duration::from_millis(600));
        let end = now_ns();
        second.backend.shut_down().expect("shut down");
        sender.stop();
        let trace = receiver.finish().remove(0);
        assert_lifted(&trace, from + 100 * MS, to, 20.0);
        let free = wire_mbit(&trace, from + 100 * MS, to, WIRE_V4);
        let kept = conn.map_or(Ok(()), |_| {
            ensure_kept(&trace, to + 100 * MS, end, WIRE_V4, 50.0)
        });
        ensure!(
            free > 250.0,
            "the earlier daemon's rate was lifted: {free} Mbit/s"
        );
        kept
    });
}

#[test]
fn two_daemons_of_one_instance_are_refused() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = FallbackDriver::open(open, &pair);
    let error = open(&config(&pair)).err().expect("refused");
    assert!(
        error.to_string().contains("another daemon of the instance"),
        "{error}"
    );
    driver.backend.shut_down().expect("shut down");
}

#[test]
fn a_directory_that_is_no_cgroup_is_refused_with_what_to_do() {
    let pair = cubic_pair();
    for path in ["/nowhere", "/tmp"] {
        let wrong = BackendConfig {
            cgroup: Some(path.into()),
            ..config(&pair)
        };
        let error = open(&wrong).err().expect("refused").to_string();
        assert!(
            error.contains(path) && error.contains("pacing.cgroup"),
            "{error}"
        );
    }
}

#[test]
fn a_limited_flow_is_told() {
    fallback::demand::a_limited_flow_is_told(open, RIGHT_V4);
}

#[test]
fn a_limited_flow_is_told_over_ipv6() {
    fallback::demand::a_limited_flow_is_told(open, RIGHT_V6);
}

#[test]
fn growing_demand_is_an_event() {
    fallback::demand::growing_demand_is_an_event(open, RIGHT_V4);
}

#[test]
fn growing_demand_is_an_event_over_ipv6() {
    fallback::demand::growing_demand_is_an_event(open, RIGHT_V6);
}

#[test]
fn a_receiver_that_does_not_read_gives_its_slot_back() {
    fallback::demand::a_receiver_that_does_not_read_gives_its_slot_back(open, RIGHT_V4, GIVEN_BACK);
}

#[test]
fn a_receiver_that_does_not_read_gives_its_slot_back_over_ipv6() {
    fallback::demand::a_receiver_that_does_not_read_gives_its_slot_back(open, RIGHT_V6, GIVEN_BACK);
}

#[test]
fn a_receiver_that_is_gone_ends_the_flowlet() {
    fallback::demand::a_receiver_that_is_gone_ends_the_flowlet(open, RIGHT_V4);
}

#[test]
fn a_receiver_that_is_gone_ends_the_flowlet_over_ipv6() {
    fallback::demand::a_receiver_that_is_gone_ends_the_flowlet(open, RIGHT_V6);
}

#[test]
fn a_cleared_rate_does_not_outlive_silence() {
    fallback::demand::a_silent_socket_keeps_no_rate(open, RIGHT_V4, RateEnd::Cleared);
}

#[test]
fn the_kill_switch_reaches_silent_sockets() {
    fallback::demand::a_silent_socket_keeps_no_rate(open, RIGHT_V6, RateEnd::KillSwitch);
}

#[test]
fn a_lease_that_lapses_in_silence_leaves_no_rate() {
    fallback::demand::a_silent_socket_keeps_no_rate(open, RIGHT_V4, RateEnd::Lapsed);
}

#[test]
fn a_daemon_killed_beside_a_silent_socket_leaves_no_rate() {
    fallback::demand::a_silent_socket_keeps_no_rate(open, RIGHT_V6, RateEnd::Killed);
}

#[test]
fn the_smallest_rate_that_is_cleared_holds_nothing_up() {
    fallback::demand::the_smallest_rate_holds_nothing_up_after_its_end(
        open,
        RIGHT_V4,
        RateEnd::Cleared,
        200_000,
    );
}

#[test]
fn the_smallest_rate_under_the_kill_switch_holds_nothing_up() {
    fallback::demand::the_smallest_rate_holds_nothing_up_after_its_end(
        open,
        RIGHT_V6,
        RateEnd::KillSwitch,
        200_000,
    );
}

#[test]
fn the_smallest_rate_that_lapses_holds_nothing_up() {
    fallback::demand::the_smallest_rate_holds_nothing_up_after_its_end(
        open,
        RIGHT_V4,
        RateEnd::Lapsed,
        200_000,
    );
}

#[test]
fn the_smallest_rate_of_a_killed_daemon_holds_nothing_up() {
    fallback::demand::the_smallest_rate_holds_nothing_up_after_its_end(
        open,
        RIGHT_V6,
        RateEnd::Killed,
        200_000,
    );
}

#[test]
fn slow_flows_all_end() {
    fallback::demand::slow_flows_all_end(open, RIGHT_V4, 150_000);
}

#[test]
fn slow_flows_all_end_over_ipv6() {
    fallback::demand::slow_flows_all_end(open, RIGHT_V6, 150_000);
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
    let mut first = FallbackDriver::open(open, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let to = receiver.address;
    let (say, heard) = std::sync::mpsc::channel::<usize>();
    let (tell, told) = std::sync::mpsc::channel::<u16>();
    let writer = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(to).expect("connect");
        // 40 Mbit/s of payload.
        fallback::sockopt::set_max_pacing_rate(&stream, 5_000_000);
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
    let mut second = FallbackDriver::open(open, &pair);
    let (_, facts) = second.starts(1).remove(0);
    assert_eq!(facts.app_max_bytes_per_s, Some(5_000_000));
    second.backend.shut_down().expect("shut down");
    assert_eq!(max_pacing_rate(&pair, port).as_deref(), Some("40000000bps"));
    drop(say);
    writer.join().expect("writer");
    receiver.finish();
}

/// Makes the pinned maps another version's: the name of one pin states the layout.
fn forget_layout(pair: &NamespacePair) {
    let folders = left_behind(pair).into_iter().flat_map(|folder| {
        ["sock_ops", "bpf/sock_ops"].map(|below| Path::new(&folder).join(below))
    });
    let pins = folders
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten();
    let layouts: Vec<_> = pins
        .map(|pin| pin.expect("readable").path())
        .filter(|pin| pin.to_string_lossy().contains("/layout-"))
        .collect();
    assert_eq!(layouts.len(), 1, "{layouts:?}");
    std::fs::remove_file(&layouts[0]).expect("remove a pin");
}

/// Has a connection wait behind a rate of 0.5 Mbit/s, which its socket shows.
fn hold(driver: &mut FallbackDriver, client: &mut EchoClient) {
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
    let mut driver = FallbackDriver::open(open, &pair);
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
    let mut first = FallbackDriver::with(open, &pair, &config);
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
    let mut second = FallbackDriver::with(open, &pair, &config);
    wait_for("its own maximum", Duration::from_secs(5), || {
        second.poll();
        (get_max_pacing(&client.stream) == 5_000_000).then_some(())
    });
    second.backend.shut_down().expect("shut down");
}

include!(concat!(env!("OUT_DIR"), "/other_product.rs"));
use skel::{OtherProductSkel, OtherProductSkelBuilder};

/// Another product's program on the whole hierarchy, for connections to one port.
struct OtherProduct {
    skel: OtherProductSkel<'static>,
    _link: Link,
}

impl OtherProduct {
    /// Attaches it. `asks`: it asks for a callback per round-trip time, at each new connection.
    fn attach(port: u16, asks: bool) -> Self {
        // The skeleton borrows it for its whole life.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = OtherProductSkelBuilder::default()
            .open(storage)
            .expect("open");
        let constants = open.maps.rodata_data.as_deref_mut().expect("constants");
        constants.port = port.into();
        constants.asks = asks.into();
        let skel = open.load().expect("load");
        let root = std::fs::File::open(cgroup_root()).expect("cgroup v2");
        let link = skel
            .progs
            .other_product
            .attach_cgroup(root.as_raw_fd())
            .expect("attach");
        Self { skel, _link: link }
    }

    fn count(&self) -> u64 {
        let data = self
            .skel
            .maps
            .bss
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let data = data.expect("read").expect("one entry");
        u64::from_ne_bytes(data[..8].try_into().expect("eight bytes"))
    }
}

/// Callbacks that a program has asked for go on after the daemon, whether it came before or after.
#[test]
fn callbacks_of_another_product_go_on() {
    for first in [true, false] {
        let _alone = alone();
        let pair = cubic_pair();
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let port = receiver.address.port();
        let before = first.then(|| OtherProduct::attach(port, true));
        let mut driver = FallbackDriver::open(open, &pair);
        let other = before.unwrap_or_else(|| OtherProduct::attach(port, true));
        let sender = Bulk::start(&pair.left, receiver.address);
        driver.started();
        driver.backend.shut_down().expect("shut down");
        let count = other.count();
        assert!(count > 0, "its callbacks come while the daemon runs");
        wait_for("more callbacks", Duration::from_secs(2), || {
            (other.count() > count).then_some(())
        });
        sender.stop();
        receiver.finish();
    }
}

/// Without another product, a connection has no callbacks after the daemon.
#[test]
fn the_daemon_s_own_callbacks_end_with_it() {
    let _alone = alone();
    let pair = cubic_pair();
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let mut driver = FallbackDriver::open(open, &pair);
    let sender = Bulk::start(&pair.left, receiver.address);
    driver.started();
    driver.backend.shut_down().expect("shut down");
    let witness = OtherProduct::attach(receiver.address.port(), false);
    sleep(Duration::from_millis(300));
    assert_eq!(witness.count(), 0);
    sender.stop();
    receiver.finish();
}
