//! Receiver-driven schemes against closed forms, bounds of their papers, and loss.
//!
//! The network is that of SIRD's simulations (SIRD §6.2): racks under links of 100 and 400 Gbit/s.

use std::path::Path;

use ratewright_simfabric::net::queue::DropReason;
use ratewright_simfabric::parameters::Setting;
use ratewright_simfabric::plan::{Overrides, RunPlan};
use ratewright_simfabric::report::ideal::completion_time;
use ratewright_simfabric::results::RunResults;
use ratewright_simfabric::run::Change;
use ratewright_simfabric::scheme::Run;
use ratewright_simfabric::{Config, Span, Time};
use ratewright_topology::{HostId, LinkId, Node};

/// Time of a full packet, 1,460 bytes in 1,538 on the link, at 100 Gbit/s.
const PACKET_NS: f64 = 123.04;

fn plan(transport: &str, workload: &str) -> RunPlan {
    lossy_plan(0.0, transport, workload)
}

/// A plan whose links lose this share of all packets.
fn lossy_plan(loss: f64, transport: &str, workload: &str) -> RunPlan {
    plan_over("400Gbit/s", loss, transport, workload)
}

/// A plan with links of this rate between switches.
fn plan_over(fabric_rate: &str, loss: f64, transport: &str, workload: &str) -> RunPlan {
    let text = format!(
        r#"
[run]
duration = "60ms"
[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 8
spines = 2
host_rate = "100Gbit/s"
fabric_rate = "{fabric_rate}"
link_delay = "1.25us"
fabric_delay = "500ns"
symmetric = true
[packet]
loss = {loss}
[transport]
{transport}
[[workload]]
{workload}"#
    );
    RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default()).expect("a good plan")
}

/// Flows as a workload: source, destination, bytes and start in µs.
fn list(flows: &[(u32, u32, u64, f64)]) -> String {
    let flow = |(src, dst, bytes, start): &(u32, u32, u64, f64)| {
        let start_ns = (start * 1e3) as u64;
        format!("{{ src = {src}, dst = {dst}, bytes = {bytes}, start = \"{start_ns}ns\" }}")
    };
    let flows: Vec<String> = flows.iter().map(flow).collect();
    format!("kind = \"list\"\nflows = [{}]", flows.join(", "))
}

/// Begins a run of a plan's only transport.
fn start(plan: &RunPlan, config: Config) -> Box<dyn Run> {
    let flows = plan.flows().expect("flows");
    let run = plan.transports[0].start(config, &plan.topology, flows);
    run.expect("it starts")
}

fn run_with(plan: &RunPlan, config: Config) -> RunResults {
    let mut run = start(plan, config);
    run.run_until(plan.end).expect("it runs");
    let results = run.results();
    results.conservation.expect("it conserves");
    results
}

fn run(transport: &str, workload: &str) -> RunResults {
    run_with(&plan(transport, workload), Config::default())
}

fn fct_us(results: &RunResults) -> Vec<f64> {
    let fct = |flow: &ratewright_simfabric::results::FlowResult| flow.fct().map(Span::as_us_f64);
    let all: Option<Vec<f64>> = results.flows.iter().map(fct).collect();
    let open = || results.flows.iter().find(|flow| flow.finished.is_none());
    all.unwrap_or_else(|| panic!("{:?}", open()))
}

/// The link to a host.
fn downlink(plan: &RunPlan, host: u32) -> LinkId {
    let topology = &plan.topology;
    let leaf = topology.racks()[topology.hosts()[host as usize].rack.0 as usize].leaf;
    let link = topology.link_between(Node::Switch(leaf), Node::Host(HostId(host)));
    link.expect("hosts have links")
}

/// Grants come before the prefix has left, so that a message alone never waits for one (Homa §3.3).
#[test]
fn a_homa_message_alone_has_no_gap() {
    for dst in [1, 9] {
        for bytes in [
            1, 1_460, 1_461, 10_000, 97_000, 100_000, 100_001, 1_000_000, 10_000_000,
        ] {
            let plan = plan("name = \"homa\"", &list(&[(0, dst, bytes, 0.0)]));
            let results = run_with(&plan, Config::default());
            let framing = plan.transports[0].fabric.framing;
            let ends = (HostId(0), HostId(dst));
            let empty = completion_time(&plan.topology, framing, Span::ZERO, ends, bytes);
            assert_eq!(results.flows[0].fct(), empty.ok(), "{bytes} bytes to {dst}");
            assert!(results.flows[0].acknowledged.is_some());
        }
    }
}

/// The receiver's link is always busy, and not more than an unscheduled prefix of every message
/// waits before it (Homa §3.3, §3.5).
#[test]
fn a_homa_receiver_is_busy_and_its_queue_bounded() {
    let flows: Vec<_> = (1..7).map(|src| (src, 0, 10_000_000, 0.0)).collect();
    let plan = plan("name = \"homa\"", &list(&flows));
    let results = run_with(&plan, Config::default());
    let last = fct_us(&results).into_iter().fold(0.0, f64::max);
    // 10 MB are 6,849 full packets and one of 460 bytes; the first has one more link to cross.
    let busy_us = (6.0 * (6_849.0 + 538.0 / 1_538.0) + 1.0) * PACKET_NS / 1e3 + 2.5;
    assert!((last / busy_us - 1.0).abs() < 0.001, "{last} for {busy_us}");
    let stats = &results.ports[downlink(&plan, 0).index()].stats;
    // 100 kB are 69 packets, less what is on the links meanwhile.
    let most = 6.0 * 69.0 * 1_538.0;
    assert!((stats.max_bytes as f64) < most, "{}", stats.max_bytes);
    assert!(stats.max_bytes as f64 > 0.7 * most, "{}", stats.max_bytes);
}

