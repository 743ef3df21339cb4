//! Dart: convergence in one round trip, the two places of congestion, look-ahead, deflection in
//! order, and what notices without data cost.

use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::results::{RunResults, SwitchResult};
use ratewright_simfabric::scheme::Run;
use ratewright_simfabric::{Config, FabricConfig, FlowId, FlowSpec, Framing, HostId, Span, Time};
use ratewright_topology::{BigSwitch, Topology, TwoTierClos};

const RATE_BPS: u64 = 40_000_000_000;
const DELAY_NS: u64 = 1_000;
const FRAMING: Framing = Framing {
    mss_bytes: 1_000,
    header_bytes: 48,
    min_wire_bytes: 60,
};

fn star(hosts: u32) -> Topology {
    BigSwitch {
        racks: 1,
        hosts_per_rack: hosts,
        host_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY_NS,
        ..BigSwitch::default()
    }
    .build()
    .expect("a switch")
}

/// Two racks behind one spine, whose links are as fast as a host's.
fn dumbbell(hosts_per_rack: u32) -> Topology {
    TwoTierClos {
        racks: 2,
        hosts_per_rack,
        spines: 1,
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY_NS,
        fabric_delay_ns: DELAY_NS,
        ..TwoTierClos::default()
    }
    .build()
    .expect("two racks")
}

fn fabric() -> FabricConfig {
    FabricConfig {
        framing: FRAMING,
        host_delay: Span::ZERO,
        ..FabricConfig::default()
    }
}

fn transport(topology: &Topology, settings: &str) -> PlannedTransport {
    let text = format!("[[transport]]\nname = \"dart\"\n{settings}");
    let transports = read_transports(&text, "dart", topology, fabric(), &[]);
    let transports = transports.expect("a transport");
    transports.into_iter().next().expect("one transport")
}

fn start(transport: &PlannedTransport, topology: &Topology, flows: Vec<FlowSpec>) -> Box<dyn Run> {
    let config = Config {
        seed: 3,
        groups: [(1..=8).chain(20..28).map(HostId).collect()].into(),
        ..Config::default()
    };
    transport
        .start(config, topology, Box::new(flows.into_iter()))
        .expect("a run")
}

fn flow(src: u32, dst: u32, bytes: u64, at: Time) -> FlowSpec {
    FlowSpec::new(HostId(src), HostId(dst), bytes, at)
}

/// Changes of the senders' rates within a time: flow, rate before, rate after, and the step in
/// which it was seen.
fn changes(run: &mut dyn Run, flows: u32, step: Span, (from, until): (Time, Time)) -> Vec<Change> {
    run.run_until(from).expect("a run");
    let rate = |run: &dyn Run, flow| run.rate_bps(FlowId(flow));
    let mut last: Vec<Option<f64>> = (0..flows).map(|flow| rate(run, flow)).collect();
    let mut changes = Vec::new();
    let mut now = from;
    while now < until {
        now += step;
        run.run_until(now).expect("a run");
        for flow in 0..flows {
            let after = rate(run, flow);
            let before = std::mem::replace(&mut last[flow as usize], after);
            if let (Some(before), Some(after)) = (before, after)
                && before.to_bits() != after.to_bits()
            {
                changes.push(Change {
                    flow,
                    before,
                    after,
                    at: now,
                });
            }
        }
    }
    changes
}

#[derive(Debug)]
struct Change {
    flow: u32,
    before: f64,
    after: f64,
    at: Time,
}

/// Time of a full packet on the line.
fn packet_time() -> Span {
    Span::from_ps(u64::from(FRAMING.wire_bytes(1_000)) * 8 * 25)
}

/// n senders that begin at once are at C / n when each has the acknowledgement of its first packet
/// that arrived behind the n-th's first (§III-A): the first packets of all take n packets' time,
/// and the next ones n more.
#[test]
fn all_senders_are_at_their_part_after_one_round_trip() {
    let packet = packet_time();
    // Two links each way, with a packet's and an acknowledgement's time on each.
    let round_trip = Span::from_ns(4 * DELAY_NS + 4 * 12) + packet * 2;
    for n in [2, 3, 4, 8, 16, 64, 128, 256_u32] {
        let topology = star(n + 1);
        let flows = (1..=n).map(|src| flow(src, 0, FlowSpec::UNBOUNDED, Time::ZERO));
        let mut run = start(&transport(&topology, ""), &topology, flows.collect());
        let rates = |run: &dyn Run| -> Vec<f64> {
            (0..n)
                .filter_map(|flow| run.rate_bps(FlowId(flow)))
                .collect()
        };
        let part = RATE_BPS as f64 / f64::from(n);
        // The n-th's first packet has arrived, but its acknowledgement has not come.
        let before = Time::ZERO + round_trip + packet * u64::from(n - 2);
        run.run_until(before).expect("a run");
        assert!(rates(run.as_ref()).iter().any(|rate| *rate > part), "{n}");
        run.run_until(Time::ZERO + round_trip + packet * u64::from(2 * n))
            .expect("a run");
        assert_eq!(rates(run.as_ref()), vec![part; n as usize], "{n}");
    }
}

