//! Congestion marks between the two sides of a flow, as RFC 3168 §6.1 has them.

use super::*;
use crate::transport::tcp::congestion::{Dctcp, DctcpConfig, NewReno};

const MSS_BYTES: u64 = 1_000;

fn sender() -> TcpSender<NewReno> {
    let control = NewReno::new(&(), MSS_BYTES, 10 * MSS_BYTES);
    TcpSender::new(
        control,
        RttEstimator::new(Span::from_ms(1)),
        MSS_BYTES,
        u64::MAX,
    )
}

/// Sends what the window allows. Returns the packets that carry CWR.
fn send<C: Congestion>(sender: &mut TcpSender<C>, now: Time) -> Vec<u64> {
    let mut reduced = Vec::new();
    while let Some(segment) = sender.peek_segment() {
        sender.sent(now, segment);
        if segment.cwr {
            reduced.push(segment.seq / MSS_BYTES);
        }
    }
    reduced
}

fn ack<C: Congestion>(sender: &mut TcpSender<C>, packets: u64, marked: bool) {
    let ack = Ack {
        ack: packets * MSS_BYTES,
        stamp: Time::ZERO,
        rtt: Span::from_us(100),
        marked,
        switches: 0,
        blocks: &[],
    };
    sender.on_ack(Time::from_us(100), &ack, Span::from_us(200), true);
}

#[test]
fn a_receiver_echoes_from_a_mark_until_the_sender_has_reduced_its_window() {
    let mut receiver = TcpReceiver::default();
    let (none, ce, cwr) = (Flags::ECT, Flags::ECT.with(Flags::CE), Flags::CWR);
    let echoes: Vec<bool> = [none, ce, none, none, cwr, none, ce, cwr.with(ce), none, cwr]
        .into_iter()
        .map(|flags| receiver.on_flags(flags))
        .collect();
    // RFC 3168 §6.1.3: a packet with CWR that is marked itself begins the next echo.
    let expected = [
        false, true, true, true, false, false, true, true, true, false,
    ];
    assert_eq!(echoes, expected);
}

#[test]
fn a_window_of_echoes_halves_the_window_once_and_says_so_in_the_next_new_packet() {
    let mut sender = sender();
    assert!(send(&mut sender, Time::ZERO).is_empty());
    ack(&mut sender, 1, true);
    let halved = sender.control.window_bytes();
    assert_eq!(halved, 4_500, "half of the nine packets in flight");
    // The echo lasts for the window; nothing grows or shrinks, and no new packet fits before half
    // of the window is acknowledged.
    let mut cwr = Vec::new();
    for packets in 2..=10 {
        ack(&mut sender, packets, true);
        assert_eq!(sender.control.window_bytes(), halved);
        cwr.extend(send(&mut sender, Time::from_us(100)));
    }
    assert_eq!(
        cwr,
        [10],
        "the first packet that was new after the reduction"
    );
    // Behind it an echo is another mark's.
    ack(&mut sender, 11, true);
    assert!(sender.control.window_bytes() < halved);
}

#[test]
fn the_window_grows_again_once_the_echo_is_over() {
    let mut sender = sender();
    send(&mut sender, Time::ZERO);
    ack(&mut sender, 1, true);
    for packets in 2..=10 {
        ack(&mut sender, packets, true);
        send(&mut sender, Time::from_us(100));
    }
    let halved = sender.control.window_bytes();
    ack(&mut sender, 11, false);
    assert!(sender.control.window_bytes() > halved);
}

#[test]
fn a_loss_is_told_like_a_mark_and_not_by_the_packet_that_is_sent_again() {
    let mut sender = sender();
    send(&mut sender, Time::ZERO);
    let lost = Ack {
        ack: 0,
        stamp: Time::ZERO,
        rtt: Span::from_us(100),
        marked: false,
        switches: 0,
        blocks: &[(MSS_BYTES, 9 * MSS_BYTES)],
    };
    sender.on_ack(Time::from_us(100), &lost, Span::from_us(200), true);
    let again = sender.peek_segment().expect("the lost packet");
    assert!(again.again && !again.cwr);
    sender.sent(Time::from_us(100), again);
    // Everything arrived: what follows is new.
    ack(&mut sender, 10, false);
    assert_eq!(send(&mut sender, Time::from_us(200)), [10]);
}

#[test]
fn dctcp_hears_a_mark_in_each_window() {
    // RFC 8257 §3.2: its receiver echoes each mark, so that an echo at the edge is a new one.
    let control = Dctcp::new(&DctcpConfig::default(), MSS_BYTES, 10 * MSS_BYTES);
    let mut sender = TcpSender::new(
        control,
        RttEstimator::new(Span::from_ms(1)),
        MSS_BYTES,
        u64::MAX,
    );
    send(&mut sender, Time::ZERO);
    ack(&mut sender, 1, true);
    let reduced = sender.control.window_bytes();
    send(&mut sender, Time::ZERO);
    ack(&mut sender, 10, true);
    assert!(sender.control.window_bytes() < reduced);
}
