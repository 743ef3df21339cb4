use super::*;

const MS: u64 = 1_000_000;
const LEASE_NS: u64 = 100 * MS;

fn flows(counts: &[(u32, u32)]) -> IndexMap<u32, u32, FxBuildHasher> {
    counts.iter().copied().collect()
}

fn sender() -> SenderShares {
    let mut sender = SenderShares::default();
    sender.configure(LEASE_NS, 1_000);
    sender
}

fn share(seq: u64, echo: u64, rate_bps: u64) -> Share {
    Share {
        seq,
        echo,
        rate_bps,
        senders: 1,
    }
}

#[test]
fn a_demand_goes_out_with_the_first_flow_and_then_four_times_a_lease() {
    let mut sender = sender();
    sender.set_flows(5 * MS, &flows(&[(7, 2)]));
    assert_eq!(sender.poll(5 * MS), Some((7, 1_001, 2)));
    assert_eq!(sender.poll(29 * MS), None);
    assert_eq!(sender.next_timeout(), Some(30 * MS));
    assert_eq!(sender.poll(30 * MS), Some((7, 1_002, 2)));
    sender.set_flows(31 * MS, &flows(&[]));
    assert_eq!(sender.poll(31 * MS), Some((7, 1_003, 0)));
    assert_eq!((sender.poll(500 * MS), sender.next_timeout()), (None, None));
}

#[test]
fn a_share_holds_for_one_lease_after_its_demand_was_sent() {
    let mut sender = sender();
    sender.set_flows(0, &flows(&[(7, 1)]));
    let (_, seq, _) = sender.poll(0).unwrap();
    assert!(sender.on_share(60 * MS, 7, &share(1, seq, 5_000_000)));
    let held = sender.share(60 * MS, 7).unwrap();
    assert_eq!((held.rate_bps, held.expires_ns), (5_000_000, LEASE_NS));
    assert_eq!(sender.share(LEASE_NS, 7), None);
    // Held up for longer than the lease: dead on arrival.
    assert!(!sender.on_share(LEASE_NS, 7, &share(2, seq, 6_000_000)));
}

#[test]
fn old_foreign_and_unasked_shares_change_nothing() {
    let mut sender = sender();
    sender.set_flows(0, &flows(&[(7, 1)]));
    let (_, seq, _) = sender.poll(0).unwrap();
    assert!(sender.on_share(MS, 7, &share(5, seq, 5_000_000)));
    for (host, other) in [
        (7, share(5, seq, 9_000_000)),
        (7, share(4, seq, 9_000_000)),
        (7, share(6, seq + 1, 9_000_000)),
        (7, share(6, seq - 1, 9_000_000)),
        (8, share(6, seq, 9_000_000)),
    ] {
        assert!(!sender.on_share(2 * MS, host, &other), "{other:?}");
    }
    assert_eq!(sender.share(2 * MS, 7).unwrap().rate_bps, 5_000_000);
}

#[test]
fn a_receiver_that_lies_cannot_stop_a_flow_or_touch_flows_to_others() {
    let mut sender = sender();
    sender.set_flows(0, &flows(&[(7, 1), (8, 1)]));
    let mut demands: Vec<_> = std::iter::from_fn(|| sender.poll(0)).collect();
    demands.sort_unstable();
    assert!(sender.on_share(MS, 7, &share(1, demands[0].1, 0)));
    assert_eq!(sender.share(MS, 7).unwrap().rate_bps, MIN_SHARE_BPS);
    assert_eq!(sender.share(MS, 8), None);
}

#[test]
fn receivers_are_bounded() {
    let mut sender = sender();
    let many: Vec<_> = (0..MAX_RECEIVERS as u32 + 9)
        .map(|host| (host, 1))
        .collect();
    sender.set_flows(0, &flows(&many));
    assert_eq!(sender.counts(0), (MAX_RECEIVERS, 0));
    let demands = std::iter::from_fn(|| sender.poll(0)).count();
    assert_eq!(demands, MAX_RECEIVERS);
}
