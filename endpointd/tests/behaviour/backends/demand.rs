//! Reports of use and stalls by a back end, and the rates of idle sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use ratewright_endpointd::backend::{BackendKind, Conn, FlowEvent, FlowEventKind, Usage};
use ratewright_endpointd::clock::now_ns;

use super::{Driver, FOREVER_NS, MBIT, MS, alone};
use crate::netns::cubic::cubic_pair;
use crate::netns::{
    BulkReceiver, BulkSender, Namespace, NamespacePair, RIGHT_V4, payload_rate_bps, run, wait_for,
};

/// Writer thread that writes on command.
struct Writer {
    say: Sender<usize>,
    done: mpsc::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(namespace: &Namespace, to: SocketAddr) -> Self {
        let (say, heard) = mpsc::channel::<usize>();
        let (tell, done) = mpsc::channel();
        let thread = namespace.spawn(move || {
            let mut stream = TcpStream::connect(to).expect("connect");
            stream.set_nodelay(true).expect("set");
            for bytes in heard {
                stream.write_all(&vec![5u8; bytes]).expect("write");
                let _ = tell.send(());
            }
        });
        Self { say, done, thread }
    }

    fn write(&self, bytes: usize) {
        self.say.send(bytes).expect("writer");
    }

    /// Waits until the socket has accepted all bytes.
    fn written(&self) {
        self.done.recv().expect("writer");
    }

    fn stop(self) {
        drop(self.say);
        self.thread.join().expect("writer");
    }
}

/// Bytes of a flowlet's beginning.
const OPENING_BYTES: usize = 60_000;

/// Ends a writer, and returns when the last of all its bytes arrived: the opening's and `more`.
fn last_arrival(writer: Writer, receiver: BulkReceiver, more: usize) -> u64 {
    writer.stop();
    let trace = receiver.finish().remove(0);
    let (last_ns, total) = *trace.last().expect("data");
    assert_eq!(total, (OPENING_BYTES + more) as u64);
    last_ns
}

impl Driver {
    pub fn usage_of(&mut self, conn: Conn) -> Option<Usage> {
        let mut usage = Vec::new();
        self.backend.usage(now_ns(), &mut usage);
        usage.into_iter().find(|usage| usage.conn == conn)
    }

    /// Starts a flowlet of [`OPENING_BYTES`], to which its writer adds on command.
    fn writing(&mut self, pair: &NamespacePair, address: &str) -> (BulkReceiver, Writer, Conn) {
        let receiver = BulkReceiver::start(&pair.right, address, 1);
        let writer = Writer::start(&pair.left, receiver.address);
        writer.write(OPENING_BYTES);
        let conn = self.started();
        writer.written();
        (receiver, writer, conn)
    }

    /// Waits until a watched flow is limited by its rate, and returns since when.
    fn limited(&mut self) -> u64 {
        self.until("a limited flow", |events| {
            let limited = |event: &&FlowEvent| event.kind == FlowEventKind::Limited;
            events.iter().find(limited).map(|event| event.at_ns)
        })
    }

    fn count(&self, kind: &FlowEventKind) -> usize {
        let same = |event: &&FlowEvent| event.kind == *kind;
        self.events.iter().filter(same).count()
    }
}

