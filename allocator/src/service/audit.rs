//! Audit log: every change that an operator makes, with who made it.
//!
//! Entries stand in memory, the newest [`KEPT`] of them, and in a file of JSON lines, if one is
//! configured. A thread of its own writes the file. A file that cannot be written stops nothing:
//! its entries are counted as lost. SIGHUP opens the file again, so that a rotated one is left
//! alone.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ratewright_io::admin::Peer;
use ratewright_io::log::LogWriter;
use serde::Serialize;
use serde_json::Value;

use super::clock;

/// Entries in memory.
pub const KEPT: usize = 1_000;
/// Bytes of a request's body that an entry repeats.
const MAX_DETAIL_BYTES: usize = 1_024;
/// The file's mode.
const MODE: u32 = 0o640;

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditEntry {
    /// Number since the allocator's start.
    pub seq: u64,
    /// Wall clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// Author.
    pub who: Who,
    /// Request and path, or `reload`.
    pub action: String,
    /// Body of the request: as JSON, or as text.
    pub detail: Value,
    /// HTTP status of the answer; for a reload `ok` or the reason of its refusal.
    pub result: String,
}

/// Author of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Who {
    /// A process at the Unix socket, as the kernel names it (SO_PEERCRED).
    Process {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Its number, if the kernel tells.
        pid: Option<i32>,
    },
    /// A client at the TCP address.
    Address {
        /// Its address and port.
        address: String,
    },
    /// A signal to this process; the kernel tells nobody who sent it.
    Signal,
    /// Nobody that is known.
    Unknown,
}

impl From<Option<&Peer>> for Who {
    fn from(peer: Option<&Peer>) -> Self {
        match peer {
            Some(Peer::Unix { uid, gid, pid }) => Self::Process {
                uid: *uid,
                gid: *gid,
                pid: *pid,
            },
            Some(Peer::Tcp(address)) => Self::Address {
                address: address.to_string(),
            },
            None => Self::Unknown,
        }
    }
}

/// The newest entries and the counts, as `GET /audit` shows them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditPage {
    /// File, if there is one.
    pub file: Option<PathBuf>,
    /// Entries since the start.
    pub entries_total: u64,
    /// Entries that the file did not take.
    pub lost_total: u64,
    /// The newest ones, oldest first.
    pub entries: Vec<AuditEntry>,
}

/// The audit log. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct AuditLog {
    state: Arc<Mutex<State>>,
    unwritten: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    path: Option<PathBuf>,
    writer: Option<LogWriter>,
    /// Lines that former writers dropped.
    dropped_before: u64,
    seq: u64,
    recent: VecDeque<AuditEntry>,
}

impl AuditLog {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held left whole entries.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file again, or another one, or none.
    pub fn reopen(&self, path: Option<&Path>) {
        let mut state = self.state();
        state.dropped_before += state.writer.as_ref().map_or(0, LogWriter::lost);
        state.path = path.map(Path::to_owned);
        // The former writer's thread writes what it has, and ends.
        state.writer = path.map(|path| {
            LogWriter::to(AuditFile {
                path: path.to_owned(),
                file: None,
                unwritten: Arc::clone(&self.unwritten),
            })
        });
    }

    /// Adds an entry.
    pub fn record(&self, who: Who, action: String, detail: &[u8], result: String) {
        let mut state = self.state();
        state.seq += 1;
        let entry = AuditEntry {
            seq: state.seq,
            at_ms: clock::wall_ms(),
            who,
            action,
            detail: detail_of(detail),
            result,
        };
        if let Some(writer) = &mut state.writer {
            let mut line = serde_json::to_vec(&entry).unwrap_or_default();
            line.push(b'\n');
            // Never waits; what the thread cannot keep up with is counted.
            let _ = writer.write_all(&line);
        }
        if state.recent.len() >= KEPT {
            state.recent.pop_front();
        }
        state.recent.push_back(entry);
    }

    /// Returns the newest `last` entries, at most [`KEPT`].
    pub fn page(&self, last: usize) -> AuditPage {
        let state = self.state();
        let skipped = state.recent.len().saturating_sub(last);
        AuditPage {
            file: state.path.clone(),
            entries_total: state.seq,
            lost_total: self.unwritten.load(Ordering::Relaxed)
                + state.dropped_before
                + state.writer.as_ref().map_or(0, LogWriter::lost),
            entries: state.recent.iter().skip(skipped).cloned().collect(),
        }
    }
}

