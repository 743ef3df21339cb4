//! Record of changing requests for the audit log.

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ratewright_io::admin::Peer;

use super::routes::MAX_BODY_BYTES;
use crate::service::audit::{AuditLog, Who};

/// Middleware that records every request that can change something, with its answer.
pub(super) async fn record(
    State(audit): State<AuditLog>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    let who = Who::from(peer.map(|ConnectInfo(peer)| peer));
    let action = format!("{} {}", request.method(), request.uri());
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        audit.record(who, action, &[], status.as_u16().to_string());
        return (status, "the body is too large\n").into_response();
    };
    let request = Request::from_parts(parts, Body::from(body.clone()));
    let response = next.run(request).await;
    audit.record(who, action, &body, response.status().as_u16().to_string());
    response
}
