//! The flows from one block of racks to another (flowtune §4), in two orders.
//!
//! A flow has a cell on its upward side, among the flows of its source rack, and one on its downward
//! side, among those of its destination rack. What is stored per flow is in downward order; `mate` says
//! for each downward cell which upward cell is the same flow, `back` the other way round.

use super::lanes::{Halves, LANES, Lanes};
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

/// Weights and knees of the flows of a FlowBlock.
#[derive(Debug, Default)]
pub(super) struct CellTerms {
    pub(super) weight: Vec<Lanes>,
    pub(super) knee: Vec<Lanes>,
    /// By upward row: 1 / weight.
    pub(super) inverse_weight: Vec<Lanes>,
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
    /// By upward row: the downward cell.
    pub(super) back: Vec<Halves>,
    /// By downward row: the upward cell.
    pub(super) mate: Vec<Halves>,
    pub(super) rate: Vec<Lanes>,
    pub(super) told: Vec<Lanes>,
    pub(super) flow: Vec<[u32; 16]>,
    /// Weights and knees. While all flows have weight 1 and the same knee, they take no room.
    pub(super) terms: Option<CellTerms>,
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
        fit(&mut self.back, up, Halves::default());
        fit(&mut self.mate, down, Halves::default());
        if let Some(terms) = &mut self.terms {
            terms.fit(up, down);
        }
        fit(&mut self.rate, down, Lanes::default());
        fit(&mut self.told, down, Lanes::default());
        fit(&mut self.flow, down, [NO_FLOW; 16]);
    }

    /// Weight and knee of the flow in a downward cell.
    fn terms_at(&self, (row, lane): (usize, usize)) -> (f32, f32) {
        match &self.terms {
            Some(terms) => (terms.weight[row].0[lane], terms.knee[row].0[lane]),
            None => (1.0, self.common_knee),
        }
    }

    /// Weights and knees, each in its place.
    fn make_terms(&self) -> CellTerms {
        let mut terms = CellTerms::default();
        terms.fit(self.up.len(), self.down.len());
        for (row, &used) in self.down.used.iter().enumerate() {
            for lane in lanes_of(used) {
                terms.weight[row].0[lane] = 1.0;
                terms.knee[row].0[lane] = self.common_knee;
            }
        }
        for (row, &used) in self.up.used.iter().enumerate() {
            lanes_of(used).for_each(|lane| terms.inverse_weight[row].0[lane] = 1.0);
        }
        terms
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
        if let Some(terms) = &mut self.terms {
            terms.set((row, lane), (up_row, up_lane), 1.0, self.common_knee);
        }
        self.set_terms(down, state.weight, state.knee);
        Some(down)
    }

    /// Changes weight and knee of a flow.
    pub(super) fn set_terms(&mut self, cell: u16, weight: f32, knee: f32) {
        let (row, lane) = split(cell);
        let (old_weight, old_knee) = self.terms_at((row, lane));
        self.uncommon -= usize::from(self.deviates(old_weight, old_knee));
        let deviates = self.deviates(weight, knee);
        self.uncommon += usize::from(deviates);
        if deviates && self.terms.is_none() {
            self.terms = Some(self.make_terms());
        }
        if let Some(terms) = &mut self.terms {
            let up = split(self.mate[row].0[lane]);
            terms.set((row, lane), up, weight, knee);
        }
    }

    pub(super) fn state(&self, cell: u16) -> CellState {
        let (row, lane) = split(cell);
        let (weight, knee) = self.terms_at((row, lane));
        CellState {
            flow: self.flow[row][lane],
            weight,
            knee,
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
        if let Some(terms) = &mut self.terms {
            terms.weight[row].0[lane] = 0.0;
            terms.inverse_weight[up_row].0[up_lane] = 0.0;
        }
        self.back[up_row].0[up_lane] = 0;
        self.mate[row].0[lane] = 0;
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
        if self.uncommon == 0 {
            self.terms = None;
        }
        if let Some(terms) = &mut self.terms {
            terms.inverse_weight = reorder(&terms.inverse_weight, &up, up_rows);
            terms.weight = reorder(&terms.weight, &down, down_rows);
            terms.knee = reorder(&terms.knee, &down, down_rows);
        }
        self.back = reorder(&self.back, &up, up_rows);
        self.mate = reorder(&self.mate, &down, down_rows);
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
            + self.terms.as_ref().map_or(0, CellTerms::bytes)
            + self.back.capacity() * size_of::<Halves>()
            + self.mate.capacity() * size_of::<Halves>()
            + (self.rate.capacity() + self.told.capacity()) * size_of::<Lanes>()
            + self.flow.capacity() * size_of::<[u32; 16]>()
    }
}

impl CellTerms {
    fn fit(&mut self, up: usize, down: usize) {
        fit(&mut self.inverse_weight, up, Lanes::default());
        fit(&mut self.weight, down, Lanes::default());
        fit(&mut self.knee, down, Lanes([1.0; 16]));
    }

    fn set(&mut self, down: (usize, usize), up: (usize, usize), weight: f32, knee: f32) {
        self.weight[down.0].0[down.1] = weight;
        self.knee[down.0].0[down.1] = knee;
        self.inverse_weight[up.0].0[up.1] = weight.recip();
    }

    fn bytes(&self) -> usize {
        let rows = self.weight.capacity() + self.knee.capacity() + self.inverse_weight.capacity();
        rows * size_of::<Lanes>()
    }
}

fn lanes_of(used: u16) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| used >> lane & 1 == 1)
}

/// Lengthens a list of rows.
fn fit<T: Copy>(list: &mut Vec<T>, rows: usize, empty: T) {
    if rows > list.capacity() {
        list.reserve_exact(growth(list.len()).max(rows - list.len()));
    }
    list.resize(rows, empty);
}
