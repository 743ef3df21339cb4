//! FlowBlocks: the flows from one block of racks to another (flowtune §4), in two orders.
//!
//! A flow has a cell on the upward side, among the flows of its source rack, and one on the
//! downward side, among those of its destination rack. State is stored in downward order. `up_cell`
//! maps each downward cell to the upward cell of the same flow, `down_cell_low` maps back. Flows
//! that share both racks with many others have one cell, in a row for both sides (see
//! `rack_pair_rows`).

use super::cell::{CellState, FlowEnd, NEVER_NOTIFIED, NO_FLOW, SaturationPrice, split};
use super::lanes::{CellIndex, Cells, Halves, LANES, Lanes, lanes_of};
use super::layout::FlowBlockShape;
use super::rack_pair_rows::{RackPairRows, fit, fits_pair_row};
use super::rows::{Displacement, FlowRows, MAX_ROWS, RelativePos, reorder};

/// Weights, saturation prices and demands of the flows in rows, by row.
#[derive(Debug, Default)]
pub(super) struct RowTerms {
    pub(super) weight: Vec<Lanes>,
    /// Saturation prices with their signs (see [`SaturationPrice`]).
    pub(super) saturation_price: Vec<Lanes>,
    /// Demands in Gbit/s, infinite for flows without one.
    pub(super) demand: Vec<Lanes>,
}

/// Terms of all flows of a FlowBlock in rows.
#[derive(Debug, Default)]
pub(super) struct CellTerms {
    pub(super) down: RowTerms,
    pub(super) pairs: RowTerms,
}

/// A FlowBlock.
#[derive(Debug)]
pub(super) struct FlowBlock {
    /// Upward and downward LinkBlock.
    pub(super) up_block: usize,
    pub(super) down_block: usize,
    /// LinkBlocks of the second level, if the flows cross the cores.
    pub(super) core_blocks: Option<[usize; 2]>,
    pub(super) up: FlowRows,
    pub(super) down: FlowRows,
    /// Low half of the downward cell, by upward row (see [`down_cell_of`](Self::down_cell_of)).
    pub(super) down_cell_low: Vec<Halves>,
    /// Upward cell, by downward row.
    pub(super) up_cell: Vec<Cells>,
    pub(super) rate: Vec<Lanes>,
    pub(super) notified: Vec<Lanes>,
    pub(super) flow: Vec<[u32; 16]>,
    /// Terms of the flows. Absent while all flows have weight 1, the same saturation price and no
    /// demand.
    pub(super) terms: Option<CellTerms>,
    pub(super) pairs: RackPairRows,
    /// Table after the one that was compacted last, on either side.
    pub(super) next_table: [usize; 2],
    /// Saturation price of flows without terms of their own.
    pub(super) common_saturation_price: f32,
    /// Flows of a weight other than 1, of another saturation price, or with a demand.
    uncommon: usize,
    flows: usize,
}

impl FlowBlock {
    pub(super) fn new(shape: FlowBlockShape, tables: [usize; 2]) -> Self {
        let over_cores = shape.core_links.is_some();
        let mut block = Self {
            up_block: shape.links[0],
            down_block: shape.links[1],
            core_blocks: shape.core_links,
            up: FlowRows::new(tables[0], over_cores),
            down: FlowRows::new(tables[1], over_cores),
            down_cell_low: Vec::new(),
            up_cell: Vec::new(),
            rate: Vec::new(),
            notified: Vec::new(),
            flow: Vec::new(),
            terms: None,
            pairs: RackPairRows::new(tables),
            next_table: [0; 2],
            common_saturation_price: 1.0,
            uncommon: 0,
            flows: 0,
        };
        block.grow();
        block
    }

    /// LinkBlocks of the flows.
    pub(super) fn shape(&self) -> FlowBlockShape {
        FlowBlockShape {
            links: [self.up_block, self.down_block],
            core_links: self.core_blocks,
        }
    }

    /// True if all flows have weight 1, the same saturation price and no demand.
    pub(super) fn is_plain(&self) -> bool {
        self.uncommon == 0
    }

    pub(super) fn flows(&self) -> usize {
        self.flows
    }

    pub(super) fn grow(&mut self) {
        let (up, down) = (self.up.len(), self.down.len());
        fit(&mut self.down_cell_low, up, Halves::default());
        fit(&mut self.up_cell, down, Cells::default());
        if let Some(terms) = &mut self.terms {
            terms.fit(down, self.pairs.len());
        }
        fit(&mut self.rate, down, Lanes::default());
        fit(&mut self.notified, down, Lanes::default());
        fit(&mut self.flow, down, [NO_FLOW; 16]);
    }

