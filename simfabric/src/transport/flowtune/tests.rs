use ratewright_topology::TwoTierClos;

use super::*;
use crate::control::EngineChoice;
use crate::flow::{FlowSpec, PacketCount};
use crate::net::{AllocatorLinks, FabricConfig};
use crate::run::{Config, Sim};
use crate::time::Span;
use crate::transport::ideal::{Ideal, IdealConfig, Objective};

fn topology() -> Topology {
    TwoTierClos {
        racks: 9,
        hosts_per_rack: 16,
        spines: 4,
        host_delay_ns: 1_500,
        fabric_delay_ns: 1_500,
        ..TwoTierClos::default()
    }
    .build()
    .unwrap()
}

fn run_config() -> Config {
    Config {
        seed: 3,
        fabric: FabricConfig {
            host_delay: Span::from_us(2),
            allocator: Some(AllocatorLinks {
                rate_bps: 40_000_000_000,
                delay: Span::from_ns(1_500),
                processing: Span::from_us(2),
            }),
            ..FabricConfig::default()
        },
        ..Config::default()
    }
}

fn flow(start_us: u64, src: u32, dst: u32, bytes: u64) -> FlowSpec {
    FlowSpec::new(HostId(src), HostId(dst), bytes, Time::from_us(start_us))
}

fn sim(
    config: FlowtuneConfig,
    flows: Vec<FlowSpec>,
) -> Sim<Flowtune, std::vec::IntoIter<FlowSpec>> {
    let topology = topology();
    let scheme = Flowtune::new(&Arc::new(topology.clone()), config).unwrap();
    Sim::new(run_config(), topology, flows.into_iter(), scheme).unwrap()
}

/// Returns the rate that a flow is paced at; 0 without one.
fn rate_bps<A>(sim: &Sim<Flowtune, A>, flow: u32) -> u64
where
    A: crate::workload::Arrivals,
{
    sim.sender_of(FlowId(flow))
        .and_then(|(node, slot)| Some(node.host()?.rate_bps(slot)))
        .unwrap_or(0)
}

/// Makes many short flows between hosts that a small generator draws.
fn crowd(every_us: u64, count: u64) -> Vec<FlowSpec> {
    let mut state = 99u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    (0..count)
        .map(|i| {
            let src = draw(144) as u32;
            let dst = ((u64::from(src) + 1 + draw(143)) % 144) as u32;
            flow(i * every_us, src, dst, 1 + draw(150_000))
        })
        .collect()
}

#[test]
fn a_second_flow_gets_half_within_100_us() {
    let flows = vec![flow(100, 1, 140, 1 << 30), flow(3_000, 20, 140, 1 << 30)];
    let mut sim = sim(FlowtuneConfig::default(), flows);
    sim.run_until(Time::from_us(2_999)).unwrap();
    let rate = rate_bps(&sim, 0) as f64;
    assert!((rate / 9.9e9 - 1.0).abs() < 0.011, "{rate}");
    sim.run_until(Time::from_us(3_100)).unwrap();
    for id in [0, 1] {
        let rate = rate_bps(&sim, id) as f64;
        assert!((rate / 4.95e9 - 1.0).abs() < 0.02, "{id}: {rate}");
    }
    let before: Vec<_> = sim
        .results()
        .flows
        .iter()
        .map(|f| f.delivered_bytes)
        .collect();
    sim.run_until(Time::from_us(5_100)).unwrap();
    let results = sim.results();
    for (record, before) in results.flows.iter().zip(before) {
        let goodput = (record.delivered_bytes - before) as f64 * 8.0 / 2e-3;
        let fair = 5e9 * 1_460.0 / 1_538.0;
        assert!((goodput / fair - 1.0).abs() < 0.05, "{goodput} of {fair}");
    }
    results.conservation.unwrap();
}

#[test]
fn the_parallel_engine_gives_the_reference_engines_rates() {
    let rates = |engine| {
        let flows = (0..50).map(|i| flow(u64::from(i), i, 143 - i % 7, 1 << 30));
        let mut config = FlowtuneConfig::default();
        config.control.engine = engine;
        let mut sim = sim(config, flows.collect());
        sim.run_until(Time::from_ms(5)).unwrap();
        (0..50)
            .map(|i| rate_bps(&sim, i) as f64)
            .collect::<Vec<_>>()
    };
    let reference = rates(EngineChoice::Reference);
    let parallel = rates(EngineChoice::Parallel { blocks: 1 });
    for (a, b) in reference.iter().zip(&parallel) {
        // Each may lag its own target by a threshold.
        assert!((a / b - 1.0).abs() < 0.025, "{a} {b}");
    }
}

