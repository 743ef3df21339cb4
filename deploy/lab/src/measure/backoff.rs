//! Watches a host's connections for one that waits in back-off without sending data: its
//! retransmission timer goes off, segments leave, and none of them carries a byte. Nothing that a
//! receiver could acknowledge is in flight then, and the connection never ends.

use ratewright_cli::clock;
use rustc_hash::FxHashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustc_hash::FxHashMap;

use super::sockdiag::{SockDiag, SocketState};
use crate::net::ns::Netns;

/// Time-outs that matter are at least 200 ms apart.
const EVERY: Duration = Duration::from_millis(200);

/// Samples a host's connections until [`finish`](BackoffWatch::finish).
#[derive(Debug)]
pub struct BackoffWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<usize>>>,
}

impl BackoffWatch {
    /// Watches `host`'s connections towards `ports`.
    ///
    /// # Errors
    /// When its kernel cannot be asked.
    pub fn start(host: &Netns, ports: RangeInclusive<u16>) -> Result<BackoffWatch> {
        let mut kernel = SockDiag::open(host)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sample = move || {
            let mut watched = Watched::default();
            while !stopped.load(Ordering::Relaxed) {
                watched.sample(&kernel.connections(ports.clone())?);
                clock::sleep(EVERY);
            }
            Ok(watched.silent.len())
        };
        let thread = std::thread::Builder::new()
            .name("backoff".into())
            .spawn(sample)
            .context("starting the back-off watch")?;
        Ok(BackoffWatch {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends it; returns how many connections were in back-off without sending data.
    ///
    /// # Errors
    /// When the kernel did not answer.
    pub fn finish(mut self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(0);
        };
        thread
            .join()
            .map_err(|_| anyhow!("the back-off watch panicked"))?
    }
}

impl Drop for BackoffWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Watched {
    last: FxHashMap<(u8, u16), SocketState>,
    silent: FxHashSet<(u8, u16)>,
}

impl Watched {
    fn sample(&mut self, connections: &[SocketState]) {
        for now in connections {
            if let Some(before) = self.last.get(&now.id)
                && is_silent(before, now)
            {
                self.silent.insert(now.id);
            }
        }
        // Replaced as a whole: connections that are gone must not be compared with later ones of
        // their port.
        self.last = connections.iter().map(|now| (now.id, *now)).collect();
    }
}

/// Returns true if segments left between two samples in back-off, and none of them carried data. It
/// returns false while the receiver's window is closed, since probes carry none, and once only the
/// end of the stream is left.
fn is_silent(before: &SocketState, now: &SocketState) -> bool {
    let waits = |at: &SocketState| {
        at.backoff > 0
            && at.probes == 0
            && at.unacked > 0
            && (at.established || at.unsent_bytes > 0)
    };
    waits(before)
        && waits(now)
        && now.segments_sent != before.segments_sent
        && now.data_segments_sent == before.data_segments_sent
        && now.bytes_retransmitted == before.bytes_retransmitted
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUCK: SocketState = SocketState {
        id: (2, 4_000),
        established: true,
        has_maximum: true,
        data_segments_sent: 100,
        segments_sent: 110,
        bytes_retransmitted: 0,
        unsent_bytes: 50_000,
        unacked: 1,
        backoff: 3,
        probes: 0,
    };

    fn silent(before: SocketState, now: SocketState) -> usize {
        let mut watched = Watched::default();
        watched.sample(&[before]);
        watched.sample(&[now]);
        watched.silent.len()
    }

    #[test]
    fn time_outs_that_send_no_byte_are_seen() {
        let later = SocketState {
            segments_sent: 111,
            ..STUCK
        };
        assert_eq!(silent(STUCK, later), 1);
        assert_eq!(silent(STUCK, STUCK), 0, "no time-out between the samples");
    }

    #[test]
    fn retransmissions_probes_and_ends_are_no_fault() {
        let later = SocketState {
            segments_sent: 111,
            ..STUCK
        };
        let data = SocketState {
            data_segments_sent: 101,
            bytes_retransmitted: 1_448,
            ..later
        };
        assert_eq!(silent(STUCK, data), 0);
        let probed = SocketState { probes: 1, ..later };
        assert_eq!(silent(STUCK, probed), 0);
        let end = |at| SocketState {
            established: false,
            unsent_bytes: 0,
            ..at
        };
        assert_eq!(silent(end(STUCK), end(later)), 0);
        let other = SocketState {
            id: (10, 4_000),
            ..later
        };
        assert_eq!(silent(STUCK, other), 0, "another connection");
    }
}
