//! Two network namespaces joined by a veth, and plain TCP applications inside them.
//!
//! Nothing here knows of pacing: senders and receivers use the standard library only.

pub mod cubic;
pub mod echo;
pub mod tries;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::SockaddrStorage;
use ratewright_endpointd::clock::now_ns;

pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program)
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed (package iproute2): {error}"));
    assert!(
        output.status.success(),
        "`{command}` failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Network namespace by name; threads can enter it.
#[derive(Debug, Clone)]
pub struct Namespace(pub String);

impl Namespace {
    pub fn enter(&self) {
        // `ip netns add` binds each namespace's file here.
        let file = File::open(format!("/run/netns/{}", self.0)).expect("namespace exists");
        setns(file, CloneFlags::CLONE_NEWNET).expect("enter the namespace (root)");
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = self.clone();
        std::thread::spawn(move || {
            namespace.enter();
            body()
        })
    }

    /// Sets `/proc/sys/net/ipv4/<name>`.
    pub fn set_ipv4(&self, name: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/net/ipv4/{name}"), value.to_owned());
        self.spawn(move || std::fs::write(path, value).expect("set"))
            .join()
            .expect("set");
    }

    /// Every setting of its TCP.
    pub fn tcp_settings(&self) -> String {
        self.run("sysctl -a -r ^net.ipv4.tcp_")
    }

    pub fn run(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.0))
    }
}

/// Namespaces `left` (senders, the back end) and `right` (receivers); removed when dropped.
#[derive(Debug)]
pub struct NamespacePair {
    pub left: Namespace,
    pub right: Namespace,
    /// Unique within the machine, at most 7 characters.
    pub tag: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

pub const LEFT_V4: &str = "10.123.0.1";
pub const RIGHT_V4: &str = "10.123.0.2";
pub const LEFT_V6: &str = "fd00:123::1";
pub const RIGHT_V6: &str = "fd00:123::2";

impl NamespacePair {
    pub fn new() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests need root: run them with sudo"
        );
        // Tests run in parallel: process and number together make the names unique.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tag = format!("{:x}{number}", std::process::id());
        let left = Namespace(format!("rwt{tag}l"));
        let right = Namespace(format!("rwt{tag}r"));
        let (l, r) = (&left.0, &right.0);
        run(&format!("ip netns add {l}"));
        run(&format!("ip netns add {r}"));
        let pair = Self {
            left: left.clone(),
            right: right.clone(),
            tag,
        };
        run(&format!(
            "ip -n {l} link add v0 type veth peer name v0 netns {r}"
        ));
        for (namespace, v4, v6) in [(l, LEFT_V4, "fd00:123::1"), (r, RIGHT_V4, RIGHT_V6)] {
            run(&format!("ip -n {namespace} addr add {v4}/24 dev v0"));
            // Without `nodad` the address is unusable for a second, while duplicates are searched
            // for.
            run(&format!("ip -n {namespace} addr add {v6}/64 dev v0 nodad"));
            run(&format!("ip -n {namespace} link set lo up"));
            run(&format!("ip -n {namespace} link set v0 up"));
        }
        pair
    }
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        for namespace in [&self.left, &self.right] {
            let _ = Command::new("ip")
                .args(["netns", "del", &namespace.0])
                .status();
        }
    }
}

/// Trace of a receiver: time and running total after each read.
pub type ArrivalTrace = Vec<(u64, u64)>;

/// Accepts `connections` connections on `address`, reads each to its end on a thread of its own.
pub struct BulkReceiver {
    pub address: SocketAddr,
    threads: mpsc::Receiver<JoinHandle<ArrivalTrace>>,
    accept: JoinHandle<()>,
}

impl BulkReceiver {
    pub fn start(namespace: &Namespace, ip: &str, connections: usize) -> Self {
        let ip: IpAddr = ip.parse().expect("an address");
        let (ready, bound) = mpsc::channel();
        let (push, threads) = mpsc::channel();
        let inner = namespace.clone();
        let accept = namespace.spawn(move || {
            let listener = TcpListener::bind((ip, 0)).expect("bind");
            ready
                .send(listener.local_addr().expect("bound"))
                .expect("test waits");
            for _ in 0..connections {
                let (stream, _) = listener.accept().expect("accept");
                push.send(inner.spawn(move || receive(stream)))
                    .expect("test waits");
            }
        });
        Self {
            address: bound.recv().expect("bound"),
            threads,
            accept,
        }
    }

    /// Waits for the senders to finish.
    pub fn finish(self) -> Vec<ArrivalTrace> {
        self.accept.join().expect("accept");
        self.threads
            .iter()
            .map(|thread| thread.join().expect("receiver"))
            .collect()
    }
}

fn receive(mut stream: TcpStream) -> ArrivalTrace {
    let mut buffer = vec![0u8; 1 << 16];
    let mut total = 0;
    // Growing the trace would pause the receiver in the middle of a measurement.
    let mut trace = Vec::with_capacity(1 << 16);
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 {
            break;
        }
        total += count as u64;
        trace.push((now_ns(), total));
    }
    trace
}

/// Payload rate in bit/s over [from, to); 0 if less than two reads are within.
pub fn payload_rate_bps(trace: &ArrivalTrace, from_ns: u64, to_ns: u64) -> f64 {
    // Between the first and last read inside the window, so that its ends do not cut a burst.
    let inside: Vec<_> = trace
        .iter()
        .filter(|(at, _)| (from_ns..to_ns).contains(at))
        .collect();
    match inside[..] {
        [first, .., last] => (last.1 - first.1) as f64 * 8e9 / (last.0 - first.0) as f64,
        _ => 0.0,
    }
}

