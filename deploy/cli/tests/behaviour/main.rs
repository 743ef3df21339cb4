//! Behaviour of the operators' program, and of what it is shipped with.

#![allow(clippy::unwrap_used)]

mod cli;
mod refusal;
mod topology_import;
mod units;
