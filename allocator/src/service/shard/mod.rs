//! The service thread.

pub mod transport;
pub mod window;
