use super::*;

const MS: u64 = 1_000_000;

fn log() -> SentPackets {
    SentPackets::new(RecoveryConfig {
        max_in_flight: 4,
        min_rto_ns: 2 * MS,
        initial_rto_ns: 20 * MS,
        max_rto_ns: 200 * MS,
        peer_ack_delay_ns: MS,
    })
}

/// Sends datagram `seq` with one slot of the same number.
fn send(log: &mut SentPackets, seq: u64, now_ns: u64) {
    log.push_slot(seq as u32);
    log.push(seq, now_ns, 1, true);
}

fn ack(log: &mut SentPackets, now_ns: u64, largest: u64, bitmap: u64) -> Vec<(u64, AckOutcome)> {
    let mut outcomes = Vec::new();
    log.on_ack(now_ns, largest, bitmap, |seq, slot, outcome| {
        assert_eq!(u64::from(slot), seq);
        outcomes.push((seq, outcome));
    });
    outcomes
}

#[test]
fn three_later_acknowledgements_mean_loss() {
    let mut log = log();
    for seq in 1..=4 {
        send(&mut log, seq, 0);
    }
    assert_eq!(ack(&mut log, MS, 3, 0), [(3, AckOutcome::Acked)]);
    // 2 is two behind 4, 1 is three behind: only 1 is given up.
    assert_eq!(
        ack(&mut log, MS, 4, 0b1),
        [(1, AckOutcome::Lost), (4, AckOutcome::Acked)]
    );
    assert_eq!(log.in_flight(), 1);
    // What was given up stays so, even if it turns out to have arrived.
    assert_eq!(ack(&mut log, MS, 4, 0b111), [(2, AckOutcome::Acked)]);
    assert_eq!(log.in_flight(), 0);
    assert_eq!(log.deadline(), None);
}

#[test]
fn an_older_acknowledgement_still_counts() {
    let mut log = log();
    send(&mut log, 1, 0);
    send(&mut log, 2, 0);
    assert_eq!(ack(&mut log, MS, 2, 0), [(2, AckOutcome::Acked)]);
    assert_eq!(ack(&mut log, MS, 1, 0), [(1, AckOutcome::Acked)]);
}

#[test]
fn the_log_is_bounded_and_frees_room_as_datagrams_resolve() {
    let mut log = log();
    for seq in 1..=4 {
        assert!(log.has_room());
        send(&mut log, seq, 0);
    }
    assert!(!log.has_room());
    ack(&mut log, MS, 1, 0);
    assert!(log.has_room());
}

#[test]
fn timeouts_double_and_fall_back_on_progress() {
    let mut log = log();
    let mut now_ns = 0;
    let mut waits_ms = Vec::new();
    for seq in 1..=7 {
        send(&mut log, seq, now_ns);
        let deadline_ns = log.deadline().unwrap();
        assert_eq!(log.on_timeout(deadline_ns - 1, |_, _| panic!("early")), 0);
        let mut lost = Vec::new();
        assert_eq!(log.on_timeout(deadline_ns, |seq, _| lost.push(seq)), 1);
        assert_eq!(lost, [seq]);
        waits_ms.push((deadline_ns - now_ns) / MS);
        now_ns = deadline_ns;
    }
    // 20 ms, doubled up to the ceiling, and the peer's delay of 1 ms.
    assert_eq!(waits_ms, [21, 41, 81, 161, 201, 201, 201]);
    send(&mut log, 8, now_ns);
    ack(&mut log, now_ns + MS, 8, 0);
    send(&mut log, 9, now_ns);
    // One sample of 1 ms: srtt + 4 · rttvar + the peer's delay.
    assert_eq!(log.deadline(), Some(now_ns + 4 * MS));
}

#[test]
fn the_round_trip_estimate_follows_the_samples() {
    let mut rtt = RttEstimate::default();
    for _ in 0..100 {
        rtt.sample(80_000);
    }
    let srtt_ns = rtt.srtt_ns().unwrap();
    assert!(srtt_ns.abs_diff(80_000) < 100, "{srtt_ns}");
    for _ in 0..100 {
        rtt.sample(400_000);
    }
    let srtt_ns = rtt.srtt_ns().unwrap();
    assert!(srtt_ns.abs_diff(400_000) < 1_000, "{srtt_ns}");
    // Extreme samples do not overflow.
    rtt.sample(u64::MAX);
    rtt.sample(0);
    rtt.sample(u64::MAX);
    assert!(rtt.timeout_ns(0) > 0);
}
