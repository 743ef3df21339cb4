//! The admin interface: a small HTTP server on the daemon's own thread.
//!
//! | request | answer |
//! |---|---|
//! | `GET /live` | 200 while the loop turns |
//! | `GET /ready` | 200 while a session is established, else 503 and why not |
//! | `GET /metrics` | Prometheus text |
//! | `GET /status` | JSON, see [`crate::status::Status`] |
//! | `GET /first-paced` | JSON array of recent samples in microseconds |
//! | `GET`, `PUT /log-level` | the filter, as `info` or `ratewright_endpointd=debug` |
//!
//! Handlers ask the daemon's loop over a channel, so that an answer is also a proof that it turns.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use nix::sys::stat::{Mode, umask};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};

use crate::config::AdminAddress;
use crate::status::Status;

/// Requests that wait for the loop at once; more are refused.
const QUEUE: usize = 64;

/// What a handler asks the daemon's loop.
#[derive(Debug)]
pub enum AdminRequest {
    /// The status.
    Status(oneshot::Sender<Box<Status>>),
    /// The metrics' text.
    Metrics(oneshot::Sender<String>),
    /// Recent first-paced samples, in microseconds.
    FirstPaced(oneshot::Sender<Vec<u32>>),
}

/// Reads and sets the log filter of the process.
pub trait LogFilter: Send + Sync {
    /// The filter now.
    fn get(&self) -> String;
    /// Sets it.
    ///
    /// # Errors
    /// With what is wrong with the text.
    fn set(&self, filter: &str) -> Result<(), String>;
}

#[derive(Clone)]
struct Admin {
    requests: mpsc::Sender<AdminRequest>,
    log: Option<Arc<dyn LogFilter>>,
}

/// Makes the channel between the handlers and the loop.
#[must_use]
pub fn channel() -> (mpsc::Sender<AdminRequest>, mpsc::Receiver<AdminRequest>) {
    mpsc::channel(QUEUE)
}

/// The routes.
pub fn router(requests: mpsc::Sender<AdminRequest>, log: Option<Arc<dyn LogFilter>>) -> Router {
    Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/first-paced", get(first_paced))
        .route("/log-level", get(get_log).put(put_log))
        .with_state(Admin { requests, log })
}

/// A listener that is bound.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix socket.
    Unix(UnixListener, SocketFile),
}

/// The file of a bound Unix socket; it goes when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: a file that someone else has put there since stays.
    identity: Option<(u64, u64)>,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // It may have gone already; there is nobody left to tell.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds a Unix socket, replacing one that a killed predecessor left behind, never one on which
/// somebody listens.
fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other("the file is there and is no socket"));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another process listens on it"));
        }
        std::fs::remove_file(path)?;
    }
    // For the owner and its group from the first moment on.
    let before = umask(Mode::from_bits_truncate(0o117));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound?;
    let file = SocketFile {
        identity: identity(path),
        path: path.to_owned(),
    };
    Ok((listener, file))
}

impl Listener {
    /// Binds. A socket file that is left from an earlier run is replaced; the owner and its group may
    /// connect.
    ///
    /// # Errors
    /// When the address cannot be bound, or the path is taken by something that is no socket, or by
    /// one on which somebody listens.
    pub async fn bind(address: &AdminAddress) -> io::Result<Self> {
        match address {
            AdminAddress::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            AdminAddress::Unix(path) => {
                bind_unix(path).map(|(listener, file)| Self::Unix(listener, file))
            }
        }
    }

    /// Serves until the task is dropped, which removes a socket's file.
    pub async fn serve(self, router: Router) {
        let served = match self {
            Self::Tcp(listener) => axum::serve(listener, router).await,
            Self::Unix(listener, _file) => axum::serve(listener, router).await,
        };
        if let Err(error) = served {
            tracing::error!(%error, "the admin interface stopped");
        }
    }
}

impl Admin {
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> AdminRequest,
    ) -> Result<T, Response> {
        let busy = || {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "the daemon's loop does not answer\n",
            )
                .into_response()
        };
        let (answer, answered) = oneshot::channel();
        self.requests
            .try_send(request(answer))
            .map_err(|_| busy())?;
        answered.await.map_err(|_| busy())
    }
}

async fn live(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::Status).await {
        Ok(_) => "live\n".into_response(),
        Err(busy) => busy,
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::Status).await {
        Ok(status) if status.is_ready() => "ready\n".into_response(),
        Ok(status) => {
            let why = status
                .session
                .last_error
                .as_deref()
                .unwrap_or("no session with the allocator yet");
            (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {why}\n"),
            )
                .into_response()
        }
        Err(busy) => busy,
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::Metrics).await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(busy) => busy,
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::Status).await {
        Ok(status) => axum::Json(status).into_response(),
        Err(busy) => busy,
    }
}

async fn first_paced(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::FirstPaced).await {
        Ok(samples) => axum::Json(samples).into_response(),
        Err(busy) => busy,
    }
}

async fn get_log(State(admin): State<Admin>) -> Response {
    match admin.log {
        Some(log) => (log.get() + "\n").into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn put_log(State(admin): State<Admin>, filter: String) -> Response {
    let Some(log) = admin.log else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match log.set(filter.trim()) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "the log filter was changed");
            (log.get() + "\n").into_response()
        }
        Err(problem) => (StatusCode::BAD_REQUEST, problem + "\n").into_response(),
    }
}
