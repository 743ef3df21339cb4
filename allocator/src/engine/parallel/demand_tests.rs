//! Demands in rows, hosts with very many flows, and sessions that end.

use super::cell::SaturationPrice;
use super::flows::derating;
use super::kernels::Kernels;
use super::link_block::{LinkBlock, LinkBlockCopy};
use super::price_update::{FIRST_PRICE, UpdateRule};
use super::sync::write;
use super::tests::{
    Sketch, capacities, compare, fits, parallel, reference, settle, start, two_tiers,
};
use super::*;
use crate::engine::{FlowNumber, LinkPath, ReferenceEngine};
use crate::num::utility::{AlphaFair, Class, ClassTable, UtilityKind};
use ratewright_topology::ThreeTierClos;

fn sketch(source: u32, destination: u32) -> Sketch {
    Sketch {
        source,
        destination,
        hash: 7,
        weight: 1.0,
        class: 0,
        demand_bps: f64::INFINITY,
    }
}

fn capped(source: u32, destination: u32, demand_bps: f64) -> Sketch {
    Sketch {
        demand_bps,
        ..sketch(source, destination)
    }
}

fn notified(engine: &mut ParallelEngine) -> Vec<(u32, f64)> {
    let mut notified = Vec::new();
    engine.iterate();
    engine.drain_updates(&mut |update| notified.push((update.number.index(), update.rate_bps)));
    notified
}

/// A changed demand leaves its flow in its cell. Freed capacity goes to the others, and a raised
/// demand is notified in the next iteration. Rates fit the links throughout.
#[test]
fn a_demand_changes_in_place_and_its_capacity_is_handed_on() {
    let topology = two_tiers(4, 6, 2);
    for simd in Simd::available() {
        for workers in [1, 2] {
            let mut engine = parallel(&topology, 2, workers, simd);
            let of_flow = |key: u32, demand| start(&topology, key, &capped(key, 23, demand));
            for key in 0..4 {
                engine.apply(of_flow(key, f64::INFINITY)).expect("valid");
            }
            assert!(settle(&mut engine));
            engine.drain_updates(&mut |_| ());
            let locations: Vec<_> = (0..4).map(|key| location_of(&engine, key)).collect();
            let all = 10e9 * derating(&config());
            engine.apply(of_flow(0, 1e8)).expect("valid");
            let first = notified(&mut engine);
            assert!(
                first
                    .iter()
                    .any(|&(key, rate)| key == 0 && rate <= 1e8 * 1.001),
                "{first:?}"
            );
            fits(&engine).expect("it fits");
            assert!(settle(&mut engine));
            let rate = |engine: &ParallelEngine, key| {
                engine
                    .rate_bps(FlowNumber::first(key))
                    .expect("it is there")
            };
            let near = |rate: f64, exact: f64| (rate - exact).abs() <= 1e-3 * exact;
            assert!(near(rate(&engine, 0), 1e8));
            for key in 1..4 {
                assert!(near(rate(&engine, key), (all - 1e8) / 3.0));
            }
            engine.drain_updates(&mut |_| ());
            engine.apply(of_flow(0, f64::INFINITY)).expect("valid");
            let next = notified(&mut engine);
            let (_, first_rate) = *next.iter().find(|(key, _)| *key == 0).expect("it is told");
            // A first rate fits beside the others' last ones; theirs fall in the next iteration.
            let of_share = first_rate / (all / 4.0);
            assert!((0.75..1.001).contains(&of_share), "{of_share}");
            fits(&engine).expect("it fits");
            assert!(settle(&mut engine));
            assert!((0..4).all(|key| near(rate(&engine, key), all / 4.0)));
            assert_eq!(
                locations,
                (0..4)
                    .map(|key| location_of(&engine, key))
                    .collect::<Vec<_>>()
            );
            assert_eq!(engine.flows_in_rows(), 4);
        }
    }
}

fn config() -> EngineConfig {
    EngineConfig::default()
}

