//! The event sequence, against every order in which kernel and daemon can act.

use super::*;
use crate::backend::SlotIndex;
use proptest::prelude::*;
use ratewright_topology::ecmp::FiveTuple;

fn facts() -> FlowFacts {
    FlowFacts {
        tuple: FiveTuple {
            src: "10.0.0.1".parse().expect("literal"),
            dst: "10.0.0.2".parse().expect("literal"),
            src_port: 1,
            dst_port: 2,
            protocol: 6,
        },
        cgroup_id: 0,
        mark: 0,
        dscp: 0,
        app_max_bytes_per_s: None,
    }
}

fn conn(use_count: u32) -> Conn {
    Conn {
        slot: SlotIndex(0),
        use_count,
    }
}

fn event(use_count: u32, kind: FlowEventKind) -> FlowEvent {
    FlowEvent {
        conn: conn(use_count),
        at_ns: 0,
        kind,
    }
}

fn admit_all(sequencer: &mut EventSequencer, events: &[FlowEvent]) -> Vec<FlowEvent> {
    let mut out = Vec::new();
    for event in events {
        sequencer.admit(event.clone(), &mut out);
    }
    out
}

#[test]
fn events_of_one_connection_pass_in_order() {
    let mut sequencer = EventSequencer::new(1);
    let events = [
        event(0, FlowEventKind::Start(facts())),
        event(0, FlowEventKind::FirstPaced { latency_ns: 9 }),
        event(0, FlowEventKind::Idle),
        event(0, FlowEventKind::Resume),
        event(0, FlowEventKind::Close),
    ];
    assert_eq!(admit_all(&mut sequencer, &events), events);
}

#[test]
fn a_backlog_that_returns_as_the_daemon_ends_it_is_a_new_flowlet() {
    let mut sequencer = EventSequencer::new(1);
    admit_all(
        &mut sequencer,
        &[
            event(0, FlowEventKind::Start(facts())),
            event(0, FlowEventKind::Idle),
        ],
    );
    // The kernel's Resume crosses the daemon's end of the flowlet.
    assert!(sequencer.set_ended(conn(0), true));
    let mut out = Vec::new();
    let revoked = sequencer.admit(event(0, FlowEventKind::Resume), &mut out);
    assert_eq!(
        revoked,
        Some(conn(0)),
        "the kernel must report the flowlet's end again"
    );
    assert_eq!(out, [event(0, FlowEventKind::Start(facts()))]);
}

#[test]
fn an_ended_flowlet_is_silent_until_it_closes() {
    let mut sequencer = EventSequencer::new(1);
    admit_all(&mut sequencer, &[event(0, FlowEventKind::Start(facts()))]);
    sequencer.set_ended(conn(0), true);
    assert_eq!(
        admit_all(&mut sequencer, &[event(0, FlowEventKind::Idle)]),
        []
    );
    let close = event(0, FlowEventKind::Close);
    assert_eq!(
        admit_all(&mut sequencer, std::slice::from_ref(&close)),
        [close]
    );
}

#[test]
fn a_start_on_a_used_slot_closes_the_connection_whose_close_was_lost() {
    let mut sequencer = EventSequencer::new(1);
    admit_all(&mut sequencer, &[event(0, FlowEventKind::Start(facts()))]);
    let start = event(1, FlowEventKind::Start(facts()));
    let out = admit_all(&mut sequencer, std::slice::from_ref(&start));
    assert_eq!(out, [event(0, FlowEventKind::Close), start]);
}

#[test]
fn stale_handles_and_slots_beyond_the_table_are_ignored() {
    let mut sequencer = EventSequencer::new(1);
    admit_all(&mut sequencer, &[event(1, FlowEventKind::Start(facts()))]);
    assert!(!sequencer.is_current(conn(0)));
    assert!(!sequencer.is_current(Conn {
        slot: SlotIndex(7),
        use_count: 0
    }));
    assert!(!sequencer.set_ended(conn(0), true));
    assert_eq!(
        admit_all(&mut sequencer, &[event(0, FlowEventKind::Idle)]),
        []
    );
}

#[test]
fn after_a_loss_the_slots_tell_what_was_missed() {
    for (in_kernel, expected) in [
        (None, Some(FlowEventKind::Close)),
        (Some(true), Some(FlowEventKind::Idle)),
        (Some(false), None),
    ] {
        let mut sequencer = EventSequencer::new(2);
        admit_all(&mut sequencer, &[event(3, FlowEventKind::Start(facts()))]);
        let mut out = Vec::new();
        sequencer.reconcile(0, &mut out, |_| in_kernel);
        let kinds: Vec<_> = out.into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, Vec::from_iter(expected));
        // Events that were made up are not repeated when the ring delivers them after all.
        let late = match in_kernel {
            None => FlowEventKind::Close,
            Some(true) => FlowEventKind::Idle,
            Some(false) => continue,
        };
        assert_eq!(admit_all(&mut sequencer, &[event(3, late)]), []);
    }
}

/// Model of the kernel's side of one slot, as in `struct_ops.bpf.c`.
#[derive(Default)]
struct SlotModel {
    use_count: u32,
    held: bool,
    active: bool,
    ended: bool,
    ring: Vec<FlowEvent>,
}

