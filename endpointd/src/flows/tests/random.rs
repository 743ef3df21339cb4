//! Random orders of everything that can happen, against a model of the kernel's and the allocator's
//! side.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::backend::Usage;

const SLOTS: u32 = 4;

#[derive(Debug, Clone)]
enum TableStep {
    Event {
        slot: u32,
        use_count: u32,
        kind: u8,
    },
    Advance {
        by_ns: u64,
    },
    Rate {
        slot: u32,
        generations_back: u32,
        bps: u64,
        lease_ns: u64,
    },
    Renew {
        lease_ns: u64,
    },
    Released(bool),
    Established,
    Network(u8),
    Refuse {
        slot: u32,
    },
    Usage {
        slot: u32,
        use_count: u32,
        sent: u64,
    },
    Limited {
        slot: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<TableStep>> {
    let event =
        (0..SLOTS + 1, 0..4_u32, 0..5_u8).prop_map(|(slot, use_count, kind)| TableStep::Event {
            slot,
            use_count,
            kind,
        });
    let rate = (
        0..SLOTS,
        0..2_u32,
        prop_oneof![Just(0), 1_u64..1_000_000_000],
        0..2 * LEASE_NS,
    )
        .prop_map(|(slot, generations_back, bps, lease_ns)| TableStep::Rate {
            slot,
            generations_back,
            bps,
            lease_ns,
        });
    let step = prop_oneof![
        8 => event,
        3 => (0..2 * GAP_NS).prop_map(|by_ns| TableStep::Advance { by_ns }),
        // Windows of measured use end, and demands are lowered.
        2 => (0..60 * GAP_NS).prop_map(|by_ns| TableStep::Advance { by_ns }),
        6 => rate,
        2 => (0..2 * LEASE_NS).prop_map(|lease_ns| TableStep::Renew { lease_ns }),
        1 => any::<bool>().prop_map(TableStep::Released),
        1 => Just(TableStep::Established),
        1 => (0..3_u8).prop_map(TableStep::Network),
        1 => (0..SLOTS).prop_map(|slot| TableStep::Refuse { slot }),
        6 => (0..SLOTS, 0..4_u32, 0..5_u64).prop_map(|(slot, use_count, sent)| TableStep::Usage { slot, use_count, sent }),
        2 => (0..SLOTS).prop_map(|slot| TableStep::Limited { slot }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Model of the state that the kernel and the allocator hold after the actions.
#[derive(Debug, Default)]
struct FlowTableModel {
    paced: BTreeMap<u32, u32>,
    newest: BTreeMap<u32, u32>,
    known: BTreeMap<u32, FlowId>,
    ended: BTreeSet<u32>,
    watches: u64,
    /// Actions so far, by the counters that stand for them.
    done: FlowCounters,
}

impl FlowTableModel {
    fn apply(&mut self, now_ns: u64, table: &mut FlowTable) {
        while let Some(action) = table.poll_action() {
            match action {
                FlowAction::Start(start) => {
                    self.done.reported += 1;
                    let flow = start.flow();
                    assert!(!self.ended.contains(&flow.0), "{flow} was ended");
                    self.known.insert(flow.slot(), flow);
                }
                FlowAction::End(flow) => {
                    assert!(self.ended.insert(flow.0), "{flow} ended twice");
                    assert_eq!(self.known.remove(&flow.slot()), Some(flow));
                }
                FlowAction::SetRate {
                    conn,
                    rate_bps,
                    expires_ns,
                    ..
                } => {
                    self.done.rates_applied += 1;
                    assert!(
                        rate_bps > 0
                            && expires_ns > now_ns
                            && table.pacing_state() == PacingState::Pace
                    );
                    assert_eq!(
                        self.newest.get(&conn.slot.0),
                        Some(&conn.use_count),
                        "a stale connection is paced"
                    );
                    assert!(
                        self.known.contains_key(&conn.slot.0),
                        "paced, but unknown to the allocator"
                    );
                    self.paced.insert(conn.slot.0, conn.use_count);
                }
                FlowAction::Watch(conn) => {
                    self.watches += 1;
                    // Before its first rate, too: see `FlowTable::apply_rate`.
                    assert!(
                        self.known.contains_key(&conn.slot.0),
                        "watched, but not reported"
                    );
                }
                FlowAction::Renew { .. } => {
                    self.done.renewals += 1;
                    assert!(table.pacing_state() == PacingState::Pace && !self.paced.is_empty());
                }
                FlowAction::Clear(conn) => {
                    if self.paced.get(&conn.slot.0) == Some(&conn.use_count) {
                        self.paced.remove(&conn.slot.0);
                    }
                }
                FlowAction::ClearAll => self.paced.clear(),
                FlowAction::Observe(_) => assert!(self.paced.is_empty()),
            }
        }
        for slot in self.paced.keys() {
            assert!(
                self.known.contains_key(slot),
                "slot {slot} is paced without a live flowlet"
            );
        }
        let counters = table.counters();
        let counted = FlowCounters {
            reported: counters.reported,
            rates_applied: counters.rates_applied,
            renewals: counters.renewals,
            ..FlowCounters::default()
        };
        assert_eq!(counted, self.done);
        assert!(counters.demands_lowered <= self.watches);
        assert_eq!(
            counters.flowlets_started - counters.flowlets_ended,
            table.flow_count() as u64
        );
        assert_eq!(self.paced.len(), table.rated_count() as usize);
        assert_eq!(self.known.len(), table.reported_count());
        assert!(table.flow_count() <= SLOTS as usize && table.idle.len() <= SLOTS as usize);
        assert!(table.entries.len() <= SLOTS as usize);
    }
}

fn networks() -> [Arc<NetworkView>; 3] {
    [
        usual(),
        network(&[(1, "10.0.1.1/32"), (7, "10.0.2.1/32")]),
        network(&[(1, "10.0.1.1/32")]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_paced_connection_always_has_a_live_flowlet(steps in steps()) {
        let mut table = FlowTable::new(SLOTS, GAP_NS, Policy::default());
        let mut model = FlowTableModel::default();
        let mut now_ns = 1;
        for step in steps {
            match step {
                TableStep::Event { slot, use_count, kind } => {
                    let kind = match kind {
                        0 => FlowEventKind::Start(facts("10.0.2.1", 80)),
                        1 => FlowEventKind::Idle,
                        2 => FlowEventKind::Resume,
                        3 => FlowEventKind::Close,
                        _ => FlowEventKind::Start(facts("192.0.2.1", 80)),
                    };
                    if slot < SLOTS {
                        let newest = model.newest.entry(slot).or_insert(use_count);
                        *newest = (*newest).max(use_count);
                        // The kernel forgets a rate with its connection.
                        let closes = matches!(kind, FlowEventKind::Close);
                        if model.paced.get(&slot).is_some_and(|paced| *paced < use_count || (closes && *paced == use_count)) {
                            model.paced.remove(&slot);
                        }
                    }
                    event(&mut table, conn(slot, use_count), now_ns, kind);
                }
                TableStep::Advance { by_ns } => {
                    now_ns += by_ns;
                    table.on_timeout(now_ns);
                    prop_assert!(table.next_timeout().is_none_or(|at_ns| at_ns > now_ns));
                }
                TableStep::Rate { slot, generations_back, bps, lease_ns } => {
                    if let Some(flow) = model.known.get(&slot) {
                        let flow = FlowId::new(slot, flow.generation().wrapping_sub(generations_back));
                        table.on_rate(now_ns, flow, bps, now_ns + lease_ns);
                    }
                }
                TableStep::Usage { slot, use_count, sent } => {
                    let sent_bytes = sent * 10_000;
                    let usage = Usage { conn: conn(slot, use_count), sent_bytes, acked_bytes: sent_bytes, limited_ns: 0, round_trip_ns: 0 };
                    table.on_usage(now_ns, &[usage]);
                }
                TableStep::Limited { slot } => {
                    if let Some(use_count) = model.newest.get(&slot).copied() {
                        event(&mut table, conn(slot, use_count), now_ns, FlowEventKind::Limited);
                    }
                }
                TableStep::Renew { lease_ns } => table.on_renewed(now_ns + lease_ns),
                TableStep::Released(released) => table.set_pacing_state(if released {
                    PacingState::Release
                } else {
                    PacingState::Pace
                }),
                TableStep::Established => table.on_established(usual(), PacingState::Pace),
                TableStep::Network(which) => table.set_network(networks()[usize::from(which)].clone()),
                TableStep::Refuse { slot } => {
                    if let Some(flow) = model.known.get(&slot).copied()
                        && !model.paced.contains_key(&slot)
                    {
                        table.start_refused(flow);
                        model.known.remove(&slot);
                    }
                }
            }
            model.apply(now_ns, &mut table);
        }
        table.end_all();
        model.paced.clear();
        model.apply(now_ns, &mut table);
        prop_assert!(model.known.is_empty(), "flowlets left with the allocator: {:?}", model.known);
    }
}
