//! cgroup v2 ids of a path and everything below it.
//!
//! The kernel names a socket's cgroup by a 64-bit id, which is the inode number of the cgroup's
//! directory. Cgroups come and go, so the ids are read again when a flow shows an unknown one.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::backend::cgroup::Cgroup;

/// Usual mount point of cgroup v2.
const USUAL_MOUNT: &str = "/sys/fs/cgroup";

/// Most cgroups of one rule's subtree.
const MAX_CGROUPS: usize = 65_536;

/// The cgroup v2 hierarchy. It is found even where the daemon's own mount namespace hides it, as
/// under `ip netns exec`.
#[derive(Debug)]
pub struct CgroupTree {
    /// Mount point; rules may begin with it.
    mount: PathBuf,
    /// Path by which this process reaches the mount point.
    root: PathBuf,
    /// Held open: paths through it work in any mount namespace.
    _directory: Option<File>,
}

impl CgroupTree {
    /// Opens this machine's hierarchy, or an empty one if there is none.
    #[must_use]
    pub fn system() -> Self {
        match Cgroup::open(None) {
            Ok(Cgroup {
                directory, path, ..
            }) => Self {
                mount: path,
                root: PathBuf::from(format!("/proc/self/fd/{}/.", directory.as_raw_fd())),
                _directory: Some(directory),
            },
            Err(error) => {
                tracing::debug!(%error, "policy rules by cgroup match nothing");
                Self::at(Path::new(USUAL_MOUNT))
            }
        }
    }

    /// The directories below `mount`.
    #[must_use]
    pub fn at(mount: &Path) -> Self {
        Self {
            mount: mount.to_owned(),
            root: mount.to_owned(),
            _directory: None,
        }
    }

    /// Returns the mount point.
    #[must_use]
    pub fn mount(&self) -> &Path {
        &self.mount
    }
}

/// The ids of a cgroup and of those below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupIds(BTreeSet<u64>);

impl CgroupIds {
    /// Walks `path`, which is below the mount point or starts with it; empty if it does not exist.
    #[must_use]
    pub fn below(tree: &CgroupTree, path: &Path) -> Self {
        let inside = path
            .strip_prefix(&tree.mount)
            .or_else(|_| path.strip_prefix("/"))
            .unwrap_or(path);
        let mut ids = BTreeSet::new();
        let mut todo = vec![tree.root.join(inside)];
        while let Some(directory) = todo.pop() {
            // A cgroup that vanishes during the walk has no sockets to match.
            let Ok(metadata) = std::fs::symlink_metadata(&directory) else {
                continue;
            };
            // A link could lead out of the tree, and an unbounded tree would hold the daemon's only
            // thread.
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

    /// Returns true if `id` is one of them.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.0.contains(&id)
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_for_itself_and_everything_below() {
        let mount = tempfile::tempdir().unwrap();
        let tree = CgroupTree::at(mount.path());
        std::fs::create_dir_all(mount.path().join("batch/job1/step")).unwrap();
        std::fs::create_dir_all(mount.path().join("web")).unwrap();
        std::fs::write(mount.path().join("batch/cgroup.procs"), "").unwrap();
        let id = |path: &str| std::fs::metadata(mount.path().join(path)).unwrap().ino();

        let absolute = mount.path().join("batch");
        for path in [Path::new("batch"), Path::new("/batch"), &absolute] {
            let ids = CgroupIds::below(&tree, path);
            assert!(
                ids.contains(id("batch")) && ids.contains(id("batch/job1/step")),
                "{path:?}"
            );
            assert!(!ids.contains(id("web")) && !ids.contains(id("batch/cgroup.procs")));
        }
        assert!(CgroupIds::below(&tree, Path::new("absent")).is_empty());
    }

    #[test]
    fn the_machine_s_own_tree_is_read_through_a_descriptor() {
        let tree = CgroupTree::system();
        if tree._directory.is_none() {
            // No cgroup v2 on this machine: nothing is there, and nothing matches.
            return;
        }
        let all = CgroupIds::below(&tree, Path::new("/"));
        assert_eq!(CgroupIds::below(&tree, tree.mount()), all);
        assert!(!all.is_empty());
        assert!(CgroupIds::below(&tree, Path::new("ratewright-absent")).is_empty());
    }
}
