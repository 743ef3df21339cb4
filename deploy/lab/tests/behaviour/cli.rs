//! The command line refuses what cannot work, in one line that says what to do.

use std::process::Output;

fn ratewright_lab(args: &[&str]) -> Output {
    crate::refusal::output_of("ratewright-lab", args)
}

fn assert_refused(args: &[&str], parts: &[&str]) {
    crate::refusal::assert_refused("ratewright-lab", args, parts);
}

#[test]
fn missing_programs_are_named_with_the_way_to_get_them() {
    if nix::unistd::geteuid().is_root() {
        let args = ["fairness", "--plain", "--bin-dir", "/nonexistent"];
        assert_refused(
            &args,
            &[
                "/nonexistent/ratewright-allocator",
                "cargo build",
                "--bin-dir",
            ],
        );
    } else {
        assert_refused(&["fairness", "--plain"], &["root", "sudo"]);
    }
}

#[test]
fn two_racks_need_an_even_number_of_hosts() {
    assert_refused(&["mixed", "--hosts", "9"], &["even number of hosts"]);
}

#[test]
fn values_out_of_range_are_usage_errors() {
    for args in [
        &["nonsense"][..],
        &["fairness", "--duration-scale", "0"],
        &["fairness", "--duration-scale", "fast"],
        &["fairness", "--hosts", "1"],
        &["fairness", "--backend", "magic"],
        &["fairness", "--link-mbps", "0"],
        &["fairness", "--no-baseline", "--only-baseline"],
    ] {
        let output = ratewright_lab(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("error:"),
            "{args:?}"
        );
    }
}

#[test]
fn the_programs_that_the_lab_starts_are_parsed_before_scenarios() {
    let output = ratewright_lab(&["lab-sink", "no-port"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // The parser's status for a usage error.
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no-port") && said.contains("[PORTS]"),
        "{said}"
    );
    let help = String::from_utf8(ratewright_lab(&["--help"]).stdout).unwrap();
    assert!(help.contains("fairness") && !help.contains("lab-sink"));
}
