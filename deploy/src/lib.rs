//! Ratewright for operators, behind the `ratewright` program.
//!
//! | module | what |
//! |---|---|
//! | [`lab`] | a datacenter on one machine: checks, sites, control plane |
//! | [`scenario`] | what the lab does with it |
//! | [`net`] | namespaces, links, queues, path choice |
//! | [`traffic`] | plain TCP senders and receivers |
//! | [`measure`] | what is measured, and the arithmetic on it |
//! | [`report`], [`view`] | results afterwards, and the picture meanwhile |
//! | [`reaper`], [`mod@proc`], [`clock`], [`broken_pipe`] | clean-up, processes, time, pipes that nobody reads |
//! | [`bench_cmd`] | measurements of the optimisers |
//! | [`swarm`] | thousands of sessions with one allocator, measured |
//! | [`certs`], [`status`], [`admin`], [`topology_cmd`] | the other subcommands |

pub mod admin;
pub mod bench_cmd;
pub mod broken_pipe;
pub mod certs;
pub mod clock;
pub mod lab;
pub mod measure;
pub mod net;
pub mod proc;
pub mod reaper;
pub mod report;
pub mod scenario;
pub mod status;
pub mod swarm;
pub mod topology_cmd;
pub mod traffic;
pub mod view;
