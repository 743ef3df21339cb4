//! Protection from web pages, and from changes on addresses for reading. The admin interface asks
//! for no password. A browser that can reach it would therefore carry out a page's requests.
//!
//! A browser names the page's origin in every request that can change something. Requests with an
//! `Origin` therefore change nothing, and a page cannot read the answer to others. With DNS
//! rebinding, a page's own name points at our address, which makes the origins equal. Such requests
//! carry that name as their `Host`. Over TCP, the `Host` must be this machine's own name or an
//! address; at a loopback address, only a loopback one.

use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{AdminAddress, Peer};

/// Values that the `Host` of a request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hosts {
    /// Anything: a browser does not connect to Unix sockets.
    Any,
    /// `localhost`, this machine's name or a loopback address.
    Loopback,
    /// `localhost`, this machine's name or any address, but no other name.
    Addresses,
}

/// Rules for requests at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AccessRules {
    hosts: Hosts,
    /// Host name of this machine, if it can be read.
    own_name: Option<String>,
    /// Requests may change something.
    changes: bool,
}

impl AccessRules {
    /// Makes the rules for a server at `address`.
    pub(super) fn of(address: &AdminAddress) -> Self {
        let hosts = match address {
            AdminAddress::Unix(_) => Hosts::Any,
            _ if address.is_local() => Hosts::Loopback,
            AdminAddress::Tcp(_) | AdminAddress::WritableTcp(_) => Hosts::Addresses,
        };
        Self {
            hosts,
            // Read once per listener: a host that is renamed serves its old name until the restart.
            own_name: std::fs::read_to_string("/proc/sys/kernel/hostname")
                .ok()
                .map(|name| name.trim().to_owned()),
            changes: !matches!(address, AdminAddress::Tcp(_)),
        }
    }

    fn takes(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host();
        let is = |own: &str| name.eq_ignore_ascii_case(own);
        if is("localhost") || self.own_name.as_deref().is_some_and(is) {
            return true;
        }
        let address: Option<std::net::IpAddr> = name
            // `Authority::host` keeps the brackets of an IPv6 address.
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .ok();
        address.is_some_and(|address| {
            self.hosts == Hosts::Addresses || address.to_canonical().is_loopback()
        })
    }

    fn complaint(&self, method: &Method, headers: &HeaderMap) -> Option<&'static str> {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        if self.hosts != Hosts::Any && !host.is_some_and(|host| self.takes(host)) {
            return Some(
                "the Host header must be the admin address itself, localhost or this machine's own name\n",
            );
        }
        // Safe methods change nothing, and a page of another origin cannot read the answer.
        if method.is_safe() {
            return None;
        }
        // Any origin at all: programs send none, and "null" is a page as well.
        if headers.contains_key(header::ORIGIN) {
            return Some("requests of web pages (with an Origin header) change nothing here\n");
        }
        if !self.changes {
            return Some(
                "this address is for reading; use the Unix socket, or put \"writable:\" before the configured address\n",
            );
        }
        None
    }
}

/// Middleware that refuses requests that a web page can cause, and changes on addresses for
/// reading. Changes that it refuses are in the log, with who asked.
pub(super) async fn refuse(
    State(rules): State<Arc<AccessRules>>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let Some(complaint) = rules.complaint(method, request.headers()) else {
        return next.run(request).await;
    };
    if !method.is_safe() {
        let who = request.extensions().get::<ConnectInfo<Peer>>();
        let who = who.map(|ConnectInfo(peer)| peer);
        let why = complaint.trim_end();
        tracing::warn!(%method, path, ?who, why, "a change was refused");
    }
    (StatusCode::FORBIDDEN, complaint).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGES: [Method; 3] = [Method::POST, Method::PUT, Method::DELETE];

    fn headers(host: &'static str, origin: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !host.is_empty() {
            headers.insert(header::HOST, host.parse().expect("a value"));
        }
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect("a value"));
        }
        headers
    }

    fn rules(address: &str) -> AccessRules {
        AccessRules {
            own_name: Some("alloc-1".to_owned()),
            ..AccessRules::of(&address.parse().expect("an address"))
        }
    }

    #[test]
    fn no_web_page_can_read_or_change_anything() {
        let (loopback, open, unix) = (
            "writable:127.0.0.1:9600",
            "writable:0.0.0.0:9600",
            "unix:a.sock",
        );
        let table = [
            (loopback, "127.0.0.1:9600", true),
            (loopback, "[::1]:9600", true),
            (loopback, "LocalHost:9600", true),
            (loopback, "localhost", true),
            (loopback, "alloc-1:9600", true),
            (loopback, "rebound.example:9600", false),
            (loopback, "alloc-1.rebound.example:9600", false),
            (loopback, "localhost.rebound.example", false),
            (loopback, "10.0.0.1:9600", false),
            (loopback, "", false),
            (open, "10.0.0.1:9600", true),
            (open, "[fd00::1]", true),
            (open, "Alloc-1", true),
            (open, "rebound.example", false),
            (unix, "admin", true),
            (unix, "", true),
        ];
        for (address, host, taken) in table {
            let rules = rules(address);
            for method in [Method::GET, Method::HEAD].into_iter().chain(CHANGES) {
                let refused = rules.complaint(&method, &headers(host, None)).is_some();
                assert_eq!(refused, !taken, "{address} {method} {host:?}");
            }
            for method in CHANGES {
                for origin in ["https://page.example", "null"] {
                    let page = headers(host, Some(origin));
                    assert!(
                        rules.complaint(&method, &page).is_some(),
                        "{address} {host:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_address_is_for_reading_unless_it_says_otherwise() {
        for (address, changes) in [
            ("127.0.0.1:9600", false),
            ("10.0.0.1:9600", false),
            ("writable:127.0.0.1:9600", true),
            ("unix:a.sock", true),
        ] {
            let own = headers("127.0.0.1:9600", None);
            let rules = rules(address);
            assert_eq!(rules.complaint(&Method::GET, &own), None, "{address}");
            for method in CHANGES {
                let refused = rules.complaint(&method, &own).is_some();
                assert_eq!(refused, !changes, "{address} {method}");
            }
        }
    }
}