/// A bulk flow uses its rate, is limited by it, and reports that once per watch; a stale watch
/// reports nothing.
pub fn a_limited_flow_is_told(kind: BackendKind, address: &str) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.set(conn, 20, FOREVER_NS);
    driver.run_for(Duration::from_millis(500));
    assert_eq!(driver.count(&FlowEventKind::Limited), 0, "nobody watches");
    let (from, first) = (now_ns(), driver.usage_of(conn).expect("rated and running"));
    driver.run_for(Duration::from_millis(1_500));
    let (to, last) = (now_ns(), driver.usage_of(conn).expect("rated and running"));
    let mbit = |bytes: u64| bytes as f64 * 8e3 / (to - from) as f64;
    let (sent, acked) = (
        mbit(last.sent_bytes - first.sent_bytes),
        mbit(last.acked_bytes - first.acked_bytes),
    );
    println!("sent {sent:.2}, acknowledged {acked:.2} Mbit/s");
    assert!((10.0..22.0).contains(&sent), "{sent} Mbit/s of 20");
    assert!((10.0..22.0).contains(&acked), "{acked} Mbit/s of 20");
    assert!(
        last.limited_ns > from,
        "limited {} ms before",
        (to - last.limited_ns) / MS
    );
    for times in 1..=3 {
        driver.backend.watch(conn);
        driver.until("a limited flow", |events| {
            let limited = events
                .iter()
                .filter(|event| event.conn == conn && event.kind == FlowEventKind::Limited);
            (limited.count() >= times).then_some(())
        });
    }
    driver.run_for(Duration::from_millis(100));
    assert_eq!(
        driver.count(&FlowEventKind::Limited),
        3,
        "once for each watch"
    );
    driver.backend.watch(Conn {
        use_count: conn.use_count + 1,
        ..conn
    });
    driver.run_for(Duration::from_millis(100));
    assert_eq!(driver.count(&FlowEventKind::Limited), 3, "a stale watch");
    driver.backend.clear(conn).expect("clear");
    assert_eq!(driver.usage_of(conn), None, "no rate, no use of it");
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

/// An application that writes little is not limited by a rate far above it; as soon as it writes
/// more than the rate lets through, it is.
pub fn growing_demand_is_an_event(kind: BackendKind, address: &str) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let (receiver, writer, conn) = driver.writing(&pair, address);
    driver.set(conn, 20, FOREVER_NS);
    driver.run_for(Duration::from_millis(300));
    driver.backend.watch(conn);
    let quiet = now_ns();
    for _ in 0..100 {
        // Small enough that 20 Mbit/s never holds it back: 310 bytes take 124 µs.
        writer.write(310);
        writer.written();
        driver.run_for(Duration::from_millis(2));
    }
    assert_eq!(driver.count(&FlowEventKind::Limited), 0);
    let mut usage = Vec::new();
    driver.backend.usage(now_ns(), &mut usage);
    assert!(
        usage.iter().all(|usage| usage.limited_ns < quiet),
        "{usage:?}"
    );
    let grows = now_ns();
    writer.write(400_000);
    let limited_ns = driver.limited();
    println!(
        "limited {} us after the write",
        (limited_ns - grows) / 1_000
    );
    driver.backend.clear(conn).expect("clear");
    writer.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

/// A flow that nothing but its path of 10 Mbit/s holds back uses a third of its rate: the rate does
/// not limit it, and watches of 12 Mbit/s find nothing to tell.
pub fn what_a_slow_link_holds_back_is_not_limited(kind: BackendKind, address: &str) {
    let _alone = alone();
    let pair = cubic_pair();
    let _link = Bottleneck::of_mbit(&pair, 10);
    not_limited(kind, &pair, address, |_| {});
}