/// Shorter messages are granted and sent before longer ones, to their receiver and by their sender
/// (Homa §3.2).
#[test]
fn homa_finishes_the_shortest_first() {
    let of_receiver = [4, 3, 2, 1].map(|n| (n, 0, u64::from(n) * 2_000_000, 0.0));
    let of_sender = [4, 3, 2, 1].map(|n| (0, n, u64::from(n) * 2_000_000, 0.0));
    for flows in [of_receiver, of_sender] {
        // One message at a time.
        let transport = "name = \"homa\"\novercommitment = 1";
        let fct = fct_us(&run(transport, &list(&flows)));
        assert!(fct.is_sorted_by(|a, b| a > b), "{fct:?}");
        // The shortest one is hardly held up by the others' prefixes.
        let alone = 2_000_000.0 / 1_460.0 * PACKET_NS / 1e3;
        assert!(fct[3] < 1.3 * alone, "{fct:?}");
    }
}

/// A receiver of many messages asks for short prefixes of the next ones, whose packets then wait in
/// their senders and not before its link (Homa §3.6).
#[test]
fn homas_incast_option_keeps_the_queue_short() {
    let wave = |start: f64| (1..16).map(move |src| (src, 0, 400_000, start));
    let flows: Vec<_> = wave(0.0).chain(wave(2_000.0)).collect();
    // The second wave knows of the first one's end, which had more than six messages.
    let second = |option: &str| {
        let transport = format!("name = \"homa\"\novercommitment = 2\n{option}");
        let plan = plan(&transport, &list(&flows));
        let config = Config {
            warm_up: Time::from_us(1_900),
            ..Config::default()
        };
        let results = run_with(&plan, config);
        fct_us(&results);
        results.ports[downlink(&plan, 0).index()].stats.max_bytes
    };
    let (without, with) = (second(""), second("incast_messages = 1"));
    assert!(without > 1_000_000, "{without}");
    assert!(
        with * 3 < without,
        "{with} with the option, {without} without"
    );
}

/// Whatever is lost, every message completes and every sender learns of it: data, grants, requests
/// and acknowledgements.
fn completes_despite_loss(transport: &str) {
    // The link of host 0 fails in both directions, twice, and with it all kinds of packets.
    let flows: Vec<_> = (0..60)
        .map(|n| {
            let (src, bytes) = (n % 7 + 1, u64::from(n * n * 400 + 1));
            let (src, dst) = if n % 3 == 0 { (0, src) } else { (src, 0) };
            (src, dst, bytes, f64::from(n))
        })
        .collect();
    let plan = plan(transport, &list(&flows));
    let down = downlink(&plan, 0);
    let up = plan.topology.reverse_link(down);
    let mut changes = Vec::new();
    for (at, until) in [(20, 24), (60, 90), (5_010, 5_060), (10_030, 10_035)] {
        for link in [down, up] {
            changes.push((Time::from_us(at), Change::Link { link, up: false }));
            changes.push((Time::from_us(until), Change::Link { link, up: true }));
        }
    }
    let config = Config {
        changes,
        ..Config::default()
    };
    let results = run_with(&plan, config);
    assert!(results.drops() > 50, "{}", results.drops());
    fct_us(&results);
    let unknown = results.flows.iter().find(|f| f.acknowledged.is_none());
    assert!(unknown.is_none(), "{unknown:?}");
}

/// Switches whose queues drop most of an incast lose no message either.
fn completes_over_short_queues(transport: &str) {
    let flows: Vec<_> = (1..16).map(|src| (src, 0, 300_000, 0.0)).collect();
    let short = "resend_time_out = \"200us\"\n\
                 queue = { discipline = \"drop-tail\", limit_packets = 12 }";
    let results = run(&format!("{transport}\n{short}"), &list(&flows));
    assert!(results.drops() > 100, "{}", results.drops());
    fct_us(&results);
    assert!(results.retransmits > 100);
}

#[test]
fn homa_loses_no_message() {
    completes_despite_loss("name = \"homa\"");
    completes_over_short_queues("name = \"homa\"");
}

/// Hosts act on each other by packets alone: regions of any number give the same results.
fn regions_change_nothing(transport: &str) {
    let workload = "kind = \"poisson\"\nload = 0.5\nsizes = \"hadoop\"\nuntil = \"300us\"";
    let plan = plan(transport, workload);
    let course = |regions: usize| {
        let config = Config {
            seed: 11,
            regions: Some(regions),
            ..Config::default()
        };
        let results = run_with(&plan, config);
        let flows = results.flows.iter().map(|f| (f.finished, f.acknowledged));
        let flows: Vec<_> = flows.collect();
        assert!(flows.len() > 150 && flows.iter().all(|f| f.1.is_some()));
        (flows, results.packet_hops)
    };
    assert!(course(1) == course(usize::MAX));
}

#[test]
fn homa_is_the_same_in_regions() {
    regions_change_nothing("name = \"homa\"");
}

fn counter(results: &RunResults, name: &str) -> f64 {
    let found = results.transport.iter().find(|(known, _)| *known == name);
    found.expect("the counter is there").1
}

/// Credit is neither lost nor invented, none is left when all is done, and no receiver ever has
/// more than B outstanding (SIRD §4.1). Senders count what they took and used, receivers what they
/// issued and got back, and each of their senders what it has.
fn credit_balances(results: &RunResults, bound: f64) {
    let of = |name: &str| counter(results, &format!("credit_{name}"));
    assert_eq!((of("outstanding"), of("stored")), (0.0, 0.0));
    assert_eq!(of("issued"), of("returned") + of("reclaimed"));
    // Of a lost credit, a later one or a request for bytes brings what it was for.
    assert_eq!(of("issued"), of("taken"));
    assert_eq!(of("taken"), of("used") + of("given_up"));
    let most = counter(results, "largest_credit_outstanding");
    assert!(most <= bound, "{most} of {bound}");
}

