//! The struct_ops back end paces plain TCP at the wire rate that it is given, follows changes at
//! once, and is plain TCP again when the lease runs out (flowtune §6, fault-tolerance).

mod netns;

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use netns::backend::{FOREVER_NS, MBIT, StructOpsDriver};
use netns::tries::{best_of_three, ensure_within};
use netns::{
    ArrivalTrace, BulkReceiver, BulkSender, NamespacePair, RIGHT_V4, RIGHT_V6, WIRE_V4, WIRE_V6,
    assert_lifted, bytes_between, ensure_plain_after, passed_ns, payload_rate_bps,
    settled_rate_bps, sleep,
};
use ratewright_endpointd::backend::{FlowEventKind, PacingBackend};
use ratewright_endpointd::clock::now_ns;

const MS: u64 = 1_000_000;

/// Runs one bulk flow through `steps` of (Mbit/s, milliseconds); returns when each began.
fn run_steps(address: &str, steps: &[(u64, u64)]) -> (Vec<u64>, ArrivalTrace) {
    run_steps_on(&NamespacePair::new(), address, steps)
}

fn run_steps_on(
    pair: &NamespacePair,
    address: &str,
    steps: &[(u64, u64)],
) -> (Vec<u64>, ArrivalTrace) {
    let mut driver = StructOpsDriver::open(pair);
    let receiver = BulkReceiver::start(&pair.right, address, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    let mut begins = Vec::new();
    for (mbit, ms) in steps {
        begins.push(now_ns());
        driver.set(conn, *mbit, FOREVER_NS);
        sleep(Duration::from_millis(*ms));
    }
    begins.push(now_ns());
    driver.backend.clear(conn).expect("clear");
    sender.stop();
    (begins, receiver.finish().remove(0))
}

/// Returns an error for the first of `steps` whose rate a run did not reach.
fn judge(steps: &[(u64, u64)], begins: &[u64], trace: &ArrivalTrace, wire: f64) -> Result<()> {
    let mut kept = Ok(());
    for (index, (mbit, _)) in steps.iter().enumerate() {
        // The first 100 ms of a step belong to the change.
        let (from, to) = (begins[index] + 100 * MS, begins[index + 1]);
        let error = |payload| payload * wire / (mbit * MBIT) as f64 - 1.0;
        let mean = error(payload_rate_bps(trace, from, to)) * 100.0;
        let settled = error(settled_rate_bps(trace, from, to)) * 100.0;
        println!("{mbit} Mbit/s: {settled:+.3} % (mean {mean:+.3} %)");
        // A rate is never exceeded, however busy the machine is.
        assert!(
            mean < 1.0,
            "{mbit} Mbit/s is exceeded by {mean:.2} % on average"
        );
        if settled.abs() >= 1.0 {
            kept = kept.and(Err(anyhow!("{mbit} Mbit/s is off by {settled:.2} %")));
        }
    }
    kept
}

/// Checks that runs of `steps` keep their rates. A guest whose host holds its cores for 100 µs at
/// each tick withholds 1 to 3 % of a rate, at times. A defect of pacing shows in every run, so one
/// of three has to be right.
fn assert_rates(address: &str, steps: &[(u64, u64)], wire: f64) {
    best_of_three(|| {
        let (begins, trace) = run_steps(address, steps);
        judge(steps, &begins, &trace, wire)
    });
}

#[test]
fn wire_rates_are_kept_within_one_percent() {
    let steps = [(50, 1600), (500, 1600), (2000, 1600)];
    assert_rates(RIGHT_V4, &steps, WIRE_V4);
}

#[test]
fn wire_rates_over_ipv6_count_its_larger_header() {
    let steps = [(500, 1600)];
    assert_rates(RIGHT_V6, &steps, WIRE_V6);
}

/// A device without TSO takes one segment from a timer, every 48 µs at this rate, which is less
/// than a processor may need to wake for it. What late timers cost is made up for at once, and no
/// more than that.
#[test]
fn single_segments_keep_to_their_rate_in_spite_of_late_timers() {
    const MBPS: u64 = 250;
    best_of_three(|| {
        let pair = NamespacePair::new();
        for namespace in [&pair.left.0, &pair.right.0] {
            netns::run(&format!("ip -n {namespace} link set v0 gso_max_segs 1"));
        }
        let (begins, trace) = run_steps_on(&pair, RIGHT_V4, &[(MBPS, 1600)]);
        let (from, to) = (begins[0] + 100 * MS, begins[1]);
        let rate = (MBPS * MBIT) as f64;
        let mean = payload_rate_bps(&trace, from, to) * WIRE_V4 / rate;
        let settled = settled_rate_bps(&trace, from, to) * WIRE_V4 / rate;
        println!("{settled:.4} of the rate (mean {mean:.4})");
        // A receiver that waited for a processor reads what stood in its socket when the
        // measurement began.
        assert!(
            mean < 1.04,
            "the rate is exceeded on average: {mean:.4} of it"
        );
        // 20,000 wakes per second: a busy machine withholds some.
        ensure!(settled > 0.75, "{settled:.4} of the rate");
        Ok(())
    });
}

/// Above 2 Gbit/s one timer serves several bursts of the device; neither its rate nor the next,
/// slower one may differ for that.
#[test]
fn a_fast_flow_keeps_its_rate_in_longer_bursts() {
    const STEPS: [(u64, u64); 3] = [(3_000, 800), (6_000, 800), (500, 800)];
    best_of_three(|| {
        let (begins, trace) = run_steps(RIGHT_V4, &STEPS);
        let mut reached = Ok(());
        for (index, (mbit, _)) in STEPS.iter().enumerate() {
            let (from, to) = (begins[index] + 100 * MS, begins[index + 1]);
            let share = |payload| payload * WIRE_V4 / (mbit * MBIT) as f64;
            let mean = share(payload_rate_bps(&trace, from, to));
            let settled = share(settled_rate_bps(&trace, from, to));
            println!("{mbit} Mbit/s: {settled:.4} of the rate (mean {mean:.4})");
            assert!(mean < 1.01, "{mbit} Mbit/s is exceeded: {mean:.4} of it");
            // A guest's processor may be busy with other work.
            if settled <= 0.9 {
                reached = reached.and(Err(anyhow!("{mbit} Mbit/s: {settled:.4} of it")));
            }
        }
        reached
    });
}

/// A segment of a slow flow takes 2.4 ms at 5 Mbit/s, so that is the coarsest that a reaction can
/// be.
#[test]
fn changes_of_rate_are_seen_by_the_receiver_within_milliseconds() {
    best_of_three(|| {
        let steps = [(50, 300), (500, 300), (5, 300), (500, 300)];
        let (begins, trace) = run_steps(RIGHT_V4, &steps);
        // After the drop: at most one burst of a millisecond was still in flight.
        let after = bytes_between(&trace, begins[2] + 5 * MS, begins[2] + 105 * MS);
        println!("5 Mbit/s: {after} bytes in 100 ms");
        assert!(
            after < 100_000,
            "{after} bytes in 100 ms, 62,500 are allowed for"
        );
        for raise in [1, 3] {
            // 50 Mbit/s would never deliver 250 kB in 10 ms.
            let from = begins[raise];
            let start = bytes_between(&trace, 0, from);
            let took = passed_ns(&trace, start + 250_000) - from;
            println!(
                "250 kB at 500 Mbit/s (4.2 ms) after {:.2} ms",
                took as f64 / 1e6
            );
            ensure!(took < 50 * MS, "the raise took {} us", took / 1000);
        }
        Ok(())
    });
}

#[test]
fn an_expired_lease_is_plain_cubic_within_milliseconds() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let mut driver = StructOpsDriver::open(&pair);
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let sender = BulkSender::start(&pair.left, receiver.address);
        let conn = driver.started();
        let expires = now_ns() + 1000 * MS;
        driver.set(conn, 50, expires);
        sleep(Duration::from_millis(1100));
        let sockets = pair.left.run("ss -tin");
        sleep(Duration::from_millis(100));
        assert_eq!(driver.backend.stats().expired, 1);
        sender.stop();
        let trace = receiver.finish().remove(0);
        let paced = settled_rate_bps(&trace, expires - 800 * MS, expires - MS) * WIRE_V4;
        let kept = ensure_within(paced, 45e6..55e6, "bit/s until the lease ended");
        let reads: Vec<_> = trace
            .iter()
            .filter(|(at, _)| *at > expires - 2 * MS)
            .take(12)
            .map(|(at, total)| (*at as i64 - expires as i64, total))
            .collect();
        println!("reads around the expiry: {reads:?}");
        let plain = ensure_plain_after(&trace, expires);
        let rate = payload_rate_bps(&trace, expires + 20 * MS, expires + 100 * MS);
        println!("afterwards {:.0} Mbit/s; {sockets}", rate / 1e6);
        ensure!(rate > 5.0 * 50e6, "{rate} bit/s after the lease");
        kept.and(plain)
    });
}

