//! The simulated fabric: the production allocator and the production session state machines, packet
//! by packet, next to the schemes of the papers that Ratewright builds on.
//!
//! This crate is a map so far; each part arrives with its own change.
//!
//! | module to come | what will live there |
//! |---|---|
//! | `engine` | integer picoseconds, events keyed by (time, sequence), no allocation per packet in steady state |
//! | `net` | links, hosts with NIC queues, switches with per-port priorities, one file per queue discipline |
//! | `transport` | one file per scheme behind one sans-IO trait (start, packet, timer) |
//! | `workload` | Poisson flowlets of published size distributions, incast, permutation, traces |
//! | `experiment` | one file per paper figure: scenario, sweep, the paper's numbers, the comparison |
//! | [`control`] | Flowtune's control plane without a network: production sessions and engine |
//! | [`report`] | tables, CSV and JSON with seed and commit, SVG plots |

pub mod control;
pub mod report;
