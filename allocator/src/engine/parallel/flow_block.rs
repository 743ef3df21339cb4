//! The flows from one block of racks to another (flowtune §4), in two orders.
//!
//! A flow has a cell on its upward side, among the flows of its source rack, and one on its downward
//! side, among those of its destination rack. What is stored per flow is in downward order; `mate` says
//! for each downward cell which upward cell is the same flow, `back` the other way round. Flows that share
//! both racks with many others have one cell only, in a row for both sides (see `joint`).

use super::joint::{JointRows, fit, is_eligible};
use super::lanes::{Cell, Cells, Halves, LANES, Lanes, lanes_of};
use super::layout::FlowBlockShape;
use super::rows::{Aside, MAX_ROWS, RowSet, Share, Slots, reorder, split};

/// No flow.
pub(super) const NO_FLOW: u32 = u32::MAX;
/// A rate that was never told: every rate differs from it.
pub(super) const UNTOLD: f32 = -1.0;

/// One end of a flow: the table of its rack, and its slots in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) table: u16,
    pub(super) slots: Slots,
}

/// What a FlowBlock keeps of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CellState {
    /// The flow's number.
    pub(super) flow: u32,
    /// Weight of its log utility.
    pub(super) weight: f32,
    /// The path price below which the flow has its path's whole capacity.
    pub(super) knee: f32,
    /// What the prices suggest, in Gbit/s.
    pub(super) rate: f32,
    /// What was told, in Gbit/s, or [`UNTOLD`].
    pub(super) told: f32,
}

/// Weights and knees of the flows of a FlowBlock.
#[derive(Debug, Default)]
pub(super) struct CellTerms {
    pub(super) weight: Vec<Lanes>,
    pub(super) knee: Vec<Lanes>,
    /// By upward row: 1 / weight.
    pub(super) inverse_weight: Vec<Lanes>,
    /// Those of the flows in joint rows.
    pub(super) joint_weight: Vec<Lanes>,
    pub(super) joint_knee: Vec<Lanes>,
}