/// A message up to UnschT leaves at once. A longer one waits for its first credit: a request and a
/// credit, which take a round trip of empty packets (SIRD §4).
#[test]
fn a_sird_message_alone_asks_for_credit_from_unscht_on() {
    for (dst, links) in [(1, 2), (9, 4)] {
        // 65 packets of 1,538 bytes are less than 100 kB on the link; another byte is another one.
        for bytes in [1, 1_460, 10_000, 94_900, 94_901, 1_000_000, 10_000_000] {
            let plan = plan("name = \"sird\"", &list(&[(0, dst, bytes, 0.0)]));
            let results = run_with(&plan, Config::default());
            let framing = plan.transports[0].fabric.framing;
            let ends = (HostId(0), HostId(dst));
            let empty = |bytes| {
                let took = completion_time(&plan.topology, framing, Span::ZERO, ends, bytes);
                took.expect("a path").as_us_f64()
            };
            // 84 bytes on each link, there and back.
            let asked = if bytes > 94_900 { 2.0 * empty(0) } else { 0.0 };
            let took = fct_us(&results)[0];
            let expected = empty(bytes) + asked;
            // Credit of later packets may wait for the pacer by a rounding.
            assert!(
                (took - expected).abs() < 0.02,
                "{bytes} over {links}: {took}, {expected}"
            );
            credit_balances(&results, 150_000.0);
        }
    }
}

/// Credit that leaves at the rate of the link keeps the link busy and its queue empty, and the
/// shortest message has all of it; all of six in turn (SIRD §4.4; 338 bytes in the authors'
/// simulator).
#[test]
fn a_sird_receiver_is_busy_and_its_queue_short() {
    let flows: Vec<_> = (1..7).map(|src| (src, 0, 10_000_000, 0.0)).collect();
    let message_us = (6_849.0 + 538.0 / 1_538.0) * PACKET_NS / 1e3;
    for (order, first_share) in [("srpt", 1.0 / 6.0), ("round-robin", 0.99)] {
        let plan = plan(
            &format!("name = \"sird\"\norder = \"{order}\""),
            &list(&flows),
        );
        let results = run_with(&plan, Config::default());
        let mut fct = fct_us(&results);
        fct.sort_by(f64::total_cmp);
        assert!(
            (fct[5] / (6.0 * message_us) - 1.0).abs() < 0.003,
            "{order}: {fct:?}"
        );
        assert!(
            (fct[0] / fct[5] - first_share).abs() < 0.01,
            "{order}: {fct:?}"
        );
        let stats = &results.ports[downlink(&plan, 0).index()].stats;
        assert!(stats.max_bytes < 3 * 1_538, "{order}: {}", stats.max_bytes);
        credit_balances(&results, 150_000.0);
    }
}

/// Without pacing, what waits before the receiver is at most its credit, less what is on the links:
/// B less the product of bandwidth and delay (SIRD §4.1).
#[test]
fn sirds_credit_bounds_the_queue() {
    let flows: Vec<_> = (1..8).map(|src| (src, 0, 2_000_000, 0.0)).collect();
    let plan = plan("name = \"sird\"\npacing = false", &list(&flows));
    let results = run_with(&plan, Config::default());
    let stats = &results.ports[downlink(&plan, 0).index()].stats;
    // 5 µs and a packet's time on each link.
    let bdp = 100e9 / 8.0 * (5e-6 + 2.0 * PACKET_NS * 1e-9);
    let most = 150_000.0 - bdp;
    assert!(
        (stats.max_bytes as f64) < most + 1_538.0,
        "{} of {most}",
        stats.max_bytes
    );
    assert!(
        stats.max_bytes as f64 > 0.8 * most,
        "{} of {most}",
        stats.max_bytes
    );
    credit_balances(&results, 150_000.0);
}

/// A sender that three receivers want keeps about as much credit as SThr; without its marks, all
/// that they may give it: three buckets, less what is under way (SIRD §4.2; the authors' simulator:
/// 46.8 kB and 233 kB).
#[test]
fn a_congested_sird_sender_stores_its_threshold() {
    let stored = |threshold: &str| {
        let flows = [
            (0, 1, 40_000_000, 0.0),
            (0, 2, 40_000_000, 0.0),
            (0, 3, 40_000_000, 0.0),
        ];
        let transport = format!("name = \"sird\"\nsender_threshold = {threshold}");
        let plan = plan(&transport, &list(&flows));
        let mut run = start(&plan, Config::default());
        let mut sum = 0.0;
        for step in 0..500 {
            run.run_until(Time::from_us(2_000 + 4 * step))
                .expect("it runs");
            let counters = run.counters();
            let stored = counters.iter().find(|(name, _)| *name == "credit_stored");
            sum += stored.expect("the counter is there").1;
        }
        sum / 500.0
    };
    let (marked, unmarked) = (stored("0.5"), stored("inf"));
    // Three buckets of 100 kB hold whole packets only.
    let (rtt_bytes, buckets) = (66_500.0, 3.0 * 65.0 * 1_538.0);
    assert!(
        (unmarked / (buckets - rtt_bytes) - 1.0).abs() < 0.05,
        "{unmarked}"
    );
    assert!((40_000.0..52_000.0).contains(&marked), "{marked}");
}

/// Credit that is lost with a dead sender is free for others after its time-out, and the message
/// completes when the sender is back (SIRD §4.4).
#[test]
fn a_dead_sirds_credit_is_reclaimed() {
    let flows = [(1, 0, 8_000_000, 0.0), (2, 0, 100_000_000, 100.0)];
    let plan = plan(
        "name = \"sird\"\nresend_time_out = \"500us\"",
        &list(&flows),
    );
    let up = plan.topology.reverse_link(downlink(&plan, 1));
    let changes = [(200, false), (20_000, true)].map(|(at, up_again)| {
        (
            Time::from_us(at),
            Change::Link {
                link: up,
                up: up_again,
            },
        )
    });
    let config = Config {
        changes: changes.into(),
        ..Config::default()
    };
    let results = run_with(&plan, config);
    assert!(counter(&results, "credit_reclaimed") > 30_000.0);
    // The other one has the link meanwhile: 100 MB take 8.4 ms, and the first had 0.2 ms.
    let fct = fct_us(&results);
    assert!(fct[1] < 9_300.0, "{fct:?}");
    assert!(fct[0] > 20_000.0, "{fct:?}");
    credit_balances(&results, 150_000.0);
}

