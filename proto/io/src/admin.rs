//! Common part of all daemons' admin interfaces: HTTP on TCP or a Unix socket, which no web page
//! can use to change anything.
//!
//! | module | holds |
//! |---|---|
//! | `address` | the address of an admin interface |
//! | `listen` | binding and serving |
//! | `stall` | the end of connections whose peers do not read |
//! | `peer` | who asks |
//! | `guard` | the refusal of requests that web pages can cause |

mod address;
mod guard;
mod listen;
mod peer;
mod stall;

pub use address::{AdminAddress, AdminAddressError};
pub use listen::{Listener, SocketFile};
pub use peer::Peer;
