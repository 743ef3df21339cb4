//! The relay's admin endpoints, all read-only.

use std::fmt::Write as _;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::state::{RelayHandle, RelayStatus, RelayTotals};

pub(super) fn router(shared: RelayHandle) -> Router {
    Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(shared)
}

async fn live(State(shared): State<RelayHandle>) -> &'static str {
    // A stuck relay holds the lock: then this request does not return, and the probe fails.
    drop(shared.lock());
    "live\n"
}

async fn ready(State(shared): State<RelayHandle>) -> Response {
    if shared.lock().upstream().is_some() {
        return "ready\n".into_response();
    }
    let reason = "not ready: no connection to an allocator\n";
    (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
}

async fn status(State(shared): State<RelayHandle>) -> Json<RelayStatus> {
    Json(shared.lock().status())
}

async fn metrics(State(shared): State<RelayHandle>) -> Response {
    let mut text = MetricsText::default();
    // The block ends the lock before the response is built.
    {
        let state = shared.lock();
        let up = u64::from(state.upstream().is_some());
        text.metric(
            "gauge",
            "allocator_connected",
            "1 while an allocator is connected.",
        );
        text.value("allocator_connected", "", up);
        text.metric("gauge", "hosts", "Hosts with a stream to the allocator.");
        text.value("hosts", "", state.host_count() as u64);
        counts(&mut text, &state.counts);
        if let Some(sealed) = &state.sealed {
            text.metric(
                "counter",
                "sealed_total",
                "Sealed UDP datagrams of hosts, by what became of them (sealed_bytes and opened_bytes are bytes).",
            );
            sealed.counters().for_each(|name, count| {
                text.value("sealed_total", &format!("{{kind=\"{name}\"}}"), count);
            });
        }
    }
    // The content type of Prometheus' text format.
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text.0).into_response()
}

fn counts(text: &mut MetricsText, counts: &RelayTotals) {
    for (name, help, count) in [
        (
            "allocator_connects_total",
            "Connections to an allocator.",
            counts.connects,
        ),
        (
            "hosts_opened_total",
            "Hosts' connections that got a stream.",
            counts.hosts_opened,
        ),
        (
            "datagrams_from_hosts_total",
            "Datagrams of hosts.",
            counts.datagrams_from_hosts,
        ),
        (
            "datagrams_to_hosts_total",
            "Datagrams to hosts.",
            counts.datagrams_to_hosts,
        ),
    ] {
        text.metric("counter", name, help);
        text.value(name, "", count);
    }
    for (name, help) in [
        (
            "bundles_total",
            "Bundles to and from the allocator, by direction.",
        ),
        (
            "bundle_bytes_total",
            "Bytes of those bundles, by direction.",
        ),
        (
            "bundle_datagrams_total",
            "Hosts' datagrams in those bundles, by direction.",
        ),
    ] {
        text.metric("counter", name, help);
        counts.bundles.for_each(|what, direction, count| {
            let of = match what {
                "bundles" => "bundles_total",
                "bytes" => "bundle_bytes_total",
                _ => "bundle_datagrams_total",
            };
            if of == name {
                text.value(name, &format!("{{direction=\"{direction}\"}}"), count);
            }
        });
    }
    for (name, help, reasons) in [
        (
            "rejected_total",
            "What the allocator or a host sent that went no further, by reason.",
            &counts.bundles.rejected,
        ),
        (
            "hosts_closed_total",
            "Hosts' connections that ended or came to nothing, by reason.",
            &counts.hosts_closed,
        ),
    ] {
        text.metric("counter", name, help);
        for (reason, count) in reasons.iter() {
            text.value(name, &format!("{{reason=\"{reason}\"}}"), count);
        }
    }
}

/// Text in Prometheus' exposition format.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn metric(&mut self, kind: &str, name: &str, help: &str) {
        let written = writeln!(
            self.0,
            "# HELP ratewright_relay_{name} {help}\n# TYPE ratewright_relay_{name} {kind}"
        );
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
    }

    fn value(&mut self, name: &str, labels: &str, value: u64) {
        let written = writeln!(self.0, "ratewright_relay_{name}{labels} {value}");
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
    }
}