/// Two senders that keep all of a receiver's credit, as their links are another scheme's, and that
/// answer its requests: within three time-outs an honest one has the whole link. They complete when
/// they can send, and none of the credit is lost (SIRD §4.4: credit is reclaimed).
#[test]
fn sird_hoarders_hold_up_an_honest_sender_for_three_time_outs() {
    // 2 ms of the links.
    let others = list(&[(1, 9, 23_700_000, 0.0), (2, 10, 23_700_000, 0.0)]);
    let flows = [
        (1, 0, 2_000_000, 10.0),
        (2, 0, 2_000_000, 10.0),
        (3, 0, 20_000_000, 20.0),
    ];
    let workload = format!("{others}\n[[workload]]\n{}", list(&flows));
    let transport = "name = \"constant\"\nrate = \"200Gbit/s\"\n\
         beside = { name = \"sird\", workloads = [1], turns = \"first\", resend_time_out = \"200us\" }";
    let plan = plan(transport, &workload);
    let mut run = start(&plan, Config::default());
    let mut delivered = |at_us: u64| {
        run.run_until(Time::from_us(at_us)).expect("it runs");
        let results = run.results();
        results.conservation.expect("it conserves");
        results
            .flows
            .iter()
            .map(|f| f.delivered_bytes)
            .collect::<Vec<_>>()
    };
    let [held, before, after] = [400, 620, 1_620].map(&mut delivered);
    println!("{held:?} {before:?} {after:?}");
    // All but a packet's credit is with the others.
    assert_eq!((held[2], held[3]), (0, 0));
    assert!(held[4] < 2 * 1_460, "{held:?}");
    let whole = 1e-3 * 100e9 / 8.0 * 1_460.0 / 1_538.0;
    let share = (after[4] - before[4]) as f64 / whole;
    assert!(share > 0.99, "{share}");
    run.run_until(plan.end).expect("it runs");
    let results = run.results();
    results.conservation.expect("it conserves");
    fct_us(&results);
    assert!(counter(&results, "credit_reclaimed") > 140_000.0);
    credit_balances(&results, 150_000.0);
}

/// A sender that is busy with shorter messages answers as a hoarder does. It keeps what credit it
/// has, and is late by the time that the next one takes: a round trip.
#[test]
fn a_busy_sird_sender_loses_a_round_trip() {
    let flows = [
        (0, 1, 3_000_000, 0.0),
        (0, 2, 2_000_000, 3.0),
        (0, 2, 2_000_000, 3.0),
    ];
    let course = |time_out: &str| {
        let transport = format!(
            "name = \"sird\"\nuplink = \"srpt\"\nsender_threshold = inf\nresend_time_out = \"{time_out}\""
        );
        let results = run(&transport, &list(&flows));
        credit_balances(&results, 150_000.0);
        (fct_us(&results), counter(&results, "credit_reclaimed"))
    };
    let (patient, kept) = course("5ms");
    let (fct, reclaimed) = course("40us");
    println!("{patient:?} {fct:?} {reclaimed}");
    assert!(kept == 0.0 && reclaimed > 50_000.0, "{reclaimed}");
    // Requests and answers share links with the others' credit.
    for (fct, patient) in fct.iter().zip(&patient).skip(1) {
        assert!((fct - patient).abs() < 0.2, "{fct}, {patient}");
    }
    assert!((0.0..6.0).contains(&(fct[0] - patient[0])), "{fct:?}");
}

/// However long the messages are that begin without credit, each sends a BDP so and the rest with
/// credit (§6.2.4, *Unscheduled transmissions*): the receiver is always busy, and its queue holds a
/// prefix of each and B.
#[test]
fn sird_sends_a_bdp_without_credit_at_most() {
    let flows: Vec<_> = (1..7).map(|src| (src, 0, 500_000, 0.0)).collect();
    let plan = plan("name = \"sird\"\nunscheduled = 16.0", &list(&flows));
    let results = run_with(&plan, Config::default());
    // 500 kB are 342 full packets and one of 680 bytes; the first has one more link to cross.
    let busy_us = (6.0 * (342.0 + 758.0 / 1_538.0) + 1.0) * PACKET_NS / 1e3 + 2.5;
    let last = fct_us(&results).into_iter().fold(0.0, f64::max);
    assert!((last / busy_us - 1.0).abs() < 0.01, "{last} for {busy_us}");
    let max_bytes = results.ports[downlink(&plan, 0).index()].stats.max_bytes as f64;
    let prefixes = 6.0 * 65.0 * 1_538.0;
    assert!(max_bytes < prefixes + 150_000.0, "{max_bytes}");
    assert!(max_bytes > 0.7 * prefixes, "{max_bytes}");
    credit_balances(&results, 150_000.0);
}

#[test]
fn sird_loses_no_message() {
    completes_despite_loss("name = \"sird\"");
    completes_over_short_queues("name = \"sird\"\nunscheduled = 4");
}

#[test]
fn sird_is_the_same_in_regions() {
    regions_change_nothing("name = \"sird\"");
}

/// A credit and its data take 84 and 1,538 bytes, so that data has 1,538 of 1,622 of a link
/// (ExpressPass §3.1), once credit has sped up to that.
#[test]
fn expresspass_fills_what_credit_leaves_of_a_link() {
    let bytes = 10_000_000;
    let fct = fct_us(&run("name = \"expresspass\"", &list(&[(0, 1, bytes, 0.0)])));
    let least = bytes as f64 / 1_460.0 * 1_622.0 * 8.0 / 100e3;
    // The authors of SIRD have 923.4 µs in their simulator.
    assert!(
        (least..least * 1.06).contains(&fct[0]),
        "{} of {least}",
        fct[0]
    );
}

