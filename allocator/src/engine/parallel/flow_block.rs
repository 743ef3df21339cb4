//! The flows from one block of racks to another (flowtune §4), in two orders.
//!
//! A flow has a cell on its upward side, among the flows of its source rack, and one on its downward
//! side, among those of its destination rack. What is stored per flow is in downward order; `mate` says
//! for each downward cell which upward cell is the same flow, `back` the other way round.

use super::lanes::{Halves, Lanes};
use super::layout::FlowBlockShape;
use super::rows::{RowSet, Slots, growth, reorder, split};

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
    /// By upward row: 1 / weight.
    pub(super) inverse_weight: Vec<Lanes>,
    /// By upward row: the downward cell.
    pub(super) back: Vec<Halves>,
    /// By downward row: the upward cell.
    pub(super) mate: Vec<Halves>,
    pub(super) weight: Vec<Lanes>,
    pub(super) knee: Vec<Lanes>,
    pub(super) rate: Vec<Lanes>,
    pub(super) told: Vec<Lanes>,
    pub(super) flow: Vec<[u32; 16]>,
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
            inverse_weight: Vec::new(),
            back: Vec::new(),
            mate: Vec::new(),
            weight: Vec::new(),
            knee: Vec::new(),
            rate: Vec::new(),
            told: Vec::new(),
            flow: Vec::new(),
            common_knee: 0.0,
            uncommon: 0,
            flows: 0,
        };
        block.grow();
        block
    }

    /// All flows have weight 1 and the same knee.
    pub(super) fn is_plain(&self) -> bool {
        self.uncommon == 0
    }

    pub(super) fn flows(&self) -> usize {
        self.flows
    }

    fn grow(&mut self) {
        let (up, down) = (self.up.len(), self.down.len());
        fit(&mut self.inverse_weight, up, Lanes::default());
        fit(&mut self.back, up, Halves::default());
        fit(&mut self.mate, down, Halves::default());
        fit(&mut self.weight, down, Lanes::default());
        fit(&mut self.knee, down, Lanes([1.0; 16]));
        fit(&mut self.rate, down, Lanes::default());
        fit(&mut self.told, down, Lanes::default());
        fit(&mut self.flow, down, [NO_FLOW; 16]);
    }

    fn deviates(&self, weight: f32, knee: f32) -> bool {
        weight != 1.0 || knee != self.common_knee
    }

    /// Takes a flow in; returns its downward cell, or nothing if there is no room.
    pub(super) fn insert(&mut self, ends: [End; 2], state: CellState) -> Option<u16> {
        let [source, destination] = ends;
        let up = self.up.insert(usize::from(source.table), source.slots)?;
        let Some(down) = self
            .down
            .insert(usize::from(destination.table), destination.slots)
        else {
            self.up.remove(up);
            return None;
        };
        self.grow();
        if self.flows == 0 {
            self.common_knee = state.knee;
        }
        self.flows += 1;
        let (up_row, up_lane) = split(up);
        self.back[up_row].0[up_lane] = down;
        let (row, lane) = split(down);
        self.mate[row].0[lane] = up;
        self.rate[row].0[lane] = state.rate;
        self.told[row].0[lane] = state.told;
        self.flow[row][lane] = state.flow;
        self.weight[row].0[lane] = 1.0;
        self.knee[row].0[lane] = self.common_knee;
        self.inverse_weight[up_row].0[up_lane] = 1.0;
        self.set_terms(down, state.weight, state.knee);
        Some(down)
    }

    /// Changes weight and knee of a flow.
    pub(super) fn set_terms(&mut self, cell: u16, weight: f32, knee: f32) {
        let (row, lane) = split(cell);
        let was = self.deviates(self.weight[row].0[lane], self.knee[row].0[lane]);
        self.uncommon -= usize::from(was);
        self.uncommon += usize::from(self.deviates(weight, knee));
        self.weight[row].0[lane] = weight;
        self.knee[row].0[lane] = knee;
        let (up_row, up_lane) = split(self.mate[row].0[lane]);
        self.inverse_weight[up_row].0[up_lane] = weight.recip();
    }

    pub(super) fn state(&self, cell: u16) -> CellState {
        let (row, lane) = split(cell);
        CellState {
            flow: self.flow[row][lane],
            weight: self.weight[row].0[lane],
            knee: self.knee[row].0[lane],
            rate: self.rate[row].0[lane],
            told: self.told[row].0[lane],
        }
    }

    /// Lets a flow go.
    pub(super) fn remove(&mut self, cell: u16) {
        let (row, lane) = split(cell);
        let common = self.common_knee;
        self.set_terms(cell, 1.0, common);
        let up = self.mate[row].0[lane];
        let (up_row, up_lane) = split(up);
        self.inverse_weight[up_row].0[up_lane] = 0.0;
        self.back[up_row].0[up_lane] = 0;
        self.mate[row].0[lane] = 0;
        self.weight[row].0[lane] = 0.0;
        self.rate[row].0[lane] = 0.0;
        self.told[row].0[lane] = 0.0;
        self.flow[row][lane] = NO_FLOW;
        self.up.remove(up);
        self.down.remove(cell);
        self.flows -= 1;
    }

    /// Puts rows in order if many are not; says of each flow which cell it has now.
    pub(super) fn tidy(&mut self, mut moved: impl FnMut(u32, u16)) {
        if !self.up.is_disordered() && !self.down.is_disordered() {
            return;
        }
        let (up, down) = (self.up.put_in_order(), self.down.put_in_order());
        let (up_rows, down_rows) = (self.up.len(), self.down.len());
        self.inverse_weight = reorder(&self.inverse_weight, &up, up_rows);
        self.back = reorder(&self.back, &up, up_rows);
        self.mate = reorder(&self.mate, &down, down_rows);
        self.weight = reorder(&self.weight, &down, down_rows);
        self.knee = reorder(&self.knee, &down, down_rows);
        self.rate = reorder(&self.rate, &down, down_rows);
        self.told = reorder(&self.told, &down, down_rows);
        self.flow = reorder(&self.flow, &down, down_rows);
        let renumber = |cells: &mut Halves, now: &[u16]| {
            for cell in &mut cells.0 {
                *cell = now[usize::from(*cell / 16)] * 16 + *cell % 16;
            }
        };
        self.mate.iter_mut().for_each(|cells| renumber(cells, &up));
        self.back
            .iter_mut()
            .for_each(|cells| renumber(cells, &down));
        for (row, (flows, used)) in self.flow.iter().zip(&self.down.used).enumerate() {
            for (lane, &flow) in flows.iter().enumerate() {
                if used >> lane & 1 == 1 {
                    moved(flow, (row * 16 + lane) as u16);
                }
            }
        }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.up.bytes()
            + self.down.bytes()
            + self.inverse_weight.capacity() * size_of::<Lanes>()
            + self.back.capacity() * size_of::<Halves>()
            + self.mate.capacity() * size_of::<Halves>()
            + (self.weight.capacity() + self.knee.capacity()) * size_of::<Lanes>()
            + (self.rate.capacity() + self.told.capacity()) * size_of::<Lanes>()
            + self.flow.capacity() * size_of::<[u32; 16]>()
    }
}

/// Lengthens a list of rows.
fn fit<T: Copy>(list: &mut Vec<T>, rows: usize, empty: T) {
    if rows > list.capacity() {
        list.reserve_exact(growth(list.len()).max(rows - list.len()));
    }
    list.resize(rows, empty);
}
