//! What the engine keeps in memory, by part.

use super::ParallelEngine;
use super::flow_block::FlowBlock;
use super::lanes::{Cells, Halves, Lanes, Words};
use super::rack_pair_rows::RackPairRows;
use super::rows::FlowRows;
use super::scalar_flows::ScalarFlow;
use super::sync::{lock, read};

/// Bytes that an engine takes, by what they are for, and the rows that it has for its flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineBytes {
    /// From a key to its flow's number.
    pub index: usize,
    /// The keys and homes of flows, by number.
    pub directory: usize,
    /// Look-up words.
    pub words: usize,
    /// What rows have room for, and which rows there are.
    pub row_state: usize,
    /// Which downward cell belongs to an upward one, and the other way round.
    pub cell_maps: usize,
    /// Rates, computed and notified.
    pub rates: usize,
    /// The numbers of the flows in cells.
    pub flow_numbers: usize,
    /// Weights and saturation prices that differ.
    pub terms: usize,
    /// What waits for rows.
    pub event_batches: usize,
    /// Flows that are worked on one by one.
    pub scalar_flows: usize,
    /// Prices, rooms, capacities and the steps of links.
    pub prices: usize,
    /// The workers' sums.
    pub link_block_copies: usize,
    /// Where each link is.
    pub link_places: usize,
    /// What lets prices answer events.
    pub price_correction: usize,
    /// Rows on the upward side.
    pub upward_rows: usize,
    /// Rows on the downward side.
    pub downward_rows: usize,
    /// Rows for both sides.
    pub rack_pair_rows: usize,
}

impl EngineBytes {
    /// Those that flows take: cells, look-up words and the index.
    #[must_use]
    pub fn of_flows(&self) -> usize {
        let rows = self.words + self.row_state + self.cell_maps + self.rates + self.flow_numbers;
        self.index + self.directory + rows + self.terms + self.event_batches + self.scalar_flows
    }

    /// All that is kept of links: prices, sums and the rest of what iterations keep, and where each link is
    /// and what it has, which events look up.
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
}

impl ParallelEngine {
    /// Counts the bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> EngineBytes {
        let shared = &self.shared;
        let mut bytes = EngineBytes {
            index: self.directory.index_bytes(),
            directory: self.directory.bytes(),
            link_places: self.shared.layout.bytes() + self.capacities.capacity() * size_of::<f32>(),
            price_correction: self
                .correction
                .as_ref()
                .map_or(0, |correction| correction.bytes()),
            ..EngineBytes::default()
        };
        for block in &shared.flow_blocks {
            bytes.add_flow_block(&lock(block));
        }
        for pending in &shared.batches {
            bytes.event_batches += lock(pending).bytes();
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
