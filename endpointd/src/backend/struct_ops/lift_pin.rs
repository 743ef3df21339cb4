//! Pin of the program that lifts a daemon's maxima, for the daemon that follows a killed one.
//!
//! A socket that leaves the congestion control has the daemon's maximum until a pass meets it. The
//! application's own maximum is in the program's storage, whose layout another version may not
//! know. The next daemon therefore has that program itself give every socket its own maximum.

use libbpf_rs::{Link, ProgramMut};

use super::take_over::walk_sockets;
use crate::backend::BackendError;
use crate::backend::pins::PinDir;

const NAME: &str = "struct_ops";
const PIN: &str = "lift";

/// The pin, in a directory that is locked for as long as this value lives.
pub(super) struct LiftPin {
    /// `None`: there is no BPF file system, or another daemon has the directory.
    pins: Option<PinDir>,
    /// Program of the daemon before, which has run in this namespace.
    earlier: Option<Link>,
}

impl LiftPin {
    /// Opens the directory of `instance`. Runs the program that a killed daemon has left there over
    /// the sockets of this namespace. Pacing does not depend on it: failures are logged.
    pub(super) fn open(instance: &str) -> Self {
        let pins = PinDir::open(instance, NAME)
            .inspect_err(|error| {
                tracing::warn!(%error, "nothing of this daemon's lifts its maxima once it is killed");
            })
            .ok();
        let held = pins.as_ref().filter(|pins| pins.holds(PIN));
        let earlier = held.and_then(|pins| {
            run(pins)
                .inspect_err(|error| tracing::warn!(%error, "an earlier daemon's maxima may stay"))
                .ok()
        });
        Self { pins, earlier }
    }

    /// Returns the program of the daemon before, if it has run.
    pub(super) fn earlier(&self) -> Option<&Link> {
        self.earlier.as_ref()
    }

    /// Pins `program` in the place of an earlier daemon's.
    ///
    /// # Errors
    /// When the kernel or the file system refuses.
    pub(super) fn replace(&self, program: &ProgramMut<'_>) -> Result<(), BackendError> {
        let Some(pins) = &self.pins else {
            return Ok(());
        };
        let failed = |error| BackendError::bpf("pin the program that lifts maxima", &error);
        let mut link = program.attach().map_err(failed)?;
        pins.clear().map_err(|source| BackendError::System {
            what: "remove an earlier daemon's pin".to_owned(),
            source,
        })?;
        link.pin(pins.path(PIN)).map_err(failed)
    }

    /// Removes the pin and the directory.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(super) fn remove(&mut self) -> Result<(), BackendError> {
        self.pins.take().map_or(Ok(()), PinDir::remove)
    }
}

impl Drop for LiftPin {
    /// A daemon that did not come to pin its program leaves no directory behind, but for an earlier
    /// daemon's pin.
    fn drop(&mut self) {
        if self.pins.as_ref().is_some_and(|pins| !pins.holds(PIN))
            && let Err(error) = self.remove()
        {
            tracing::warn!(%error, "a directory of pins stays behind");
        }
    }
}

fn run(pins: &PinDir) -> Result<Link, BackendError> {
    let link = Link::open(pins.path(PIN))
        .map_err(|error| BackendError::bpf("open an earlier daemon's program", &error))?;
    walk_sockets(&link, None)?;
    Ok(link)
}
