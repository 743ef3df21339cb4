//! Back ends on this kernel: checks that both must pass, and those of one of them.

mod demand;
mod flowlets;
mod line_rate;
mod observe;
mod own_maximum;
mod owner;
mod probe;
mod sock_ops;
mod tc_htb;
mod tunnels;

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use ratewright_endpointd::backend::{
    BackendConfig, BackendKind, Conn, FlowEvent, FlowEventKind, FlowFacts, PacingBackend, open,
};
use ratewright_endpointd::clock::now_ns;

use crate::netns::cubic::cubic_pair;
use crate::netns::tries::best_of_three;
use crate::netns::{
    ArrivalTrace, BulkReceiver, BulkSender, NamespacePair, assert_lifted, payload_rate_bps,
    settled_rate_bps, wait_for,
};

pub const MS: u64 = 1_000_000;
pub const MBIT: u64 = 1_000_000;
/// A lease that outlives any test.
pub const FOREVER_NS: u64 = u64::MAX / 2;

/// Flows of two tests at once would take each other's processor time. nextest knows that
/// (`.config/nextest.toml`); plain `cargo test` does not.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn config(pair: &NamespacePair) -> BackendConfig {
    config_of(&pair.tag)
}

fn config_of(instance: &str) -> BackendConfig {
    BackendConfig {
        instance: instance.to_owned(),
        max_flows: 1024,
        min_flowlet_bytes: 15_000,
        cgroup: None,
        device: Some("v0".to_owned()),
        take_over: true,
        network_namespaces: Vec::new(),
        tunnel_bytes: 0,
        observe: false,
    }
}

/// Finds the mount of cgroup v2.
pub fn cgroup_root() -> std::path::PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounted");
    let root = mounts.lines().find_map(|line| {
        line.contains(" cgroup2 ")
            .then(|| line.split(' ').nth(1))
            .flatten()
    });
    root.expect("cgroup v2").into()
}

/// A back end in the calling thread's namespace, and all its events so far.
pub struct Driver {
    pub backend: Box<dyn PacingBackend>,
    pub events: Vec<FlowEvent>,
    crashed: bool,
}

impl Drop for Driver {
    /// A failing test leaves no program behind; a second shut-down is harmless.
    fn drop(&mut self) {
        if !self.crashed {
            let _ = self.backend.shut_down();
        }
    }
}

impl Driver {
    pub fn open(kind: BackendKind, pair: &NamespacePair) -> Self {
        Self::with(kind, pair, &config(pair))
    }

    pub fn with(kind: BackendKind, pair: &NamespacePair, config: &BackendConfig) -> Self {
        pair.left.enter();
        Self::here(kind, config)
    }

    /// In the namespace that the thread is in.
    pub fn here(kind: BackendKind, config: &BackendConfig) -> Self {
        let backend = open(Some(kind), config).unwrap_or_else(|error| panic!("{error}"));
        Self {
            backend,
            events: Vec::new(),
            crashed: false,
        }
    }

    /// Drops the back end without a shut-down, as a killed daemon does.
    pub fn crash(mut self) {
        self.crashed = true;
    }

    pub fn poll(&mut self) {
        self.backend
            .poll_events(now_ns(), &mut self.events)
            .expect("poll");
    }

