//! Scenarios of the whole system that take longer than the gate allows; short runs, as in
//! `lab_full`.

use anyhow::ensure;

use crate::common::tries::best_of_three;
use crate::common::{number, require_control_plane, results};

/// A start whose datagrams are marked does not wait behind a full uplink's data. Both phases run on
/// the same machine, so the comparison holds however busy it is.
#[test]
fn control_datagrams_pass_the_backlog_of_a_full_uplink() {
    require_control_plane();
    let value = results(&["starts", "--duration-scale", "0.4"]);
    for phase in ["with", "without"] {
        assert_eq!(number(&value, &[phase, "connections_lost"]), 0.0);
        // Two rounds of 300; a flow whose connection pauses begins another flowlet.
        assert!(number(&value, &[phase, "first_rate_us", "count"]) >= 300.0);
    }
    let first = number(&value, &["with", "first_rate_us", "p50"]);
    let behind = number(&value, &["without", "first_rate_us", "p50"]);
    assert!(
        first < behind,
        "a first rate takes {first} µs ahead of data and {behind} µs behind it"
    );
}

#[test]
fn weights_show_in_the_rates() {
    require_control_plane();
    best_of_three(|| {
        let value = results(&["mixed", "--duration-scale", "0.5", "--no-baseline"]);
        assert_eq!(number(&value, &["with", "connections_lost"]), 0.0);
        let rate = |i: usize| number(&value["with"]["weights"][i], &["rate_mbps"]);
        let sum: f64 = (0..3).map(rate).sum();
        assert!(sum <= 100.0, "{sum} Mbit/s of payload in a link of 100");
        let ratios = [(1, 0), (2, 1)].map(|(heavy, light)| rate(heavy) / rate(light));
        ensure!(
            // Short flows take their part first, so ratios are near 2 and not exact.
            ratios.iter().all(|ratio| (1.7..=2.3).contains(ratio)),
            "weights 2 : 1 give {ratios:?}"
        );
        Ok(())
    });
}

#[test]
fn every_transfer_of_a_coflow_completes() {
    require_control_plane();
    let value = results(&[
        "coflow",
        "--hosts",
        "5",
        "--runs",
        "2",
        "--duration-scale",
        "0.3",
    ]);
    for phase in ["with", "without"] {
        assert_eq!(
            number(&value, &[phase, "completion_s", "transfers", "count"]),
            // Four senders with 25 transfers each, in two runs.
            200.0
        );
        assert_eq!(number(&value, &[phase, "connections_lost"]), 0.0);
    }
}

/// Bounds that hold on busy cores, too. Times, and the part of a host outside, are for `make lab
/// SCENARIO=feeds`: beside other work its TCP gets any part of the link, with feeds or without.
#[test]
fn without_an_allocator_shares_are_fairer_than_cubic_and_lose_less() {
    require_control_plane();
    let value = results(&["feeds", "--duration-scale", "0.4"]);
    let of = |phase: &str, figure: &str| number(&value, &[phase, "feeds", figure]);
    for phase in ["with", "without"] {
        assert_eq!(number(&value, &[phase, "connections_lost"]), 0.0);
    }
    let fairness = ["with", "without"].map(|phase| of(phase, "jain_min"));
    assert!(
        fairness[0] > 0.95 && fairness[0] > fairness[1],
        "eight senders without an allocator are fairer than Cubic: {fairness:?}"
    );
    let lost = ["with", "without"].map(|phase| of(phase, "packets_lost_alone"));
    assert!(lost[0] < lost[1], "shares keep queues short: {lost:?}");
}
