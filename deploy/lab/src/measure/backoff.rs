//! Watches a host's connections for one that waits in back-off without sending data: its
//! retransmission timer goes off, segments leave, and none of them carries a byte. Nothing that a
//! receiver could acknowledge is in flight then, and the connection never ends.
//!
//! It also counts those that had a maximum pacing rate which was handed out.

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
    thread: Option<JoinHandle<Result<Watched>>>,
}

/// Result of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Connections that were in back-off without sending data.
    pub silent: usize,
    /// Connections that had a maximum pacing rate which their application had not set.
    pub held: usize,
}

impl BackoffWatch {
    /// Watches `host`'s connections towards `ports`. `own_bytes_per_s` are maxima that
    /// applications set themselves.
    ///
    /// # Errors
    /// When its kernel cannot be asked.
    pub fn start(
        host: &Netns,
        ports: RangeInclusive<u16>,
        own_bytes_per_s: FxHashSet<u64>,
    ) -> Result<BackoffWatch> {
        let mut kernel = SockDiag::open(host)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sample = move || {
            let mut watched = Watched {
                own_bytes_per_s,
                ..Watched::default()
            };
            while !stopped.load(Ordering::Relaxed) {
                watched.sample(&kernel.connections(ports.clone())?);
                clock::sleep(EVERY);
            }
            Ok(watched)
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

    /// Ends it.
    ///
    /// # Errors
    /// When the kernel did not answer.
    pub fn finish(mut self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(Seen::default());
        };
        let watched = thread
            .join()
            .map_err(|_| anyhow!("the back-off watch panicked"))??;
        Ok(watched.seen())
    }
}

impl Drop for BackoffWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Watched {
    own_bytes_per_s: FxHashSet<u64>,
    last: FxHashMap<(u8, u16), SocketState>,
    silent: FxHashSet<(u8, u16)>,
    held: FxHashSet<(u8, u16)>,
}

impl Watched {
    fn sample(&mut self, connections: &[SocketState]) {
        for now in connections {
            if let Some(before) = self.last.get(&now.id)
                && is_silent(before, now)
            {
                self.silent.insert(now.id);
            }
            if let Some(maximum) = now.maximum_bytes_per_s
                && !self.own_bytes_per_s.contains(&maximum)
            {
                self.held.insert(now.id);
            }
        }
        // Replaced as a whole: connections that are gone must not be compared with later ones of
        // their port.
        self.last = connections.iter().map(|now| (now.id, *now)).collect();
    }

    fn seen(&self) -> Seen {
        Seen {
            silent: self.silent.len(),
            held: self.held.len(),
        }
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
        maximum_bytes_per_s: Some(200_000),
        data_segments_sent: 100,
        segments_sent: 110,
        segments_retransmitted: 0,
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
        watched.seen().silent
    }

    #[test]
    fn maxima_that_applications_set_do_not_count_as_handed_out() {
        let mut watched = Watched {
            own_bytes_per_s: [200_000].into_iter().collect(),
            ..Watched::default()
        };
        let with = |port, maximum_bytes_per_s| SocketState {
            id: (2, port),
            maximum_bytes_per_s,
            ..STUCK
        };
        watched.sample(&[with(1, Some(200_000)), with(2, None), with(3, Some(90_000))]);
        assert_eq!(watched.seen().held, 1);
        // Once is enough, and once only.
        watched.sample(&[with(1, Some(90_000)), with(2, None), with(3, None)]);
        assert_eq!(watched.seen().held, 2);
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
