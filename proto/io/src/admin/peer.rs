//! Client of an admin interface, as far as the kernel tells.

use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, UnixListener};

use super::stall::ImpatientListener;

/// Client of an admin interface. Requests carry it as
/// [`ConnectInfo`](axum::extract::ConnectInfo).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process at the Unix socket, as it was when it connected (SO_PEERCRED).
    Unix {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Its number, if the kernel tells.
        pid: Option<i32>,
    },
    /// A client at the TCP address.
    Tcp(SocketAddr),
}

impl Connected<IncomingStream<'_, ImpatientListener<TcpListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, ImpatientListener<TcpListener>>) -> Self {
        Self::Tcp(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, ImpatientListener<UnixListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, ImpatientListener<UnixListener>>) -> Self {
        // The kernel knows the peer of every connected socket; an error names nobody.
        let peer = stream.io().get_ref().peer_cred();
        Self::Unix {
            uid: peer.as_ref().map_or(u32::MAX, tokio::net::unix::UCred::uid),
            gid: peer.as_ref().map_or(u32::MAX, tokio::net::unix::UCred::gid),
            pid: peer.as_ref().ok().and_then(tokio::net::unix::UCred::pid),
        }
    }
}
