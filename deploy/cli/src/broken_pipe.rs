//! Writes into a closed pipe.

#![allow(unsafe_code)] // signal

/// Lets a closed pipe end this process quietly, as it does other command-line programs. Not for one
/// that has to clean up.
pub fn ends_the_process() {
    // Rust's runtime ignores SIGPIPE, and println! then panics on a closed pipe.
    // SAFETY: called before any thread is started; the default action needs no handler.
    let _ = unsafe {
        nix::sys::signal::signal(
            nix::sys::signal::Signal::SIGPIPE,
            nix::sys::signal::SigHandler::SigDfl,
        )
    };
}
