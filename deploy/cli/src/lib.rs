//! Ratewright for operators, behind the `ratewright` program; and the tools that the lab and the
//! benchmarks share with it.
//!
//! | module | what |
//! |---|---|
//! | [`topology_cmd`], [`certs`], [`status`], [`release`] | the subcommands |
//! | [`topology_import`] | topology files out of EC2's and Slurm's own words |
//! | [`top`], [`explain`], [`endpointd`] | more of them |
//! | [`units`] | numbers and names for people |
//! | [`admin`] | a client of the admin interfaces |
//! | [`broken_pipe`], [`output`] | pipes and terminals without a reader |
//! | [`clock`], [`process`], [`tool`] | time, child processes, `ip` and `tc` |

pub mod admin;
pub mod broken_pipe;
pub mod certs;
pub mod clock;
pub mod endpointd;
pub mod explain;
pub mod output;
pub mod process;
pub mod release;
pub mod status;
pub mod tool;
pub mod top;
pub mod topology_cmd;
pub mod topology_import;
pub mod units;
