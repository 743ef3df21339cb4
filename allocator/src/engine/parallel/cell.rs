//! A flow as rows hold it: its slots at either end, its cell, and the state of the cell.

use super::lanes::{CellIndex, LANES};
use crate::num::utility::{ClassTable, UtilityKind};

/// No flow.
pub(super) const NO_FLOW: u32 = u32::MAX;
/// The notified rate of a flow that was notified none: every rate differs from it by more than the
/// threshold.
pub(super) const NEVER_NOTIFIED: f32 = -1.0;
/// The lane that never holds a flow. A cell with this lane is a queued flow's: its row is the
/// flow's position in the queue.
const NO_LANE: usize = LANES - 1;

/// Slots of a flow in its link table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// Slot of the host's link, below 48.
    pub(super) host: u8,
    /// Slot of the fabric link, below 16.
    pub(super) fabric: u8,
    /// The fabric slot stands for no link, so that no load on it counts.
    pub(super) no_fabric: bool,
    /// Core link among those of the switch at the fabric slot, below 4, if the flow crosses the
    /// cores.
    pub(super) plane: Option<u8>,
}

/// One end of a flow: the table of its rack, and its slots in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowEnd {
    pub(super) table: u16,
    pub(super) slots: Slots,
}

/// Saturation price: the path price below which a log flow has its largest rate, weight over that
/// rate. It is negative if the largest rate is the flow's demand and not its path's capacity. The
/// sign travels with the price through rows, so passes need no further word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SaturationPrice(pub(super) f32);

impl SaturationPrice {
    /// Lower bound, which keeps a pass within single precision whatever weights and capacities are.
    const LEAST: f64 = 1e-18;
    /// Upper bound, of a flow with demand 0 or on a path without capacity: its rate is practically
    /// 0.
    const MOST: f64 = 1e30;

    /// Saturation price of a flow of this weight and demand, on a path of this capacity.
    pub(super) fn new(weight: f64, demand: f64, capacity: f64) -> Self {
        let price = (weight / demand.min(capacity)).clamp(Self::LEAST, Self::MOST) as f32;
        Self(if demand < capacity { -price } else { price })
    }

    /// The price itself.
    pub(super) fn price(self) -> f32 {
        self.0.abs()
    }

    /// True if the demand bounds the rate, and not the path.
    pub(super) fn is_demand_bound(self) -> bool {
        self.0 < 0.0
    }
}

/// State that a FlowBlock keeps of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CellState {
    /// Number of the flow.
    pub(super) flow: u32,
    /// Weight of its log utility.
    pub(super) weight: f32,
    /// Demand: the largest rate that the flow can use, in Gbit/s.
    pub(super) demand: f32,
    pub(super) saturation_price: SaturationPrice,
    /// Rate at the present prices, in Gbit/s, before F-NORM.
    pub(super) rate: f32,
    /// Rate last notified, in Gbit/s, or [`NEVER_NOTIFIED`].
    pub(super) notified: f32,
}

impl CellState {
    pub(super) fn terms(&self) -> [f32; 3] {
        [self.weight, self.saturation_price.0, self.demand]
    }
}

/// Terms of a flow, in rows or on the scalar path.
pub(super) struct Terms {
    pub(super) class: u8,
    pub(super) weight: f64,
    pub(super) demand: f64,
    pub(super) rate: f64,
    pub(super) notified: f64,
}

impl Terms {
    /// Terms of a flow in a cell.
    pub(super) fn of_cell(classes: &ClassTable, state: &CellState) -> Self {
        Self {
            class: classes.log_class(),
            weight: f64::from(state.weight),
            demand: f64::from(state.demand),
            rate: f64::from(state.rate),
            notified: f64::from(state.notified),
        }
    }

    /// True if rows can hold the flow by its utility, which is that of its class.
    pub(super) fn is_log(&self, classes: &ClassTable) -> bool {
        matches!(classes.utility(self.class), UtilityKind::Log)
    }

    /// State of a cell, on a path of this capacity.
    pub(super) fn state(&self, flow: u32, capacity: f64) -> CellState {
        CellState {
            flow,
            weight: self.weight as f32,
            demand: self.demand as f32,
            saturation_price: SaturationPrice::new(self.weight, self.demand, capacity),
            rate: self.rate as f32,
            notified: self.notified as f32,
        }
    }
}

/// A flow with both its ends, inside or outside rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellFlow {
    pub(super) ends: [FlowEnd; 2],
    pub(super) state: CellState,
}

/// Cell of a row's lane.
pub(super) fn cell_at(row: u16, lane: usize) -> CellIndex {
    CellIndex::from(row) * LANES as CellIndex + lane as CellIndex
}

/// Row and lane of a cell.
#[inline]
pub(super) const fn split(cell: CellIndex) -> (usize, usize) {
    (cell as usize / LANES, cell as usize % LANES)
}

/// Cell of a queued flow, by its position in the queue.
pub(super) fn queued_cell(place: usize) -> CellIndex {
    (place * LANES + NO_LANE) as CellIndex
}

/// Position of a flow in the queue, if its cell is that of a queued flow.
pub(super) fn queued_position(cell: CellIndex) -> Option<usize> {
    let (row, lane) = split(cell);
    (lane == NO_LANE).then_some(row)
}
