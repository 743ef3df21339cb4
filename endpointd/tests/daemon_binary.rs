//! The program itself: what it prints and how it ends.

mod daemon_support;

use assert_cmd::Command;
use daemon_support::certificates;

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

    // A key that does not belong to the certificate.
    std::fs::copy(
        folder.path().join("allocator.key"),
        folder.path().join("h1.key"),
    )
    .unwrap();
    let (code, _, error) = stdout(program().args(["check-config", "--config"]).arg(&path));
    assert_eq!(code, Some(2));
    assert!(error.starts_with("[tls]: "), "{error}");
    // And one that is not there.
    std::fs::remove_file(folder.path().join("h1.key")).unwrap();
    let (code, _, error) = stdout(program().args(["check-config", "--config"]).arg(&path));
    assert_eq!(code, Some(2));
    assert!(
        error.contains("h1.key: no private key in PEM form"),
        "{error}"
    );
}

#[test]
fn a_bad_configuration_is_one_clear_message_and_exit_code_2() {
    let folder = certificates();
    let path = folder.path().join("endpointd.toml");
    std::fs::write(&path, "host = \"h1\"\nallocatr = []\n").unwrap();
    for action in ["run", "check-config"] {
        let (code, _, error) = stdout(program().args([action, "--config"]).arg(&path));
        assert_eq!(code, Some(2), "{action}: {error}");
        assert!(
            error.contains("unknown field `allocatr`") && error.contains("line 2"),
            "{action}: {error}"
        );
    }
    let (code, _, error) =
        stdout(program().args(["run", "--config", "/nonexistent/endpointd.toml"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("/nonexistent/endpointd.toml"), "{error}");
}

#[test]
fn probe_prints_every_mechanism() {
    let (code, table, _) = stdout(program().arg("probe"));
    assert_eq!(code, Some(0));
    for word in ["mechanism", "struct_ops", "sock_ops", "tc_htb"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    assert!(table.matches("\n").count() >= 4);
}
