use super::*;
use crate::time::{Span, Time};

const WIRE: fn(u16) -> u16 = |payload| payload + 78;

fn config() -> SenderConfig {
    SenderConfig::default()
}

/// Sends everything that may leave now.
fn drain(sender: &mut PacedSender, config: &SenderConfig, now: Time) -> Vec<PacedSegment> {
    std::iter::from_fn(|| sender.poll(config, now, WIRE)).collect()
}

#[test]
fn bytes_that_come_early_count_once_the_gap_is_filled() {
    let mut receiver = PacedReceiver::default();
    assert_eq!(receiver.on_data(0, 10), 10);
    assert_eq!(receiver.on_data(20, 30), 0);
    assert_eq!(receiver.on_data(40, 50), 0);
    assert_eq!(receiver.on_data(30, 40), 0);
    assert_eq!(receiver.on_data(20, 30), 0);
    assert_eq!(receiver.on_data(10, 20), 40);
    assert_eq!(receiver.on_data(0, 10), 0);
    assert_eq!(receiver.expected(), 50);
}

#[test]
fn before_a_rate_the_window_binds_and_doubles() {
    let config = config();
    let mut sender = PacedSender::new(&config, 1 << 30);
    let first = drain(&mut sender, &config, Time::ZERO);
    assert_eq!(first.len(), 10);
    let now = Time::from_us(20);
    for segment in &first {
        let end = segment.seq + 1_460;
        sender.on_ack(&config, now, end, segment.seq, Time::ZERO);
    }
    assert_eq!(drain(&mut sender, &config, now).len(), 20);
}

#[test]
fn a_rate_paces_packets_by_their_bytes_on_the_wire() {
    let config = config();
    let mut sender = PacedSender::new(&config, 1 << 30);
    sender.set_rate(Time::ZERO, 1_538 * 8 * 1_000_000);
    let mut now = Time::ZERO;
    for packet in 0..20u64 {
        assert_eq!(now, Time::from_us(packet));
        assert_eq!(drain(&mut sender, &config, now).len(), 1);
        now = sender.deadline(&config).unwrap();
    }
    // A doubled rate halves what the pacer still waits for.
    sender.set_rate(now - Span::from_ns(500), 2 * 1_538 * 8 * 1_000_000);
    assert_eq!(sender.deadline(&config), Some(now - Span::from_ns(250)));
}

#[test]
fn three_later_packets_make_one_lost_and_it_goes_first() {
    let config = config();
    let mut sender = PacedSender::new(&config, 1 << 30);
    let sent = drain(&mut sender, &config, Time::ZERO);
    let now = Time::from_us(20);
    for segment in &sent[1..3] {
        sender.on_ack(&config, now, 0, segment.seq, Time::ZERO);
    }
    assert!(
        drain(&mut sender, &config, now)
            .iter()
            .all(|s| !s.retransmit)
    );
    sender.on_ack(&config, now, 0, sent[3].seq, Time::ZERO);
    // Ten were in flight, three are acknowledged and one is lost: the halved window is still full
    // with what left since, so the repair waits for one more acknowledgement of a rate.
    sender.set_rate(now, 10_000_000_000);
    let next = drain(&mut sender, &config, now);
    assert_eq!((next[0].seq, next[0].retransmit), (0, true));
}

#[test]
fn silence_for_a_timeout_sends_all_again_and_backs_off() {
    let config = config();
    let mut sender = PacedSender::new(&config, 3 * 1_460);
    assert_eq!(drain(&mut sender, &config, Time::ZERO).len(), 3);
    let at = sender.deadline(&config).unwrap();
    assert_eq!(at, Time::ZERO + config.initial_rto);
    sender.on_timeout(&config, at);
    let again = drain(&mut sender, &config, at);
    assert!(again.len() == 1 && again[0].retransmit && again[0].seq == 0);
    assert_eq!(sender.deadline(&config), Some(at + config.initial_rto * 2));
}

#[test]
fn a_flow_of_any_size_arrives_whole_over_a_path_that_loses() {
    let config = config();
    for bytes in [1, 1_459, 1_460, 1_461, 100_000, 1_000_003] {
        let mut sender = PacedSender::new(&config, bytes);
        let mut receiver = PacedReceiver::default();
        let mut state = bytes;
        let mut lose = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % 5 == 0
        };
        let mut now = Time::ZERO;
        let mut rounds = 0;
        while !sender.is_done(&config) {
            rounds += 1;
            assert!(rounds < 10_000, "{bytes} bytes do not arrive");
            if rounds == 3 {
                sender.set_rate(now, 9_000_000_000);
            }
            sender.on_timeout(&config, now);
            for segment in drain(&mut sender, &config, now) {
                if lose() {
                    continue;
                }
                receiver.on_data(segment.seq, segment.seq + u64::from(segment.payload_bytes));
                if !lose() {
                    let later = now + Span::from_us(20);
                    sender.on_ack(&config, later, receiver.expected(), segment.seq, now);
                }
            }
            now = sender
                .deadline(&config)
                .unwrap_or(now)
                .max(now + Span::from_us(20));
        }
        assert_eq!(receiver.expected(), bytes);
        assert_eq!(sender.in_flight(), 0);
    }
}
