//! The endpoints. Each request about the service becomes a command to its thread, so that an idle
//! service computes nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::events::{self, Events};
use super::logging::LogControl;
use super::page::{self, Picture};
use super::{audited, metrics};
use crate::service::admin_request::{
    AdminRequest, ExternalLoad, LinkChange, SwitchChange, TopologyChange, TopologyChangeError,
};
use crate::service::audit::{self, AuditLog};
use crate::service::health::Health;
use crate::service::status::Snapshot;

/// Longest wait for a response of the service thread, which takes microseconds unless it is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for a change of the topology, which visits all flows, a few at a time.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for a survey, which visits all flows, a few at a time.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which a request polls the progress of the kill switch.
const RELEASE_POLL: Duration = Duration::from_millis(5);

/// Largest request body.
pub(super) const MAX_BODY_BYTES: usize = 64 * 1024;

/// State of the endpoints.
#[derive(Debug, Clone)]
pub struct AdminState {
    /// Commands to the service thread.
    pub commands: mpsc::Sender<AdminRequest>,
    /// Liveness and readiness.
    pub health: Arc<Health>,
    /// The log filter.
    pub log: LogControl,
    /// The audit log.
    pub audit: AuditLog,
    /// Renderer of the metrics that the recorder collects.
    pub prometheus: PrometheusHandle,
    /// Source of what the page shows.
    pub(super) events: Events,
    /// The topology as the page shows it.
    pub(super) picture: Picture,
}

/// Response for a service thread that did not answer in time.
pub(super) struct NoAnswer;

impl IntoResponse for NoAnswer {
    fn into_response(self) -> Response {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the service thread does not answer\n",
        )
            .into_response()
    }
}

impl AdminState {
    /// Makes the state of endpoints that nobody has asked yet.
    pub fn new(
        commands: mpsc::Sender<AdminRequest>,
        health: Arc<Health>,
        log: LogControl,
        audit: AuditLog,
        prometheus: PrometheusHandle,
    ) -> Self {
        Self {
            commands,
            health,
            log,
            audit,
            prometheus,
            events: Events::default(),
            picture: Picture::default(),
        }
    }

    /// Makes what the page shows, once a second while somebody watches. Never ends.
    pub async fn make_events(self) {
        self.events.run(&self).await;
    }

    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> AdminRequest,
    ) -> Result<T, NoAnswer> {
        self.ask_for(ANSWER_TIMEOUT, command).await
    }

    /// Sends a command and waits for its answer, at most `timeout`. Used directly for commands that
    /// the service thread executes a piece at a time.
    async fn ask_for<T>(
        &self,
        timeout: Duration,
        command: impl FnOnce(oneshot::Sender<T>) -> AdminRequest,
    ) -> Result<T, NoAnswer> {
        let (sender, receiver) = oneshot::channel();
        // The timeout covers the send too: the queue of a stuck thread may be full.
        let asked = async {
            self.commands
                .send(command(sender))
                .await
                .map_err(|_| NoAnswer)?;
            receiver.await.map_err(|_| NoAnswer)
        };
        tokio::time::timeout(timeout, asked)
            .await
            .map_err(|_| NoAnswer)?
    }

    async fn snapshot(&self) -> Result<Box<Snapshot>, NoAnswer> {
        self.ask(AdminRequest::Snapshot).await
    }
}

/// Returns the router of the allocator's endpoints.
pub fn router(state: AdminState) -> Router {
    Router::new()
        .route("/", get(page::html))
        .route("/page.css", get(page::style))
        .route("/page.js", get(page::script))
        .route("/icon.svg", get(page::icon))
        .route("/topology.svg", get(page::picture))
        .route("/events", get(events::events))
        .route("/overview", get(events::overview))
        .route("/links/flows", get(page::link_flows))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/status", get(status))
        .route("/flows", get(flows))
        .route("/feeds", get(feeds))
        .route("/links", get(links))
        .route("/explain", get(explain))
        .route("/audit", get(audit_page))
        .route("/log-level", get(log_level).put(set_log_level))
        .route("/release", post(release))
        .route("/resume", post(resume))
        .route("/topology/link", post(topology_link))
        .route("/topology/switch", post(topology_switch))
        .route("/topology/load", post(topology_load))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(page::protect))
        .layer(from_fn_with_state(state.audit.clone(), audited::record))
        .with_state(state)
}

async fn live(State(state): State<AdminState>) -> Result<Response, NoAnswer> {
    // A dead engine ends the process soon; the service thread may answer pings until then.
    if state.health.engine_died() {
        return Ok((StatusCode::SERVICE_UNAVAILABLE, "the engine thread died\n").into_response());
    }
    state.ask(AdminRequest::Ping).await?;
    Ok("live\n".into_response())
}