    /// Checks the lengths on which the kernels' unchecked look-ups rest: every list by row has an
    /// entry for each row. Once per pass, whose rows are many times as many.
    ///
    /// # Panics
    /// When a list is too short, as after a panic between two lists' growth.
    pub(super) fn check_lists(&self) {
        let (up, down, pairs) = (self.up.len(), self.down.len(), self.pairs.len());
        let terms = self.terms.as_ref();
        assert!(
            self.up.has_whole_lists()
                && self.down.has_whole_lists()
                && self.down_cell_low.len() >= up
                && self.up_cell.len() >= down
                && self.rate.len() >= down
                && self.notified.len() >= down
                && self.flow.len() >= down
                && self.pairs.has_whole_lists()
                && terms.is_none_or(|terms| terms.down.covers(down) && terms.pairs.covers(pairs)),
            "lists of a FlowBlock are shorter than its rows"
        );
    }

    /// Allocates the terms of all rows, if there are none yet.
    fn allocate_terms(&mut self) {
        if self.terms.is_some() {
            return;
        }
        let mut terms = CellTerms::default();
        terms.fit(self.down.len(), self.pairs.len());
        let of_rows = [
            (&mut terms.down, &self.down.used),
            (&mut terms.pairs, &self.pairs.down.used),
        ];
        // So far every flow had the common terms; lanes without flows keep weight 0, thus rate 0.
        for (terms, used) in of_rows {
            for (row, &used) in used.iter().enumerate() {
                for lane in lanes_of(used) {
                    terms.set(
                        row,
                        lane,
                        [1.0, self.common_saturation_price, f32::INFINITY],
                    );
                }
            }
        }
        self.terms = Some(terms);
    }

    fn is_uncommon(&self, state: &CellState) -> bool {
        state.weight != 1.0
            || state.saturation_price.0 != self.common_saturation_price
            || state.demand.is_finite()
    }

    /// Inserts a flow and returns its cell, or `None` if rows have no space. Calls `relocate` with
    /// every other flow that is displaced, and its new cell.
    pub(super) fn insert(
        &mut self,
        ends: [FlowEnd; 2],
        state: CellState,
        relocate: &mut impl FnMut(u32, CellIndex),
    ) -> Option<CellIndex> {
        if fits_pair_row(&ends)
            && let Some(row) = self.pairs.row_for(&ends)
        {
            return Some(self.insert_in_pair_row(row, ends, &state));
        }
        self.insert_in_rack_rows(ends, state, relocate)
    }

    /// Counts a flow that is being inserted.
    fn count(&mut self, state: &CellState) {
        // The first flow of an empty block sets the common price. A demand's would have a sign,
        // which plain passes do not read.
        if self.flows == 0 && !state.saturation_price.is_demand_bound() {
            self.common_saturation_price = state.saturation_price.0;
        }
        self.flows += 1;
        if self.is_uncommon(state) {
            self.uncommon += 1;
            self.allocate_terms();
        }
    }

    /// Inserts a flow into a rack-pair row that has space for it.
    pub(super) fn insert_in_pair_row(
        &mut self,
        row: u16,
        ends: [FlowEnd; 2],
        state: &CellState,
    ) -> CellIndex {
        self.grow();
        self.count(state);
        let (row, lane) = self.pairs.put(row, ends, state);
        if let Some(terms) = &mut self.terms {
            terms.pairs.set(row, lane, state.terms());
        }
        RackPairRows::cell(row, lane)
    }

    /// Inserts a flow into the rows of its two racks.
    pub(super) fn insert_in_rack_rows(
        &mut self,
        [source, destination]: [FlowEnd; 2],
        state: CellState,
        relocate: &mut impl FnMut(u32, CellIndex),
    ) -> Option<CellIndex> {
        // Flows of a source lie in the order of their destinations, as far as space allows.
        let preferred = RelativePos::new(usize::from(destination.table), self.down.tables());
        let up = self.take_up(source, preferred)?;
        let Some(down) = self.take_down(destination, relocate) else {
            // The upward cell was taken first, so it has to be given back.
            self.up.remove(up);
            return None;
        };
        self.count(&state);
        self.set_down_cell(up, down);
        self.write_down(down, up, &state);
        Some(down)
    }

