use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::{Admission, AdmissionConfig, AdmissionStep, ConnectionAttempt, OfferOutcome, Ticket};

const MS: u64 = 1_000_000;

fn host(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + number).into()
}

thread_local! {
    static ATTEMPTS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Another one each time.
fn attempt(source: IpAddr, patience_ms: u64) -> ConnectionAttempt {
    let id = ATTEMPTS.get();
    ATTEMPTS.set(id + 1);
    ConnectionAttempt {
        source,
        validated: true,
        is_host: false,
        patience_ns: Some(patience_ms * MS),
        id,
    }
}

/// Another one each time, of a host of the topology.
fn hosts_attempt(source: IpAddr, patience_ms: u64) -> ConnectionAttempt {
    ConnectionAttempt {
        is_host: true,
        ..attempt(source, patience_ms)
    }
}

fn queue() -> Admission {
    Admission::new(AdmissionConfig::default())
}

fn wait(queue: &mut Admission, now_ns: u64, source: IpAddr, patience_ms: u64) -> Ticket {
    wait_as(queue, now_ns, attempt(source, patience_ms))
}

fn wait_as(queue: &mut Admission, now_ns: u64, attempt: ConnectionAttempt) -> Ticket {
    wait_displacing(queue, now_ns, attempt).0
}

/// Returns the attempt's ticket, and that of one that had to go for it.
fn wait_displacing(
    queue: &mut Admission,
    now_ns: u64,
    attempt: ConnectionAttempt,
) -> (Ticket, Option<Ticket>) {
    match queue.offer(now_ns, attempt) {
        OfferOutcome::Waits { ticket, displaced } => (ticket, displaced),
        other => panic!("{other:?}"),
    }
}

/// All steps there are now.
fn steps(queue: &mut Admission, now_ns: u64) -> Vec<AdmissionStep> {
    std::iter::from_fn(|| queue.next(now_ns)).collect()
}

fn begun(steps: &[AdmissionStep]) -> Vec<Ticket> {
    let begun = steps.iter().filter_map(|step| match step {
        AdmissionStep::Begin { ticket, .. } => Some(*ticket),
        _ => None,
    });
    begun.collect()
}

#[test]
fn an_address_that_was_not_shown_leaves_nothing_behind() {
    let mut queue = queue();
    for number in 0..100_000 {
        let attempt = ConnectionAttempt {
            source: host(number),
            validated: false,
            is_host: true,
            patience_ns: None,
            id: 0,
        };
        assert_eq!(queue.offer(0, attempt), OfferOutcome::Retry);
    }
    assert_eq!((queue.waiting(), queue.under_way()), (0, 0));
    assert_eq!(queue.next_timeout(), None);
}

#[test]
fn a_host_alone_begins_at_once_and_has_until_its_patience_is_over() {
    let mut queue = queue();
    let ticket = wait(&mut queue, 5 * MS, host(1), 250);
    let step = queue.next(6 * MS);
    assert_eq!(
        step,
        Some(AdmissionStep::Begin {
            ticket,
            deadline_ns: 255 * MS
        })
    );
    assert_eq!(steps(&mut queue, 254 * MS), []);
    assert_eq!(steps(&mut queue, 255 * MS), [AdmissionStep::Close(ticket)]);
    assert_eq!(queue.under_way(), 0);
}

#[test]
fn stalled_handshakes_give_their_turns_up_long_before_they_end() {
    let config = AdmissionConfig::default();
    let mut queue = queue();
    // All turns that an address may have, and more behind them.
    for _ in 0..config.turns {
        wait(&mut queue, 0, host(1), 2_000);
    }
    let first = steps(&mut queue, 0);
    assert_eq!(begun(&first).len(), config.turns_per_address);
    let turn_ns = queue.turn_ns();
    assert!(turn_ns <= 100 * MS);
    let then = steps(&mut queue, turn_ns);
    assert_eq!(
        begun(&then).len(),
        config.turns - config.turns_per_address,
        "the others begin, and nobody is closed: {then:?}"
    );
    assert_eq!(queue.under_way(), config.turns);
}

#[test]
fn whoever_floods_waits_behind_itself() {
    let mut queue = queue();
    let config = AdmissionConfig::default();
    for number in 0..1_000 {
        // A whole /24 of flooding addresses.
        wait(&mut queue, 0, host(number % 256), 1_000);
    }
    assert_eq!(
        begun(&steps(&mut queue, 0)).len(),
        config.turns_per_network[2]
    );
    let other = wait(&mut queue, 1, host(70_000), 250);
    assert_eq!(begun(&steps(&mut queue, 1)), [other], "another prefix");
    // In the flood's own prefix, an address with nothing under way is next.
    let own = wait(&mut queue, 2, host(255), 250);
    queue.finish(other);
    let neighbour = wait(&mut queue, 3, host(70_001), 250);
    assert_eq!(begun(&steps(&mut queue, 3)), [neighbour]);
    let turn_ns = queue.turn_ns();
    let later = begun(&steps(&mut queue, turn_ns));
    let at = later.iter().position(|&ticket| ticket == own);
    assert!(at.is_some(), "{own:?} of {later:?}");
}

/// Whoever has an IPv6 network of /64 has as many addresses as it likes; a mapped address is the
/// IPv4 host's.
#[test]
fn a_64_of_ipv6_and_a_24_of_ipv4_have_the_turns_of_one() {
    let network = |network: u128, number: u32| -> IpAddr {
        Ipv6Addr::from((0x2001_0db8_0000_0000 + network) << 64 | u128::from(number)).into()
    };
    let mapped =
        |number: u32| -> IpAddr { Ipv4Addr::from(0x0a00_0000 + number).to_ipv6_mapped().into() };
    let config = AdmissionConfig::default();
    type Source<'a> = &'a dyn Fn(u32) -> IpAddr;
    let sources: [(Source, IpAddr); 2] = [
        (&|number| network(0, number), network(1, 0)),
        (&mapped, host(256)),
    ];
    for (flooding, other) in sources {
        let mut queue = queue();
        for number in 0..256 {
            wait(&mut queue, 0, flooding(number), 1_000);
        }
        assert_eq!(
            begun(&steps(&mut queue, 0)).len(),
            config.turns_per_network[2]
        );
        let other = wait(&mut queue, 1, other, 250);
        assert_eq!(begun(&steps(&mut queue, 1)), [other], "another network");
    }
}

/// Whoever has a /52 of IPv6 or a /16 of IPv4 has thousands of networks, each with nothing under
/// way, and newer attempts than the host.
#[test]
fn a_host_has_its_turn_though_thousands_of_networks_of_one_owner_flood() {
    let v6 = |network: u128| -> IpAddr {
        Ipv6Addr::from((0x2001_0db8_0000_0000 + network % 4_096) << 64 | 1).into()
    };
    let v4 = |network: u128| host((network % 256 * 256) as u32);
    // The host is of another owner, or a neighbour of the flood's in its widest network.
    let elsewhere: IpAddr = Ipv6Addr::from(0x2001_0db9_u128 << 96 | 1).into();
    let neighbour: IpAddr = Ipv6Addr::from(0x2001_0db8_0000_ffff_u128 << 64 | 1).into();
    type Source<'a> = &'a dyn Fn(u128) -> IpAddr;
    let cases: [(Source, IpAddr, u64); 3] = [
        (&v6, elsewhere, 10),
        (&v6, neighbour, 60),
        (&v4, host(70_000), 10),
    ];
    for (flooding, source, most_ms) in cases {
        let flooding = |number| attempt(flooding(number), 10_000);
        let waited_ms = wait_beside(&mut queue(), &flooding, attempt(source, 2_000));
        assert!(waited_ms <= Some(most_ms), "{waited_ms:?} ms for {source}");
        // What floods from known addresses, as pods in a host's prefix may, has no more.
        let flooding = |number| ConnectionAttempt {
            is_host: true,
            ..flooding(number)
        };
        let waited_ms = wait_beside(&mut queue(), &flooding, attempt(source, 2_000));
        assert!(waited_ms <= Some(most_ms), "{waited_ms:?} ms for {source}");
    }
}

/// Returns the time in ms for which an attempt waits for its turn beside a flood of 8,000 attempts
/// a second, none of which ever says a word more; `None` without a turn.
fn wait_beside(
    queue: &mut Admission,
    flooding: &dyn Fn(u128) -> ConnectionAttempt,
    asks: ConnectionAttempt,
) -> Option<u64> {
    // Amid the turns of the flood, which all begin and end together.
    const ASKS_MS: u64 = 4_050;
    let (mut asked, mut number) = (None, 0);
    let begun_ms = (0..8_000).find(|&at_ms| {
        let now_ns = at_ms * MS;
        for _ in 0..8 {
            wait_as(queue, now_ns, flooding(number));
            number += 1;
        }
        if at_ms == ASKS_MS {
            asked = Some(wait_as(queue, now_ns, asks));
        }
        let begun = begun(&steps(queue, now_ns));
        asked.is_some_and(|ticket| begun.contains(&ticket))
    });
    begun_ms.map(|at_ms| at_ms - ASKS_MS)
}

/// Hundreds of networks that nest nowhere: each has fewer under way than any host's.
#[test]
fn an_address_that_the_topology_names_or_a_host_had_has_its_turn_at_once_beside_any_networks() {
    let flooding = |number: u128| {
        let network = 11 + number as u32 % 200;
        let address = Ipv4Addr::from((network << 24) | ((number as u32 % 65_536) << 8));
        attempt(address.into(), 10_000)
    };
    let source = host(1);
    let strangers_ms = wait_beside(&mut queue(), &flooding, attempt(source, 2_000));
    assert!(strangers_ms.is_none_or(|ms| ms >= 50), "{strangers_ms:?}");
    let hosts_ms = wait_beside(&mut queue(), &flooding, hosts_attempt(source, 2_000));
    assert_eq!(hosts_ms, Some(0));
    // A host of another address than the topology's, as of a network for control alone.
    let mut queue = queue();
    let first = wait(&mut queue, 0, source, 2_000);
    assert_eq!(begun(&steps(&mut queue, 0)), [first]);
    queue.hello_received(first);
    let again_ms = wait_beside(&mut queue, &flooding, attempt(source, 2_000));
    assert_eq!(again_ms, Some(0));
}

/// An address in the widest network of that number, away from all hosts.
fn stranger(number: u32) -> IpAddr {
    Ipv4Addr::from((172 << 8 | number) << 16).into()
}

#[test]
fn strangers_leave_a_full_queue_before_hosts_do_and_a_hosts_flood_leaves_them_room() {
    let config = AdmissionConfig {
        max_waiting: 100,
        turns: 0,
        reserved_turns: 0,
        ..AdmissionConfig::default()
    };
    let mut queue = Admission::new(config);
    for number in 0..10 {
        wait_displacing(&mut queue, 0, hosts_attempt(host(1_000 * number), 1_000));
    }
    let mut strangers = std::collections::BTreeSet::new();
    for number in 0..256 {
        let (ticket, displaced) = wait_displacing(&mut queue, 0, attempt(stranger(number), 1_000));
        strangers.insert(ticket);
        let displaced = displaced.filter(|ticket| !strangers.remove(ticket));
        assert_eq!(displaced, None, "a host had to go for a stranger");
    }
    assert_eq!(strangers.len(), 90);
    // Beyond a half, who has most has to go, whoever that is. Samples find it once it has most.
    for _ in 0..5_000 {
        let (_, displaced) = wait_displacing(&mut queue, 0, hosts_attempt(host(90_000), 1_000));
        strangers.remove(&displaced.expect("the queue is full"));
    }
    assert!(strangers.len() >= 15, "{}", strangers.len());
}

#[test]
fn of_handshakes_that_stall_those_of_strangers_end_first() {
    let config = AdmissionConfig {
        max_overdue: 40,
        ..AdmissionConfig::default()
    };
    let mut queue = Admission::new(config);
    // Neighbours in one network, which weighs more than any stranger's.
    let hosts: Vec<Ticket> = (0..3)
        .map(|number| wait_as(&mut queue, 0, hosts_attempt(host(number), 2_000)))
        .collect();
    assert_eq!(begun(&steps(&mut queue, 0)).len(), 3);
    let mut closed = 0;
    for number in 0..190 {
        let now_ns = u64::from(number) * 10 * MS;
        wait(&mut queue, now_ns, stranger(number), 10_000);
        for step in steps(&mut queue, now_ns) {
            if let AdmissionStep::Close(ticket) = step {
                assert!(!hosts.contains(&ticket), "at {now_ns} ns");
                closed += 1;
            }
        }
    }
    assert!(closed > 100, "{closed}");
}

#[test]
fn a_host_that_is_welcomed_keeps_its_turn_for_a_while_and_nothing_else() {
    let mut queue = Admission::new(AdmissionConfig {
        turns: 1,
        ..AdmissionConfig::default()
    });
    let welcomed = wait(&mut queue, 0, host(1), 250);
    assert_eq!(begun(&steps(&mut queue, 0)), [welcomed]);
    let next = wait(&mut queue, 0, host(2), 1_000);
    queue.hello_received(welcomed);
    assert_eq!(steps(&mut queue, 50 * MS), [], "its Welcome is on the way");
    let turn_ns = queue.turn_ns();
    assert_eq!(begun(&steps(&mut queue, turn_ns)), [next]);
    assert_eq!(
        queue.under_way(),
        1,
        "the first is nobody's concern any more"
    );
    queue.finish(next);
    assert_eq!(steps(&mut queue, 300 * MS), [], "and has no deadline");
}

#[test]
fn of_one_address_the_newest_is_next() {
    let mut queue = Admission::new(AdmissionConfig {
        turns: 1,
        ..AdmissionConfig::default()
    });
    let tickets: Vec<_> = (0..4)
        .map(|at| wait(&mut queue, at, host(1), 250))
        .collect();
    let mut order: Vec<Ticket> = Vec::new();
    for _ in 0..4 {
        let next = begun(&steps(&mut queue, 10));
        order.extend(&next);
        next.into_iter().for_each(|ticket| queue.finish(ticket));
    }
    assert_eq!(order, tickets.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn who_still_waits_is_told_and_who_has_gone_costs_nothing() {
    let config = AdmissionConfig {
        turns: 1,
        ..AdmissionConfig::default()
    };
    let mut queue = Admission::new(config);
    wait(&mut queue, 0, host(1), 2_000);
    assert_eq!(begun(&steps(&mut queue, 0)).len(), 1);
    let told = wait(&mut queue, 0, host(2), 40);
    let refuse_ns = queue.next_timeout().expect("one waits");
    assert!(refuse_ns < 40 * MS);
    assert_eq!(steps(&mut queue, refuse_ns), [AdmissionStep::Refuse(told)]);
    let gone = wait(&mut queue, 0, host(3), 40);
    assert_eq!(steps(&mut queue, 40 * MS), [AdmissionStep::Drop(gone)]);
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn a_full_queue_makes_room_at_the_cost_of_whoever_fills_it() {
    let config = AdmissionConfig {
        max_waiting: 100,
        turns: 0,
        reserved_turns: 0,
        ..AdmissionConfig::default()
    };
    let mut queue = Admission::new(config);
    let hosts: Vec<_> = (0..10)
        .map(|number| wait(&mut queue, 0, host(1_000 * number), 1_000))
        .collect();
    for _ in 0..5_000 {
        let (_, displaced) = wait_displacing(&mut queue, 0, attempt(host(7), 1_000));
        let hit = displaced.is_some_and(|ticket| hosts.contains(&ticket));
        assert!(!hit, "a host had to go for the flood");
        assert!(queue.waiting() <= 100);
    }
}

#[test]
fn handshakes_in_turn_are_not_overdue() {
    let config = AdmissionConfig {
        max_overdue: 14,
        ..AdmissionConfig::default()
    };
    let mut queue = Admission::new(config);
    let mut number = 0;
    // Ten stall and are overdue; ten others have their turn beside them.
    for now_ns in [0, queue.turn_ns()] {
        for _ in 0..10 {
            number += 1_000;
            wait(&mut queue, now_ns, host(number), 1_000);
        }
        let steps = steps(&mut queue, now_ns);
        assert_eq!(begun(&steps).len(), 10);
        assert_eq!(steps.len(), 10, "nobody is closed: {steps:?}");
    }
}

#[test]
fn handshakes_that_stall_are_bounded_and_newer_ones_replace_them() {
    let config = AdmissionConfig::default();
    let mut queue = queue();
    let host = wait(&mut queue, 0, host(70_000), 2_000);
    let mut closed = 0;
    for number in 0..20_000_u64 {
        let now_ns = number * MS;
        wait(
            &mut queue,
            now_ns,
            super::tests::host(number as u32 % 300),
            10_000,
        );
        for step in steps(&mut queue, now_ns) {
            if let AdmissionStep::Close(ticket) = step {
                closed += 1;
                assert!(ticket != host || now_ns >= 2_000 * MS, "the host is closed");
            }
        }
        assert!(queue.under_way() <= config.turns + config.max_overdue + 1);
    }
    assert!(closed > 0);
}

#[test]
fn turns_are_as_long_as_this_machine_is_slow_and_within_bounds() {
    let mut queue = queue();
    (0..100).for_each(|_| queue.record_cost(400_000));
    assert_eq!(queue.turn_ns(), 100 * MS);
    (0..100).for_each(|_| queue.record_cost(4 * MS));
    assert!((200 * MS..300 * MS).contains(&queue.turn_ns()));
    (0..100).for_each(|_| queue.record_cost(u64::MAX));
    assert_eq!(queue.turn_ns(), 1_000 * MS);
}

#[test]
fn what_an_attempt_that_was_turned_away_sends_anew_begins_nothing() {
    let mut queue = Admission::new(AdmissionConfig {
        max_waiting: 10,
        turns: 0,
        ..AdmissionConfig::default()
    });
    let first = attempt(host(1), 1_000);
    let OfferOutcome::Waits { ticket, .. } = queue.offer(0, first) else {
        panic!("it waits");
    };
    assert_eq!(steps(&mut queue, 750 * MS), [AdmissionStep::Refuse(ticket)]);
    assert_eq!(queue.offer(800 * MS, first), OfferOutcome::Rejected);
    assert_eq!(queue.waiting(), 0);
    // The host's next attempt is another one.
    wait(&mut queue, 800 * MS, host(1), 1_000);
    // At most `max_waiting` rejected attempts are known; memory is bounded.
    for number in 0..1_000 {
        wait(&mut queue, 800 * MS, host(number), 1_000);
    }
    let rejected = &queue.rejected;
    assert!(rejected.values.len() <= 10 && rejected.order.len() <= 10);
}

proptest! {
    /// Whatever comes: bounds hold, no attempt gets two answers, none is forgotten without one.
    #[test]
    fn every_attempt_has_one_fate(
        script in proptest::collection::vec((0..6_u8, 0..40_u32, 0..600_u64), 1..400),
    ) {
        let config = AdmissionConfig {
            max_waiting: 20,
            turns: 4,
            reserved_turns: 1,
            turns_per_network: [3; 3],
            turns_per_address: 2,
            max_overdue: 5,
            ..AdmissionConfig::default()
        };
        let mut queue = Admission::new(config);
        let mut now_ns = 0;
        let mut waiting = std::collections::BTreeSet::new();
        let mut under_way = Vec::new();
        for (what, source, number) in script {
            match what {
                0..=2 => {
                    let attempt = ConnectionAttempt {
                        is_host: source % 4 == 0,
                        ..attempt(host(source * 100), number)
                    };
                    if let OfferOutcome::Waits { ticket, displaced } =
                        queue.offer(now_ns, attempt)
                    {
                        prop_assert!(waiting.insert(ticket));
                        if let Some(other) = displaced {
                            prop_assert!(waiting.remove(&other));
                        }
                    }
                }
                3 if !under_way.is_empty() => {
                    let at = number as usize % under_way.len();
                    let ticket = under_way.swap_remove(at);
                    queue.hello_received(ticket);
                    queue.finish(ticket);
                }
                4 => queue.record_cost(number * MS / 100),
                _ => now_ns += number * MS / 10,
            }
            while let Some(step) = queue.next(now_ns) {
                match step {
                    AdmissionStep::Begin { ticket, deadline_ns } => {
                        prop_assert!(waiting.remove(&ticket));
                        prop_assert!(deadline_ns > now_ns);
                        prop_assert!(deadline_ns <= now_ns + 4_000 * MS);
                        under_way.push(ticket);
                    }
                    AdmissionStep::Refuse(ticket) | AdmissionStep::Drop(ticket) => {
                        prop_assert!(waiting.remove(&ticket));
                    }
                    AdmissionStep::Close(ticket) => {
                        let at = under_way.iter().position(|&other| other == ticket);
                        prop_assert!(at.is_some());
                        under_way.swap_remove(at.expect("there"));
                    }
                }
            }
            prop_assert_eq!(queue.waiting(), waiting.len());
            prop_assert_eq!(queue.under_way(), under_way.len());
            prop_assert!(queue.waiting() <= config.max_waiting);
            let in_turn = config.turns + config.reserved_turns;
            prop_assert!(queue.under_way() <= in_turn + config.max_overdue);
            if let Some(next_ns) = queue.next_timeout() {
                prop_assert!(next_ns > now_ns);
            }
        }
        // In the end no attempt is left over.
        for ticket in under_way {
            queue.finish(ticket);
        }
        now_ns += 20_000 * MS;
        while let Some(step) = queue.next(now_ns) {
            if let AdmissionStep::Begin { ticket, .. } = step {
                queue.finish(ticket);
            }
        }
        prop_assert_eq!((queue.waiting(), queue.under_way()), (0, 0));
        prop_assert!(queue.tree.parts.is_empty());
        let known = (queue.tree.known_waiting, queue.known_handshakes);
        prop_assert_eq!((known, queue.in_reserved_turn), ((0, 0), 0));
        prop_assert_eq!(queue.next_timeout(), None);
    }
}
