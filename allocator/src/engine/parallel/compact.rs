//! Compaction: moves flows into rack-pair rows, out of underfilled rows, and beside flows with the
//! same destination.

use super::cell::{FlowEnd, Slots, split};
use super::flow_block::FlowBlock;
use super::lanes::{CellIndex, HOST_SLOTS};
use super::rack_pair_rows::{MIN_FLOWS, fits_pair_row};
use super::rows::{MAX_ROWS, ROW_FLOWS, RelativePos};

/// Tables of either side that one call compacts at most.
pub(super) const MAX_TABLES: usize = 4;
/// Rows after which a call compacts no further table. A table costs half a µs per row to examine,
/// and up to seven to refill.
const MAX_COMPACTED_ROWS: usize = 64;

/// Fraction of their source's rows by which flows may lie from their preferred row on average, plus
/// one row. Without any order the distance is a third.
const MEAN_DISTANCE: usize = 6;
/// Upper bound of a greedy refill's additional rows, as a multiple of the former ones. A flow that
/// fits nowhere meets full rows, rows with its host, and rows with its fabric link twice.
const GREEDY: usize = 2;

/// Rack-pair row that is being composed.
#[derive(Default)]
struct Draft {
    hosts: [u64; 2],
    fabric: [u16; 2],
    cells: Vec<(CellIndex, [FlowEnd; 2])>,
}

impl Draft {
    fn take(&mut self, cell: CellIndex, ends: &[FlowEnd; 2]) -> bool {
        let [up, down] = ends.map(|end| 1u64 << end.slots.host);
        let Slots {
            fabric, no_fabric, ..
        } = ends[0].slots;
        let fabric = if no_fabric { 0 } else { 1u16 << fabric };
        let fits = self.hosts[0] & up == 0
            && self.hosts[1] & down == 0
            && self.fabric[0] & self.fabric[1] & fabric == 0
            && self.cells.len() < ROW_FLOWS as usize;
        if fits {
            self.hosts[0] |= up;
            self.hosts[1] |= down;
            self.fabric[1] |= self.fabric[0] & fabric;
            self.fabric[0] |= fabric;
            self.cells.push((cell, *ends));
        }
        fits
    }
}

/// Sorts flows so that those of the most frequent hosts come first: they are the hardest to place.
fn sort_by_host_frequency(flows: &mut [(CellIndex, [FlowEnd; 2])]) {
    let mut met = [[0u8; HOST_SLOTS]; 2];
    let hosts = |ends: &[FlowEnd; 2]| ends.map(|end| usize::from(end.slots.host));
    for (_, ends) in &*flows {
        for (met, host) in met.iter_mut().zip(hosts(ends)) {
            met[host] = met[host].saturating_add(1);
        }
    }
    flows.sort_by_key(|(_, ends)| {
        let [up, down] = hosts(ends);
        std::cmp::Reverse(met[0][up].max(met[1][down]))
    });
}

impl FlowBlock {
    /// Compacts up to `tables` changed tables of either side. Relocates every flow that it moves.
    /// Returns true if there was a changed table.
    pub(super) fn compact(
        &mut self,
        tables: usize,
        mut relocate: impl FnMut(u32, CellIndex),
    ) -> bool {
        let mut found = false;
        let mut rows = 0;
        for _ in 0..tables {
            if rows > MAX_COMPACTED_ROWS {
                break;
            }
            let first = self.next_table[1];
            let in_rack_rows = self.down.changed_table(first);
            let Some(table) = in_rack_rows.or_else(|| self.pairs.down.changed_table(first)) else {
                break;
            };
            found = true;
            rows += self.down.rows_of(table).len();
            self.next_table[1] = table + 1;
            // Flows over the cores have planes, which rack-pair rows do not hold.
            if self.core_blocks.is_none() {
                self.dissolve_sparse_pairs(table, &mut relocate);
                self.form_pair_rows(table, &mut relocate);
            }
            if self.down.is_underfilled(table) {
                self.refill_down(table, &mut relocate);
            }
            // Compaction itself inserts and removes flows; these are no changes.
            self.down.clear_changes(table);
            self.pairs.down.clear_changes(table);
        }
        for _ in 0..tables {
            if rows > MAX_COMPACTED_ROWS {
                break;
            }
            let Some(table) = self.up.changed_table(self.next_table[0]) else {
                break;
            };
            found = true;
            rows += self.up.rows_of(table).len();
            self.next_table[0] = table + 1;
            if self.up.is_underfilled(table) || self.lost_destination_order(table) {
                self.refill_up(table);
            }
            self.up.clear_changes(table);
        }
        found
    }

    /// Moves the flows of sparse rack-pair rows to a rack back to the rack rows.
    fn dissolve_sparse_pairs(&mut self, table: usize, relocate: &mut impl FnMut(u32, CellIndex)) {
        for cell in self.pairs.sparse_cells(table) {
            let (state, ends) = (self.state(cell), self.ends(cell));
            // Inserted first, so that the flow stays where it is if there is no space.
            if let Some(now) = self.insert_in_rack_rows(ends, state, relocate) {
                self.remove(cell);
                relocate(state.flow, now);
            }
        }
    }

