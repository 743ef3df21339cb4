//! Files of the last release, which this one takes with their meaning.

use std::net::SocketAddr;
use std::path::Path;

use ratewright_allocator::service::config::{Config, RelayConfig};

fn allocator(text: &str) -> Config {
    Config::from_toml_str(text, "allocator.toml", Path::new("/etc")).expect("taken")
}

fn relay(text: &str) -> RelayConfig {
    RelayConfig::from_toml_str(text, "relay.toml", Path::new("/etc")).expect("taken")
}

#[test]
fn an_allocators_example_of_the_last_release_is_taken() {
    let config = allocator(include_str!("../releases/0.2/allocator.toml"));
    assert_eq!(config.listen, SocketAddr::from(([0, 0, 0, 0], 7_600)));
    assert_eq!(config.topology, Path::new("/etc/topology.toml"));
    assert_eq!(config.allocation.lease_ms, 300);
    assert_eq!(config.allocation.gamma, 0.4);
    assert_eq!(config.limits.max_flows, 1_000_000);
    assert!(config.classes.iter().all(|class| class.weight == 1.0));
}

#[test]
fn every_key_of_an_allocators_file_of_the_last_release_keeps_its_meaning() {
    let config = allocator(include_str!("../releases/0.2/allocator_full.toml"));
    let allocation = &config.allocation;
    assert_eq!((allocation.blocks, allocation.workers), (Some(4), Some(3)));
    assert_eq!(allocation.interval_us, Some(100));
    assert_eq!((allocation.threshold, allocation.mice_reserve), (0.01, 0.0));
    assert_eq!((allocation.lease_ms, allocation.liveness_ms), (300, 1_000));
    assert_eq!(allocation.start_grace_ms, 300);
    assert_eq!(allocation.pin_core, Some(0));
    assert!(!allocation.start_released);
    let transport = &config.transport;
    assert!(transport.sealed_udp && !transport.busy_poll);
    assert_eq!(transport.udp_port, Some(7_601));
    assert_eq!(transport.control_dscp.value(), 48);
    let limits = &config.limits;
    assert_eq!((limits.max_sessions, limits.max_flows), (4_096, 1_000_000));
    assert_eq!(limits.max_flows_per_session, 16_384);
    assert_eq!(limits.max_demand_changes_per_s, 20_000);
    let allowed = config.trust.allow.as_ref().expect("a list");
    assert!(allowed.iter().eq(["h1", "h2"]));
    assert!(config.trust.relays.contains_key("relay-1"));
    assert_eq!(config.classes.len(), 1);
    assert_eq!(config.classes[0].name, "default");
    assert_eq!(config.classes[0].max_rate_bps, Some(1_000_000_000));
    assert!(config.classes[0].measured_demand);
}

#[test]
fn a_relays_files_of_the_last_release_are_taken() {
    for text in [
        include_str!("../releases/0.2/relay.toml"),
        include_str!("../releases/0.2/relay_full.toml"),
    ] {
        let config = relay(text);
        assert_eq!(config.listen, SocketAddr::from(([0, 0, 0, 0], 7_600)));
        assert_eq!(config.allocators, ["10.0.0.1:7600"]);
        assert_eq!(config.tls.key, Path::new("/etc/relay.key"));
        assert_eq!(config.transport.control_dscp.value(), 48);
        assert_eq!(config.max_hosts, 4_096);
    }
    let full = relay(include_str!("../releases/0.2/relay_full.toml"));
    assert!(full.transport.sealed_udp);
    assert_eq!(full.transport.udp_port, Some(7_601));
}
