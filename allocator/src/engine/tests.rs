//! Behaviour of the reference engine.

use super::{
    EngineConfig, EngineError, EngineEvent, FlowNumber, FlowSpec, LinkPath, RateEngine, RateUpdate,
    ReferenceEngine,
};
use crate::num::utility::{Class, ClassTable};

const GBIT: f64 = 1e9;

fn engine(capacities_bps: &[f64]) -> ReferenceEngine {
    ReferenceEngine::new(EngineConfig::default(), capacities_bps).expect("a valid engine")
}

/// Share of a link that is allocated with the default threshold of 1 %.
const SHARE: f64 = 0.99;

fn spec(key: u32, links: &[u32]) -> FlowSpec {
    FlowSpec {
        number: FlowNumber::first(key),
        links: links.iter().copied().collect(),
        class: 0,
        weight: 1.0,
        demand_bps: f64::INFINITY,
    }
}

fn start(engine: &mut ReferenceEngine, spec: FlowSpec) {
    engine
        .apply(EngineEvent::Start(spec))
        .expect("a valid flow");
}

fn drain(engine: &mut ReferenceEngine) -> Vec<RateUpdate> {
    let mut updates = Vec::new();
    engine.drain_updates(&mut |update| updates.push(update));
    updates
}

/// Iterates until the engine rests; returns the iterations.
fn settle(engine: &mut ReferenceEngine) -> u32 {
    for iteration in 1..=20_000 {
        if engine.iterate().settled {
            return iteration;
        }
        drain(engine);
    }
    panic!("not settled");
}

fn rate(engine: &ReferenceEngine, key: u32) -> f64 {
    engine
        .rate_bps(FlowNumber::first(key))
        .expect("a known flow")
}

fn near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs().max(1.0)
}

#[test]
fn the_first_rate_leaves_with_the_first_iteration() {
    let mut engine = engine(&[GBIT, GBIT]);
    start(&mut engine, spec(1, &[0, 1]));
    let report = engine.iterate();
    assert_eq!((report.flows, report.updates), (1, 1));
    let updates = drain(&mut engine);
    assert_eq!(updates.len(), 1);
    assert_eq!(updates[0].number, FlowNumber::first(1));
    assert!(
        near(updates[0].rate_bps, SHARE * GBIT, 1e-9),
        "alone, it gets all there is: {updates:?}"
    );
    assert!(drain(&mut engine).is_empty(), "told once");
}

/// With a threshold of 0.01, a flow at 1 Gbit/s is notified again only above 1.01 or below 0.99
/// Gbit/s (flowtune §5.3.2).
#[test]
fn rates_within_the_threshold_are_not_notified_again() {
    let mut engine = engine(&[GBIT / SHARE]);
    start(&mut engine, spec(1, &[0]));
    engine.iterate();
    assert!(near(drain(&mut engine)[0].rate_bps, GBIT, 1e-9));
    let cases = [
        (1.009e9, false),
        (0.991e9, false),
        (1.011e9, true),
        (1.002e9, false),
        (0.999e9, true),
    ];
    for (rate_bps, notified) in cases {
        let capacity_bps = rate_bps / SHARE;
        engine
            .apply(EngineEvent::Capacity {
                link: 0,
                capacity_bps,
            })
            .expect("a valid capacity");
        let mut updates = Vec::new();
        for _ in 0..100 {
            engine.iterate();
            updates.extend(drain(&mut engine));
        }
        assert!(
            near(rate(&engine, 1), rate_bps, 1e-6),
            "allocated {rate_bps}"
        );
        assert_eq!(
            !updates.is_empty(),
            notified,
            "allocated {rate_bps}, told {updates:?}"
        );
    }
}

