//! Records the commit that results name: that of the source which is being built, not of whatever
//! the checkout holds when the program runs.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RATEWRIGHT_COMMIT");
    println!("cargo::rerun-if-changed=src");
    // The log of HEAD grows with each commit and checkout, in a linked worktree at a place of its
    // own.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(file) = git(&["rev-parse", "--git-path", name])
            && Path::new(&file).exists()
        {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    let commit = std::env::var("RATEWRIGHT_COMMIT")
        .ok()
        .or_else(from_checkout)
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=RATEWRIGHT_COMMIT={commit}");
}

fn from_checkout() -> Option<String> {
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changed.is_empty() { "" } else { "+" };
    Some(format!("{head}{mark}"))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
