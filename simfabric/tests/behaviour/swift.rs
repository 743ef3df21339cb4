//! Swift against its own equilibrium.

use std::path::Path;

use ratewright_simfabric::plan::{Overrides, RunPlan};
use ratewright_simfabric::report::ideal::completion_time;
use ratewright_simfabric::results::RunResults;
use ratewright_simfabric::{Config, Span};
use ratewright_topology::{HostId, Node};

/// Hosts at 100 Gbit/s under one switch, as in SIRD's simulations; the receiver is host 0.
fn plan(keys: &str, flows: &str) -> RunPlan {
    let text = format!(
        r#"
[run]
duration = "20ms"
warm_up = "8ms"
[topology]
kind = "big-switch"
hosts = 16
host_rate = "100Gbit/s"
link_delay = "1.25us"
[transport]
name = "swift"
{keys}
[[workload]]
kind = "list"
flows = [{flows}]"#
    );
    RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default()).expect("a good plan")
}

fn run(plan: &RunPlan) -> RunResults {
    let config = Config {
        warm_up: plan.warm_up,
        ..Config::default()
    };
    let flows = plan.flows().expect("flows");
    let mut run = plan.transports[0]
        .start(config, &plan.topology, flows)
        .expect("it starts");
    run.run_until(plan.end).expect("it runs");
    let results = run.results();
    results.conservation.expect("it conserves");
    results
}

/// Below the target a window of more than the path holds never shrinks.
#[test]
fn a_flow_alone_fills_its_link() {
    for bytes in [1, 90_000, 10_000_000] {
        let plan = plan("", &format!("{{ src = 1, dst = 0, bytes = {bytes} }}"));
        let framing = plan.transports[0].fabric.framing;
        let ends = (HostId(1), HostId(0));
        let empty = completion_time(&plan.topology, framing, Span::ZERO, ends, bytes);
        assert_eq!(run(&plan).flows[0].fct(), empty.ok(), "{bytes}");
    }
}

/// Mean queue before the receiver's link in µs of that link, and the share of it that is used.
fn queue_us(keys: &str, flows: usize) -> (f64, f64) {
    let flow = |n: usize| format!("{{ src = {}, dst = 0 }}", n % 15 + 1);
    let flows: Vec<String> = (0..flows).map(flow).collect();
    let plan = plan(keys, &flows.join(", "));
    let results = run(&plan);
    let leaf = Node::Switch(plan.topology.racks()[0].leaf);
    let link = plan.topology.link_between(leaf, Node::Host(HostId(0)));
    let stats = &results.ports[link.expect("a link").index()].stats;
    let seconds = plan.end.since(plan.warm_up).as_secs_f64();
    let used = stats.sent.bytes as f64 * 8.0 / seconds / 100e9;
    (stats.mean_bytes() * 8.0 / 100e9 * 1e6, used)
}

/// Delay at which so many flows share the link: their windows, at the target's delay, fill it
/// (§3.5: the target is base, hops and α/√w + β).
fn target_us(flows: f64) -> f64 {
    let alpha = 75.0 / (1.0 / 0.1_f64.sqrt() - 0.1);
    let mut target: f64 = 50.0;
    for _ in 0..1_000 {
        // Packets of 1,538 bytes.
        let window = target * 1e-6 * 100e9 / 8.0 / 1_538.0 / flows;
        let next = 16.0 + (alpha / window.sqrt() - alpha / 10.0).clamp(0.0, 75.0);
        target += 0.1 * (next - target);
    }
    target
}

/// The queue is what the target leaves to it beyond links and processing, from few flows to more
/// than there are packets in the network, for which windows are below one.
#[test]
fn the_queue_follows_the_target() {
    // Four links of 1.25 µs, a packet and an acknowledgement on two links each.
    let empty_us = 5.0 + 2.0 * (0.123_04 + 0.006_72);
    for (flows, initial) in [(6, 20), (60, 2), (1_200, 1)] {
        let keys = format!("initial_window_packets = {initial}");
        let (queue, used) = queue_us(&keys, flows);
        let expected = target_us(flows as f64) - empty_us;
        println!("{flows} flows: {queue} µs, {expected} by the target, {used} used");
        assert!(used > 0.97, "{flows} flows use {used}");
        // Windows below one grow by whole packets (algorithm 1), and so overshoot.
        let most = if flows > 1_000 { 1.4 } else { 1.1 };
        let share = queue / expected;
        assert!((0.9..most).contains(&share), "{flows}: {queue}, {expected}");
    }
}
