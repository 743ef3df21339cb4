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

/// RFC 6298 §2.2 and §2.3, with α = 1/8 and β = 1/4.
#[test]
fn the_estimate_by_hand() {
    let mut rtt = RttEstimate::default();
    assert_eq!((rtt.srtt_ns(), rtt.timeout_ns(7)), (None, 7));
    rtt.sample(80);
    assert_eq!((rtt.srtt_ns(), rtt.timeout_ns(7)), (Some(80), 80 + 4 * 40));
    // The error is 80: 40 · 3/4 + 80 / 4.
    rtt.sample(160);
    assert_eq!((rtt.srtt_ns(), rtt.timeout_ns(7)), (Some(90), 90 + 4 * 50));
}

#[test]
fn an_acknowledgement_reaches_as_far_back_as_its_bitmap() {
    let mut log = SentPackets::new(RecoveryConfig {
        max_in_flight: 200,
        ..log().config
    });
    for seq in 1..=100 {
        send(&mut log, seq, 0);
    }
    let outcomes = ack(&mut log, MS, 100, u64::MAX);
    for (seq, outcome) in outcomes {
        let named = seq >= 100 - ACK_WINDOW;
        assert_eq!(outcome == AckOutcome::Acked, named, "{seq}");
    }
    assert_eq!(log.in_flight(), 0);
}

