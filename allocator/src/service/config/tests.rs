//! Tests of the configuration: errors name line, key and expected value; the example has the
//! defaults.

use std::path::{Path, PathBuf};

use ratewright_io::admin::AdminAddress;

use super::{
    Allocation, ClassConfig, Config, Fingerprint, Limits, Trust, UtilityConfig, example_config,
};

/// Shortest valid configuration.
pub(in crate::service) const GOOD: &str = r#"listen = "10.0.0.1:7600"
admin = "unix:admin.sock"
topology = "topology.toml"
[tls]
ca = "ca.pem"
cert = "allocator.pem"
key = "allocator.key"
"#;

fn parse(text: &str) -> Result<Config, String> {
    Config::from_toml_str(text, "a.toml", Path::new("/etc/rw")).map_err(|error| error.to_string())
}

fn complaint(text: &str) -> String {
    parse(text).expect_err("the text is wrong")
}

#[test]
fn a_byte_order_mark_before_the_text_is_skipped() {
    let marked = parse(&format!("\u{feff}{GOOD}")).expect("good");
    assert_eq!(marked.listen, parse(GOOD).expect("good").listen);
    assert!(complaint(&format!("\u{feff}{GOOD}oops = 1\n")).starts_with("a.toml:8: "));
}

#[test]
fn a_short_file_gets_the_defaults_and_paths_of_its_folder() {
    let config = parse(GOOD).expect("good");
    assert_eq!(config.allocation, Allocation::default());
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.trust, Trust::default());
    assert_eq!(config.classes, vec![ClassConfig::default()]);
    assert_eq!(config.topology, PathBuf::from("/etc/rw/topology.toml"));
    assert_eq!(config.tls.key, PathBuf::from("/etc/rw/allocator.key"));
    assert_eq!(
        config.admin,
        AdminAddress::Unix(PathBuf::from("/etc/rw/admin.sock"))
    );
}

#[test]
fn the_example_holds_exactly_the_defaults() {
    let config = parse(&example_config()).expect("the example is good");
    assert_eq!(config.allocation, Allocation::default());
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.classes, vec![ClassConfig::default()]);
    // The fuzz target's seed must follow the example; the other seed has every key in force.
    let seed = include_str!("../../../../fuzz/seeds/allocator_toml/example.toml");
    assert_eq!(seed, example_config());
    parse(include_str!(
        "../../../../fuzz/seeds/allocator_toml/full.toml"
    ))
    .expect("good");
}

#[test]
fn shared_links_have_headroom_unless_another_way_to_treat_others_is_chosen() {
    let shared = |feeds: &str| {
        let config = parse(&format!("{GOOD}[feeds]\n{feeds}\n"));
        config.expect("good").feeds.shared
    };
    assert!(parse(GOOD).expect("good").feeds.shared);
    assert!(shared("receivers = false"));
    for reading in ["receivers", "credit", "int"] {
        assert!(!shared(&format!("{reading} = true")), "{reading}");
        assert!(shared(&format!("{reading} = true\nshared = true")));
    }
    assert!(!shared("shared = false"));
}

