//! cgroup v2: the mount point of its hierarchy, and the directory that the daemon was given.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::BackendError;
use super::mounts::in_first_mount_namespace;

/// A cgroup v2 directory.
#[derive(Debug)]
pub(crate) struct Cgroup {
    /// Held open; a program is attached to it.
    pub(crate) directory: File,
    /// Path of the directory.
    pub(crate) path: PathBuf,
    /// The kernel's number of the cgroup, which is its directory's inode.
    pub(super) id: u64,
}

fn unavailable(reason: String) -> BackendError {
    BackendError::Unavailable {
        mechanism: "sock_ops",
        reason,
    }
}

/// Finds the mount point of the cgroup v2 hierarchy in `mounts`, a mount table like `/proc/mounts`.
/// On a hybrid machine it is not `/sys/fs/cgroup` itself.
pub(super) fn unified_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(unescape(place)))
    })
}

/// Undoes the escapes of `/proc/mounts`, which writes blanks and the like as three octal digits.
fn unescape(field: &str) -> String {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

impl Cgroup {
    /// Opens `configured`, or the root of the hierarchy.
    ///
    /// # Errors
    /// When there is no cgroup v2 hierarchy, or `configured` is not a directory in it.
    pub(crate) fn open(configured: Option<&Path>) -> Result<Self, BackendError> {
        // The daemon's own view may hide the hierarchy (`ip netns exec` mounts another /sys).
        Self::look(configured).or_else(|hidden| {
            in_first_mount_namespace(|| Ok(Self::look(configured))).unwrap_or(Err(hidden))
        })
    }

    fn look(configured: Option<&Path>) -> Result<Self, BackendError> {
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
        let path = match (configured, unified_mount(&mounts)) {
            (Some(path), _) => path.to_owned(),
            (None, Some(mount)) => mount,
            (None, None) => {
                return Err(unavailable(
                    "no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none /sys/fs/cgroup/unified"
                        .to_owned(),
                ));
            }
        };
        let name = path.display();
        let directory = File::open(&path).map_err(|error| {
            unavailable(format!("the cgroup directory {name} cannot be opened ({error}); create it, or set pacing.cgroup"))
        })?;
        let is_cgroup = nix::sys::statfs::fstatfs(&directory)
            .is_ok_and(|status| status.filesystem_type() == nix::sys::statfs::CGROUP2_SUPER_MAGIC);
        if !is_cgroup {
            return Err(unavailable(format!(
                "{name} is not in a cgroup v2 hierarchy; set pacing.cgroup to a directory under one (grep cgroup2 /proc/mounts)"
            )));
        }
        let id = directory
            .metadata()
            .map_err(|error| unavailable(format!("{name}: {error}")))?
            .ino();
        Ok(Self {
            directory,
            path,
            id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_unified_hierarchy_of_a_hybrid_machine() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            unified_mount(mounts),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(unified_mount("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn undoes_the_escapes_of_the_mount_table() {
        assert_eq!(
            unified_mount("none /mnt/my\\040groups cgroup2 rw 0 0\n"),
            Some(PathBuf::from("/mnt/my groups"))
        );
    }
}
