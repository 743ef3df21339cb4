//! The engine's memory by part, per flow.

use ratewright_allocator::engine::parallel::EngineBytes;
use serde::Serialize;

/// Bytes per flow, and how full rows are.
#[derive(Debug, Clone, Serialize)]
pub(super) struct BytesPerFlow {
    directory: f64,
    words: f64,
    row_state: f64,
    moves: f64,
    rates: f64,
    numbers: f64,
    terms: f64,
    pending: f64,
    loose: f64,
    prices: f64,
    sums: f64,
    places: f64,
    answers: f64,
    /// Flows of a row of either side, those for both sides included, where all would be fifteen.
    flows_per_upward_row: f64,
    flows_per_downward_row: f64,
    /// Share of the rows that are for both sides.
    joint_rows: f64,
}

impl BytesPerFlow {
    pub(super) fn of(bytes: &EngineBytes, flows: usize) -> Self {
        let flows = flows as f64;
        let per_flow = |bytes: usize| bytes as f64 / flows;
        // A rack-pair row holds its flows for both sides.
        let rows = |rows: usize| flows / ((rows + bytes.rack_pair_rows).max(1)) as f64;
        Self {
            directory: per_flow(bytes.directory),
            words: per_flow(bytes.words),
            row_state: per_flow(bytes.row_state),
            moves: per_flow(bytes.cell_maps),
            rates: per_flow(bytes.rates),
            numbers: per_flow(bytes.flow_numbers),
            terms: per_flow(bytes.terms),
            pending: per_flow(bytes.event_batches),
            loose: per_flow(bytes.scalar_flows),
            prices: per_flow(bytes.prices),
            sums: per_flow(bytes.link_block_copies),
            places: per_flow(bytes.link_places),
            answers: per_flow(bytes.price_correction),
            flows_per_upward_row: rows(bytes.upward_rows),
            flows_per_downward_row: rows(bytes.downward_rows),
            joint_rows: bytes.rack_pair_rows as f64
                / (bytes.downward_rows + bytes.rack_pair_rows).max(1) as f64,
        }
    }
}