/// A lapsed lease stays lapsed: renewing the others does not revive its rate.
#[test]
fn renewal_extends_live_rates_and_revives_none() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let mut driver = StructOpsDriver::open(&pair);
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let sender = BulkSender::start(&pair.left, receiver.address);
        let conn = driver.started();
        let begin = now_ns();
        driver.set(conn, 50, begin + 200 * MS);
        driver.backend.renew(begin + 1000 * MS).expect("renew");
        sleep(Duration::from_millis(1200));
        driver.backend.renew(FOREVER_NS).expect("renew");
        sleep(Duration::from_millis(200));
        let end = now_ns();
        sender.stop();
        let trace = receiver.finish().remove(0);
        let renewed = settled_rate_bps(&trace, begin + 250 * MS, begin + 990 * MS) * WIRE_V4;
        let kept = ensure_within(renewed, 48e6..52e6, "bit/s under the renewed lease");
        assert_lifted(&trace, end - 150 * MS, end, 50.0);
        let dead = payload_rate_bps(&trace, end - 150 * MS, end);
        ensure!(
            dead > 5.0 * 50e6,
            "{dead} bit/s: the renewal revived a dead rate"
        );
        kept
    });
}

#[test]
fn clearing_all_rates_releases_every_socket_at_once() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let mut driver = StructOpsDriver::open(&pair);
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 2);
        let senders = [(); 2].map(|()| BulkSender::start(&pair.left, receiver.address));
        for conn in driver.starts(2) {
            driver.set(conn, 50, FOREVER_NS);
        }
        sleep(Duration::from_millis(900));
        let released = now_ns();
        driver.backend.clear_all().expect("clear all");
        driver.backend.renew(FOREVER_NS).expect("renew");
        sleep(Duration::from_millis(200));
        let end = now_ns();
        assert_eq!(driver.backend.stats().expired, 0, "a release is no expiry");
        senders.into_iter().for_each(BulkSender::stop);
        let mut right = Ok(());
        for trace in receiver.finish() {
            let before = settled_rate_bps(&trace, released - 800 * MS, released) * WIRE_V4;
            let after = payload_rate_bps(&trace, released + 20 * MS, end);
            right = right.and(ensure_within(before, 45e6..55e6, "bit/s while paced"));
            assert_lifted(&trace, released + 20 * MS, end, 50.0);
            if after <= 5.0 * 50e6 {
                right = right.and(Err(anyhow!("{after} bit/s after the release")));
            }
        }
        right
    });
}

