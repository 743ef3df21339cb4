use std::sync::Arc;

use ratewright_topology::{Topology, TwoTierClos};

use super::fluid::{FlowletArrival, FluidConfig, FluidFabric};
use super::*;

/// The paper's network: 9 racks of 16 servers under 4 spines (flowtune §5.3).
fn paper_topology() -> Arc<Topology> {
    Arc::new(
        TwoTierClos {
            racks: 9,
            hosts_per_rack: 16,
            spines: 4,
            host_delay_ns: 1_500,
            fabric_delay_ns: 1_500,
            ..TwoTierClos::default()
        }
        .build()
        .unwrap(),
    )
}

fn arrival(start_ns: u64, src: u32, dst: u32, bytes: u64) -> FlowletArrival {
    FlowletArrival {
        start_ns,
        src,
        dst,
        bytes,
        path_hash: src.wrapping_mul(0x9e37_79b1) ^ dst,
    }
}

/// Makes a flowlet every `every_ns` between hosts that a small deterministic generator draws.
fn crowd(every_ns: u64, until_ns: u64, bytes: u64) -> Vec<FlowletArrival> {
    let mut state = 12_345u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    (0..until_ns / every_ns)
        .map(|i| {
            let src = draw(144) as u32;
            let dst = ((u64::from(src) + 1 + draw(143)) % 144) as u32;
            let bytes = bytes / 4 + draw(bytes * 3 / 2);
            FlowletArrival {
                path_hash: draw(1 << 32) as u32,
                ..arrival(i * every_ns, src, dst, bytes)
            }
        })
        .collect()
}

/// Capacity that is handed out: 99 % of 10 Gbit/s at threshold 0.01 (flowtune §5.3.2).
const HANDED_OUT_BPS: f64 = 9.9e9;

#[test]
fn two_flows_to_one_host_share_it_within_100_us() {
    let config = FluidConfig::default();
    let flows = vec![
        arrival(100_000, 1, 140, 1 << 30),
        arrival(5_000_000, 20, 140, 1 << 30),
    ];
    let mut fabric = FluidFabric::new(paper_topology(), config, flows.into_iter()).unwrap();
    fabric.run_until(4_900_000).unwrap();
    let alone = fabric.sending_bps(1) as f64;
    assert!((alone / HANDED_OUT_BPS - 1.0).abs() < 0.011, "{alone}");
    fabric.run_until(5_100_000).unwrap();
    for host in [1, 20] {
        let rate = fabric.sending_bps(host) as f64;
        assert!(
            (rate / (HANDED_OUT_BPS / 2.0) - 1.0).abs() < 0.02,
            "{host}: {rate}"
        );
    }
}

#[test]
fn no_iteration_over_allocates_a_link() {
    let flows = crowd(2_000, 3_000_000, 60_000);
    let mut fabric =
        FluidFabric::new(paper_topology(), FluidConfig::default(), flows.into_iter()).unwrap();
    fabric.run_until(3_000_000).unwrap();
    let totals = fabric.totals();
    assert!(
        totals.allocator.iterations > 200 && totals.finished > 500,
        "{totals:?}"
    );
    assert!(totals.max_link_load > 0.9, "{totals:?}");
    assert!(totals.max_link_load <= 1.0 + 1e-9, "{totals:?}");
}

fn assert_views_equal<A: Iterator<Item = FlowletArrival>>(fabric: &FluidFabric<A>) -> usize {
    let mut flows = 0;
    for host in 0..144 {
        let at_host = fabric.endpoint(host).view();
        assert_eq!(at_host, fabric.allocator().view(host), "host {host}");
        assert!(at_host.iter().all(|&(_, rate_bps)| rate_bps > 0));
        flows += at_host.len();
    }
    flows
}

#[test]
fn both_ends_agree_once_the_network_is_quiet_whatever_was_lost() {
    let mut flows = crowd(5_000, 2_000_000, 60_000);
    // Some that outlive the test, so that there are rates to agree on.
    flows.extend((0..60).map(|i| arrival(2_000_000 + u64::from(i), i, 143 - i, 1 << 34)));
    let config = FluidConfig {
        control_loss: 0.2,
        ..FluidConfig::default()
    };
    let mut fabric = FluidFabric::new(paper_topology(), config, flows.into_iter()).unwrap();
    fabric.run_until(4_000_000).unwrap();
    assert!(fabric.totals().lost > 300, "{:?}", fabric.totals());
    fabric.set_control_loss(0.0);
    fabric.run_until(60_000_000).unwrap();
    assert_eq!(fabric.active(), 60);
    assert_eq!(assert_views_equal(&fabric), 60);
    assert_eq!(fabric.allocator().engine().flow_count(), 60);
}

#[test]
fn a_session_that_fell_silent_is_replaced_and_its_flows_are_reported_anew() {
    let flows: Vec<_> = (0..20)
        .map(|i| arrival(10_000 * u64::from(i), i, 143 - i, 1 << 34))
        .collect();
    let mut config = FluidConfig::default();
    config.control.lease_ns = 2_000_000;
    config.control.liveness_ns = 6_000_000;
    let mut fabric = FluidFabric::new(paper_topology(), config, flows.into_iter()).unwrap();
    fabric.run_until(1_000_000).unwrap();
    fabric.set_control_loss(1.0);
    fabric.run_until(12_000_000).unwrap();
    assert!(
        fabric.totals().allocator.sessions_lost >= 144,
        "{:?}",
        fabric.totals()
    );
    assert_eq!(fabric.allocator().engine().flow_count(), 0);
    fabric.set_control_loss(0.0);
    fabric.run_until(60_000_000).unwrap();
    assert_eq!(assert_views_equal(&fabric), 20);
    assert_eq!(fabric.allocator().engine().flow_count(), 20);
}

#[test]
fn the_same_arrivals_give_the_same_traffic() {
    let run = |seed| {
        let config = FluidConfig {
            control_loss: 0.05,
            seed,
            ..FluidConfig::default()
        };
        let flows = crowd(2_000, 2_000_000, 60_000);
        let mut fabric = FluidFabric::new(paper_topology(), config, flows.into_iter()).unwrap();
        fabric.run_until(3_000_000).unwrap();
        fabric.totals()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn the_parallel_engine_gives_the_reference_engines_rates() {
    let run = |engine| {
        let mut config = FluidConfig::default();
        config.control.engine = engine;
        let flows: Vec<_> = (0..50)
            .map(|i| arrival(1_000 * u64::from(i), i, 143 - i % 7, 1 << 34))
            .collect();
        let mut fabric = FluidFabric::new(paper_topology(), config, flows.into_iter()).unwrap();
        fabric.run_until(5_000_000).unwrap();
        (0..50)
            .map(|host| fabric.sending_bps(host) as f64)
            .collect::<Vec<_>>()
    };
    let (reference, parallel) = (
        run(EngineChoice::Reference),
        run(EngineChoice::Parallel { blocks: 1 }),
    );
    for (a, b) in reference.iter().zip(&parallel) {
        // Each may lag its own target by a threshold.
        assert!((a / b - 1.0).abs() < 0.025, "{a} {b}");
    }
}

#[test]
fn a_bare_update_costs_a_minimum_frame() {
    // flowtune §6: 64-byte frames, preamble and gap make 84 bytes.
    assert_eq!(datagram_wire_bytes(8), 84);
    assert_eq!(datagram_wire_bytes(38), 18 + 28 + 38 + 20);
}
