//! A flow as rows hold it: its slots at either end, its cell, and what a cell keeps of it.

use super::lanes::{CellIndex, LANES};

/// No flow.
pub(super) const NO_FLOW: u32 = u32::MAX;
/// A rate that was never notified: every rate differs from it.
pub(super) const NEVER_NOTIFIED: f32 = -1.0;
/// The lane of cells that never hold a flow. The row of such a cell is a flow's place among those that wait for one.
const NO_LANE: usize = LANES - 1;

/// The slots of a flow in its link table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// Of the host's link, below 48.
    pub(super) host: u8,
    /// Of the fabric link, below 16.
    pub(super) fabric: u8,
    /// The fabric slot stands for no link: nothing is added up for it.
    pub(super) no_fabric: bool,
    /// The core link among those of the switch at the fabric slot, below 4, if the flow has one.
    pub(super) plane: Option<u8>,
}

/// One end of a flow: the table of its rack, and its slots in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowEnd {
    pub(super) table: u16,
    pub(super) slots: Slots,
}

/// The path price below which a log flow has all that it can get: weight over that. Below zero if that is its
/// demand and not its path's capacity: so it stands in rows, whose walks ask for the sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SaturationPrice(pub(super) f32);

impl SaturationPrice {
    /// Bounds that keep what a walk computes within single precision, whatever weights and capacities are.
    const LEAST: f64 = 1e-18;
    /// Beyond this, a rate is nothing: of a flow whose path has no capacity, or that wants nothing.
    const MOST: f64 = 1e30;

    /// That of a flow of this weight and demand on a path of this capacity.
    pub(super) fn new(weight: f64, demand: f64, capacity: f64) -> Self {
        let price = (weight / demand.min(capacity)).clamp(Self::LEAST, Self::MOST) as f32;
        Self(if demand < capacity { -price } else { price })
    }

    /// The price.
    pub(super) fn price(self) -> f32 {
        self.0.abs()
    }

    /// Below this price, the flow has its demand.
    pub(super) fn is_demand_bound(self) -> bool {
        self.0 < 0.0
    }
}

/// What a FlowBlock keeps of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CellState {
    /// The flow's number.
    pub(super) flow: u32,
    /// Weight of its log utility.
    pub(super) weight: f32,
    /// Demand: the most that it can use, in Gbit/s.
    pub(super) demand: f32,
    pub(super) saturation_price: SaturationPrice,
    /// What the prices suggest, in Gbit/s.
    pub(super) rate: f32,
    /// What was notified, in Gbit/s, or [`NEVER_NOTIFIED`].
    pub(super) notified: f32,
}

impl CellState {
    pub(super) fn terms(&self) -> [f32; 3] {
        [self.weight, self.saturation_price.0, self.demand]
    }
}

/// A flow with both its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellFlow {
    pub(super) ends: [FlowEnd; 2],
    pub(super) state: CellState,
}

/// The cell of a row's lane.
pub(super) fn cell_at(row: u16, lane: usize) -> CellIndex {
    CellIndex::from(row) * LANES as CellIndex + lane as CellIndex
}

/// Row and lane of a cell.
#[inline]
pub(super) const fn split(cell: CellIndex) -> (usize, usize) {
    (cell as usize / LANES, cell as usize % LANES)
}

/// The cell of a flow that has none yet, by its place among those that wait.
pub(super) fn queued_cell(place: usize) -> CellIndex {
    (place * LANES + NO_LANE) as CellIndex
}

/// The place of a flow among those that wait, if it has no cell yet.
pub(super) fn queued_position(cell: CellIndex) -> Option<usize> {
    let (row, lane) = split(cell);
    (lane == NO_LANE).then_some(row)
}