fn location_of(engine: &ParallelEngine, key: u32) -> directory::Location {
    let flow = engine
        .flows
        .directory
        .find(FlowNumber::first(key))
        .expect("it is there");
    engine.flows.directory.location(flow)
}

/// Demands that change and flows that end, several times between two iterations, count once each.
#[test]
fn several_changes_between_two_iterations_are_one() {
    let topology = two_tiers(4, 6, 2);
    let mut engine = parallel(&topology, 2, 1, Simd::best());
    let mut exact = reference(&topology);
    for key in 0..12 {
        for engine in [&mut engine as &mut dyn RateEngine, &mut exact] {
            engine
                .apply(start(&topology, key, &sketch(key % 6, 23)))
                .expect("valid");
        }
    }
    assert!(settle(&mut engine) && settle(&mut exact));
    // The keys share a few hosts, so that every flow competes with every other.
    let again = |key: u32, demand| start(&topology, key, &capped(key % 6, 23, demand));
    let events = [
        again(0, 1e7),
        again(0, 2e9),
        again(0, 3e7),
        again(1, 1e7),
        EngineEvent::End(FlowNumber::first(1)),
        again(2, 5e8),
        EngineEvent::Reroute {
            number: FlowNumber::first(2),
            links: path_of(&topology, 8, 15),
        },
        again(12, 1e9),
        again(12, 2e8),
        again(13, 1e9),
        EngineEvent::End(FlowNumber::first(13)),
        EngineEvent::EndAll(vec![FlowNumber::first(7), FlowNumber::first(12)]),
    ];
    for event in events {
        engine.apply(event.clone()).expect("valid");
        exact.apply(event).expect("valid");
    }
    for _ in 0..20 {
        engine.iterate();
        fits(&engine).expect("it fits at each iteration");
    }
    assert!(settle(&mut engine) && settle(&mut exact));
    assert_eq!(engine.flow_count(), exact.flow_count());
    compare(&engine, &exact, 0..14).expect("the same rates");
}

fn path_of(topology: &Topology, source: u32, destination: u32) -> LinkPath {
    let EngineEvent::Start(spec) = start(topology, 0, &sketch(source, destination)) else {
        panic!("a start");
    };
    spec.links
}

/// Links whose flows are all far inside their demands, and too many, find their prices from almost
/// 0.
#[test]
fn demands_that_no_link_holds_are_cut_to_the_optimum() {
    let topology = two_tiers(4, 6, 2);
    for simd in Simd::available() {
        let mut engine = parallel(&topology, 2, 1, simd);
        let mut exact = reference(&topology);
        // Alone, the first flows leave prices at 0.
        for (keys, demand) in [(0..5, 1e8), (5..60, 5e8)] {
            for key in keys {
                let event = start(&topology, key, &capped(key % 18, 23, demand));
                engine.apply(event.clone()).expect("valid");
                exact.apply(event).expect("valid");
            }
            for _ in 0..30 {
                engine.iterate();
                fits(&engine).expect("it fits at each iteration");
            }
            assert!(settle(&mut engine) && settle(&mut exact));
            compare(&engine, &exact, 0..60).expect("the same rates");
        }
        assert_eq!(engine.flows_in_rows(), 60);
    }
}

