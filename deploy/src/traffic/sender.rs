//! The sender: one thread per flow, blocking writes, nothing set on the socket but a write timeout.

use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use indexmap::IndexMap;

use super::protocol::{Command, FLOW_MAGIC, FlowPlan, Report, say};
use crate::clock::{now_ns, sleep_until_ns};

/// Bytes per write: what a program that copies a file would use.
const WRITE_BYTES: usize = 64 * 1024;
/// A blocked write looks this often whether the flow was told to stop.
const STOP_POLL: Duration = Duration::from_millis(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 128 * 1024;

/// Obeys commands from standard input until it closes, then waits for the flows to end.
///
/// # Errors
/// When a command cannot be read or a thread cannot be started.
pub fn run() -> Result<()> {
    let mut stops: IndexMap<u32, Arc<AtomicBool>> = IndexMap::new();
    let mut threads = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line.context("reading a command")?;
        match serde_json::from_str(&line).with_context(|| format!("not a command: {line}"))? {
            Command::Start(plan) => {
                let stop = Arc::new(AtomicBool::new(false));
                stops.insert(plan.flow, Arc::clone(&stop));
                let thread = std::thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn(move || flow(&plan, &stop))
                    .context("starting a flow's thread")?;
                threads.push(thread);
            }
            Command::Stop { flow } => {
                if let Some(stop) = stops.get(&flow) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }
    for stop in stops.values() {
        stop.store(true, Ordering::Relaxed);
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn flow(plan: &FlowPlan, stop: &AtomicBool) {
    sleep_until_ns(plan.start_ns);
    let flow = plan.flow;
    say(&Report::Started {
        flow,
        at_ns: now_ns(),
    });
    match transfer(plan, stop) {
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

fn transfer(plan: &FlowPlan, stop: &AtomicBool) -> io::Result<u64> {
    let mut stream = TcpStream::connect_timeout(&plan.to, CONNECT_TIMEOUT)?;
    let mut first = [0u8; WRITE_BYTES];
    first[..4].copy_from_slice(&FLOW_MAGIC.to_be_bytes());
    first[4..8].copy_from_slice(&plan.flow.to_be_bytes());
    const HEADER_BYTES: u64 = 8;
    stream.set_write_timeout(Some(STOP_POLL))?;

    let limit = plan.bytes.unwrap_or(u64::MAX);
    let mut sent = 0u64;
    let over = |sent: u64| {
        sent >= HEADER_BYTES
            && (sent >= limit
                || stop.load(Ordering::Relaxed)
                || plan.stop_ns.is_some_and(|at| now_ns() >= at))
    };
    while !over(sent) {
        let chunk = (limit.max(HEADER_BYTES) - sent).min(WRITE_BYTES as u64) as usize;
        // Only the first bytes name the flow; what follows is payload of any content.
        let from = if sent < HEADER_BYTES {
            sent as usize
        } else {
            0
        };
        match stream.write(&first[from..chunk.max(from + 1)]) {
            Ok(n) => sent += n as u64,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // The receiver closes when it has read everything.
    let mut rest = [0u8; 64];
    while stream.read(&mut rest)? > 0 {}
    Ok(sent)
}
