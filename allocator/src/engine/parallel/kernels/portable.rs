//! Kernels in plain Rust: reference of the vector kernels, and their substitute on machines without
//! any.

use super::{PassSettings, Scratch, Side, at_demand};
use crate::engine::parallel::cell::{SaturationPrice, split};
use crate::engine::parallel::dirty_links::LinkVector;
use crate::engine::parallel::flow_block::{FlowBlock, RowTerms};
use crate::engine::parallel::lanes::{
    CellIndex, HOST_SLOTS, LANES, LinkTable, TABLE_SLOTS, at_mut,
};
use crate::engine::parallel::link_block::LinkBlockCopy;
use crate::engine::parallel::rack_pair_rows::RackPairRows;
use crate::engine::parallel::rows::FlowRows;

/// Slots of a flow: host, fabric link, and core link in the pod's table.
#[derive(Clone, Copy)]
struct FlowSlots {
    table: [usize; 2],
    core: Option<usize>,
}

#[inline(always)]
fn slots<const CORES: bool>(set: &FlowRows, row: usize, lane: usize) -> FlowSlots {
    let slots = set.slots((row * LANES + lane) as CellIndex);
    let fabric = usize::from(slots.fabric);
    FlowSlots {
        table: [usize::from(slots.host), HOST_SLOTS + fabric],
        core: if CORES {
            slots.plane.map(|plane| usize::from(plane) * LANES + fabric)
        } else {
            None
        },
    }
}

#[inline(always)]
fn get(table: &LinkTable, slot: usize) -> f32 {
    table[slot / LANES].0[slot % LANES]
}

/// Price and F-NORM scale of one half of a path.
#[inline(always)]
fn half(side: &Side<'_>, table: usize, slots: FlowSlots) -> [f32; 2] {
    let (prices, norm_scales) = (&side.links.prices[table], &side.links.norm_scales[table]);
    let [host, fabric] = slots.table;
    let price = get(prices, host) + get(prices, fabric);
    let norm_scale = get(norm_scales, host).min(get(norm_scales, fabric));
    match (&side.core, slots.core) {
        (Some(core), Some(slot)) => {
            let table = core.tables[table] as usize;
            let (prices, norm_scales) = (&core.links.prices[table], &core.links.norm_scales[table]);
            [
                price + get(prices, slot),
                norm_scale.min(get(norm_scales, slot)),
            ]
        }
        _ => [price, norm_scale],
    }
}

/// Response of a flow to its path price: its rate, the elastic part of it, and its slope.
#[derive(Clone, Copy)]
struct FlowResponse {
    rate: f32,
    elastic: f32,
    neg_slope: f32,
}

/// Weight, saturation price and demand of a flow in a row.
#[derive(Clone, Copy)]
struct FlowTerms {
    weight: f32,
    saturation_price: SaturationPrice,
    demand: f32,
}

#[inline(always)]
fn terms_of(
    terms: Option<&RowTerms>,
    common_saturation_price: f32,
    row: usize,
    lane: usize,
) -> FlowTerms {
    match terms {
        Some(terms) => FlowTerms {
            weight: terms.weight[row].0[lane],
            saturation_price: SaturationPrice(terms.saturation_price[row].0[lane]),
            demand: terms.demand[row].0[lane],
        },
        None => FlowTerms {
            weight: 1.0,
            saturation_price: SaturationPrice(common_saturation_price),
            demand: f32::INFINITY,
        },
    }
}

#[inline(always)]
fn response(
    FlowTerms {
        weight,
        saturation_price,
        ..
    }: FlowTerms,
    price: f32,
) -> FlowResponse {
    let share = price.max(saturation_price.price()).recip();
    let rate = weight * share;
    let elastic = if saturation_price.is_demand_bound() {
        rate * at_demand(price * share)
    } else {
        rate
    };
    FlowResponse {
        rate,
        elastic,
        neg_slope: elastic * share,
    }
}

/// Normalised rate: at most the demand (F-NORM).
#[inline(always)]
fn normalized(terms: FlowTerms, rate: f32, norm_scale: f32) -> f32 {
    (rate * norm_scale).min(terms.demand)
}

/// Passes over the rack-pair rows.
#[inline(always)]
fn rack_pair_rows<const CORES: bool>(
    pass: PassSettings,
    pairs: &mut RackPairRows,
    terms: impl Fn(usize, usize) -> FlowTerms,
    up: &mut Side<'_>,
    down: &mut Side<'_>,
    scratch: &mut Scratch,
) {
    for table in 0..pairs.down.tables() {
        for &row in pairs.down.rows_of(table) {
            let source = pairs.source(row);
            let row = usize::from(row);
            let mut notify = 0u16;
            for lane in lanes(pairs.down.used[row]) {
                let ends = [
                    slots::<CORES>(&pairs.up, row, lane),
                    slots::<CORES>(&pairs.down, row, lane),
                ];
                let [up_price, up_scale] = half(up, source, ends[0]);
                let [down_price, down_scale] = half(down, table, ends[1]);
                let rate = &mut pairs.rate[row].0[lane];
                // The scale is read before the rate is replaced: it belongs to the last iteration's
                // rate.
                if pass.normalize {
                    let norm_scale = up_scale.min(down_scale);
                    let normalized_rate = normalized(terms(row, lane), *rate, norm_scale);
                    let notified = &mut pairs.notified[row].0[lane];
                    if (normalized_rate - *notified).abs() > pass.threshold * *notified {
                        *notified = normalized_rate;
                        notify |= 1 << lane;
                    }
                }
                if pass.rates {
                    let response = response(terms(row, lane), up_price + down_price);
                    *rate = response.rate;
                    add(up, source, ends[0], response);
                    add(down, table, ends[1], response);
                }
            }
            scratch.pair_notify[row] = notify;
        }
    }
}

