//! Reads byte counters of switch ports every 10 ms, from a thread inside the switch's namespace.
//!
//! The counter is the port's own: bytes of whole Ethernet frames that left it, as HTB counts them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use ratewright_cli::clock::{NS_PER_MS, now_ns, sleep_until_ns};

use super::recording::{PortRecord, SharedRecording};
use crate::net::ns::Netns;

const EVERY_NS: u64 = 10 * NS_PER_MS;
const FILE_BYTES: usize = 64 * 1024;

/// Samples ports until it is dropped.
#[derive(Debug)]
pub struct PortSampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PortSampler {
    /// Watches `devices` (with their capacities) of `switch`; appends a port per device to the
    /// recording.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn start(
        switch: &Netns,
        devices: &[(String, u64)],
        recording: &SharedRecording,
    ) -> Result<PortSampler> {
        let file = switch
            // The open file stays that of the namespace, so the sampler's thread need not enter it.
            .within(|| File::open("/proc/thread-self/net/dev"))?
            .context("opening /proc/net/dev")?;
        let first = {
            let mut recording = recording.lock();
            let first = recording.ports.len();
            recording
                .ports
                .extend(devices.iter().map(|(name, capacity)| PortRecord {
                    name: name.clone(),
                    capacity_bps: *capacity,
                    samples: Vec::new(),
                }));
            first
        };
        let stop = Arc::new(AtomicBool::new(false));
        let devices: Vec<String> = devices.iter().map(|(name, _)| name.clone()).collect();
        let (recording, stopped) = (recording.clone(), Arc::clone(&stop));
        let sample = move || {
            let mut text = vec![0u8; FILE_BYTES];
            let mut next = now_ns();
            while !stopped.load(Ordering::Relaxed) {
                // Read from the beginning each time: the kernel writes the table on each read at 0.
                let length = file.read_at(&mut text, 0).unwrap_or(0);
                // Taken after the read: the bytes had been sent by then.
                let at = now_ns();
                let read = String::from_utf8_lossy(&text[..length]);
                let mut recording = recording.lock();
                for (i, device) in devices.iter().enumerate() {
                    if let Some(bytes) = bytes_sent(&read, device) {
                        recording.ports[first + i].samples.push((at, bytes));
                    }
                }
                drop(recording);
                // A sampler that was held up leaves out what it missed.
                next = (next + EVERY_NS).max(at);
                sleep_until_ns(next);
            }
        };
        let thread = std::thread::Builder::new()
            .name("ports".into())
            .spawn(sample)
            .context("starting the port sampler")?;
        Ok(PortSampler {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for PortSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The ninth column after the device's name in /proc/net/dev.
fn bytes_sent(text: &str, device: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == device).then(|| counters.split_whitespace().nth(8)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_senders_column_is_read() {
        let text = "Inter-|   Receive\n face |bytes\n  p1: 10 1 0 0 0 0 0 0 77 2 0 0 0 0 0 0\n p11: 1 1 0 0 0 0 0 0 5 2 0 0 0 0 0 0\n";
        assert_eq!(bytes_sent(text, "p1"), Some(77));
        assert_eq!(bytes_sent(text, "p11"), Some(5));
        assert_eq!(bytes_sent(text, "p2"), None);
    }
}