async fn ready(State(state): State<AdminState>) -> Response {
    let missing = state.health.not_ready();
    if missing.is_empty() {
        "ready\n".into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {}\n", missing.join(", ")),
        )
            .into_response()
    }
}

async fn metrics_text(State(state): State<AdminState>) -> Result<Response, NoAnswer> {
    let snapshot = state.snapshot().await?;
    metrics::publish(&snapshot);
    metrics::publish_audit(&state.audit);
    let mut text = state.prometheus.render();
    metrics::append_histograms(&snapshot, &mut text);
    Ok((
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response())
}

async fn status(State(state): State<AdminState>) -> Result<Response, NoAnswer> {
    Ok(Json(state.ask(AdminRequest::Status).await?).into_response())
}

/// Query of `/flows`: a host, or the number of the fastest flows of all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowsQuery {
    host: Option<String>,
    top: Option<usize>,
}

/// Most rows of `/flows?top=N` and `/links?top=N`.
const MAX_ROWS: usize = 1_000;
/// Rows of `/links` and `/audit` without a number.
const DEFAULT_ROWS: usize = 100;

async fn flows(
    State(state): State<AdminState>,
    Query(query): Query<FlowsQuery>,
) -> Result<Response, NoAnswer> {
    let host = match (query.host, query.top) {
        (Some(host), None) => host,
        (None, Some(top)) => {
            let most = top.min(MAX_ROWS);
            let survey = |reply| AdminRequest::TopFlows(most, reply);
            return Ok(Json(state.ask_for(SURVEY_TIMEOUT, survey).await?).into_response());
        }
        _ => {
            let expected = "say ?host=NAME for a host's flows, or ?top=50 for the fastest of all";
            return Ok(refusal(StatusCode::BAD_REQUEST, expected));
        }
    };
    // The command takes the name; the refusal needs it too.
    let name = host.clone();
    let answer = state.ask(|reply| AdminRequest::Flows(name, reply)).await?;
    Ok(match answer {
        Some(flows) => Json(flows).into_response(),
        None => refusal(
            StatusCode::NOT_FOUND,
            format!("{host:?} has no session here"),
        ),
    })
}

async fn feeds(State(state): State<AdminState>) -> Result<Response, NoAnswer> {
    let report = state.ask(AdminRequest::Feeds).await?;
    Ok(Json(report).into_response())
}

/// Query of `/links`: the number of the fullest links.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksQuery {
    top: Option<usize>,
}

async fn links(
    State(state): State<AdminState>,
    Query(query): Query<LinksQuery>,
) -> Result<Response, NoAnswer> {
    let most = query.top.unwrap_or(DEFAULT_ROWS).min(MAX_ROWS);
    let survey = |reply| AdminRequest::Links(most, reply);
    Ok(Json(state.ask_for(SURVEY_TIMEOUT, survey).await?).into_response())
}

/// Query of `/explain`: two hosts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    from: String,
    to: String,
}

async fn explain(
    State(state): State<AdminState>,
    Query(ExplainQuery { from, to }): Query<ExplainQuery>,
) -> Result<Response, NoAnswer> {
    let survey = |reply| AdminRequest::Explain(from, to, reply);
    Ok(match state.ask_for(SURVEY_TIMEOUT, survey).await? {
        Ok(explanation) => Json(explanation).into_response(),
        Err(error) => refusal(StatusCode::NOT_FOUND, error),
    })
}

/// Query of `/audit`: the number of the newest entries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    last: Option<usize>,
}

async fn audit_page(
    State(state): State<AdminState>,
    Query(query): Query<AuditQuery>,
) -> Json<audit::AuditPage> {
    Json(state.audit.page(query.last.unwrap_or(DEFAULT_ROWS)))
}

async fn log_level(State(state): State<AdminState>) -> String {
    format!("{}\n", state.log.current())
}

