//! Standard output and standard error for programs that go on after their reader is gone: a closed
//! pipe or terminal is no reason to panic.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes a line to standard output.
///
/// # Errors
/// When the pipe has no reader.
pub fn line(text: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes a line to standard error, if it has a reader.
pub fn complain(text: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}
