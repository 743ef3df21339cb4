//! What the lab measures, and the arithmetic on it.
//!
//! | module | what |
//! |---|---|
//! | [`stats`] | Jain's index, percentiles, medians |
//! | [`recording`] | per-flow bytes, port counters and events of one phase |
//! | [`windows`] | settled windows, link use over windows |
//! | [`ports`] | reads a switch port's byte counter every 10 ms |
//! | [`sockdiag`] | asks a host's kernel how its sockets are paced |

pub mod ports;
pub mod recording;
pub mod sockdiag;
pub mod stats;
pub mod windows;
