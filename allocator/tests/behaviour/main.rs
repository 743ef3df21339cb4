//! Behaviour of the allocator across modules: optimisers, engines, and the service as a process.

mod barrier_model;
mod engine_churn;
mod num_convergence;
mod num_optimizers;
mod num_oracle;
mod num_support;
mod parallel_equality;
mod promised;
mod service_checks;
mod service_cli;
#[cfg(feature = "dpdk")]
mod service_dpdk;
mod service_earlier_files;
mod service_engine_death;
mod service_floods;
mod service_lifecycle;
mod service_names;
mod service_operations;
mod service_page;
mod service_relay;
mod service_sealed;
mod service_sessions;
mod service_support;
mod service_trust;