    /// Polls for `time`, as the daemon's loop would.
    pub fn run_for(&mut self, time: Duration) {
        let end = now_ns() + u64::try_from(time.as_nanos()).expect("short");
        while now_ns() < end {
            self.poll();
            // The daemon wakes on the descriptor; polling every millisecond is close to that.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn until<T>(&mut self, what: &str, found: impl Fn(&[FlowEvent]) -> Option<T>) -> T {
        wait_for(what, Duration::from_secs(10), || {
            self.poll();
            found(&self.events)
        })
    }

    pub fn starts(&mut self, count: usize) -> Vec<(Conn, FlowFacts)> {
        self.until(&format!("{count} starts"), |events| {
            let starts: Vec<_> = events
                .iter()
                .filter_map(|event| match &event.kind {
                    FlowEventKind::Start(facts) => Some((event.conn, facts.clone())),
                    _ => None,
                })
                .collect();
            (starts.len() >= count).then_some(starts)
        })
    }

    /// Number of starts so far.
    pub fn start_count(&mut self) -> usize {
        self.poll();
        let starts = self
            .events
            .iter()
            .filter(|event| matches!(event.kind, FlowEventKind::Start(_)));
        starts.count()
    }

    pub fn started(&mut self) -> Conn {
        self.starts(1)[0].0
    }

    pub fn set(&mut self, conn: Conn, mbit: u64, expires_ns: u64) {
        self.backend
            .set_rate(conn, mbit * MBIT, expires_ns)
            .expect("set a rate");
        self.poll();
    }

    /// Sets a rate that does not end, and tells the kernel at once.
    pub fn set_bps(&mut self, conn: Conn, rate_bps: u64) {
        self.backend
            .set_rate(conn, rate_bps, FOREVER_NS)
            .expect("set a rate");
        self.backend.flush().expect("flush");
    }
}

/// Mbit/s on the wire between two times, seen at the receiver.
pub fn wire_mbit(trace: &ArrivalTrace, from_ns: u64, to_ns: u64, wire_per_payload: f64) -> f64 {
    payload_rate_bps(trace, from_ns, to_ns) * wire_per_payload / 1e6
}

/// A rate is held within 10 %, on average or between the pauses of a busy machine, and exceeded by
/// no more on average: windows are short, and may cut one burst of 64 KiB at either end.
pub fn ensure_kept(
    trace: &ArrivalTrace,
    from_ns: u64,
    to_ns: u64,
    wire_per_payload: f64,
    wanted_mbit: f64,
) -> Result<()> {
    let settled = settled_rate_bps(trace, from_ns, to_ns) * wire_per_payload / 1e6;
    let mean = wire_mbit(trace, from_ns, to_ns, wire_per_payload);
    println!("{settled:.1} Mbit/s of {wanted_mbit} (mean {mean:.1})");
    let near = |mbit: f64| (mbit / wanted_mbit - 1.0).abs() < 0.10;
    assert!(
        mean < 1.10 * wanted_mbit,
        "{mean:.1} Mbit/s on average, of {wanted_mbit}"
    );
    ensure!(
        near(mean) || (near(settled) && mean < wanted_mbit),
        "{settled:.1} Mbit/s, {mean:.1} on average, of {wanted_mbit}"
    );
    Ok(())
}

/// A bulk flow keeps each of `rates_mbit` within 2 %.
pub fn rates_are_kept(kind: BackendKind, address: &str, wire_per_payload: f64, rates_mbit: &[u64]) {
    best_of_three(|| try_rates(kind, address, wire_per_payload, rates_mbit));
}

fn try_rates(
    kind: BackendKind,
    address: &str,
    wire_per_payload: f64,
    rates_mbit: &[u64],
) -> Result<()> {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    let mut steps = Vec::new();
    for rate in rates_mbit {
        driver.set(conn, *rate, FOREVER_NS);
        let begin = now_ns();
        // The rest of the step holds thirty windows of 50 ms, enough for their median.
        driver.run_for(Duration::from_millis(1600));
        // The first 100 ms belong to the change.
        steps.push((*rate, begin + 100 * MS, now_ns()));
    }
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    let trace = receiver.finish().remove(0);
    let mut kept = Ok(());
    for (rate, from, to) in steps {
        // A sender that waits for a processor sends nothing, and HTB makes up for one burst alone:
        // such pauses lower the mean, not the rate that is kept between them.
        let error = |payload_bps: f64| {
            (payload_bps * wire_per_payload / (rate * MBIT) as f64 - 1.0) * 100.0
        };
        let settled = error(settled_rate_bps(&trace, from, to));
        let mean = error(payload_rate_bps(&trace, from, to));
        println!("{address} {rate} Mbit/s: {settled:+.3} % (mean {mean:+.3} %)");
        assert!(
            mean < 2.0,
            "{rate} Mbit/s is exceeded by {mean:.2} % on average"
        );
        if settled.abs() >= 2.0 {
            kept = kept.and(Err(anyhow!("{rate} Mbit/s is off by {settled:.2} %")));
        }
    }
    driver.backend.shut_down().expect("shut down");
    kept
}

/// A lapsed lease leaves plain TCP at most `settle_ms` later, and is counted. A renewal does not
/// revive the rate; a new rate does.
pub fn an_expired_rate_is_lifted(kind: BackendKind, wire_per_payload: f64, settle_ms: u64) {
    best_of_three(|| try_expiry(kind, wire_per_payload, settle_ms));
}

fn try_expiry(kind: BackendKind, wire_per_payload: f64, settle_ms: u64) -> Result<()> {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, crate::netns::RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();

    let mut expiry = now_ns() + 300 * MS;
    driver.set(conn, 50, expiry);
    driver.run_for(Duration::from_millis(200));
    // In time: the rate stays in force.
    expiry = now_ns() + 400 * MS;
    driver.backend.renew(expiry).expect("renew");
    let paced_from = now_ns() - 100 * MS;
    while now_ns() < expiry + 200 * MS {
        driver.run_for(Duration::from_millis(5));
    }
    // Too late: nothing to extend.
    driver.backend.renew(now_ns() + 60_000 * MS).expect("renew");
    driver.run_for(Duration::from_millis(200));
    let free_to = now_ns();
    assert_eq!(driver.backend.stats().expired, 1, "one rate ran out");
    driver.set(conn, 50, FOREVER_NS);
    let again = now_ns();
    driver.run_for(Duration::from_millis(600));
    let end = now_ns();
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    let trace = receiver.finish().remove(0);

    // While the lease was valid, and again under a new rate.
    let kept = ensure_kept(&trace, paced_from, expiry, wire_per_payload, 50.0);
    let kept_again = ensure_kept(&trace, again + 100 * MS, end, wire_per_payload, 50.0);
    let lifted = assert_lifted(&trace, expiry, free_to, 50.0);
    let free = wire_mbit(&trace, expiry + settle_ms * MS, free_to, wire_per_payload);
    let lifted_ms = (lifted - expiry) / MS;
    println!("lifted {lifted_ms} ms after expiry, then {free:.0} Mbit/s");
    driver.backend.shut_down().expect("shut down");
    // A busy core delays the timer that looks at leases.
    ensure!(lifted_ms <= settle_ms, "lifted after {lifted_ms} ms");
    ensure!(free > 250.0, "still slow after the lease: {free} Mbit/s");
    kept.and(kept_again)
}

/// Writes in bursts with pauses: start, idle, resume, idle and close, in that order, each once.
pub fn starts_and_ends_are_seen(kind: BackendKind, address: &str) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let to = receiver.address;
    let (say, heard) = std::sync::mpsc::channel::<usize>();
    let writer = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(to).expect("connect");
        let local = stream.local_addr().expect("connected");
        for bytes in heard {
            stream.write_all(&vec![1u8; bytes]).expect("write");
        }
        local
    });
    let expect = |driver: &mut Driver, kinds: &[&str]| {
        wait_for(
            &format!("the events {kinds:?}"),
            Duration::from_secs(5),
            || {
                driver.poll();
                (outline(&driver.events).len() >= kinds.len()).then_some(())
            },
        );
        driver.run_for(Duration::from_millis(20));
        assert_eq!(outline(&driver.events), kinds);
    };

    // A mouse is never reported.
    say.send(5_000).expect("writer");
    driver.run_for(Duration::from_millis(30));
    assert!(driver.events.is_empty(), "{:?}", driver.events);
    say.send(60_000).expect("writer");
    expect(&mut driver, &["start", "idle"]);
    let (conn, facts) = driver.starts(1).remove(0);
    assert_eq!(
        (facts.tuple.dst, facts.tuple.dst_port),
        (to.ip(), to.port())
    );
    assert_eq!(facts.tuple.protocol, 6);
    assert_eq!(facts.app_max_bytes_per_s, None);
    // Back before the daemon ended the flowlet.
    say.send(60_000).expect("writer");
    expect(&mut driver, &["start", "idle", "resume", "idle"]);
    // The daemon ends it: the next backlog is a new flowlet, which must again be large enough.
    driver.backend.clear(conn).expect("clear");
    say.send(5_000).expect("writer");
    driver.run_for(Duration::from_millis(30));
    say.send(60_000).expect("writer");
    expect(
        &mut driver,
        &["start", "idle", "resume", "idle", "start", "idle"],
    );
    drop(say);
    let local = writer.join().expect("writer");
    assert_eq!(
        (facts.tuple.src, facts.tuple.src_port),
        (local.ip(), local.port())
    );
    expect(
        &mut driver,
        &["start", "idle", "resume", "idle", "start", "idle", "close"],
    );
    assert!(
        driver.events.iter().all(|event| event.conn == conn),
        "one connection, one handle"
    );
    assert_eq!(driver.backend.stats().connections, 0);
    // A handle of a closed connection is stale.
    driver
        .backend
        .set_rate(conn, 50 * MBIT, FOREVER_NS)
        .expect("ignored");
    driver.backend.clear(conn).expect("ignored");
    let received: u64 = receiver
        .finish()
        .iter()
        .filter_map(|trace| trace.last())
        .map(|last| last.1)
        .sum();
    assert_eq!(received, 5_000 + 60_000 + 60_000 + 5_000 + 60_000);
    driver.backend.shut_down().expect("shut down");
}

