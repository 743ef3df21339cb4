//! One daemon for each network namespace.
//!
//! Two would undo each other: both take the namespace's connections and its default congestion
//! control over, and the allocator has one session for the host. A second one must not get as far as
//! replacing anything of the first.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Held by the one daemon of this network namespace for as long as it lives.
#[derive(Debug)]
pub struct InstanceLock {
    /// An abstract socket name is the namespace's own, and goes with the process, however that ends.
    _name: UnixDatagram,
}

impl InstanceLock {
    /// Takes the lock; `None` if another daemon has it.
    ///
    /// # Errors
    /// When no socket can be had.
    pub fn take() -> io::Result<Option<Self>> {
        Self::named("ratewright-endpointd")
    }

    fn named(name: &str) -> io::Result<Option<Self>> {
        match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Ok(name) => Ok(Some(Self { _name: name })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_has_it_and_it_goes_with_its_owner() {
        let name = format!("ratewright-test-{}", std::process::id());
        let first = InstanceLock::named(&name).unwrap();
        assert!(first.is_some());
        assert!(InstanceLock::named(&name).unwrap().is_none());
        drop(first);
        assert!(InstanceLock::named(&name).unwrap().is_some());
    }
}
