use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const LEASE_NS: u64 = 100 * MS;
const CAPACITY_BPS: u64 = 64_000_000;
/// Part of it that is handed out.
const HANDED_OUT_BPS: u64 = 63_000_000;

fn receiver() -> ReceiverShares {
    let mut receiver = ReceiverShares::default();
    receiver.configure(CAPACITY_BPS, LEASE_NS);
    receiver
}

/// Newest share of each host, as messages tell it.
fn told(receiver: &mut ReceiverShares) -> IndexMap<u32, Share> {
    std::iter::from_fn(|| receiver.poll()).collect()
}

fn active(name: SenderName, wire_bps: u64) -> ActiveSender {
    ActiveSender {
        name,
        rate_bps: wire_bps * 1_448 / 1_514,
        flows: 1,
    }
}

fn host(host: u32, wire_bps: u64) -> ActiveSender {
    active(SenderName::Host(host), wire_bps)
}

#[test]
fn each_of_n_senders_gets_an_nth_as_soon_as_the_nth_has_announced_itself() {
    let mut receiver = receiver();
    for n in 1..=8_u32 {
        receiver.on_demand(MS, n, 1, 3);
        let told = told(&mut receiver);
        assert_eq!(told.len(), n as usize, "all learn of the {n}th");
        for share in told.values() {
            assert_eq!(share.rate_bps, HANDED_OUT_BPS / u64::from(n));
            assert_eq!((share.senders, share.echo), (n, 1));
        }
    }
    // The end of one is news for all others.
    receiver.on_demand(2 * MS, 8, 2, 0);
    let told = told(&mut receiver);
    assert_eq!(told.len(), 7);
    assert!(told.values().all(|share| share.rate_bps == 9_000_000));
}

#[test]
fn a_sender_that_fell_silent_leaves_the_set_with_its_lease() {
    let mut receiver = receiver();
    receiver.on_demand(0, 1, 1, 1);
    receiver.on_demand(50 * MS, 2, 1, 1);
    told(&mut receiver);
    assert_eq!(receiver.next_timeout(), Some(LEASE_NS));
    receiver.on_timeout(LEASE_NS);
    let told = told(&mut receiver);
    assert_eq!(told.len(), 1);
    assert_eq!(told[&2].rate_bps, HANDED_OUT_BPS);
}

#[test]
fn a_demand_that_a_newer_one_overtook_changes_nothing() {
    let mut receiver = receiver();
    receiver.on_demand(0, 1, 5, 1);
    receiver.on_demand(MS, 1, 4, 0);
    assert_eq!(receiver.members(), 1);
    assert_eq!(told(&mut receiver)[&1].echo, 5);
}

#[test]
fn repeated_demands_are_answered_and_a_flood_of_them_is_not() {
    let mut receiver = receiver();
    receiver.on_demand(0, 1, 1, 1);
    told(&mut receiver);
    let mut answers = 0;
    for seq in 2..10_002 {
        // Ten thousand within 10 ms.
        receiver.on_demand(seq * 1_000, 1, seq, 1);
        answers += told(&mut receiver).len();
    }
    assert!((9..=11).contains(&answers), "{answers}");
}

#[test]
fn senders_that_announce_nothing_hold_their_place() {
    let mut receiver = receiver();
    let unknown = SenderName::Address([192, 0, 2, 1].into());
    // One takes all it can, the other little.
    let measured = [active(unknown, 40_000_000), host(9, 8_000_000)];
    receiver.on_measured(MS, &measured);
    receiver.on_demand(MS, 1, 1, 1);
    let share = told(&mut receiver)[&1];
    assert_eq!(share.senders, 3);
    // The small one keeps its 8 Mbit/s and an eighth; the rest is halved.
    let expected = (HANDED_OUT_BPS - 9_000_000) / 2;
    assert!(share.rate_bps.abs_diff(expected) < 100_000, "{share:?}");
}

#[test]
fn what_a_slow_sender_leaves_goes_to_the_others_and_comes_back() {
    let mut receiver = receiver();
    for id in 1..=3 {
        receiver.on_demand(0, id, 1, 1);
    }
    let mut shares = told(&mut receiver);
    let third = HANDED_OUT_BPS / 3;
    let measured = [host(1, third), host(2, third), host(3, 3_000_000)];
    for time in 1..=UNUSED_TIMES {
        receiver.on_measured(u64::from(time) * 10 * MS, &measured);
    }
    shares.extend(told(&mut receiver));
    // Host 3 can use its 3 Mbit/s and a quarter, but at least an eighth of C/n.
    let rest = (HANDED_OUT_BPS - 3_750_000) / 2;
    assert!(shares[&1].rate_bps.abs_diff(rest) < 200_000, "{shares:?}");
    assert!(shares[&3].rate_bps >= third, "it may use C/n at once");

    // It uses more: the very next measurement gives it its third again.
    let measured = [host(1, rest), host(2, rest), host(3, 10_000_000)];
    receiver.on_measured(60 * MS, &measured);
    shares.extend(told(&mut receiver));
    for share in shares.values() {
        assert_eq!(share.rate_bps, third);
    }
}