/// Paces a bulk flow at 30 and 12 Mbit/s, of which something else lets 10 through.
pub fn not_limited(
    kind: BackendKind,
    pair: &NamespacePair,
    address: &str,
    prepare: fn(&TcpStream),
) {
    let mut driver = Driver::open(kind, pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let to = receiver.address;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let sender = pair.left.spawn(move || {
        let mut stream = TcpStream::connect(to).expect("connect");
        for write in 0.. {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            // The flowlet runs by then.
            if write == 16 {
                prepare(&stream);
            }
            stream.write_all(&[7; 1 << 14]).expect("write");
        }
    });
    let conn = driver.started();
    driver.set(conn, 30, FOREVER_NS);
    driver.run_for(Duration::from_millis(1_500));
    let mut limited = 0;
    for _ in 0..10 {
        let from_ns = now_ns();
        driver.run_for(Duration::from_millis(100));
        let usage = driver.usage_of(conn).expect("rated and running");
        limited += u32::from(usage.limited_ns >= from_ns);
    }
    // After a pause of the machine acknowledgements come at once, and any rate holds the flow for
    // a moment.
    assert!(
        limited <= 2,
        "30 of 10 Mbit/s limit it in {limited} of 10 windows"
    );
    driver.set(conn, 12, FOREVER_NS);
    driver.run_for(Duration::from_millis(1_000));
    // A limited flow is told in every watch.
    for _ in 0..10 {
        driver.backend.watch(conn);
        driver.run_for(Duration::from_millis(200));
    }
    let told = driver.count(&FlowEventKind::Limited);
    assert!(told <= 2, "told in {told} of 10 watches");
    stop.store(true, Ordering::Relaxed);
    sender.join().expect("sender");
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

/// A watched flow is not held: what takes a second at its rate is there at once, whether or not
/// anybody answers the report that its rate is used up.
pub fn a_watched_flow_is_not_held(kind: BackendKind, address: &str) {
    const BURST: usize = 60_000;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let (receiver, writer, conn) = driver.writing(&pair, address);
    driver.set_bps(conn, 500_000);
    driver.backend.watch(conn);
    // Small writes, of which the rate lets all through, keep the flowlet running.
    for _ in 0..100 {
        writer.write(50);
        writer.written();
        driver.run_for(Duration::from_millis(2));
    }
    assert_eq!(driver.count(&FlowEventKind::Limited), 0);
    let grows = now_ns();
    writer.write(BURST);
    let last_ns = last_arrival(writer, receiver, 100 * 50 + BURST);
    let took_ms = last_ns.saturating_sub(grows) / MS;
    assert!(took_ms < 200, "{BURST} bytes took {took_ms} ms");
    driver.backend.shut_down().expect("shut down");
}

/// TCP sends nothing again that waits in its own host. What waits when a rate is lowered keeps a
/// watched flow from going on.
pub fn what_waits_when_a_watched_flows_rate_is_lowered_leaves_at_the_rate_before(
    kind: BackendKind,
) {
    const BURST: usize = 400_000;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let (receiver, writer, conn) = driver.writing(&pair, RIGHT_V4);
    driver.set_bps(conn, 10_000_000);
    writer.write(BURST);
    driver.run_for(Duration::from_millis(50));
    let usage = driver.usage_of(conn).expect("its use");
    assert!(usage.limited_ns != 0, "packets wait");
    driver.backend.watch(conn);
    driver.set_bps(conn, 140_000);
    let lowered_ns = now_ns();
    writer.written();
    let last_ns = last_arrival(writer, receiver, BURST);
    // At 140 kbit/s a burst of 64 KiB takes 3.7 s.
    let took_ms = last_ns.saturating_sub(lowered_ns) / MS;
    assert!(took_ms < 1_000, "{took_ms} ms");
    driver.backend.shut_down().expect("shut down");
}

/// A demand that grows raises the rate in steps, some milliseconds each. A burst that leaves at the
/// first step's rate does not wait for seconds when the last step is there.
pub fn what_leaves_at_a_first_step_does_not_wait_after_the_last(kind: BackendKind) {
    const BURST: usize = 4_000_000;
    let _alone = alone();
    let pair = cubic_pair();
    let _link = Bottleneck::between(&pair);
    let mut driver = Driver::open(kind, &pair);
    let (receiver, writer, conn) = driver.writing(&pair, RIGHT_V4);
    driver.set_bps(conn, 140_000);
    driver.backend.watch(conn);
    writer.write(BURST);
    driver.limited();
    let limited_ns = now_ns();
    for step in 1..=4 {
        driver.set_bps(conn, 140_000 << step);
        driver.run_for(Duration::from_millis(4));
    }
    driver.set_bps(conn, 100_000_000);
    while now_ns() < limited_ns + 1_000 * MS {
        driver.run_for(Duration::from_millis(10));
    }
    writer.written();
    let last_ns = last_arrival(writer, receiver, BURST);
    // 320 ms at the last step; a burst of 64 KiB takes 1.9 s at the first.
    let took_ms = last_ns.saturating_sub(limited_ns) / MS;
    println!("{took_ms} ms");
    assert!(took_ms < 1_000, "{took_ms} ms");
    driver.backend.shut_down().expect("shut down");
}

/// The rate that a flow has after the steps holds soon, however low it is.
pub fn a_rate_that_has_grown_holds(kind: BackendKind) {
    let _alone = alone();
    let pair = cubic_pair();
    let _link = Bottleneck::between(&pair);
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.set_bps(conn, 140_000);
    driver.backend.watch(conn);
    driver.limited();
    driver.set_bps(conn, MBIT);
    driver.run_for(Duration::from_millis(500));
    let from_ns = now_ns();
    driver.run_for(Duration::from_secs(2));
    let to_ns = now_ns();
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    let trace = receiver.finish().remove(0);
    let mbit = payload_rate_bps(&trace, from_ns, to_ns) / 1e6;
    println!("{mbit:.2} of 1 Mbit/s");
    // Within a burst of 64 KiB or two; a class that kept its first rate would have 10.5.
    assert!(mbit < 2.0, "{mbit} Mbit/s");
    driver.backend.shut_down().expect("shut down");
}

/// A receiver that does not read ends the flowlet and frees its slot. When it reads again, the
/// flowlet is reported again, and every byte arrives.
pub fn a_receiver_that_does_not_read_gives_its_slot_back(
    kind: BackendKind,
    address: &str,
    quiet: Duration,
) {
    const BYTES: usize = 16 << 20;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let (ready, bound) = mpsc::channel();
    let (say, heard) = mpsc::channel::<()>();
    let ip: std::net::IpAddr = address.parse().expect("an address");
    let reader = pair.right.spawn(move || {
        let listener = TcpListener::bind((ip, 0)).expect("bind");
        ready
            .send(listener.local_addr().expect("bound"))
            .expect("test waits");
        let (mut stream, _) = listener.accept().expect("accept");
        heard.recv().expect("test waits");
        let mut buffer = vec![0u8; 1 << 16];
        let mut total = 0;
        while total < BYTES {
            match stream.read(&mut buffer).expect("read") {
                0 => break,
                count => total += count,
            }
        }
        total
    });
    let writer = Writer::start(&pair.left, bound.recv().expect("bound"));
    writer.write(BYTES);
    let conn = driver.started();
    driver.set(conn, 200, FOREVER_NS);
    let idle_ns = driver.until("the end of a flowlet that is stuck", |events| {
        let last = events.iter().rfind(|event| event.conn == conn)?;
        // A writer that waits for a processor pauses too: only a pause that lasts is a stall.
        (last.kind == FlowEventKind::Idle && now_ns() > last.at_ns + 300 * MS).then_some(last.at_ns)
    });
    assert_eq!(driver.usage_of(conn), None);
    driver.backend.clear(conn).expect("clear");
    driver.run_for(quiet);
    // tc_htb keeps quiet slots until the table is nearly full.
    if !quiet.is_zero() {
        assert_eq!(driver.backend.stats().connections, 0, "the slot is free");
    }
    let woken: Vec<_> = driver
        .events
        .iter()
        .filter(|event| event.at_ns > idle_ns)
        .filter(|event| event.kind != FlowEventKind::Close)
        .collect();
    assert!(woken.is_empty(), "probes are no progress: {woken:?}");
    say.send(()).expect("reader");
    driver.until("a new flowlet", |events| {
        events
            .iter()
            .any(|event| event.at_ns > idle_ns && matches!(event.kind, FlowEventKind::Start(_)))
            .then_some(())
    });
    assert_eq!(reader.join().expect("reader"), BYTES);
    writer.stop();
    driver.backend.shut_down().expect("shut down");
}

/// A receiver that is gone ends the flowlet, and retransmissions are no progress. When it is back,
/// the flowlet continues, and every byte arrives.
pub fn a_receiver_that_is_gone_ends_the_flowlet(kind: BackendKind, address: &str) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.set(conn, 50, FOREVER_NS);
    driver.run_for(Duration::from_millis(200));
    // The host disappears without notice.
    pair.right.run("ip addr flush dev v0");
    let gone_ns = now_ns();
    let idle_ns = driver.until("the end of a flowlet without a receiver", |events| {
        let last = events.iter().rfind(|event| event.conn == conn)?;
        (last.kind == FlowEventKind::Idle).then_some(last.at_ns.max(gone_ns))
    });
    println!("noticed {} ms after", (now_ns() - gone_ns) / MS);
    driver.run_for(Duration::from_millis(1_500));
    assert_eq!(driver.usage_of(conn), None);
    let later: Vec<_> = driver
        .events
        .iter()
        .filter(|event| event.at_ns > idle_ns)
        .collect();
    assert!(later.is_empty(), "no progress: {later:?}");
    for (ip, bits) in [(RIGHT_V4, "24"), (crate::netns::RIGHT_V6, "64 nodad")] {
        pair.right.run(&format!("ip addr add {ip}/{bits} dev v0"));
    }
    driver.until("progress", |events| {
        events
            .iter()
            .any(|event| event.at_ns > idle_ns && event.kind == FlowEventKind::Resume)
            .then_some(())
    });
    driver.backend.clear(conn).expect("clear");
    let written = sender.stop();
    let trace = receiver.finish().remove(0);
    assert_eq!(trace.last().map(|last| last.1), Some(written));
    driver.backend.shut_down().expect("shut down");
}

/// Causes by which a rate ends beside a socket that has just sent its last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateEnd {
    Cleared,
    KillSwitch,
    Lapsed,
    Killed,
}