/// Rows hold log classes of any weight, with and without bounds.
#[test]
fn every_log_class_is_in_rows() {
    let topology = two_tiers(4, 6, 2);
    let class = |weight, max_rate_bps| Class {
        weight,
        max_rate_bps,
        ..Class::default()
    };
    let classes = [
        (0, class(1.0, f64::INFINITY)),
        (1, class(2.0, f64::INFINITY)),
        (2, class(4.0, 5e8)),
    ];
    let config = EngineConfig {
        classes: ClassTable::new(classes).expect("valid"),
        ..EngineConfig::default()
    };
    let layout = Layout::of(&topology, 2).expect("it can be cut");
    let options = ParallelOptions::default();
    let mut engine =
        ParallelEngine::new(config, options, layout, &capacities(&topology)).expect("valid");
    for key in 0..9 {
        let of_class = Sketch {
            class: (key % 3) as u8,
            ..sketch(key, 23)
        };
        engine
            .apply(start(&topology, key, &of_class))
            .expect("valid");
    }
    assert!(settle(&mut engine));
    assert_eq!(engine.flows_in_rows(), 9);
    let all = 10e9 * derating(&EngineConfig::default());
    let rate = |key| engine.rate_bps(FlowNumber::first(key)).expect("there");
    let left = (all - 1.5e9) / 9.0;
    assert!((rate(0) / left - 1.0).abs() < 1e-3);
    assert!((rate(1) / (2.0 * left) - 1.0).abs() < 1e-3);
    assert!((rate(2) / 5e8 - 1.0).abs() < 1e-3);
}

/// Checks that no link is over-allocated, up to the rounding of sums of thousands of rates in
/// single precision. The derating by the threshold is a hundred times that.
fn holds(engine: &ParallelEngine) {
    let (mut loads, mut capacities) = (Vec::new(), Vec::new());
    engine.link_loads(&mut loads);
    engine.link_capacities(&mut capacities);
    for (load, capacity) in loads.iter().zip(&capacities) {
        assert!(*load <= capacity * (1.0 + 1e-4), "{load} of {capacity}");
    }
}

/// A host with more flows to one receiver than there are rows leaves rows to other hosts. Its
/// overflow is counted, has rates, and returns to rows once flows have ended.
#[test]
fn a_host_with_very_many_flows_leaves_rows_to_others() {
    const HOT: u32 = 16_384;
    let topology = two_tiers(4, 6, 2);
    let mut engine = parallel(&topology, 1, 1, Simd::best());
    for key in 0..HOT {
        engine
            .apply(start(&topology, key, &sketch(0, 6)))
            .expect("valid");
    }
    engine.iterate();
    let overflow = engine.exceptions().flows_without_room;
    assert!(overflow > 0, "they take more rows than there are for them");
    for key in HOT..HOT + 300 {
        let other = sketch(12 + key % 6, 18 + key / 6 % 6);
        engine.apply(start(&topology, key, &other)).expect("valid");
    }
    engine.iterate();
    assert_eq!(
        engine.exceptions().flows_without_room,
        overflow,
        "the others' flows are in rows"
    );
    for _ in 0..60 {
        engine.iterate();
    }
    holds(&engine);
    let share = 10e9 * derating(&EngineConfig::default()) / f64::from(HOT);
    for key in [0, HOT / 2, HOT - 1] {
        let rate = engine.rate_bps(FlowNumber::first(key)).expect("there");
        assert!((rate / share - 1.0).abs() < 0.01, "{rate} of {share}");
    }
    for key in 0..HOT - 4_000 {
        engine
            .apply(EngineEvent::End(FlowNumber::first(key)))
            .expect("there");
    }
    // Retries take a few flows per iteration, hence hundreds of iterations.
    for _ in 0..400 {
        engine.iterate();
    }
    assert_eq!(
        engine.exceptions().flows_without_room,
        0,
        "rows have closed"
    );
    assert_eq!(engine.flows_in_rows(), engine.flow_count());
    holds(&engine);
}

