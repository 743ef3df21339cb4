//! Behaviour of the measuring programs.

#![allow(clippy::unwrap_used)]

mod bench;
mod swarm;
