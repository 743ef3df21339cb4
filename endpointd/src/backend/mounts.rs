//! The file system as process 1 sees it.
//!
//! `ip netns exec` and units with `PrivateMounts=` give the daemon a mount namespace of its own.
//! The cgroup hierarchy may be hidden there, and mounts made there end with the daemon.

use std::fs::{self, File};
use std::io;
use std::sync::OnceLock;

use nix::sched::{CloneFlags, setns, unshare};

/// Returns the mount namespace that outlives the daemon, if it is not the daemon's own. It is found
/// once: what was installed there is removed there, though the parent has ended by then.
fn outer_mount_namespace() -> Option<&'static File> {
    static FOUND: OnceLock<Option<File>> = OnceLock::new();
    FOUND.get_or_init(find_outer_mount_namespace).as_ref()
}

/// Opens the mount namespace of process 1, or that of the parent where a sandbox hides process 1.
fn find_outer_mount_namespace() -> Option<File> {
    let own = fs::read_link("/proc/self/ns/mnt").ok()?;
    let candidates = [1, nix::unistd::getppid().as_raw()];
    let place = candidates
        .into_iter()
        .map(|process| format!("/proc/{process}/ns/mnt"))
        .find(|place| fs::read_link(place).is_ok())?;
    let differs = fs::read_link(&place).is_ok_and(|namespace| namespace != own);
    differs.then(|| File::open(place).ok()).flatten()
}

/// Runs `work` where process 1 sees the file system; without the privilege (some containers), in
/// this process's own view.
pub(super) fn in_first_mount_namespace<T: Send>(
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                if let Some(namespace) = outer_mount_namespace() {
                    // Only this thread moves; without its own fs_struct the kernel would refuse.
                    let moved = unshare(CloneFlags::CLONE_FS)
                        .and_then(|()| setns(namespace, CloneFlags::CLONE_NEWNS));
                    if let Err(error) = moved {
                        tracing::warn!(%error, "staying in the daemon's own mount namespace: what it pins may not outlive it");
                    }
                }
                work()
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    })
}
