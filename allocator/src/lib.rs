//! Ratewright's allocator: network utility maximisation for every active flowlet, and the service
//! around it.
//!
//! | module | contents | must not know |
//! |---|---|---|
//! | [`num`] | utilities, optimisers, normalisers, distance from the optimum: arithmetic over slices | threads, I/O |
//! | [`engine`] | the flow table, the iteration, what drives it | sessions, sockets |
//! | [`feeds`] | measurements of others' traffic as capacity, dummy flows and demand | clocks, sockets |
//! | [`shared_links`] | links that paced flows share with traffic which nobody paces | clocks, sockets |
//! | [`link_check`] | what was handed out against what links carried | clocks, sockets |
//! | [`service`] | configuration, transport, sessions, admin, metrics, kill switch | how rates are found |

pub mod engine;
pub mod feeds;
pub mod link_check;
pub mod num;
pub mod service;
pub mod shared_links;
