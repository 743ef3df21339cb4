//! What the allocator, the endpoint daemon and the load tool share.
//!
//! | module | what is in it |
//! |---|---|
//! | [`udp`] | UDP sockets that move many datagrams per system call |
//! | [`transport`] | sealed datagrams of many sessions over one such socket, client side, and the keys of a QUIC connection |

pub mod transport;
pub mod udp;