impl RateEnd {
    /// Returns when the rate expires: never, if somebody ends it.
    fn expires_ns(self, lapse_ns: u64) -> u64 {
        match self {
            Self::Cleared | Self::KillSwitch => FOREVER_NS,
            Self::Lapsed | Self::Killed => lapse_ns,
        }
    }

    /// Ends the rate, if a command does.
    pub fn command(self, driver: &mut Driver, conn: Conn) {
        match self {
            Self::Cleared => driver.backend.clear(conn).expect("clear"),
            Self::KillSwitch => driver.backend.clear_all().expect("clear all"),
            Self::Lapsed | Self::Killed => {}
        }
    }
}

/// Sets a rate (bit/s, expiry in ns) and writes, until the first transmission at that rate.
fn write_paced(
    driver: &mut Driver,
    conn: Conn,
    writer: &Writer,
    (rate_bps, expires_ns): (u64, u64),
    bytes: usize,
) {
    driver
        .backend
        .set_rate(conn, rate_bps, expires_ns)
        .expect("set a rate");
    driver.backend.flush().expect("flush");
    writer.write(bytes);
    driver.until("a paced transmission", |events| {
        events
            .iter()
            .any(|event| matches!(event.kind, FlowEventKind::FirstPaced { .. }))
            .then_some(())
    });
}