/// Flows that end in one event leave the others as they are, and their indexes to later ones.
#[test]
fn many_flows_that_end_at_once_leave_the_others() {
    let topology = two_tiers(4, 6, 2);
    let mut engine = parallel(&topology, 2, 1, Simd::best());
    let spec = |number: FlowNumber| {
        let flow = number.index();
        let EngineEvent::Start(mut spec) = start(&topology, 0, &sketch(flow % 6, 6 + flow % 18))
        else {
            panic!("a start");
        };
        spec.number = number;
        EngineEvent::Start(spec)
    };
    for flow in 0..20_000 {
        engine.apply(spec(FlowNumber::first(flow))).expect("valid");
    }
    engine.iterate();
    engine.drain_updates(&mut |_| ());
    let every_40th: Vec<FlowNumber> = (0..500).map(|flow| FlowNumber::first(40 * flow)).collect();
    for left in [19_500, 19_500] {
        engine
            .apply(EngineEvent::EndAll(every_40th.clone()))
            .expect("always fine");
        assert_eq!(engine.flow_count(), left);
    }
    engine.iterate();
    holds(&engine);
    // The same index with another generation is another flow.
    let (former, later) = (FlowNumber::first(40), FlowNumber::new(40, 2));
    engine.apply(spec(later)).expect("valid");
    engine.iterate();
    assert_eq!(
        engine.apply(EngineEvent::End(former)),
        Err(EngineError::UnknownFlow(former))
    );
    assert_eq!(engine.rate_bps(former), None);
    assert!(engine.rate_bps(later).is_some());
    assert_eq!(engine.flow_count(), 19_501);
    holds(&engine);
}

/// A price that is not a number is reset and counted. A load that is not a number makes the scale
/// 0.
#[test]
fn what_is_no_number_does_not_spread() {
    let topology = two_tiers(4, 6, 2);
    let layout = Layout::of(&topology, 1).expect("it can be cut");
    for simd in Simd::available() {
        for safeguarded in [true, false] {
            let shape = &layout.shapes[0];
            let mut links = LinkBlock::new(shape, 0.4);
            for slot in 0..6 {
                links.set_capacity(slot, 10.0);
            }
            links.set_price(1, f32::NAN);
            links.set_price(2, f32::INFINITY);
            let mut copy = LinkBlockCopy::new(shape.tables);
            for slot in 0..6 {
                copy.add(slot, 5.0, 5.0, 5.0);
            }
            copy.load.as_flattened_mut()[0].0[3] = f32::NAN;
            let rule = UpdateRule {
                gamma: 0.4,
                safeguarded,
            };
            let report = Kernels::new(simd).update(&mut links, rule, &[&copy]);
            // NED resets by itself: max(0, NaN) is 0.
            assert_eq!(report.resets, u32::from(safeguarded), "{report:?}");
            for slot in 0..6 {
                let (price, norm_scale) = (links.price(slot), links.norm_scale(slot));
                assert!((0.0..=1e30).contains(&price), "{simd:?} {slot}: {price}");
                assert!(norm_scale.is_finite(), "{simd:?} {slot}: {norm_scale}");
            }
            assert_eq!(links.price(1), if safeguarded { FIRST_PRICE } else { 0.0 });
            assert_eq!(links.norm_scale(3), 0.0);
        }
    }
}

/// A price that is not a number harms its own link until the next update, and nothing later.
#[test]
fn an_engine_recovers_from_a_price_that_is_no_number() {
    let topology = two_tiers(4, 6, 2);
    for simd in Simd::available() {
        let mut engine = parallel(&topology, 2, 1, simd);
        let mut exact = reference(&topology);
        for key in 0..40 {
            let event = start(&topology, key, &sketch(key % 12, 12 + key % 12));
            engine.apply(event.clone()).expect("valid");
            exact.apply(event).expect("valid");
        }
        assert!(settle(&mut engine) && settle(&mut exact));
        let place = engine.shared.layout.place(path_of(&topology, 0, 12)[0]);
        // Poisoned behind the engine's back; an event makes the next iteration use it.
        write(&engine.shared.link_blocks[usize::from(place.link_block)])
            .set_price(place.index as usize, f32::NAN);
        engine.state = EngineState::Disturbed;
        for _ in 0..50 {
            engine.iterate();
            fits(&engine).expect("it fits");
        }
        assert!(engine.exceptions().price_resets > 0);
        assert!(settle(&mut engine));
        compare(&engine, &exact, 0..40).expect("the same rates");
    }
}

