//! Compaction: rack-pair rows, and the order of upward rows.

use std::sync::Mutex;

use super::cell::Slots;
use super::flow_block::FlowBlock;
use super::rows::{FlowRows, RelativePos};
use super::sync::lock;
use super::tests::{
    Sketch, capacities, compare, fits, parallel, reference, settle, start, two_tiers,
};
use super::*;
use crate::engine::{FlowNumber, ReferenceEngine};

const RACKS: u32 = 4;
const RACK_HOSTS: u32 = 20;

/// Flow `number` of forty between each pair of racks.
fn flow(number: u32) -> Sketch {
    let (pair, turn) = (number % (RACKS * RACKS), number / (RACKS * RACKS));
    let host = |rack: u32, step: u32| rack * RACK_HOSTS + turn * step % RACK_HOSTS;
    Sketch {
        source: host(pair / RACKS, 7),
        destination: host(pair % RACKS, 3),
        hash: pair + turn,
        weight: if number.is_multiple_of(11) { 2.5 } else { 1.0 },
        class: 0,
        demand_bps: if number.is_multiple_of(13) {
            4e8
        } else {
            f64::INFINITY
        },
    }
}

fn numbers() -> impl Iterator<Item = u32> {
    let apart = |number: &u32| {
        let sketch = flow(*number);
        sketch.source / RACK_HOSTS != sketch.destination / RACK_HOSTS
    };
    (0..40 * RACKS * RACKS).filter(apart)
}

fn rack_pair_flows(engine: &ParallelEngine) -> u32 {
    let of_block = |block: &Mutex<FlowBlock>| {
        let block = lock(block);
        block
            .pairs
            .down
            .used
            .iter()
            .map(|used| used.count_ones())
            .sum::<u32>()
    };
    engine.shared.flow_blocks.iter().map(of_block).sum()
}

fn shapes(topology: &Topology) -> Vec<ParallelEngine> {
    let of_simd = |simd| [(1, 1), (2, 2)].map(|(blocks, workers)| (blocks, workers, simd));
    let shapes = Simd::available().into_iter().flat_map(of_simd);
    shapes
        .map(|(blocks, workers, simd)| parallel(topology, blocks, workers, simd))
        .collect()
}

fn agree(engine: &mut ParallelEngine, exact: &mut ReferenceEngine, left: &[u32]) {
    assert!(settle(engine), "it comes to rest");
    assert!(settle(exact), "it comes to rest");
    compare(engine, exact, left.iter().copied()).expect("the same rates");
    fits(engine).expect("no link is too full");
}

#[test]
fn flows_that_share_both_racks_form_rows_and_leave_them() {
    let topology = two_tiers(RACKS, RACK_HOSTS, 8);
    let all: Vec<u32> = numbers().collect();
    for mut engine in shapes(&topology) {
        let mut exact = reference(&topology);
        let apply =
            |engine: &mut ParallelEngine, exact: &mut ReferenceEngine, event: EngineEvent| {
                engine.apply(event.clone()).expect("a valid event");
                exact.apply(event).expect("a valid event");
            };
        for &number in &all {
            apply(
                &mut engine,
                &mut exact,
                start(&topology, number, &flow(number)),
            );
        }
        agree(&mut engine, &mut exact, &all);
        assert!(
            rack_pair_flows(&engine) as usize * 3 > all.len() * 2,
            "{} of {} share rows",
            rack_pair_flows(&engine),
            all.len()
        );

        // A slower link changes the saturation prices of flows in such rows; new flows fill their
        // gaps.
        let capacity_bps = capacities(&topology)[3] / 4.0;
        apply(
            &mut engine,
            &mut exact,
            EngineEvent::Capacity {
                link: 3,
                capacity_bps,
            },
        );
        for &number in all.iter().filter(|&number| number % 3 == 0) {
            apply(
                &mut engine,
                &mut exact,
                EngineEvent::End(FlowNumber::first(number)),
            );
        }
        for &number in all.iter().filter(|&number| number % 6 == 0) {
            apply(
                &mut engine,
                &mut exact,
                start(&topology, number, &flow(number)),
            );
        }
        let left: Vec<u32> = all
            .iter()
            .copied()
            .filter(|n| n % 3 != 0 || n % 6 == 0)
            .collect();
        agree(&mut engine, &mut exact, &left);

        // Few flows are left of each pair: no row is worth its cost.
        for &number in left.iter().filter(|&number| number / (RACKS * RACKS) > 2) {
            apply(
                &mut engine,
                &mut exact,
                EngineEvent::End(FlowNumber::first(number)),
            );
        }
        let left: Vec<u32> = left
            .into_iter()
            .filter(|n| n / (RACKS * RACKS) <= 2)
            .collect();
        agree(&mut engine, &mut exact, &left);
        // Enough iterations to compact every table.
        for _ in 0..RACKS * RACKS {
            engine.iterate();
        }
        assert_eq!(rack_pair_flows(&engine), 0);
    }
}

#[test]
fn upward_rows_hold_flows_to_neighbouring_racks() {
    const MANY_RACKS: u32 = 24;
    let topology = two_tiers(MANY_RACKS, 16, 8);
    let mut engine = parallel(&topology, 1, 1, Simd::best());
    let hosts = MANY_RACKS * 16;
    for number in 0..5_000u32 {
        let source = number.wrapping_mul(0x9e37_79b9) >> 8;
        let sketch = Sketch {
            source: source % hosts,
            destination: (source / hosts) % hosts,
            hash: number,
            weight: 1.0,
            class: 0,
            demand_bps: f64::INFINITY,
        };
        if sketch.source / 16 != sketch.destination / 16 {
            engine
                .apply(start(&topology, number, &sketch))
                .expect("a valid event");
        }
    }
    // Enough iterations to compact every table.
    for _ in 0..2 * MANY_RACKS {
        engine.iterate();
    }
    let block = lock(&engine.shared.flow_blocks[0]);
    let disordered = (0..block.up.tables()).filter(|&table| block.lost_destination_order(table));
    assert_eq!(disordered.count(), 0);
}

/// A hundred flows over two fabric links: at most four fit a row, in any order.
#[test]
fn rows_that_fabric_links_keep_from_filling_are_not_underfilled() {
    let mut rows = FlowRows::new(1, false);
    let cells: Vec<_> = (0..100u8)
        .map(|number| {
            let slots = Slots {
                host: number % 16,
                fabric: number % 2,
                no_fabric: false,
                plane: None,
            };
            let free = rows.insert(0, slots, RelativePos::FIRST);
            free.or_else(|| rows.insert_in_new(0, slots, RelativePos::FIRST, 100))
        })
        .map(|cell| cell.expect("there is room for more rows"))
        .collect();
    assert_eq!(rows.rows_of(0).len(), 25);
    assert!(!rows.is_underfilled(0), "no fewer rows would do");
    // One of each row's two flows over either link leaves.
    cells
        .chunks(4)
        .flat_map(|of_row| &of_row[..2])
        .for_each(|&cell| rows.remove(cell));
    assert!(rows.is_underfilled(0), "half as many rows would do");
}
