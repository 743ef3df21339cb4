//! One daemon for each network namespace.
//!
//! Two daemons would undo each other: both take over the namespace's connections, and the allocator
//! has one session for the host. A second one must not replace anything of the first.
//!
//! The lock is on a file in a folder that only root can enter. Any local user could take an
//! abstract socket's name, and so keep the daemon from starting. File locks end with their process,
//! so a file that was left behind means nothing.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::backend::namespaces::own_inode;

/// Folder of the lock files of this machine's daemons.
const FOLDER: &str = "/run/ratewright/locks";

/// Interval of the tries while another daemon has the lock.
const RETRY: Duration = Duration::from_millis(20);

/// Lock of one daemon, held for as long as this value lives.
#[derive(Debug)]
pub struct InstanceLock {
    _file: Flock<File>,
}

impl InstanceLock {
    /// Takes the lock of this network namespace; `None` if another daemon has it.
    ///
    /// # Errors
    /// When the file cannot be had.
    pub fn take() -> io::Result<Option<Self>> {
        Self::of("endpointd")
    }

    /// Takes the lock of this network namespace. Another daemon that has it may be about to end: on
    /// a busy machine it takes seconds to give its sockets back. `None` if it still has the lock
    /// after `patience`.
    ///
    /// # Errors
    /// When the file cannot be had.
    pub fn take_within(patience: Duration) -> io::Result<Option<Self>> {
        Self::within(patience, Self::take)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "before the runtime begins, there is nobody else to serve"
    )]
    fn within(
        patience: Duration,
        mut take: impl FnMut() -> io::Result<Option<Self>>,
    ) -> io::Result<Option<Self>> {
        let begun = Instant::now();
        loop {
            let taken = take()?;
            if taken.is_some() || begun.elapsed() >= patience {
                return Ok(taken);
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Takes the lock of `what` within this network namespace.
    ///
    /// # Errors
    /// When the file cannot be had.
    pub fn of(what: &str) -> io::Result<Option<Self>> {
        // The calling thread's namespace: tests and probes move single threads to other namespaces.
        let namespace = own_inode().map_err(io::Error::other)?;
        Self::at(Path::new(FOLDER), &format!("{what}-{namespace}"))
    }

    fn at(folder: &Path, name: &str) -> io::Result<Option<Self>> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)?;
        // Another user may have made the folder before, and its owner could replace the files
        // inside.
        let found = std::fs::symlink_metadata(folder)?;
        if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::other(format!(
                "{} is not a folder of this user's",
                folder.display()
            )));
        }
        std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A link in place of the file would have root create or lock a file elsewhere.
            .custom_flags(libc::O_NOFOLLOW)
            .open(folder.join(name))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn only_one_has_it_and_it_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("locks");
        let first = InstanceLock::at(&place, "a").unwrap();
        assert!(first.is_some());
        assert!(InstanceLock::at(&place, "a").unwrap().is_none());
        assert!(InstanceLock::at(&place, "b").unwrap().is_some());
        drop(first);
        assert!(place.join("a").exists(), "a file that was left behind");
        assert!(InstanceLock::at(&place, "a").unwrap().is_some());
    }

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "the owner has a thread of its own"
    )]
    fn an_owner_that_ends_is_waited_for_and_one_that_stays_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let take = || InstanceLock::at(folder.path(), "a");
        let first = take().unwrap();
        let begun = Instant::now();
        let patience = Duration::from_millis(100);
        assert!(InstanceLock::within(patience, take).unwrap().is_none());
        assert!(begun.elapsed() >= patience);
        let ends = std::thread::spawn(move || {
            std::thread::sleep(patience);
            drop(first);
        });
        let second = InstanceLock::within(Duration::from_secs(60), take);
        assert!(second.unwrap().is_some());
        ends.join().unwrap();
    }

    #[test]
    fn nobody_else_gets_into_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("locks");
        DirBuilder::new().mode(0o777).create(&place).unwrap();
        std::fs::set_permissions(&place, Permissions::from_mode(0o777)).unwrap();
        let _lock = InstanceLock::at(&place, "a").unwrap().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join("a"))), (0o700, 0o600));
        std::os::unix::fs::symlink("/dev/null", place.join("b")).unwrap();
        assert!(
            InstanceLock::at(&place, "b").is_err(),
            "no link is followed"
        );
    }

    #[test]
    fn a_name_that_any_user_can_take_is_worth_nothing() {
        // What daemons once locked: abstract names have no owner and no mode.
        let held = SocketAddr::from_abstract_name("ratewright-endpointd")
            .and_then(|name| UnixDatagram::bind_addr(&name));
        let folder = tempfile::tempdir().unwrap();
        assert!(
            InstanceLock::at(folder.path(), "endpointd")
                .unwrap()
                .is_some()
        );
        drop(held);
    }
}