async fn set_log_level(State(state): State<AdminState>, body: String) -> Response {
    let filter = body.trim();
    match state.log.set(filter) {
        Ok(()) => {
            tracing::info!(filter, "log filter changed");
            format!("{filter}\n").into_response()
        }
        // The filter in force stays.
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

/// Turns the kill switch on, then waits for the hosts' acknowledgements for a little more than a
/// lease. After a lease, the rates of hosts that did not acknowledge have expired, which has the
/// same effect.
async fn release(
    State(state): State<AdminState>,
    Query(query): Query<ReleaseQuery>,
) -> Result<Response, NoAnswer> {
    if let Some(host) = query.host {
        return release_host(&state, host).await;
    }
    let report = state
        .ask(|reply| AdminRequest::SetReleased(true, reply))
        .await?;
    let polls = (Duration::from_millis(report.lease_ms) + ANSWER_TIMEOUT).as_millis()
        / RELEASE_POLL.as_millis();
    for _ in 0..polls {
        if !state.ask(AdminRequest::ReleaseWaits).await? {
            break;
        }
        tokio::time::sleep(RELEASE_POLL).await;
    }
    // The first report is from before the hosts' acknowledgements.
    Ok(Json(state.ask(AdminRequest::ReleaseReport).await?).into_response())
}

/// Query of `/release` and `/resume`: one host, or all without it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseQuery {
    host: Option<String>,
}

/// Releases one host, with the same proof as the kill switch.
async fn release_host(state: &AdminState, host: String) -> Result<Response, NoAnswer> {
    let name = host.clone();
    let answer = state
        .ask(|reply| AdminRequest::SetHostReleased(name, true, reply))
        .await?;
    let mut report = match answer {
        Ok(report) => report,
        Err(error) => return Ok(refusal(StatusCode::NOT_FOUND, error)),
    };
    let polls = (Duration::from_millis(report.lease_ms) + ANSWER_TIMEOUT).as_millis()
        / RELEASE_POLL.as_millis();
    for _ in 0..polls {
        if report.waiting.is_empty() {
            break;
        }
        tokio::time::sleep(RELEASE_POLL).await;
        let name = host.clone();
        report = state
            .ask(|reply| AdminRequest::HostReleaseReport(name, reply))
            .await?;
    }
    Ok(Json(report).into_response())
}

async fn resume(
    State(state): State<AdminState>,
    Query(query): Query<ReleaseQuery>,
) -> Result<Response, NoAnswer> {
    if let Some(host) = query.host {
        let answer = state
            .ask(|reply| AdminRequest::SetHostReleased(host, false, reply))
            .await?;
        return Ok(match answer {
            Ok(report) => Json(report).into_response(),
            Err(error) => refusal(StatusCode::NOT_FOUND, error),
        });
    }
    let report = state
        .ask(|reply| AdminRequest::SetReleased(false, reply))
        .await?;
    Ok(Json(report).into_response())
}

pub(super) fn refusal(status: StatusCode, error: impl std::fmt::Display) -> Response {
    (status, Json(json!({ "error": error.to_string() }))).into_response()
}

fn parse<T: DeserializeOwned>(body: &[u8], example: &str) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        Box::new(refusal(
            StatusCode::BAD_REQUEST,
            format!("{error}; expected a body like {example}"),
        ))
    })
}

async fn change(state: &AdminState, change: TopologyChange) -> Result<Response, NoAnswer> {
    let answer = state
        .ask_for(CHANGE_TIMEOUT, |reply| {
            AdminRequest::ChangeTopology(change, reply)
        })
        .await?;
    Ok(answer.map_or_else(refused_change, |report| Json(report).into_response()))
}

fn refused_change(error: TopologyChangeError) -> Response {
    let status = match error {
        TopologyChangeError::UnknownNode(_)
        | TopologyChangeError::UnknownSwitch(_)
        | TopologyChangeError::UnknownLink { .. } => StatusCode::NOT_FOUND,
        TopologyChangeError::Nothing
        | TopologyChangeError::Capacity(_)
        | TopologyChangeError::CapacityFloor { .. }
        | TopologyChangeError::Load(_)
        | TopologyChangeError::Flows(_)
        | TopologyChangeError::Duration(_) => StatusCode::BAD_REQUEST,
    };
    refusal(status, error)
}

async fn topology_load(State(state): State<AdminState>, body: Bytes) -> Result<Response, NoAnswer> {
    let example = r#"{"from":"leaf1","to":"h1","load_bps":1000000000,"for_ms":5000}"#;
    match parse::<ExternalLoad>(&body, example) {
        Ok(load) => {
            let answer = state
                .ask(|reply| AdminRequest::SetExternalLoad(load, reply))
                .await?;
            Ok(answer.map_or_else(refused_change, |report| Json(report).into_response()))
        }
        Err(response) => Ok(*response),
    }
}

async fn topology_link(State(state): State<AdminState>, body: Bytes) -> Result<Response, NoAnswer> {
    match parse::<LinkChange>(&body, r#"{"from":"leaf1","to":"spine1","up":false}"#) {
        Ok(link) => change(&state, TopologyChange::Link(link)).await,
        Err(response) => Ok(*response),
    }
}

async fn topology_switch(
    State(state): State<AdminState>,
    body: Bytes,
) -> Result<Response, NoAnswer> {
    match parse::<SwitchChange>(&body, r#"{"name":"spine1","up":false}"#) {
        Ok(switch) => change(&state, TopologyChange::Switch(switch)).await,
        Err(response) => Ok(*response),
    }
}
