//! The sender: one thread per flow, blocking writes, nothing set on the socket but a write timeout
//! and what the flow's [`Behaviour`](super::protocol::Behaviour) says.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use indexmap::IndexMap;
use ratewright_cli::clock::{now_ns, sleep_until_ns};
use socket2::{Domain, SockRef, Socket, Type};

use super::pacing_limit;
use super::protocol::{
    FlowPlan, HEADER_BYTES, Header, LaterMaximum, Report, SenderCommand, Writing, say,
};

/// Bytes per write, as a program that copies a file would use.
const WRITE_BYTES: usize = 64 * 1024;
/// Time-out of a blocked write, after which the sender checks for a stop command.
const STOP_POLL: Duration = Duration::from_millis(5);
/// Time-out for flows that end by bytes, which can only be aborted: hundreds of them must not keep
/// a core busy.
const ABORT_POLL: Duration = Duration::from_millis(200);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 128 * 1024;
/// A source that was held up for longer than this leaves out what it missed.
const CATCH_UP_NS: u64 = 20_000_000;
/// Times of writes are reported in batches.
const MARKS_PER_REPORT: usize = 256;

/// Commands that a flow has received.
#[derive(Debug, Default)]
struct Orders {
    stop: AtomicBool,
    abort: AtomicBool,
}

/// Obeys commands from standard input until it closes, then waits for the flows to end.
///
/// # Errors
/// When a command cannot be read or a thread cannot be started.
pub fn run() -> Result<()> {
    let mut orders: IndexMap<u32, Arc<Orders>> = IndexMap::new();
    let mut threads = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line.context("reading a command")?;
        match serde_json::from_str(&line).with_context(|| format!("not a command: {line}"))? {
            SenderCommand::Start(plan) => {
                let told = Arc::new(Orders::default());
                orders.insert(plan.flow, Arc::clone(&told));
                let thread = std::thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn(move || flow(&plan, &told))
                    .context("starting a flow's thread")?;
                threads.push(thread);
            }
            SenderCommand::Stop { flow } => {
                if let Some(told) = orders.get(&flow) {
                    told.stop.store(true, Ordering::Relaxed);
                }
            }
            SenderCommand::Abort { flow } => {
                if let Some(told) = orders.get(&flow) {
                    told.abort.store(true, Ordering::Relaxed);
                }
            }
        }
    }
    for told in orders.values() {
        told.stop.store(true, Ordering::Relaxed);
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn flow(plan: &FlowPlan, told: &Orders) {
    let flow = plan.flow;
    if let Writing::Datagrams { bytes, every_ns } = plan.behaviour.writing {
        sleep_until_ns(plan.start_ns);
        say(&Report::Started {
            flow,
            at_ns: now_ns(),
        });
        return end(flow, datagrams(plan, told, bytes, every_ns));
    }
    let ahead = plan.connect_ns.map(|at_ns| {
        sleep_until_ns(at_ns);
        connect(plan)
    });
    // On the machine's one clock, so that flows of all hosts start together.
    sleep_until_ns(plan.start_ns);
    say(&Report::Started {
        flow,
        at_ns: now_ns(),
    });
    let stream = ahead.unwrap_or_else(|| connect(plan));
    end(flow, stream.and_then(|stream| transfer(plan, stream, told)));
}

fn end(flow: u32, sent: io::Result<u64>) {
    match sent {
        Ok(bytes) => say(&Report::Finished {
            flow,
            at_ns: now_ns(),
            bytes,
        }),
        Err(error) => say(&Report::Failed {
            flow,
            at_ns: now_ns(),
            error: error.to_string(),
        }),
    }
}

fn connect(plan: &FlowPlan) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(plan.to), Type::STREAM, None)?;
    if let Some(congestion) = plan.behaviour.congestion {
        // Before the connect, as a host's default has it.
        socket.set_tcp_congestion(congestion.name().as_bytes())?;
    }
    socket.connect_timeout(&plan.to.into(), CONNECT_TIMEOUT)?;
    Ok(socket.into())
}

/// Sends datagrams at regular times until the flow is told to end; returns the payload sent.
fn datagrams(plan: &FlowPlan, told: &Orders, bytes: u32, every_ns: u64) -> io::Result<u64> {
    let any: SocketAddr = match plan.to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(plan.to)?;
    let header = Header {
        flow: plan.flow,
        read_bps: None,
        trace: false,
    };
    let mut payload = vec![0; (bytes as usize).max(HEADER_BYTES)];
    payload[..HEADER_BYTES].copy_from_slice(&header.encode());
    let (mut sent, mut next) = (0, now_ns());
    let over = |told: &Orders| {
        told.stop.load(Ordering::Relaxed)
            || told.abort.load(Ordering::Relaxed)
            || plan.stop_ns.is_some_and(|at| now_ns() >= at)
    };
    while !over(told) {
        sleep_until_ns(next);
        // A full queue of the host drops it, as the network may: neither is an end.
        if socket.send(&payload).is_ok() {
            sent += payload.len() as u64;
        }
        next = (next + every_ns).max(now_ns().saturating_sub(CATCH_UP_NS));
    }
    if told.abort.load(Ordering::Relaxed) {
        return Err(io::Error::new(ErrorKind::ConnectionAborted, "aborted"));
    }
    Ok(sent)
}