/// A sender that joins n − 1 others is at C / n by its first acknowledgement, in one step; each
/// other by its first one after that, of which one leaves the receiver in 2 (n − 1) packets: until
/// then the newcomer sends as many as all others.
#[test]
fn a_newcomer_and_the_others_are_at_their_part_in_one_step() {
    let line = RATE_BPS as f64;
    let packet = packet_time();
    for n in [2, 3, 4, 8_u32] {
        let topology = star(n + 1);
        let joins = Time::from_us(300);
        let mut flows: Vec<FlowSpec> = (1..n)
            .map(|src| flow(src, 0, FlowSpec::UNBOUNDED, Time::ZERO))
            .collect();
        flows.push(flow(n, 0, FlowSpec::UNBOUNDED, joins));
        let mut run = start(&transport(&topology, ""), &topology, flows);
        // The queue that the first n − 1 made in their first round trip stays: they fill the line.
        let window = (joins, joins + Span::from_us(300));
        let changes = changes(run.as_mut(), n, packet, window);
        let newcomer = changes.iter().find(|change| change.flow == n - 1);
        let newcomer = newcomer.expect("the n-th learns").at;
        assert_eq!(changes.len() as u32, n, "one step each: {changes:?}");
        for Change {
            flow,
            before,
            after,
            at,
        } in &changes
        {
            let was = if *flow == n - 1 {
                1.0
            } else {
                f64::from(n - 1)
            };
            assert_eq!((*before, *after), (line / was, line / f64::from(n)), "{n}");
            let apart = at.max(&newcomer).since(*at.min(&newcomer));
            assert!(
                apart <= packet * u64::from(2 * n - 1),
                "{n}: {apart:?} from the n-th"
            );
        }
    }
}

/// A flow that ends gives its part to the others one round trip later.
#[test]
fn a_part_returns_when_its_sender_is_done() {
    let topology = star(3);
    let flows = vec![
        flow(1, 0, FlowSpec::UNBOUNDED, Time::ZERO),
        flow(2, 0, 200_000, Time::ZERO),
    ];
    let mut run = start(&transport(&topology, ""), &topology, flows);
    run.run_until(Time::from_us(60)).expect("a run");
    assert_eq!(run.rate_bps(FlowId(0)), Some(RATE_BPS as f64 / 2.0));
    run.run_until(Time::from_us(200)).expect("a run");
    assert_eq!(run.rate_bps(FlowId(1)), None, "it is done");
    assert_eq!(run.rate_bps(FlowId(0)), Some(RATE_BPS as f64));
}

/// The host's two messages to one receiver share one part (§III-B).
#[test]
fn messages_of_a_sender_share_its_part() {
    let topology = star(3);
    let long = |src| flow(src, 0, FlowSpec::UNBOUNDED, Time::ZERO);
    let flows = vec![long(1), long(1), long(2)];
    let mut run = start(&transport(&topology, ""), &topology, flows);
    run.run_until(Time::from_us(100)).expect("a run");
    let rates: Vec<f64> = (0..3).filter_map(|n| run.rate_bps(FlowId(n))).collect();
    let line = RATE_BPS as f64;
    assert_eq!(rates, [line / 4.0, line / 4.0, line / 2.0]);
}

fn completed(results: &RunResults) -> usize {
    results
        .flows
        .iter()
        .filter(|flow| flow.fct().is_some())
        .count()
}

fn counter(run: &dyn Run, name: &str) -> f64 {
    let counters = run.counters();
    let found = counters.iter().find(|(key, _)| *key == name);
    found.unwrap_or_else(|| panic!("{name} in {counters:?}")).1
}

/// Flows that meet within the network slow down by marks, as with DCQCN; flows that meet at their
/// receiver do not hear of them (§III-C).
#[test]
fn marks_are_told_of_the_network_and_withheld_of_the_receiver() {
    let topology = dumbbell(4);
    for (receivers, elsewhere) in [([4, 5], true), ([4, 4], false)] {
        let flows = (0..2)
            .map(|n| flow(n, receivers[n as usize], 4_000_000, Time::ZERO))
            .collect();
        let mut run = start(&transport(&topology, ""), &topology, flows);
        run.run_until(Time::MAX).expect("a run");
        let (cnps, withheld) = (
            counter(run.as_ref(), "cnps"),
            counter(run.as_ref(), "marks_withheld"),
        );
        if elsewhere {
            assert!(cnps >= 2.0 && withheld == 0.0, "{cnps} {withheld}");
        } else {
            assert!(cnps == 0.0 && withheld > 0.0, "{cnps} {withheld}");
        }
        let results = run.results();
        assert_eq!((completed(&results), results.drops()), (2, 0));
    }
}