impl SlotModel {
    fn push(&mut self, kind: FlowEventKind, keep: bool) {
        if keep {
            self.ring.push(event(self.use_count, kind));
        }
    }

    fn free(&mut self, keep: bool) {
        self.push(FlowEventKind::Close, keep);
        self.use_count += 1;
        (self.held, self.active, self.ended) = (false, false, false);
    }

    fn begin(&mut self, keep: bool) {
        if self.active {
            return;
        }
        if self.held {
            self.active = true;
            self.push(FlowEventKind::Resume, keep);
        } else if keep {
            // A Start that finds the ring full is repeated, never dropped.
            (self.held, self.active) = (true, true);
            self.push(FlowEventKind::Start(facts()), true);
        }
    }

    fn end(&mut self, keep: bool) {
        if !self.active {
            return;
        }
        self.active = false;
        if self.ended {
            self.free(keep);
        } else {
            self.push(FlowEventKind::Idle, keep);
        }
    }
}

#[derive(Debug, Clone)]
enum SequencerStep {
    Begin,
    End,
    CloseSocket,
    Poll,
    Clear,
    LoseNext,
}

fn step() -> impl Strategy<Value = SequencerStep> {
    prop_oneof![
        4 => Just(SequencerStep::Begin),
        4 => Just(SequencerStep::End),
        1 => Just(SequencerStep::CloseSocket),
        4 => Just(SequencerStep::Poll),
        3 => Just(SequencerStep::Clear),
        1 => Just(SequencerStep::LoseNext),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The sequence is well-formed in any order of kernel, daemon and losses; after a last poll,
    /// the daemon knows exactly the kernel's connections.
    #[test]
    fn the_daemon_always_hears_a_sequence_that_makes_sense(steps in prop::collection::vec(step(), 0..60)) {
        let mut kernel = SlotModel::default();
        let mut sequencer = EventSequencer::new(1);
        let mut lost = false;
        let mut lose_next = false;
        // The daemon's view: its connection, and whether it counts as active.
        let mut view: Option<(Conn, bool)> = None;
        let mut ended_by_daemon = false;
        for step in steps.into_iter().chain([SequencerStep::Poll]) {
            let keep = !lose_next;
            let before = kernel.ring.len();
            match step {
                SequencerStep::Begin => kernel.begin(keep),
                SequencerStep::End => kernel.end(keep),
                SequencerStep::CloseSocket => if kernel.held { kernel.free(keep) },
                SequencerStep::LoseNext => { lose_next = true; continue }
                SequencerStep::Clear => if let Some((conn, _)) = view
                    && sequencer.is_current(conn)
                {
                    sequencer.set_ended(conn, true);
                    ended_by_daemon = true;
                    if kernel.held && kernel.use_count == conn.use_count {
                        kernel.ended = true;
                        if !kernel.active {
                            kernel.use_count += 1;
                            (kernel.held, kernel.ended) = (false, false);
                            sequencer.close(conn, 0);
                        }
                    }
                }
                SequencerStep::Poll => {
                    let mut out = Vec::new();
                    sequencer.take_pending(&mut out);
                    for event in std::mem::take(&mut kernel.ring) {
                        if let Some(revived) = sequencer.admit(event, &mut out)
                            && kernel.held && kernel.use_count == revived.use_count
                        {
                            kernel.ended = false;
                        }
                    }
                    if std::mem::take(&mut lost) {
                        let (held, use_count, idle) = (kernel.held, kernel.use_count, !kernel.active);
                        sequencer.reconcile(0, &mut out, |conn| {
                            (held && conn.use_count == use_count).then_some(idle)
                        });
                    }
                    for event in out {
                        match event.kind {
                            FlowEventKind::Start(_) => {
                                let restarted = view.is_some_and(|(conn, _)| conn == event.conn);
                                prop_assert!(view.is_none() || (restarted && ended_by_daemon));
                                view = Some((event.conn, true));
                                ended_by_daemon = false;
                            }
                            FlowEventKind::Idle => {
                                prop_assert_eq!(view, Some((event.conn, true)));
                                view = Some((event.conn, false));
                            }
                            FlowEventKind::Resume => {
                                prop_assert_eq!(view, Some((event.conn, false)));
                                view = Some((event.conn, true));
                            }
                            FlowEventKind::Close => {
                                prop_assert!(view.is_some_and(|(conn, _)| conn == event.conn));
                                view = None;
                            }
                            FlowEventKind::FirstPaced { .. } | FlowEventKind::Limited => {}
                        }
                    }
                }
            }
            if lose_next && kernel.ring.len() == before {
                // Something may have been dropped; the counter says so.
                lost = true;
                lose_next = false;
            }
        }
        let in_kernel = kernel.held.then_some((conn(kernel.use_count), kernel.active));
        if ended_by_daemon {
            prop_assert_eq!(view.map(|(conn, _)| conn), in_kernel.map(|(conn, _)| conn));
        } else {
            prop_assert_eq!(view, in_kernel);
        }
    }
}
