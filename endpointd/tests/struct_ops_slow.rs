//! Hundreds of slow connections, each below one segment per millisecond, on busy processors. Every
//! byte arrives, and none backs off without sending data, no matter when the kernel runs the
//! program.

#![allow(clippy::disallowed_methods)] // The wall clock bounds the wait.

mod netns;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netns::backend::StructOpsDriver;
use netns::{Namespace, NamespacePair, RIGHT_V4, RIGHT_V6, sleep};
use ratewright_endpointd::backend::{FlowEventKind, PacingBackend};
use ratewright_endpointd::clock::now_ns;

/// Load on both processors, and on the process that takes in orphans: while that one runs, some
/// kernels run no BPF programs.
struct Burden {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Burden {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |body: fn()| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    body();
                }
            })
        };
        let spin: fn() = || {
            for number in 0..10_000_u64 {
                std::hint::black_box(number);
            }
        };
        let orphan: fn() = || {
            let _ = std::process::Command::new("sh")
                .args(["-c", "for i in 1 2 3 4 5 6 7 8; do (true &); done"])
                .status();
        };
        let threads = vec![spawn(spin), spawn(spin), spawn(orphan), spawn(orphan)];
        Self { stop, threads }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no panic");
        }
    }
}

/// Accepts `connections` connections, and counts those that brought `bytes` bytes and their end.
fn sink(
    namespace: &Namespace,
    ip: &str,
    connections: usize,
    bytes: u64,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let whole = Arc::new(AtomicUsize::new(0));
    let (ready, bound) = std::sync::mpsc::channel();
    let (inner, counter, ip) = (namespace.clone(), Arc::clone(&whole), ip.to_owned());
    namespace.spawn(move || {
        let listener = TcpListener::bind((ip.as_str(), 0)).expect("bind");
        ready
            .send(listener.local_addr().expect("bound"))
            .expect("test waits");
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().expect("accept");
            let counter = Arc::clone(&counter);
            inner.spawn(move || {
                let (mut buffer, mut total) = (vec![0u8; 1 << 16], 0);
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    total += count as u64;
                }
                // Only whole transfers count: a connection that was cut off must not pass for one
                // that ended.
                if total == bytes {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (bound.recv().expect("bound"), whole)
}

/// `connections` connections at rates of `mbps_tenths` tenths of a Mbit/s in turn, each of which
/// writes for about `seconds`; then all must end.
fn slow_connections(ip: &'static str, connections: usize, seconds: u64) {
    let pair = NamespacePair::new();
    let left = &pair.left.0;
    netns::run(&format!(
        "tc -n {left} qdisc add dev v0 root tbf rate 200mbit burst 16kb limit 64kb"
    ));
    let mut driver = StructOpsDriver::open(&pair);
    // 1.3 Mbit/s carry this much in the time.
    let bytes = 1_300_000 / 8 * seconds;
    let (address, whole) = sink(&pair.right, ip, connections, bytes);
    let burden = Burden::start();
    for _ in 0..connections {
        // One by one: the receiver's queue of new connections is short.
        let mut stream = TcpStream::connect(address).expect("connect");
        pair.left.spawn(move || {
            let block = vec![7u8; 1 << 14];
            let mut left = bytes as usize;
            while left > 0 {
                let part = left.min(block.len());
                stream.write_all(&block[..part]).expect("write");
                left -= part;
            }
        });
    }
    let begin = Instant::now();
    let limit = Duration::from_secs(3 * seconds + 20);
    let mut rated = 0;
    while whole.load(Ordering::Relaxed) < connections && begin.elapsed() < limit {
        driver.poll();
        for event in std::mem::take(&mut driver.events) {
            if matches!(event.kind, FlowEventKind::Start(_)) {
                rated += 1;
                driver
                    .backend
                    .set_rate(event.conn, 1_350_000, now_ns() + 1_000_000_000)
                    .expect("set a rate");
            }
        }
        driver
            .backend
            .renew(now_ns() + 1_000_000_000)
            .expect("renew");
        sleep(Duration::from_millis(5));
    }
    let took = begin.elapsed();
    burden.end();
    let arrived = whole.load(Ordering::Relaxed);
    println!(
        "{arrived} of {connections} whole after {:.1} s, {rated} starts, {:?}",
        took.as_secs_f64(),
        driver.backend.stats()
    );
    if arrived < connections {
        println!("{}", pair.left.run("ss -tino state established"));
    }
    assert_eq!(arrived, connections, "connections that never end");
    assert!(rated >= connections, "{rated} flowlets were paced");
}

#[test]
fn slow_connections_all_end() {
    slow_connections(RIGHT_V4, 150, 6);
}

#[test]
fn slow_connections_over_ipv6_all_end() {
    slow_connections(RIGHT_V6, 150, 6);
}