mod model {
    //! The log against a plain list of datagrams, by the rules of the module's text.

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send { slots: u32, prompt: bool },
        Ack { back: u64, bitmap: u64 },
        Wait { ns: u64 },
        Timeout { late_ns: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..3_u32, any::<bool>()).prop_map(|(slots, prompt)| Step::Send { slots, prompt }),
            3 => (0..9_u64, any::<u64>()).prop_map(|(back, bitmap)| Step::Ack { back, bitmap }),
            2 => (1..3 * MS).prop_map(|ns| Step::Wait { ns }),
            1 => prop_oneof![Just(0), 0..30 * MS].prop_map(|late_ns| Step::Timeout { late_ns }),
        ];
        proptest::collection::vec(step, 1..80)
    }

    struct Sent {
        seq: u64,
        at_ns: u64,
        slots: Vec<u32>,
        prompt: bool,
        in_flight: bool,
    }

    #[derive(Default)]
    struct ListOfDatagrams {
        sent: Vec<Sent>,
        newest: u64,
        /// Smoothed time and variation.
        rtt: Option<(u64, u64)>,
        timeouts: u32,
    }

    impl ListOfDatagrams {
        /// Time-out: 20 ms before a sample, doubled for each in a row, at most 200 ms, and the
        /// peer's delay of 1 or 5 ms.
        fn timeout_ns(&self, prompt: bool) -> u64 {
            let rto_ns = self.rtt.map_or(20 * MS, |(srtt, rttvar)| srtt + 4 * rttvar);
            let backed_off_ns = rto_ns << self.timeouts.min(6);
            let delay_ns = if prompt { MS } else { 5 * MS };
            (backed_off_ns.min(200 * MS) + delay_ns).max(2 * MS)
        }

        fn deadline(&self) -> Option<u64> {
            let waiting = self.sent.iter().filter(|sent| sent.in_flight);
            let due = waiting.map(|sent| sent.at_ns + self.timeout_ns(sent.prompt));
            due.min()
        }

        /// Resolves the datagrams of which `fate` knows something.
        fn resolve(&mut self, fate: impl Fn(&Sent) -> Option<bool>) -> Vec<(u64, u32, bool)> {
            let mut resolved = Vec::new();
            for sent in self.sent.iter_mut().filter(|sent| sent.in_flight) {
                if let Some(acked) = fate(sent) {
                    sent.in_flight = false;
                    let slots = sent.slots.iter();
                    resolved.extend(slots.map(|&slot| (sent.seq, slot, acked)));
                }
            }
            resolved
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_log_does_what_a_list_does(steps in steps()) {
            let mut log = SentPackets::new(RecoveryConfig {
                max_in_flight: 16,
                peer_ack_delay_ns: 5 * MS,
                ..log().config
            });
            let mut list = ListOfDatagrams::default();
            let (mut now_ns, mut next_seq, mut next_slot) = (MS, 1, 0);
            for step in steps {
                let in_flight = |list: &ListOfDatagrams| {
                    list.sent.iter().filter(|sent| sent.in_flight).count()
                };
                let before = in_flight(&list);
                match step {
                    Step::Send { slots, prompt } => {
                        // The log keeps resolved datagrams behind one that is in flight.
                        let oldest = list.sent.iter().position(|sent| sent.in_flight);
                        let kept = oldest.map_or(0, |at| list.sent.len() - at);
                        prop_assert_eq!(log.has_room(), kept < 16);
                        if !log.has_room() {
                            continue;
                        }
                        let slots: Vec<u32> = (next_slot..next_slot + slots).collect();
                        slots.iter().for_each(|&slot| log.push_slot(slot));
                        next_slot += slots.len() as u32;
                        log.push(next_seq, now_ns, slots.len() as u32, prompt);
                        list.sent.push(Sent { seq: next_seq, at_ns: now_ns, slots, prompt, in_flight: true });
                        next_seq += 1;
                    }
                    Step::Ack { back, bitmap } => {
                        let Some(largest) = (next_seq - 1).checked_sub(back).filter(|&seq| seq > 0) else {
                            continue;
                        };
                        let named = |seq: u64| seq == largest
                            || (seq < largest && largest - seq <= 64 && bitmap & (1 << (largest - seq - 1)) != 0);
                        let advances = largest > list.newest;
                        list.newest = list.newest.max(largest);
                        let newest = list.newest;
                        // Only the newest named one gives a sample, and only if it asked for a
                        // prompt answer.
                        let sampled = list.sent.iter()
                            .find(|sent| sent.in_flight && sent.seq == largest && sent.prompt && advances)
                            .map(|sent| now_ns - sent.at_ns);
                        let progress = list.sent.iter().any(|sent| sent.in_flight && named(sent.seq));
                        let expected = list.resolve(|sent| {
                            if named(sent.seq) {
                                Some(true)
                            } else if sent.seq + 3 <= newest {
                                Some(false)
                            } else {
                                None
                            }
                        });
                        if let Some(sample) = sampled {
                            list.rtt = Some(match list.rtt {
                                None => (sample, sample / 2),
                                Some((srtt, rttvar)) => (
                                    srtt - srtt / 8 + sample / 8,
                                    rttvar - rttvar / 4 + srtt.abs_diff(sample) / 4,
                                ),
                            });
                        }
                        if progress {
                            list.timeouts = 0;
                        }
                        let mut outcomes = Vec::new();
                        let lost = log.on_ack(now_ns, largest, bitmap, |seq, slot, outcome| {
                            outcomes.push((seq, slot, outcome == AckOutcome::Acked));
                        });
                        prop_assert_eq!(outcomes, expected);
                        let acked = list.sent.iter().filter(|sent| !sent.in_flight).count();
                        prop_assert!(lost <= acked as u64);
                    }
                    Step::Wait { ns } => now_ns += ns,
                    Step::Timeout { late_ns } => {
                        let Some(deadline_ns) = list.deadline() else {
                            prop_assert_eq!(log.on_timeout(now_ns, |_, _| ()), 0);
                            continue;
                        };
                        if deadline_ns > now_ns {
                            let early = log.on_timeout(deadline_ns - 1, |_, _| ());
                            prop_assert_eq!(early, 0);
                        }
                        now_ns = now_ns.max(deadline_ns) + late_ns;
                        let due = [list.timeout_ns(false), list.timeout_ns(true)];
                        let expected = list.resolve(|sent| {
                            let due_ns = sent.at_ns + due[usize::from(sent.prompt)];
                            (due_ns <= now_ns).then_some(false)
                        });
                        list.timeouts += 1;
                        let mut resolved = Vec::new();
                        let lost = log.on_timeout(now_ns, |seq, slot| resolved.push((seq, slot, false)));
                        prop_assert_eq!(lost as usize, before - in_flight(&list));
                        prop_assert_eq!(resolved, expected);
                    }
                }
                prop_assert_eq!(log.in_flight(), in_flight(&list));
                prop_assert_eq!(log.deadline(), list.deadline());
                prop_assert_eq!(log.rtt().srtt_ns(), list.rtt.map(|(srtt, _)| srtt));
            }
        }
    }
}
