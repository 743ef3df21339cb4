//! Server-sent events for the page: one overview a second, shared by all watchers.
//!
//! An overview is made while somebody watches, once a second whatever their number is. A watcher
//! that reads slowly skips overviews; the listener drops one that does not read at all
//! ([`ratewright_io::admin`]). The figures that the page draws over time are kept always.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::MissedTickBehavior;

use super::routes::{AdminState, NoAnswer, refusal};
use crate::service::admin_request::AdminRequest;
use crate::service::clock;
use crate::service::overview::HistoryPoint;

/// Most watchers at a time.
const MAX_WATCHERS: usize = 16;

/// Interval of overviews.
const INTERVAL: Duration = Duration::from_secs(1);

/// Age up to which an overview serves further requests: a little less than the interval, so that
/// each tick makes one.
const FRESH_NS: u64 = 900_000_000;

/// Seconds of history.
const HISTORY: usize = 900;

/// Source of the events.
#[derive(Debug, Clone)]
pub(super) struct Events {
    newest: Arc<tokio::sync::Mutex<Option<(u64, Bytes)>>>,
    sender: Arc<watch::Sender<Bytes>>,
    history: Arc<Mutex<VecDeque<HistoryPoint>>>,
    places: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            newest: Arc::default(),
            sender: Arc::new(watch::Sender::new(Bytes::new())),
            history: Arc::default(),
            places: Arc::new(Semaphore::new(MAX_WATCHERS)),
        }
    }
}

impl Events {
    /// Makes an event each second while somebody watches, and keeps the history. Never ends.
    pub(super) async fn run(&self, state: &AdminState) {
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Ok(point) = state.ask(AdminRequest::HistoryPoint).await {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                if history.len() >= HISTORY {
                    history.pop_front();
                }
                history.push_back(point);
            }
            // Without an answer the page hears nothing, and says so.
            if self.sender.receiver_count() > 0
                && let Ok(overview) = self.overview(state).await
            {
                self.sender.send_replace(event("overview", &overview));
            }
        }
    }

    /// Returns an overview as JSON that is at most a second old. One request makes it, others that
    /// come meanwhile wait for it.
    async fn overview(&self, state: &AdminState) -> Result<Bytes, NoAnswer> {
        let mut newest = self.newest.lock().await;
        if let Some((made_ns, overview)) = &*newest
            && clock::now_ns().saturating_sub(*made_ns) < FRESH_NS
        {
            return Ok(overview.clone());
        }
        let made_ns = clock::now_ns();
        let overview = state.ask(AdminRequest::Overview).await?;
        // Serialisation of our own types into memory has nothing to fail at.
        let json = Bytes::from(serde_json::to_vec(&overview).map_err(|_| NoAnswer)?);
        *newest = Some((made_ns, json.clone()));
        Ok(json)
    }

    fn history(&self) -> Vec<HistoryPoint> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.iter().copied().collect()
    }
}

/// Returns an event in the form of the HTML standard, section 9.2. JSON of serde has no line
/// breaks.
fn event(name: &str, json: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(json.len() + 32);
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    text.extend_from_slice(json);
    text.extend_from_slice(b"\n\n");
    Bytes::from(text)
}

/// True for a request that a page of another site has caused: it must not take a place.
fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers
        .get("sec-fetch-site")
        .and_then(|site| site.to_str().ok());
    !matches!(site, None | Some("same-origin" | "none"))
}

fn foreign() -> Response {
    refusal(
        StatusCode::FORBIDDEN,
        "only the allocator's own page may ask for this",
    )
}

/// `GET /overview`: for pages whose events do not get through.
pub(super) async fn overview(
    State(state): State<AdminState>,
    headers: HeaderMap,
) -> Result<Response, NoAnswer> {
    if is_foreign(&headers) {
        return Ok(foreign());
    }
    let overview = state.events.overview(&state).await?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], overview).into_response())
}

/// Events that a watcher is still to be sent.
struct Watcher {
    /// Events before those of each second.
    first: VecDeque<Bytes>,
    receiver: watch::Receiver<Bytes>,
    /// Its place, free again when the stream is dropped.
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        if let Some(event) = self.first.pop_front() {
            return Some((Ok(event), self));
        }
        self.receiver.changed().await.ok()?;
        let event = self.receiver.borrow_and_update().clone();
        Some((Ok(event), self))
    }
}

/// `GET /events`.
pub(super) async fn events(
    State(state): State<AdminState>,
    headers: HeaderMap,
) -> Result<Response, NoAnswer> {
    if is_foreign(&headers) {
        return Ok(foreign());
    }
    let Ok(place) = Arc::clone(&state.events.places).try_acquire_owned() else {
        let text = format!("{MAX_WATCHERS} pages are open already; ask for /overview");
        return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, text));
    };
    let receiver = state.events.sender.subscribe();
    let history = serde_json::to_vec(&state.events.history()).map_err(|_| NoAnswer)?;
    let overview = state.events.overview(&state).await?;
    let watcher = Watcher {
        first: VecDeque::from([
            Bytes::from_static(b"retry: 2000\n\n"),
            event("history", &history),
            event("overview", &overview),
        ]),
        receiver,
        _place: place,
    };
    let body = Body::from_stream(stream::unfold(watcher, Watcher::next));
    Ok((
        [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        body,
    )
        .into_response())
}
