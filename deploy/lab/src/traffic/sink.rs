//! The receiver: accepts, reads, counts bytes per flow in bins of 10 ms, and closes after the
//! sender's end of stream. It counts datagrams likewise.

use std::io::{self, Read};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ratewright_cli::clock;
use socket2::{Domain, Socket, Type};

use super::protocol::{BIN_NS, HEADER_BYTES, Header, Report, say};

const READ_BYTES: usize = 256 * 1024;
const STACK_BYTES: usize = 128 * 1024;
/// Interval between two reports of counts: short enough for a live view, long enough to cost
/// nothing.
const REPORT_EVERY: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 4096;
/// More than any payload of an Ethernet frame.
const DATAGRAM_BYTES: usize = 2048;
/// Reads of a slow reader per second.
const SLOW_READS_PER_S: u64 = 200;
/// Interval at which a receiver that never reads checks that its connection is still there.
const RESET_POLL: Duration = Duration::from_millis(100);
const ARRIVALS_PER_REPORT: usize = 512;

/// Counts that wait to be reported: (flow, bin, bytes), newest last.
type Bins = Arc<Mutex<Vec<(u32, u64, u64)>>>;

/// Listens on all of `ports` (IPv4 and IPv6) until standard input closes.
///
/// # Errors
/// When a port cannot be listened on.
pub fn run(ports: &[u16]) -> Result<()> {
    let bins = Bins::default();
    for port in ports {
        let listener = listen(*port).with_context(|| format!("listening on port {port}"))?;
        let accepted = Arc::clone(&bins);
        spawn(move || accept(&listener, &accepted))?;
        let socket = bind(*port, Type::DGRAM).with_context(|| format!("UDP port {port}"))?;
        let received = Arc::clone(&bins);
        spawn(move || receive(&socket.into(), &received))?;
    }
    say(&Report::Listening);
    let reported = Arc::clone(&bins);
    spawn(move || {
        loop {
            clock::sleep(REPORT_EVERY);
            report(&reported);
        }
    })?;
    // Nothing is sent here: the lab's end of the pipe closes when it is done or dead.
    io::copy(&mut io::stdin(), &mut io::sink()).context("reading standard input")?;
    report(&bins);
    Ok(())
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(work)
        .context("starting a thread")?;
    Ok(())
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = bind(port, Type::STREAM)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bind(port: u16, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, kind, None)?;
    // One socket serves both families; IPv4 peers appear as mapped addresses.
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    Ok(socket)
}

/// Counts datagrams, each of which begins with its flow's header.
fn receive(socket: &UdpSocket, bins: &Bins) {
    let mut buffer = [0u8; DATAGRAM_BYTES];
    loop {
        // Errors of a socket that never sends are of no datagram.
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        let header = buffer[..length].first_chunk().and_then(Header::decode);
        if let Some(header) = header {
            count(bins, header.flow, length as u64);
        }
    }
}

fn accept(listener: &TcpListener, bins: &Bins) {
    for stream in listener.incoming().filter_map(Result::ok) {
        let bins = Arc::clone(bins);
        if let Err(error) = spawn(move || serve(stream, &bins)) {
            eprintln!("{error:#}");
        }
    }
}

fn serve(mut stream: TcpStream, bins: &Bins) {
    let mut header = [0u8; HEADER_BYTES];
    if stream.read_exact(&mut header).is_err() {
        return;
    }
    let Some(header) = Header::decode(&header) else {
        return;
    };
    let flow = header.flow;
    say(&Report::Accepted {
        flow,
        at_ns: clock::now_ns(),
    });
    count(bins, flow, HEADER_BYTES as u64);
    match read_all(&mut stream, header, bins) {
        Ok(bytes) => {
            // Bins before the end: the lab takes the flow's figures once it has ended.
            report(bins);
            say(&Report::Received {
                flow,
                at_ns: clock::now_ns(),
                bytes,
            });
        }
        Err(error) => say(&Report::Lost {
            flow,
            at_ns: clock::now_ns(),
            error: error.to_string(),
        }),
    }
}

/// Reads to the end of the stream; returns how many bytes there were.
fn read_all(stream: &mut TcpStream, header: Header, bins: &Bins) -> io::Result<u64> {
    let length = match header.read_bps {
        None => READ_BYTES,
        // Few enough bytes that a slow reader still reads every few milliseconds.
        Some(bps) => (bps / 8 / SLOW_READS_PER_S).clamp(1, READ_BYTES as u64) as usize,
    };
    let mut buffer = vec![0u8; length];
    let mut total = HEADER_BYTES as u64;
    let mut trace = ReadTrace::new(header);
    let mut next = clock::now_ns();
    loop {
        match header.read_bps {
            None => {}
            Some(0) => return wait_for_reset(stream),
            Some(bps) => {
                clock::sleep_until_ns(next);
                // Catches up by one read at most, so that a held-up reader makes no burst.
                next = next.max(clock::now_ns().saturating_sub(clock::NS_PER_S / SLOW_READS_PER_S));
                // Bits of a read over the rate: the time until the next one.
                next += length as u64 * 8 * clock::NS_PER_S / bps;
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => {
                total += n as u64;
                count(bins, header.flow, n as u64);
                trace.note(total);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// A receiver that never reads: it only notices that the connection is gone.
fn wait_for_reset(stream: &TcpStream) -> io::Result<u64> {
    loop {
        clock::sleep(RESET_POLL);
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
}

/// Times of a traced flow's reads, reported in batches.
struct ReadTrace {
    flow: u32,
    on: bool,
    arrivals: Vec<(u64, u64)>,
}

impl ReadTrace {
    fn new(header: Header) -> ReadTrace {
        ReadTrace {
            flow: header.flow,
            on: header.trace,
            arrivals: Vec::new(),
        }
    }

    fn note(&mut self, total: u64) {
        if self.on {
            self.arrivals.push((clock::now_ns(), total));
            if self.arrivals.len() == ARRIVALS_PER_REPORT {
                self.report();
            }
        }
    }

    fn report(&mut self) {
        if !self.arrivals.is_empty() {
            say(&Report::Arrivals {
                flow: self.flow,
                arrivals: std::mem::take(&mut self.arrivals),
            });
        }
    }
}

impl Drop for ReadTrace {
    fn drop(&mut self) {
        self.report();
    }
}

fn count(bins: &Bins, flow: u32, bytes: u64) {
    let bin = clock::now_ns() / BIN_NS;
    let mut bins = bins.lock().unwrap_or_else(PoisonError::into_inner);
    // A flow's newest entry is near the end: at most one entry per flow and bin follows it.
    match bins
        .iter_mut()
        .rev()
        .take_while(|(_, b, _)| *b == bin)
        .find(|(f, _, _)| *f == flow)
    {
        Some(entry) => entry.2 += bytes,
        None => bins.push((flow, bin, bytes)),
    }
}

fn report(bins: &Bins) {
    let waiting = std::mem::take(&mut *bins.lock().unwrap_or_else(PoisonError::into_inner));
    if !waiting.is_empty() {
        say(&Report::Bins(waiting));
    }
}