    /// Takes an upward cell. Opens a row only if displacing one other flow makes no space.
    pub(super) fn take_up(&mut self, end: FlowEnd, preferred: RelativePos) -> Option<CellIndex> {
        let (table, slots) = (usize::from(end.table), end.slots);
        let up = match self.up.insert(table, slots, preferred) {
            Some(up) => up,
            None => {
                if let Some(displacement) = self.up.find_displacement(table, slots, preferred) {
                    self.displace_up(displacement);
                    self.up.insert(table, slots, preferred)?
                } else {
                    self.up.insert_in_new(table, slots, preferred, MAX_ROWS)?
                }
            }
        };
        self.grow();
        Some(up)
    }

    fn displace_up(&mut self, displacement: Displacement) {
        let (row, lane) = split(displacement.cell);
        // The displaced flow's downward cell is found by its old upward cell, so before the move.
        let down = self.down_cell_of(displacement.cell);
        let up = self.up.displace(displacement);
        self.down_cell_low[row].0[lane] = 0;
        self.set_down_cell(up, down);
        let (row, lane) = split(down);
        self.up_cell[row].0[lane] = up;
    }

    /// Downward cell of the flow in an upward cell. Among the cells with the stored low half, it is
    /// the one whose upward cell is `up`. Events need this, passes do not: half the memory is
    /// enough.
    pub(super) fn down_cell_of(&self, up: CellIndex) -> CellIndex {
        let (row, lane) = split(up);
        let low = CellIndex::from(self.down_cell_low[row].0[lane]);
        // A low half names a row modulo 4,096; full blocks have at most four such rows.
        let step = (1 << u16::BITS) / LANES;
        let (first, lane) = split(low);
        let rows = (first..self.up_cell.len()).step_by(step);
        let cell = |row: usize| (row * LANES + lane) as CellIndex;
        let mut of_flow = rows.filter(|&row| self.up_cell[row].0[lane] == up);
        of_flow.next().map_or(0, cell)
    }

    /// Stores the downward cell of the flow in an upward one.
    pub(super) fn set_down_cell(&mut self, up: CellIndex, down: CellIndex) {
        let (row, lane) = split(up);
        self.down_cell_low[row].0[lane] = down as u16;
    }

    /// Clears the upward cell of a downward one.
    pub(super) fn clear_up_cell(&mut self, down: CellIndex) {
        let (row, lane) = split(down);
        self.up_cell[row].0[lane] = 0;
    }

    /// Takes a downward cell, as [`take_up`](Self::take_up) does upward. Relocates the displaced
    /// flow.
    pub(super) fn take_down(
        &mut self,
        end: FlowEnd,
        relocate: &mut impl FnMut(u32, CellIndex),
    ) -> Option<CellIndex> {
        let (table, slots) = (usize::from(end.table), end.slots);
        let down = match self.down.insert(table, slots, RelativePos::FIRST) {
            Some(down) => down,
            None => {
                if let Some(displacement) =
                    self.down
                        .find_displacement(table, slots, RelativePos::FIRST)
                {
                    self.displace_down(displacement, relocate);
                    self.down.insert(table, slots, RelativePos::FIRST)?
                } else {
                    // Rack-pair rows are numbered from the top of the same range of cells.
                    let limit = MAX_ROWS - self.pairs.len();
                    self.down
                        .insert_in_new(table, slots, RelativePos::FIRST, limit)?
                }
            }
        };
        self.grow();
        Some(down)
    }

    fn displace_down(
        &mut self,
        displacement: Displacement,
        relocate: &mut impl FnMut(u32, CellIndex),
    ) {
        let (row, lane) = split(displacement.cell);
        let (state, up) = (self.state(displacement.cell), self.up_cell[row].0[lane]);
        let down = self.down.displace(displacement);
        self.write_nothing(displacement.cell);
        self.write_down(down, up, &state);
        self.set_down_cell(up, down);
        relocate(state.flow, down);
    }

    pub(super) fn write_down(&mut self, down: CellIndex, up: CellIndex, state: &CellState) {
        let (row, lane) = split(down);
        self.up_cell[row].0[lane] = up;
        self.rate[row].0[lane] = state.rate;
        self.notified[row].0[lane] = state.notified;
        self.flow[row][lane] = state.flow;
        if let Some(terms) = &mut self.terms {
            terms.down.set(row, lane, state.terms());
        }
    }

    pub(super) fn free_up(&mut self, up: CellIndex) {
        let (row, lane) = split(up);
        self.down_cell_low[row].0[lane] = 0;
        self.up.remove(up);
    }

