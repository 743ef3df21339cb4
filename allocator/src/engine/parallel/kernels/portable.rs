//! The kernels in plain Rust: what the vector kernels are tested against, and what runs where there
//! are none.

use super::{Pass, Scratch};
use crate::engine::parallel::flow_block::FlowBlock;
use crate::engine::parallel::lanes::{LANES, Table, at_mut};
use crate::engine::parallel::layout::{HOST_SLOTS, TABLE_SLOTS};
use crate::engine::parallel::link_block::{LinkBlock, Sums};
use crate::engine::parallel::rows::{RowSet, split};

#[inline(always)]
fn slots(set: &RowSet, row: usize, lane: usize) -> (usize, usize) {
    let slots = set.slots((row * LANES + lane) as u16);
    (
        usize::from(slots.host),
        HOST_SLOTS + usize::from(slots.fabric),
    )
}

#[inline(always)]
fn get(table: &Table, slot: usize) -> f32 {
    table[slot / LANES].0[slot % LANES]
}

/// See [`super::Kernels::run`].
#[inline(always)]
pub(in crate::engine::parallel) fn run(
    pass: Pass,
    block: &mut FlowBlock,
    [up, down]: [&LinkBlock; 2],
    [up_sums, down_sums]: [&mut Sums; 2],
    scratch: &mut Scratch,
) {
    for (table, rows) in block.up.rows.iter().enumerate() {
        let (prices, rooms) = (&up.prices[table], &up.rooms[table]);
        for &row in rows {
            let row = usize::from(row);
            for lane in lanes(block.up.used[row]) {
                let (host, fabric) = slots(&block.up, row, lane);
                scratch.pairs[row].0[lane] = [
                    get(prices, host) + get(prices, fabric),
                    get(rooms, host).min(get(rooms, fabric)),
                ];
            }
        }
    }
    for table in 0..block.down.rows.len() {
        let (prices, rooms) = (&down.prices[table], &down.rooms[table]);
        for &row in &block.down.rows[table] {
            let row = usize::from(row);
            let mut moved = 0u16;
            for lane in lanes(block.down.used[row]) {
                let (host, fabric) = slots(&block.down, row, lane);
                let (up_row, up_lane) = split(block.mate[row].0[lane]);
                let [price, room] = scratch.pairs[up_row].0[up_lane];
                let rate = &mut block.rate[row].0[lane];
                if pass.normalize {
                    let room = room.min(get(rooms, host).min(get(rooms, fabric)));
                    let (fits, told) = (*rate * room, &mut block.told[row].0[lane]);
                    if (fits - *told).abs() > pass.threshold * *told {
                        *told = fits;
                        moved |= 1 << lane;
                    }
                }
                if pass.rates {
                    let price = price + (get(prices, host) + get(prices, fabric));
                    let share = price.max(block.knee[row].0[lane]).recip();
                    *rate = block.weight[row].0[lane] * share;
                    scratch.rates[up_row].0[up_lane] = *rate;
                    let reaction = *rate * share;
                    for slot in [host, fabric] {
                        let index = table * TABLE_SLOTS + slot;
                        *at_mut(down_sums.load.as_flattened_mut(), index) += *rate;
                        *at_mut(down_sums.reaction.as_flattened_mut(), index) += reaction;
                    }
                }
            }
            scratch.moved[row] = moved;
        }
    }
    if !pass.rates {
        return;
    }
    for (table, rows) in block.up.rows.iter().enumerate() {
        for &row in rows {
            let row = usize::from(row);
            for lane in lanes(block.up.used[row]) {
                let (host, fabric) = slots(&block.up, row, lane);
                let rate = scratch.rates[row].0[lane];
                let reaction = rate * rate * block.inverse_weight[row].0[lane];
                for slot in [host, fabric] {
                    let index = table * TABLE_SLOTS + slot;
                    *at_mut(up_sums.load.as_flattened_mut(), index) += rate;
                    *at_mut(up_sums.reaction.as_flattened_mut(), index) += reaction;
                }
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
