//! Ratewright for operators, behind the `ratewright` program; and the tools that the lab and the
//! benchmarks share with it.
//!
//! | module | what |
//! |---|---|
//! | [`topology_cmd`], [`certs`], [`status`], [`release`] | the subcommands |
//! | [`topology_import`] | topology files out of EC2's and Slurm's own words |
//! | [`admin`] | a client of the admin interfaces |
//! | [`broken_pipe`], [`output`] | pipes and terminals without a reader |
//! | [`clock`], [`process`], [`tool`] | time, child processes, `ip` and `tc` |

pub mod admin;
pub mod broken_pipe;
pub mod certs;
pub mod clock;
pub mod output;
pub mod process;
pub mod release;
pub mod status;
pub mod tool;
pub mod topology_cmd;
pub mod topology_import;
