//! Listening for admin requests, on TCP or a Unix socket.

use std::fs::Permissions;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use super::AdminAddress;
use super::guard::{AccessRules, refuse};
use super::peer::Peer;
use super::stall::ImpatientListener;

/// The mode of a Unix socket.
const MODE: u32 = 0o660;

/// A bound listener. A Unix socket's file is removed when this or its [`SocketFile`] is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: AdminAddress,
    file: Option<SocketFile>,
}

#[derive(Debug)]
enum Socket {
    Tcp(StdTcpListener),
    Unix(StdUnixListener),
}

/// File of a bound Unix socket, removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: a file that another process has put there since stays.
    identity: Option<(u64, u64)>,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have bound the path since; its file must stay.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // The file may be gone already, and a drop cannot return an error.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds a Unix socket. It replaces a file that a killed predecessor left, but not one on which a
/// process listens.
fn bind_unix(path: &Path) -> io::Result<(StdUnixListener, SocketFile)> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other("the file is there and is no socket"));
        }
        if StdUnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another process listens on it"));
        }
        // Refused connections mean that its process is gone: the file is a left-over.
        std::fs::remove_file(path)?;
    }
    // For owner and group only, from the first moment on. The file takes the socket's mode less the
    // process's umask, and changing the umask would affect other threads.
    let socket = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    fchmod(&socket, Mode::from_bits_truncate(MODE))?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
    listen(&socket, Backlog::MAXCONN)?;
    let listener = StdUnixListener::from(socket);
    let file = SocketFile {
        identity: identity(path),
        path: path.to_owned(),
    };
    Ok((listener, file))
}

/// Prefix of the present version of all paths. Below it fields come, and none goes or changes its
/// meaning.
const VERSION: &str = "/v1";

fn versioned(router: Router) -> Router {
    Router::new().nest(VERSION, router.clone()).merge(router)
}

impl Listener {
    /// Binds the address. A socket file of an earlier run is replaced; the owner and its group may
    /// connect.
    ///
    /// # Errors
    /// When the address cannot be bound, or the path is taken by something that is no socket, or by
    /// one on which a process listens.
    pub fn bind(address: &AdminAddress) -> io::Result<Self> {
        match address {
            AdminAddress::Tcp(tcp) | AdminAddress::WritableTcp(tcp) => {
                let listener = StdTcpListener::bind(tcp)?;
                listener.set_nonblocking(true)?;
                let bound = listener.local_addr()?;
                let address = match address {
                    AdminAddress::WritableTcp(_) => AdminAddress::WritableTcp(bound),
                    _ => AdminAddress::Tcp(bound),
                };
                Ok(Self {
                    address,
                    socket: Socket::Tcp(listener),
                    file: None,
                })
            }
            AdminAddress::Unix(path) => {
                let (listener, file) = bind_unix(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self {
                    address: address.clone(),
                    socket: Socket::Unix(listener),
                    file: Some(file),
                })
            }
        }
    }

    /// Address of the listener, with the real port if the requested one was 0.
    #[must_use]
    pub fn address(&self) -> &AdminAddress {
        &self.address
    }

    /// Takes over the removal of the socket's file, for an owner that outlives the serving task.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Serves `router` until the task is dropped, below `/v1` and, for people and pages,
    /// without it. It refuses requests that a web page can cause, and changes if the address is for
    /// reading.
    pub async fn serve(self, router: Router) {
        let rules = Arc::new(AccessRules::of(&self.address));
        let router = versioned(router)
            .layer(from_fn_with_state(rules, refuse))
            .into_make_service_with_connect_info::<Peer>();
        let served = async {
            match self.socket {
                Socket::Tcp(listener) => {
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    axum::serve(ImpatientListener::new(listener), router).await
                }
                Socket::Unix(listener) => {
                    let listener = tokio::net::UnixListener::from_std(listener)?;
                    axum::serve(ImpatientListener::new(listener), router).await
                }
            }
        };
        if let Err(error) = served.await {
            tracing::error!(%error, "the admin interface stopped");
        }
    }
}