/// Notified rates never sum to more than a link carries, although some of them are old.
#[test]
fn notified_rates_fit_into_the_whole_capacity() {
    let mut engine = engine(&[GBIT; 9]);
    let mut notified = std::collections::BTreeMap::new();
    for round in 0..400u32 {
        let key = round % 8;
        // One end in three events and eight keys: most starts replace a flow with other weights.
        if round % 3 == 2 {
            if engine
                .apply(EngineEvent::End(FlowNumber::first(key)))
                .is_ok()
            {
                notified.remove(&FlowNumber::first(key));
            }
        } else {
            start(
                &mut engine,
                FlowSpec {
                    weight: 1.0 + f64::from(round % 5) / 100.0,
                    ..spec(key, &[key, 8])
                },
            );
        }
        engine.iterate();
        engine.drain_updates(&mut |update| {
            notified.insert(update.number, update.rate_bps);
        });
        let total: f64 = notified.values().sum();
        assert!(total <= GBIT * (1.0 + 1e-9), "round {round}: {total}");
    }
}

#[test]
fn weights_share_in_proportion_and_the_reserve_is_kept() {
    let config = EngineConfig {
        mice_reserve: 0.1,
        ..EngineConfig::default()
    };
    let mut engine = ReferenceEngine::new(config, &[7.0 * GBIT]).expect("a valid engine");
    for (key, weight) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        start(
            &mut engine,
            FlowSpec {
                weight,
                ..spec(key, &[0])
            },
        );
    }
    settle(&mut engine);
    for (key, weight) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        assert!(near(rate(&engine, key), weight * 0.9 * SHARE * GBIT, 1e-4));
    }
}

#[test]
fn a_failed_link_gives_nothing_and_its_flows_recover() {
    let mut engine = engine(&[GBIT; 4]);
    start(&mut engine, spec(0, &[0, 2]));
    start(&mut engine, spec(1, &[1, 2]));
    start(&mut engine, spec(2, &[1, 3]));
    settle(&mut engine);
    let before: Vec<f64> = (0..3).map(|k| rate(&engine, k)).collect();
    engine
        .apply(EngineEvent::Capacity {
            link: 2,
            capacity_bps: 0.0,
        })
        .expect("a failure");
    engine.iterate();
    let notified = drain(&mut engine);
    assert!(
        notified.contains(&RateUpdate {
            number: FlowNumber::first(0),
            rate_bps: 0.0
        }),
        "{notified:?}"
    );
    settle(&mut engine);
    assert_eq!((rate(&engine, 0), rate(&engine, 1)), (0.0, 0.0));
    assert!(
        near(rate(&engine, 2), SHARE * GBIT, 1e-4),
        "it has the rest of link 1 to itself"
    );
    let mut loads = Vec::new();
    engine.link_loads(&mut loads);
    assert_eq!(loads[2], 0.0);
    engine
        .apply(EngineEvent::Capacity {
            link: 2,
            capacity_bps: GBIT,
        })
        .expect("a repair");
    let taken = settle(&mut engine);
    assert!(taken < 200, "{taken} iterations after the repair");
    for (key, &rate_before) in before.iter().enumerate() {
        assert!(near(rate(&engine, key as u32), rate_before, 1e-3));
    }
}

#[test]
fn reroute_moves_the_load() {
    let mut engine = engine(&[GBIT, GBIT, 2.0 * GBIT]);
    start(&mut engine, spec(0, &[0]));
    start(&mut engine, spec(1, &[0]));
    settle(&mut engine);
    assert!(near(rate(&engine, 0), 0.5 * SHARE * GBIT, 1e-4));
    let links: LinkPath = [2].into_iter().collect();
    engine
        .apply(EngineEvent::Reroute {
            number: FlowNumber::first(1),
            links,
        })
        .expect("a valid way");
    settle(&mut engine);
    assert!(near(rate(&engine, 0), SHARE * GBIT, 1e-4));
    assert!(
        near(rate(&engine, 1), 2.0 * SHARE * GBIT, 1e-4),
        "its cap follows the new path"
    );
}

