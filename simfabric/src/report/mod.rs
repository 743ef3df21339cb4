//! Results of runs: figures with the paper's numbers beside ours, summaries of plans, pictures.
//!
//! | module | what lives there |
//! |---|---|
//! | [`figure`] | a reproduced figure: rows {name, paper, ours, interval, unit, verdict}, seeds, commit |
//! | [`estimate`] | means over seeds with 95 % intervals |
//! | [`stationarity`] | end of a warm-up by MSER-5 |
//! | [`tally`] | verdicts of several figures |
//! | `plot` | SVG pictures of panels with curves or bars, in one palette: the crate of that name |
//! | [`stats`] | Jain's index, percentiles, means |
//! | [`summary`] | `summary.json` of a plan |
//! | [`ideal`] | completion time on an empty network |
//! | [`size_groups`] | groups of flows by size |
//! | [`mod@file`] | files of results, and their errors |

pub mod estimate;
pub mod figure;
pub mod file;
pub mod ideal;
pub mod size_groups;
pub mod stationarity;
pub mod stats;
pub mod summary;
pub mod tally;

pub use estimate::Estimate;
pub use figure::{Claim, Figure, Paper, Row, Verdict};
pub use file::ReportError;
pub(crate) use ratewright_plot as plot;