/// Parses a body, or quotes it, shortened.
fn detail_of(body: &[u8]) -> Value {
    if body.is_empty() {
        return Value::Null;
    }
    if body.len() <= MAX_DETAIL_BYTES
        && let Ok(value) = serde_json::from_slice(body)
    {
        return value;
    }
    let shown = &body[..body.len().min(MAX_DETAIL_BYTES)];
    Value::String(String::from_utf8_lossy(shown).trim().to_owned())
}

/// File of the audit log, opened at its first line and after an error.
struct AuditFile {
    path: PathBuf,
    file: Option<File>,
    unwritten: Arc<AtomicU64>,
}

impl AuditFile {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut file = OpenOptions::new()
                    .read(true)
                    .append(true)
                    .create(true)
                    .mode(MODE)
                    .open(&self.path)?;
                end_last_line(&mut file)?;
                self.file.insert(file)
            }
        };
        file.write_all(line)
    }
}

/// Ends a line that a full disk or a killed process has left unfinished: it would spoil the next.
fn end_last_line(file: &mut File) -> io::Result<()> {
    let mut last = [b'\n'];
    let bytes = file.metadata()?.len();
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(())
}

impl Write for AuditFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.append(line) {
            // Opened anew for the next line: the operator may have made room.
            self.file = None;
            if self.unwritten.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!(%error, file = %self.path.display(), "the audit log is not written");
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[allow(clippy::disallowed_methods, reason = "the writer is a thread")]
    fn until(what: &str, done: impl Fn() -> bool) {
        for _ in 0..1_000 {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{what}");
    }

    fn record(log: &AuditLog, action: &str, detail: &str) {
        log.record(
            Who::Signal,
            action.to_owned(),
            detail.as_bytes(),
            "200".to_owned(),
        );
    }

    fn lines(path: &Path) -> Vec<Value> {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect()
    }

    #[test]
    fn entries_are_lines_of_json_and_a_rotated_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, rotated) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let log = AuditLog::default();
        log.reopen(Some(&path));
        record(&log, "POST /release", r#"{"host":"h3"}"#);
        until("the first line", || lines(&path).len() == 1);
        std::fs::rename(&path, &rotated).expect("renamed");
        log.reopen(Some(&path));
        record(&log, "PUT /log-level", "debug\n");
        until("the second line", || lines(&path).len() == 1);
        assert_eq!(lines(&rotated)[0]["detail"]["host"], "h3");
        let second = &lines(&path)[0];
        assert_eq!(
            (&second["detail"], &second["seq"]),
            (&"debug".into(), &2.into())
        );
        assert_eq!(second["who"]["by"], "signal");
    }

    #[test]
    fn a_file_that_cannot_be_written_stops_nothing_and_is_counted() {
        let log = AuditLog::default();
        // A disk without room, as the kernel plays it.
        log.reopen(Some(Path::new("/dev/full")));
        for _ in 0..10 {
            record(&log, "POST /release", "");
        }
        until("ten lost entries", || log.page(KEPT).lost_total == 10);
        log.reopen(Some(Path::new("/nowhere/at/all")));
        record(&log, "POST /resume", "");
        until("one more", || log.page(KEPT).lost_total == 11);
        assert_eq!(log.page(3).entries.len(), 3);
        assert_eq!(log.page(KEPT).entries_total, 11);
    }

    #[test]
    fn a_line_that_was_written_in_part_spoils_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit");
        std::fs::write(&path, r#"{"seq":7,"at_ms":17"#).expect("written");
        let log = AuditLog::default();
        log.reopen(Some(&path));
        record(&log, "POST /release", "");
        record(&log, "POST /resume", "");
        let text = || std::fs::read_to_string(&path).expect("readable");
        until("both entries", || text().matches('\n').count() == 3);
        let actions = text()
            .lines()
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>();
        for (line, action) in actions.iter().zip(["POST /release", "POST /resume"]) {
            let entry: Value = serde_json::from_str(line).expect("a line is JSON");
            assert_eq!(entry["action"], action);
        }
        assert_eq!(log.page(KEPT).lost_total, 0);
    }

    #[test]
    fn memory_is_bounded_in_number_and_size() {
        let log = AuditLog::default();
        let long = "x".repeat(100 * MAX_DETAIL_BYTES);
        for _ in 0..KEPT + 10 {
            record(&log, "PUT /log-level", &long);
        }
        let page = log.page(usize::MAX);
        assert_eq!(page.entries.len(), KEPT);
        assert_eq!(page.entries[0].seq, 11);
        for entry in page.entries {
            assert!(entry.detail.as_str().expect("text").len() <= MAX_DETAIL_BYTES);
        }
    }
}
