//! The receiver: accepts, reads, counts bytes per flow in bins of 10 ms, and closes after the
//! sender's end of stream.

use std::io::{self, Read};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use super::protocol::{BIN_NS, FLOW_MAGIC, Report, say};
use crate::clock;

const READ_BYTES: usize = 256 * 1024;
const STACK_BYTES: usize = 128 * 1024;
/// How often counts are reported: often enough for a live view, seldom enough to cost nothing.
const REPORT_EVERY: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 4096;

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
        let bins = Arc::clone(&bins);
        spawn(move || accept(&listener, &bins))?;
    }
    say(&Report::Listening);
    let reported = Arc::clone(&bins);
    spawn(move || {
        loop {
            clock::sleep(REPORT_EVERY);
            report(&reported);
        }
    })?;
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
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
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
    let mut header = [0u8; 8];
    if stream.read_exact(&mut header).is_err() {
        return;
    }
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (magic, flow) = (word(0), word(4));
    if magic != FLOW_MAGIC {
        return;
    }
    say(&Report::Accepted {
        flow,
        at_ns: clock::now_ns(),
    });
    count(bins, flow, header.len() as u64);
    let mut total = header.len() as u64;
    let mut buffer = vec![0u8; READ_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => {
                report(bins);
                return say(&Report::Received {
                    flow,
                    at_ns: clock::now_ns(),
                    bytes: total,
                });
            }
            Ok(n) => {
                total += n as u64;
                count(bins, flow, n as u64);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                return say(&Report::Lost {
                    flow,
                    at_ns: clock::now_ns(),
                    error: e.to_string(),
                });
            }
        }
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
