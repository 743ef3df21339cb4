//! The admin HTTP server, on a thread and runtime of its own so that it answers whatever the service does.
//!
//! | module | what |
//! |---|---|
//! | `routes` | the endpoints |
//! | `guard` | no web page changes anything |
//! | `listen` | TCP or Unix socket |
//! | [`logging`] | the log filter that can be changed at run time |
//! | [`metrics`] | a snapshot as Prometheus text |

mod guard;
mod listen;
pub mod logging;
pub mod metrics;
mod routes;

pub use listen::{AdminError, AdminServer, serve, spawn};
pub use routes::AdminState;
