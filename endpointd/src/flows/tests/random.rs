//! Random orders of everything that can happen, against a model of the kernel's and the allocator's side.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::backend::Usage;

const SLOTS: u32 = 4;

#[derive(Debug, Clone)]
enum Step {
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

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let event = (0..SLOTS + 1, 0..4_u32, 0..5_u8).prop_map(|(slot, use_count, kind)| Step::Event {
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
        .prop_map(|(slot, generations_back, bps, lease_ns)| Step::Rate {
            slot,
            generations_back,
            bps,
            lease_ns,
        });
    let step = prop_oneof![
        8 => event,
        3 => (0..2 * GAP_NS).prop_map(|by_ns| Step::Advance { by_ns }),
        6 => rate,
        2 => (0..2 * LEASE_NS).prop_map(|lease_ns| Step::Renew { lease_ns }),
        1 => any::<bool>().prop_map(Step::Released),
        1 => Just(Step::Established),
        1 => (0..3_u8).prop_map(Step::Network),
        1 => (0..SLOTS).prop_map(|slot| Step::Refuse { slot }),
        6 => (0..SLOTS, 0..4_u32, 0..5_u64).prop_map(|(slot, use_count, sent)| Step::Usage { slot, use_count, sent }),
        2 => (0..SLOTS).prop_map(|slot| Step::Limited { slot }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// What the kernel and the allocator would hold after the actions.
#[derive(Debug, Default)]
struct World {
    paced: BTreeMap<u32, u32>,
    newest: BTreeMap<u32, u32>,
    known: BTreeMap<u32, FlowId>,
    ended: BTreeSet<u32>,
}

impl World {
    fn apply(&mut self, now_ns: u64, book: &mut FlowBook) {
        while let Some(action) = book.poll_action() {
            match action {
                FlowAction::Start(start) => {
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
                    assert!(rate_bps > 0 && expires_ns > now_ns && !book.is_released());
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
                FlowAction::Watch(conn) => assert_eq!(
                    self.paced.get(&conn.slot.0),
                    Some(&conn.use_count),
                    "watched, but not paced"
                ),
                FlowAction::Renew { .. } => assert!(!book.is_released() && !self.paced.is_empty()),
                FlowAction::Clear(conn) => {
                    if self.paced.get(&conn.slot.0) == Some(&conn.use_count) {
                        self.paced.remove(&conn.slot.0);
                    }
                }
                FlowAction::ClearAll => self.paced.clear(),
            }
        }
        for slot in self.paced.keys() {
            assert!(
                self.known.contains_key(slot),
                "slot {slot} is paced without a live flowlet"
            );
        }
        assert_eq!(self.paced.len(), book.rated_count() as usize);
        assert_eq!(self.known.len(), book.reported_count());
        assert!(book.flow_count() <= SLOTS as usize && book.idle.len() <= SLOTS as usize);
        assert!(book.entries.len() <= SLOTS as usize);
    }
}

fn networks() -> [Arc<Network>; 3] {
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
        let mut book = FlowBook::new(SLOTS, GAP_NS, Policy::default());
        let mut world = World::default();
        let mut now_ns = 1;
        for step in steps {
            match step {
                Step::Event { slot, use_count, kind } => {
                    let kind = match kind {
                        0 => FlowEventKind::Start(facts("10.0.2.1", 80)),
                        1 => FlowEventKind::Idle,
                        2 => FlowEventKind::Resume,
                        3 => FlowEventKind::Close,
                        _ => FlowEventKind::Start(facts("192.0.2.1", 80)),
                    };
                    if slot < SLOTS {
                        let newest = world.newest.entry(slot).or_insert(use_count);
                        *newest = (*newest).max(use_count);
                        // The kernel forgets a rate with its connection.
                        let closes = matches!(kind, FlowEventKind::Close);
                        if world.paced.get(&slot).is_some_and(|paced| *paced < use_count || (closes && *paced == use_count)) {
                            world.paced.remove(&slot);
                        }
                    }
                    event(&mut book, conn(slot, use_count), now_ns, kind);
                }
                Step::Advance { by_ns } => {
                    now_ns += by_ns;
                    book.on_timeout(now_ns);
                    prop_assert!(book.next_timeout().is_none_or(|at_ns| at_ns > now_ns));
                }
                Step::Rate { slot, generations_back, bps, lease_ns } => {
                    if let Some(flow) = world.known.get(&slot) {
                        let flow = FlowId::new(slot, flow.generation().wrapping_sub(generations_back));
                        book.on_rate(now_ns, flow, bps, now_ns + lease_ns);
                    }
                }
                Step::Usage { slot, use_count, sent } => {
                    let sent_bytes = sent * 10_000;
                    let usage = Usage { conn: conn(slot, use_count), sent_bytes, acked_bytes: sent_bytes, limited_ns: 0, rests_ns: if sent == 4 { now_ns.saturating_sub(GAP_NS) } else { 0 } };
                    book.on_usage(now_ns, &[usage]);
                }
                Step::Limited { slot } => {
                    if let Some(use_count) = world.newest.get(&slot).copied() {
                        event(&mut book, conn(slot, use_count), now_ns, FlowEventKind::Limited);
                    }
                }
                Step::Renew { lease_ns } => book.on_renewed(now_ns + lease_ns),
                Step::Released(released) => book.on_released(released),
                Step::Established => book.on_established(usual(), false),
                Step::Network(which) => book.set_network(networks()[usize::from(which)].clone()),
                Step::Refuse { slot } => {
                    if let Some(flow) = world.known.get(&slot).copied()
                        && !world.paced.contains_key(&slot)
                    {
                        book.start_refused(flow);
                        world.known.remove(&slot);
                    }
                }
            }
            world.apply(now_ns, &mut book);
        }
        book.end_all();
        world.paced.clear();
        world.apply(now_ns, &mut book);
        prop_assert!(world.known.is_empty(), "flowlets left with the allocator: {:?}", world.known);
    }
}
