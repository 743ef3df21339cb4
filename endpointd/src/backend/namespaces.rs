//! Network namespaces besides the daemon's own whose sockets are paced too: those of pods.
//!
//! A container runtime binds each pod's namespace to a file (containerd and CRI-O:
//! `/run/netns/cni-…`). The files' patterns are configured, because a namespace may as well be a
//! host with a daemon of its own, as in the lab.
//!
//! No namespace stays open: that would keep it, and its devices, beyond its pod.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use super::BackendError;

/// Most namespaces that a daemon paces besides its own.
pub(crate) const NAMESPACES_MAX: u32 = 1_024;
/// Interval of searches for new ones.
const SEARCH_NS: u64 = 500_000_000;
/// Files that one search looks at.
const FILES_MAX: usize = 4 * NAMESPACES_MAX as usize;

/// Identity of a network namespace. The kernel gives the number of one that has ended to one of the
/// next, so the time at which the inode was made belongs to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamespaceId {
    inode: u32,
    /// Seconds and nanoseconds.
    made: (i64, i64),
}

impl NamespaceId {
    /// Returns the identity of the namespace that a file with `metadata` is bound to.
    fn of(metadata: &Metadata) -> Option<Self> {
        let inode = u32::try_from(metadata.ino()).ok()?;
        let made = (metadata.ctime(), metadata.ctime_nsec());
        Some(Self { inode, made })
    }
}

/// A network namespace, by a file that it is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) id: NamespaceId,
    path: PathBuf,
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> BackendError {
    let what = format!("{what} {}", path.display());
    move |source| BackendError::System { what, source }
}

/// Opens a file that may be a namespace; nothing else is waited for or changed.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        // A pattern may match a named pipe, whose opening would wait for a writer.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

impl Namespace {
    /// Returns the namespace that `path` is bound to; `None` if it is another file, for instance
    /// one that a runtime has made and not yet bound.
    fn at(path: &Path) -> Option<Self> {
        let file = open(path).ok()?;
        let kind = fstatfs(&file).ok()?.filesystem_type();
        let id = NamespaceId::of(&file.metadata().ok()?)?;
        (kind == NSFS_MAGIC).then(|| Self {
            id,
            path: path.to_owned(),
        })
    }

    /// Returns true while the file is bound to this namespace.
    pub(super) fn is_there(&self) -> bool {
        Self::at(&self.path).is_some_and(|found| found.id == self.id)
    }

    /// Runs `work` on a thread of its own inside the namespace. The thread never returns to the
    /// daemon's namespace, so a failure cannot leave the daemon in the wrong one.
    ///
    /// # Errors
    /// When the namespace is gone or cannot be entered, and what `work` returns.
    pub(super) fn run<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BackendError> + Send,
    ) -> Result<T, BackendError> {
        let enter = || {
            let file = open(&self.path)?;
            // Another pod's may be bound to the file by now.
            if NamespaceId::of(&file.metadata()?) != Some(self.id) {
                return Err(io::ErrorKind::NotFound.into());
            }
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            Ok(())
        };
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    enter().map_err(failed("enter the network namespace", &self.path))?;
                    work()
                })
                .join()
                .unwrap_or_else(|_| {
                    let panicked = io::Error::other("the thread inside it panicked");
                    Err(failed("work in the network namespace", &self.path)(
                        panicked,
                    ))
                })
        })
    }
}

/// Returns the inode of the calling thread's network namespace.
///
/// # Errors
/// When `/proc` does not show it.
pub(crate) fn own_inode() -> Result<u32, BackendError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let meta = fs::metadata(path).map_err(failed("stat", path))?;
    u32::try_from(meta.ino()).map_err(|_| failed("stat", path)(io::ErrorKind::InvalidData.into()))
}

/// Change since the last search.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// One namespace that has come; also a known one that is bound to another file now.
    pub(super) came: Option<Namespace>,
    /// All that are gone.
    pub(super) gone: Vec<NamespaceId>,
}

/// Search for namespaces by patterns of files.
#[derive(Debug)]
pub(super) struct NamespaceSearch {
    patterns: Vec<String>,
    own: u32,
    known: BTreeMap<NamespaceId, PathBuf>,
    /// Known ones that were not yet returned.
    waiting: VecDeque<Namespace>,
    next_ns: u64,
    full: bool,
}

impl NamespaceSearch {
    /// Makes a search for files that match one of `patterns`. Never finds the namespace of the
    /// inode `own`.
    pub(super) fn new(patterns: &[String], own: u32) -> Self {
        Self {
            patterns: patterns.to_vec(),
            own,
            known: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_ns: 0,
            full: false,
        }
    }

    /// Returns the time of the next [`follow`](Self::follow); `None` without patterns.
    pub(super) fn next_ns(&self) -> Option<u64> {
        if !self.waiting.is_empty() {
            return Some(0);
        }
        (!self.patterns.is_empty()).then_some(self.next_ns)
    }

