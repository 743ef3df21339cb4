//! A FlowBlock by itself: states and cells while flows are displaced.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cell::{CellState, FlowEnd, SaturationPrice, Slots, split};
use super::flow_block::{CellTerms, FlowBlock};
use super::kernels::{Kernels, PassSettings, Scratch, Side, Simd};
use super::lanes::CellIndex;
use super::layout::{FlowBlockShape, LinkBlockShape};
use super::link_block::{LinkBlock, LinkBlockCopy};
use super::rows::ROW_FLOWS;

const TABLES: u16 = 6;
const FLOWS: u32 = 900;

/// Flow `number`, between two of the six racks, over one of twelve spines.
fn flow(number: u32) -> ([FlowEnd; 2], CellState) {
    let mut random = number.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
    let mut below = |bound: u32| {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random % bound
    };
    let mut end = |fabric: u8| FlowEnd {
        table: below(u32::from(TABLES)) as u16,
        slots: Slots {
            host: below(48) as u8,
            fabric,
            no_fabric: false,
            plane: None,
        },
    };
    // Different fabric slots on both sides, so that no flow fits a rack-pair row.
    let ends = [end((number % 12) as u8), end((number % 11 + 5) as u8)];
    let state = CellState {
        flow: number,
        weight: 1.0 + (number % 4) as f32,
        demand: if number.is_multiple_of(5) {
            number as f32
        } else {
            f32::INFINITY
        },
        saturation_price: SaturationPrice(if number.is_multiple_of(5) { -0.5 } else { 0.25 }),
        rate: number as f32,
        notified: number as f32 + 0.5,
    };
    (ends, state)
}

fn is_kept(block: &FlowBlock, cells: &BTreeMap<u32, CellIndex>) {
    assert_eq!(block.flows(), cells.len());
    for (&number, &cell) in cells {
        let (ends, state) = flow(number);
        assert_eq!(block.state(cell), state);
        assert_eq!(block.ends(cell), ends, "flow {number}");
        let (row, lane) = split(cell);
        let up = block.up_cell[row].0[lane];
        assert_eq!(block.down_cell_of(up), cell);
    }
}

#[test]
fn flows_make_room_for_one_another_before_a_row_is_opened() {
    let shape = FlowBlockShape {
        links: [0, 1],
        core_links: None,
    };
    let mut block = FlowBlock::new(shape, [usize::from(TABLES); 2]);
    let mut cells = BTreeMap::new();
    let mut moves = 0;
    for number in 0..FLOWS {
        let (ends, state) = flow(number);
        let cell = block.insert(ends, state, &mut |moved, cell| {
            assert!(cells.insert(moved, cell).is_some(), "a flow that is there");
            moves += 1;
        });
        cells.insert(number, cell.expect("room"));
    }
    assert!(moves > 0, "some flow had to move");
    is_kept(&block, &cells);
    // First fit alone needs 12 or 13 rows for a rack's 150 flows; full rows would be 10.
    for side in [&block.up, &block.down] {
        for table in 0..usize::from(TABLES) {
            let flows = side.cells(table).count();
            let rows = side.rows_of(table).len();
            let full = flows.div_ceil(ROW_FLOWS as usize);
            assert!(rows <= full + 1, "{rows} rows for {flows} flows");
        }
    }
    // New flows displace others into the gaps, too.
    for number in (0..FLOWS).filter(|number| number % 3 == 0) {
        block.remove(cells.remove(&number).expect("it is there"));
    }
    is_kept(&block, &cells);
    for number in FLOWS..FLOWS + FLOWS / 3 {
        let (ends, state) = flow(number);
        let mut now = BTreeMap::new();
        let cell = block.insert(ends, state, &mut |moved, cell| {
            now.insert(moved, cell);
        });
        cells.append(&mut now);
        cells.insert(number, cell.expect("room"));
    }
    is_kept(&block, &cells);
}

