//! Runs of a program that refuses its arguments.

use std::process::Output;

use assert_cmd::Command;

pub(crate) fn output_of(program: &str, args: &[&str]) -> Output {
    Command::cargo_bin(program)
        .unwrap()
        .args(args)
        .output()
        .unwrap()
}

/// One line on standard error, which holds every one of `parts` and no cause twice.
pub(crate) fn assert_refused(program: &str, args: &[&str], parts: &[&str]) {
    let output = output_of(program, args);
    assert!(!output.status.success(), "{args:?} was accepted");
    let said = String::from_utf8(output.stderr).unwrap();
    // A log collector takes each line for a message.
    assert_eq!(said.lines().count(), 1, "not one line: {said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
    let causes: Vec<&str> = said.trim().split(": ").collect();
    for (at, cause) in causes.iter().enumerate() {
        assert!(
            !causes[..at].contains(cause),
            "`{cause}` stands twice in: {said}"
        );
    }
}
