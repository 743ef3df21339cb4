//! A datacenter on one machine, behind the `ratewright-lab` program.
//!
//! | module | what |
//! |---|---|
//! | [`run`] | a run from its first check to its clean-up |
//! | [`report`] | results afterwards |
//! | [`scenario`] | what the lab does with its network |
//! | [`lab`] | checks, test bed, control plane |
//! | [`view`] | the picture meanwhile |
//! | [`net`] | namespaces, links, queues, path choice |
//! | [`traffic`] | plain TCP senders and receivers |
//! | [`measure`] | what is measured, and the arithmetic on it |
//! | [`cleanup`], [`mod@proc`] | clean-up, processes of hosts |
//! | [`options`], [`cancel`] | the command line, the user's wish to leave |

pub mod cancel;
pub mod cleanup;
pub mod lab;
pub mod measure;
pub mod net;
pub mod options;
pub mod proc;
pub mod report;
pub mod run;
pub mod scenario;
pub mod traffic;
pub mod view;
