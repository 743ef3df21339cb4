//! Pinned kernel objects, which outlive the daemon in a directory of a BPF file system.
//!
//! `/sys/fs/bpf` is used where it is mounted. Elsewhere a BPF file system of our own is mounted at
//! `/run/ratewright/<instance>/bpf`. Both are looked up in the mount namespace of process 1: pins
//! in a private one would vanish exactly when they are needed, after the daemon is killed.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::BackendError;
use super::mounts::in_first_mount_namespace;
use super::slots::system;

/// Usual mount point of the BPF file system.
const SYSTEM_BPFFS: &str = "/sys/fs/bpf";

/// A directory for one back end of one instance, locked for as long as this value lives.
#[derive(Debug)]
pub(super) struct PinDir {
    /// Held open: paths through it work in any mount namespace.
    directory: Flock<File>,
    place: PathBuf,
    mounted_at: Option<PathBuf>,
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == BPF_FS_MAGIC)
}

impl PinDir {
    /// Opens the directory of `backend` of `instance`; makes it if it is missing.
    ///
    /// # Errors
    /// When there is no BPF file system and none can be mounted, or when another daemon has the
    /// directory.
    pub(super) fn open(instance: &str, backend: &'static str) -> Result<Self, BackendError> {
        let private = PathBuf::from(format!("/run/ratewright/{instance}/bpf"));
        let (place, mounted_at, directory) = in_first_mount_namespace(|| {
            // Our own file system first: an earlier daemon's pins stay there although /sys/fs/bpf
            // was mounted since.
            let (place, mounted_at) = if is_bpffs(&private) {
                (private.join(backend), Some(private.clone()))
            } else if is_bpffs(Path::new(SYSTEM_BPFFS)) {
                (
                    Path::new(SYSTEM_BPFFS)
                        .join("ratewright")
                        .join(instance)
                        .join(backend),
                    None,
                )
            } else {
                fs::create_dir_all(&private)?;
                mount(
                    Some("bpf"),
                    &private,
                    Some("bpf"),
                    MsFlags::empty(),
                    // As the folders below.
                    Some("mode=700"),
                )?;
                (private.join(backend), Some(private.clone()))
            };
            // Pins are handles of programs and maps: only root may find them.
            let mut folders = fs::DirBuilder::new();
            folders.recursive(true).mode(0o700).create(&place)?;
            let directory = File::open(&place)?;
            Ok((place, mounted_at, directory))
        })
        .map_err(system(
            "open a directory in a BPF file system (root is needed)",
        ))?;
        // Without waiting: a second daemon must say why it does not start, not hang.
        let directory = Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            if errno == nix::errno::Errno::EWOULDBLOCK {
                BackendError::Unavailable {
                    mechanism: backend,
                    reason: format!(
                        "another daemon of the instance `{instance}` is running; stop it, or give this one another instance name"
                    ),
                }
            } else {
                BackendError::System { what: format!("lock {}", place.display()), source: errno.into() }
            }
        })?;
        Ok(Self {
            directory,
            place,
            mounted_at,
        })
    }

    /// Returns the path of the pin `name`, valid in any mount namespace of this process.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!(
            "/proc/self/fd/{}/{name}",
            self.directory.as_raw_fd()
        ))
    }

    /// Returns true if `name` is pinned.
    pub(super) fn holds(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Removes every pin.
    pub(super) fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.path("."))? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    /// Removes every pin and the directory, and unmounts what was mounted for it.
    pub(super) fn remove(self) -> Result<(), BackendError> {
        let failed = |place: &Path| system(format!("remove {}", place.display()));
        self.clear().map_err(failed(&self.place))?;
        let Self {
            directory,
            place,
            mounted_at,
        } = self;
        // An open directory would keep the file system busy, and the unmount would fail.
        drop(directory);
        in_first_mount_namespace(|| {
            fs::remove_dir(&place)?;
            // The parent belongs to the instance's other back ends as well.
            let emptied = place.parent().is_some_and(|parent| {
                fs::read_dir(parent).is_ok_and(|mut entries| {
                    !entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir()))
                })
            });
            match mounted_at {
                Some(mounted_at) if emptied => {
                    umount(&mounted_at)?;
                    fs::remove_dir(&mounted_at)?;
                    // Other files of the instance may be beside it.
                    let _ = mounted_at.parent().map(fs::remove_dir);
                }
                None if emptied => {
                    let _ = place.parent().map(fs::remove_dir);
                }
                _ => {}
            }
            Ok(())
        })
        .map_err(failed(&place))
    }
}