/// A rate of 100 kbit/s ends with data in flight, or while nothing is sent, and nothing is written
/// then. What is written a while later is not held up by it: 10 kB would take 600 ms.
pub fn a_silent_socket_keeps_no_rate(kind: BackendKind, address: &str, end: RateEnd) {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let writer = Writer::start(&pair.left, receiver.address);
    writer.write(60_000);
    let conn = driver.started();
    driver.run_for(Duration::from_millis(700));
    let expires_ns = end.expires_ns(now_ns() + 100 * MS);
    write_paced(&mut driver, conn, &writer, (100_000, expires_ns), 3_000);
    end.command(&mut driver, conn);
    if end == RateEnd::Killed {
        // Without a shut-down, only the kernel's part is left to lift the rate.
        driver.crash();
        std::thread::sleep(Duration::from_millis(1_500));
        driver = {
            let from = now_ns();
            writer.write(10_000);
            std::thread::sleep(Duration::from_millis(1_000));
            let driver = Driver::open(kind, &pair);
            finish(writer, receiver, from);
            driver
        };
    } else {
        driver.run_for(Duration::from_millis(1_500));
        let from = now_ns();
        writer.write(10_000);
        driver.run_for(Duration::from_millis(1_000));
        finish(writer, receiver, from);
    }
    driver.backend.shut_down().expect("shut down");
}

fn finish(writer: Writer, receiver: BulkReceiver, from_ns: u64) {
    writer.stop();
    let trace = receiver.finish().remove(0);
    let (last_ns, total) = *trace.last().expect("data");
    assert_eq!(total, 73_000);
    let took_ms = (last_ns - from_ns) / MS;
    println!("10 kB took {took_ms} ms");
    assert!(took_ms < 400, "10 kB took {took_ms} ms: still paced");
}