    /// Searches, if it is time, and returns one namespace that has come: a node of many pods does
    /// not hold the daemon up. Costs one system call per file that is known already.
    pub(super) fn follow(&mut self, now_ns: u64) -> Change {
        let gone = if !self.patterns.is_empty() && now_ns >= self.next_ns {
            self.next_ns = now_ns + SEARCH_NS;
            self.search()
        } else {
            Vec::new()
        };
        Change {
            came: self.waiting.pop_front(),
            gone,
        }
    }

    fn search(&mut self) -> Vec<NamespaceId> {
        let mut seen = BTreeMap::new();
        let files = self
            .patterns
            .iter()
            .flat_map(|pattern| glob::glob(pattern).into_iter().flatten().flatten())
            .take(FILES_MAX);
        for path in files {
            let known = fs::metadata(&path)
                .ok()
                .and_then(|file| NamespaceId::of(&file))
                .filter(|id| self.known.get(id) == Some(&path));
            if let Some(id) = known {
                seen.insert(id, path);
                continue;
            }
            let Some(namespace) = Namespace::at(&path) else {
                continue;
            };
            // Two files may be bound to one namespace.
            if namespace.id.inode == self.own || seen.contains_key(&namespace.id) {
                continue;
            }
            if seen.len() >= NAMESPACES_MAX as usize {
                if !self.full {
                    tracing::warn!(
                        most = NAMESPACES_MAX,
                        "too many network namespaces match pacing.network_namespaces: the rest stay plain TCP"
                    );
                }
                self.full = true;
                break;
            }
            seen.insert(namespace.id, path);
            self.waiting.push_back(namespace);
        }
        let gone = self.known.keys().copied();
        let gone: Vec<_> = gone.filter(|id| !seen.contains_key(id)).collect();
        self.waiting
            .retain(|namespace| seen.get(&namespace.id) == Some(&namespace.path));
        self.known = seen;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_namespaces_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cni-file"), "").unwrap();
        fs::create_dir(folder.path().join("cni-folder")).unwrap();
        std::os::unix::fs::symlink("/absent", folder.path().join("cni-dangling")).unwrap();
        let pipe = folder.path().join("cni-pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let pattern = folder.path().join("cni-*").display().to_string();
        let mut search = NamespaceSearch::new(&[pattern], 1);
        assert_eq!(search.follow(1), Change::default());
    }

    #[test]
    fn a_namespace_is_found_once_and_missed_once() {
        let folder = tempfile::tempdir().unwrap();
        let own = own_inode().unwrap();
        // Bound to no file, a namespace has an inode for as long as somebody holds it.
        let _held = open(Path::new("/proc/thread-self/ns/net")).unwrap();
        let (one, two) = (folder.path().join("cni-1"), folder.path().join("cni-2"));
        for path in [&one, &two] {
            std::os::unix::fs::symlink("/proc/thread-self/ns/net", path).unwrap();
        }
        let patterns = [folder.path().join("cni-*").display().to_string()];
        // As the daemon's own it is none of them.
        let mut search = NamespaceSearch::new(&patterns, own);
        assert_eq!(search.follow(1), Change::default());
        let mut search = NamespaceSearch::new(&patterns, 1);
        let found = search.follow(1).came.unwrap();
        assert_eq!((found.id.inode, found.path.as_path()), (own, &*one));
        assert_eq!(
            search.follow(1),
            Change::default(),
            "two files, one namespace"
        );
        assert_eq!(search.follow(1 + SEARCH_NS), Change::default());
        fs::remove_file(&one).unwrap();
        let moved = search.follow(1 + 2 * SEARCH_NS);
        assert_eq!(moved.came.unwrap().path, &*two);
        assert!(moved.gone.is_empty());
        fs::remove_file(&two).unwrap();
        assert_eq!(search.follow(1 + 3 * SEARCH_NS).gone, [found.id]);
    }

    #[test]
    fn without_patterns_nothing_is_searched_for() {
        let mut search = NamespaceSearch::new(&[], 1);
        assert_eq!(search.next_ns(), None);
        assert_eq!(search.follow(1), Change::default());
    }

    #[test]
    fn a_file_that_changed_hands_is_not_entered() {
        let path = Path::new("/proc/thread-self/ns/net");
        let _held = open(path).unwrap();
        let own = Namespace::at(path).unwrap();
        let mut others = [own.id; 2];
        others[0].inode += 1;
        // The number of one that ended.
        others[1].made.0 -= 1;
        for id in others {
            let path = path.to_owned();
            let entered = Namespace { id, path }.run(|| Ok(()));
            assert!(entered.is_err(), "{id:?} is not {own:?}");
        }
    }
}
