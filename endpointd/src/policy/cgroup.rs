//! cgroup v2 ids of a path and everything below it.
//!
//! The kernel names a socket's cgroup by a 64-bit id, which is the inode number of the cgroup's
//! directory. Cgroups come and go, so that the ids are looked up again when a flow shows one that
//! was never seen.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A rule's subtree is followed to at most this many cgroups.
const MAX_CGROUPS: usize = 65_536;

/// The ids of a cgroup and of those below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupIds(BTreeSet<u64>);

impl CgroupIds {
    /// Walks `path`, which is below `mount` or starts with it; empty if it does not exist.
    #[must_use]
    pub fn below(mount: &Path, path: &Path) -> Self {
        let root = if path.starts_with(mount) {
            path.to_owned()
        } else {
            mount.join(path.strip_prefix("/").unwrap_or(path))
        };
        let mut ids = BTreeSet::new();
        let mut todo = vec![root];
        while let Some(directory) = todo.pop() {
            // A cgroup that vanishes during the walk has no sockets to match.
            let Ok(metadata) = std::fs::symlink_metadata(&directory) else {
                continue;
            };
            if !metadata.is_dir() || ids.len() >= MAX_CGROUPS {
                continue;
            }
            ids.insert(metadata.ino());
            let Ok(entries) = std::fs::read_dir(&directory) else {
                continue;
            };
            todo.extend(
                entries
                    .flatten()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path()),
            );
        }
        Self(ids)
    }

    /// Whether the id is one of them.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.0.contains(&id)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where cgroup v2 is mounted, from the process's mount table; `/sys/fs/cgroup` if it says nothing.
#[must_use]
pub fn mount_point() -> PathBuf {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mount_point_in(&table).unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"))
}

fn mount_point_in(table: &str) -> Option<PathBuf> {
    table.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let target = fields.nth(1)?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(target.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_for_itself_and_everything_below() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(mount.path().join("batch/job1/step")).unwrap();
        std::fs::create_dir_all(mount.path().join("web")).unwrap();
        std::fs::write(mount.path().join("batch/cgroup.procs"), "").unwrap();
        let id = |path: &str| std::fs::metadata(mount.path().join(path)).unwrap().ino();

        let absolute = mount.path().join("batch");
        for path in [Path::new("batch"), Path::new("/batch"), &absolute] {
            let ids = CgroupIds::below(mount.path(), path);
            assert!(
                ids.contains(id("batch")) && ids.contains(id("batch/job1/step")),
                "{path:?}"
            );
            assert!(!ids.contains(id("web")) && !ids.contains(id("batch/cgroup.procs")));
        }
        assert!(CgroupIds::below(mount.path(), Path::new("absent")).is_empty());
    }

    #[test]
    fn the_mount_table_names_the_mount_point() {
        let table = "proc /proc proc rw 0 0\ncgroup2 /run/my\\040cg cgroup2 rw 0 0\n";
        assert_eq!(mount_point_in(table), Some(PathBuf::from("/run/my cg")));
        assert_eq!(mount_point_in("tmpfs /tmp tmpfs rw 0 0\n"), None);
    }
}
