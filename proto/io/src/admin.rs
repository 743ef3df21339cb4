//! What the admin interfaces of all daemons have in common: HTTP on TCP or a Unix socket, which no
//! web page can use to change anything.
//!
//! | module | what |
//! |---|---|
//! | `address` | where one listens |
//! | `listen` | binding and serving |
//! | `guard` | no web page changes anything |

mod address;
mod guard;
mod listen;

pub use address::{AdminAddress, AdminAddressError};
pub use listen::{Listener, SocketFile};
