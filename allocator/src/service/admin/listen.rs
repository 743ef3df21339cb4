//! Listening for admin requests, on TCP or a Unix socket.

use std::net::TcpListener as StdTcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use axum::Router;

use super::guard::Hosts;
use super::routes::{AdminState, router};
use crate::service::config::AdminAddress;

/// Why the admin server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be listened on.
    #[error("admin = \"{address}\": cannot listen: {reason}")]
    Listen {
        /// The address.
        address: AdminAddress,
        /// Why.
        reason: String,
    },
    /// The thread or its runtime could not be made.
    #[error("cannot start the admin thread")]
    Thread(#[from] std::io::Error),
}

/// A running admin server. Its socket file goes when this is dropped; its thread ends with the process.
#[derive(Debug)]
pub struct AdminServer {
    address: AdminAddress,
    socket_file: Option<PathBuf>,
    _thread: JoinHandle<()>,
}

impl AdminServer {
    /// Where it listens: the real port if the configured one was 0.
    pub fn address(&self) -> &AdminAddress {
        &self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        if let Some(path) = &self.socket_file {
            // The socket may have been replaced or removed already; there is nobody left to tell.
            let _ = std::fs::remove_file(path);
        }
    }
}

enum Listener {
    Tcp(StdTcpListener),
    Unix(StdUnixListener),
}

/// Binds a Unix socket, replacing one that a killed predecessor left behind.
fn bind_unix(path: &Path) -> std::io::Result<StdUnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(std::io::Error::other("the file is there and is no socket"));
        }
        if StdUnixStream::connect(path).is_ok() {
            return Err(std::io::Error::other("another process listens on it"));
        }
        std::fs::remove_file(path)?;
    }
    let listener = StdUnixListener::bind(path)?;
    // The kill switch is for the owner and its group.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Binds the address and serves the allocator's endpoints on a thread of its own.
pub fn spawn(address: &AdminAddress, state: AdminState) -> Result<AdminServer, AdminError> {
    serve(address, router(state, Hosts::of(address)))
}

/// Binds the address and serves what is given on a thread of its own.
pub fn serve(address: &AdminAddress, app: Router) -> Result<AdminServer, AdminError> {
    let refused = |source: std::io::Error| AdminError::Listen {
        address: address.clone(),
        reason: source.to_string(),
    };
    let (listener, bound, socket_file) = match address {
        AdminAddress::Tcp(tcp) => {
            let listener = StdTcpListener::bind(tcp).map_err(refused)?;
            listener.set_nonblocking(true)?;
            let bound = AdminAddress::Tcp(listener.local_addr()?);
            (Listener::Tcp(listener), bound, None)
        }
        AdminAddress::Unix(path) => {
            let listener = bind_unix(path).map_err(refused)?;
            listener.set_nonblocking(true)?;
            (
                Listener::Unix(listener),
                address.clone(),
                Some(path.clone()),
            )
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            let served = runtime.block_on(async move {
                match listener {
                    Listener::Tcp(listener) => {
                        axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await
                    }
                    Listener::Unix(listener) => {
                        axum::serve(tokio::net::UnixListener::from_std(listener)?, app).await
                    }
                }
            });
            if let Err(error) = served {
                tracing::error!(%error, "the admin server ended");
            }
        })?;
    Ok(AdminServer {
        address: bound,
        socket_file,
        _thread: thread,
    })
}