/// A rate of 1 kbit/s, the smallest that can be told, ends while `bytes` wait behind it: all of
/// them arrive within ten seconds. At that rate, one burst of 64 KiB takes nine minutes.
pub fn the_smallest_rate_holds_nothing_up_after_its_end(
    kind: BackendKind,
    address: &str,
    end: RateEnd,
    bytes: usize,
) {
    const LIMIT_MS: u64 = 10_000;
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(kind, &pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let writer = Writer::start(&pair.left, receiver.address);
    writer.write(60_000);
    let conn = driver.started();
    driver.run_for(Duration::from_millis(700));
    let mut end_ns = now_ns() + 1_000 * MS;
    let expires_ns = end.expires_ns(end_ns);
    write_paced(&mut driver, conn, &writer, (1_000, expires_ns), bytes);
    // The first burst leaves at once, and the second one waits.
    driver.run_for(Duration::from_millis(50));
    end.command(&mut driver, conn);
    let mut driver = Some(driver);
    match end {
        RateEnd::Cleared | RateEnd::KillSwitch => end_ns = now_ns(),
        RateEnd::Lapsed => {}
        // Without a shut-down, only the kernel's part is left.
        RateEnd::Killed => driver.take().expect("open").crash(),
    }
    let finished = std::thread::spawn(move || {
        writer.stop();
        receiver.finish().remove(0)
    });
    // A loaded machine may be late with the test's own threads; the assertion is on arrivals.
    let limit = Duration::from_millis(LIMIT_MS + 5_000);
    wait_for("the last byte", limit, || {
        if let Some(driver) = &mut driver {
            driver.poll();
            driver.backend.flush().expect("flush");
        }
        finished.is_finished().then_some(())
    });
    let trace = finished.join().expect("finished");
    let (last_ns, total) = *trace.last().expect("data");
    assert_eq!(total, 60_000 + bytes as u64);
    let took_ms = last_ns.saturating_sub(end_ns) / MS;
    println!("{end:?}: all had arrived {took_ms} ms after the end");
    assert!(took_ms < LIMIT_MS, "{took_ms} ms after the end");
    let mut driver = driver.unwrap_or_else(|| Driver::open(kind, &pair));
    driver.backend.shut_down().expect("shut down");
}

/// Link of 200 Mbit/s between the namespaces, whose queue takes bursts of 16 kB; removed when
/// dropped.
pub struct Bottleneck {
    /// Namespace of the bridge.
    middle: String,
    mbit: u64,
}

impl Bottleneck {
    /// Puts it between the two.
    pub fn between(pair: &NamespacePair) -> Self {
        Self::of_mbit(pair, 200)
    }

    /// Likewise, with another capacity in Mbit/s.
    pub fn of_mbit(pair: &NamespacePair, mbit: u64) -> Self {
        let (left, right) = (&pair.left.0, &pair.right.0);
        let middle = format!("rwt{}m", pair.tag);
        run(&format!("ip netns add {middle}"));
        let link = Self { middle, mbit };
        let middle = &link.middle;
        run(&format!("ip -n {left} link del v0"));
        for (namespace, v4, v6, port) in [
            (left, crate::netns::LEFT_V4, crate::netns::LEFT_V6, "p0"),
            (right, RIGHT_V4, crate::netns::RIGHT_V6, "p1"),
        ] {
            run(&format!(
                "ip -n {namespace} link add v0 type veth peer name {port} netns {middle}"
            ));
            run(&format!("ip -n {namespace} addr add {v4}/24 dev v0"));
            run(&format!("ip -n {namespace} addr add {v6}/64 dev v0 nodad"));
            run(&format!("ip -n {namespace} link set v0 up"));
        }
        run(&format!("ip -n {middle} link add br0 type bridge"));
        for name in ["p0", "p1"] {
            run(&format!("ip -n {middle} link set {name} master br0"));
        }
        for name in ["p0", "p1", "br0"] {
            run(&format!("ip -n {middle} link set {name} up"));
        }
        link.hold(500);
        link
    }

    /// Lets its queue towards the right hold so many kB from now on.
    pub fn hold(&self, kb: u32) {
        self.shape("", kb);
    }

    /// Counts so many bytes beside each frame.
    pub fn count_beside(&self, bytes: u16) {
        self.shape(&format!("stab overhead {bytes} linklayer ethernet"), 500);
    }

    fn shape(&self, table: &str, kb: u32) {
        let Self { middle, mbit } = self;
        run(&format!(
            "tc -n {middle} qdisc replace dev p1 root {table} tbf rate {mbit}mbit burst 16k \
             limit {kb}k"
        ));
    }

    /// Lets packets of this size pass.
    pub fn set_mtu(&self, pair: &NamespacePair, mtu_bytes: u16) {
        for (namespace, device) in [
            (&self.middle, "p0"),
            (&self.middle, "p1"),
            (&self.middle, "br0"),
            (&pair.left.0, "v0"),
            (&pair.right.0, "v0"),
        ] {
            run(&format!(
                "ip -n {namespace} link set {device} mtu {mtu_bytes}"
            ));
        }
    }

    /// Counts the packets that its queue towards the right has dropped.
    pub fn dropped(&self) -> u64 {
        self.queue().dropped
    }

    /// Returns the state of its queue towards the right.
    pub fn queue(&self) -> QueueState {
        let shown = run(&format!("tc -n {} -s -j qdisc show dev p1", self.middle));
        let all: serde_json::Value = serde_json::from_str(&shown).expect("tc's JSON");
        let count = |key: &str| all[0][key].as_u64().expect(key);
        QueueState {
            dropped: count("drops"),
            backlog_bytes: count("backlog"),
        }
    }
}

/// Drops of a queue, and what stands in it.
#[derive(Debug, Clone, Copy)]
pub struct QueueState {
    pub dropped: u64,
    pub backlog_bytes: u64,
}

impl Drop for Bottleneck {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip")
            .args(["netns", "del", &self.middle])
            .status();
    }
}

