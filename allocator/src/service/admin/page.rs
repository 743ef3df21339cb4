//! The read-only page: three embedded files, the picture of the topology, and the headers that keep
//! a browser from loading anything else.

use std::sync::{Arc, OnceLock};

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ratewright_topology::render::to_svg;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::routes::{AdminState, NoAnswer, refusal};
use crate::service::admin_request::AdminRequest;

/// Sources of everything that a browser may load or show for our documents.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// An embedded file.
pub(super) struct Asset {
    content_type: &'static str,
    bytes: &'static [u8],
    etag: OnceLock<HeaderValue>,
}

impl Asset {
    const fn new(content_type: &'static str, bytes: &'static [u8]) -> Self {
        let etag = OnceLock::new();
        Self {
            content_type,
            bytes,
            etag,
        }
    }

    fn etag(&self) -> &HeaderValue {
        self.etag.get_or_init(|| etag(self.bytes))
    }
}

static HTML: Asset = Asset::new("text/html; charset=utf-8", include_bytes!("page/page.html"));
static STYLE: Asset = Asset::new("text/css; charset=utf-8", include_bytes!("page/page.css"));
static SCRIPT: Asset = Asset::new(
    "text/javascript; charset=utf-8",
    include_bytes!("page/page.js"),
);

static ICON: Asset = Asset::new("image/svg+xml", include_bytes!("page/icon.svg"));

/// Returns the entity tag of some content: the first 16 bytes of its SHA-256.
fn etag(content: &[u8]) -> HeaderValue {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    let hex: String = digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Hex digits are valid in a header.
    HeaderValue::from_str(&format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Answers with `content`, or with 304 if the browser has it.
fn cached(
    request: &HeaderMap,
    tag: HeaderValue,
    content_type: &'static str,
    content: impl IntoResponse,
) -> Response {
    let known = request.get(header::IF_NONE_MATCH) == Some(&tag);
    // The browser asks each time, so that a new version shows at once.
    let headers = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
    ];
    if known {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, content.into_response().into_body()).into_response()
    }
}

fn serve(asset: &'static Asset, request: &HeaderMap) -> Response {
    cached(
        request,
        asset.etag().clone(),
        asset.content_type,
        asset.bytes,
    )
}

pub(super) async fn html(request: HeaderMap) -> Response {
    serve(&HTML, &request)
}

pub(super) async fn style(request: HeaderMap) -> Response {
    serve(&STYLE, &request)
}

pub(super) async fn script(request: HeaderMap) -> Response {
    serve(&SCRIPT, &request)
}

pub(super) async fn icon(request: HeaderMap) -> Response {
    serve(&ICON, &request)
}

/// The newest picture of the topology, with the version that it shows.
#[derive(Debug, Clone, Default)]
pub(super) struct Picture(Arc<Mutex<Option<(u32, HeaderValue, axum::body::Bytes)>>>);

/// Query of `/topology.svg`: a version that the page has seen. Other versions are drawn anew.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PictureQuery {
    epoch: Option<u32>,
}

pub(super) async fn picture(
    State(state): State<AdminState>,
    Query(query): Query<PictureQuery>,
    request: HeaderMap,
) -> Result<Response, NoAnswer> {
    // One request draws, others wait for its picture.
    let mut newest = state.picture.0.lock().await;
    let drawn = newest
        .take()
        .filter(|&(epoch, ..)| query.epoch == Some(epoch));
    let (epoch, tag, svg) = match drawn {
        Some(drawn) => drawn,
        None => {
            let topology = state.ask(AdminRequest::Topology).await?;
            let svg = axum::body::Bytes::from(to_svg(&topology));
            (topology.epoch(), etag(&svg), svg)
        }
    };
    *newest = Some((epoch, tag.clone(), svg.clone()));
    Ok(cached(&request, tag, "image/svg+xml", svg))
}

/// Query of `/links/flows`: the link's id.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkQuery {
    id: u32,
}

pub(super) async fn link_flows(
    State(state): State<AdminState>,
    Query(LinkQuery { id }): Query<LinkQuery>,
) -> Result<Response, NoAnswer> {
    let answer = state
        .ask(|reply| AdminRequest::LinkFlows(id, reply))
        .await?;
    Ok(match answer {
        Some(flows) => Json(flows).into_response(),
        None => refusal(StatusCode::NOT_FOUND, format!("no link has the id {id}")),
    })
}

/// Middleware that tells browsers to load nothing from elsewhere, and to show nothing of ours
/// inside another page.
pub(super) async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_takes_at_most_120_kilobytes() {
        let bytes: usize = [&HTML, &STYLE, &SCRIPT, &ICON]
            .iter()
            .map(|asset| asset.bytes.len())
            .sum();
        assert!(bytes <= 120_000, "{bytes} bytes");
    }

    #[test]
    fn the_page_has_no_inline_script_or_style_and_names_no_other_origin() {
        let html = std::str::from_utf8(HTML.bytes).expect("text");
        assert!(!html.contains("style="), "an inline style");
        assert!(!html.contains("<style"), "an inline style sheet");
        assert!(!html.contains(" on"), "an event handler in the markup");
        assert_eq!(html.matches("<script").count(), 1);
        assert!(html.contains(r#"<script type="module" src="page.js"></script>"#));
        for asset in [&HTML, &STYLE, &SCRIPT, &ICON] {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            // The name of SVG's elements is no address that anything loads.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http:") && !text.contains("https:"));
            assert!(!text.contains("url(") && !text.contains("@import"));
        }
        // Every text goes into the page as text.
        let script = std::str::from_utf8(SCRIPT.bytes).expect("text");
        for markup in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
        ] {
            assert!(!script.contains(markup), "{markup}");
        }
    }
}
