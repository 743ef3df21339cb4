//! A datacenter on one machine, behind the `ratewright-lab` program.
//!
//! | module | what |
//! |---|---|
//! | [`lab`] | a datacenter on one machine: checks, sites, control plane |
//! | [`scenario`] | what the lab does with it |
//! | [`net`] | namespaces, links, queues, path choice |
//! | [`traffic`] | plain TCP senders and receivers |
//! | [`measure`] | what is measured, and the arithmetic on it |
//! | [`report`], [`view`] | results afterwards, and the picture meanwhile |
//! | [`reaper`], [`mod@proc`] | clean-up, processes of hosts |

pub mod lab;
pub mod measure;
pub mod net;
pub mod proc;
pub mod reaper;
pub mod report;
pub mod scenario;
pub mod traffic;
pub mod view;