/// A FlowBlock.
#[derive(Debug)]
pub(super) struct FlowBlock {
    /// Upward and downward LinkBlock.
    pub(super) up_block: usize,
    pub(super) down_block: usize,
    /// Those of the second level, if the flows go over the cores.
    pub(super) core_blocks: Option<[usize; 2]>,
    pub(super) up: RowSet,
    pub(super) down: RowSet,
    /// By upward row: the low half of the downward cell (see [`down_of`](Self::down_of)).
    pub(super) back: Vec<Halves>,
    /// By downward row: the upward cell.
    pub(super) mate: Vec<Cells>,
    pub(super) rate: Vec<Lanes>,
    pub(super) told: Vec<Lanes>,
    pub(super) flow: Vec<[u32; 16]>,
    /// Weights and knees. While all flows have weight 1 and the same knee, they take no room.
    pub(super) terms: Option<CellTerms>,
    pub(super) joint: JointRows,
    /// The table after the one that was looked through last, on either side.
    pub(super) next_table: [usize; 2],
    /// The knee of most flows.
    pub(super) common_knee: f32,
    /// Flows of another weight than 1, or of another knee.
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
            up: RowSet::new(tables[0], over_cores),
            down: RowSet::new(tables[1], over_cores),
            back: Vec::new(),
            mate: Vec::new(),
            rate: Vec::new(),
            told: Vec::new(),
            flow: Vec::new(),
            terms: None,
            joint: JointRows::new(tables),
            next_table: [0; 2],
            common_knee: 0.0,
            uncommon: 0,
            flows: 0,
        };
        block.grow();
        block
    }

    /// What it is made of.
    pub(super) fn shape(&self) -> FlowBlockShape {
        FlowBlockShape {
            links: [self.up_block, self.down_block],
            core_links: self.core_blocks,
        }
    }

    /// All flows have weight 1 and the same knee.
    pub(super) fn is_plain(&self) -> bool {
        self.uncommon == 0
    }

    pub(super) fn flows(&self) -> usize {
        self.flows
    }

    pub(super) fn grow(&mut self) {
        let (up, down) = (self.up.len(), self.down.len());
        fit(&mut self.back, up, Halves::default());
        fit(&mut self.mate, down, Cells::default());
        if let Some(terms) = &mut self.terms {
            terms.fit(up, down, self.joint.len());
        }
        fit(&mut self.rate, down, Lanes::default());
        fit(&mut self.told, down, Lanes::default());
        fit(&mut self.flow, down, [NO_FLOW; 16]);
    }

    /// Gives weights and knees their places, if they have none yet.
    fn need_terms(&mut self) {
        if self.terms.is_some() {
            return;
        }
        let mut terms = CellTerms::default();
        terms.fit(self.up.len(), self.down.len(), self.joint.len());
        for (row, &used) in self.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                terms.weight[row].0[lane] = 1.0;
                terms.knee[row].0[lane] = self.common_knee;
            }
        }
        for (row, &used) in self.up.used.iter().enumerate() {
            lanes_of(used).for_each(|lane| terms.inverse_weight[row].0[lane] = 1.0);
        }
        for (row, &used) in self.joint.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                terms.joint_weight[row].0[lane] = 1.0;
                terms.joint_knee[row].0[lane] = self.common_knee;
            }
        }
        self.terms = Some(terms);
    }

    fn deviates(&self, weight: f32, knee: f32) -> bool {
        weight != 1.0 || knee != self.common_knee
    }

    /// Takes a flow in; returns its cell, or nothing if there is no room.
    /// Says of each other flow that moves for it which cell it has now.
    pub(super) fn insert(
        &mut self,
        ends: [End; 2],
        state: CellState,
        moved: &mut impl FnMut(u32, Cell),
    ) -> Option<Cell> {
        if is_eligible(&ends)
            && let Some(row) = self.joint.row_for(&ends)
        {
            return Some(self.insert_joint(row, ends, &state));
        }
        self.insert_apart(ends, state, moved)
    }

    /// One more flow.
    fn count(&mut self, state: &CellState) {
        if self.flows == 0 {
            self.common_knee = state.knee;
        }
        self.flows += 1;
        if self.deviates(state.weight, state.knee) {
            self.uncommon += 1;
            self.need_terms();
        }
    }

    /// Takes a flow into a row for both racks that has room for it.
    pub(super) fn insert_joint(&mut self, row: u16, ends: [End; 2], state: &CellState) -> Cell {
        self.grow();
        self.count(state);
        let (row, lane) = self.joint.put(row, ends, state);
        if let Some(terms) = &mut self.terms {
            terms.joint_weight[row].0[lane] = state.weight;
            terms.joint_knee[row].0[lane] = state.knee;
        }
        JointRows::cell(row, lane)
    }

    /// Takes a flow into the rows of its two racks.
    pub(super) fn insert_apart(
        &mut self,
        [source, destination]: [End; 2],
        state: CellState,
        moved: &mut impl FnMut(u32, Cell),
    ) -> Option<Cell> {
        let near = Share::new(usize::from(destination.table), self.down.tables());
        let up = self.take_up(source, near)?;
        let Some(down) = self.take_down(destination, moved) else {
            self.up.remove(up);
            return None;
        };
        self.count(&state);
        self.write_up(up, down, state.weight);
        self.write_down(down, up, &state);
        Some(down)
    }

    /// Takes an upward cell; a row is only opened if moving one other flow does not make room.
    pub(super) fn take_up(&mut self, end: End, near: Share) -> Option<Cell> {
        let (table, slots) = (usize::from(end.table), end.slots);
        let up = match self.up.insert(table, slots, near) {
            Some(up) => up,
            None => {
                if let Some(aside) = self.up.aside(table, slots, near) {
                    self.shift_up(aside);
                    self.up.insert(table, slots, near)?
                } else {
                    self.up.insert_in_new(table, slots, near, MAX_ROWS)?
                }
            }
        };
        self.grow();
        Some(up)
    }

    fn shift_up(&mut self, aside: Aside) {
        let (row, lane) = split(aside.cell);
        let down = self.down_of(aside.cell);
        let up = self.up.shift(aside);
        self.back[row].0[lane] = 0;
        if let Some(terms) = &mut self.terms {
            terms.inverse_weight[row].0[lane] = 0.0;
        }
        self.write_up(up, down, self.weight(down));
        let (row, lane) = split(down);
        self.mate[row].0[lane] = up;
    }

    /// The downward cell of the flow in an upward one: of those with the right low half the one whose mate
    /// this is. Events ask for it, iterations do not, so it takes half the room.
    pub(super) fn down_of(&self, up: Cell) -> Cell {
        let (row, lane) = split(up);
        let low = Cell::from(self.back[row].0[lane]);
        let step = (1 << u16::BITS) / LANES;
        let (first, lane) = split(low);
        let rows = (first..self.mate.len()).step_by(step);
        let cell = |row: usize| (row * LANES + lane) as Cell;
        let mut of_flow = rows.filter(|&row| self.mate[row].0[lane] == up);
        of_flow.next().map_or(0, cell)
    }

    /// Writes down which downward cell the flow of an upward one has.
    pub(super) fn point_back(&mut self, up: Cell, down: Cell) {
        let (row, lane) = split(up);
        self.back[row].0[lane] = down as u16;
    }

    /// Lets a downward cell have no upward one.
    pub(super) fn forget_mate(&mut self, down: Cell) {
        let (row, lane) = split(down);
        self.mate[row].0[lane] = 0;
    }

    /// Takes a downward cell likewise.
    pub(super) fn take_down(
        &mut self,
        end: End,
        moved: &mut impl FnMut(u32, Cell),
    ) -> Option<Cell> {
        let (table, slots) = (usize::from(end.table), end.slots);
        let down = match self.down.insert(table, slots, Share::FIRST) {
            Some(down) => down,
            None => {
                if let Some(aside) = self.down.aside(table, slots, Share::FIRST) {
                    self.shift_down(aside, moved);
                    self.down.insert(table, slots, Share::FIRST)?
                } else {
                    let limit = MAX_ROWS - self.joint.len();
                    self.down.insert_in_new(table, slots, Share::FIRST, limit)?
                }
            }
        };
        self.grow();
        Some(down)
    }

    fn shift_down(&mut self, aside: Aside, moved: &mut impl FnMut(u32, Cell)) {
        let (row, lane) = split(aside.cell);
        let (state, up) = (self.state(aside.cell), self.mate[row].0[lane]);
        let down = self.down.shift(aside);
        self.write_nothing(aside.cell);
        self.write_down(down, up, &state);
        self.point_back(up, down);
        moved(state.flow, down);
    }

    pub(super) fn write_up(&mut self, up: Cell, down: Cell, weight: f32) {
        let (row, lane) = split(up);
        self.back[row].0[lane] = down as u16;
        if let Some(terms) = &mut self.terms {
            terms.inverse_weight[row].0[lane] = weight.recip();
        }
    }

    pub(super) fn write_down(&mut self, down: Cell, up: Cell, state: &CellState) {
        let (row, lane) = split(down);
        self.mate[row].0[lane] = up;
        self.rate[row].0[lane] = state.rate;
        self.told[row].0[lane] = state.told;
        self.flow[row][lane] = state.flow;
        if let Some(terms) = &mut self.terms {
            terms.weight[row].0[lane] = state.weight;
            terms.knee[row].0[lane] = state.knee;
        }
    }

    pub(super) fn clear_up(&mut self, up: Cell) {
        let (row, lane) = split(up);
        if let Some(terms) = &mut self.terms {
            terms.inverse_weight[row].0[lane] = 0.0;
        }
        self.back[row].0[lane] = 0;
        self.up.remove(up);
    }

    pub(super) fn clear_down(&mut self, down: Cell) {
        self.write_nothing(down);
        self.down.remove(down);
    }

    fn write_nothing(&mut self, down: Cell) {
        let nothing = CellState {
            flow: NO_FLOW,
            weight: 0.0,
            knee: self.common_knee,
            rate: 0.0,
            told: 0.0,
        };
        self.write_down(down, 0, &nothing);
    }

    /// Changes weight and knee of a flow.
    pub(super) fn set_terms(&mut self, cell: Cell, weight: f32, knee: f32) {
        let old = self.state(cell);
        self.uncommon -= usize::from(self.deviates(old.weight, old.knee));
        let deviates = self.deviates(weight, knee);
        self.uncommon += usize::from(deviates);
        if deviates {
            self.need_terms();
        }
        let Some(terms) = &mut self.terms else {
            return;
        };
        if let Some((row, lane)) = self.joint.find(cell) {
            terms.joint_weight[row].0[lane] = weight;
            terms.joint_knee[row].0[lane] = knee;
            return;
        }
        let (row, lane) = split(cell);
        terms.weight[row].0[lane] = weight;
        terms.knee[row].0[lane] = knee;
        let (row, lane) = split(self.mate[row].0[lane]);
        terms.inverse_weight[row].0[lane] = weight.recip();
    }

    pub(super) fn state(&self, cell: Cell) -> CellState {
        let lists = |row: usize, lane: usize, terms: Option<[&Vec<Lanes>; 2]>| {
            terms.map_or([1.0, self.common_knee], |lists| {
                lists.map(|list| list[row].0[lane])
            })
        };
        let terms = self.terms.as_ref();
        if let Some((row, lane)) = self.joint.find(cell) {
            let terms = terms.map(|terms| [&terms.joint_weight, &terms.joint_knee]);
            let [weight, knee] = lists(row, lane, terms);
            return CellState {
                flow: self.joint.flow[row][lane],
                weight,
                knee,
                rate: self.joint.rate[row].0[lane],
                told: self.joint.told[row].0[lane],
            };
        }
        let (row, lane) = split(cell);
        let terms = terms.map(|terms| [&terms.weight, &terms.knee]);
        let [weight, knee] = lists(row, lane, terms);
        CellState {
            flow: self.flow[row][lane],
            weight,
            knee,
            rate: self.rate[row].0[lane],
            told: self.told[row].0[lane],
        }
    }

    /// Gives the flow in a cell a rate, if it is this one.
    pub(super) fn set_rate(&mut self, cell: Cell, flow: u32, rate: f32) {
        let (of_cell, (row, lane)) = match self.joint.find(cell) {
            Some(at) => ((&self.joint.flow, &mut self.joint.rate), at),
            None => ((&self.flow, &mut self.rate), split(cell)),
        };
        let (flows, rates) = of_cell;
        if flows.get(row).is_some_and(|flows| flows[lane] == flow) {
            rates[row].0[lane] = rate;
        }
    }

    /// Both ends of the flow in a cell.
    pub(super) fn ends(&self, cell: Cell) -> [End; 2] {
        let ends = match self.joint.find(cell) {
            Some((row, lane)) => {
                let cell = (row * LANES + lane) as Cell;
                [(&self.joint.up, cell), (&self.joint.down, cell)]
            }
            None => {
                let (row, lane) = split(cell);
                [(&self.up, self.mate[row].0[lane]), (&self.down, cell)]
            }
        };
        ends.map(|(side, cell)| End {
            table: side.table_of(cell) as u16,
            slots: side.slots(cell),
        })
    }

    /// Lets a flow go.
    pub(super) fn remove(&mut self, cell: Cell) {
        let old = self.state(cell);
        self.uncommon -= usize::from(self.deviates(old.weight, old.knee));
        self.flows -= 1;
        if let Some((row, lane)) = self.joint.find(cell) {
            if let Some(terms) = &mut self.terms {
                terms.joint_weight[row].0[lane] = 0.0;
            }
            self.joint.remove(row, lane);
            return;
        }
        let (row, lane) = split(cell);
        self.clear_up(self.mate[row].0[lane]);
        self.clear_down(cell);
    }

    /// Puts rows in order if many are not; says of each flow which cell it has now. Returns whether any
    /// were moved.
    pub(super) fn tidy(&mut self, mut moved: impl FnMut(u32, Cell)) -> bool {
        let of_joint = self.joint.down.is_disordered();
        if of_joint {
            self.order_joint(&mut moved);
        }
        if !self.up.is_disordered() && !self.down.is_disordered() {
            return of_joint;
        }
        let (up, up_rows) = self.up.put_in_order();
        let (down, down_rows) = self.down.put_in_order();
        if self.uncommon == 0 {
            self.terms = None;
        }
        if let Some(terms) = &mut self.terms {
            terms.inverse_weight = reorder(&terms.inverse_weight, &up, up_rows);
            terms.weight = reorder(&terms.weight, &down, down_rows);
            terms.knee = reorder(&terms.knee, &down, down_rows);
        }
        self.mate = reorder(&self.mate, &down, down_rows);
        self.rate = reorder(&self.rate, &down, down_rows);
        self.told = reorder(&self.told, &down, down_rows);
        self.flow = reorder(&self.flow, &down, down_rows);
        let renumber = |cells: &mut Cells, now: &[u16]| {
            for cell in &mut cells.0 {
                *cell =
                    Cell::from(now[*cell as usize / LANES]) * LANES as Cell + *cell % LANES as Cell;
            }
        };
        self.mate.iter_mut().for_each(|cells| renumber(cells, &up));
        self.back = vec![Halves::default(); up_rows];
        for (row, &used) in self.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                let (up_row, up_lane) = split(self.mate[row].0[lane]);
                self.back[up_row].0[up_lane] = (row * LANES + lane) as u16;
            }
        }
        for (row, (flows, used)) in self.flow.iter().zip(&self.down.used).enumerate() {
            for (lane, &flow) in flows.iter().enumerate() {
                if used >> lane & 1 == 1 {
                    moved(flow, (row * 16 + lane) as Cell);
                }
            }
        }
        true
    }

    fn order_joint(&mut self, moved: &mut impl FnMut(u32, Cell)) {
        let (now, rows) = self.joint.put_in_order();
        if let Some(terms) = &mut self.terms {
            terms.joint_weight = reorder(&terms.joint_weight, &now, rows);
            terms.joint_knee = reorder(&terms.joint_knee, &now, rows);
        }
        for (row, &used) in self.joint.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                moved(self.joint.flow[row][lane], JointRows::cell(row, lane));
            }
        }
    }

    /// Weight of the flow in a downward cell.
    pub(super) fn weight(&self, down: Cell) -> f32 {
        let (row, lane) = split(down);
        self.terms
            .as_ref()
            .map_or(1.0, |terms| terms.weight[row].0[lane])
    }
}

impl CellTerms {
    fn fit(&mut self, up: usize, down: usize, joint: usize) {
        fit(&mut self.inverse_weight, up, Lanes::default());
        fit(&mut self.weight, down, Lanes::default());
        fit(&mut self.knee, down, Lanes([1.0; 16]));
        fit(&mut self.joint_weight, joint, Lanes::default());
        fit(&mut self.joint_knee, joint, Lanes([1.0; 16]));
    }

    pub(super) fn bytes(&self) -> usize {
        let apart = self.weight.capacity() + self.knee.capacity() + self.inverse_weight.capacity();
        let joint = self.joint_weight.capacity() + self.joint_knee.capacity();
        (apart + joint) * size_of::<Lanes>()
    }
}
