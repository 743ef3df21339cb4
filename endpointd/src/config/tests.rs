//! Every wrong value is refused with its key; the example is right.

use super::*;

pub(super) const MINIMAL: &str = r#"
host = "h1"
allocator = ["10.0.0.1:7600"]
[tls]
ca = "ca.pem"
cert = "/etc/h1.pem"
key = "h1.key"
"#;

#[test]
fn a_byte_order_mark_before_the_text_is_skipped() {
    let marked = Config::from_toml_str(&format!("\u{feff}{MINIMAL}"), "m").unwrap();
    assert_eq!(marked.host, "h1");
}

#[test]
fn the_example_is_valid_and_shows_the_defaults() {
    let example = Config::from_toml_str(EXAMPLE, "example").unwrap();
    assert_eq!(example.host, "h1");
    // What fuzzing begins with is not left behind.
    let seed = include_str!("../../../fuzz/seeds/endpointd_toml/example.toml");
    assert_eq!(seed, EXAMPLE);
    assert_eq!(example.policy.len(), 3);
    assert_eq!(example.session, SessionConfig::default());
    assert_eq!(example.pacing, PacingConfig::default());
    // With the comment signs of the settings taken away it is still valid: no key is misspelt.
    let all: String = EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest)
                if rest
                    .split_once(" = ")
                    .is_some_and(|(key, _)| !key.contains(' ')) =>
            {
                rest
            }
            _ => line,
        })
        .fold(String::new(), |text, line| text + line + "\n");
    assert!(all.contains("\nmax_flows = 16384\n"));
    let all = Config::from_toml_str(&all, "example").unwrap();
    assert_eq!(
        all.session.retry_max_ms,
        SessionConfig::default().retry_max_ms
    );
    assert_eq!(all.pacing.max_flows, PacingConfig::default().max_flows);
    assert_eq!(all.pacing.device.as_deref(), Some("eth0"));
    assert_eq!(all.transport, TransportConfig::default());
    assert_eq!(all.transport.control_dscp.value(), 48);
}

#[test]
fn minimal_configuration_has_defaults() {
    let config = Config::from_toml_str(MINIMAL, "test").unwrap();
    assert_eq!(config.admin, None);
    assert_eq!(config.tls.server_name, "ratewright-allocator");
    let backend = config.backend_config();
    assert_eq!(
        (backend.instance.as_str(), backend.max_flows),
        ("h1", 16_384)
    );
}

#[test]
fn files_are_relative_to_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpointd.toml");
    std::fs::write(&path, MINIMAL).unwrap();
    let config = Config::load(&path, None).unwrap();
    assert_eq!(config.tls.ca, folder.path().join("ca.pem"));
    assert_eq!(config.tls.cert, Path::new("/etc/h1.pem"));
    std::fs::write(&path, format!("admin = \"unix:e.sock\"\n{MINIMAL}")).unwrap();
    let config = Config::load(&path, None).unwrap();
    let socket = folder.path().join("e.sock");
    assert_eq!(config.admin, Some(AdminAddress::Unix(socket)));
    let missing = Config::load(&folder.path().join("absent.toml"), None).unwrap_err();
    assert!(
        missing.to_string().contains("absent.toml: No such file"),
        "{missing}"
    );
}

#[test]
fn wrong_values_name_file_key_and_remedy() {
    let table = [
        ("", "host = \"\"", "`host`"),
        ("", "allocator = []", "`allocator`: must list"),
        (
            "",
            "allocator = [\"10.0.0.1\"]",
            "`10.0.0.1` is not `host:port`",
        ),
        ("", "admin = \"localhost\"", "or an IP address and a port"),
        ("", "admin = \"unix:\"", "1 to 107 bytes"),
        (
            "session",
            "retry_min_ms = 0",
            "`session.retry_min_ms`: 0 is outside 1..=60000",
        ),
        (
            "session",
            "retry_max_ms = 5",
            "`session.retry_max_ms`: 5 is outside 20..=",
        ),
        ("session", "handshake_timeout_ms = -1", "invalid value"),
        (
            "session",
            "idle_timeout_ms = 1",
            "`session.idle_timeout_ms`",
        ),
        ("session", "initial_rtt_us = 0", "`session.initial_rtt_us`"),
        (
            "transport",
            "control_dscp = 64",
            "must be 0 to 63 (48, which is CS6, is the default",
        ),
        ("transport", "control_dscp = -1", "must be 0 to 63"),
        (
            "pacing",
            "max_flows = 0",
            "`pacing.max_flows`: 0 is outside 1..=1048576",
        ),
        ("pacing", "max_flows = 2000000", "`pacing.max_flows`"),
        ("pacing", "backend = \"magic\"", "unknown variant `magic`"),
        (
            "pacing",
            "instance = \"Too_Long_Name\"",
            "`pacing.instance`",
        ),
        ("pacing", "idle_gap_us = 100000000", "`pacing.idle_gap_us`"),
        (
            "pacing",
            "tunnel_bytes = 300",
            "`pacing.tunnel_bytes`: 300 is outside 0..=256",
        ),
        ("pacing", "idle_gap = 1", "unknown field `idle_gap`"),
        (
            "[policy]",
            "weight = 2.0\n[[policy]]\nweight = 1.0",
            "`policy[0]`: matches every flow",
        ),
        (
            "[policy]",
            "dscp = 99",
            "`policy[0].dscp`: 99 is outside 0..=63",
        ),
    ];
    for (section, line, expected) in table {
        let key = line.split(' ').next().unwrap();
        let text = if section.is_empty() {
            let rest: String = MINIMAL
                .lines()
                .filter(|line| !line.starts_with(key))
                .map(|line| format!("{line}\n"))
                .collect();
            format!("{line}\n{rest}")
        } else {
            format!("{MINIMAL}[{section}]\n{line}\n")
        };
        let error = Config::from_toml_str(&text, "endpointd.toml")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("endpointd.toml:"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(expected), "{line}: {error}");
    }
    let syntax = Config::from_toml_str("host = \n", "x.toml")
        .unwrap_err()
        .to_string();
    assert!(syntax.starts_with("x.toml:1: "), "{syntax}");
}

#[test]
fn too_many_rules_are_refused() {
    let text = MINIMAL.to_owned() + &"[[policy]]\ndscp = 1\n".repeat(MAX_RULES + 1);
    let error = Config::from_toml_str(&text, "x").unwrap_err().to_string();
    assert!(error.contains("257 rules; at most 256"), "{error}");
}

#[test]
fn instance_names_fit_the_kernel_and_differ() {
    assert_eq!(instance_name("h12"), "h12");
    let names: Vec<_> = [
        "rack1-host1.dc",
        "rack1-host2.dc",
        "RACK",
        "",
        "ünï-cödé-hö",
    ]
    .iter()
    .map(|host| instance_name(host))
    .collect();
    for (index, name) in names.iter().enumerate() {
        assert!(is_instance_name(name), "{name}");
        assert!(!names[..index].contains(name), "{names:?}");
    }
}
