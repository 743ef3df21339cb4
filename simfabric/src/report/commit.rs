//! Which source a result came from.

use std::process::Command;
use std::sync::OnceLock;

/// The commit of the source that this program was built from, twelve digits, with `+` when the
/// working tree has changes; `unknown` outside a checkout.
///
/// A package sets `RATEWRIGHT_COMMIT` when it builds. Otherwise the checkout that the program was
/// built in is asked, once per process, so that a commit does not rebuild the crate.
#[must_use]
pub fn commit() -> &'static str {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(|| match option_env!("RATEWRIGHT_COMMIT") {
        Some(commit) => commit.to_owned(),
        None => from_checkout().unwrap_or_else(|| "unknown".to_owned()),
    })
}

fn from_checkout() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(env!("CARGO_MANIFEST_DIR"))
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changed.trim().is_empty() { "" } else { "+" };
    Some(format!("{}{mark}", head.trim()))
}
