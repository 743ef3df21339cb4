//! The program itself: its output and its exit codes.

use std::path::Path;

use assert_cmd::Command;
use ratewright_endpointd::instance_lock::InstanceLock;

use crate::site::certificates;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ratewright-endpointd"))
}

fn stdout(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_printed_example_is_accepted_where_the_certificates_exist() {
    let folder = certificates();
    let (code, example, _) = stdout(program().arg("example-config"));
    assert_eq!(code, Some(0));
    let path = folder.path().join("endpointd.toml");
    std::fs::write(&path, example).unwrap();
    let (code, said, _) = stdout(program().args(["check-config", "--config"]).arg(&path));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("valid; host h1, 3 policy rules"), "{said}");
}

/// Runs `check-config`, which must refuse the file with one line; returns that line.
fn refused(path: &Path) -> String {
    let (code, _, error) = stdout(program().args(["check-config", "--config"]).arg(path));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.starts_with("ratewright-endpointd: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(&path.display().to_string()), "{error}");
    error
}

#[test]
fn certificates_that_cannot_work_are_told_in_one_line_each_cause_once() {
    let folder = certificates();
    let at = |file: &str| folder.path().join(file);
    let path = at("endpointd.toml");
    let text = |host: &str, ca: &str, cert: &str, key: &str| {
        format!(
            "host = \"{host}\"\nallocator = [\"10.0.0.1:7600\"]\n[tls]\nca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"\n"
        )
    };
    for (text, once) in [
        (
            text("h1", "ca.pem", "h1.pem", "allocator.key"),
            "does not fit",
        ),
        (
            text("h1", "ca.pem", "h1.pem", "absent.key"),
            "no usable private key",
        ),
        (text("h1", "absent.pem", "h1.pem", "h1.key"), "No such file"),
        (
            text("h2", "ca.pem", "h1.pem", "h1.key"),
            "the certificate names h1, the allocator expects the DNS name \"h2\"",
        ),
        (
            text("h1", "allocator.pem", "h1.pem", "h1.key"),
            "not the certificate of an authority",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = refused(&path);
        assert_eq!(error.matches(once).count(), 1, "{once}: {error}");
        assert!(error.contains("[tls]"), "{error}");
        // The daemon itself says the same.
        let (code, _, run) = stdout(program().args(["run", "--config"]).arg(&path));
        assert_eq!((code, run), (Some(2), error));
    }
}

#[test]
fn a_back_end_that_cannot_be_is_refused_with_its_key() {
    let folder = certificates();
    let path = folder.path().join("endpointd.toml");
    let head = "host = \"h1\"\nallocator = [\"10.0.0.1:7600\"]\n[tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n[pacing]\n";
    for (pacing, part) in [
        ("backend = \"tc_htb\"", "`pacing.device`: tc_htb needs"),
        (
            "backend = \"tc_htb\"\ndevice = \"lo\"\nmax_flows = 65519",
            "`pacing.max_flows`: 65519 is outside",
        ),
        (
            "backend = \"tc_htb\"\ndevice = \"absent0\"",
            "there is no device absent0",
        ),
        (
            "backend = \"sock_ops\"\ncgroup = \"/nope\"",
            "the cgroup directory /nope cannot be opened",
        ),
    ] {
        std::fs::write(&path, format!("{head}{pacing}\n")).unwrap();
        let error = refused(&path);
        assert_eq!(error.matches(part).count(), 1, "{part}: {error}");
    }
}

#[test]
fn a_bad_configuration_is_one_clear_line_and_exit_code_2() {
    let folder = certificates();
    let path = folder.path().join("endpointd.toml");
    for (text, part) in [
        (
            "host = \"h1\"\nallocatr = []\n",
            "endpointd.toml:2: unknown field `allocatr`",
        ),
        ("host = \"h1\"\nallocator = [\n", "endpointd.toml:"),
        ("host = \"h1\"\nallocator = []\n", "missing field `tls`"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = refused(&path);
        assert_eq!(error.matches(part).count(), 1, "{part}: {error}");
        let (code, _, run) = stdout(program().args(["run", "--config"]).arg(&path));
        assert_eq!((code, run), (Some(2), error));
    }
    let (code, _, error) =
        stdout(program().args(["run", "--config", "/nonexistent/endpointd.toml"]));
    assert_eq!(code, Some(2));
    assert_eq!(
        error,
        "ratewright-endpointd: /nonexistent/endpointd.toml: No such file or directory (os error 2)\n"
    );
}

/// systemd removes a unit's folder at its end unless it is told not to: it has the locks of other
/// daemons, and may have the pins that a killed one's successor needs.
#[test]
fn the_unit_keeps_its_folder_and_gives_up_on_a_bad_configuration_alone() {
    let unit = include_str!("../../../../deploy/systemd/ratewright-endpointd.service");
    let of = |key: &str| -> Vec<&str> {
        let lines = unit.lines().filter_map(|line| line.split_once('='));
        lines
            .filter(|(found, _)| *found == key)
            .map(|(_, value)| value)
            .collect()
    };
    assert_eq!(of("RuntimeDirectory"), ["ratewright"]);
    assert_eq!(of("RuntimeDirectoryPreserve"), ["yes"]);
    assert_eq!(of("Restart"), ["on-failure"]);
    assert_eq!(of("RestartPreventExitStatus"), ["2"]);
}

#[test]
fn a_second_daemon_ends_before_it_touches_anything_of_the_first() {
    let folder = certificates();
    let path = folder.path().join("endpointd.toml");
    std::fs::write(
        &path,
        "host = \"h1\"\nallocator = [\"127.0.0.1:1\"]\nadmin = \"unix:admin.sock\"\n[tls]\nca = \"ca.pem\"\ncert = \"h1.pem\"\nkey = \"h1.key\"\n",
    )
    .unwrap();
    let _first = InstanceLock::take().unwrap().expect("no daemon runs here");
    let (code, _, error) = stdout(program().args(["run", "--config"]).arg(&path));
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.contains("another ratewright-endpointd runs"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(!folder.path().join("admin.sock").exists());
}

#[test]
fn probe_prints_every_mechanism() {
    let (code, table, _) = stdout(program().arg("probe"));
    let any = table.contains(" yes ");
    assert_eq!(code, Some(if any { 0 } else { 1 }), "{table}");
    for word in ["mechanism", "sock_ops", "tc_htb"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    assert!(table.matches("\n").count() >= 3);
}