#[test]
fn every_flow_arrives_and_its_end_is_known_to_the_allocator() {
    let flows = crowd(3, 2_000);
    let mut sim = sim(FlowtuneConfig::default(), flows);
    sim.run_until(Time::from_ms(60)).unwrap();
    let results = sim.results();
    results.conservation.unwrap();
    assert!(results.flows.iter().all(|flow| flow.finished.is_some()));
    let counts = sim.shared().allocator().counts();
    assert_eq!((counts.starts, counts.ends), (2_000, 2_000));
    assert_eq!(sim.shared().allocator().engine().flow_count(), 0);
}

#[test]
fn both_ends_agree_after_control_datagrams_were_lost() {
    let mut flows = crowd(3, 700);
    flows.extend((0..40).map(|i| flow(2_200, i, 143 - i, 1 << 30)));
    let mut sim = sim(over(Carrier::Datagram, 0.2), flows);
    sim.run_until(Time::from_ms(40)).unwrap();
    assert!(sim.shared().lost_control_packets() > 100);
    let hosts = || sim.endpoints().filter_map(FlowtuneNode::host);
    assert_eq!(hosts().map(FlowtuneHost::active).sum::<usize>(), 40);
    for (number, host) in (0..).zip(hosts()) {
        let known = sim.shared().allocator().view(number);
        assert_eq!(host.agent().view(), known, "host {number}");
    }
}

#[test]
fn without_an_allocator_to_hear_from_flows_run_by_their_windows() {
    let config = FlowtuneConfig {
        control_loss: 1.0,
        ..FlowtuneConfig::default()
    };
    let mut sim = sim(config, vec![flow(0, 1, 140, 3_000_000)]);
    sim.run_until(Time::from_ms(20)).unwrap();
    assert!(sim.results().flows[0].finished.is_some());
    assert_eq!(sim.shared().allocator().counts().starts, 0);
}

#[test]
fn rates_end_with_the_lease() {
    let mut config = FlowtuneConfig {
        control_loss: 1.0,
        control_loss_from: Time::from_us(700),
        ..FlowtuneConfig::default()
    };
    config.control.lease_ns = 10_000_000;
    config.control.liveness_ns = 40_000_000;
    let mut sim = sim(config, vec![flow(0, 1, 140, 1 << 32)]);
    sim.run_until(Time::from_us(700)).unwrap();
    assert!(rate_bps(&sim, 0) > 9_000_000_000);
    sim.run_until(Time::from_ms(12)).unwrap();
    assert_eq!(rate_bps(&sim, 0), 0);
}

#[test]
fn one_seed_gives_one_outcome() {
    let run = || {
        let config = FlowtuneConfig {
            control_loss: 0.05,
            ..FlowtuneConfig::default()
        };
        let mut sim = sim(config, crowd(3, 500));
        sim.run_until(Time::from_ms(10)).unwrap();
        let results = sim.results();
        (
            results.flows,
            results.packet_hops,
            results.events,
            results.transport,
        )
    };
    assert_eq!(run(), run());
}

#[test]
fn the_ideal_scheme_fills_a_link_from_the_first_packet_and_shares_it_at_once() {
    let topology = topology();
    let scheme = Ideal::new(&Arc::new(topology.clone()), IdealConfig::default()).unwrap();
    let flows = vec![flow(0, 1, 140, 1 << 30), flow(1_000, 20, 140, 1 << 30)];
    let mut sim = Sim::new(run_config(), topology, flows.into_iter(), scheme).unwrap();
    let mut before = [0.0; 2];
    let share = IdealConfig::default().share * 1_460.0 / 1_538.0;
    // 15 µs after the start the first packet is there; no other moment matters.
    for (at_us, rates) in [(15, [0.0, 0.0]), (1_015, [1.0, 0.0]), (2_015, [0.5, 0.5])] {
        sim.run_until(Time::from_us(at_us)).unwrap();
        let results = sim.results();
        for (id, rate) in rates.into_iter().enumerate() {
            let bytes = results.flows.get(id).map_or(0, |f| f.delivered_bytes) as f64;
            if at_us > 15 {
                let share_of = (bytes - before[id]) * 8.0 / 1e-3 / (10e9 * share);
                assert!((share_of - rate).abs() < 0.01, "{at_us} {id}: {share_of}");
            }
            before[id] = bytes;
        }
    }
}

