//! Runs the system's `ip` and `tc`, and turns their failures into errors that name the command.

use std::io::Write;
use std::path::{Path, PathBuf};
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
    let mut child = Command::new(find(program).unwrap_or_else(|| program.into()))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{program}`"))?;
    // Taken out, so that it is closed before the wait: `-batch -` reads to the end of its input.
    if let Some(mut stdin) = child.stdin.take() {
        // A command that fails early closes its input; its exit status says so below.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("waiting for `{program}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{program} {}` failed: {}",
            args.join(" "),
            complaint(&said, input)
        );
    }
    Ok(())
}

/// Finds `program` in PATH, or where distributions keep system tools, which root's PATH lacks after
/// `su` without `-`.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(std::env::split_paths(&path), program)
}

fn find_in(path: impl Iterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    // Last: what PATH names has precedence.
    path.chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Puts the output of a failed command into one line. In batch mode `ip` and `tc` name the line at
/// fault by its number ("Command failed -:3"), so the line itself is added.
fn complaint(said: &str, input: &str) -> String {
    let mut text = said.trim().replace('\n', "; ");
    let line = said
        .split("Command failed -:")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok())
        // ip and tc count lines from 1.
        .and_then(|number| input.lines().nth(number.checked_sub(1)?));
    if let Some(line) = line {
        text.push_str(&format!(" (`{}`)", line.trim()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_tools_are_found_when_path_lacks_their_directories() {
        let nowhere = || ["/nonexistent"].map(PathBuf::from).into_iter();
        let found = find_in(nowhere(), "ip").expect("iproute2 is what the lab is built with");
        assert!(
            found.starts_with("/usr/sbin") || found.starts_with("/sbin"),
            "{}",
            found.display()
        );
        assert_eq!(find_in(nowhere(), "no-such-program"), None);
    }

    #[test]
    fn a_failed_batch_is_one_line_with_the_line_at_fault() {
        let said = "Error: Nexthop has invalid gateway.\nCommand failed -:2\n";
        let text = complaint(said, "link set lo up\nroute add default via 10.0.0.1\n");
        assert_eq!(
            text,
            "Error: Nexthop has invalid gateway.; Command failed -:2 (`route add default via 10.0.0.1`)"
        );
        assert_eq!(complaint("no such file\n", ""), "no such file");
    }
}
