//! Namespaces whose connections use cubic, whatever the machine's default is.

use std::fs::File;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use nix::sched::{CloneFlags, setns};

use super::NamespacePair;

const ALLOWED_CC: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Runs `work` on a thread in the namespace of the process's first thread. The tests' threads leave
/// that one, and the setting can be written there only.
fn in_first_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> std::thread::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let first = File::open("/proc/self/ns/net").expect("this process has a namespace");
            setns(first, CloneFlags::CLONE_NEWNET).expect("enter the namespace (root)");
            work()
        });
        thread.join()
    })
}

/// Returns the congestion controls that namespaces may use.
pub fn allowed() -> Vec<String> {
    let read = || std::fs::read_to_string(ALLOWED_CC).expect("readable");
    let list = in_first_namespace(read).expect("read");
    list.split_whitespace().map(str::to_owned).collect()
}

/// Users of the permission in this process.
struct Users {
    count: u32,
    /// The permission was not there before the first of them.
    added: bool,
}

static USERS: Mutex<Users> = Mutex::new(Users {
    count: 0,
    added: false,
});

/// Permission for every namespace to use cubic. The last one that is dropped takes it back, if it
/// was not there before the first.
pub struct CubicAllowed(());

impl CubicAllowed {
    pub fn new() -> Self {
        let allow = || {
            let list = std::fs::read_to_string(ALLOWED_CC).expect("readable");
            let added = !list.split_whitespace().any(|name| name == "cubic");
            if added {
                std::fs::write(ALLOWED_CC, format!("{} cubic", list.trim()))
                    .expect("allow cubic in namespaces (root)");
            }
            added
        };
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if users.count == 0 {
            users.added = in_first_namespace(allow).expect("allowed");
        }
        users.count += 1;
        Self(())
    }
}

impl Drop for CubicAllowed {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.count -= 1;
        if users.count > 0 || !users.added {
            return;
        }
        let forbid = || {
            let list = std::fs::read_to_string(ALLOWED_CC)?;
            // What others have allowed meanwhile stays.
            let rest: Vec<_> = list
                .split_whitespace()
                .filter(|name| *name != "cubic")
                .collect();
            std::fs::write(ALLOWED_CC, rest.join(" "))
        };
        match in_first_namespace(forbid) {
            Ok(Ok(())) => {}
            failed => println!("{ALLOWED_CC} keeps cubic: {failed:?}"),
        }
    }
}

/// A pair of namespaces whose connections use cubic.
pub struct CubicPair {
    pair: NamespacePair,
    _allowed: CubicAllowed,
}

impl Deref for CubicPair {
    type Target = NamespacePair;

    fn deref(&self) -> &NamespacePair {
        &self.pair
    }
}

/// A pair of namespaces whose connections use cubic from their first packet, whatever the machine's
/// default is: one that began under bbr keeps TCP's internal pacing for life.
pub fn cubic_pair() -> CubicPair {
    let allowed = CubicAllowed::new();
    let pair = NamespacePair::new();
    for namespace in [&pair.left, &pair.right] {
        namespace.set_ipv4("tcp_congestion_control", "cubic");
    }
    CubicPair {
        pair,
        _allowed: allowed,
    }
}