/// At 100 kbit/s a segment takes 121 ms: slow, but it must neither stall nor run away.
#[test]
fn very_low_rates_flow_on() {
    best_of_three(|| {
        let pair = NamespacePair::new();
        let mut driver = StructOpsDriver::open(&pair);
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
        let sender = BulkSender::start(&pair.left, receiver.address);
        let conn = driver.started();
        driver.set(conn, 1, FOREVER_NS);
        sleep(Duration::from_millis(100));
        let one = now_ns();
        sleep(Duration::from_millis(1000));
        driver
            .backend
            .set_rate(conn, 100_000, FOREVER_NS)
            .expect("set a rate");
        let tenth = now_ns();
        sleep(Duration::from_millis(1500));
        let end = now_ns();
        driver.set(conn, 1000, FOREVER_NS);
        sleep(Duration::from_millis(600));
        sender.stop();
        let trace = receiver.finish().remove(0);
        // Of 82 segments: four in each window of a median would be no measure.
        let megabit = payload_rate_bps(&trace, one, tenth) * WIRE_V4;
        let kept = ensure_within(megabit, 0.95e6..1.05e6, "bit/s of 1 Mbit/s");
        let slow = bytes_between(&trace, tenth + 150 * MS, end);
        assert!(slow <= 16 * 1448, "{slow} bytes in 1.35 s at 100 kbit/s");
        ensure!(slow >= 5 * 1448, "{slow} bytes in 1.35 s at 100 kbit/s");
        // Two segments in flight at 100 kbit/s hold what follows for 242 ms.
        let raised = bytes_between(&trace, end, end + 600 * MS);
        ensure!(
            raised > 5_000_000,
            "{raised} bytes within 600 ms of the raise to 1 Gbit/s"
        );
        kept
    });
}

#[test]
fn forty_flows_each_keep_their_own_rate() {
    best_of_three(forty_flows);
}

/// Forty flows at 1, 2, … 40 Mbit/s.
fn forty_flows() -> Result<()> {
    let pair = NamespacePair::new();
    let mut driver = StructOpsDriver::open(&pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 40);
    let senders: Vec<_> = (0..40)
        .map(|_| BulkSender::start(&pair.left, receiver.address))
        .collect();
    let mut rates = Vec::new();
    for (index, conn) in (1..).zip(driver.starts(40)) {
        driver.set(conn, index, FOREVER_NS);
        rates.push(index as f64 * 1e6);
    }
    sleep(Duration::from_millis(300));
    let from = now_ns();
    sleep(Duration::from_millis(2000));
    let to = now_ns();
    assert_eq!(driver.count(|kind| matches!(kind, FlowEventKind::Close)), 0);
    driver.backend.clear_all().expect("clear all");
    senders.into_iter().for_each(BulkSender::stop);
    let traces = receiver.finish();
    let mut got: Vec<_> = traces
        .iter()
        .map(|trace| payload_rate_bps(trace, from, to) * WIRE_V4)
        .collect();
    got.sort_by(f64::total_cmp);
    let mut errors: Vec<_> = got
        .iter()
        .zip(&rates)
        .map(|(got, rate)| got / rate - 1.0)
        .collect();
    errors.sort_by(f64::total_cmp);
    let (least, median, most) = (errors[0] * 100.0, errors[20] * 100.0, errors[39] * 100.0);
    println!("errors: median {median:+.2} %, from {least:+.2} % to {most:+.2} %");
    assert!(most < 2.0, "a flow exceeds its rate by {most:.2} %");
    // A busy machine may withhold more from 80 threads than the 2 ms that flows make up for.
    ensure!(least > -10.0, "a flow is {least:.2} % off its rate");
    Ok(())
}