#[test]
fn the_mark_of_control_datagrams_is_a_code_point() {
    let with = |value: &str| parse(&format!("{GOOD}[transport]\ncontrol_dscp = {value}\n"));
    for (value, expected) in [("48", 48), ("0", 0), ("63", 63)] {
        let transport = with(value).expect("good").transport;
        assert_eq!(transport.control_dscp.value(), expected);
    }
    assert_eq!(
        parse(GOOD).expect("good").transport.control_dscp.value(),
        48
    );
    for wrong in ["64", "-1", "4294967296"] {
        let error = with(wrong).expect_err(wrong).to_string();
        let complaint = format!("transport.control_dscp = {wrong}: must be 0 to 63");
        assert!(error.contains(&complaint), "{error}");
    }
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn dpdk_is_refused_in_words_by_an_allocator_that_was_built_without_it() {
    let text = format!("{GOOD}[transport]\nhot = \"dpdk\"\n");
    let complaint = complaint(&text);
    assert!(
        complaint.contains("transport.hot") && complaint.contains("built without DPDK"),
        "{complaint}"
    );
    // The table is allowed while `hot` does not use it.
    let text = format!(
        "{GOOD}[transport]\nhot = \"udp\"\n[transport.dpdk]\neal = []\ninterface = \"10.0.0.2/24\"\n"
    );
    assert_eq!(parse(&text).expect("good").transport.dpdk, None);
    // Mistakes in it are errors all the same.
    let text = text.replace("/24", "/33");
    assert!(
        parse(&text)
            .expect_err("wrong")
            .contains("transport.dpdk.interface")
    );
}

#[cfg(feature = "dpdk")]
#[test]
fn an_interface_for_dpdk_is_read_and_every_mistake_in_it_told() {
    let table = |more: &str| {
        format!(
            "{GOOD}[transport]\nhot = \"dpdk\"\n[transport.dpdk]\neal = [\"--in-memory\", \"-a\", \"0000:00:06.0\"]\n{more}"
        )
    };
    let good = "interface = \"10.0.0.2/24\"\ngateway = \"10.0.0.1\"\nmac = \"02:00:00:00:00:0a\"\n";
    let transport = parse(&table(good)).expect("good").transport;
    assert_eq!((transport.shards(), transport.udp_port), (1, Some(7_601)));
    let dpdk = transport.dpdk.expect("described");
    assert_eq!(dpdk.eal, ["--in-memory", "-a", "0000:00:06.0"]);
    assert_eq!((dpdk.address, dpdk.prefix_len), ([10, 0, 0, 2].into(), 24));
    assert_eq!(dpdk.gateway, Some([10, 0, 0, 1].into()));
    assert_eq!(dpdk.mac, Some([2, 0, 0, 0, 0, 10]));
    for (more, key) in [
        ("", "transport.dpdk.interface is missing"),
        ("interface = \"10.0.0.2\"", "transport.dpdk.interface"),
        ("interface = \"10.0.0.2/33\"", "transport.dpdk.interface"),
        ("interface = \"224.0.0.1/24\"", "transport.dpdk.interface"),
        (
            "interface = \"10.0.0.2/24\"\ngateway = \"10.0.1.1\"",
            "transport.dpdk.gateway",
        ),
        (
            "interface = \"10.0.0.2/24\"\ngateway = \"10.0.0.2\"",
            "transport.dpdk.gateway",
        ),
        (
            "interface = \"10.0.0.2/24\"\nmac = \"03:00:00:00:00:0a\"",
            "transport.dpdk.mac",
        ),
        (
            "interface = \"10.0.0.2/24\"\nmac = \"02:00:00:00:0a\"",
            "transport.dpdk.mac",
        ),
        (
            "interface = \"10.0.0.2/24\"\ndescriptors = 1000",
            "transport.dpdk.descriptors",
        ),
        (
            "interface = \"10.0.0.2/24\"\nbuffers = 16",
            "transport.dpdk.buffers",
        ),
        (
            "interface = \"10.0.0.2/24\"\nneighbours = 0",
            "transport.dpdk.neighbours",
        ),
    ] {
        let complaint = complaint(&table(more));
        assert!(complaint.contains(key), "{more}: {complaint}");
    }
    let bare = format!("{GOOD}[transport]\nhot = \"dpdk\"\n");
    assert!(complaint(&bare).contains("transport.dpdk is missing"));
}

#[test]
fn classes_come_in_the_order_of_their_ids() {
    let text = format!(
        "{GOOD}[[class]]\nid = 3\nname = \"bulk\"\nutility = \"alpha\"\nalpha = 2.0\nweight = 0.5\nmax_rate_bps = 1000000\n\
         [[class]]\nid = 0\nname = \"default\"\n"
    );
    let classes = parse(&text).expect("good").classes;
    assert_eq!(
        classes.iter().map(|class| class.id).collect::<Vec<_>>(),
        vec![0, 3]
    );
    assert_eq!(classes[1].utility, UtilityConfig::Alpha(2.0));
    assert_eq!(classes[1].max_rate_bps, Some(1_000_000));
}

#[test]
fn every_mistake_gets_its_line_its_key_and_what_would_be_right() {
    let allocation = |body: &str| format!("{GOOD}[allocation]\n{body}\n");
    let class =
        |body: &str| format!("{GOOD}[[class]]\nid = 0\nname = \"default\"\n[[class]]\n{body}\n");
    let table: Vec<(String, &str)> = vec![
        (
            String::new(),
            "a.toml: listen is missing: the UDP address of the service, such as listen = \"10.0.0.1:7600\"",
        ),
        (
            GOOD.replace("listen = \"10.0.0.1:7600\"", "listen = \"h1\""),
            "a.toml:1: listen = \"h1\": must be an IP address and a port",
        ),
        (
            GOOD.replace("unix:admin.sock", "nowhere"),
            "a.toml:2: admin = \"nowhere\": must be \"unix:\" and a path, or an IP address and a port, such as \"127.0.0.1:9600\"",
        ),
        (
            GOOD.replace("unix:admin.sock", "unix:"),
            "a.toml:2: admin = \"unix:\": a Unix socket's path has 1 to 107 bytes",
        ),
        (
            format!("log = \"=!!\"\n{GOOD}"),
            "a.toml:1: log = \"=!!\": is not a log filter: ",
        ),
        (
            GOOD.replace("topology.toml", ""),
            "a.toml:3: topology = \"\": must name a file",
        ),
        (
            GOOD.replace("ca = \"ca.pem\"\n", ""),
            "a.toml: tls.ca is missing: the PEM file of the authority",
        ),
        (
            GOOD.replace("key = ", "kay = "),
            "a.toml:7: unknown field `kay`, expected one of `ca`, `cert`, `key` (in `kay = \"allocator.key\"`)",
        ),
        (
            format!("speed = 1\n{GOOD}"),
            "a.toml:1: unknown field `speed`, expected one of `listen`",
        ),
        // The parser's own message depends on its version.
        (format!("{GOOD}[["), "a.toml:8: "),
        (
            allocation("engine = \"fast\""),
            "a.toml:9: allocation.engine = \"fast\": must be \"reference\" or \"parallel\"",
        ),
        (
            allocation("workers = 0"),
            "a.toml:9: allocation.workers = 0: must be 1 to 256",
        ),
        (
            allocation("external_share = 1.5"),
            "a.toml:9: allocation.external_share = 1.5: must be from 0 to 0.99, a share of a link's capacity; 0.9 is the default",
        ),
        (
            allocation("workers = 257"),
            "a.toml:9: allocation.workers = 257: must be 1 to 256",
        ),
        (
            allocation("blocks = 0"),
            "a.toml:9: allocation.blocks = 0: must be a power of two from 1 to 64",
        ),
        (
            allocation("blocks = 3"),
            "a.toml:9: allocation.blocks = 3: must be a power of two from 1 to 64",
        ),
        (
            allocation("blocks = 128"),
            "a.toml:9: allocation.blocks = 128: must be a power of two from 1 to 64",
        ),
        (
            allocation("blocks = 2\nworkers = 5"),
            "a.toml:10: allocation.workers = 5: must be at most the square of allocation.blocks, 4",
        ),
        (
            allocation("gamma = 1.5"),
            "a.toml:9: allocation.gamma = 1.5: must be more than 0 and at most 1; 0.4 is the default",
        ),
        (
            allocation("gamma = nan"),
            "a.toml:9: allocation.gamma = nan: must be more than 0",
        ),
        (
            allocation("gamma = \"fast\""),
            "a.toml:9: invalid type: string \"fast\", expected f64 (in `gamma = \"fast\"`)",
        ),
        (
            allocation("interval_us = 0"),
            "a.toml:9: allocation.interval_us = 0: must be 1 to 1000000 microseconds",
        ),
        (
            allocation("back_to_back = true\ninterval_us = 10"),
            "a.toml:10: allocation.interval_us = 10: cannot stand beside back_to_back",
        ),
        (
            allocation("threshold = 0.5"),
            "a.toml:9: allocation.threshold = 0.5: must be from 0 to 0.2",
        ),
        (
            allocation("mice_reserve = -0.1"),
            "a.toml:9: allocation.mice_reserve = -0.1: must be from 0 to 0.5",
        ),
        (
            allocation("lease_ms = 5"),
            "a.toml:9: allocation.lease_ms = 5: must be 10 to 10000 milliseconds",
        ),
        (
            allocation("lease_ms = 500\nliveness_ms = 600"),
            "a.toml:10: allocation.liveness_ms = 600: must be from two leases (1000)",
        ),
        (
            allocation("liveness_ms = 600\nack_delay_ms = 601"),
            "a.toml:10: allocation.ack_delay_ms = 601: must be 1 to 600 milliseconds",
        ),
        (
            allocation("pin_core = 100000"),
            "a.toml:9: allocation.pin_core = 100000: must be below ",
        ),
        (
            format!("{GOOD}[limits]\nmax_flows = 0\n"),
            "a.toml:9: limits.max_flows = 0: must be 1 to 50000000; 1000000 is the default",
        ),
        (
            format!("{GOOD}[limits]\nmax_flows_per_session = 2000000\n"),
            "a.toml:9: limits.max_flows_per_session = 2000000: must be 1 to 1048576",
        ),
        (class("name = \"x\""), "a.toml: class.id is missing"),
        (
            class("id = 200\nname = \"x\""),
            "a.toml:12: class.id = 200: must be 0 to 127",
        ),
        (
            class("id = 0\nname = \"x\""),
            "a.toml:12: class.id = 0: is already class \"default\"",
        ),
        (
            class("id = 1\nname = \"default\""),
            "a.toml:13: class.name = \"default\": must be a name that no other class has",
        ),
        (
            class("id = 1\nname = \"x\"\nutility = \"max\""),
            "a.toml:14: class.utility = \"max\": must be \"log\" or \"alpha\"",
        ),
        (
            class("id = 1\nname = \"x\"\nutility = \"alpha\""),
            "a.toml: class.alpha is missing: class 1 has utility = \"alpha\"",
        ),
        (
            class("id = 1\nname = \"x\"\nalpha = 2.0"),
            "a.toml:14: class.alpha = 2.0: needs utility = \"alpha\"",
        ),
        (
            class("id = 1\nname = \"x\"\nutility = \"alpha\"\nalpha = 0.0"),
            "a.toml:15: class.alpha = 0.0: must be from 0.1 to 64",
        ),
        (
            class("id = 1\nname = \"x\"\nweight = 0.0"),
            "a.toml:14: class.weight = 0.0: must be from 0.001 to 1000",
        ),
        (
            class("id = 1\nname = \"x\"\ndemand = \"guessed\""),
            "a.toml:14: class.demand = \"guessed\": must be \"measured\" or \"ignored\"",
        ),
        (
            class("id = 1\nname = \"x\"\nmax_rate_bps = 1"),
            "a.toml:14: class.max_rate_bps = 1: must be at least 8000",
        ),
        (
            format!("{GOOD}[[class]]\nid = 1\nname = \"x\"\n"),
            "a.toml: class 0 is missing: flows without a policy use it",
        ),
    ];
    for (text, expected) in table {
        let found = complaint(&text);
        assert!(
            found.starts_with(expected),
            "expected {expected:?}\n   found {found:?}"
        );
        // Errors go to the log, which has a line per event.
        assert!(!found.contains('\n'), "one line: {found:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load(Path::new("/nonexistent/a.toml")).expect_err("no such file");
    assert!(
        error.to_string().eq("/nonexistent/a.toml: cannot be read"),
        "{error}"
    );
    let cause = std::error::Error::source(&error).expect("a cause");
    assert!(cause.to_string().starts_with("No such file"), "{cause}");
}

#[test]
fn addresses_cannot_change_without_a_restart() {
    let old = parse(GOOD).expect("good");
    let new = parse(&GOOD.replace("7600", "7601").replace("admin.sock", "b.sock")).expect("good");
    assert_eq!(new.restart_keys_changed(&old), vec!["listen", "admin"]);
    assert!(old.restart_keys_changed(&old).is_empty());
    let new = parse(&format!("{GOOD}[allocation]\nlease_ms = 400\n")).expect("good");
    assert_eq!(new.restart_keys_changed(&old), vec!["allocation.lease_ms"]);
}

#[test]
fn an_admin_address_that_others_reach_is_warned_of() {
    let warnings = |admin: &str| {
        parse(&GOOD.replace("unix:admin.sock", admin))
            .expect("good")
            .warnings()
    };
    for local in [
        "unix:admin.sock",
        "127.0.0.1:9600",
        "[::1]:9600",
        "[::ffff:127.0.0.1]:9600",
    ] {
        assert!(warnings(local).is_empty(), "{local}");
    }
    for writable in ["writable:127.0.0.1:9600", "writable:0.0.0.0:9600"] {
        let warnings = warnings(writable);
        assert_eq!(warnings.len(), 1, "{writable}");
        assert!(warnings[0].contains("kill switch"), "{}", warnings[0]);
    }
    for open in ["0.0.0.0:9600", "10.0.0.1:9600", "[::]:9600"] {
        let warnings = warnings(open);
        assert_eq!(warnings.len(), 1, "{open}");
        assert!(warnings[0].starts_with(&format!("admin = \"{open}\": other machines")));
        assert!(!warnings[0].contains('\n'));
    }
    assert!(
        parse(&example_config())
            .expect("good")
            .warnings()
            .is_empty()
    );
}

#[test]
fn trust_is_a_list_of_hosts_and_fingerprints_in_either_spelling() {
    let digits = "00FF".repeat(16);
    // The spelling of openssl, and the one without colons.
    let colons = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).expect("ASCII").to_lowercase())
        .collect::<Vec<_>>()
        .join(":");
    for text in [&digits, &colons] {
        let text = format!("{GOOD}[trust]\nallow = [\"h1\"]\ndeny_certificates = [\"{text}\"]\n");
        let trust = parse(&text).expect("good").trust;
        let mut bytes = [0; 32];
        bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b = 0xff);
        assert!(trust.deny_certificates.contains(&Fingerprint(bytes)));
        assert_eq!(Fingerprint(bytes).to_string().to_lowercase(), colons);
        assert!(trust.check("h1", &Fingerprint([0; 32])).is_ok());
        assert!(trust.check("h1", &Fingerprint(bytes)).is_err());
        assert!(trust.check("h2", &Fingerprint([0; 32])).is_err());
    }
    assert!(Trust::default().check("h2", &Fingerprint([0; 32])).is_ok());
    for wrong in [
        &digits[1..],
        &digits[2..],
        "",
        &format!("{digits}0"),
        &"xy".repeat(32),
    ] {
        let text = format!("{GOOD}[trust]\nallow = []\ndeny_certificates = [\n\"{wrong}\"]\n");
        let complaint = complaint(&text);
        assert!(
            complaint.starts_with(&format!(
                "a.toml:11: trust.deny_certificates = \"{wrong}\": must be the SHA-256"
            )),
            "{complaint}"
        );
    }
}