#[test]
fn a_liar_that_announces_itself_and_sends_nothing_costs_little() {
    let mut receiver = receiver();
    receiver.on_demand(0, 1, 1, 1);
    receiver.on_demand(0, 66, 1, u32::MAX);
    let mut shares = told(&mut receiver);
    // It is one sender, whatever it says.
    assert_eq!(shares[&1].rate_bps, HANDED_OUT_BPS / 2);
    for time in 1..=UNUSED_TIMES {
        let rate = shares[&1].rate_bps;
        receiver.on_measured(u64::from(time) * 10 * MS, &[host(1, rate)]);
        shares.extend(told(&mut receiver));
    }
    // After 50 ms it holds a sixteenth of the link.
    assert!(
        shares[&1].rate_bps >= HANDED_OUT_BPS / 16 * 15 - 1_000,
        "{shares:?}"
    );
}

#[test]
fn without_a_capacity_nobody_gets_a_share() {
    let mut receiver = ReceiverShares::default();
    receiver.on_demand(0, 1, 1, 1);
    assert_eq!(receiver.poll(), None);
}

#[test]
fn members_are_bounded() {
    let mut receiver = receiver();
    for id in 0..MAX_MEMBERS as u32 + 5 {
        receiver.on_demand(0, id, 1, 1);
    }
    assert_eq!(receiver.members(), MAX_MEMBERS);
    assert!(told(&mut receiver).len() <= MAX_MEMBERS);
}

proptest! {
    /// The level against its definition: all demands cut at it fill the link, or all are met.
    #[test]
    fn the_level_fills_the_link_or_meets_every_demand(
        capacity in 0..1_000_000_000_u64,
        demands in proptest::collection::vec(0..1_000_000_000_u64, 0..40),
    ) {
        let level = water_level(capacity, demands.clone());
        let used: u64 = demands.iter().map(|&demand| demand.min(level)).sum();
        prop_assert!(used <= capacity);
        let all: u64 = demands.iter().sum();
        if all >= capacity {
            // Rounding loses less than one bit/s for each.
            prop_assert!(capacity - used <= demands.len() as u64);
        } else {
            prop_assert_eq!(used, all);
        }
    }

    /// Whatever arrives: shares of senders that use theirs never exceed the downlink together, and
    /// each is at least C/n.
    #[test]
    fn shares_stay_within_the_downlink_for_any_history(
        events in proptest::collection::vec((0..20_u32, 0..3_u32, 0..80_000_000_u64), 1..200),
    ) {
        let mut receiver = receiver();
        let mut shares: IndexMap<u32, Share> = IndexMap::new();
        for (index, &(id, kind, rate)) in events.iter().enumerate() {
            let now_ns = index as u64 * 5 * MS;
            match kind {
                0 => receiver.on_demand(now_ns, id, index as u64 + 1, 1),
                1 => receiver.on_demand(now_ns, id, index as u64 + 1, 0),
                _ => {
                    // Everybody uses what it has; one unknown sender is beside them.
                    let mut measured: Vec<_> = shares
                        .iter()
                        .map(|(&id, share)| host(id, share.rate_bps))
                        .collect();
                    measured.push(active(SenderName::Address([192, 0, 2, 1].into()), rate));
                    receiver.on_measured(now_ns, &measured);
                }
            }
            shares.extend(told(&mut receiver));
            shares.retain(|id, _| receiver.members.contains_key(id));
            let sum: u64 = shares.values().map(|share| share.rate_bps).sum();
            // Shares within the threshold of the newest are not sent again.
            prop_assert!(
                sum <= HANDED_OUT_BPS + HANDED_OUT_BPS / 50 + 20,
                "{sum} at event {index}: {shares:?}"
            );
            for share in shares.values() {
                let fair = receiver.fair_bps();
                prop_assert!(share.rate_bps + share.rate_bps / 50 + 1 >= fair);
            }
        }
    }
}
