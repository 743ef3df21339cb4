//! Behaviour of the measuring programs.

#![allow(clippy::unwrap_used)]

mod bench;
#[path = "../../../allocator/tests/behaviour/num_support/mod.rs"]
mod num_support;
mod optimizers;
mod swarm;
