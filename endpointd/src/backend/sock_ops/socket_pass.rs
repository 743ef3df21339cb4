//! Programs that are run once per TCP socket of the caller's network namespace.

use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::{Link, Program};

use super::bpf;
use crate::backend::BackendError;
use crate::backend::slots::system;
use crate::backend::sys::{attach_iterator, begin_iteration};

/// An attached iterator over the TCP sockets.
#[derive(Debug)]
pub(super) struct SocketPass(OwnedFd);

impl SocketPass {
    /// Attaches an iterator's program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn of(program: BorrowedFd<'_>) -> Result<Self, BackendError> {
        attach_iterator(program)
            .map(Self)
            .map_err(system("attach a TCP socket iterator"))
    }

    /// Attaches the iterator's program that is pinned at `path`.
    ///
    /// # Errors
    /// When it is none, or the kernel refuses.
    pub(super) fn pinned(path: &Path) -> Result<Self, BackendError> {
        let program =
            Program::fd_from_pinned_path(path).map_err(bpf("open the pinned release program"))?;
        Self::of(program.as_fd())
    }

    /// Opens the attached iterator that is pinned at `path`, as earlier versions did.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn pinned_link(path: &Path) -> Result<Self, BackendError> {
        let link = Link::open(path).map_err(bpf("open an earlier daemon's release program"))?;
        let link = link.as_fd().try_clone_to_owned();
        link.map(Self).map_err(system("keep a link"))
    }

    /// Runs the program over the sockets of this thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn run(&self) -> Result<(), BackendError> {
        let mut pass =
            begin_iteration(self.0.as_fd()).map_err(system("start walking the TCP sockets"))?;
        let mut sink = [0; 512];
        loop {
            match pass.read(&mut sink) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(system("walk the TCP sockets")(error)),
            }
        }
    }
}
