//! Files of the last release, which this one takes with their meaning.

use std::net::IpAddr;

use ratewright_endpointd::config::{Config, HotTransport, PacingMode};

fn read(text: &str) -> Config {
    Config::from_toml_str(text, "endpointd.toml").unwrap()
}

#[test]
fn the_example_of_the_last_release_is_taken() {
    let example = include_str!("../releases/0.2/endpointd.toml");
    let config = read(example);
    assert_eq!(config.host, "h1");
    assert_eq!(config.allocator, ["10.0.0.1:7600"]);
    assert_eq!(config.policy.len(), 3);
    assert_eq!(config.retired(), [""; 0]);
    // A key that does nothing any more is passed over, and named.
    let config = read(&example.replace("# max_burst_us", "max_burst_us"));
    let retired = config.retired();
    assert_eq!(retired.len(), 1, "{retired:?}");
    assert!(retired[0].contains("max_burst_us"), "{retired:?}");
}

#[test]
fn every_key_of_the_last_release_keeps_its_meaning() {
    let config = read(include_str!("../releases/0.2/endpointd_full.toml"));
    assert_eq!(config.retired(), [""; 0]);
    assert_eq!(config.tls.server_name, "ratewright-allocator");
    let session = &config.session;
    assert_eq!(session.bind, Some(IpAddr::from([10, 0, 1, 1])));
    assert_eq!(
        (
            session.handshake_timeout_ms,
            session.handshake_timeout_max_ms
        ),
        (250, 4_000)
    );
    assert_eq!((session.retry_min_ms, session.retry_max_ms), (20, 2_000));
    assert_eq!(session.idle_timeout_ms, 3_000);
    assert_eq!(session.initial_rtt_us, 1_000);
    assert_eq!(config.transport.hot, HotTransport::Udp);
    assert_eq!(config.transport.control_dscp.value(), 48);
    let pacing = &config.pacing;
    // Nothing told it to observe.
    assert_eq!(pacing.mode, PacingMode::Pace);
    assert_eq!(pacing.backend.kind(), None);
    assert_eq!(
        (pacing.min_flowlet_bytes, pacing.idle_gap_us),
        (15_000, 1_000)
    );
    assert_eq!(pacing.max_flows, 16_384);
    assert_eq!(pacing.device.as_deref(), Some("eth0"));
    assert!(pacing.take_over);
    assert_eq!(pacing.instance.as_deref(), Some("h1"));
    let weights: Vec<_> = config.policy.iter().map(|rule| rule.weight).collect();
    assert_eq!(weights, [None, Some(0.5), Some(2.0)]);
    assert_eq!(config.policy[2].max_rate_mbps, Some(8_000.0));
}