/// Adds a flow's response to the sums of one half of its path.
#[inline(always)]
fn add(side: &mut Side<'_>, table: usize, slots: FlowSlots, response: FlowResponse) {
    let add = |copy: &mut LinkBlockCopy, index: usize| {
        *at_mut(copy.load.as_flattened_mut(), index) += response.rate;
        *at_mut(copy.neg_slope.as_flattened_mut(), index) += response.neg_slope;
        if copy.has_elastic {
            *at_mut(copy.elastic.as_flattened_mut(), index) += response.elastic;
        }
    };
    for slot in slots.table {
        add(side.copy, table * TABLE_SLOTS + slot);
    }
    if let (Some(core), Some(slot)) = (&mut side.core, slots.core) {
        add(core.copy, core.tables[table] as usize * TABLE_SLOTS + slot);
    }
}

/// See [`super::Kernels::step_dirty_links`].
#[inline(always)]
pub(super) fn step_dirty_links(vectors: &mut [LinkVector], only_newcomers: bool) {
    for vector in vectors {
        vector.step_log(only_newcomers);
    }
}

/// See [`super::Kernels::run`].
#[inline(always)]
pub(in crate::engine::parallel) fn run(
    pass: PassSettings,
    block: &mut FlowBlock,
    sides: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    // Either all flows of a block cross the cores or none does: decided once, not per flow.
    if sides[0].core.is_some() {
        run_over::<true>(pass, block, sides, scratch);
    } else {
        run_over::<false>(pass, block, sides, scratch);
    }
}

#[inline(always)]
fn run_over<const CORES: bool>(
    pass: PassSettings,
    block: &mut FlowBlock,
    [mut up, mut down]: [Side<'_>; 2],
    scratch: &mut Scratch,
) {
    // Upward order first: the half path's price and scale wait for the flow's downward cell.
    for table in 0..block.up.tables() {
        for &row in block.up.rows_of(table) {
            let row = usize::from(row);
            for lane in lanes(block.up.used[row]) {
                scratch.pairs[row].0[lane] = half(&up, table, slots::<CORES>(&block.up, row, lane));
            }
        }
    }
    let terms = block.terms.as_ref().map(|terms| &terms.down);
    for table in 0..block.down.tables() {
        for &row in block.down.rows_of(table) {
            let row = usize::from(row);
            let mut notify = 0u16;
            for lane in lanes(block.down.used[row]) {
                let slots = slots::<CORES>(&block.down, row, lane);
                let (up_row, up_lane) = split(block.up_cell[row].0[lane]);
                let [price, norm_scale] = scratch.pairs[up_row].0[up_lane];
                let [down_price, down_scale] = half(&down, table, slots);
                let rate = &mut block.rate[row].0[lane];
                let of_flow = terms_of(terms, block.common_saturation_price, row, lane);
                if pass.normalize {
                    let normalized_rate = normalized(of_flow, *rate, norm_scale.min(down_scale));
                    let notified = &mut block.notified[row].0[lane];
                    if (normalized_rate - *notified).abs() > pass.threshold * *notified {
                        *notified = normalized_rate;
                        notify |= 1 << lane;
                    }
                }
                if pass.rates {
                    let response = response(of_flow, price + down_price);
                    *rate = response.rate;
                    // Takes the place of price and scale, which no other flow reads.
                    scratch.pairs[up_row].0[up_lane] = [response.neg_slope, response.elastic];
                    scratch.rates[up_row].0[up_lane] = response.rate;
                    add(&mut down, table, slots, response);
                }
            }
            scratch.notify[row] = notify;
        }
    }
    let terms = block.terms.as_ref().map(|terms| &terms.pairs);
    let common_saturation_price = block.common_saturation_price;
    let terms = |row: usize, lane: usize| terms_of(terms, common_saturation_price, row, lane);
    rack_pair_rows::<CORES>(pass, &mut block.pairs, terms, &mut up, &mut down, scratch);
    if !pass.rates {
        return;
    }
    // Back in upward order: the responses were left at their upward cells above.
    for table in 0..block.up.tables() {
        for &row in block.up.rows_of(table) {
            let row = usize::from(row);
            for lane in lanes(block.up.used[row]) {
                let [neg_slope, elastic] = scratch.pairs[row].0[lane];
                let response = FlowResponse {
                    rate: scratch.rates[row].0[lane],
                    elastic,
                    neg_slope,
                };
                let slots = slots::<CORES>(&block.up, row, lane);
                add(&mut up, table, slots, response);
            }
        }
    }
}

fn lanes(mut used: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = used.trailing_zeros() as usize;
        used &= used.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}