fn transfer(plan: &FlowPlan, stream: TcpStream, told: &Orders) -> io::Result<u64> {
    if let Some(limit_bps) = plan.behaviour.max_rate_bps {
        pacing_limit::set(&stream, Some(limit_bps))?;
    }
    // Flows that end by bytes poll seldom: their stop comes with the last write.
    let poll = if plan.bytes.is_some() {
        ABORT_POLL
    } else {
        STOP_POLL
    };
    stream.set_write_timeout(Some(poll))?;
    let mut writer = Writer {
        plan,
        told,
        stream,
        sent: 0,
        payload: vec![0; WRITE_BYTES],
        marks: Vec::new(),
        later: plan.behaviour.later,
    };
    let header = Header {
        flow: plan.flow,
        read_bps: plan.behaviour.read_bps,
        trace: plan.behaviour.trace,
    };
    writer.payload[..HEADER_BYTES].copy_from_slice(&header.encode());
    match plan.behaviour.writing {
        Writing::Bulk => writer.write_until(u64::MAX, u64::MAX)?,
        Writing::Every { bytes, every_ns } => {
            writer.write_every(bytes, every_ns, u64::MAX)?;
        }
        Writing::Alternating {
            bytes,
            every_ns,
            slow_ns,
            fast_ns,
        } => {
            // Each rise is marked at its beginning: the receiver's reads after it show the
            // response.
            while !writer.over() {
                let until = now_ns() + slow_ns;
                writer.write_every(bytes, every_ns, until)?;
                let risen = now_ns();
                writer.mark(risen);
                writer.write_until(u64::MAX, risen + fast_ns)?;
            }
        }
        // Another function sends them, without a connection.
        Writing::Datagrams { .. } => {}
    }
    writer.end()
}

struct Writer<'a> {
    plan: &'a FlowPlan,
    told: &'a Orders,
    stream: TcpStream,
    sent: u64,
    /// The header, then bytes of any content.
    payload: Vec<u8>,
    marks: Vec<(u64, u64)>,
    /// Change of the limit that is still to come.
    later: Option<LaterMaximum>,
}

impl Writer<'_> {
    fn over(&self) -> bool {
        // Never before the header is out: the sink could not name the flow.
        self.sent >= HEADER_BYTES as u64
            && (self.sent >= self.plan.bytes.unwrap_or(u64::MAX)
                || self.told.stop.load(Ordering::Relaxed)
                || self.plan.stop_ns.is_some_and(|at| now_ns() >= at))
    }

    /// Writes until `total` bytes were written in all, or until `until_ns`.
    fn write_until(&mut self, total: u64, until_ns: u64) -> io::Result<()> {
        let limit = self
            .plan
            .bytes
            .unwrap_or(u64::MAX)
            .max(HEADER_BYTES as u64)
            .min(total);
        while self.sent < limit && !self.over() && now_ns() < until_ns {
            self.check_abort()?;
            self.change_limit()?;
            let length = (limit - self.sent).min(WRITE_BYTES as u64) as usize;
            // Only the first bytes name the flow; what follows is payload of any content.
            let from = if self.sent < HEADER_BYTES as u64 {
                self.sent as usize
            } else {
                HEADER_BYTES
            };
            match self
                .stream
                .write(&self.payload[from..(from + length).min(WRITE_BYTES)])
            {
                Ok(n) => self.sent += n as u64,
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn change_limit(&mut self) -> io::Result<()> {
        let due = |later: &LaterMaximum| now_ns() >= self.plan.start_ns + later.after_ns;
        if let Some(later) = self.later.filter(due) {
            self.later = None;
            pacing_limit::set(&self.stream, later.max_rate_bps)?;
        }
        Ok(())
    }

    fn write_every(&mut self, bytes: u32, every_ns: u64, until_ns: u64) -> io::Result<()> {
        let mut next = now_ns();
        while !self.over() && next < until_ns {
            sleep_until_ns(next);
            let now = now_ns();
            // Of an alternating flow only the rises are marked, by `transfer`.
            if matches!(self.plan.behaviour.writing, Writing::Every { .. }) {
                self.mark(now);
            }
            self.check_abort()?;
            self.write_until(self.sent + u64::from(bytes), u64::MAX)?;
            // From the plan and not from now: late wake-ups must not slow the source down.
            next += every_ns;
            if now_ns() > next + CATCH_UP_NS {
                next = now_ns();
            }
        }
        Ok(())
    }

    fn mark(&mut self, at_ns: u64) {
        if self.plan.behaviour.trace {
            self.marks.push((at_ns, self.sent));
            if self.marks.len() == MARKS_PER_REPORT {
                self.report();
            }
        }
    }

    fn report(&mut self) {
        if !self.marks.is_empty() {
            say(&Report::Marks {
                flow: self.plan.flow,
                marks: std::mem::take(&mut self.marks),
            });
        }
    }

    fn end(mut self) -> io::Result<u64> {
        self.report();
        // The end of stream shows the sink that all bytes are there.
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(ABORT_POLL))?;
        // The receiver closes when it has read everything.
        let mut rest = [0u8; 64];
        loop {
            self.check_abort()?;
            match self.stream.read(&mut rest) {
                Ok(0) => return Ok(self.sent),
                Ok(_) => {}
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Fails once the flow is aborted; closing the socket then resets the connection.
    fn check_abort(&self) -> io::Result<()> {
        if self.told.abort.load(Ordering::Relaxed) {
            // Linger of zero makes the close a reset (RST) in place of an end of stream.
            SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "aborted"));
        }
        Ok(())
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