/// Switches drop credit that would bring more data than a link takes, so that data hardly waits
/// (ExpressPass §3.1; 2,658 bytes in the simulator of SIRD's authors), and is never lost. A round
/// trip has seven credits of each message here, and one that is lost is more than the target:
/// credit swings, and leaves some of the link free.
#[test]
fn an_expresspass_incast_has_no_queue() {
    let flows: Vec<_> = (1..7).map(|src| (src, 0, 10_000_000, 0.0)).collect();
    let plan = plan("name = \"expresspass\"", &list(&flows));
    let results = run_with(&plan, Config::default());
    let fct = fct_us(&results);
    let last = fct.iter().copied().fold(0.0, f64::max);
    let least = 60e6 / 1_460.0 * 1_622.0 * 8.0 / 100e3;
    let max_bytes = results.ports[downlink(&plan, 0).index()].stats.max_bytes;
    let [sent, used, wasted] =
        ["sent", "used", "wasted"].map(|of| counter(&results, &format!("credits_{of}")));
    let (drops, resends) = (results.drops(), counter(&results, "resends"));
    println!(
        "{fct:?} of {least}; {max_bytes} bytes wait; {sent} credits, {used} used, {wasted} wasted, {drops} dropped; {resends} resends"
    );
    assert!((least..least * 1.2).contains(&last));
    assert!(max_bytes < 4 * 1_538);
    assert_eq!((results.retransmits, resends), (0, 0.0));
    // A credit brings data, is in vain at a message's end, or is dropped.
    assert_eq!(sent, used + wasted + drops as f64);
    assert_eq!(used, 6.0 * 6_850.0);
    assert!(drops > 100);
}

#[test]
fn expresspass_loses_no_message() {
    completes_despite_loss("name = \"expresspass\"");
}

#[test]
fn expresspass_is_the_same_in_regions() {
    regions_change_nothing("name = \"expresspass\"");
}

/// A matching of dcPIM on this network: four rounds of 1.3 round trips of control packets between
/// racks, which are four links of 3.5 µs together, and 84 bytes on each.
const DCPIM_ROUND_US: f64 = 1.3 * 2.0 * (3.5 + 2.0 * 0.006_72 + 2.0 * 0.001_68);

/// A message up to a bandwidth-delay product leaves behind its notification (dcPIM §3).
#[test]
fn a_short_dcpim_message_has_no_gap() {
    for dst in [1, 9] {
        for bytes in [1, 1_460, 1_461, 10_000, 61 * 1_460] {
            let plan = plan("name = \"dcpim\"", &list(&[(0, dst, bytes, 0.0)]));
            let results = run_with(&plan, Config::default());
            let framing = plan.transports[0].fabric.framing;
            let ends = (HostId(0), HostId(dst));
            let empty = completion_time(&plan.topology, framing, Span::ZERO, ends, bytes);
            // A notification is 84 bytes on the first link.
            let expected = empty.expect("a path") + Span::from_ps(6_720);
            assert_eq!(results.flows[0].fct(), Some(expected), "{bytes} to {dst}");
        }
    }
}

/// A long message alone waits for the next round, takes one to be matched, and has its channels
/// until its last byte: those that its packets fill in a data phase, of four (dcPIM §3).
#[test]
fn a_long_dcpim_message_waits_for_a_round() {
    let round = DCPIM_ROUND_US;
    // A channel is 74 packets in a data phase.
    for (packets, channels) in [(70_u64, 1.0), (100, 2.0), (170, 3.0)] {
        for phase in 0..8 {
            let start = 500.0 + f64::from(phase) / 8.0 * round;
            let workload = list(&[(0, 9, packets * 1_460, start)]);
            let fct = fct_us(&run("name = \"dcpim\"", &workload))[0];
            let start = (start * 1e3).floor() / 1e3;
            let way = |bytes: f64| 3.5 + bytes * 8.0 * (2.0 / 100e3 + 2.0 / 400e3);
            let asked = start + way(84.0);
            let matched = (asked / round).ceil() * round + round;
            let last_token = matched + (packets - 1) as f64 * PACKET_NS / 1e3 * 4.0 / channels;
            let expected = last_token + way(84.0) + way(1_538.0) - start;
            // A notification or token may wait for another packet on a link.
            assert!(
                (fct - expected).abs() < 0.15,
                "{packets} packets at {phase}: {fct}, {expected}"
            );
        }
    }
}

/// Matched senders keep the link of a receiver busy but for what whole packets of channels leave,
/// nothing waits before it, and no more than four channels are matched (dcPIM §3).
#[test]
fn a_dcpim_receiver_is_busy_and_its_queue_short() {
    let flows: Vec<_> = (1..7).map(|src| (src, 0, 10_000_000, 0.0)).collect();
    let plan = plan("name = \"dcpim\"", &list(&flows));
    let results = run_with(&plan, Config::default());
    let last = fct_us(&results).into_iter().fold(0.0, f64::max);
    let period = 4.0 * DCPIM_ROUND_US * 1e3;
    let used = (period / PACKET_NS / 4.0).floor() * 4.0 * PACKET_NS / period;
    let busy_us = 6.0 * 6_850.0 * PACKET_NS / 1e3 / used;
    assert!(
        (busy_us..busy_us * 1.015).contains(&last),
        "{last} of {busy_us}"
    );
    let stats = &results.ports[downlink(&plan, 0).index()].stats;
    assert!(stats.max_bytes < 5 * 1_538, "{}", stats.max_bytes);
    assert_eq!(counter(&results, "largest_channels_matched"), 4.0);
    let [sent, used] = ["tokens_sent", "tokens_used"].map(|name| counter(&results, name));
    assert_eq!((sent, used), (6.0 * 6_850.0, 6.0 * 6_850.0));
}

/// Hosts that each send to another one are all matched. With several receivers each, few channels
/// are left without a match after four rounds (dcPIM §3).
#[test]
fn a_dcpim_matching_is_nearly_whole() {
    for (receivers, least) in [(1, 0.9), (3, 0.8)] {
        let flows: Vec<_> = (0..16)
            .flat_map(|src| {
                (1..=receivers).map(move |n| (src, (src + n * 5) % 16, 20_000_000, 0.0))
            })
            .collect();
        let plan = plan("name = \"dcpim\"", &list(&flows));
        let mut run = start(&plan, Config::default());
        run.run_until(Time::from_us(1_500)).expect("it runs");
        let results = run.results();
        let delivered: u64 = results.flows.iter().map(|flow| flow.delivered_bytes).sum();
        let most = 16.0 * 1.5e-3 * 100e9 / 8.0 * 1_460.0 / 1_538.0;
        let share = delivered as f64 / most;
        assert!((least..1.0).contains(&share), "{receivers}: {share}");
    }
}

