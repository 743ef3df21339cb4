//! One daemon for each device: two would undo each other.
//!
//! A lock on a file that only root can open, so that no other user can take it first. It goes with the
//! process, however that ends; an orderly end removes the file as well.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::{NAME, unavailable};
use crate::backend::BackendError;
use crate::backend::mounts::in_first_mount_namespace;
use crate::backend::slots::system;
use crate::backend::sys::netns_cookie;

/// Where locks lie: root's alone.
const DIRECTORY: &str = "/run/ratewright";

/// Held by the one daemon that paces a device.
#[derive(Debug)]
pub(super) struct DeviceLock {
    path: PathBuf,
    _file: Flock<File>,
}

/// Opens the lock file, making it first if need be.
fn open(path: &Path) -> io::Result<File> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(DIRECTORY)?;
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Whether `file` is what `path` names: an earlier owner may have removed it meanwhile.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let locked = file.metadata()?.ino();
    match fs::symlink_metadata(path) {
        Ok(there) => Ok(there.ino() == locked),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens and locks; `None` if another process has the lock.
fn lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    // An owner removes its file once, so a few tries are plenty.
    for _ in 0..16 {
        match Flock::lock(open(path)?, FlockArg::LockExclusiveNonblock) {
            Ok(file) if is_at(&file, path)? => return Ok(Some(file)),
            Ok(_) => {}
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(errno.into()),
        }
    }
    Err(io::Error::other("the lock is removed again and again"))
}

impl DeviceLock {
    /// Takes the lock of the device `ifindex` of this network namespace.
    ///
    /// # Errors
    /// When another daemon has it, or the file cannot be made.
    pub(super) fn take(device: &str, ifindex: i32) -> Result<Self, BackendError> {
        let here = std::net::UdpSocket::bind("[::]:0")
            .or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))
            .and_then(|socket| netns_cookie(socket.as_fd()))
            .map_err(system("ask for the network namespace's cookie"))?;
        let path = Path::new(DIRECTORY).join(format!("{NAME}-{here}-{ifindex}.lock"));
        // All daemons must see the same file, whatever mount namespace they were given.
        let locked = in_first_mount_namespace(|| lock(&path))
            .map_err(system(format!("lock {}", path.display())))?;
        match locked {
            Some(file) => Ok(Self { path, _file: file }),
            None => Err(unavailable(format!(
                "another daemon paces the device {device}; stop it first"
            ))),
        }
    }
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        let removed = in_first_mount_namespace(|| fs::remove_file(&self.path));
        if let Err(error) = removed {
            tracing::warn!(%error, lock = %self.path.display(), "the device's lock file stays behind");
        }
    }
}