fn over(carrier: Carrier, control_loss: f64) -> FlowtuneConfig {
    FlowtuneConfig {
        carrier,
        control_loss,
        ..FlowtuneConfig::default()
    }
}

/// The transport of messages changes their delay and not their content.
#[test]
fn over_tcp_rates_are_in_the_end_those_over_datagrams() {
    let rates = |config| {
        let mut flows = crowd(3, 300);
        flows.extend((0..60).map(|i| flow(1_000, i, 143 - (i * 7) % 80, 1 << 30)));
        flows.sort_by_key(|flow| flow.start);
        let elephants: Vec<_> = flows.iter().map(|flow| flow.bytes == 1 << 30).collect();
        let mut sim = sim(config, flows);
        sim.run_until(Time::from_ms(20)).unwrap();
        sim.results().conservation.unwrap();
        let ids = (0..elephants.len()).filter(|&id| elephants[id]);
        ids.map(|id| rate_bps(&sim, id as u32)).collect::<Vec<_>>()
    };
    let datagrams = rates(over(Carrier::Datagram, 0.0));
    assert_eq!(datagrams.len(), 60);
    for loss in [0.0, 0.1] {
        for (tcp, datagram) in rates(over(Carrier::Tcp, loss)).iter().zip(&datagrams) {
            // A rate that moved by less than the threshold is not notified again.
            let ratio = *tcp as f64 / *datagram as f64;
            assert!(
                (ratio - 1.0).abs() < 0.021,
                "{tcp} {datagram} with loss {loss}"
            );
        }
    }
}

#[test]
fn over_tcp_both_ends_agree_after_segments_were_lost() {
    let mut flows = crowd(3, 700);
    flows.extend((0..40).map(|i| flow(2_200, i, 143 - i, 1 << 30)));
    let mut sim = sim(over(Carrier::Tcp, 0.2), flows);
    sim.run_until(Time::from_ms(40)).unwrap();
    assert!(sim.shared().lost_control_packets() > 100);
    let hosts = || sim.endpoints().filter_map(FlowtuneNode::host);
    assert_eq!(hosts().map(FlowtuneHost::active).sum::<usize>(), 40);
    for (number, host) in (0..).zip(hosts()) {
        let known = sim.shared().allocator().view(number);
        assert_eq!(host.agent().view(), known, "host {number}");
    }
    // TCP repaired it all: no session had to.
    let counts = sim.shared().allocator().counts();
    assert_eq!((counts.starts, counts.sessions_lost), (740, 0));
}

/// Every byte of control traffic crosses the allocator's links, and is counted at its sender.
#[test]
fn over_tcp_all_bytes_on_the_wire_are_accounted_for() {
    for carrier in [Carrier::Datagram, Carrier::Tcp] {
        let mut sim = sim(over(carrier, 0.0), crowd(3, 500));
        sim.run_until(Time::from_ms(60)).unwrap();
        let results = sim.results();
        results.conservation.unwrap();
        assert!(results.flows.iter().all(|flow| flow.finished.is_some()));
        let [up, down] = control_traffic(sim.shared(), sim.endpoints());
        // The allocator's own links come after those between servers and switches.
        let own = &results.ports[topology().links().len()..];
        let crossed: u64 = own.iter().map(|port| port.stats.sent.bytes).sum();
        let control = results.control;
        assert_eq!(
            (control.arrived, control.dropped),
            (control.sent, PacketCount::default())
        );
        assert_eq!(control.sent.packets, up.datagrams + down.datagrams);
        assert_eq!(control.sent.bytes, up.wire_bytes + down.wire_bytes);
        assert_eq!(crossed, up.wire_bytes + down.wire_bytes, "{carrier:?}");
    }
}

