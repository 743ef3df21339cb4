//! Runs the system's `ip` and `tc`, and turns their failures into errors that name the command.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `program` with `args`.
///
/// # Errors
/// When it cannot be run or exits with a failure; the error carries what it printed.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    run_with_input(program, args, "")
}

/// Runs `program` with `args` and gives it `input`: how `ip -batch -` and `tc -batch -` take many
/// commands in one process.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(program: &str, args: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{program}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that fails early closes its input; its exit status says so below.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("waiting for `{program}`"))?;
    if !output.status.success() {
        let line = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{program} {}` failed: {}\n{input}",
            args.join(" "),
            line.trim()
        );
    }
    Ok(())
}

/// Whether `program` is somewhere in PATH (or in the directories where Debian keeps system tools).
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|directory| std::path::Path::new(directory).join(program).is_file())
}
