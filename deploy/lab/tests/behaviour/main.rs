//! Behaviour of the lab: its command line, its network and clean-up, and whole scenarios.

#![allow(clippy::unwrap_used)]

mod cli;
mod common;
mod ecmp_twin;
mod lab_baseline;
mod lab_crash;
mod lab_full;
mod lab_obey;
mod nightly;
#[path = "../../../cli/tests/behaviour/refusal/mod.rs"]
mod refusal;
