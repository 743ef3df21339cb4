//! Helpers of the lab's tests: one test at a time, a place for results, reading them.

#[path = "../../../../../endpointd/tests/behaviour/netns/tries.rs"]
#[allow(dead_code, reason = "the daemon's tests use the rest of it")]
pub(crate) mod tries;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

/// Labs share two cores: tests that measure run one at a time, across processes.
pub(crate) fn alone() -> Flock<File> {
    let file = File::create(std::env::temp_dir().join("ratewright-lab-tests.lock")).unwrap();
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .unwrap()
}

/// The lab needs root; a test that silently passes without would prove nothing.
pub(crate) fn require_root() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test builds network namespaces: run it as root"
    );
}

pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_ratewright-lab"))
}

/// The allocator and the daemon stand beside the lab's program.
pub(crate) fn require_control_plane() {
    for name in ["ratewright-allocator", "ratewright-endpointd"] {
        let file = program().with_file_name(name);
        assert!(
            file.is_file(),
            "{} is missing: cargo build -p {name}",
            file.display()
        );
    }
}

/// Runs `ratewright-lab <args>` in lines, results into `json`.
pub(crate) fn lab(args: &[&str], json: &Path) -> Output {
    Command::new(program())
        .args(args)
        // Tests have no terminal for the live picture.
        .arg("--plain")
        .arg("--json")
        .arg(json)
        .output()
        .unwrap()
}

/// Runs a lab that must succeed; returns its results.
pub(crate) fn results(args: &[&str]) -> Value {
    require_root();
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("results.json");
    let output = lab(args, &json);
    assert!(
        output.status.success(),
        "lab {args:?} failed: {}\n{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    let picture = std::fs::read_to_string(json.with_extension("svg")).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"),
        "the plot is whole"
    );
    serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap()
}

/// A number at a path of keys.
pub(crate) fn number(value: &Value, path: &[&str]) -> f64 {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found
        .as_f64()
        .unwrap_or_else(|| panic!("{path:?} is {found}, not a number, in {value:#}"))
}
