//! Rows of flows that share both racks.
//!
//! Several flows from one rack to another form a row for both sides at once. Its
//! lanes hold the flows in upward and in downward order, so no pass moves values between the two
//! orders. Such a row looks up two tables and adds to two. It costs as much as seven to nine flows
//! in rack rows, so only [`MIN_FLOWS`] flows justify one. All other flows are in rows by one rack
//! each (see `rows`); [`FlowBlock::compact`](super::flow_block::FlowBlock::compact) moves them here
//! once there are enough.
//!
//! The two sides are [`FlowRows`]s that number rows and lanes alike. A flow has the same fabric
//! slot on both sides, so one inverse map serves the fabric links of both.

use super::cell::{CellState, FlowEnd, NO_FLOW, split};
use super::lanes::{CellIndex, LANES, Lanes};
use super::rows::{FlowRows, MAX_ROWS, ROW_FLOWS, growth, reorder};

/// Flows that justify a row.
pub(super) const MIN_FLOWS: usize = 10;
/// Flows below which a row is dissolved.
const KEPT_FLOWS: u32 = 7;

/// Flows of a FlowBlock in rows by pairs of racks.
#[derive(Debug)]
pub(super) struct RackPairRows {
    pub(super) up: FlowRows,
    pub(super) down: FlowRows,
    pub(super) rate: Vec<Lanes>,
    pub(super) notified: Vec<Lanes>,
    pub(super) flow: Vec<[u32; 16]>,
}

/// True if a rack-pair row can hold the flow: the same fabric slot on both sides, and no core link.
pub(super) fn fits_pair_row([up, down]: &[FlowEnd; 2]) -> bool {
    let (up, down) = (&up.slots, &down.slots);
    up.fabric == down.fabric && up.no_fabric == down.no_fabric && up.plane.or(down.plane).is_none()
}

impl RackPairRows {
    pub(super) fn new(tables: [usize; 2]) -> Self {
        Self {
            up: FlowRows::new(tables[0], false),
            down: FlowRows::new(tables[1], false),
            rate: Vec::new(),
            notified: Vec::new(),
            flow: Vec::new(),
        }
    }

    /// Number of rows, with row 0, which holds no flow.
    pub(super) fn len(&self) -> usize {
        self.down.len()
    }

    /// Cell of a lane. Rack-pair rows are numbered from the top, rack rows from the bottom.
    pub(super) fn cell(row: usize, lane: usize) -> CellIndex {
        ((MAX_ROWS - 1 - row) * LANES + lane) as CellIndex
    }

    /// Row and lane of a cell, if it is in a rack-pair row.
    pub(super) fn find(&self, cell: CellIndex) -> Option<(usize, usize)> {
        let (row, lane) = split(cell);
        let row = MAX_ROWS - 1 - row;
        (row < self.len()).then_some((row, lane))
    }

    /// Finds a row of the flow's racks that has space for it.
    pub(super) fn row_for(&self, [up, down]: &[FlowEnd; 2]) -> Option<u16> {
        let of_pair = |row: u16| self.source(row) == usize::from(up.table);
        let fits = |row: &u16| {
            of_pair(*row) && self.up.fits(*row, up.slots) && self.down.fits(*row, down.slots)
        };
        let rows = self.down.rows_of(usize::from(down.table));
        rows.iter().copied().find(fits)
    }

    /// Upward table of a row.
    pub(super) fn source(&self, row: u16) -> usize {
        self.up.table_of(CellIndex::from(row) * LANES as CellIndex)
    }

    /// Opens a row for a pair of racks beside this pair's other rows. Returns `None` if the
    /// FlowBlock is full; `others` counts its rack rows.
    pub(super) fn open(&mut self, [up, down]: &[FlowEnd; 2], others: usize) -> Option<u16> {
        let limit = MAX_ROWS - others;
        let (source, destination) = (usize::from(up.table), usize::from(down.table));
        let rows = self.down.rows_of(destination);
        // By source: the sums of a source stay in registers while its rows follow one another.
        let place = rows.partition_point(|&row| self.source(row) < source);
        let row = self.down.add_row(destination, place, limit)?;
        let same = self.up.add_row(source, 0, limit);
        debug_assert_eq!(same, Some(row), "both sides number alike");
        self.grow();
        Some(row)
    }

    /// Inserts a flow into a row with space for it; returns its row and lane.
    pub(super) fn put(
        &mut self,
        row: u16,
        [up, down]: [FlowEnd; 2],
        state: &CellState,
    ) -> (usize, usize) {
        let lane = self.down.put(row, down.slots);
        let same = self.up.put(row, up.slots);
        debug_assert_eq!(same, lane, "both sides number alike");
        let row = usize::from(row);
        self.rate[row].0[lane] = state.rate;
        self.notified[row].0[lane] = state.notified;
        self.flow[row][lane] = state.flow;
        (row, lane)
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, row: usize, lane: usize) {
        self.rate[row].0[lane] = 0.0;
        self.notified[row].0[lane] = 0.0;
        self.flow[row][lane] = NO_FLOW;
        let cell = (row * LANES + lane) as CellIndex;
        self.up.remove(cell);
        self.down.remove(cell);
    }

    /// Sorts rows by table; see [`FlowRows::sort_by_table`].
    pub(super) fn sort_by_table(&mut self) -> (Vec<u16>, usize) {
        let (now, rows) = self.down.sort_by_table();
        self.up.renumber(&now, rows);
        self.rate = reorder(&self.rate, &now, rows);
        self.notified = reorder(&self.notified, &now, rows);
        self.flow = reorder(&self.flow, &now, rows);
        (now, rows)
    }

    /// Cells of the rows to a rack that hold too few flows.
    pub(super) fn sparse_cells(&self, table: usize) -> Vec<CellIndex> {
        let rows = self.down.rows_of(table).iter().map(|&row| usize::from(row));
        rows.filter(|&row| self.down.used[row].count_ones() < KEPT_FLOWS)
            .flat_map(|row| {
                let lanes = 0..ROW_FLOWS as usize;
                lanes
                    .filter(move |lane| self.down.used[row] >> lane & 1 == 1)
                    .map(move |lane| Self::cell(row, lane))
            })
            .collect()
    }

    /// Returns true if every list by row has an entry for each row. Row 0 has none before the
    /// first flow comes.
    pub(super) fn has_whole_lists(&self) -> bool {
        let rows = self.len();
        self.up.has_whole_lists()
            && self.down.has_whole_lists()
            && self.up.len() >= rows
            && (rows == 1
                || self.rate.len() >= rows
                    && self.notified.len() >= rows
                    && self.flow.len() >= rows)
    }

    fn grow(&mut self) {
        let rows = self.len();
        fit(&mut self.rate, rows, Lanes::default());
        fit(&mut self.notified, rows, Lanes::default());
        fit(&mut self.flow, rows, [NO_FLOW; 16]);
    }
}

/// Extends a list to `rows` entries.
pub(super) fn fit<T: Copy>(list: &mut Vec<T>, rows: usize, empty: T) {
    if rows > list.capacity() {
        list.reserve_exact(growth(list.len()).max(rows - list.len()));
    }
    list.resize(rows, empty);
}
