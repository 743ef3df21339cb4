//! The command line: checked configurations, and one line for each mistake.

use crate::service_support::process::TestSite;

#[test]
fn a_good_configuration_is_said_to_be_good_in_one_line() {
    let site = TestSite::new();
    let (ok, out, err) = site.run(&["check-config", "--config", "allocator.toml"]);
    assert!(ok, "{err}");
    assert_eq!(
        out,
        "allocator.toml: ok: listen 127.0.0.1:0, admin unix:admin.sock, two_tier_clos topology of 16 hosts \
         and 48 links, 1 class, lease 300 ms\n"
    );
}

#[test]
fn every_mistake_is_one_line_and_a_failure() {
    let site = TestSite::new();
    let good = site.config("127.0.0.1:0", "");
    site.write("broken.toml", "kind = 3\n");
    site.write(
        "large.toml",
        // 60,000 hosts: valid as a topology, too large for a Welcome.
        "kind = \"big_switch\"\n[parameters]\nracks = 300\nhosts_per_rack = 200\nhost_capacity = \"10Gbit/s\"\n",
    );
    site.write("empty.pem", "");
    site.authority
        .sign(&["h1"])
        .write(site.path(), "h1.pem", "h1.key");
    let table = [
        (
            good.replace("listen", "lisen"),
            "wrong.toml:1: unknown field `lisen`",
        ),
        (
            format!("{good}[allocation]\ngamma = 7\n"),
            "wrong.toml:9: allocation.gamma = 7: must be more than 0",
        ),
        (
            good.replace("topology.toml", "nowhere.toml"),
            "nowhere.toml: cannot be read: No such file",
        ),
        (
            format!("log = \"=!!\"\n{good}"),
            "wrong.toml:1: log = \"=!!\": is not a log filter: ",
        ),
        (
            good.replace("topology.toml", "large.toml"),
            "large.toml: hosts cannot be welcomed to it: a control frame of ",
        ),
        (
            good.replace("topology.toml", "broken.toml"),
            "broken.toml:1: ",
        ),
        (
            good.replace("ca.pem", "empty.pem"),
            "empty.pem: no usable certificate: the file has no CERTIFICATE section",
        ),
        (
            good.replace("ca.pem", "nowhere.pem"),
            "nowhere.pem: no usable certificate: ",
        ),
        (
            good.replace("ca.pem", "allocator.pem"),
            "allocator.pem: not the certificate of an authority; ",
        ),
        (
            good.replace("allocator.key", "empty.pem"),
            "empty.pem: no usable private key: ",
        ),
        (
            good.replace("allocator.key", "h1.key"),
            "h1.key: does not fit allocator.pem: ",
        ),
        (
            good.replace("allocator.pem", "h1.pem")
                .replace("allocator.key", "h1.key"),
            "h1.pem: the certificate names h1, hosts expect the DNS name \"ratewright-allocator\"",
        ),
    ];
    for (text, expected) in table {
        site.write("wrong.toml", &text);
        // `run` must refuse a configuration as `check-config` does, before it binds anything.
        for task in [
            &["check-config", "--config", "wrong.toml"][..],
            &["run", "--config", "wrong.toml"][..],
        ] {
            let (ok, out, err) = site.run(task);
            assert!(!ok && out.is_empty(), "{task:?} takes it: {expected}");
            assert!(
                err.starts_with(&format!("ratewright-allocator: {expected}")),
                "expected {expected}\n   found {err}"
            );
            assert_one_line_once(&err);
        }
    }
    for task in ["check-config", "run"] {
        let (ok, _, err) = site.run(&[task, "--config", "/nonexistent.toml"]);
        assert!(!ok);
        assert!(
            err.starts_with(
                "ratewright-allocator: /nonexistent.toml: cannot be read: No such file"
            ),
            "{err}"
        );
        assert_one_line_once(&err);
    }
}

/// Checks that an error is one line, in which no cause occurs twice.
fn assert_one_line_once(err: &str) {
    assert_eq!(err.lines().count(), 1, "{err}");
    let parts: Vec<&str> = err.trim().split(": ").collect();
    for (at, part) in parts.iter().enumerate() {
        assert!(
            !parts[..at].contains(part),
            "{part:?} stands twice in {err}"
        );
    }
}

#[test]
fn an_admin_address_that_others_reach_is_warned_of_in_one_line() {
    let site = TestSite::new();
    let open = site
        .config("127.0.0.1:0", "")
        .replace("unix:admin.sock", "0.0.0.0:0");
    site.write("open.toml", &open);
    let (ok, out, err) = site.run(&["check-config", "--config", "open.toml"]);
    assert!(ok && out.starts_with("open.toml: ok: "), "{out}{err}");
    assert!(
        err.starts_with("ratewright-allocator: open.toml: warning: admin = \"0.0.0.0:0\": "),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
    let (_, _, err) = site.run(&["check-config", "--config", "allocator.toml"]);
    assert_eq!(err, "");
}

/// A file from before line rates keeps its meaning; whoever reads it is told once.
#[test]
fn a_topology_without_frames_gets_a_note_of_one_line() {
    let site = TestSite::new();
    let old = "kind = \"big_switch\"\n[parameters]\nracks = 1\nhosts_per_rack = 2\n\
               host_capacity = \"10Gbit/s\"\n";
    for (more, note) in [("", true), ("[frames]\n", false)] {
        site.write("topology.toml", &format!("{old}{more}"));
        let (ok, _, err) = site.run(&["check-config", "--config", "allocator.toml"]);
        let expected = "ratewright-allocator: note: topology.toml: without [frames], ";
        assert!(ok && err.starts_with(expected) == note, "{err}");
        assert_eq!(err.lines().count(), usize::from(note), "{err}");
    }
}

#[test]
fn the_example_is_a_configuration() {
    let site = TestSite::new();
    let (ok, example, _) = site.run(&["example-config"]);
    assert!(ok);
    site.write("example.toml", &example);
    let (ok, out, err) = site.run(&["check-config", "--config", "example.toml"]);
    assert!(ok, "{err}");
    assert!(
        out.starts_with("example.toml: ok: listen 0.0.0.0:7600"),
        "{out}"
    );
}

#[test]
fn without_a_configuration_it_says_how_to_get_one() {
    let site = TestSite::new();
    let (ok, _, err) = site.run(&["run"]);
    assert!(!ok);
    assert!(
        err.contains("--config FILE is missing") && err.contains("example-config"),
        "{err}"
    );
}

#[test]
fn an_address_in_use_is_named() {
    let site = TestSite::new();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("bound").to_string();
    site.write("allocator.toml", &site.config(&address, ""));
    let (ok, _, err) = site.run(&["--config", "allocator.toml"]);
    assert!(!ok);
    assert!(
        err.starts_with(&format!(
            "ratewright-allocator: listen = \"{address}\": cannot bind: "
        )),
        "{err}"
    );
    assert_one_line_once(&err);

    // A file that is no socket might be someone's data: it must not be replaced.
    std::fs::write(site.path().join("admin.sock"), "mine").expect("writable");
    site.write("allocator.toml", &site.config("127.0.0.1:0", ""));
    let (ok, _, err) = site.run(&["--config", "allocator.toml"]);
    assert!(!ok);
    assert!(
        err.contains(
            "admin = \"unix:admin.sock\": cannot listen: the file is there and is no socket"
        ),
        "{err}"
    );
}
