//! The admin HTTP server, on a thread and runtime of its own so that it answers whatever the service does.
//!
//! | module | what |
//! |---|---|
//! | `routes` | the endpoints |
//! | `server` | the thread that serves them; listening is [`ratewright_io::admin`]'s |
//! | [`logging`] | the log filter that can be changed at run time |
//! | [`metrics`] | a snapshot as Prometheus text |

pub mod logging;
pub mod metrics;
mod routes;
mod server;

pub use routes::{AdminState, router};
pub use server::{AdminError, AdminServer, serve};
