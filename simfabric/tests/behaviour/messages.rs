//! Many short messages: memory follows those under way, not those that were.

use std::sync::{Arc, Mutex};

use ratewright_simfabric::results::FlowResult;
use ratewright_simfabric::run::Config;
use ratewright_simfabric::scheme::Run;
use ratewright_simfabric::workload::{Poisson, SizeDistribution};
use ratewright_simfabric::{FlowSpec, Span, Time, bench};

const HOSTS: u32 = 16;
const RATE_BPS: u64 = 100_000_000_000;
const BYTES: u64 = 3_000;
/// Messages that begin in a second.
const PER_SECOND: f64 = 0.5 * HOSTS as f64 * RATE_BPS as f64 / (8.0 * BYTES as f64);

/// Messages between random hosts at half of the links' capacity.
fn messages(count: usize) -> impl Iterator<Item = FlowSpec> {
    let sizes = SizeDistribution::constant(BYTES);
    let span = (Time::ZERO, Time::MAX);
    let poisson = Poisson::new(HOSTS, RATE_BPS, 0.5, sizes, span, 1).expect("a workload");
    poisson.take(count)
}

/// A run of so many messages over DCTCP.
fn start(count: usize) -> Box<dyn Run> {
    let topology = bench::fabric(HOSTS, false).expect("a fabric");
    let transport = bench::transport(&topology, None).expect("a transport");
    let config = Config {
        seed: 1,
        fabric: transport.fabric.clone(),
        ..Config::default()
    };
    let flows = Box::new(messages(count));
    transport.start(config, &topology, flows).expect("a run")
}

/// Peak resident memory of this process, in MB.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|text| text.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|text| text.trim().parse::<u64>().ok())
        .expect("a number")
        / 1_000
}

/// `RATEWRIGHT_MESSAGES=10000000` runs that many and prints the memory that they took.
#[test]
fn memory_follows_the_messages_under_way() {
    let count = std::env::var("RATEWRIGHT_MESSAGES").map_or(300_000, |text| {
        text.parse().expect("RATEWRIGHT_MESSAGES is a number")
    });
    let mut sim = start(count);
    let totals = Arc::new(Mutex::new((0_usize, 0_u64)));
    let sink = Arc::clone(&totals);
    sim.stream_flows(Box::new(move |flow| {
        let mut totals = sink.lock().expect("nobody panicked");
        totals.0 += 1;
        totals.1 += flow.delivered_bytes;
    }));
    // Two thirds of the messages begin later.
    let third = count as f64 / 3.0 / PER_SECOND;
    sim.run_until(Time::ZERO + Span::from_secs_f64(third))
        .expect("it runs");
    let after_a_third = peak_mb();
    sim.run_until(Time::MAX).expect("it runs");
    let results = sim.results();
    assert_eq!(results.conservation, Ok(()));
    let totals = *totals.lock().expect("nobody panicked");
    assert_eq!(totals, (count, BYTES * count as u64));
    assert!(results.flows.is_empty());
    println!(
        "{count} messages, at most {} at once, {} packet-hops, {} MB",
        results.flows_high_water,
        results.packet_hops,
        peak_mb()
    );
    // Little's law: 33 per microsecond, and few take ten.
    assert!(
        results.flows_high_water < 2_000,
        "{}",
        results.flows_high_water
    );
    assert!(peak_mb() < 300, "{} MB", peak_mb());
    // The slots of 200,000 flows are 26 MB.
    let grown = peak_mb() - after_a_third;
    assert!(grown < 5, "{grown} MB after a third of the messages");
}

/// Results that are handed over are those that would be kept, and both ends' times are known.
#[test]
fn streamed_flows_are_those_that_are_kept() {
    let mut keeping = start(2_000);
    keeping.run_until(Time::MAX).expect("it runs");
    let kept = keeping.results().flows;
    let streamed = Arc::new(Mutex::new(Vec::<FlowResult>::new()));
    let sink = Arc::clone(&streamed);
    let mut streaming = start(2_000);
    // Those that retired before are handed over, too.
    streaming.run_until(Time::from_us(20)).expect("it runs");
    streaming.stream_flows(Box::new(move |flow| {
        sink.lock().expect("nobody panicked").push(*flow);
    }));
    streaming.run_until(Time::MAX).expect("it runs");
    let mut streamed = std::mem::take(&mut *streamed.lock().expect("nobody panicked"));
    streamed.sort_by_key(|flow| flow.number);
    assert_eq!(kept, streamed);
    assert!(kept.iter().map(|flow| flow.number).eq(0..2_000));
    for flow in kept {
        let (finished, acknowledged) = (flow.finished.expect("done"), flow.acknowledged);
        // The last acknowledgement takes at least the two links' delay.
        let way_back = acknowledged.expect("acknowledged").since(finished);
        assert!(way_back.as_ns() >= 2_000, "{flow:?}");
    }
}
