//! Memory of the engine, by part.

use super::flow_block::FlowBlock;
use super::flows::EngineFlows;
use super::lanes::{Cells, Halves, Lanes, Words};
use super::rack_pair_rows::RackPairRows;
use super::rows::FlowRows;
use super::scalar_flows::ScalarFlow;
use super::shared::ParallelState;
use super::sync::{lock, read};

/// Bytes of an engine by purpose, and the numbers of its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineBytes {
    /// Generations and locations, by flow number.
    pub directory: usize,
    /// Look-up words.
    pub words: usize,
    /// Occupancy of rows, and their lists by table.
    pub row_state: usize,
    /// Maps between upward and downward cells.
    pub cell_maps: usize,
    /// Rates, computed and last notified.
    pub rates: usize,
    /// Flow numbers by cell.
    pub flow_numbers: usize,
    /// Weights, saturation prices and demands, of FlowBlocks where they differ.
    pub terms: usize,
    /// Queued events.
    pub event_batches: usize,
    /// Flows of the scalar path.
    pub scalar_flows: usize,
    /// Prices, F-NORM scales, capacities and step lengths of links.
    pub prices: usize,
    /// The workers' private LinkBlock copies.
    pub link_block_copies: usize,
    /// LinkBlock, table and slot of each link.
    pub link_places: usize,
    /// Index of dirty links, for the price correction.
    pub price_correction: usize,
    /// Rows on the upward side.
    pub upward_rows: usize,
    /// Rows on the downward side.
    pub downward_rows: usize,
    /// Rack-pair rows.
    pub rack_pair_rows: usize,
}

impl EngineBytes {
    /// Bytes that grow with flows: cells, look-up words, locations, queues.
    #[must_use]
    pub fn of_flows(&self) -> usize {
        let rows = self.words + self.row_state + self.cell_maps + self.rates + self.flow_numbers;
        self.directory + rows + self.terms + self.event_batches + self.scalar_flows
    }

    /// Bytes that grow with links: prices, sums, places and the index of dirty links.
    #[must_use]
    pub fn of_links(&self) -> usize {
        self.prices + self.link_block_copies + self.link_places + self.price_correction
    }

    fn add_rows(&mut self, rows: &FlowRows) {
        self.words += rows.words.capacity() * size_of::<Words>();
        self.row_state += rows.state_bytes();
    }

    fn add_rack_pairs(&mut self, pairs: &RackPairRows) {
        self.add_rows(&pairs.up);
        self.add_rows(&pairs.down);
        self.rates += (pairs.rate.capacity() + pairs.notified.capacity()) * size_of::<Lanes>();
        self.flow_numbers += pairs.flow.capacity() * size_of::<[u32; 16]>();
        // Row 0 belongs to no table, so it does not count.
        self.rack_pair_rows += pairs.len() - 1;
    }

    fn add_flow_block(&mut self, block: &FlowBlock) {
        self.add_rows(&block.up);
        self.add_rows(&block.down);
        self.add_rack_pairs(&block.pairs);
        self.cell_maps += block.down_cell_low.capacity() * size_of::<Halves>();
        self.cell_maps += block.up_cell.capacity() * size_of::<Cells>();
        self.rates += (block.rate.capacity() + block.notified.capacity()) * size_of::<Lanes>();
        self.flow_numbers += block.flow.capacity() * size_of::<[u32; 16]>();
        self.terms += block.terms.as_ref().map_or(0, |terms| terms.bytes());
        self.upward_rows += block.up.len() - 1;
        self.downward_rows += block.down.len() - 1;
    }

    /// Counts the bytes of an engine's parts. Locks each once.
    pub(super) fn count(shared: &ParallelState, flows: &EngineFlows) -> Self {
        let mut bytes = Self {
            directory: flows.directory.bytes(),
            link_places: shared.layout.bytes() + flows.capacities.capacity() * size_of::<f32>(),
            price_correction: flows
                .correction
                .as_ref()
                .map_or(0, |correction| correction.bytes()),
            ..Self::default()
        };
        for block in &shared.flow_blocks {
            bytes.add_flow_block(&lock(block));
        }
        for batch in &shared.batches {
            bytes.event_batches += lock(batch).bytes();
        }
        for list in &shared.scalar_flows {
            bytes.scalar_flows += lock(list).flows.capacity() * size_of::<ScalarFlow>();
        }
        for block in &shared.link_blocks {
            bytes.prices += read(block).bytes();
        }
        for copies in &shared.copies {
            bytes.link_block_copies += read(copies)
                .iter()
                .map(|copies| copies.bytes())
                .sum::<usize>();
        }
        bytes
    }
}
