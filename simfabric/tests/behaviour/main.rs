//! Behaviour of the simulated fabric across modules, and of its commands.

mod allocations;
mod common;
mod comparisons;
mod dart;
mod dart_failures;
mod dart_hostile;
mod dumbbell;
mod feeds;
mod golden;
mod messages;
mod oracles;
mod pair;
mod pfc;
mod plan_mutations;
mod plans;
mod rdma;
mod rdma_hostile;
mod receiver_driven;
mod results;
mod rpm;
mod stop;
mod swift;
mod switches;
mod telemetry;
mod uncontended;
mod windows;
