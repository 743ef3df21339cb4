//! Against a sorted map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

#[derive(Debug, Clone)]
enum TimerOp {
    /// Insert a timer at this offset from the present time, which may be negative.
    Insert(i64),
    /// Time passes, and all expired entries are taken.
    Pass(u64),
    /// At most this many entries are taken.
    Take(usize),
}

fn step() -> impl Strategy<Value = TimerOp> {
    prop_oneof![
        6 => prop_oneof![
            -10_000_000..40_000_000i64,
            0..500_000i64,
            0..30_000_000_000i64,
            Just((TICK_NS * SLOTS) as i64),
            Just((TICK_NS * SLOTS * SLOTS) as i64),
        ]
        .prop_map(TimerOp::Insert),
        4 => prop_oneof![
            0..300_000u64,
            0..40 * MS,
            0..12_000 * MS,
            Just(TICK_NS * SLOTS),
        ]
        .prop_map(TimerOp::Pass),
        1 => (0..4usize).prop_map(TimerOp::Take),
    ]
}

/// Model: entries by tick, in the order of insertion.
struct Model {
    entries: BTreeMap<(u64, u32), u64>,
    /// Tick up to which all entries were taken.
    tick: u64,
}

impl Model {
    fn insert(&mut self, now_ns: u64, at_ns: u64, key: u32) {
        if self.entries.is_empty() {
            self.tick = self.tick.max(now_ns >> TICK_BITS);
        }
        let tick = at_ns.div_ceil(TICK_NS).max(self.tick + 1);
        self.entries.insert((tick, key), at_ns);
    }

    fn pop(&mut self, now_ns: u64) -> Option<(u64, u64, u32)> {
        let entry = self.entries.first_entry()?;
        let (tick, key) = *entry.key();
        (tick <= now_ns >> TICK_BITS).then(|| (tick, entry.remove(), key))
    }
}

proptest! {
    #[test]
    fn entries_come_up_when_a_sorted_map_says(
        start_ns in 0..1u64 << 50,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut now_ns = start_ns;
        let mut timers = Timers::new();
        let mut model = Model { entries: BTreeMap::new(), tick: 0 };
        for (key, step) in steps.into_iter().enumerate() {
            let key = key as u32;
            match step {
                TimerOp::Insert(offset_ns) => {
                    let at_ns = now_ns.saturating_add_signed(offset_ns);
                    timers.insert(now_ns, at_ns, key);
                    model.insert(now_ns, at_ns, key);
                }
                TimerOp::Pass(ns) => {
                    now_ns += ns;
                    let mut got = Vec::new();
                    while let Some(entry) = timers.pop_due(now_ns) {
                        got.push(entry);
                    }
                    let mut expected = Vec::new();
                    let mut ticks = Vec::new();
                    while let Some((tick, at_ns, key)) = model.pop(now_ns) {
                        expected.push((at_ns, key));
                        ticks.push((key, tick));
                    }
                    model.tick = model.tick.max(now_ns >> TICK_BITS);
                    // By ticks; within one in any order that is always the same.
                    let tick_of = |&(_, key): &(u64, u32)| {
                        ticks.iter().find(|entry| entry.0 == key).map(|entry| entry.1)
                    };
                    prop_assert!(got.iter().is_sorted_by_key(tick_of));
                    got.sort_by_key(|entry| entry.1);
                    expected.sort_by_key(|entry| entry.1);
                    prop_assert_eq!(got, expected);
                    if let Some(next_ns) = timers.next_ns() {
                        prop_assert!(next_ns > now_ns, "it would be asked again at once");
                    }
                }
                TimerOp::Take(most) => {
                    // Taking only some loses nothing.
                    for _ in 0..most {
                        let Some((at_ns, key)) = timers.pop_due(now_ns) else {
                            model.tick = model.tick.max(now_ns >> TICK_BITS);
                            break;
                        };
                        let tick = model.entries.iter().find(|(at, _)| at.1 == key).map(|(at, _)| at.0);
                        let tick = tick.expect("an entry that was inserted");
                        prop_assert_eq!(model.entries.remove(&(tick, key)), Some(at_ns));
                        prop_assert!(tick <= now_ns >> TICK_BITS);
                        model.tick = model.tick.max(tick);
                    }
                }
            }
            prop_assert_eq!(timers.len(), model.entries.len());
            let first = model.entries.first_key_value().map(|((tick, _), _)| tick << TICK_BITS);
            prop_assert_eq!(timers.next_ns().is_some(), first.is_some());
            if let (Some(next_ns), Some(first_ns)) = (timers.next_ns(), first) {
                prop_assert!(next_ns <= first_ns);
            }
        }
    }

    /// A caller that sleeps until `next_ns` wakes up a few times at most before a distant entry.
    #[test]
    fn sleeping_until_the_next_call_finds_each_entry_in_time(
        start_ns in 0..1u64 << 40,
        after_ns in 0..40_000 * MS,
    ) {
        let mut timers = Timers::new();
        timers.insert(start_ns, start_ns + after_ns, ());
        let mut calls = 0;
        let mut now_ns = start_ns;
        while timers.pop_due(now_ns).is_none() {
            now_ns = timers.next_ns().expect("an entry waits");
            calls += 1;
        }
        prop_assert!(now_ns >= start_ns + after_ns);
        prop_assert!(now_ns < start_ns + after_ns + 2 * TICK_NS);
        prop_assert!(calls <= 8, "{calls} calls");
        prop_assert_eq!(timers.next_ns(), None);
    }
}
