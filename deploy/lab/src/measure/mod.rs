//! The lab's measurements, and the arithmetic on them.
//!
//! | module | what |
//! |---|---|
//! | [`stats`] | Jain's index, percentiles, medians |
//! | [`recording`] | per-flow bytes, port counters and events of one phase |
//! | [`windows`] | settled windows, link use over windows |
//! | [`ports`] | reads a switch port's byte counter every 10 ms |
//! | [`sockdiag`] | asks a host's kernel how its sockets are paced |
//! | [`backoff`] | watches for connections in back-off that send no data |
//! | [`response`] | how fast a traced flow's rate responds |
//! | [`segments`] | counts segments that hosts have sent again |
//! | [`processor`] | processor time of the whole machine |

pub mod backoff;
pub mod ports;
pub mod processor;
pub mod recording;
pub mod response;
pub mod segments;
pub mod sockdiag;
pub mod stats;
pub mod windows;