#[test]
fn a_second_start_replaces_the_first_and_is_notified_again() {
    let mut engine = engine(&[GBIT, GBIT]);
    start(&mut engine, spec(5, &[0]));
    settle(&mut engine);
    drain(&mut engine);
    start(
        &mut engine,
        FlowSpec {
            demand_bps: 0.2 * GBIT,
            ..spec(5, &[1])
        },
    );
    engine.iterate();
    assert_eq!(engine.flow_count(), 1);
    let notified = drain(&mut engine);
    assert_eq!(notified.len(), 1);
    assert!(near(notified[0].rate_bps, 0.2 * GBIT, 1e-9));
    let mut loads = Vec::new();
    engine.link_loads(&mut loads);
    assert_eq!(loads[0], 0.0, "nothing is left of the first");
}

#[test]
fn many_flows_end_at_once() {
    let mut engine = engine(&[GBIT; 2]);
    for i in 0..10 {
        start(
            &mut engine,
            FlowSpec {
                number: FlowNumber::first(i),
                ..spec(0, &[0, 1])
            },
        );
    }
    let odd = EngineEvent::EndAll((0..5).map(|i| FlowNumber::first(2 * i + 1)).collect());
    engine.apply(odd.clone()).expect("always fine");
    assert_eq!(engine.flow_count(), 5);
    engine
        .apply(odd)
        .expect("flows that have ended are passed over");
    settle(&mut engine);
    assert!(near(rate(&engine, 4), SHARE * GBIT / 5.0, 1e-4));
    assert_eq!(engine.rate_bps(FlowNumber::first(3)), None);
}

#[test]
fn reset_forgets_flows_and_takes_the_new_network() {
    let mut engine = engine(&[GBIT]);
    start(&mut engine, spec(0, &[0]));
    settle(&mut engine);
    engine
        .apply(EngineEvent::Reset {
            capacities: vec![GBIT; 3],
            topology: None,
        })
        .expect("a valid network");
    assert_eq!(engine.flow_count(), 0);
    assert!(engine.iterate().settled, "nothing to do");
    start(&mut engine, spec(0, &[2]));
    engine.iterate();
    assert_eq!(drain(&mut engine).len(), 1);
}

/// True for the refusal that is expected.
type Expected = fn(&EngineError) -> bool;