/// The median payload rate in bit/s over windows of 50 ms: on a busy machine, neither the pauses of
/// a sender or receiver that waits for a processor nor what follows them are the pacing's.
pub fn settled_rate_bps(trace: &ArrivalTrace, from_ns: u64, to_ns: u64) -> f64 {
    const WINDOW_NS: usize = 50_000_000;
    // Each window reaches from a read to a read, so that its ends do not cut a burst.
    let marks: Vec<_> = (from_ns..to_ns)
        .step_by(WINDOW_NS)
        .filter_map(|mark| trace.get(trace.partition_point(|(at, _)| *at < mark)))
        .filter(|(at, _)| *at < to_ns)
        .collect();
    let mut rates: Vec<_> = marks
        .windows(2)
        .filter(|pair| pair[1].0 > pair[0].0)
        .map(|pair| (pair[1].1 - pair[0].1) as f64 * 8e9 / (pair[1].0 - pair[0].0) as f64)
        .collect();
    rates.sort_by(f64::total_cmp);
    assert!(!rates.is_empty(), "no data between {from_ns} and {to_ns}");
    rates[rates.len() / 2]
}

/// Bytes on the wire per payload byte of full segments: MSS 1448 (timestamps) over IPv4, 1428 over
/// IPv6; Ethernet, IP and TCP headers with the timestamp option.
pub const WIRE_V4: f64 = (1448.0 + 14.0 + 20.0 + 32.0) / 1448.0;
pub const WIRE_V6: f64 = (1428.0 + 14.0 + 40.0 + 32.0) / 1428.0;

/// Payload that arrived in [from, to).
pub fn bytes_between(trace: &ArrivalTrace, from_ns: u64, to_ns: u64) -> u64 {
    let before = |at_ns| {
        trace
            .iter()
            .take_while(|(at, _)| *at < at_ns)
            .last()
            .map_or(0, |x| x.1)
    };
    before(to_ns) - before(from_ns)
}

/// Returns the time at which the receiver had more than `total` bytes.
pub fn passed_ns(trace: &ArrivalTrace, total: u64) -> u64 {
    trace
        .iter()
        .find(|(_, read)| *read > total)
        .expect("data")
        .0
}

/// Asserts, in every run, that a rate holds a flow no more within `[from_ns, to_ns)`, and returns
/// the time from which it does not: the begin of 20 ms in which three times as much arrived as the
/// rate allows. A sender that waits for a processor has slow times; a paced one has none so fast.
pub fn assert_lifted(trace: &ArrivalTrace, from_ns: u64, to_ns: u64, rate_mbit: f64) -> u64 {
    const WINDOW_NS: u64 = 20_000_000;
    let fast = (3.0 * rate_mbit * 1e6 / 8.0 * WINDOW_NS as f64 / 1e9) as u64;
    let at = |time_ns: u64| trace.partition_point(|(at, _)| *at < time_ns);
    let inside = &trace[at(from_ns)..at(to_ns)];
    let lifted = inside.iter().enumerate().find(|(i, (at, total))| {
        let window = inside[*i..]
            .iter()
            .take_while(|next| next.0 < at + WINDOW_NS);
        window.last().is_some_and(|last| last.1 - total >= fast)
    });
    let Some((_, (at, _))) = lifted else {
        panic!("a rate of {rate_mbit} Mbit/s holds the flow still");
    };
    *at
}

/// Bulk sender that writes until it is stopped.
pub struct BulkSender {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl BulkSender {
    pub fn start(namespace: &Namespace, to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&written));
        let thread = namespace.spawn(move || {
            let mut stream = TcpStream::connect(to).expect("connect");
            let block = vec![7u8; 1 << 16];
            while !stopped.load(Ordering::Relaxed) {
                stream.write_all(&block).expect("the connection lives");
                count.fetch_add(block.len() as u64, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            written,
            thread,
        }
    }

    /// Ends the connection; returns the bytes that were written to it.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("sender");
        self.written.load(Ordering::Relaxed)
    }
}

pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Runs `step` until it returns something, for at most `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(
            start.elapsed() < limit,
            "{what} did not happen within {limit:?}"
        );
        // Short against the latencies under test, and long enough to leave the core to the flows.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Disconnects a socket and connects it to `to`, as `connect` with `AF_UNSPEC` allows.
#[allow(unsafe_code)]
pub fn connect_anew(stream: &TcpStream, to: SocketAddr) {
    let fd = stream.as_raw_fd();
    let nowhere = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    // SAFETY: the kernel reads the 16 bytes of `nowhere`.
    let code = unsafe { libc::connect(fd, &raw const nowhere, 16) };
    assert_eq!(code, 0, "disconnect: {}", std::io::Error::last_os_error());
    nix::sys::socket::connect(fd, &SockaddrStorage::from(to)).expect("connect anew");
}

/// Sets a `SOL_SOCKET` option of 32 bits.
#[allow(unsafe_code)]
pub fn set_u32(fd: std::os::fd::RawFd, option: i32, value: u32) {
    // SAFETY: the option's value is four bytes, and `value` lives through the call.
    let code = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(&value).cast(),
            4,
        )
    };
    assert_eq!(
        code,
        0,
        "setsockopt({option}): {}",
        std::io::Error::last_os_error()
    );
}

/// Reads a `SOL_SOCKET` option of 32 bits.
#[allow(unsafe_code)]
pub fn get_u32(fd: std::os::fd::RawFd, option: i32) -> u32 {
    let mut value = 0u32;
    let mut size = 4;
    // SAFETY: `value` has room for the four bytes that `size` says.
    let code = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            std::ptr::from_mut(&mut value).cast(),
            &raw mut size,
        )
    };
    assert_eq!(
        code,
        0,
        "getsockopt({option}): {}",
        std::io::Error::last_os_error()
    );
    value
}
