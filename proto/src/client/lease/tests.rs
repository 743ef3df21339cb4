use super::*;

const LEASE_NS: u64 = 160_000;
const FIRST: u64 = 1_000;

/// A lease whose datagrams were sent a microsecond apart, the first at 1 µs.
fn after_sending(count: u64) -> Lease {
    let mut lease = Lease::new(LEASE_NS, FIRST);
    for sent in 0..count {
        lease.sent(FIRST + sent, (sent + 1) * 1_000);
    }
    lease
}

#[test]
fn an_echo_is_as_old_as_the_datagram_that_it_names() {
    let lease = after_sending(3);
    assert_eq!(lease.sent_at(FIRST), Some(1_000));
    assert_eq!(lease.sent_at(FIRST + 2), Some(3_000));
    assert_eq!(lease.expiry_of(FIRST + 2), Some(163_000));
    assert_eq!(lease.sent_at(FIRST + 3), None, "not sent yet");
    assert_eq!(lease.sent_at(FIRST - 1), None, "of another session");
    assert_eq!(after_sending(0).sent_at(FIRST), None);
}

#[test]
fn the_newest_4096_sending_times_are_known_and_no_older_one_is_mistaken_for_them() {
    let sent = 3 * SENT_TIMES as u64 + 7;
    let lease = after_sending(sent);
    let oldest = FIRST + sent - SENT_TIMES as u64;
    for echo in oldest..FIRST + sent {
        assert_eq!(lease.sent_at(echo), Some((echo - FIRST + 1) * 1_000));
    }
    assert_eq!(lease.sent_at(oldest - 1), None);
    assert_eq!(lease.expiry_of(oldest - 1), None);
    assert_eq!(lease.sent_ns.len(), SENT_TIMES, "memory is bounded");
}

#[test]
fn a_lease_never_ends_earlier_than_it_did_and_is_announced_a_sixteenth_at_a_time() {
    let mut lease = after_sending(1);
    assert_eq!((lease.duration_ns(), lease.expires_ns()), (LEASE_NS, 0));
    assert!(lease.renew(200_000));
    assert_eq!(lease.expires_ns(), 200_000);
    assert!(!lease.renew(200_000), "nothing new");
    assert!(!lease.renew(209_999), "less than a sixteenth");
    assert_eq!(lease.expires_ns(), 209_999);
    assert!(!lease.renew(205_000), "of a datagram that was overtaken");
    assert_eq!(lease.expires_ns(), 209_999);
    assert!(lease.renew(210_000));
    assert!(!lease.renew(219_999));
    assert!(lease.renew(220_000), "a sixteenth after what was announced");
}

#[test]
fn a_lease_too_short_to_be_divided_is_announced_only_when_it_is_new() {
    let mut lease = Lease::new(1, FIRST);
    assert!(lease.renew(10));
    assert!(!lease.renew(10));
    assert!(lease.renew(11));
}

#[test]
fn what_was_announced_lapses_a_sixteenth_before_its_end() {
    let mut lease = after_sending(1);
    assert!(!lease.is_lapsing(u64::MAX), "nothing was announced");
    lease.renew(200_000);
    assert!(!lease.is_lapsing(189_999));
    assert!(lease.is_lapsing(190_000));
    assert!(lease.is_lapsing(200_001));
    // The end of what is known, but was not announced, does not count.
    lease.renew(209_000);
    assert!(lease.is_lapsing(190_000));
}

#[test]
fn a_lease_that_never_ends_does_not_wrap() {
    let mut lease = Lease::new(u64::MAX, FIRST);
    lease.sent(FIRST, 5);
    assert_eq!(lease.expiry_of(FIRST), Some(u64::MAX));
}
