//! What a run leaves behind: figures with the paper's numbers beside ours, summaries of plans, plots.
//!
//! | module | what lives there |
//! |---|---|
//! | [`figure`] | a reproduced figure: rows {name, paper, ours, unit, verdict}, seed, commit, notes |
//! | [`tally`] | the verdicts of several figures together |
//! | [`plot`] | SVG pictures of panels with lines or bars, in one palette |
//! | [`stats`] | Jain's index, percentiles, means |
//! | [`summary`] | `summary.json` of a plan |
//! | [`ideal`] | the completion time on an empty network |
//! | [`classes`] | flows by size, as flowtune fig. 12 groups them |
//! | [`commit`] | which source a result came from |

pub mod classes;
pub mod commit;
pub mod figure;
pub mod ideal;
pub mod plot;
pub mod stats;
pub mod summary;
pub mod tally;

pub use figure::{Figure, Number, Paper, ReportError, Row, Verdict};
