//! Ratewright's endpoint daemon: flowlet detection and socket pacing in the kernel, and the client session to the allocator.

pub mod backend;