    pub(super) fn free_down(&mut self, down: CellIndex) {
        self.write_nothing(down);
        self.down.remove(down);
    }

    fn write_nothing(&mut self, down: CellIndex) {
        // Empty lanes compute rate 0 in every pass: weight 0, and any price above 0.
        let nothing = CellState {
            flow: NO_FLOW,
            weight: 0.0,
            demand: f32::INFINITY,
            saturation_price: SaturationPrice(self.common_saturation_price),
            rate: 0.0,
            notified: 0.0,
        };
        self.write_down(down, 0, &nothing);
    }

    /// Changes the terms of the flow in a cell, in place.
    pub(super) fn set_terms(
        &mut self,
        cell: CellIndex,
        weight: f32,
        demand: f32,
        saturation_price: SaturationPrice,
    ) {
        let old = self.state(cell);
        let new = CellState {
            weight,
            demand,
            saturation_price,
            ..old
        };
        self.uncommon -= usize::from(self.is_uncommon(&old));
        if self.is_uncommon(&new) {
            self.uncommon += 1;
            self.allocate_terms();
        }
        let Some(terms) = &mut self.terms else {
            return;
        };
        match self.pairs.find(cell) {
            Some((row, lane)) => terms.pairs.set(row, lane, new.terms()),
            None => {
                let (row, lane) = split(cell);
                terms.down.set(row, lane, new.terms());
            }
        }
    }

    pub(super) fn state(&self, cell: CellIndex) -> CellState {
        let pairs = self.pairs.find(cell);
        let (row, lane) = pairs.unwrap_or_else(|| split(cell));
        let (flow, rate, notified) = match pairs {
            Some(_) => (&self.pairs.flow, &self.pairs.rate, &self.pairs.notified),
            None => (&self.flow, &self.rate, &self.notified),
        };
        let [weight, saturation_price, demand] = match (&self.terms, pairs) {
            (None, _) => [1.0, self.common_saturation_price, f32::INFINITY],
            (Some(terms), Some(_)) => terms.pairs.get(row, lane),
            (Some(terms), None) => terms.down.get(row, lane),
        };
        CellState {
            flow: flow[row][lane],
            weight,
            demand,
            saturation_price: SaturationPrice(saturation_price),
            rate: rate[row].0[lane],
            notified: notified[row].0[lane],
        }
    }

    /// Marks the flow in a cell as never notified.
    pub(super) fn forget_notified(&mut self, cell: CellIndex) {
        match self.pairs.find(cell) {
            Some((row, lane)) => self.pairs.notified[row].0[lane] = NEVER_NOTIFIED,
            None => {
                let (row, lane) = split(cell);
                self.notified[row].0[lane] = NEVER_NOTIFIED;
            }
        }
    }

    /// Sets the rate of the flow in a cell, if the cell is still this flow's.
    pub(super) fn set_rate(&mut self, cell: CellIndex, flow: u32, rate: f32) {
        let (of_cell, (row, lane)) = match self.pairs.find(cell) {
            Some(at) => ((&self.pairs.flow, &mut self.pairs.rate), at),
            None => ((&self.flow, &mut self.rate), split(cell)),
        };
        let (flows, rates) = of_cell;
        if flows.get(row).is_some_and(|flows| flows[lane] == flow) {
            rates[row].0[lane] = rate;
        }
    }

    /// Both ends of the flow in a cell.
    pub(super) fn ends(&self, cell: CellIndex) -> [FlowEnd; 2] {
        let ends = match self.pairs.find(cell) {
            Some((row, lane)) => {
                let cell = (row * LANES + lane) as CellIndex;
                [(&self.pairs.up, cell), (&self.pairs.down, cell)]
            }
            None => {
                let (row, lane) = split(cell);
                [(&self.up, self.up_cell[row].0[lane]), (&self.down, cell)]
            }
        };
        ends.map(|(side, cell)| FlowEnd {
            table: side.table_of(cell) as u16,
            slots: side.slots(cell),
        })
    }

    /// Removes the flow in a cell.
    pub(super) fn remove(&mut self, cell: CellIndex) {
        let old = self.state(cell);
        self.uncommon -= usize::from(self.is_uncommon(&old));
        self.flows -= 1;
        if let Some((row, lane)) = self.pairs.find(cell) {
            if let Some(terms) = &mut self.terms {
                terms.pairs.set(
                    row,
                    lane,
                    [0.0, self.common_saturation_price, f32::INFINITY],
                );
            }
            self.pairs.remove(row, lane);
            return;
        }
        let (row, lane) = split(cell);
        self.free_up(self.up_cell[row].0[lane]);
        self.free_down(cell);
    }