    /// Moves flows to a rack that share their source rack with enough others into rack-pair rows.
    fn form_pair_rows(&mut self, table: usize, relocate: &mut impl FnMut(u32, CellIndex)) {
        let cells = self.down.cells(table);
        let mut flows: Vec<(CellIndex, [FlowEnd; 2])> = cells
            .map(|cell| (cell, self.ends(cell)))
            .filter(|(_, ends)| fits_pair_row(ends))
            .collect();
        // `chunk_by` needs the flows of a source side by side.
        flows.sort_by_key(|(_, ends)| ends[0].table);
        for of_pair in flows.chunk_by(|a, b| a.1[0].table == b.1[0].table) {
            let mut left = of_pair.to_vec();
            // Free lanes of existing rows first: they cost nothing.
            left.retain(|&(cell, ends)| {
                let Some(row) = self.pairs.row_for(&ends) else {
                    return true;
                };
                let state = self.state(cell);
                let now = self.insert_in_pair_row(row, ends, &state);
                self.remove(cell);
                relocate(state.flow, now);
                false
            });
            while left.len() >= MIN_FLOWS {
                sort_by_host_frequency(&mut left);
                let mut draft = Draft::default();
                left.retain(|(cell, ends)| !draft.take(*cell, ends));
                // Too few are left for another row; they stay in their rack rows.
                if draft.cells.len() < MIN_FLOWS {
                    break;
                }
                let Some(row) = self.pairs.open(&draft.cells[0].1, self.down.len()) else {
                    return;
                };
                for (cell, ends) in draft.cells {
                    let state = self.state(cell);
                    let now = self.insert_in_pair_row(row, ends, &state);
                    self.remove(cell);
                    relocate(state.flow, now);
                }
            }
        }
    }

    /// True if a rack's flows have lost the order of their destinations.
    ///
    /// The pass in downward order reads and writes upward rows. If each source's rows hold its
    /// flows by destination, the flows to one rack come from one or two rows of each source. These
    /// stay in the first-level cache until the next rack's flows have used the rest of them.
    pub(super) fn lost_destination_order(&self, table: usize) -> bool {
        let rows = self.up.rows_of(table);
        let (mut flows, mut distance) = (0, 0);
        for (place, &row) in rows.iter().enumerate() {
            for cell in self.up.cells_of(row) {
                flows += 1;
                let preferred = self.preferred_pos(self.down_cell_of(cell));
                distance += preferred.of(rows.len()).abs_diff(place);
            }
        }
        distance > flows * (1 + rows.len() / MEAN_DISTANCE)
    }

    /// Preferred position of a flow among its source's rows, by its destination.
    fn preferred_pos(&self, down: CellIndex) -> RelativePos {
        RelativePos::new(self.down.table_of(down), self.down.tables())
    }

    /// Takes the flows to a rack out and inserts them again, into fewer rows.
    fn refill_down(&mut self, table: usize, relocate: &mut impl FnMut(u32, CellIndex)) {
        let limit = MAX_ROWS - self.pairs.len();
        // Checked before anything moves: halfway, flows would have no cell.
        if self.down.len() + GREEDY * self.down.rows_of(table).len() > limit {
            return;
        }
        let cells: Vec<CellIndex> = self.down.cells(table).collect();
        // All states are read before any cell is freed, since the new cells reuse the old rows.
        let flows: Vec<_> = cells
            .iter()
            .map(|&cell| (self.state(cell), split(cell), self.down.slots(cell)))
            .map(|(state, (row, lane), slots)| (state, self.up_cell[row].0[lane], slots))
            .collect();
        for &cell in &cells {
            self.free_down(cell);
        }
        for (state, up, slots) in flows {
            let table = table as u16;
            let cell = self.take_down(FlowEnd { table, slots }, relocate);
            let cell = cell.expect("as many rows as a greedy choice can need are free");
            self.write_down(cell, up, &state);
            self.set_down_cell(up, cell);
            relocate(state.flow, cell);
        }
    }

    /// Takes the flows from a rack out and inserts them again, by destination.
    fn refill_up(&mut self, table: usize) {
        if self.up.len() + GREEDY * self.up.rows_of(table).len() > MAX_ROWS {
            return;
        }
        let cells: Vec<CellIndex> = self.up.cells(table).collect();
        let mut flows: Vec<_> = cells
            .iter()
            .map(|&cell| (self.down_cell_of(cell), self.up.slots(cell)))
            .map(|(down, slots)| (self.down.table_of(down), down, slots))
            .collect();
        // By destination, then by cell: flows of one downward row end up side by side.
        flows.sort_unstable_by_key(|&(destination, down, _)| (destination, down));
        for &cell in &cells {
            self.free_up(cell);
        }
        // Otherwise a stale upward cell could be taken for the one that another flow has now:
        // `down_cell_of` compares them.
        for &(_, down, _) in &flows {
            self.clear_up_cell(down);
        }
        // Empty rows first, so that each flow finds its preferred row already there.
        for place in 0..flows.len().div_ceil(ROW_FLOWS as usize) {
            self.up.add_row(table, place, MAX_ROWS);
        }
        for (_, down, slots) in flows {
            let table = table as u16;
            let cell = self.take_up(FlowEnd { table, slots }, self.preferred_pos(down));
            let cell = cell.expect("as many rows as a greedy choice can need are free");
            let (row, lane) = split(down);
            self.up_cell[row].0[lane] = cell;
            self.set_down_cell(cell, down);
        }
        self.up.close_empty(table);
    }
}
