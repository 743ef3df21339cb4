//! What the allocator, the endpoint daemon and the load tool share.
//!
//! | module | what is in it |
//! |---|---|
//! | [`udp`] | UDP sockets that move many datagrams per system call |
//! | [`transport`] | what carries the datagrams of client sessions: QUIC, sealed datagrams over such a socket, or whichever gets through |

pub mod transport;
pub mod udp;
