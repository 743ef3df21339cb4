//! The commit that a result came from.
//!
//! It is asked of git when a program first names it, so that a commit compiles nothing anew. `cargo
//! build` leaves a list of its sources beside each program: one that is younger than the program
//! means that the checkout is not what was compiled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

const UNKNOWN: &str = "unknown";

/// Returns the commit that this program was built from: twelve digits, with `+` if the working tree
/// has changes. `unknown` outside a checkout, and where a source changed after the program was
/// built. A package sets `RATEWRIGHT_COMMIT` when it builds.
#[must_use]
pub fn commit() -> &'static str {
    static COMMIT: LazyLock<String> = LazyLock::new(|| {
        if let Some(commit) = option_env!("RATEWRIGHT_COMMIT") {
            return commit.to_owned();
        }
        let program = std::env::current_exe().ok();
        program
            .and_then(|program| commit_of(&program, Path::new(env!("CARGO_MANIFEST_DIR"))))
            .unwrap_or_else(|| UNKNOWN.to_owned())
    });
    &COMMIT
}

/// Returns true if results of this commit can be had again by it.
#[must_use]
pub fn is_definite(commit: &str) -> bool {
    commit != UNKNOWN && !commit.ends_with('+')
}

/// Returns the commit of a checkout if the program is of its present sources.
fn commit_of(program: &Path, checkout: &Path) -> Option<String> {
    let modified = |path: &Path| path.metadata().and_then(|facts| facts.modified()).ok();
    let built = modified(program)?;
    let list = std::fs::read_to_string(program.with_extension("d")).ok()?;
    for source in sources(&list) {
        if modified(&source)? > built {
            return None;
        }
    }
    let head = git(checkout, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(checkout, &["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changed.is_empty() { "" } else { "+" };
    Some(format!("{head}{mark}"))
}

/// Reads cargo's list: a rule of make, in which spaces of names are escaped.
fn sources(list: &str) -> Vec<PathBuf> {
    let names = list.split_once(": ").map_or("", |(_, names)| names.trim());
    let names = names.replace("\\ ", "\0");
    let names = names.split_whitespace();
    names
        .map(|name| PathBuf::from(name.replace('\0', " ")))
        .collect()
}

fn git(checkout: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command
        .arg("--no-optional-locks")
        .arg("-C")
        .arg(checkout)
        .args(arguments);
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A checkout with one commit of `a source.rs`, and a program that was built from it.
    struct Checkout(tempfile::TempDir);

    impl Checkout {
        fn new() -> Self {
            let this = Self(tempfile::tempdir().expect("a directory"));
            this.write("a source.rs", "1", 100);
            this.write("program", "", 200);
            let list = format!(
                "{}: {}\n",
                this.path("program").display(),
                this.path("a\\ source.rs").display()
            );
            this.write("program.d", &list, 200);
            for arguments in [
                &["init", "--quiet"][..],
                &["add", "a source.rs"],
                &[
                    "-c",
                    "user.name=a",
                    "-c",
                    "user.email=a@b.c",
                    "commit",
                    "-qm",
                    "one",
                ],
            ] {
                git(this.0.path(), arguments).expect("git works");
            }
            this
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Writes a file as if `seconds` after some moment.
        fn write(&self, name: &str, text: &str, seconds: u64) {
            fs::write(self.path(name), text).expect("written");
            let file = File::options().append(true).open(self.path(name));
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
            file.and_then(|file| file.set_modified(at)).expect("set");
        }

        fn commit(&self) -> Option<String> {
            commit_of(&self.path("program"), self.0.path())
        }

        fn head(&self) -> String {
            git(self.0.path(), &["rev-parse", "--short=12", "HEAD"]).expect("a commit")
        }
    }

    #[test]
    fn a_program_of_the_commits_sources_names_the_commit() {
        let checkout = Checkout::new();
        assert_eq!(checkout.commit(), Some(checkout.head()));
    }

    #[test]
    fn a_program_of_changed_sources_says_that_they_were() {
        let checkout = Checkout::new();
        checkout.write("a source.rs", "2", 150);
        assert_eq!(checkout.commit(), Some(format!("{}+", checkout.head())));
    }

    #[test]
    fn a_source_that_changed_after_the_build_leaves_the_commit_unknown() {
        let checkout = Checkout::new();
        checkout.write("a source.rs", "1", 300);
        assert_eq!(checkout.commit(), None);
    }

    #[test]
    fn a_program_without_its_list_of_sources_names_no_commit() {
        let checkout = Checkout::new();
        fs::remove_file(checkout.path("program.d")).expect("removed");
        assert_eq!(checkout.commit(), None);
    }

    #[test]
    fn a_source_that_is_gone_leaves_the_commit_unknown() {
        let checkout = Checkout::new();
        fs::remove_file(checkout.path("a source.rs")).expect("removed");
        assert_eq!(checkout.commit(), None);
    }
}