#[test]
fn refused_events_change_nothing() {
    let config = EngineConfig {
        max_flows: 2,
        ..EngineConfig::default()
    };
    let mut engine = ReferenceEngine::new(config, &[GBIT; 2]).expect("a valid engine");
    start(&mut engine, spec(0, &[0]));
    start(&mut engine, spec(1, &[0, 1]));
    settle(&mut engine);
    let before = (rate(&engine, 0), rate(&engine, 1), engine.prices().to_vec());
    let with = |change: &dyn Fn(&mut FlowSpec)| {
        let mut flow = spec(0, &[1]);
        change(&mut flow);
        EngineEvent::Start(flow)
    };
    let capacity = |link, capacity_bps| EngineEvent::Capacity { link, capacity_bps };
    let way = |key, links: &[u32]| EngineEvent::Reroute {
        number: FlowNumber::first(key),
        links: links.iter().copied().collect(),
    };
    let refused: Vec<(EngineEvent, Expected)> = vec![
        (EngineEvent::Start(spec(2, &[0])), |e| {
            *e == EngineError::Full { max_flows: 2 }
        }),
        (EngineEvent::End(FlowNumber::first(9)), |e| {
            *e == EngineError::UnknownFlow(FlowNumber::first(9))
        }),
        (way(9, &[0]), |e| matches!(e, EngineError::UnknownFlow(_))),
        (way(0, &[]), |e| matches!(e, EngineError::BadPath(_))),
        (way(0, &[7]), |e| {
            *e == EngineError::UnknownLink { link: 7, links: 2 }
        }),
        (with(&|f| f.links.clear()), |e| {
            matches!(e, EngineError::BadPath(_))
        }),
        (with(&|f| f.links.push(1)), |e| {
            matches!(e, EngineError::BadPath(_))
        }),
        (with(&|f| f.links[0] = 2), |e| {
            matches!(e, EngineError::UnknownLink { .. })
        }),
        (with(&|f| f.class = 3), |e| {
            *e == EngineError::UnknownClass { class: 3 }
        }),
        (with(&|f| f.weight = f64::NAN), |e| {
            matches!(e, EngineError::BadWeight(_))
        }),
        (with(&|f| f.weight = 0.0), |e| {
            matches!(e, EngineError::BadWeight(_))
        }),
        (with(&|f| f.weight = -1.0), |e| {
            matches!(e, EngineError::BadWeight(_))
        }),
        (with(&|f| f.weight = f64::INFINITY), |e| {
            matches!(e, EngineError::BadWeight(_))
        }),
        (with(&|f| f.demand_bps = f64::NAN), |e| {
            matches!(e, EngineError::BadDemand(_))
        }),
        (with(&|f| f.demand_bps = -1.0), |e| {
            matches!(e, EngineError::BadDemand(_))
        }),
        (capacity(0, f64::NAN), |e| {
            matches!(e, EngineError::BadCapacity(_))
        }),
        (capacity(0, -1.0), |e| {
            matches!(e, EngineError::BadCapacity(_))
        }),
        (capacity(0, f64::INFINITY), |e| {
            matches!(e, EngineError::BadCapacity(_))
        }),
        (capacity(2, GBIT), |e| {
            matches!(e, EngineError::UnknownLink { .. })
        }),
        (
            EngineEvent::Reset {
                capacities: vec![GBIT, f64::NAN],
                topology: None,
            },
            |e| matches!(e, EngineError::BadCapacity(_)),
        ),
    ];
    for (event, expected) in refused {
        let said = engine.apply(event.clone()).expect_err("refused");
        assert!(expected(&said), "{event:?}: {said}");
        assert_eq!(
            (rate(&engine, 0), rate(&engine, 1), engine.prices().to_vec()),
            before,
            "{event:?}"
        );
        assert_eq!(engine.flow_count(), 2);
    }
    assert!(engine.iterate().settled, "still at rest");
    start(&mut engine, spec(1, &[0]));
    assert_eq!(
        engine.flow_count(),
        2,
        "a full table still takes a flow that replaces one"
    );
}

#[test]
fn settings_out_of_range_are_refused() {
    let with = |change: &dyn Fn(&mut EngineConfig)| {
        let mut config = EngineConfig::default();
        change(&mut config);
        ReferenceEngine::new(config, &[GBIT]).err()
    };
    let refused: [(&str, Option<EngineError>); 6] = [
        ("gamma", with(&|c| c.gamma = 0.0)),
        ("gamma", with(&|c| c.gamma = f64::NAN)),
        ("threshold", with(&|c| c.threshold = 0.9)),
        ("mice_reserve", with(&|c| c.mice_reserve = -0.1)),
        ("max_flows", with(&|c| c.max_flows = 0)),
        ("settle_tolerance", with(&|c| c.settle_tolerance = 0.0)),
    ];
    for (setting, error) in refused {
        assert!(matches!(error, Some(EngineError::BadSetting { name, .. }) if name == setting));
    }
}

