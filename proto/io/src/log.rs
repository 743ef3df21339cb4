//! Logging that never blocks: a thread writes the lines, and lines that it cannot keep up with are
//! dropped and counted.
//!
//! A blocked output (a full pipe, a journal that stands still) would else stop the thread that
//! logs, and leases with it.

mod limit;

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use limit::{RepeatLimit, held_back_lines};

/// Maximum number of lines in the queue.
const MAX_LINES: usize = 4_096;

/// Maximum number of bytes in the queue.
const MAX_BYTES: usize = 1 << 20;

/// Longest wait for the queue at the end of a process.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// State of the queue, shared by writers and thread.
#[derive(Debug, Default)]
struct LogBacklog {
    lost: AtomicU64,
    waiting_lines: AtomicUsize,
    waiting_bytes: AtomicUsize,
}

/// Writer that never blocks. Clones write to one log.
#[derive(Debug, Clone)]
pub struct LogWriter {
    lines: SyncSender<Vec<u8>>,
    backlog: Arc<LogBacklog>,
}

static STANDARD_ERROR: OnceLock<LogWriter> = OnceLock::new();

impl LogWriter {
    /// The process's log, on standard error.
    #[must_use]
    pub fn standard_error() -> Self {
        STANDARD_ERROR
            .get_or_init(|| Self::to(io::stderr()))
            .clone()
    }

    /// Makes a log that a thread writes to `out`.
    #[must_use]
    pub fn to(out: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = sync_channel(MAX_LINES);
        let backlog = Arc::<LogBacklog>::default();
        let known = Arc::clone(&backlog);
        let thread = std::thread::Builder::new().name("log".to_owned());
        // Without a thread nothing is received, and every line is counted as lost.
        let _ = thread.spawn(move || write_lines(&waiting, &known, out));
        Self { lines, backlog }
    }

    /// Lines that were dropped so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.backlog.lost.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, for half a second at most.
    #[allow(
        clippy::disallowed_methods,
        reason = "the process is ending, and nothing else is left to do"
    )]
    pub fn flush_at_end(&self) {
        let until = Instant::now() + FLUSH_TIMEOUT;
        while self.backlog.waiting_lines.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Lines of the process's log that were dropped so far.
#[must_use]
pub fn lost_lines() -> u64 {
    STANDARD_ERROR.get().map_or(0, LogWriter::lost)
}

/// Guard that flushes the process's log when it is dropped, unless the output is blocked.
#[derive(Debug)]
pub struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        if let Some(log) = STANDARD_ERROR.get() {
            log.flush_at_end();
        }
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let backlog = &self.backlog;
        // Counted before the attempt: the thread may take the line at once, and subtracts
        // afterwards.
        let waiting = backlog
            .waiting_bytes
            .fetch_add(line.len(), Ordering::Relaxed);
        backlog.waiting_lines.fetch_add(1, Ordering::Relaxed);
        if waiting + line.len() > MAX_BYTES || self.lines.try_send(line.to_vec()).is_err() {
            backlog
                .waiting_bytes
                .fetch_sub(line.len(), Ordering::Relaxed);
            backlog.waiting_lines.fetch_sub(1, Ordering::Relaxed);
            backlog.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(lines: &Receiver<Vec<u8>>, backlog: &LogBacklog, mut out: impl Write) {
    let mut reported = 0;
    for line in lines {
        // A closed output takes nothing, and no other place is left to report that.
        let _ = out.write_all(&line);
        let lost = backlog.lost.load(Ordering::Relaxed);
        if lost > reported {
            let _ = writeln!(
                out,
                "{} log lines were dropped: they were not taken fast enough",
                lost - reported
            );
            reported = lost;
        }
        backlog
            .waiting_bytes
            .fetch_sub(line.len(), Ordering::Relaxed);
        backlog.waiting_lines.fetch_sub(1, Ordering::Release);
    }
}

/// Throttle for log lines that peers can cause: passes one per pause and counts the others.
#[derive(Debug)]
pub struct LogThrottle {
    began: OnceLock<Instant>,
    next_ns: AtomicU64,
    held_back: AtomicU64,
    pause: Duration,
}

impl LogThrottle {
    /// Makes a throttle of one line per `pause`.
    #[must_use]
    pub const fn new(pause: Duration) -> Self {
        Self {
            began: OnceLock::new(),
            next_ns: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
            pause,
        }
    }

    /// Returns the number of suppressed lines if one may be logged now, else `None`.
    #[allow(
        clippy::disallowed_methods,
        reason = "how often something is logged decides nothing else"
    )]
    pub fn now(&self) -> Option<u64> {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = nanos(self.began.get_or_init(Instant::now).elapsed());
        let next_ns = self.next_ns.load(Ordering::Relaxed);
        let later_ns = now_ns.saturating_add(nanos(self.pause)).max(1);
        // Of several threads at a time, only the one that moves `next_ns` logs.
        let mine = next_ns <= now_ns
            && self
                .next_ns
                .compare_exchange(next_ns, later_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            Some(self.held_back.swap(0, Ordering::Relaxed))
        } else {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Output that blocks until a message or the end of the channel.
    struct BlockedOutput(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for BlockedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Without a sender left, it goes on by itself.
            let _ = self.0.recv();
            self.1
                .lock()
                .expect("not poisoned")
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn blocked() -> (LogWriter, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (go_on, told) = channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let log = LogWriter::to(BlockedOutput(told, Arc::clone(&written)));
        (log, go_on, written)
    }

    #[test]
    fn an_output_that_stands_still_holds_nobody_up() {
        let (mut log, go_on, written) = blocked();
        // Would never return if any of these waited.
        for line in 0..3 * MAX_LINES {
            log.write_all(format!("line {line}\n").as_bytes())
                .expect("never fails");
        }
        assert!(log.lost() >= 2 * MAX_LINES as u64 - 1, "{}", log.lost());
        drop(go_on);
        log.flush_at_end();
        let text = String::from_utf8(written.lock().expect("not poisoned").clone()).expect("text");
        assert!(text.starts_with("line 0\nline 1\n") || text.starts_with("line 0\n"));
        let told = format!("{} log lines were dropped", log.lost());
        assert!(text.contains(&told), "it says what is missing");
    }

    #[test]
    fn long_lines_take_no_more_memory_than_short_ones() {
        let (mut log, _go_on, _) = blocked();
        for _ in 0..MAX_LINES {
            log.write_all(&[b'x'; 10_000]).expect("never fails");
        }
        let kept = MAX_LINES as u64 - log.lost();
        assert!(kept * 10_000 <= MAX_BYTES as u64 + 10_000, "{kept}");
    }

    #[test]
    fn lines_that_are_taken_are_all_written_in_order() {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (go_on, told) = channel();
        drop(go_on);
        let mut log = LogWriter::to(BlockedOutput(told, Arc::clone(&written)));
        let mut expected = String::new();
        for line in 0..100 {
            let text = format!("line {line}\n");
            log.write_all(text.as_bytes()).expect("never fails");
            expected += &text;
        }
        log.flush_at_end();
        assert_eq!(*written.lock().expect("not poisoned"), expected.as_bytes());
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn what_is_logged_seldom_counts_the_rest() {
        let throttle = LogThrottle::new(Duration::from_secs(3_600));
        assert_eq!(throttle.now(), Some(0));
        for _ in 0..10 {
            assert_eq!(throttle.now(), None);
        }
        let often = LogThrottle::new(Duration::ZERO);
        assert_eq!(
            (often.now(), often.held_back.load(Ordering::Relaxed)),
            (Some(0), 0)
        );
    }
}