#[test]
fn saturation_prices_are_bounded_and_name_their_bound() {
    assert_eq!(
        SaturationPrice::new(2.0, f64::INFINITY, 10.0),
        SaturationPrice(0.2)
    );
    assert_eq!(SaturationPrice::new(2.0, 5.0, 10.0), SaturationPrice(-0.4));
    assert_eq!(SaturationPrice::new(2.0, 10.0, 10.0), SaturationPrice(0.2));
    for (weight, demand, capacity) in [
        (1.0, 0.0, 10.0),
        (1.0, 1.0, 0.0),
        (1e12, 1e-9, 1.0),
        (1e-12, 9.0, 1e12),
    ] {
        let saturation_price = SaturationPrice::new(weight, demand, capacity);
        assert!(
            saturation_price.price() >= 1e-18 && saturation_price.price() <= 1e30,
            "{saturation_price:?}"
        );
        assert_eq!(saturation_price.is_demand_bound(), demand < capacity);
    }
}

/// A path of six full links, crossed by an α-fair flow, a log flow and small log flows with
/// demands: both engines come to rest, at the same rates. Prices that rise together by more than a
/// factor of two overshoot together, and fall together, for ever.
#[test]
fn equally_full_links_of_one_path_come_to_rest() {
    let topology = ThreeTierClos {
        pods: 4,
        racks_per_pod: 2,
        hosts_per_rack: 4,
        aggs_per_pod: 2,
        cores: 10,
        fabric_capacity_bps: 10_000_000_000,
        core_capacity_bps: 10_000_000_000,
        ..ThreeTierClos::default()
    }
    .build()
    .expect("valid");
    let capacities = capacities(&topology);
    let gbps = |demand: u32| match demand {
        10 => f64::INFINITY,
        demand => f64::from(demand) * 1e9,
    };
    for (alpha, simd) in [0.5, 2.0, 4.0, 8.0]
        .into_iter()
        .flat_map(|alpha| Simd::available().into_iter().map(move |simd| (alpha, simd)))
    {
        let utility = UtilityKind::Alpha(AlphaFair::new(alpha).expect("valid"));
        let alpha_fair = Class {
            utility,
            ..Class::default()
        };
        let config = EngineConfig {
            classes: ClassTable::new([(0, Class::default()), (1, alpha_fair)]).expect("valid"),
            ..EngineConfig::default()
        };
        let options = ParallelOptions {
            workers: 1,
            simd,
            ..ParallelOptions::default()
        };
        let cases = [0.25, 1.0, 4.0].into_iter().flat_map(|weight| {
            (1..=10).flat_map(move |of_alpha| {
                (1..=10).flat_map(move |of_log| [0, 1, 3].map(|n| (weight, of_alpha, of_log, n)))
            })
        });
        for case @ (weight, of_alpha, of_log, small) in cases {
            let layout = Layout::of(&topology, 2).expect("it can be cut so");
            let mut engine =
                ParallelEngine::new(config.clone(), options.clone(), layout, &capacities)
                    .expect("valid");
            let mut exact = ReferenceEngine::new(config.clone(), &capacities).expect("valid");
            let of_class_1 = Sketch {
                class: 1,
                ..capped(0, 31, gbps(of_alpha))
            };
            let of_class_0 = Sketch {
                weight,
                ..capped(0, 31, gbps(of_log))
            };
            let small = (0..small).map(|_| capped(12, 31, 1e9));
            let sketches = [of_class_1, of_class_0].into_iter().chain(small);
            for (key, sketch) in sketches.enumerate() {
                for engine in [&mut engine as &mut dyn RateEngine, &mut exact] {
                    engine
                        .apply(start(&topology, key as u32, &sketch))
                        .expect("valid");
                }
            }
            assert!(
                settle(&mut engine) && settle(&mut exact),
                "no rest: alpha {alpha}, {simd:?}, {case:?}"
            );
            compare(&engine, &exact, 0..5).expect("the same rates");
        }
    }
}