/// 150 connections below one segment per millisecond, through a link that they fill, with both
/// cores busy: every byte of each arrives. A connection that hangs in back-off never ends.
pub fn slow_flows_all_end(kind: BackendKind, address: &str, bytes: usize) {
    const FLOWS: usize = 150;
    let _alone = alone();
    let pair = cubic_pair();
    let _link = Bottleneck::between(&pair);
    let mut driver = Driver::open(kind, &pair);
    let stop = Arc::new(AtomicBool::new(false));
    // Busy cores make timers late, which is when slow flows are in danger of hanging. While the
    // process that takes in orphans runs, some kernels run no BPF program.
    let orphan = || {
        let _ = std::process::Command::new("sh")
            .args(["-c", "for i in 1 2 3 4 5 6 7 8; do (true &); done"])
            .status();
    };
    let burdens: [fn(); 4] = [std::hint::spin_loop, std::hint::spin_loop, orphan, orphan];
    let spinners = burdens.map(|burden| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                burden();
            }
        })
    });
    let receiver = BulkReceiver::start(&pair.right, address, FLOWS);
    let to = receiver.address;
    // One by one: the listener's queue is shorter than this.
    let streams = pair.left.spawn(move || {
        [(); FLOWS].map(|()| {
            std::thread::sleep(Duration::from_millis(2));
            TcpStream::connect(to).expect("connect")
        })
    });
    let senders: Vec<_> = streams
        .join()
        .expect("connected")
        .into_iter()
        .map(|mut stream| {
            std::thread::spawn(move || {
                stream.write_all(&vec![6u8; bytes]).expect("write");
            })
        })
        .collect();
    let finished = std::thread::spawn(move || {
        for sender in senders {
            sender.join().expect("sender");
        }
        receiver.finish()
    });
    let mut seen = 0;
    let mut rated = 0;
    wait_for(
        "the end of every connection",
        Duration::from_secs(60),
        || {
            driver.poll();
            for event in &driver.events[seen..] {
                if matches!(event.kind, FlowEventKind::Start(_)) {
                    rated += 1;
                    driver
                        .backend
                        .set_rate(event.conn, 13 * MBIT / 10, FOREVER_NS)
                        .expect("set a rate");
                }
            }
            seen = driver.events.len();
            driver.backend.flush().expect("flush");
            finished.is_finished().then_some(())
        },
    );
    stop.store(true, Ordering::Relaxed);
    for spinner in spinners {
        spinner.join().expect("spinner");
    }
    let arrived: Vec<u64> = finished
        .join()
        .expect("finished")
        .iter()
        .map(|trace| trace.last().map_or(0, |last| last.1))
        .collect();
    assert_eq!(arrived, [bytes as u64; FLOWS]);
    assert!(rated >= FLOWS, "{rated} flowlets were paced");
    driver.backend.shut_down().expect("shut down");
}