/// Tokens of one phase whose data waits in the core count in the next ones: of each sender a
/// bandwidth-delay product is under way at most, and a packet for each time-out of the window.
#[test]
fn dcpims_window_holds_over_phases() {
    let flows: Vec<_> = (0..8)
        .map(|src| (src, 8 + src % 4, 4_000_000, 0.0))
        .collect();
    let plan = plan_over("10Gbit/s", 0.0, "name = \"dcpim\"", &list(&flows));
    let mut run = start(&plan, Config::default());
    run.run_until(Time::from_ms(8)).expect("it runs");
    let results = run.results();
    let links = plan.topology.links().iter();
    let core = links.filter(|link| link.capacity_bps == 10_000_000_000);
    let most: u64 = core
        .map(|link| results.ports[link.id.index()].stats.max_bytes)
        .sum();
    // A round trip between racks takes 12 µs with full packets at these rates.
    let window = 12.0e-6 * 100e9 / 8.0;
    let bound = 8.0 * (window + 20.0 * 1_538.0);
    assert!((most as f64) < bound, "{most} of {bound} bytes");
    let delivered: u64 = results.flows.iter().map(|flow| flow.delivered_bytes).sum();
    // The core is busy: two links of 10 Gbit/s for 8 ms, after the first matching.
    assert!(
        delivered as f64 > 0.9 * 20e9 / 8.0 * 7.9e-3 * 1_460.0 / 1_538.0,
        "{delivered}"
    );
}

#[test]
fn dcpim_loses_no_message() {
    completes_despite_loss("name = \"dcpim\"");
    completes_over_short_queues("name = \"dcpim\"\nunscheduled = 4");
}

#[test]
fn dcpim_is_the_same_in_regions() {
    regions_change_nothing("name = \"dcpim\"");
}

