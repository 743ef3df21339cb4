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
//! Handlers ask the daemon's loop over a channel, so an answer also proves that the loop turns.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{mpsc, oneshot};

use crate::status::Status;

/// Most requests that wait for the loop; more are refused.
const QUEUE: usize = 64;

/// Request of a handler to the daemon's loop.
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
    /// Returns the present filter.
    fn get(&self) -> String;
    /// Replaces the filter.
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

/// Builds the router of all requests.
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
        // Never waits for a full queue: a loop that is stuck must show as 503, not as a hanging
        // request.
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
