//! A long cable: two TAP devices, and a thread that carries frames between them, each after the
//! cable's delay. It stands in for netem, which not every kernel has.

#![allow(unsafe_code)] // TUNSETIFF

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use ratewright_cli::clock::{NS_PER_MS, now_ns};

use super::ns::Netns;
use crate::proc;

/// Frames under way in one direction, in bytes: 40 ms of 1.6 Gbit/s. More is dropped.
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// An Ethernet frame of the lab's networks, and more.
const FRAME_BYTES: usize = 2048;
/// Frames that are taken at once from one end, so that neither waits long for the other.
const FRAMES_AT_ONCE: usize = 64;
/// Time-out after which the thread heeds its end.
const STOP_POLL_NS: u64 = 50 * NS_PER_MS;

/// Carries frames until it is dropped; the devices go with it.
#[derive(Debug)]
pub struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Makes a TAP device of the given name in each of two namespaces, and joins them by a cable
    /// with this one-way delay.
    ///
    /// # Errors
    /// When the kernel refuses a device or the thread.
    pub fn start(ends: [(&Netns, &str); 2], delay: Duration) -> Result<Relay> {
        let open = |(netns, device): (&Netns, &str)| {
            netns
                .within(|| tap(device))?
                .with_context(|| format!("TAP device {device} in {}", netns.name()))
        };
        let ends = [open(ends[0])?, open(ends[1])?];
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let delay_ns = delay.as_nanos() as u64;
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || {
                proc::before_others();
                carry(&ends, delay_ns, &stopped);
            })
            .context("starting a relay")?;
        Ok(Relay {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A TAP device of the calling thread's namespace, without blocking.
fn tap(name: &str) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: an ifreq of zeroes is valid: a name without characters and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero, which ends the name.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and the ifreq lives for the call's duration.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Frames under way in one direction, each with the time of its arrival.
#[derive(Debug, Default)]
struct Line {
    frames: VecDeque<(u64, Vec<u8>)>,
    queued_bytes: usize,
}

impl Line {
    fn take(&mut self, due_ns: u64, frame: &[u8]) {
        if self.queued_bytes + frame.len() <= MAX_QUEUED_BYTES {
            self.queued_bytes += frame.len();
            self.frames.push_back((due_ns, frame.to_vec()));
        }
    }

    fn due(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        // All frames wait equally long, so they are in order of their times.
        let (_, frame) = self.frames.pop_front_if(|(due_ns, _)| *due_ns <= now_ns)?;
        self.queued_bytes -= frame.len();
        Some(frame)
    }
}

fn carry(ends: &[File; 2], delay_ns: u64, stop: &AtomicBool) {
    let mut lines = [Line::default(), Line::default()];
    let mut buffer = [0u8; FRAME_BYTES];
    while !stop.load(Ordering::Relaxed) {
        for (from, line) in lines.iter_mut().enumerate() {
            let (mut near, mut far) = (&ends[from], &ends[1 - from]);
            for _ in 0..FRAMES_AT_ONCE {
                // A device that is down refuses to be read; its frames are lost like a cable's.
                let Ok(length) = near.read(&mut buffer) else {
                    break;
                };
                line.take(now_ns() + delay_ns, &buffer[..length]);
            }
            while let Some(frame) = line.due(now_ns()) {
                let _ = far.write(&frame);
            }
        }
        let now = now_ns();
        let next = lines
            .iter()
            .filter_map(|line| line.frames.front())
            .map(|(due_ns, _)| due_ns.saturating_sub(now))
            .fold(STOP_POLL_NS, u64::min);
        let mut waiting = ends
            .each_ref()
            .map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
        // Ends early at a frame; an interrupted wait is a short one.
        let timeout = TimeSpec::from_duration(Duration::from_nanos(next));
        let _ = ppoll(&mut waiting, Some(timeout), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_order_after_their_delay() {
        let mut line = Line::default();
        line.take(10, b"first");
        line.take(20, b"second");
        assert_eq!(line.due(9), None);
        assert_eq!(line.due(10).as_deref(), Some(&b"first"[..]));
        assert_eq!(line.due(19), None);
        assert_eq!(line.due(30).as_deref(), Some(&b"second"[..]));
        assert_eq!(line.queued_bytes, 0);
    }

    #[test]
    fn a_full_line_drops_what_comes_last() {
        let mut line = Line::default();
        let frame = [0u8; FRAME_BYTES];
        for _ in 0..=MAX_QUEUED_BYTES / FRAME_BYTES {
            line.take(0, &frame);
        }
        assert_eq!(line.frames.len(), MAX_QUEUED_BYTES / FRAME_BYTES);
    }
}