/// By the list in one message of an incast a flow falls to its part at once; without lists it
/// follows the messages that come (§III-D).
#[test]
fn a_list_of_senders_takes_the_place_of_their_messages() {
    let topology = dumbbell(18);
    let line = RATE_BPS as f64;
    let rates = |settings: &str| -> Vec<f64> {
        let at = Time::from_us(100);
        let mut flows = vec![flow(9, 0, FlowSpec::UNBOUNDED, Time::ZERO)];
        // Half of the senders are two links farther away.
        flows.extend((1..=8).chain(20..28).map(|src| FlowSpec {
            group: 1,
            ..flow(src, 0, 8_000, at)
        }));
        let mut run = start(&transport(&topology, settings), &topology, flows);
        let window = (at, at + Span::from_us(200));
        let step = Span::from_ns(50);
        let changes = changes(run.as_mut(), 17, step, window);
        let of_long = changes.into_iter().filter(|change| change.flow == 0);
        of_long.map(|change| change.after).collect()
    };
    let with = rates("");
    assert_eq!(with[0], line / 17.0, "{with:?}");
    assert_eq!(with.last(), Some(&line), "{with:?}");
    let without = rates("look_ahead = false");
    assert!(without[0] > line / 17.0, "{without:?}");
    assert!(without.len() > with.len() && without.last() == Some(&line));
}

/// Notices of 15 senders that never send cost a flow its part until they time out, those of another
/// tenant no more than an equal part for each tenant, and nothing where look-ahead is off (§III-E).
#[test]
fn notices_without_data_cost_a_bounded_part_for_a_bounded_time() {
    let topology = dumbbell(18);
    let line = RATE_BPS as f64;
    for (settings, while_it_lasts) in [
        ("", line / 16.0),
        ("tenants = true", line / 2.0),
        ("look_ahead = false", line),
    ] {
        let long = flow(9, 0, FlowSpec::UNBOUNDED, Time::ZERO);
        let lie = FlowSpec {
            group: 1,
            label: 1,
            ..flow(1, 0, 1, Time::from_us(50))
        };
        let settings = format!("idle_time_out = \"200us\"\n{settings}");
        let transport = transport(&topology, &settings);
        let mut run = start(&transport, &topology, vec![long, lie]);
        for (us, rate) in [
            (45, line),
            (100, while_it_lasts),
            (230, while_it_lasts),
            (290, line),
        ] {
            run.run_until(Time::from_us(us)).expect("a run");
            assert_eq!(run.rate_bps(FlowId(0)), Some(rate), "{settings} {us}");
        }
    }
}

fn run(topology: &Topology, settings: &str, flows: Vec<FlowSpec>) -> (RunResults, Box<dyn Run>) {
    let mut run = start(&transport(topology, settings), topology, flows);
    run.run_until(Time::MAX).expect("a run");
    (run.results(), run)
}

/// Short messages of several packets leave a congested uplink for others, arrive in order, and long
/// ones stay (§IV): a gap would be answered by a negative acknowledgement.
#[test]
fn deflected_messages_arrive_in_order() {
    let topology = TwoTierClos {
        racks: 4,
        hosts_per_rack: 8,
        spines: 4,
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY_NS,
        fabric_delay_ns: DELAY_NS,
        ..TwoTierClos::default()
    }
    .build()
    .expect("four racks");
    let mut flows = Vec::new();
    for round in 0..20_u64 {
        let at = Time::from_us(40 * round);
        flows.extend((0..4).map(|src| flow(src, 8 + src, 200_000, at)));
        let at = at + Span::from_us(15);
        flows.extend((4..8).map(|src| flow(src, 8 + src, 8_000, at)));
    }
    let (results, with) = run(&topology, "", flows.clone());
    let deflected: u64 = (results.switches.iter())
        .map(|switch| switch.deflections.messages)
        .sum();
    assert!(deflected >= 10, "{deflected}");
    assert_eq!(counter(with.as_ref(), "nacks"), 0.0);
    assert_eq!((completed(&results), results.drops()), (160, 0));
    let (results, _) = run(&topology, "deflection = false", flows);
    let deflected = |switch: &SwitchResult| switch.deflections;
    assert!(
        results
            .switches
            .iter()
            .map(deflected)
            .all(|d| d.packets == 0)
    );
}