/// A session that receives nothing from the allocator times out; the next one uses another
/// connection.
#[test]
fn over_tcp_a_session_that_was_lost_begins_anew() {
    let mut config = over(Carrier::Tcp, 1.0);
    config.control_loss_from = Time::from_us(700);
    config.control.lease_ns = 10_000_000;
    config.control.liveness_ns = 40_000_000;
    config.control_loss_until = Some(Time::from_ms(80));
    let mut sim = sim(config, vec![flow(0, 1, 140, 1 << 35)]);
    sim.run_until(Time::from_ms(75)).unwrap();
    assert_eq!(rate_bps(&sim, 0), 0);
    sim.run_until(Time::from_ms(200)).unwrap();
    assert!(rate_bps(&sim, 0) > 9_000_000_000);
}

/// A flow over two busy links, and one more on each, get halves by max-min fairness, and a third
/// and two thirds by proportional fairness (Kelly's line of two links).
#[test]
fn the_ideal_scheme_shares_by_its_objective() {
    let topology = topology();
    for (objective, shares) in [
        (Objective::MaxMin, [0.5, 0.5, 0.5]),
        (Objective::Proportional, [1.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0]),
    ] {
        let config = IdealConfig {
            objective,
            ..IdealConfig::default()
        };
        let ideal = Ideal::new(&Arc::new(topology.clone()), config).unwrap();
        let flows = vec![
            flow(0, 1, 140, 1 << 30),
            flow(0, 1, 60, 1 << 30),
            flow(0, 20, 140, 1 << 30),
        ];
        let mut sim = Sim::new(run_config(), topology.clone(), flows.into_iter(), ideal).unwrap();
        sim.run_until(Time::from_us(100)).unwrap();
        let delivered = |results: &crate::results::RunResults| {
            let bytes = results.flows.iter().map(|flow| flow.delivered_bytes);
            bytes.collect::<Vec<_>>()
        };
        let before = delivered(&sim.results());
        sim.run_until(Time::from_us(2_100)).unwrap();
        let after = delivered(&sim.results());
        let goodput = 10e9 * config.share * 1_460.0 / 1_538.0;
        for (flow, share) in shares.into_iter().enumerate() {
            let bps = (after[flow] - before[flow]) as f64 * 8.0 / 2e-3;
            assert!(
                (bps / goodput - share).abs() < 0.01,
                "{objective:?} {flow}: {bps}"
            );
        }
    }
}

/// Returns the time at which a lone flow gets its first rate, to 10 ns.
fn first_rate_at(iteration: Span) -> Time {
    let mut config = FlowtuneConfig::default();
    config.control.iteration_ns = iteration.as_ns();
    let mut sim = sim(config, vec![flow(0, 1, 140, 1 << 30)]);
    let mut at = Time::ZERO;
    while rate_bps(&sim, 0) == 0 && at < Time::from_us(500) {
        at += Span::from_ns(10);
        sim.run_until(at).unwrap();
    }
    at
}

/// The first rate comes later by the time that the iteration takes, and by nothing else.
#[test]
fn rates_leave_at_the_end_of_an_iteration() {
    let least = first_rate_at(Span::ZERO);
    for us in [0.29, 8.29, 30.71] {
        let iteration = Span::from_ns((us * 1e3_f64).round() as u64);
        assert_eq!(first_rate_at(iteration), least + iteration, "{us} µs");
    }
}

/// An iteration begins on the grid of 10 µs, after the one before has ended: one of 30.71 µs leaves
/// a quarter of the grid's moments (flowtune §8).
#[test]
fn an_iteration_waits_for_the_one_before() {
    let iterations = |iteration_ns| {
        let mut config = FlowtuneConfig::default();
        config.control.iteration_ns = iteration_ns;
        let mut sim = sim(config, crowd(3, 1_000));
        // Flowlets start every 3 µs, so that rates move all the time.
        sim.run_until(Time::from_ms(2)).unwrap();
        let before = sim.shared().allocator().counts().iterations;
        sim.run_until(Time::from_us(2_800)).unwrap();
        sim.shared().allocator().counts().iterations - before
    };
    for (iteration_ns, all) in [(0, 80), (8_290, 80), (30_710, 20)] {
        let found = iterations(iteration_ns);
        assert!(found.abs_diff(all) <= 1, "{iteration_ns}: {found}");
    }
}