    /// Sorts rows by table if many are out of order, and relocates every flow. Returns true if any
    /// row moved.
    pub(super) fn restore_table_order(&mut self, mut relocate: impl FnMut(u32, CellIndex)) -> bool {
        let pairs_moved = self.pairs.down.lost_table_order();
        if pairs_moved {
            self.restore_pair_order(&mut relocate);
        }
        if !self.up.lost_table_order() && !self.down.lost_table_order() {
            return pairs_moved;
        }
        let (up, up_rows) = self.up.sort_by_table();
        let (down, down_rows) = self.down.sort_by_table();
        // All flows common again: passes over plain rows are cheaper, and the terms' memory is
        // free.
        if self.uncommon == 0 {
            self.terms = None;
        }
        if let Some(terms) = &mut self.terms {
            terms.down.reorder(&down, down_rows);
        }
        self.up_cell = reorder(&self.up_cell, &down, down_rows);
        self.rate = reorder(&self.rate, &down, down_rows);
        self.notified = reorder(&self.notified, &down, down_rows);
        self.flow = reorder(&self.flow, &down, down_rows);
        // Only rows moved: a cell keeps its lane.
        let renumber = |cells: &mut Cells, now: &[u16]| {
            for cell in &mut cells.0 {
                *cell = CellIndex::from(now[*cell as usize / LANES]) * LANES as CellIndex
                    + *cell % LANES as CellIndex;
            }
        };
        self.up_cell
            .iter_mut()
            .for_each(|cells| renumber(cells, &up));
        // Rebuilt rather than moved: both ends of the map have new numbers.
        self.down_cell_low = vec![Halves::default(); up_rows];
        for (row, &used) in self.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                let (up_row, up_lane) = split(self.up_cell[row].0[lane]);
                self.down_cell_low[up_row].0[up_lane] = (row * LANES + lane) as u16;
            }
        }
        for (row, (flows, used)) in self.flow.iter().zip(&self.down.used).enumerate() {
            for (lane, &flow) in flows.iter().enumerate() {
                if used >> lane & 1 == 1 {
                    relocate(flow, (row * 16 + lane) as CellIndex);
                }
            }
        }
        true
    }

    fn restore_pair_order(&mut self, relocate: &mut impl FnMut(u32, CellIndex)) {
        let (now, rows) = self.pairs.sort_by_table();
        if let Some(terms) = &mut self.terms {
            terms.pairs.reorder(&now, rows);
        }
        for (row, &used) in self.pairs.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                relocate(self.pairs.flow[row][lane], RackPairRows::cell(row, lane));
            }
        }
    }
}

impl RowTerms {
    fn covers(&self, rows: usize) -> bool {
        let lists = [&self.weight, &self.saturation_price, &self.demand];
        lists.iter().all(|list| list.len() >= rows)
    }

    fn fit(&mut self, rows: usize) {
        fit(&mut self.weight, rows, Lanes::default());
        fit(&mut self.saturation_price, rows, Lanes([1.0; 16]));
        fit(&mut self.demand, rows, Lanes([f32::INFINITY; 16]));
    }

    fn get(&self, row: usize, lane: usize) -> [f32; 3] {
        [&self.weight, &self.saturation_price, &self.demand].map(|list| list[row].0[lane])
    }

    fn set(&mut self, row: usize, lane: usize, [weight, saturation_price, demand]: [f32; 3]) {
        self.weight[row].0[lane] = weight;
        self.saturation_price[row].0[lane] = saturation_price;
        self.demand[row].0[lane] = demand;
    }

    fn reorder(&mut self, now: &[u16], rows: usize) {
        for list in [
            &mut self.weight,
            &mut self.saturation_price,
            &mut self.demand,
        ] {
            *list = reorder(list, now, rows);
        }
    }

    fn bytes(&self) -> usize {
        let lists = [&self.weight, &self.saturation_price, &self.demand];
        lists.map(Vec::capacity).iter().sum::<usize>() * size_of::<Lanes>()
    }
}

impl CellTerms {
    fn fit(&mut self, down: usize, pairs: usize) {
        self.down.fit(down);
        self.pairs.fit(pairs);
    }

    pub(super) fn bytes(&self) -> usize {
        self.down.bytes() + self.pairs.bytes()
    }
}
