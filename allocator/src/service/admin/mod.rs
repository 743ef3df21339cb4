//! The admin HTTP server, on a thread and runtime of its own, so that a busy service does not delay
//! it.
//!
//! | module | contents |
//! |---|---|
//! | `routes` | the endpoints |
//! | `page` | the read-only page: its files, the topology as a picture |
//! | `events` | what the page shows, once a second |
//! | `audited` | the record of changing requests |
//! | `server` | the thread that serves them; [`ratewright_io::admin`] listens |
//! | [`logging`] | the log filter, which can change at run time |
//! | [`metrics`] | a snapshot as Prometheus text |

mod audited;
mod events;
pub mod logging;
pub mod metrics;
mod page;
mod routes;
mod server;

pub use routes::{AdminState, router};
pub use server::{AdminError, AdminServer, serve};