/// Rates depend neither on the order of arrival nor on flows that came and went meanwhile.
#[test]
fn arrival_order_does_not_matter() {
    let classes = ClassTable::new([
        (0, Class::default()),
        (
            1,
            Class {
                weight: 3.0,
                max_rate_bps: 0.4 * GBIT,
                ..Class::default()
            },
        ),
    ])
    .expect("valid classes");
    let config = EngineConfig {
        classes,
        settle_tolerance: 1e-9,
        ..EngineConfig::default()
    };
    let flows: Vec<FlowSpec> = (0..24u32)
        .map(|key| FlowSpec {
            class: u8::from(key % 5 == 0),
            weight: 1.0 + f64::from(key % 3),
            ..spec(key, &[key % 6, 6 + (key * 7) % 5])
        })
        .collect();
    let run = |order: &mut dyn Iterator<Item = usize>, detour: bool| {
        let mut engine = ReferenceEngine::new(config.clone(), &[GBIT; 11]).expect("a valid engine");
        for index in order {
            start(&mut engine, flows[index].clone());
            if detour {
                start(&mut engine, spec(99, &[index as u32 % 6, 10]));
                engine.iterate();
                engine
                    .apply(EngineEvent::End(FlowNumber::first(99)))
                    .expect("it is there");
            }
        }
        for _ in 0..3000 {
            engine.iterate();
        }
        (0..24).map(|key| rate(&engine, key)).collect::<Vec<_>>()
    };
    let forwards = run(&mut (0..24), false);
    let backwards = run(&mut (0..24).rev(), false);
    let detour = run(&mut (0..24).map(|i| i * 5 % 24), true);
    for (a, (b, c)) in forwards.iter().zip(backwards.iter().zip(&detour)) {
        assert!(near(*b, *a, 1e-7) && near(*c, *a, 1e-7), "{a} {b} {c}");
    }
}

#[test]
fn loads_capacities_and_prices_are_told_in_their_units() {
    let config = EngineConfig {
        mice_reserve: 0.25,
        ..EngineConfig::default()
    };
    let mut engine = ReferenceEngine::new(config, &[8.0 * GBIT, 2.0 * GBIT]).expect("valid");
    assert!(near(engine.derating(), SHARE * 0.75, 1e-12));
    start(&mut engine, spec(1, &[0]));
    start(&mut engine, spec(2, &[0]));
    start(&mut engine, spec(3, &[1]));
    settle(&mut engine);
    let (mut loads, mut capacities, mut prices) = (vec![7.0; 9], vec![7.0; 9], vec![7.0; 9]);
    engine.link_loads(&mut loads);
    engine.link_capacities(&mut capacities);
    engine.link_prices(&mut prices);
    let derated = [8.0, 2.0].map(|gbit| gbit * SHARE * 0.75);
    assert_eq!(loads.len(), 2);
    for link in 0..2 {
        assert!(near(capacities[link], derated[link] * GBIT, 1e-12));
        assert!(near(loads[link], derated[link] * GBIT, 1e-3));
        // A log flow of weight 1 pays its rate's inverse, in Gbit/s.
        let flows = if link == 0 { 2.0 } else { 1.0 };
        assert!((prices[link] * derated[link] / flows - 1.0).abs() < 1e-2);
    }
    assert_eq!(prices, engine.prices());
    assert_eq!(engine.flow_count(), 3);
    assert!(engine.optimality().relative_duality_gap < 1e-3);
    assert_eq!(engine.optimality().rated_flows, 3);
}

/// No endpoint would notice what still moves.
#[test]
fn an_engine_rests_after_a_thousand_iterations_that_tell_nothing() {
    let config = EngineConfig {
        settle_tolerance: f64::MIN_POSITIVE,
        ..EngineConfig::default()
    };
    let mut engine = ReferenceEngine::new(config, &[GBIT, GBIT]).expect("valid");
    assert!(engine.iterate().settled, "it has no flows");
    start(&mut engine, spec(1, &[0]));
    start(&mut engine, spec(2, &[0, 1]));
    start(&mut engine, spec(3, &[1]));
    let (mut told_at, mut iteration) = (0, 0);
    loop {
        iteration += 1;
        let report = engine.iterate();
        let told = drain(&mut engine).len();
        assert_eq!(report.updates, told);
        assert_eq!(report.flows, 3);
        if told > 0 {
            told_at = iteration;
            assert!(!report.settled);
        }
        if report.settled {
            break;
        }
    }
    assert!(told_at > 0 && iteration <= told_at + 1_000);
}
