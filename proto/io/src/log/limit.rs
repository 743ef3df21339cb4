//! Limit on repeated log lines: a kind of line, which is a place in the source, is logged
//! `LINES` times per `WINDOW` at most. The number of lines that were held back is told.
//!
//! A thousand hosts that connect at once, or one that fails again and again, would else fill the
//! log with lines of one kind, and push the others out.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::LogWriter;

/// Most lines of one kind per window,
const LINES: u32 = 50;
/// and the length of a window.
const WINDOW: Duration = Duration::from_secs(10);

/// Lines of the process that were held back so far.
static HELD_BACK: AtomicU64 = AtomicU64::new(0);

/// Returns the number of log lines of the process that were held back.
#[must_use]
pub fn held_back_lines() -> u64 {
    HELD_BACK.load(Ordering::Relaxed)
}

/// One kind of line.
#[derive(Debug)]
struct Kind {
    level: Level,
    window_began: Instant,
    lines: u32,
    held_back: u64,
}

/// Kinds by file and line. The program's source bounds their number.
type Kinds = BTreeMap<(&'static str, u32), Kind>;

/// Layer of a subscriber that holds back what exceeds the limit.
#[derive(Debug)]
pub struct RepeatLimit<W> {
    kinds: Mutex<Kinds>,
    told: W,
}

impl RepeatLimit<fn() -> LogWriter> {
    /// Makes the layer of a process that logs to standard error.
    #[must_use]
    pub fn standard_error() -> Self {
        Self::new(LogWriter::standard_error)
    }
}

impl<W, O: Write> RepeatLimit<W>
where
    W: Fn() -> O,
{
    /// Makes a layer that tells to `told` what was held back.
    pub fn new(told: W) -> Self {
        Self {
            kinds: Mutex::default(),
            told,
        }
    }

    /// Counts a line. Returns true if it may be logged.
    fn admit(&self, now: Instant, metadata: &Metadata<'static>) -> bool {
        let place = (metadata.file().unwrap_or("?"), metadata.line().unwrap_or(0));
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        // Kinds are some hundreds at most: each look tells of those whose window is over.
        for ((file, line), kind) in kinds.iter_mut() {
            if kind.held_back > 0 && now.duration_since(kind.window_began) >= WINDOW {
                let held_back = std::mem::take(&mut kind.held_back);
                // A log that cannot be written has no other place to say so.
                let _ = writeln!(
                    (self.told)(),
                    "{:>5} {held_back} more lines like that of {file}:{line} were held back",
                    kind.level
                );
            }
        }
        let kind = kinds.entry(place).or_insert_with(|| Kind {
            level: *metadata.level(),
            window_began: now,
            lines: 0,
            held_back: 0,
        });
        if now.duration_since(kind.window_began) >= WINDOW {
            kind.window_began = now;
            kind.lines = 0;
        }
        if kind.lines < LINES {
            kind.lines += 1;
            return true;
        }
        kind.held_back += 1;
        HELD_BACK.fetch_add(1, Ordering::Relaxed);
        false
    }
}

impl<S, W, O> Layer<S> for RepeatLimit<W>
where
    S: Subscriber,
    W: Fn() -> O + Send + Sync + 'static,
    O: Write,
{
    #[allow(
        clippy::disallowed_methods,
        reason = "how often something is logged decides nothing else"
    )]
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.admit(Instant::now(), event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Output that several owners write to.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0
                .lock()
                .expect("not poisoned")
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text")
        }
    }

    fn flood(line: u32) {
        tracing::info!(line, "the flood");
    }

    #[test]
    fn a_flood_of_one_kind_leaves_room_for_others() {
        let (logged, told) = (Shared::default(), Shared::default());
        let (to, teller) = (logged.clone(), told.clone());
        let subscriber = tracing_subscriber::registry()
            .with(RepeatLimit::new(move || teller.clone()))
            .with(
                tracing_subscriber::fmt::layer()
                    .with_ansi(false)
                    .with_writer(move || to.clone()),
            );
        tracing::subscriber::with_default(subscriber, || {
            for line in 0..1_000 {
                flood(line);
            }
            tracing::info!("another kind");
        });
        let text = logged.text();
        assert_eq!(text.matches("the flood").count(), LINES as usize);
        assert!(text.contains("another kind"), "{text}");
        assert!(held_back_lines() >= 1_000 - u64::from(LINES));
        assert_eq!(told.text(), "", "the window is not over");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the layer takes the time")]
    fn what_was_held_back_is_told_after_the_window() {
        use tracing::callsite::DefaultCallsite;
        use tracing::field::FieldSet;
        use tracing::metadata::Kind as Of;

        static CALLSITE: DefaultCallsite = DefaultCallsite::new(&METADATA);
        static METADATA: Metadata<'static> = Metadata::new(
            "event",
            "test",
            Level::WARN,
            Some("hub.rs"),
            Some(7),
            None,
            FieldSet::new(&[], tracing::callsite::Identifier(&CALLSITE)),
            Of::EVENT,
        );
        let told = Shared::default();
        let teller = told.clone();
        let limit = RepeatLimit::new(move || teller.clone());
        let began = Instant::now();
        let admitted = (0..LINES + 25)
            .filter(|_| limit.admit(began, &METADATA))
            .count();
        assert_eq!(admitted, LINES as usize);
        assert!(limit.admit(began + WINDOW, &METADATA));
        assert_eq!(
            told.text(),
            " WARN 25 more lines like that of hub.rs:7 were held back\n"
        );
    }
}
