use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::rng::{Purpose, Stream};

/// Two ends, and wires of 5 µs that lose and reorder.
struct Wires {
    ends: [StreamEnd; 2],
    /// Arrival, the end that it goes to, what.
    under_way: VecDeque<(Time, usize, StreamSegment)>,
    deadlines: [Option<Time>; 2],
    rng: Stream,
    loss: f64,
    sent_bytes: u64,
    received: [Vec<Vec<u8>>; 2],
}

impl Wires {
    fn new(loss: f64, seed: u64) -> Self {
        let end = || StreamEnd::new(StreamConfig::default());
        Self {
            ends: [end(), end()],
            under_way: VecDeque::new(),
            deadlines: [None; 2],
            rng: Stream::new(seed, Purpose::Test, 0),
            loss,
            sent_bytes: 0,
            received: [Vec::new(), Vec::new()],
        }
    }

    fn flush(&mut self, now: Time, of: usize) {
        while let Ok(segment) = self.ends[of].poll_segment(now, Vec::new()) {
            assert!(segment.bytes.len() <= 1_460);
            self.sent_bytes += segment.bytes.len() as u64;
            if self.loss > 0.0 && self.rng.random_bool(self.loss) {
                continue;
            }
            // One in twenty takes 9 µs and is overtaken.
            let late = self.loss > 0.0 && self.rng.random_bool(0.05);
            let at = now + Span::from_us(if late { 9 } else { 5 });
            self.under_way.push_back((at, 1 - of, segment));
        }
        let span = self.ends[of].time_out();
        self.deadlines[of] = match (self.deadlines[of], span) {
            (_, None) => None,
            // RFC 6298 §5.1: a timer that runs is not restarted by sending.
            (Some(at), Some(_)) => Some(at),
            (None, Some(span)) => Some(now + span),
        };
    }

    /// Runs until no event is left.
    fn run(&mut self, mut now: Time) -> Time {
        loop {
            let next = self.under_way.iter().map(|entry| entry.0).min();
            let timers = self.deadlines.iter().flatten().min().copied();
            let Some(at) = next.into_iter().chain(timers).min() else {
                return now;
            };
            now = at;
            if let Some(of) = (0..2).find(|&of| self.deadlines[of] == Some(now)) {
                self.deadlines[of] = None;
                self.ends[of].on_time_out(now);
                self.flush(now, of);
            } else if let Some(index) = self.under_way.iter().position(|entry| entry.0 == now)
                && let Some((_, of, segment)) = self.under_way.remove(index)
            {
                let before = self.ends[of].acknowledged();
                self.ends[of].on_segment(now, &segment);
                if self.ends[of].acknowledged() > before {
                    self.deadlines[of] = None;
                }
                while let Some(message) = self.ends[of].read().unwrap() {
                    self.received[of].push(message.to_vec());
                }
                self.flush(now, of);
            }
        }
    }
}

fn message(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (index * 31 + at * 7) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Messages written at one end are read at the other: whole, in order, once, whatever was lost.
    #[test]
    fn messages_arrive_in_order_once(
        lengths in proptest::collection::vec((0usize..2, 0usize..4_000, 0u64..40), 1..120),
        loss in 0.0f64..0.3,
        seed in any::<u64>(),
    ) {
        let mut wires = Wires::new(loss, seed);
        let mut written = [Vec::new(), Vec::new()];
        let mut now = Time::from_us(1);
        for (index, (of, length, pause_us)) in lengths.into_iter().enumerate() {
            let text = message(index, length);
            wires.ends[of].write(&text);
            wires.flush(now, of);
            written[1 - of].push(text);
            if pause_us > 30 {
                now = wires.run(now);
            }
        }
        wires.run(now);
        prop_assert_eq!(&wires.received, &written);
        prop_assert!(wires.ends.iter().all(|end| end.time_out().is_none()));
    }
}

/// Without loss every byte is sent once, and nothing waits for a timer.
#[test]
fn without_loss_nothing_is_sent_twice() {
    let mut wires = Wires::new(0.0, 1);
    for index in 0..300 {
        wires.ends[0].write(&message(index, 700));
    }
    wires.flush(Time::from_us(1), 0);
    wires.run(Time::from_us(1));
    // Each message has two bytes of length in front.
    assert_eq!(wires.sent_bytes, 300 * 702);
    assert_eq!(wires.ends[0].counts(), StreamCounts::default());
    assert_eq!(wires.received[1].len(), 300);
}

/// A message alone that is lost comes after one time-out: the largest before any measurement,
/// between the least and the largest later.
#[test]
fn a_lost_tail_is_sent_again_by_the_timer() {
    let mut wires = Wires::new(0.0, 1);
    let start = Time::from_us(1);
    for (now, expected_us) in [(start, 30), (Time::from_ms(1), 20)] {
        wires.ends[0].write(b"start");
        wires.loss = 1.0;
        wires.flush(now, 0);
        wires.loss = 0.0;
        let waited = wires.deadlines[0].unwrap().since(now);
        assert!(waited >= Span::from_us(expected_us), "{waited:?}");
        assert!(waited <= Span::from_us(30), "{waited:?}");
        let before = wires.received[1].len();
        wires.run(now);
        assert_eq!(wires.received[1].len(), before + 1);
    }
    assert_eq!(wires.ends[0].counts().retransmits, 2);
    assert_eq!(wires.ends[0].counts().time_outs, 2);
}

/// One segment of a window is lost: the blocks of three more show it within a round trip.
#[test]
fn a_lost_segment_is_sent_again_by_what_came_behind() {
    let mut ends = [(); 2].map(|()| StreamEnd::new(StreamConfig::default()));
    let now = Time::from_us(1);
    ends[0].write(&message(0, 5 * 1_460 - 2));
    let mut segments = Vec::new();
    while let Ok(segment) = ends[0].poll_segment(now, Vec::new()) {
        segments.push(segment);
    }
    assert_eq!(segments.len(), 5);
    for (index, segment) in segments.iter().enumerate().filter(|&(i, _)| i != 1) {
        let at = now + Span::from_us(5 + index as u64);
        ends[1].on_segment(at, segment);
        let ack = ends[1].poll_segment(at, Vec::new()).unwrap();
        assert_eq!(ack.blocks.is_empty(), index == 0, "{index}");
        ends[0].on_segment(at + Span::from_us(5), &ack);
    }
    let again = ends[0]
        .poll_segment(now + Span::from_us(15), Vec::new())
        .unwrap();
    assert_eq!(
        (again.seq, &again.bytes),
        (segments[1].seq, &segments[1].bytes)
    );
    ends[1].on_segment(now + Span::from_us(20), &again);
    assert_eq!(
        ends[1].read().unwrap(),
        Some(&message(0, 5 * 1_460 - 2)[..])
    );
}