/// A FlowBlock with flows of all terms in rows by rack and by pairs of racks.
fn filled() -> FlowBlock {
    let shape = FlowBlockShape {
        links: [0, 1],
        core_links: None,
    };
    let mut block = FlowBlock::new(shape, [usize::from(TABLES); 2]);
    for number in 0..FLOWS {
        let (ends, state) = flow(number);
        let cell = block.insert(ends, state, &mut |_, _| {});
        assert!(cell.is_some(), "room");
    }
    let ([up, mut down], state) = flow(FLOWS);
    down.slots.fabric = up.slots.fabric;
    let row = block.pairs.open(&[up, down], block.down.len());
    block.insert_in_pair_row(row.expect("room"), [up, down], &state);
    block
}

/// Passes over a FlowBlock and collects its notifications; returns what the two panic with.
fn panics(simd: Simd, block: &mut FlowBlock, scratch: &mut Scratch) -> [Option<&'static str>; 2] {
    let tables = usize::from(TABLES);
    let mut shape = LinkBlockShape::default();
    shape.tables = tables;
    let links = LinkBlock::new(&shape, 1.0);
    let mut copies = [(); 2].map(|()| LinkBlockCopy::new(tables));
    let sides = copies.each_mut().map(|copy| Side {
        links: &links,
        copy,
        core: None,
    });
    let settings = PassSettings {
        normalize: true,
        rates: true,
        threshold: 0.01,
        exceeds_cache: false,
        shared_links: false,
        many_updates: false,
    };
    let kernels = Kernels::new(simd);
    let passed = catch_unwind(AssertUnwindSafe(|| {
        kernels.run(settings, block, sides, scratch);
    }));
    let collected = catch_unwind(AssertUnwindSafe(|| {
        kernels.collect(block, scratch, &mut Vec::new());
    }));
    [passed, collected].map(|result| {
        let panic = result.err()?;
        Some(panic.downcast_ref().copied().unwrap_or("something else"))
    })
}

/// The kernels look rows up without checks: what a panic between two lists' growth leaves must not
/// reach them.
#[test]
fn a_list_that_is_shorter_than_the_rows_is_found_before_a_pass() {
    fn cut<T>(list: &mut Vec<T>, rows: usize) {
        list.truncate(rows - 1);
    }
    let cuts: [fn(&mut FlowBlock, &mut CellTerms); 18] = [
        |block, _| cut(&mut block.rate, block.down.len()),
        |block, _| cut(&mut block.notified, block.down.len()),
        |block, _| cut(&mut block.flow, block.down.len()),
        |block, _| cut(&mut block.up_cell, block.down.len()),
        |block, _| cut(&mut block.down_cell_low, block.up.len()),
        |block, _| block.up.used.clear(),
        |block, _| block.down.used.clear(),
        |block, _| cut(&mut block.pairs.rate, block.pairs.down.len()),
        |block, _| cut(&mut block.pairs.notified, block.pairs.down.len()),
        |block, _| cut(&mut block.pairs.flow, block.pairs.down.len()),
        |block, _| block.pairs.up.used.clear(),
        |block, _| block.pairs.down.used.clear(),
        |block, terms| cut(&mut terms.down.weight, block.down.len()),
        |block, terms| cut(&mut terms.down.saturation_price, block.down.len()),
        |block, terms| cut(&mut terms.down.demand, block.down.len()),
        |block, terms| cut(&mut terms.pairs.weight, block.pairs.len()),
        |block, terms| cut(&mut terms.pairs.saturation_price, block.pairs.len()),
        |block, terms| cut(&mut terms.pairs.demand, block.pairs.len()),
    ];
    for simd in Simd::available() {
        for (at, cut) in cuts.into_iter().enumerate() {
            let mut block = filled();
            let mut scratch = Scratch::default();
            let none = [None; 2];
            assert_eq!(panics(simd, &mut block, &mut scratch), none, "{simd:?}");
            let mut terms = block.terms.take().expect("flows of other weights");
            cut(&mut block, &mut terms);
            block.terms = Some(terms);
            let found = [Some("lists of a FlowBlock are shorter than its rows"); 2];
            let said = panics(simd, &mut block, &mut scratch);
            assert_eq!(said, found, "{simd:?}, list {at}");
        }
    }
}