/// A plan of the comparison with public simulators, with these parameters of its scheme.
fn comparison(kind: &str, scheme: &str, set: &[(&str, &str)]) -> RunPlan {
    let file = format!("plans/receivers-{kind}-{scheme}.toml");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let setting = |(key, value): &(&str, &str)| Setting {
        name: scheme.to_owned(),
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let overrides = Overrides {
        set: set.iter().map(setting).collect(),
        ..Overrides::default()
    };
    RunPlan::load(&path, &overrides).expect("a good plan")
}

/// Completion times of one message in an empty network, by the ns-2 simulator of SIRD's authors, in
/// µs and in the order of the plans: of 8 B to 10 MB, in a rack and then between racks. They are
/// within 0.5 % but for the sizes that are named with a bound of their own.
#[test]
fn messages_alone_take_as_long_as_in_the_public_simulator() {
    type Apart = (u32, u64, f64);
    // Its one run draws jitter of credit, by which ours spread: 10 kB by 7 %, 100 kB and 1 MB by 1
    // to 3 %. For 10 MB between racks it takes 4.6 % more time than in a rack, and ours 1.4 %, for
    // a cause not found.
    let jitter: &[Apart] = &[
        (1, 10_000, 0.013),
        (1, 100_000, 0.007),
        (1, 1_000_000, 0.006),
        (9, 100_000, 0.006),
        (9, 1_000_000, 0.007),
        (9, 10_000_000, 0.031),
    ];
    let mut off = Vec::new();
    for (scheme, seeds, apart, theirs) in [
        (
            "sird",
            1,
            &[][..],
            &[
                2.544, 2.693, 2.756, 3.468, 16.115, 92.063, 851.571, 3.548, 3.736, 3.818, 4.529,
                19.186, 95.135, 854.642, 8.775, 10.651, 15.707, 49.908,
            ][..],
        ),
        (
            "homa",
            1,
            &[],
            &[
                2.517, 2.675, 2.755, 3.477, 11.161, 87.221, 847.769, 3.521, 3.719, 3.817, 4.538,
                12.222, 88.283, 848.830,
            ],
        ),
        (
            "expresspass",
            10,
            jitter,
            &[
                7.541, 7.700, 7.773, 26.722, 39.336, 123.945, 923.359, 10.551, 10.750, 10.841,
                31.511, 47.944, 137.206, 965.675,
            ],
        ),
        (
            "dctcp",
            1,
            &[],
            &[
                2.514, 2.672, 2.746, 3.467, 11.054, 86.897, 845.367, 3.517, 3.716, 3.807, 4.528,
                12.115, 87.959, 846.429,
            ],
        ),
    ] {
        let plan = comparison("alone", scheme, &[]);
        let mut sums = vec![0.0; theirs.len()];
        let mut specs = Vec::new();
        for seed in 1..=seeds {
            let config = Config {
                seed,
                ..Config::default()
            };
            let results = run_with(&plan, config);
            for (sum, fct) in sums.iter_mut().zip(fct_us(&results)) {
                *sum += fct;
            }
            specs = results.flows.iter().map(|flow| flow.spec).collect();
        }
        assert_eq!(specs.len(), theirs.len(), "{scheme}");
        for ((sum, spec), theirs) in sums.into_iter().zip(specs).zip(theirs) {
            let (ours, dst, bytes) = (sum / seeds as f64, spec.dst.0, spec.bytes);
            let own = apart.iter().find(|(to, of, _)| (*to, *of) == (dst, bytes));
            let most = own.map_or(0.005, |(.., most)| *most);
            let share = ours / theirs - 1.0;
            println!("{scheme}: {bytes} B to {dst} take {ours:.3}, {theirs}: {share:.4}");
            if share.abs() >= most {
                off.push((scheme, bytes, dst, share));
            }
        }
    }
    assert!(off.is_empty(), "{off:?}");
}

/// Six messages of 10 MB to one host, beside probes of 8 bytes: the last completes as late as in
/// the simulator of SIRD's authors, the median probe is as fast, and the queue holds as much. Its
/// one run draws jitter, and ours are three.
#[test]
fn an_expresspass_incast_takes_as_long_as_in_the_public_simulator() {
    let plan = comparison("incast", "expresspass", &[]);
    for seed in 1..=3 {
        let config = Config {
            seed,
            ..Config::default()
        };
        let results = run_with(&plan, config);
        let [mut probes, mut long] = [Vec::new(), Vec::new()];
        for (flow, fct) in results.flows.iter().zip(fct_us(&results)) {
            let of = if flow.spec.bytes == 8 {
                &mut probes
            } else {
                &mut long
            };
            of.push(fct);
        }
        probes.sort_by(f64::total_cmp);
        let (last, median) = (
            long.iter().copied().fold(0.0, f64::max),
            probes[probes.len() / 2],
        );
        assert!((last / 5_398.0 - 1.0).abs() < 0.005, "{seed}: {last}");
        assert!((median / 8.54 - 1.0).abs() < 0.03, "{seed}: {median}");
        let queue = results.ports[downlink(&plan, 0).index()].stats.max_bytes;
        assert!(queue.abs_diff(2_658) <= 2 * 1_538, "{seed}: {queue} bytes");
    }
}

/// 65 packets are within UnschT on the link, and a byte more asks for credit: the step is the one
/// of the authors' simulator.
#[test]
fn a_sird_request_takes_as_long_as_in_the_public_simulator() {
    let results = run_with(&comparison("alone", "sird", &[]), Config::default());
    let of = |bytes: u64| {
        let flow = results.flows.iter().find(|flow| flow.spec.bytes == bytes);
        let fct = flow.and_then(ratewright_simfabric::results::FlowResult::fct);
        fct.expect("the plan has it").as_us_f64()
    };
    let step = of(94_771) - of(94_770);
    assert!((step / (15.707 - 10.651) - 1.0).abs() < 0.005, "{step}");
}

/// Credit that the sender of the outcast stores, in the authors' simulator: with marks of 33
/// packets it is just below these, without them a bucket for each receiver, less what is under way.
#[test]
fn the_outcasts_sender_stores_as_much_credit_as_in_the_public_simulator() {
    // While one, two and three receivers are served; the first 400 µs of each settle.
    const WINDOWS: [[u64; 2]; 3] = [[500, 1_100], [1_500, 2_100], [2_500, 4_300]];
    let mut off = Vec::new();
    for (threshold, theirs) in [
        ("0.48114", [0.0, 46_918.0, 46_826.0]),
        ("inf", [0.0, 133_442.0, 233_380.0]),
    ] {
        let plan = comparison("outcast", "sird", &[("sender_threshold", threshold)]);
        let mut run = start(&plan, Config::default());
        let mut means = Vec::new();
        for [from, until] in WINDOWS {
            let mut stored = Vec::new();
            for at in from..until {
                run.run_until(Time::from_us(at)).expect("it runs");
                let counters = run.counters();
                let found = counters.iter().find(|(name, _)| *name == "credit_stored");
                stored.push(found.expect("the counter is there").1);
            }
            means.push(stored.iter().sum::<f64>() / stored.len() as f64);
        }
        println!("{threshold}: {means:?}");
        for (ours, theirs) in means.into_iter().zip(theirs) {
            // Without competition, credit is used as it comes: a packet's at most.
            let most = f64::max(0.05 * theirs, 1_538.0);
            if (ours - theirs).abs() >= most {
                off.push((threshold, ours, theirs));
            }
        }
    }
    assert!(off.is_empty(), "{off:?}");
}

/// In the authors' simulator, a sender takes no more credit for itself than its bucket has room
/// for, and a packet's at least; the rest of a message needs its receiver's.
#[test]
fn sirds_simulator_bounds_the_credit_that_a_sender_takes() {
    let flows = [(0, 1, 60_000, 0.0); 3];
    let plan = plan("name = \"sird\"\nrules = \"simulator\"", &list(&flows));
    let mut run = start(&plan, Config::default());
    run.run_until(Time::from_ns(1)).expect("it runs");
    let counters = run.counters();
    let taken = counters.iter().find(|(name, _)| *name == "credit_taken");
    // 41 full packets and one of 140 bytes, of which one has left; 24 packets; one.
    let (first, packet) = (41 * 1_538 + 218, 1_538);
    let room = (100_000 - (first - packet)) / packet;
    let expected = first + room * packet + packet;
    assert_eq!(
        (room, taken.expect("the counter is there").1),
        (24, f64::from(expected))
    );
    run.run_until(plan.end).expect("it runs");
    let results = run.results();
    results.conservation.expect("it conserves");
    fct_us(&results);
    credit_balances(&results, 150_000.0);
}

/// The rules of SIRD's simulator keep its invariants, too, and the link of a sender in the order of
/// its receivers' messages, as there: without marks, ten messages of one sender to three receivers
/// complete at the times of that simulator.
#[test]
fn sirds_simulator_has_the_same_outcast() {
    let to = |dst: u32, count: usize, start: f64| {
        std::iter::repeat_n((0, dst, 10_000_000, start), count)
    };
    let flows: Vec<_> = to(1, 4, 100.0)
        .chain(to(2, 3, 1_100.0))
        .chain(to(3, 2, 2_100.0))
        .collect();
    let theirs = [
        851.6, 1_923.0, 3_861.0, 6_334.0, 1_833.0, 4_470.0, 6_598.0, 2_661.0, 5_085.0,
    ];
    for rules in ["paper", "simulator"] {
        let transport = format!("name = \"sird\"\nsender_threshold = inf\nrules = \"{rules}\"");
        let results = run(&transport, &list(&flows));
        for (ours, theirs) in fct_us(&results).into_iter().zip(theirs) {
            assert!(
                (ours / theirs - 1.0).abs() < 0.003,
                "{rules}: {ours}, {theirs}"
            );
        }
        credit_balances(&results, 150_000.0);
    }
}

/// Links lose packets of every kind, at random: every message completes, its sender learns of it,
/// and the scheme's invariants hold.
#[test]
fn random_loss_loses_no_message() {
    let time_out = "resend_time_out = \"100us\"";
    let tcp = "min_rto = \"200us\"\ninitial_rto = \"1ms\"";
    for (scheme, keys) in [
        ("homa", time_out),
        ("sird", time_out),
        ("sird", "resend_time_out = \"100us\"\nrules = \"simulator\""),
        ("dcpim", time_out),
        ("expresspass", time_out),
        ("swift", tcp),
        ("dctcp", tcp),
    ] {
        for loss in [1e-3, 1e-2] {
            let workload = "kind = \"poisson\"\nload = 0.4\nsizes = \"hadoop\"\nuntil = \"300us\"";
            let plan = lossy_plan(loss, &format!("name = \"{scheme}\"\n{keys}"), workload);
            let results = run_with(&plan, Config::default());
            let lost = results.drops_by(DropReason::Lost);
            let share = lost as f64 / results.packet_hops as f64;
            assert!(
                (share / loss - 1.0).abs() < 0.2,
                "{scheme} lost {share} of {loss}"
            );
            assert!(results.retransmits > 0, "{scheme}");
            let open = results
                .flows
                .iter()
                .find(|flow| flow.acknowledged.is_none());
            assert!(open.is_none(), "{scheme} at {loss}: {open:?}");
        }
    }
}

/// Losses are drawn by links: regions of any number lose the same packets.
#[test]
fn losses_are_the_same_in_regions() {
    let workload = "kind = \"poisson\"\nload = 0.5\nsizes = \"hadoop\"\nuntil = \"200us\"";
    let transport = "name = \"sird\"\nresend_time_out = \"100us\"";
    let plan = lossy_plan(1e-3, transport, workload);
    let course = |regions: usize| {
        let config = Config {
            regions: Some(regions),
            ..Config::default()
        };
        let results = run_with(&plan, config);
        let finished: Vec<_> = results.flows.iter().map(|flow| flow.finished).collect();
        (finished, results.drops(), results.packet_hops)
    };
    let whole = course(1);
    assert!(whole.1 > 10, "{}", whole.1);
    assert!(whole == course(usize::MAX));
}

/// Flows of two senders to host 0, and one between others, with host 1 cut off for a while.
fn beside_a_dead_host(scheme: &str, dead: &[(u64, bool)]) -> (Vec<f64>, RunResults) {
    let flows = [
        (1, 0, 3_000_000, 0.0),
        (2, 0, 3_000_000, 0.0),
        (3, 4, 3_000_000, 0.0),
        (2, 1, 3_000_000, 600.0),
    ];
    let transport = format!("name = \"{scheme}\"\nresend_time_out = \"200us\"");
    let plan = plan(&transport, &list(&flows));
    let down = downlink(&plan, 1);
    let links = [down, plan.topology.reverse_link(down)];
    let change = |&(at, up): &(u64, bool)| {
        let at = Time::from_us(at);
        links.map(|link| (at, Change::Link { link, up }))
    };
    let config = Config {
        changes: dead.iter().flat_map(change).collect(),
        ..Config::default()
    };
    let results = run_with(&plan, config);
    (fct_us(&results), results)
}

/// A host that is dead as sender and as receiver leaves others alone: one that shares no link with
/// it notices nothing, one that shares its receiver has the link after the time-out, and all of
/// them complete once the host is back.
#[test]
fn a_dead_host_holds_up_nobody_for_long() {
    // 3 MB take 253 µs, and the dead host's messages come on top.
    let most_us = 253.0 * 2.0 + 3.0 * 200.0 + 100.0;
    for scheme in ["homa", "sird", "dcpim", "expresspass"] {
        let (alive, _) = beside_a_dead_host(scheme, &[]);
        let (fct, results) = beside_a_dead_host(scheme, &[(50, false), (20_000, true)]);
        assert!(fct[1] < most_us * 1.3, "{scheme}: {fct:?}");
        // Credit of ExpressPass has jitter of its own stream, the others none.
        assert!(
            (fct[2] / alive[2] - 1.0).abs() < 0.01,
            "{scheme}: {fct:?}, {alive:?}"
        );
        assert!(fct[0] > 19_000.0 && fct[3] > 19_000.0, "{scheme}: {fct:?}");
        if scheme == "sird" {
            credit_balances(&results, 150_000.0);
        }
    }
}

/// A sender that takes credit it was not given, and sends all it has at once, harms its receiver
/// alone, whose link it shares: the other sender there loses no more than the forged bytes' time,
/// and other hosts nothing (SIRD §4: data without credit goes first).
#[test]
fn a_sird_forger_harms_its_receiver_alone() {
    let course = |forged: u64| {
        let flows = list(&[(2, 0, 3_000_000, 0.0), (3, 4, 3_000_000, 0.0)]);
        let forger = list(&[(1, 0, forged, 20.0)]);
        let workload = format!("{flows}\n[[workload]]\n{forger}");
        let transport = "name = \"sird\"\nqueue = { discipline = \"ecn-threshold\", mark_bytes = 125000 }\n\
             beside = { name = \"sird\", bdp_bytes = 100000000, workloads = [1] }";
        let results = run(transport, &workload);
        fct_us(&results)
    };
    let (honest, forged) = (course(1_000), course(5_000_000));
    let forged_us = 5_000_000.0 / 1_460.0 * PACKET_NS / 1e3;
    assert!(
        forged[0] < honest[0] + forged_us * 1.05,
        "{honest:?}, {forged:?}"
    );
    assert_eq!(forged[1], honest[1]);
}

/// A message whose application stops ends after what has left, at both ends.
#[test]
fn a_stopped_message_completes() {
    for transport in ["homa", "sird", "expresspass", "dcpim"] {
        let transport = &format!("name = \"{transport}\"");
        let flows = "kind = \"list\"\nflows = [{ src = 0, dst = 1, stop = \"50us\" }, \
                     { src = 2, dst = 9, bytes = 5000000, stop = \"70us\" }]";
        let results = run(transport, flows);
        for flow in &results.flows {
            assert!(flow.acknowledged.is_some(), "{transport}: {flow:?}");
            let most = 75.0e-6 * 100e9 / 8.0;
            assert!(
                (50_000.0..most).contains(&(flow.delivered_bytes as f64)),
                "{flow:?}"
            );
        }
    }
}