/// Outline of the starts, ends and pauses, without pauses below 2 ms: the backlog can be empty for
/// a moment while a large write is still being copied.
fn outline(events: &[FlowEvent]) -> Vec<&'static str> {
    let mut kept: Vec<(u64, &'static str)> = Vec::new();
    for event in events {
        let name = match event.kind {
            FlowEventKind::Start(_) => "start",
            FlowEventKind::Idle => "idle",
            FlowEventKind::Resume => "resume",
            FlowEventKind::Close => "close",
            _ => continue,
        };
        match kept.last() {
            Some((idle_ns, _)) if name == "resume" && event.at_ns - idle_ns < 2 * MS => {
                kept.pop();
            }
            _ => kept.push((event.at_ns, name)),
        }
    }
    kept.into_iter().map(|(_, name)| name).collect()
}

/// Of more connections than slots, the rest run as plain TCP and are counted. Every byte arrives,
/// and the slots come back.
pub fn the_table_is_bounded(kind: BackendKind) {
    const SLOTS: usize = 4;
    const FLOWS: usize = 10;
    let _alone = alone();
    let pair = cubic_pair();
    let limited = BackendConfig {
        max_flows: SLOTS as u32,
        ..config(&pair)
    };
    let mut driver = Driver::with(kind, &pair, &limited);
    let receiver = BulkReceiver::start(&pair.right, crate::netns::RIGHT_V4, FLOWS);
    let mut open_streams = Vec::new();
    for _ in 0..FLOWS {
        let to = receiver.address;
        let stream = pair.left.spawn(move || {
            let mut stream = TcpStream::connect(to).expect("connect");
            stream.write_all(&[3u8; 40_000]).expect("write");
            stream
        });
        open_streams.push(stream.join().expect("connected"));
    }
    driver.starts(SLOTS);
    driver.run_for(Duration::from_millis(50));
    assert_eq!(
        driver.starts(SLOTS).len(),
        SLOTS,
        "no more starts than slots"
    );
    let slots: std::collections::BTreeSet<_> = driver
        .starts(SLOTS)
        .iter()
        .map(|start| start.0.slot)
        .collect();
    assert_eq!(slots.len(), SLOTS, "each its own");
    let stats = driver.backend.stats();
    assert_eq!(
        (stats.connections, stats.table_full),
        (SLOTS as u64, (FLOWS - SLOTS) as u64)
    );
    drop(open_streams);
    wait_for("free slots", Duration::from_secs(5), || {
        driver.poll();
        (driver.backend.stats().connections == 0).then_some(())
    });
    let received: u64 = receiver
        .finish()
        .iter()
        .filter_map(|trace| trace.last())
        .map(|last| last.1)
        .sum();
    assert_eq!(received, (FLOWS * 40_000) as u64);

    // The next connection has a slot that one of these had.
    driver.events.clear();
    let receiver = BulkReceiver::start(&pair.right, crate::netns::RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    // Slots are used first in, first out, and all of them had one user.
    assert_eq!(conn.use_count, 1, "the second user of its slot");
    driver.set(conn, 100, FOREVER_NS);
    driver.until("a paced transmission", |events| {
        events
            .iter()
            .any(|event| matches!(event.kind, FlowEventKind::FirstPaced { .. }))
            .then_some(())
    });
    driver.backend.clear_all().expect("clear all");
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

/// The kill switch lifts every rate at once.
pub fn clearing_all_lifts_every_rate(kind: BackendKind, wire_per_payload: f64) {
    best_of_three(|| try_clearing(kind, wire_per_payload));
}

fn try_clearing(kind: BackendKind, wire_per_payload: f64) -> Result<()> {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, crate::netns::RIGHT_V4, 2);
    let senders = [(); 2].map(|()| BulkSender::start(&pair.left, receiver.address));
    for (conn, _) in driver.starts(2) {
        driver.set(conn, 20, FOREVER_NS);
    }
    driver.run_for(Duration::from_millis(1000));
    let cleared = now_ns();
    driver.backend.clear_all().expect("clear all");
    driver.run_for(Duration::from_millis(400));
    let end = now_ns();
    for sender in senders {
        sender.stop();
    }
    let mut right = Ok(());
    for trace in receiver.finish() {
        let from = cleared - 850 * MS;
        right = right.and(ensure_kept(&trace, from, cleared, wire_per_payload, 20.0));
        assert_lifted(&trace, cleared + 100 * MS, end, 20.0);
        let free = wire_mbit(&trace, cleared + 100 * MS, end, wire_per_payload);
        println!("cleared: {free:.0} Mbit/s");
        if free <= 200.0 {
            right = right.and(Err(anyhow!("still slow: {free} Mbit/s")));
        }
    }
    driver.backend.shut_down().expect("shut down");
    right
}
